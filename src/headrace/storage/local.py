"""Local folders: atomic by hard link and rename, durable by fsync of file and folder."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from headrace.errors import HeadraceError, PermissionDenied, StorageFull, StorageUnreachable
from headrace.storage.base import HINTS, AlreadyExists, NotFound, ObjectMeta

_TEMPORARY = ".headrace-"  # prefix of temporary files, which an interrupted put leaves; listings skip them
_ERRORS: dict[int, type[HeadraceError]] = {
    errno.ENOENT: NotFound,
    errno.ENOTDIR: NotFound,
    errno.EISDIR: NotFound,
    errno.EEXIST: AlreadyExists,
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EROFS: PermissionDenied,
}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Raise errors of the operating system as errors of Headrace."""
    try:
        yield
    except OSError as error:
        raise _error(path, error) from error


def _error(path: Path, error: OSError) -> HeadraceError:
    kind = _ERRORS.get(error.errno or 0, StorageUnreachable)
    return kind(f"{path}: {error.strerror or error}.", hint=HINTS.get(kind, ""))


class LocalFolder:
    """A storage backend over one folder."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def put_new(self, path: str, data: bytes) -> str:
        target = self._root / path
        with _named(target):
            return _put(target, data, os.link)

    def put(self, path: str, data: bytes) -> str:
        target = self._root / path
        with _named(target):
            return _put(target, data, os.replace)

    def get(self, path: str) -> bytes:
        # Without the overhead of Path: a walk over a log reads thousands of small files.
        try:
            with open(f"{self._root}/{path}", "rb", buffering=0) as file:  # noqa: PTH123
                return file.read()
        except OSError as error:
            raise _error(self._root / path, error) from error

    def read(self, path: str, start: int, until: int) -> bytes:
        with _named(self._root / path), (self._root / path).open("rb") as file:
            file.seek(start)
            return file.read(until - start)

    def tag(self, path: str) -> str | None:
        target = self._root / path
        try:
            with _named(target):
                status = target.stat()
        except NotFound:
            return None
        return _file_tag(status) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str, after: str | None) -> Iterator[ObjectMeta]:
        root = self._root / prefix if prefix else self._root
        with _named(root):
            paths = sorted(path for path in _walk(str(root), prefix) if after is None or path > after)
        for path in paths:
            # Without the overhead of Path: a log has thousands of files.
            try:
                status = os.stat(f"{self._root}/{path}")  # noqa: PTH116
            except (FileNotFoundError, NotADirectoryError):  # deleted during the listing
                continue
            except OSError as error:
                raise _error(self._root / path, error) from error
            yield ObjectMeta(path, status.st_size, status.st_mtime, _file_tag(status))

    def folders(self, prefix: str) -> Sequence[str]:
        root = self._root / prefix if prefix else self._root
        try:
            with _named(root), os.scandir(root) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except NotFound:
            return []
        return [f"{prefix}/{name}" if prefix else name for name in names]

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            target = self._root / path
            with suppress(NotFound), _named(target):
                target.unlink()

    def open(self, path: str) -> BinaryIO:
        target = self._root / path
        with _named(target):
            return target.open("rb")

    def move(self, path: str, target: str) -> None:
        source, goal = self._root / path, Path(target)
        with _named(goal):
            _make_folder(goal.parent)
        with _named(source):
            source.replace(goal)
            _sync(goal.parent)


def _walk(folder: str, prefix: str) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, path)
            elif not entry.name.startswith(_TEMPORARY):
                yield path


def _put(target: Path, data: bytes, publish: Callable[[Path, Path], object]) -> str:
    """Write a temporary file, then link it (fails if the target exists) or rename it (replaces the target)."""
    _make_folder(target.parent)
    temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
    try:
        tag = _write(temporary, data)
        publish(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(target.parent)
    return tag


def _write(path: Path, data: bytes) -> str:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
        return _file_tag(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def make_private(root: str) -> None:
    """Create a folder that others cannot read; PermissionDenied if that is not possible."""
    folder = Path(root)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _uncreated(folder, error) from error


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, durably."""
    try:
        _make_folders(folder)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ENOENT, errno.EEXIST):
            raise _uncreated(folder, error) from error
        raise


def _make_folders(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    try:
        folder.mkdir()
        _sync(folder.parent)
    except FileExistsError:
        if not folder.is_dir():  # another writer may have created it meanwhile
            raise NotADirectoryError(errno.ENOTDIR, "a file with this name exists", str(folder)) from None


def _uncreated(folder: Path, error: OSError) -> HeadraceError:
    """The error for a folder that cannot be created: not a missing object, and not transient."""
    kind = _ERRORS.get(error.errno or 0, StorageUnreachable)
    kind = PermissionDenied if kind in (NotFound, AlreadyExists) else kind
    return kind(
        f"The directory {folder} cannot be created: {error.strerror or error}.",
        hint="Specify a directory that can be created and written, then run again.",
    )


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_tag(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
