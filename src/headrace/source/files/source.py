"""The source `files`: the records of new files below a directory or prefix, as the only partition of a topic."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import HeadraceError, SourceGap, SourceTopicGone
from headrace.source.base import Bounds, Lag, Offsets, Partition
from headrace.source.files.discovery import FileDiscovery, Listing
from headrace.source.files.file_index import FileIndex
from headrace.source.files.indexed_file import FileFormat, IndexedFile
from headrace.source.files.reading import FileReader, count_rows, missing
from headrace.source.files.release import Releaser
from headrace.source.ranges import Range
from headrace.source.record_frame import SPLIT_RECORDS, RecordFrame
from headrace.spec import Spec
from headrace.storage.base import AlreadyExists, ObjectMeta
from headrace.storage.store import Profile, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INDEXES = "files"  # directory of the state
_BUDGET = 2.0  # seconds for counting the records of new files, before a batch may start
_NOTICES = 100  # by name in one listing
_UNREAD = {
    "invalid_name": "Not read: its path is not UTF-8, or has a backslash. Rename it.",
    "future": "Not read before its modification time, which is in the future. Touch it.",
}


class FilesSource:
    """A topic with one partition: the records of all files, in the order in which the files were discovered."""

    def __init__(self, spec: Spec) -> None:
        self.files = spec.files
        self._profile = Profile(**spec.storage_profile())
        self._store = Store(self.files.path, self._profile)
        name = hashlib.sha256(self.files.path.encode()).hexdigest()[:16]
        self._index = FileIndex(Store(spec.state_uri, self._profile).child(f"{INDEXES}/{name}"), self.files.seen_files)
        self._record_bytes = spec.limits.record_bytes
        self._discovery = FileDiscovery(self.files, self._store, self._record_bytes)
        self._partition: Partition = (self.files.topic, 0)
        self._committed = 0
        self._listed: float | None = None  # the time of the last listing
        self._pending: list[ObjectMeta] = []  # new files whose records are not counted yet
        self._behind: set[str] | None = None  # files behind the watermark in the last listing
        self._notified: set[tuple[str, str]] = set()  # path, and tag or state
        self._notices: list[dict[str, Any]] = []
        self._lock = threading.RLock()  # of the index
        self._discovering = threading.Lock()
        self._releaser: Releaser | None = None

    # ---- offsets ----

    def topics(self) -> dict[str, str]:
        """The topic with the id of the index: without the index, offsets would mean other records."""
        self._check_directory()
        with self._lock:
            self._index.load()
            return {self.files.topic: self._index.id}

    def bounds(self) -> dict[Partition, Bounds]:
        """The offsets of all files that exist now."""
        self._check_directory()
        self._discover(None)
        with self._lock:
            return {self._partition: Bounds(self._index.earliest, self._index.latest)}

    def latest(self, partitions: Sequence[Partition]) -> Offsets:
        """The offset after the last file; lists the files again after `poll`."""
        self._discover(_BUDGET)
        with self._lock:
            return dict.fromkeys(partitions, self._index.latest)

    def start(self, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """Always the first record: files before `start` have no records."""
        return {partition: offsets.earliest for partition, offsets in bounds.items()}

    def lag(self, position: Offsets) -> Lag:
        """Unread records of discovered files, and the age of the first file with such records."""
        with self._lock:
            if not self._index.exists:
                self._index.load()
            at = position.get(self._partition, self._index.earliest)
            records = max(0, self._index.latest - at)
            unread = self._index.between(at, at + 1) if records else []
            age = max(0.0, time.time() - unread[0].modified) if unread else None
            ages = {} if age is None else {self._partition: age}
            return Lag(records, age if records else 0.0, {self._partition: self._index.latest}, ages=ages)

    def _check_directory(self) -> None:
        if self._store.local and not Path(self._store.root).is_dir():
            raise SourceTopicGone(
                f"The directory {self._store.root} does not exist.",
                hint="Create it, or correct source.files.path, then run again.",
                topic=self.files.topic,
            )

    # ---- discovery ----

    def _discover(self, budget: float | None) -> None:
        """Add new files to the index, all of them or as many as are counted within the budget."""
        with self._discovering:
            while not self._discover_once(budget):
                pass

    def _discover_once(self, budget: float | None) -> bool:
        """False if another process has changed the index, so that the files must be compared with it again."""
        began = time.monotonic()
        with self._lock:
            self._index.load() if not self._index.exists else None
            first_time = not self._index.exists
        if not self._pending and self._is_due(began):
            listing = self._discovery.listing(self._index)
            self._listed, self._pending = began, listing.new
            self._observe(listing)
        try:
            if first_time and not self._pending:
                self._add([])
            self._count_pending(None if budget is None else began + budget, first_time=first_time)
        except AlreadyExists:
            self._listed, self._pending = None, []
            with self._lock:
                self._index.load()
            return False
        return True

    def _is_due(self, now: float) -> bool:
        return self._listed is None or now - self._listed >= self.files.poll.total_seconds()

    def _count_pending(self, deadline: float | None, *, first_time: bool) -> None:
        size = self._discovery.group_size(self._pending, first_time=first_time)
        while self._pending:
            group, rest = self._pending[:size], self._pending[size:]
            files = self._discovery.indexed(group, self._index, first_time=first_time)
            self._add(files)
            self._pending = rest
            for file in files:
                if file.content.damaged:
                    self._notice("damaged", file.path, "A part cannot be read: its last record is a dead letter.")
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _add(self, files: Sequence[IndexedFile]) -> None:
        with self._lock:
            self._index.add(files, self._committed)

    def _observe(self, listing: Listing) -> None:
        """Report changed files, and those not read for their names or times, or because newer ones are forgotten."""
        for item in listing.changed[:_NOTICES]:
            if (item.path, item.tag) not in self._notified:
                self._notified.add((item.path, item.tag))
                self._notice("changed", item.path, "Changed after it was discovered; it is not read again.")
        for state, paths in (("invalid_name", listing.invalid_names), ("future", listing.in_future)):
            for path in paths[:_NOTICES]:
                if (path, state) not in self._notified:
                    self._notified.add((path, state))
                    self._notice(state, path.encode(errors="backslashreplace").decode(), _UNREAD[state])
        behind = set(listing.behind)
        late = sorted(behind - self._behind)[:_NOTICES] if self._behind is not None else []
        for path in late:
            self._notice("late", path, "Older than files that are no longer remembered; it is not read. Touch it.")
        if self._behind is None and len(behind) > self._index.forgotten:
            count = len(behind) - self._index.forgotten
            self._notice("late", "", f"{count} files are older than files that are no longer remembered; not read.")
        self._behind = behind

    def _notice(self, state: str, path: str, message: str) -> None:
        self._notices.append({"event": "source_file", "state": state, "path": path, "message": message})

    def notices(self) -> list[dict[str, Any]]:
        """Files that were damaged, changed, late, or not deleted or moved."""
        notices, self._notices = self._notices, []
        return notices

    # ---- reading ----

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> RecordFrame:
        """Exactly these ranges; tasks read whole files, or parts of files in which reading can start anywhere."""
        files = [file for part in ranges for file in self.files_of(part)]
        cores = spark.sparkContext.defaultParallelism
        parts = tuple(part for each in ranges for part in split_by_files(each, files, cores))
        return RecordFrame(spark.range(0, len(parts), 1, max(1, len(parts))), parts, self.reader(files))

    def files_of(self, part: Range) -> list[IndexedFile]:
        """The files with the records of a range; SourceGap if the index does not have all of them."""
        with self._lock:
            if not self._index.exists or self._index.latest < part.until:
                self._index.load()  # the records of a batch that another process has begun
            if part.start < self._index.earliest or part.until > self._index.latest:
                raise SourceGap(
                    f"{part.topic}/{part.partition}: offsets {part.start} to {part.until - 1} are needed, but only "
                    f"files with offsets {self._index.earliest} to {self._index.latest - 1} are remembered.",
                    hint="Run `headrace resume SPEC --accept-gap` to record the gap and continue after it.",
                    topic=part.topic,
                )
            return self._index.between(part.start, part.until)

    def reader(self, files: Sequence[IndexedFile]) -> FileReader:
        """The reader of these files inside a task."""
        return FileReader(self._store.uri, self._profile, tuple(files))

    def tail(self, count: int, where: str = "end") -> pa.Table:
        """The last records of the newest files (or the first of the oldest); the index is neither read nor written."""
        self._check_directory()
        items = sorted(self._discovery.candidates(), key=lambda item: (item.modified, item.path))
        if where not in ("start", "end"):
            since = datetime.fromisoformat(where).timestamp()
            items = [item for item in items if item.modified >= since]
        batches: list[pa.RecordBatch] = []
        wanted = count
        for item in items if where != "end" else reversed(items):
            batches += self._sample(item, wanted, from_end=where == "end")
            wanted = count - sum(map(len, batches))
            if wanted <= 0:
                break
        return pa.Table.from_batches(batches, RECORD_SCHEMA)

    def _sample(self, item: ObjectMeta, count: int, *, from_end: bool) -> Iterator[pa.RecordBatch]:
        form = FileFormat.of(self.files, self._record_bytes)
        with self._store.open(item.path) as file:
            content = count_rows(file, item.path, form)
        file_of_item = IndexedFile(item.path, item.size, item.tag, item.modified, 0, 0, content, form)
        start = max(0, content.rows - count) if from_end else 0
        until = min(content.rows, start + count)
        if start < until:
            yield from self.reader([file_of_item])(Range(*self._partition, start, until))

    # ---- after reading ----

    def committed(self, position: Offsets) -> None:
        """Files before the position are deleted or moved by a thread, unless they are kept."""
        self._committed = position.get(self._partition, 0)
        if self.files.after == "keep":
            return
        if self._releaser is None:
            target = self.files.move_target
            store = Store(target, self._profile) if target is not None else None
            self._releaser = Releaser(self._store, store, self.releasable, self._released, self._not_released)
        self._releaser.wake()

    def releasable(self) -> list[IndexedFile]:
        """Files whose records are all recorded in the ledger; damaged ones are kept."""
        with self._lock:
            files = self._index.files
            return [
                file
                for file in files
                if file.until <= self._committed and file.status == "" and not file.content.damaged
            ]

    def _released(self, files: Sequence[IndexedFile]) -> None:
        while True:
            try:
                return self._add(files)
            except AlreadyExists:
                with self._lock:
                    self._index.load()

    def _not_released(self, error: HeadraceError) -> None:
        self._notice("not_released", "", f"{error.name}: {error.message} Files are deleted or moved later.")

    def accept_gaps(self, position: Offsets) -> list[str]:
        """Skip the unread records of files that were changed or deleted."""
        at = position.get(self._partition, 0)
        with self._lock:
            self._index.load()
            unread = [file for file in self._index.files if file.until > at and file.status == ""]
            lost = [replace(file, status="lost") for file in unread if missing(self._store, file)]
            if lost:
                self._index.add(lost, at)
        return [f"{file.path}: its unread records are skipped" for file in lost]

    def close(self) -> None:
        """End the thread that deletes or moves files, after those that are due."""
        if self._releaser is not None:
            self._releaser.stop()


def split_by_files(whole: Range, files: Sequence[IndexedFile], count: int) -> list[Range]:
    """Up to `count` consecutive ranges of about the same size, split where reading can start."""
    records = whole.until - whole.start
    count = max(1, min(count, records // SPLIT_RECORDS))
    splits = sorted({offset for file in files for offset in _splits(file) if whole.start < offset < whole.until})
    bounds = [whole.start]
    for nth in range(1, count):
        wanted = whole.start + records * nth // count
        if near := [offset for offset in splits if offset > bounds[-1]]:
            bounds.append(min(near, key=lambda offset: abs(offset - wanted)))
    bounds.append(whole.until)
    return [replace(whole, start=start, until=until) for start, until in pairwise(bounds)]


def _splits(file: IndexedFile) -> Iterator[int]:
    """Offsets of a file at which reading can start without reading what is before."""
    yield file.first
    for row, _ in file.content.checkpoints:
        yield file.first + row
