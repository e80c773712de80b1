"""Two processes that start `headrace run` at the same moment, once for each spec: `python -m services.starts SPEC…`.

They are forked from this one, which has everything imported, so that a start costs milliseconds. Of each round a line
of JSON tells who ended first, how and with which words, and whether the other was still at work then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from typing import IO, Any, NoReturn

import headrace.runtime.session
import headrace.serve.runner
import headrace.source.kafka
import headrace.validate.load  # noqa: F401 - what `headrace run` imports when it runs
from headrace.cli import main

LONGEST = 20  # seconds of a round; whoever takes longer is ended by SIGALRM


def command(spec: str, gate: int, said: IO[bytes]) -> NoReturn:
    """`headrace run`, as soon as the gate is open; the process ends with the command's own code."""
    code: Any = 70
    os.dup2(said.fileno(), sys.stderr.fileno())
    sys.argv = ["headrace", "run", spec]
    try:
        os.read(gate, 1)
        main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stderr.flush()
        os._exit(int(code))


def start(spec: str, gate: int, latch: int, said: IO[bytes]) -> int:
    """One of the two: its pid."""
    if pid := os.fork():
        return pid
    signal.alarm(LONGEST)
    os.close(latch)
    command(spec, gate, said)


def race(spec: str) -> dict[str, Any]:
    """One round; the one that is still at work at its end is killed."""
    signal.alarm(LONGEST)
    with tempfile.TemporaryFile() as said:
        gate, latch = os.pipe()
        pids = {start(spec, gate, latch, said) for _ in range(2)}
        os.close(latch)  # now both go
        first, status = os.waitpid(-1, 0)
        (other,) = pids - {first}
        if alive := os.waitpid(other, os.WNOHANG) == (0, 0):
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
        os.close(gate)
        said.seek(0)
        words = said.read().decode()
    return {"code": os.waitstatus_to_exitcode(status), "other": other, "alive": alive, "said": words}


if __name__ == "__main__":
    for each in sys.argv[1:]:
        sys.stdout.write(json.dumps(race(each)) + "\n")
        sys.stdout.flush()
