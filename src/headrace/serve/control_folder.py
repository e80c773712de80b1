"""The folder of the control sockets of this user's processes: one socket per process, which only this user can open."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import SetupError
from headrace.runtime.work_folder import create_folder, shared_folder

_SUFFIX = ".sock"
_TEMPORARY = ".new-"  # prefix of a socket that is bound but does not listen yet


def control_folder() -> Path:
    """`$XDG_RUNTIME_DIR/headrace`, otherwise in the state home; SetupError if another user could use it."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        folder = create_folder(Path(runtime) / "headrace", "XDG_RUNTIME_DIR", 0o700)
    else:
        folder = shared_folder("control")
    status = folder.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise SetupError(
            f"Other users can open {folder}: owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}.",
            hint=f"It must belong to user {os.getuid()} with mode 0700. Or set XDG_RUNTIME_DIR to another directory.",
        )
    return folder


def new_names() -> tuple[str, str]:
    """Name of the socket of this process, and of the temporary one that becomes it.

    Not the pid alone: processes in several containers, which share the folder, may all have the pid 1.
    """
    name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
    return name, f"{_TEMPORARY}{name}"


def socket_names(folder: Path) -> list[str]:
    """Names of the sockets in the folder, those of dead processes included."""
    return sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX) and not name.startswith(_TEMPORARY))  # noqa: PTH208


def pid_of(name: str) -> int:
    """The process of a socket, within its own pid namespace."""
    return int(name.partition("-")[0])


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """A path of the folder for socket addresses, which are limited to 107 bytes, whatever the length of its own."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
