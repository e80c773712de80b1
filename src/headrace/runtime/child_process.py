"""Child processes that end with this process: a JVM must not keep writing without its driver."""

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

# Runs between fork and exec, in a separate Python because preexec_fn is not thread-safe.
# PR_SET_PDEATHSIG = 1; the check of the parent covers its death before the call.
_BIND = """
import ctypes, os, signal, sys
if sys.platform == "linux": ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): os._exit(1)
for number in sys.argv[2].split(","): signal.signal(int(number), signal.SIG_IGN)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Child(subprocess.Popen[bytes]):
    """Process that the kernel kills when this process ends, even by SIGKILL."""

    def stop(self, within: float = 10) -> None:
        """Terminate the process, kill it after `within` seconds, and wait for its exit."""
        if self.poll() is None:
            self.terminate()
        try:
            self.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reap()

    def crash(self) -> None:
        """Kill the process without cleanup."""
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
    ignored_signals: Sequence[signal.Signals] = (signal.SIGINT,),
) -> Child:
    """Start a process that writes its output to `log`; its stdin is closed when this process ends."""
    ignored = ",".join(str(int(number)) for number in ignored_signals)
    bound_command = [sys.executable, "-ISc", _BIND, str(os.getpid()), ignored, *command]
    started: Future[Child] = Future()

    def fork_and_wait() -> None:
        # The kernel sends its signal when the *thread* that forked ends, so this thread lives as long as the child.
        try:
            started.set_result(Child(bound_command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=env, cwd=cwd))
        except OSError as error:
            started.set_exception(error)
        else:
            started.result().wait()

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        threading.Thread(target=fork_and_wait, name=f"wait for {Path(command[0]).name}", daemon=True).start()
        return started.result()
    finally:
        os.close(out)
