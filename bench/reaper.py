"""`python reaper.py COMMAND…`: run a command, and report its times and the CPU-seconds of all its descendants.

The process is the subreaper of its descendants: a JVM or worker that outlives the command is reaped here, so that its
CPU time is counted. The last line of standard output is JSON: exit code, start, end, CPU-seconds, and processes that
did not end by themselves within a minute.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
GRACE = 60.0  # seconds


def main(command: list[str]) -> None:
    """Run the command; a SIGTERM is passed on to it."""
    if ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    start = time.monotonic()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    end = time.monotonic()
    killed = _reap(end + GRACE)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(json.dumps({"code": code, "start": start, "end": end, "cpu": cpu, "killed": killed}), flush=True)


def _reap(deadline: float) -> int:
    """Wait for the descendants that are left; returns how many had to be killed."""
    killed = 0
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return killed
        if pid:
            continue
        if time.monotonic() > deadline:
            for left in _children():
                os.kill(left, signal.SIGKILL)
                killed += 1
            deadline += GRACE
        time.sleep(0.01)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


if __name__ == "__main__":
    main(sys.argv[1:])
