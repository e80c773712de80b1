"""The operations of the spool on a local disk. Tests replace them by a disk that loses what was not synced."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from headrace.errors import HeadraceError, PermissionDenied, StorageFull, StorageUnreachable

_TEMPORARY = ".new"
_IOV_MAX = 1000
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class AppendFile(Protocol):
    """A file that only grows, except that an incomplete end can be cut."""

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Append the parts."""

    def sync(self) -> None:
        """Make the content durable."""

    def truncate(self, size: int) -> None:
        """Cut the file to a size."""

    def close(self) -> None:
        """Close the file without a sync."""


class Disk(Protocol):
    """Files of a folder. Nothing is durable before the file, and for a new name its folder, is synced."""

    def make_folder(self, folder: str) -> None:
        """Create a folder and its parents, durably."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; empty if it does not exist."""

    def read(self, path: str) -> memoryview:
        """The content of a file, mapped; FileNotFoundError if it does not exist."""

    def modified(self, path: str) -> float:
        """Time of the last change in seconds since 1970."""

    def open(self, path: str) -> AppendFile:
        """Open a file for appending; created if absent."""

    def replace(self, path: str, data: bytes, *, durable: bool) -> None:
        """Replace a file atomically; `durable` syncs the file and its folder."""

    def sync_folder(self, folder: str) -> None:
        """Make new and deleted names of a folder durable."""

    def unlink(self, path: str) -> None:
        """Delete a file; a missing one is ignored."""


class LocalDisk:
    """The file system of the operating system."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def make_folder(self, folder: str) -> None:
        path = self.root / folder if folder else self.root
        missing = [each for each in (path, *path.parents) if not each.is_dir()]
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)  # records may contain private data
            _sync_path(each.parent)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def read(self, path: str) -> memoryview:
        with (self.root / path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def modified(self, path: str) -> float:
        return (self.root / path).stat().st_mtime

    def open(self, path: str) -> AppendFile:
        return _LocalFile(self.root / path)

    def replace(self, path: str, data: bytes, *, durable: bool) -> None:
        target = self.root / path
        temporary = target.with_name(f"{target.name}{_TEMPORARY}-{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(target)
        if durable:
            _sync_path(target.parent)

    def sync_folder(self, folder: str) -> None:
        _sync_path(self.root / folder)

    def unlink(self, path: str) -> None:
        with suppress(FileNotFoundError):
            (self.root / path).unlink()


class _LocalFile:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        rest = [memoryview(part) for part in parts if len(part)]
        while rest:
            written = os.writev(self._descriptor, rest[:_IOV_MAX])
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if written:
                rest[0] = rest[0][written:]

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        os.close(self._descriptor)


def _sync_path(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_error(error: OSError, where: str) -> HeadraceError:
    """An error of the operating system as one of Headrace."""
    kind: type[HeadraceError] = StorageUnreachable
    kind = StorageFull if error.errno in _FULL else PermissionDenied if error.errno in _DENIED else kind
    hints: dict[type[HeadraceError], str] = {
        StorageFull: "Free space there.",
        PermissionDenied: "Grant read and write access there.",
    }
    return kind(f"{error.filename or where}: {error.strerror or error}.", hint=hints.get(kind, ""))
