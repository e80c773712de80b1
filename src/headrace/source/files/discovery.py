"""Discovery of files: which ones of a listing are complete and new, and how many records they have."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from headrace.errors import UsageError
from headrace.source.files.file_index import FileIndex
from headrace.source.files.indexed_file import FileContent, FileFormat, IndexedFile
from headrace.source.files.reading import count_rows
from headrace.spec.files_source import FilesSpec, FilesStart, is_hidden
from headrace.storage.base import NotFound, ObjectMeta
from headrace.storage.store import Store, clean

_THREADS = 4
_CLOCK_SKEW = 60.0  # seconds that the clock of a producer may be ahead
_GROUP = 200  # files that are counted before they are recorded


@dataclass
class Listing:
    """The files of one listing, by what is to be done with them."""

    new: list[ObjectMeta] = field(default_factory=list)
    changed: list[ObjectMeta] = field(default_factory=list)  # their records were discovered with other content
    behind: dict[str, float] = field(default_factory=dict)  # not remembered, and not newer than the watermark
    invalid_names: list[str] = field(default_factory=list)
    in_future: list[str] = field(default_factory=list)  # modification time
    settling: int = 0


class FileDiscovery:
    """Finds new files of a source and adds them to its index."""

    def __init__(self, spec: FilesSpec, store: Store, record_bytes: int) -> None:
        self._spec, self._store = spec, store
        self._format = FileFormat.of(spec, record_bytes)

    def listing(self, index: FileIndex) -> Listing:
        """List the files and compare them with the index."""
        listing, now = Listing(), time.time()
        for item in self._files():
            if not _is_valid_name(item.path):
                listing.invalid_names.append(item.path)
            elif item.modified > now + _CLOCK_SKEW:
                listing.in_future.append(item.path)
            elif now - item.modified < self._spec.settle_seconds:
                listing.settling += 1
            else:
                self._sort_in(item, index, listing)
        listing.new.sort(key=lambda item: (item.modified, item.path))
        return listing

    def candidates(self) -> Iterator[ObjectMeta]:
        """All files that can be read."""
        return (item for item in self._files() if _is_valid_name(item.path))

    def _files(self) -> Iterator[ObjectMeta]:
        """All files that are neither hidden nor excluded by the pattern."""
        for item in self._store.list():
            if is_hidden(item.path) or not self._matches(item.path):
                continue
            if self._store.local and not _is_regular(f"{self._store.root}/{item.path}"):
                continue
            yield item

    def _matches(self, path: str) -> bool:
        return self._spec.pattern is None or fnmatchcase(path.rpartition("/")[2], self._spec.pattern)

    def _sort_in(self, item: ObjectMeta, index: FileIndex, listing: Listing) -> None:
        known = index.by_path.get(item.path)
        if known is None and index.watermark is not None and (item.modified, item.path) <= index.watermark:
            listing.behind[item.path] = item.modified
        elif known is None or known.status in ("deleted", "moved"):
            listing.new.append(item)
        elif known.identity != (item.size, item.tag, item.modified):
            (listing.new if known.status == "lost" else listing.changed).append(item)

    def group_size(self, new: Sequence[ObjectMeta], *, first_time: bool) -> int:
        """Number of files that are recorded together: all that exist before the start, so that none is read later."""
        return max(1, len(new)) if first_time and self._spec.start == "latest" else _GROUP

    def indexed(self, new: Sequence[ObjectMeta], index: FileIndex, *, first_time: bool) -> list[IndexedFile]:
        """Files with their offsets; without those that are changed or deleted meanwhile."""
        skipped = [self._is_skipped(item, first_time) for item in new]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-files") as pool:
            contents = list(pool.map(self._content, new, skipped))
        files, number, first = [], index.next_number(), index.latest
        for item, content, is_skipped in zip(new, contents, skipped, strict=True):
            if content is None:
                continue
            status = "skipped" if is_skipped else ""
            at = (item.path, item.size, item.tag, item.modified)
            files.append(IndexedFile(*at, number, first, content, self._format, status))
            number, first = number + 1, first + content.rows
        return files

    def _is_skipped(self, item: ObjectMeta, first_time: bool) -> bool:
        start = self._spec.start
        if isinstance(start, FilesStart):
            return item.modified < start.timestamp.timestamp()
        return first_time and start == "latest"

    def _content(self, item: ObjectMeta, is_skipped: bool) -> FileContent | None:
        if is_skipped:
            return FileContent(0)
        try:
            with self._store.open(item.path) as file:
                content = count_rows(file, item.path, self._format, verify=self._spec.after == "delete")
            return content if self._store.tag(item.path) == item.tag else None
        except NotFound:
            return None


def _is_valid_name(path: str) -> bool:
    """Whether a path is text that every store takes: no bytes that are not UTF-8, and no backslash."""
    try:
        clean(path).encode()
    except (UsageError, UnicodeEncodeError):
        return False
    return True


def _is_regular(path: str) -> bool:
    """Whether a path is a file and not a symbolic link, which could lead out of the directory."""
    file = Path(path)
    return file.is_file() and not file.is_symlink()
