"""Daemon of Spark's Python workers that has imported the modules of a task before it forks a worker.

With Spark's own daemon every worker imports these modules again (0.8 CPU-seconds) and has its own copy of them in
memory (100 MB). Spark starts a daemon only when the first task needs a worker, which would then wait for the imports.
So the daemon is started together with the JVM, by `--wait SOCKET`. The program that Spark starts, by
`spark.python.daemon.module`, passes its streams and environment to the waiting daemon, and ends when that one ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from headrace.runtime.hidden_pandas import hidden_pandas

SOCKET = "_HEADRACE_WORKER_DAEMON"  # variable with the socket of the waiting daemon, set by `runtime/session.py`
_LENGTH = 4  # bytes of the length of a message
_STREAMS = (0, 1, 2)
_TAKEN = b"+"  # the response


def main() -> None:
    """Wait for Spark as `--wait SOCKET`; otherwise be the daemon that Spark starts."""
    if sys.argv[1] == "--wait":
        _wait(sys.argv[2])
    elif not _is_taken_over():
        _import_modules()
        _serve()


def _wait(path: str) -> None:
    """Import the modules, then take the place of the daemon that Spark starts; exit if stdin is closed before."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)  # before the imports: Spark may be faster
        _import_modules()
        if listener not in select.select([listener, sys.stdin], [], [])[0]:
            return
        connection, _ = listener.accept()
    Path(path).unlink()  # a later daemon of Spark starts by itself
    with suppress(EOFError):
        _take_over(connection)
        os.register_at_fork(after_in_child=connection.close)  # else a worker would keep it open after the daemon's end
        _serve()


def _is_taken_over() -> bool:
    """Whether a waiting daemon has taken the place of this process; then it has ended since."""
    message = json.dumps([sys.argv, dict(os.environ)]).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(os.environ.get(SOCKET, ""))
            socket.send_fds(connection, [len(message).to_bytes(_LENGTH, "big")], _STREAMS)
            connection.sendall(message)
            taken = connection.recv(len(_TAKEN))
        except OSError:
            return False  # there is none, or it serves already
        if taken:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with suppress(OSError):
                connection.recv(1)  # returns at the end of the daemon
        return bool(taken)


def _take_over(connection: socket.socket) -> None:
    """Replace arguments, environment and streams by those of the process that Spark started."""
    length, streams, *_ = socket.recv_fds(connection, _LENGTH, len(_STREAMS))
    message = b""
    while len(message) < int.from_bytes(length, "big"):
        if not (part := connection.recv(65536)):
            raise EOFError
        message += part
    sys.argv, environment = json.loads(message)
    os.environ.clear()
    os.environ.update(environment)
    for stream, number in zip(streams, _STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    _outlive_driver()
    connection.sendall(_TAKEN)


def _outlive_driver() -> None:
    """Do not be killed with the driver any more: when the JVM ends, the daemon first has to end the workers."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG


def _import_modules() -> None:
    with hidden_pandas():
        import pyspark.worker  # noqa: F401

        import headrace.decode.json.decoder
        import headrace.pipeline.task  # noqa: F401
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages of all these objects


def _serve() -> NoReturn:
    from pyspark.daemon import manager

    with hidden_pandas():
        manager()
    raise SystemExit


if __name__ == "__main__":
    main()
