"""A disk in memory that forgets, in a crash, what was not synced: ends of files, and names in folders."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


class Crash(BaseException):
    """The machine stops."""


@dataclass
class _File:
    durable: bytes = b""
    content: bytes = b""
    modified: float = 0.0


@dataclass
class CrashingDisk:
    """Files by path; a name survives a crash once its folder was synced, content once its file was."""

    now: Callable[[], float]
    files: dict[str, _File] = field(default_factory=dict)
    durable: dict[str, _File] = field(default_factory=dict)
    crash_after: int = 2**60  # operations

    def _operation(self) -> None:
        self.crash_after -= 1
        if self.crash_after < 0:
            raise Crash

    def crash(self, rng: random.Random, *, process_only: bool = False) -> CrashingDisk:
        """What a start after the crash finds; after the end of the process alone, everything that was written."""
        after = CrashingDisk(self.now)
        for path in {*self.files, *self.durable}:
            kept = self.files if process_only or rng.random() < 0.5 else self.durable
            if (file := kept.get(path)) is not None:
                content = file.content if process_only else _torn(file, rng)
                after.files[path] = after.durable[path] = _File(content, content, file.modified)
        return after

    # ---- the operations of `Disk` ----

    def make_folder(self, folder: str) -> None:
        self._operation()

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/"
        return sorted({path[len(prefix) :].split("/")[0] for path in self.files if path.startswith(prefix)})

    def read(self, path: str) -> memoryview:
        if path not in self.files:
            raise FileNotFoundError(path)
        return memoryview(self.files[path].content)

    def modified(self, path: str) -> float:
        return self.files[path].modified

    def open(self, path: str) -> _Handle:
        self._operation()
        file = self.files.setdefault(path, _File(modified=self.now()))
        return _Handle(self, file)

    def replace(self, path: str, data: bytes, *, durable: bool) -> None:
        self._operation()
        file = _File(data if durable else b"", data, self.now())
        self.files[path] = file
        if durable:
            self.sync_folder(path.rpartition("/")[0])

    def sync_folder(self, folder: str) -> None:
        self._operation()
        for path in {*self.files, *self.durable}:
            if path.rpartition("/")[0] == folder:
                if path in self.files:
                    self.durable[path] = self.files[path]
                else:
                    del self.durable[path]

    def unlink(self, path: str) -> None:
        self._operation()
        self.files.pop(path, None)


@dataclass
class _Handle:
    disk: CrashingDisk
    file: _File

    def write(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            self.disk._operation()
            self.file.content += bytes(part)
            self.file.modified = self.disk.now()

    def sync(self) -> None:
        self.disk._operation()
        self.file.durable = self.file.content

    def truncate(self, size: int) -> None:
        self.disk._operation()
        self.file.content = self.file.content[:size]

    def close(self) -> None:
        return


def _torn(file: _File, rng: random.Random) -> bytes:
    """The durable content with any part of what was written after it, of which sectors may be missing."""
    if not file.content.startswith(file.durable):  # cut, and not synced since: either may be there
        return rng.choice((file.durable, file.content))
    kept = bytearray(file.content[: rng.randint(len(file.durable), len(file.content))])
    if len(kept) > len(file.durable) and rng.random() < 0.3:
        start = rng.randrange(len(file.durable), len(kept))
        kept[start : start + 512] = bytes(len(kept[start : start + 512]))
    return bytes(kept)
