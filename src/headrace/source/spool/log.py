"""Segments of all topics on a disk: recovery at a start, appends with one sync each, and deletion. Without threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from headrace.errors import HeadraceError, SpoolDamaged
from headrace.source.spool.block import BLOCK_SCHEMA, BadBlock, Block, Parts, Request, encode_block, read_blocks
from headrace.source.spool.disk import AppendFile, Disk, disk_error
from headrace.source.spool.layout import (
    COMMITTED,
    ENDS,
    REQUESTS,
    SEGMENT,
    TOPICS,
    decode_offsets,
    encode_offsets,
    first_offsets_of,
    segment_path,
    topic_folder,
    topic_name,
)

_ROTATED_PART = 8  # the newest segment is replaced when its records are committed and it has this part of the size
_NO_RECORDS = pa.RecordBatch.from_pylist([], BLOCK_SCHEMA)
_Clock = Callable[[], float]


class SyncFailed(HeadraceError):
    """The disk has not confirmed a write: what it holds is unknown until the spool is opened again."""


@dataclass(frozen=True, slots=True)
class NewBlock:
    """Records to append to a topic; offsets of the requests count from the first record."""

    records: Sequence[pa.RecordBatch]
    requests: Sequence[Request] = ()

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(each.num_rows for each in self.records)


@dataclass(frozen=True, slots=True)
class RecoveredRequest:
    """A request that was stored before the start."""

    topic: str
    request: Request
    time: int


@dataclass(slots=True)
class _Topic:
    firsts: list[int]  # first offsets of the segments
    sizes: dict[int, int]  # bytes of each segment
    end: int
    file: AppendFile
    requests: dict[int, int]  # number of requests that are kept of each deleted segment


class SegmentLog:
    """The topics of a spool, for its only writer."""

    def __init__(
        self,
        disk: Disk,
        *,
        segment_bytes: int,
        request_age: float,
        max_requests: int = 100_000,
        clock: _Clock = time.time,
    ) -> None:
        self._disk, self._clock, self._max_requests = disk, clock, max_requests
        self._segment_bytes, self._request_age = segment_bytes, request_age
        self._topics: dict[str, _Topic] = {}

    # ---- state ----

    def ends(self) -> dict[str, int]:
        """The durable end of each topic."""
        return {name: topic.end for name, topic in self._topics.items()}

    def size(self) -> int:
        """Bytes of all segments."""
        return sum(sum(topic.sizes.values()) for topic in self._topics.values())

    def committed(self) -> dict[str, int]:
        """The offsets before which records may be deleted."""
        return decode_offsets(lambda: self._disk.read(COMMITTED)) or {}

    # ---- recovery ----

    def recover(self) -> list[RecoveredRequest]:
        """Open all topics: cut incomplete ends, make the rest durable, and publish the ends.

        An incomplete end was never acknowledged. Anything else that is missing or changed is SpoolDamaged.
        """
        known = decode_offsets(lambda: self._disk.read(ENDS)) or {}
        for topic, offset in self.committed().items():
            known[topic] = max(offset, known.get(topic, 0))
        requests: list[RecoveredRequest] = []
        for topic in {*map(topic_name, self._disk.names(TOPICS)), *(each for each in known if known[each])}:
            requests += self._recover_topic(topic, known.get(topic, 0))
        self._publish()
        return sorted(requests, key=lambda each: each.time)

    def _recover_topic(self, topic: str, known_end: int) -> list[RecoveredRequest]:
        folder = topic_folder(topic)
        names = self._disk.names(folder)
        firsts = first_offsets_of(names)
        stored = {first: [*self._stored_requests(topic, first)] for first in first_offsets_of(names, REQUESTS)}
        requests = [each for items in stored.values() for each in items]
        if not firsts:
            if known_end:
                raise _damaged(topic, f"no segment, but records before offset {known_end} were stored")
            self._disk.make_folder(folder)
            firsts = [0]
        sizes = {}
        for first, following in pairwise(firsts):
            path = segment_path(topic, first)
            sizes[first] = len(self._disk.read(path))
            if self._is_recent(path):
                requests += self._sealed(topic, first, following)
        last = firsts[-1]
        file = self._disk.open(segment_path(topic, last))
        end, size, newest = self._cut(topic, last, file)
        file.sync()
        self._disk.sync_folder(folder)
        if end < known_end:
            raise _damaged(topic, f"records end at offset {end}, but those before {known_end} were stored")
        counts = {each: len(items) for each, items in stored.items()}
        self._topics[topic] = _Topic(firsts, {**sizes, last: size}, end, file, counts)
        return requests + newest

    def _sealed(self, topic: str, first: int, following: int) -> list[RecoveredRequest]:
        """The requests of a complete segment, whose blocks must reach to the next one."""
        end = first
        requests: list[RecoveredRequest] = []
        try:
            for block in read_blocks(self._disk.read(segment_path(topic, first)), verify=False):
                end = _next_offset(topic, block, end)
                requests += _recovered(topic, block)
        except BadBlock as error:
            raise _damaged(topic, f"{error} of segment {first}") from None
        if end != following:
            raise _damaged(topic, f"segment {first} ends at offset {end}, the next one starts at {following}")
        return requests

    def _cut(self, topic: str, first: int, file: AppendFile) -> tuple[int, int, list[RecoveredRequest]]:
        """Cut the newest segment after its last complete block: end, size and requests."""
        data = self._disk.read(segment_path(topic, first))
        end, size = first, 0
        requests: list[RecoveredRequest] = []
        with suppress(BadBlock):
            for block in read_blocks(data):
                end = _next_offset(topic, block, end)
                size = block.position + block.size
                requests += _recovered(topic, block)
        if size < len(data):
            file.truncate(size)
        return end, size, requests

    def _stored_requests(self, topic: str, first: int) -> Iterator[RecoveredRequest]:
        path = segment_path(topic, first, REQUESTS)
        if self._is_recent(path):
            with suppress(BadBlock):
                for block in read_blocks(self._disk.read(path)):
                    yield from _recovered(topic, block)

    def _is_recent(self, path: str) -> bool:
        """Whether requests of the file can still be repeated."""
        return self._disk.modified(path) >= self._clock() - self._request_age

    # ---- appends ----

    def add_topic(self, topic: str) -> None:
        """Create a topic if it does not exist."""
        if topic not in self._topics:
            self._recover_topic(topic, 0)
            self._publish()

    def write(self, blocks: Mapping[str, NewBlock]) -> dict[str, int]:
        """Append a block to each topic, durably; returns the first offsets.

        After an error nothing is stored; after SyncFailed that is unknown.
        """
        now = int(self._clock() * 1000)
        try:
            sizes = self._write(blocks, now)
        except OSError as error:
            raise disk_error(error, "the spool") from error
        try:
            for topic in sizes:
                self._topics[topic].file.sync()
        except OSError as error:
            raise _sync_failed(error) from error
        firsts = {}
        for topic, size in sizes.items():
            state = self._topics[topic]
            state.sizes[state.firsts[-1]] = size
            firsts[topic], state.end = state.end, state.end + blocks[topic].count
        self._publish()
        return firsts

    def _write(self, blocks: Mapping[str, NewBlock], now: int) -> dict[str, int]:
        sizes: dict[str, int] = {}
        try:
            for topic, block in blocks.items():
                self._prepare(topic)
                state = self._topics[topic]
                requests = [_moved(each, state.end) for each in block.requests]
                parts = encode_block(state.end, block.records, requests, now)
                sizes[topic] = state.sizes[state.firsts[-1]] + sum(map(len, parts))
                state.file.write(parts)
        except OSError:
            self._cut_partial(sizes)
            raise
        return sizes

    def _cut_partial(self, topics: Iterable[str]) -> None:
        """Cut what a failed write has left: a partial block must not be followed by another one."""
        try:
            for topic in topics:
                state = self._topics[topic]
                state.file.truncate(state.sizes[state.firsts[-1]])
        except OSError as error:
            raise _sync_failed(error) from error

    def _prepare(self, topic: str) -> None:
        self.add_topic(topic)
        state = self._topics[topic]
        if state.sizes[state.firsts[-1]] >= self._segment_bytes:
            self._rotate(topic)

    def _rotate(self, topic: str) -> None:
        """Start a new segment; the old one is synced, as every write is."""
        state = self._topics[topic]
        file = self._disk.open(segment_path(topic, state.end))
        self._sync_folder(topic)  # a segment that may or may not be there must not be followed by another write
        state.file.close()
        state.file = file
        state.firsts.append(state.end)
        state.sizes[state.end] = 0

    def _sync_folder(self, topic: str) -> None:
        try:
            self._disk.sync_folder(topic_folder(topic))
        except OSError as error:
            raise _sync_failed(error) from error

    def _publish(self) -> None:
        """Let readers see the records; only after a sync, so that a crash takes back nothing that was read."""
        with suppress(OSError):  # on a full disk readers see them later
            self._disk.replace(ENDS, encode_offsets(self.ends()), durable=False)

    # ---- deletion ----

    def is_trim_due(self, *, is_full: bool) -> bool:
        """Deletion on a disk costs nothing while there is nothing to delete."""
        return True

    def trim(self, position: Mapping[str, int], *, is_full: bool = False) -> None:
        """Delete segments whose records are all before the position, and requests that are too old."""
        for topic, offset in position.items():
            state = self._topics.get(topic)
            if state is None:
                continue
            newest = state.sizes[state.firsts[-1]]
            rotated_at = 1 if is_full else max(1, self._segment_bytes // _ROTATED_PART)
            if state.end <= offset and newest >= rotated_at:
                self._rotate(topic)
            while len(state.firsts) > 1 and state.firsts[1] <= offset:
                self._delete_first(topic, state)
            self._delete_requests(topic, state)

    def _delete_first(self, topic: str, state: _Topic) -> None:
        first = state.firsts[0]
        path = segment_path(topic, first)
        if self._is_recent(path):
            kept, count = self._requests_only(topic, first)
            if count:
                self._disk.replace(segment_path(topic, first, REQUESTS), kept, durable=True)
                state.requests[first] = count
        self._disk.unlink(path)
        self._sync_folder(topic)  # before the next: a gap between segments would be damage
        state.firsts.pop(0)
        del state.sizes[first]

    def _requests_only(self, topic: str, first: int) -> tuple[bytes, int]:
        """The blocks of a segment without their records, and the number of requests that can be repeated."""
        parts: Parts = []
        count = 0
        for block in read_blocks(self._disk.read(segment_path(topic, first)), verify=False):
            if requests := list(block.requests()):
                parts += encode_block(block.first, [_NO_RECORDS], requests, block.time)
                count += len(requests)
        return b"".join(parts), count

    def _delete_requests(self, topic: str, state: _Topic) -> None:
        """Delete requests of segments that are too old, or before the newest ones that are recognized."""
        newer = 0
        for first in sorted(state.requests, reverse=True):
            path = segment_path(topic, first, REQUESTS)
            if newer >= self._max_requests or not self._is_recent(path):
                self._disk.unlink(path)
                del state.requests[first]
            else:
                newer += state.requests[first]

    def close(self) -> None:
        """Close all files."""
        for topic in self._topics.values():
            topic.file.close()
        self._topics.clear()


def _next_offset(topic: str, block: Block, expected: int) -> int:
    if block.first != expected:
        raise _damaged(topic, f"offset {block.first} follows {expected - 1} at byte {block.position}")
    return block.until


def _recovered(topic: str, block: Block) -> Iterator[RecoveredRequest]:
    return (RecoveredRequest(topic, request, block.time) for request in block.requests())


def _moved(request: Request, first: int) -> Request:
    return Request(request.producer, request.sequence, request.fingerprint, first + request.first, request.count)


def _sync_failed(error: OSError) -> SyncFailed:
    return SyncFailed(f"The spool cannot be synced: {error.strerror}.", hint="Check the disk.")


def _damaged(topic: str, what: str) -> SpoolDamaged:
    return SpoolDamaged(
        f"The spool of topic '{topic}' is damaged: {what}.",
        hint=f"Restore its {SEGMENT} files from a copy; nothing was deleted or skipped.",
        topic=topic,
    )
