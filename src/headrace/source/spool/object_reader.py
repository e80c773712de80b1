"""Readers of a spool in an object store: durable bounds, and blocks by offset. Any process can read, on any machine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any

from headrace.errors import SourceGap
from headrace.source.spool.base import source_gap
from headrace.source.spool.block import Block
from headrace.source.spool.layout import ABOUT, COMMITTED, SpoolIdentity, decode_identity, encode_offsets
from headrace.source.spool.objects import ObjectHeader, SpoolObjects
from headrace.storage.base import NotFound
from headrace.storage.store import Store

_FRONT_SECONDS = 1.0  # between two listings of the front
_READ_AHEAD = 4  # objects, of up to 16 MB and one request
_HEADERS, _ENDS = 10_000, 1_000_000  # at most, in memory; each header has the ends of all topics


class _Deleted(Exception):
    """The object was deleted, and the front is behind it now."""


class ObjectReader:
    """The durable records of a spool. A put object is durable and never changes."""

    def __init__(self, store: Store) -> None:
        self._store, self._files = store, SpoolObjects(store)
        self._newest = 0
        self._headers: dict[int, ObjectHeader] = {}
        self._ends_kept = 0  # in all of them
        self._front: tuple[float, int] | None = None  # when it was listed

    def __getstate__(self) -> dict[str, Any]:
        """A task needs the newest number, so that it does not list all objects."""
        return {**self.__dict__, "_headers": {}, "_ends_kept": 0, "_front": None}

    def identity(self) -> SpoolIdentity | None:
        """Which spool it is; None if it does not exist yet."""
        try:
            return decode_identity(self._store.get(ABOUT), self._store.uri)
        except NotFound:
            return None

    def ends(self) -> dict[str, int]:
        """The durable end of each topic, from the newest object."""
        while newest := self._files.newest(self._newest):
            self._newest = newest
            with suppress(_Deleted):
                return dict(self._header(newest).ends)
        return {}

    def first(self, topic: str) -> int:
        """The offset of the oldest record, or the end if there is none."""
        while self._newest or self.ends():
            with suppress(_Deleted):
                header = self._header(self._front_number())
                entry = header.entry(topic)
                return entry.first if entry is not None else header.ends.get(topic, 0)
        return 0

    def commit(self, position: dict[str, int]) -> None:
        """Allow the writer to delete the records before a position."""
        self._store.put(COMMITTED, encode_offsets(position))

    def time_of(self, topic: str, offset: int) -> int | None:
        """When the record was stored, in milliseconds since 1970; None if it was deleted meanwhile."""
        with suppress(SourceGap, _Deleted):
            return self._header(self._find(topic, offset)).time
        return None

    def blocks(self, topic: str, start: int, until: int) -> Iterator[Block]:
        """The blocks with the records of a range.

        SourceGap if it begins before the oldest record. SpoolDamaged if records behind that are changed or missing.
        """
        if until <= start:
            return
        expected = start
        for header, data in self._contents(topic, start, until):
            for _, block in self._files.blocks(header, data, topic):
                if block.until <= expected:
                    continue
                if block.first > expected:
                    raise self._files.damaged(f"offsets {expected} to {block.first - 1} of '{topic}' are missing")
                yield block
                expected = block.until
        if expected < until:
            raise self._files.damaged(f"offsets {expected} to {until - 1} of '{topic}' are missing")

    def _contents(self, topic: str, start: int, until: int) -> Iterator[tuple[ObjectHeader, bytes]]:
        """The objects of a range, read ahead in parallel: a store answers many requests in the time of one."""
        waiting: deque[tuple[int, Future[tuple[ObjectHeader, bytes]]]] = deque()
        numbers = iter(range(self._find(topic, start), self._find(topic, until - 1) + 1))
        with ThreadPoolExecutor(_READ_AHEAD) as pool:
            while True:
                for number in islice(numbers, _READ_AHEAD - len(waiting)):
                    waiting.append((number, pool.submit(self._files.content, number)))
                if not waiting:
                    return
                number, future = waiting.popleft()
                try:
                    header, data = future.result()
                except NotFound:
                    self._files.verify_deleted(number)
                    raise source_gap(topic, start, self.first(topic)) from None
                self._keep(header)
                yield header, data

    def _find(self, topic: str, offset: int) -> int:
        """The number of the object with an offset, by the ends in the headers."""
        while True:
            try:
                return self._search(topic, offset)
            except _Deleted:
                self.ends()  # the newest object that this reader knows may be the deleted one

    def _search(self, topic: str, offset: int) -> int:
        if self._newest == 0 or self._end_at(self._newest, topic) <= offset:
            self.ends()
        low, high = self._front_number(), self._newest
        if high == 0 or self._end_at(high, topic) <= offset:
            raise self._files.damaged(f"offset {offset} of topic '{topic}' is missing")
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._end_at(middle, topic) > offset else (middle + 1, high)
        entry = self._header(low).entry(topic)
        if entry is None or entry.first > offset:  # in the oldest object: it ends after the records of deleted ones
            raise source_gap(topic, offset, entry.first if entry else self._end_at(low, topic))
        return low

    def _end_at(self, number: int, topic: str) -> int:
        return self._header(number).ends.get(topic, 0)

    def _header(self, number: int) -> ObjectHeader:
        """The header of an object; _Deleted if it is before the front."""
        if (header := self._headers.get(number)) is None:
            try:
                header = self._files.header(number)
            except NotFound:
                self._front = (time.monotonic(), self._files.verify_deleted(number))
                raise _Deleted from None
            self._keep(header)
        return header

    def _keep(self, header: ObjectHeader) -> None:
        self._ends_kept += len(header.ends)
        if len(self._headers) >= _HEADERS or self._ends_kept > _ENDS:
            self._headers.clear()
            self._ends_kept = len(header.ends)
        self._headers[header.number] = header

    def _front_number(self) -> int:
        if self._front is None or time.monotonic() - self._front[0] > _FRONT_SECONDS:
            self._front = (time.monotonic(), self._files.fronts()[-1])
        return self._front[1]
