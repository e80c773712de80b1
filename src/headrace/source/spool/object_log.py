"""The blocks of a spool in an object store, for its only writer: one object for each group of appends. Without threads.

The objects are numbered, and each is put if absent: the next number is free for one writer only. A writer begins with
an object that has no blocks. An earlier writer that still runs finds its next number used, and has ended.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile

import pyarrow as pa

from headrace.errors import (
    AuthenticationFailed,
    EndpointInvalid,
    Fenced,
    PermissionDenied,
    StorageFull,
    StorageUnreachable,
    TransientError,
    UsageError,
)
from headrace.source.spool.base import WriteUnsettled
from headrace.source.spool.block import BLOCK_SCHEMA, Parts, encode_block
from headrace.source.spool.layout import COMMITTED, decode_offsets
from headrace.source.spool.log import NewBlock, RecoveredRequest
from headrace.source.spool.objects import (
    HEADER_BYTES,
    REQUESTS_KEPT,
    BlockEntry,
    ObjectHeader,
    SpoolObjects,
    encode_object,
    front_path,
    kept_count,
    kept_path,
    object_path,
)
from headrace.storage.base import AlreadyExists, NotFound
from headrace.storage.store import Store

_OPENING_KEPT = 7 * 86_400  # seconds after its put
_CONFIRMED_KEPT = 86_400  # seconds; shorter, because clocks differ and requests take time
_TRIM_SECONDS = 10.0  # between two deletions, each of which costs up to three requests
_TRIM_OBJECTS = 256  # of one deletion, because appends wait for it
_ROTATED_PART = 8  # the newest object is followed by an empty one, and deleted, from this part of a segment on
_PARALLEL = 16
_OPEN_ATTEMPTS = 8
_OPEN_PAUSE = 0.02  # seconds, doubled with each attempt
# Errors of a store that has worked before: it is interrupted, has no room, or its name or rights are changed meanwhile.
_OUTAGES = (
    TransientError,
    StorageFull,
    NotFound,
    UsageError,
    AuthenticationFailed,
    PermissionDenied,
    EndpointInvalid,
)
_NO_RECORDS = pa.RecordBatch.from_pylist([], BLOCK_SCHEMA)


@dataclass(slots=True)
class _Object:
    size: int
    modified: float
    header: ObjectHeader | None = None  # without ends; None until it is read


@dataclass(frozen=True, slots=True)
class _Write:
    header: ObjectHeader
    data: bytes
    firsts: dict[str, int]


class ObjectLog:
    """The topics of a spool in an object store."""

    def __init__(
        self,
        store: Store,
        *,
        segment_bytes: int,
        request_age: float,
        max_requests: int = 100_000,
        trim_seconds: float = _TRIM_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._files, self._clock = store, SpoolObjects(store), clock
        self._request_age, self._max_requests, self._trim_seconds = request_age, max_requests, trim_seconds
        self._rotated_at = max(1, segment_bytes // _ROTATED_PART)
        self._writer = uuid.uuid4().hex
        self._ends: dict[str, int] = {}
        self._objects: dict[int, _Object] = {}  # from the front to the newest one
        self._size, self._front = 0, 1
        self._openings: dict[int, float] = {}  # objects before the front that are kept, with their times in seconds
        self._deleted: list[str] = []  # before the front; what is left of an interrupted deletion
        self._kept: dict[str, float] = {}  # requests of deleted objects, with the times of their objects
        self._committed: dict[str, int] = {}
        self._trimmed = 0.0
        self._confirmed = 0.0  # when it was certain that no other writer had begun
        self._unsettled: _Write | None = None

    # ---- state ----

    def ends(self) -> dict[str, int]:
        """The durable end of each topic."""
        return dict(self._ends)

    def size(self) -> int:
        """Bytes of the objects that are not deleted."""
        return self._size

    def committed(self) -> dict[str, int]:
        """The offsets before which records may be deleted, as last read: an older position only keeps more."""
        with suppress(*_OUTAGES):
            self._committed = self._read_committed()
        return self._committed

    def _read_committed(self) -> dict[str, int]:
        try:
            data = self._store.get(COMMITTED)
        except NotFound:
            return {}
        return decode_offsets(lambda: data) or {}

    @property
    def _newest(self) -> int:
        return next(reversed(self._objects))

    # ---- recovery ----

    def recover(self) -> list[RecoveredRequest]:
        """Find the newest object, end the writes of earlier writers, and read the requests that can be repeated.

        SpoolDamaged if an object between the front and the newest one is missing.
        """
        for attempt in range(_OPEN_ATTEMPTS):
            if self._open():
                break
            time.sleep(_OPEN_PAUSE * 2**attempt)
        else:
            raise StorageUnreachable(f"The spool {self._store.uri} is being opened by another process.")
        for topic, offset in self._read_committed().items():
            if self._ends.get(topic, 0) < offset:
                stored = f"records of topic '{topic}' end at offset {self._ends.get(topic, 0)}"
                raise self._files.damaged(f"{stored}, but those before {offset} were stored")
        return sorted(self._recent_requests(), key=lambda each: each.time)

    def _open(self) -> bool:
        """List the objects and put the next one; False if another writer has put it, or deletes, meanwhile."""
        moment = self._clock()
        listed = self._files.listed()
        *old_fronts, front = self._files.fronts()  # after the listing: objects that are deleted meanwhile are before it
        numbers = [number for number in listed if number >= front]
        expected = range(front, front + max(len(numbers), front > 1))
        if missing := sorted({*expected} - {*numbers}):
            if not self._store.exists(object_path(missing[0])):  # or it was put during the listing
                self._files.verify_deleted(missing[0])
            return False
        try:
            openings = self._read_openings(front)
            ends = self._files.header(numbers[-1]).ends if numbers else {}
            header = ObjectHeader(front + len(numbers), self._writer, self._now_ms(), True, ends)
            data = encode_object(header, [])
            self._put(header.number, data)
        except (Fenced, NotFound):
            return False
        if self._files.fronts()[-1] > header.number:  # it was used and deleted meanwhile: nobody finds this object
            return False
        self._objects = {each: _Object(listed[each].size, listed[each].modified) for each in numbers}
        self._size = sum(each.size for each in self._objects.values())
        self._front, self._openings, self._ends, self._confirmed = front, openings, ends, moment
        self._stored(header, len(data))
        self._deleted = [item.path for each, item in listed.items() if each < front and each not in openings]
        self._deleted += [front_path(each) for each in old_fronts]
        return True

    def _read_openings(self, front: int) -> dict[int, float]:
        if front == 1:
            return {}
        openings: dict[str, float] = json.loads(self._store.get(front_path(front)))
        return {int(number): at for number, at in openings.items()}

    def _recent_requests(self) -> list[RecoveredRequest]:
        """Requests of the newest objects, up to the number that is recognized, and those of deleted objects.

        In this order: an earlier writer that deletes an object meanwhile has stored its requests before.
        """
        requests: list[RecoveredRequest] = []
        recent = [number for number, each in self._objects.items() if self._is_recent(each.modified)]
        count = 0
        with ThreadPoolExecutor(_PARALLEL) as pool:
            while recent and count < self._max_requests:
                newest, recent = recent[-_PARALLEL:], recent[:-_PARALLEL]
                for header, data in filter(None, pool.map(self._content_with_requests, newest)):
                    requests += self._requests(header, data)
                    count += sum(entry.requests for entry in header.blocks)
            self._kept = {item.path: item.modified for item in self._store.list(REQUESTS_KEPT)}
            kept = [path for path, modified in self._kept.items() if self._is_recent(modified)]
            for header, data in filter(None, pool.map(self._kept_content, kept)):
                requests += self._requests(header, data)
        return requests

    def _requests(self, header: ObjectHeader, data: bytes) -> list[RecoveredRequest]:
        return [
            RecoveredRequest(topic, request, block.time)
            for topic, block in self._files.blocks(header, data)
            for request in block.requests()
        ]

    def _content_with_requests(self, number: int) -> tuple[ObjectHeader, bytes] | None:
        """Header and content of an object; None if it is large and has no requests, or is deleted."""
        state = self._objects[number]
        if state.size > HEADER_BYTES and not any(entry.requests for entry in self._header(number).blocks):
            return None
        content = self._content(number)
        if content is not None:
            state.header = replace(content[0], ends={})
        return content

    def _kept_content(self, path: str) -> tuple[ObjectHeader, bytes] | None:
        """Kept requests; None if an earlier writer has deleted them, because they are too old."""
        try:
            return self._files.decoded(path)
        except NotFound:
            return None

    def _content(self, number: int) -> tuple[ObjectHeader, bytes] | None:
        """Header and content; None if an earlier writer has deleted it, whose last deletion may not have ended."""
        try:
            return self._files.content(number)
        except NotFound:
            self._files.verify_deleted(number)
            return None

    def _is_recent(self, modified: float) -> bool:
        """Whether requests can still be repeated."""
        return modified >= self._clock() - self._request_age

    # ---- appends ----

    def add_topic(self, topic: str) -> None:
        """Create a topic if it does not exist; readers see it with its first record."""
        self._ends.setdefault(topic, 0)

    def write(self, blocks: Mapping[str, NewBlock]) -> dict[str, int]:
        """Put an object with a block of each topic; returns the first offsets.

        After a transient error nothing is stored, except after WriteUnsettled. Fenced if another writer has begun.
        """
        if self._unsettled is not None:  # one without blocks
            try:
                self.settle()
            except WriteUnsettled as error:
                raise StorageUnreachable(error.message, hint=error.hint) from error
        now, ends, entries = self._now_ms(), dict(self._ends), list[BlockEntry]()
        parts: Parts = []
        for topic, block in blocks.items():
            first = ends.get(topic, 0)
            requests = [replace(each, first=first + each.first) for each in block.requests]
            encoded = encode_block(first, block.records, requests, now)
            ends[topic] = first + block.count
            entries.append(BlockEntry(topic, first, ends[topic], len(requests), sum(map(len, encoded))))
            parts += encoded
        header = ObjectHeader(self._newest + 1, self._writer, now, False, ends, tuple(entries))
        firsts = {entry.topic: entry.first for entry in entries}
        self._unsettled = _Write(header, encode_object(header, parts), firsts)
        return self.settle()

    def settle(self) -> dict[str, int]:
        """Repeat the last put until its outcome is known; returns the first offsets."""
        write = self._unsettled
        if write is None:
            return {}
        moment = self._clock()
        try:
            self._confirm(write.header.number)
            self._put(write.header.number, write.data)
        except _OUTAGES as error:
            unsettled = WriteUnsettled(error.message, hint=error.hint)
            unsettled.settle = self.settle
            raise unsettled from error
        self._unsettled, self._confirmed = None, moment
        self._stored(write.header, len(write.data))
        return write.firsts

    def _put(self, number: int, data: bytes) -> None:
        """Put an object; Fenced if the number has other content. Any other error leaves the outcome unknown.

        The object may be ours: of a put whose response was lost.
        """
        path = object_path(number)
        try:
            self._store.put_new(path, data)
        except AlreadyExists:
            if self._store.get(path) != data:
                raise self._fenced() from None

    def _confirm(self, number: int) -> None:
        """Fenced if a number may be free because the object that another writer has put there is deleted already.

        Opening objects are kept for days, so that this is read only after a day without a put or `_find_successor`.
        """
        now = self._clock()
        if now - self._confirmed > _CONFIRMED_KEPT:
            if self._files.fronts()[-1] >= number:  # this writer keeps the object before it
                raise self._fenced()
            self._confirmed = now

    def _find_successor(self) -> None:
        """Fenced if another writer has begun, also if this one has nothing to put."""
        now = self._clock()
        if self._store.exists(object_path(self._newest + 1)):
            raise self._fenced()
        self._confirm(self._newest + 1)
        self._confirmed = now

    def _fenced(self) -> Fenced:
        return Fenced(
            f"The spool {self._store.uri} is written by another process.",
            hint="This process accepts nothing more. Start it again when the other one has ended.",
        )

    def _stored(self, header: ObjectHeader, size: int) -> None:
        self._ends = {**self._ends, **header.ends}
        self._objects[header.number] = _Object(size, self._clock(), replace(header, ends={}))
        self._size += size

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    # ---- deletion ----

    def is_trim_due(self, *, is_full: bool) -> bool:
        """Whether enough time has passed since the last deletion, each of which costs requests."""
        return is_full or self._clock() - self._trimmed >= self._trim_seconds

    def trim(self, position: Mapping[str, int], *, is_full: bool = False) -> None:
        """Delete objects whose records are all before the position, and requests that are too old.

        The newest object is kept: its number is the end, and its header has the offsets. Fenced if another writer has
        begun; StorageUnreachable if the store fails, and then the rest is deleted next time.
        """
        try:
            self._trim(position, is_full=is_full)
        except _OUTAGES as error:
            raise StorageUnreachable(error.message, hint=error.hint) from error

    def _trim(self, position: Mapping[str, int], *, is_full: bool) -> None:
        self.settle()  # an object without blocks, of an earlier call
        self._find_successor()
        rotated_at = 1 if is_full else self._rotated_at
        newest = self._objects[self._newest]
        if (
            newest.size >= rotated_at
            and self._header(self._newest).blocks
            and self._is_committed(self._newest, position)
        ):
            self.write({})
        if committed := self._committed_objects(position):
            self._keep_requests(committed)
            self._advance(committed)
        self._delete()
        if len(committed) < _TRIM_OBJECTS:
            self._trimmed = self._clock()

    def _committed_objects(self, position: Mapping[str, int]) -> list[int]:
        """The oldest objects that can be deleted. Headers are read in parallel, and not far behind them."""
        committed: list[int] = []
        numbers = list(islice(self._objects, min(_TRIM_OBJECTS, len(self._objects) - 1)))
        for chunk in _chunks(numbers):
            if unread := [each for each in chunk if self._objects[each].header is None]:
                with ThreadPoolExecutor(_PARALLEL) as pool:
                    list(pool.map(self._header, unread))
            committed += takewhile(lambda number: self._is_committed(number, position), chunk)
            if not committed or committed[-1] < chunk[-1]:
                break
        return committed

    def _is_committed(self, number: int, position: Mapping[str, int]) -> bool:
        return all(entry.until <= position.get(entry.topic, 0) for entry in self._header(number).blocks)

    def _header(self, number: int) -> ObjectHeader:
        state = self._objects[number]
        if state.header is None:
            try:
                state.header = replace(self._files.header(number), ends={})
            except NotFound:  # deleted by an earlier writer, whose last deletion may not have ended at the start
                self._files.verify_deleted(number)
                state.header = ObjectHeader(number, "", self._now_ms(), False, {})
        return state.header

    def _keep_requests(self, numbers: Sequence[int]) -> None:
        """Put the requests of objects that are going to be deleted, if they can be repeated."""
        recent = [each for each in numbers if self._is_recent(self._objects[each].modified)]
        recent = [each for each in recent if any(entry.requests for entry in self._header(each).blocks)]
        if not recent:
            return
        entries: list[BlockEntry] = []
        parts: Parts = []
        with ThreadPoolExecutor(_PARALLEL) as pool:
            # in chunks, of which one is in memory
            contents = chain.from_iterable(pool.map(self._content, chunk) for chunk in _chunks(recent))
            for header, data in filter(None, contents):
                for topic, block in self._files.blocks(header, data):
                    if requests := list(block.requests()):
                        encoded = encode_block(block.first, [_NO_RECORDS], requests, block.time)
                        size = sum(map(len, encoded))
                        entries.append(BlockEntry(topic, block.first, block.until, len(requests), size))
                        parts += encoded
        number, count = numbers[-1] + 1, sum(entry.requests for entry in entries)
        header = ObjectHeader(number, self._writer, self._now_ms(), False, {}, tuple(entries))
        self._store.put(kept_path(number, count), encode_object(header, parts))
        self._kept[kept_path(number, count)] = max(self._objects[each].modified for each in recent)

    def _advance(self, numbers: Sequence[int]) -> None:
        """Move the front behind these objects, before they are deleted: a gap behind it would be damage.

        Objects that have opened the spool are kept for days: an earlier writer that was suspended must find its next
        number used, and not free again.
        """
        oldest, front = self._clock() - _OPENING_KEPT, numbers[-1] + 1
        headers = [self._header(each) for each in numbers]
        openings = self._openings | {each.number: each.time / 1000 for each in headers if each.opens}
        kept = {number: at for number, at in openings.items() if at >= oldest}
        self._store.put(front_path(front), json.dumps(kept).encode())
        self._deleted += [object_path(each) for each in {*numbers, *openings} - kept.keys()]
        if self._front > 1:
            self._deleted.append(front_path(self._front))
        self._openings, self._front = kept, front
        for each in numbers:
            self._size -= self._objects.pop(each).size

    def _delete(self) -> None:
        newer = 0
        for path in sorted(self._kept, reverse=True):
            if newer >= self._max_requests or not self._is_recent(self._kept[path]):
                self._deleted.append(path)
                del self._kept[path]
            else:
                newer += kept_count(path)
        if self._deleted:
            self._store.delete(self._deleted)
            self._deleted = []

    def close(self) -> None:
        """Nothing is open."""


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + _PARALLEL] for start in range(0, len(numbers), _PARALLEL))
