"""Children that die with us: a JVM must not go on writing after its driver is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

# Runs between fork and exec, in a Python of its own because preexec_fn is not safe beside threads.
# PR_SET_PDEATHSIG = 1; the look at the parent closes the gap before it is set.
_BIND = """
import ctypes, os, signal, sys
if sys.platform == "linux": ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): os._exit(1)
for deaf in sys.argv[2].split(","): signal.signal(int(deaf), signal.SIG_IGN)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Child(subprocess.Popen[bytes]):
    """A program that the kernel kills when this process ends, however it ends."""

    def stop(self, within: float = 10) -> None:
        """Ask it to end, insist after `within` seconds, and wait until it has."""
        if self.poll() is None:
            self.terminate()
        try:
            self.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reap()

    def crash(self) -> None:
        """End it at once, with no chance to tidy up."""
        self.kill()
        self._reap()

    def _reap(self) -> None:
        self.wait()
        if self.stdin:
            with suppress(BrokenPipeError):
                self.stdin.close()


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    deaf_to: Sequence[signal.Signals] = (signal.SIGINT,),
) -> Child:
    """Start a program whose output goes to `log`, whose standard input closes with us, and who leaves signals to us."""
    deaf = ",".join(str(int(one)) for one in deaf_to)
    bound = [sys.executable, "-ISc", _BIND, str(os.getpid()), deaf, *command]
    born: Future[Child] = Future()

    def keep() -> None:
        # The kernel's signal comes when the *thread* that forked ends, so this one stays as long as the child.
        try:
            born.set_result(Child(bound, stdin=subprocess.PIPE, stdout=out, stderr=out, env=env, cwd=cwd))
        except OSError as problem:
            born.set_exception(problem)
        else:
            born.result().wait()

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        threading.Thread(target=keep, name=f"keeper of {Path(command[0]).name}", daemon=True).start()
        return born.result()
    finally:
        os.close(out)
