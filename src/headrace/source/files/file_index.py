"""The index of discovered files: which offsets the records of each file have. Durable, and only ever extended.

`<state>/files/<path>/` has numbered objects, each written with put-if-absent: changes, and after some changes the
whole index. Two processes that discover the same files cannot both write the next object; the second one loads what
the first has written, and finds no new files.
"""

from __future__ import annotations

import json
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from headrace.errors import HeadraceError, UnsupportedStateFormat
from headrace.source.files.indexed_file import FileFormat, IndexedFile
from headrace.storage.base import AlreadyExists, NotFound
from headrace.storage.store import Store

_FORMAT = 1
_WHOLE_EVERY = 50  # objects

Order = tuple[float, str]


class FileIndex:
    """All remembered files in the order of their offsets."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store, self._limit = store, limit
        self._number = 0  # of the newest object
        self._clear()

    def _clear(self) -> None:
        self.id = uuid.uuid4().hex
        self.files: list[IndexedFile] = []
        self.by_path: dict[str, IndexedFile] = {}  # the newest file of each path
        self.forgotten = 0  # number of files that are no longer remembered
        self.watermark: Order | None = None  # of the newest forgotten file
        self.earliest = 0  # the offset before which files are forgotten or deleted

    @property
    def exists(self) -> bool:
        """Whether the index was written."""
        return self._number > 0

    @property
    def latest(self) -> int:
        """The offset of the next record."""
        return self.files[-1].until if self.files else self.earliest

    def load(self) -> None:
        """Read the objects that were written since the last call."""
        while not self._load():
            pass

    def _load(self) -> bool:
        numbers = self._numbers()
        if not numbers or numbers[-1] == self._number:
            return True
        waiting: list[dict[str, Any]] = []
        try:
            for number in reversed(numbers):
                if number == self._number:
                    break
                waiting.append(self._get(number))
                if waiting[-1]["whole"]:
                    break
        except NotFound:  # deleted by another process, which has written the whole index
            return False
        for raw in reversed(waiting):
            self._apply(raw)
        self._number = numbers[-1]
        return True

    def _numbers(self) -> list[int]:
        names = (item.path.rpartition("/")[2] for item in self._store.list())
        return sorted(int(name) for name in names if name.isdigit())

    def _get(self, number: int) -> dict[str, Any]:
        raw: dict[str, Any] = json.loads(self._store.get(f"{number:012}"))
        if raw.get("format") != _FORMAT:
            raise UnsupportedStateFormat(
                f"{self._store.uri} has format {raw.get('format')}, expected {_FORMAT}.",
                hint="Use the version of Headrace that wrote it, or a newer one.",
            )
        return raw

    def _apply(self, raw: Mapping[str, Any]) -> None:
        if raw["whole"]:
            self._clear()
            self.forgotten, self.earliest = raw["forgotten"], raw["earliest"]
            self.watermark = tuple(raw["watermark"]) if raw["watermark"] else None
        self.id = raw["id"]
        formats = [FileFormat.from_json(each) for each in raw["formats"]]
        for each in raw["files"]:
            self._set(IndexedFile.from_json(each, formats))

    def _set(self, file: IndexedFile) -> None:
        """Add a file, or replace its status."""
        if file.status == "deleted":
            self.earliest = max(self.earliest, file.until)
        if self.files and file.number <= self.files[-1].number:
            at = file.number - self.files[0].number
            if at >= 0:
                self.files[at] = file
                if self.by_path[file.path].number == file.number:
                    self.by_path[file.path] = file
            return
        self.files.append(file)
        self.by_path[file.path] = file

    def add(self, files: Sequence[IndexedFile], committed: int) -> None:
        """Write new files, or files with another status; AlreadyExists if another process was first.

        `committed`: the offset before which all records are recorded in the ledger, so that files may be forgotten.
        """
        number = self._number + 1
        whole = number % _WHOLE_EVERY == 0
        if whole:
            for file in files:
                self._set(file)
            self._forget(committed)
        content = self._content(self.files if whole else files, whole)
        try:
            self._store.put_new(f"{number:012}", json.dumps(content, separators=(",", ":")).encode())
            numbers = self._numbers()
            if numbers[-1] != number:  # written while this process was suspended, or by another one since
                raise AlreadyExists(f"{self._store.uri}: object {number} was written by another process.")
        except HeadraceError:
            self._number = 0  # read again: whether the object was written is not known
            self._clear()
            raise
        self._number = number
        if not whole:
            for file in files:
                self._set(file)
            return
        self._store.delete(f"{old:012}" for old in numbers if old <= number - _WHOLE_EVERY)

    def _content(self, files: Iterable[IndexedFile], whole: bool) -> dict[str, Any]:
        formats: list[dict[str, Any]] = []
        rows = [file.to_json(formats) for file in files]
        content = {"format": _FORMAT, "id": self.id, "whole": whole, "formats": formats, "files": rows}
        if whole:
            content |= {"forgotten": self.forgotten, "watermark": self.watermark, "earliest": self.earliest}
        return content

    def _forget(self, committed: int) -> None:
        """Forget the oldest files beyond the limit, as long as their records are recorded in the ledger."""
        oldest = takewhile(lambda file: file.until <= committed, self.files[: max(0, len(self.files) - self._limit)])
        forgotten = list(oldest)
        for file in forgotten:
            self.earliest = max(self.earliest, file.until)
            if self.by_path[file.path].number == file.number:
                del self.by_path[file.path]
            if file.status not in ("deleted", "moved"):
                self.forgotten += 1
                self.watermark = max(self.watermark or file.order, file.order)
        del self.files[: len(forgotten)]

    def between(self, start: int, until: int) -> list[IndexedFile]:
        """The files that have records in a range of offsets."""
        at = max(0, bisect_right(self.files, start, key=lambda file: file.first) - 1)
        while at > 0 and self.files[at - 1].until > start:
            at -= 1
        files = []
        while at < len(self.files) and self.files[at].first < until:
            if self.files[at].until > start:
                files.append(self.files[at])
            at += 1
        return files

    def next_number(self) -> int:
        """The number of the next file."""
        return self.files[-1].number + 1 if self.files else 0
