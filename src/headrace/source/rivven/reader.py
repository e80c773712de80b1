"""Read a range of a partition: requests overlap with decoding, and a missing offset is explained or an error."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.errors import BrokerUnreachable, SourceGap, SourceRewound
from headrace.source.ranges import Range
from headrace.source.rivven.client import ResponseTooLarge, RivvenClient, RivvenConnection, is_connection_lost
from headrace.source.rivven.messages import Integers, Messages
from headrace.source.rivven.protocol import MAX_RECORDS

_FIRST_COUNT = 1000  # records of the first request, before their size is known
_RESPONSE_BYTES = 2 * 1024 * 1024  # of a response, and so of an Arrow batch
_DEPTH = 2  # requests at once: the server reads the next response while this one is decoded
_RECONNECTS = 3  # without a record in between
_PROBES = 64  # missing offsets that are asked for at once
_PROBE_SECONDS = 0.01  # at least, for that many: servers limit the requests per second
_TRAILING_CONTROL_RECORDS = 16  # without a record after them, where they cannot be told from records that were lost


def read_batches(connection: RivvenConnection, committed: bool, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Records of a range as Arrow batches; SourceGap if the server has lost one of them."""
    client = RivvenClient(connection)
    try:
        for messages in RangeReader(client, committed, wanted).messages():
            yield messages.records(wanted.topic, wanted.partition)
    finally:
        client.close()


class RangeReader:
    """The records of a range over an open client."""

    def __init__(self, client: RivvenClient, committed: bool, wanted: Range) -> None:
        self.client = client
        self.committed = committed
        self.wanted = wanted
        self._position = wanted.start
        self._count = _FIRST_COUNT
        self._depth = _DEPTH
        self._sent: deque[tuple[int, int]] = deque()  # offset and count of requests without a response
        self._compacted: bool | None = None
        self._name = f"{wanted.topic}/{wanted.partition}"

    def messages(self) -> Iterator[Messages]:
        """Records in the order of their offsets, one response after the other."""
        failures, last = 0, self._position
        while self._position < self.wanted.until:
            try:
                self._check_bounds()
                yield from self._responses()
            except BrokerUnreachable as error:
                failures = failures + 1 if last == self._position else 1
                last = self._position
                self._sent.clear()
                if not is_connection_lost(error) or failures == _RECONNECTS:
                    raise

    def _responses(self) -> Iterator[Messages]:
        following = self._position
        while self._position < self.wanted.until:
            if not self._sent:
                following = self._position
            while len(self._sent) < self._depth and following < self.wanted.until:
                count = min(self._count, self.wanted.until - following)
                self.client.ask(self.wanted.topic, self.wanted.partition, following, count, self.committed)
                self._sent.append((following, count))
                following += count
            offset, count = self._sent[0]
            messages = self._answer()
            if messages is not None and offset == self._position:
                yield from self._accept(messages, count)
            if self._position != offset + count:  # the requests after it are not those that are needed
                self._drain()

    def _answer(self) -> Messages | None:
        """The next response; None if it was too large, and fewer records are requested from now on."""
        offset, count = self._sent.popleft()
        try:
            return self.client.answer(self.wanted.topic, self.wanted.partition)
        except ResponseTooLarge:
            if count == 1:
                raise SourceGap(
                    f"{self._name}: the server cannot return offset {offset}: the record exceeds its limit.",
                    hint="Delete the records up to this one, and run `headrace resume SPEC --accept-gap`.",
                ) from None
            self._count = max(1, count // 2)
            return None

    def _drain(self) -> None:
        """Drop the responses to requests that were sent ahead."""
        while self._sent:
            self._answer()

    def _accept(self, messages: Messages, count: int) -> Iterator[Messages]:
        """The new records of a response; moves the position behind them, or behind a gap that is no loss."""
        new = self._new_records(messages)
        if not len(new):
            self._skip_gap(count)
            return
        last = int(new.offsets[-1])
        missing = _missing(self._position, new.offsets)
        if len(missing):
            self._explain(missing, count)
        self._adapt(new, full=last + 1 == self._position + count)
        self._position = last + 1
        yield new

    def _new_records(self, messages: Messages) -> Messages:
        """Records of the range, in ascending order; the log of a server that has crashed can repeat offsets."""
        before = np.maximum.accumulate(np.concatenate(([self._position - 1], messages.offsets)))[:-1]
        inside = (messages.offsets > before) & (messages.offsets < self.wanted.until)
        return messages if inside.all() else messages.selected(np.flatnonzero(inside))

    def _adapt(self, messages: Messages, full: bool) -> None:
        """Request as many records as make a response of a good size, and one at a time if it is never full."""
        mean = max(1, len(messages.content) // len(messages))
        self._count = max(1, min(MAX_RECORDS, _RESPONSE_BYTES // mean))
        self._depth = _DEPTH if full else 1

    # ---- missing offsets ----

    def _explain(self, missing: Integers, count: int) -> None:
        """Missing offsets before a record: deleted, compacted, of aborted transactions, control records; or lost."""
        self._drain()
        self._check_bounds()
        if self._is_compacted():
            return
        aborted = self._uncommitted(count).offsets if self.committed else missing[:0]
        self._probe(np.setdiff1d(missing, aborted).tolist())

    def _skip_gap(self, count: int) -> None:
        """Move behind a gap that is not followed by a record in the response."""
        self._drain()
        self._check_bounds()
        if self.committed and len(aborted := self._new_records(self._uncommitted(count))):
            self._explain_uncommitted(_missing(self._position, aborted.offsets))
            self._position = int(aborted.offsets[-1]) + 1
            return
        limit = self.wanted.until
        if not self._is_compacted():
            limit = min(limit, self._position + _TRAILING_CONTROL_RECORDS + 1)
        following = self._probe(range(self._position, limit))
        if following is None and limit < self.wanted.until:
            raise self._lost(self._position, self.wanted.until)
        self._position = self.wanted.until if following is None else following

    def _explain_uncommitted(self, missing: Integers) -> None:
        if len(missing) and not self._is_compacted():
            self._probe(missing.tolist())

    def _uncommitted(self, count: int) -> Messages:
        """What the server has at the position, including records of aborted transactions."""
        return self.client.fetch(self.wanted.topic, self.wanted.partition, self._position, count, committed=False)

    def _probe(self, offsets: Sequence[int]) -> int | None:
        """The first of these offsets that has a record; None if all are control records, or behind the last record.

        The server reads one entry of its log at or after the offset, and does not return control records. A record with
        a higher offset proves that the log does not have the one that was asked for.
        """
        for start in range(0, len(offsets), _PROBES):
            started = time.monotonic()
            window = offsets[start : start + _PROBES]
            requests = [(self.wanted.topic, self.wanted.partition, offset, 1) for offset in window]
            for offset, messages in zip(window, self.client.fetch_all(requests, committed=False), strict=True):
                if not len(messages):
                    continue
                if int(messages.offsets[0]) != offset and not self._is_compacted():
                    raise self._lost(offset, int(messages.offsets[0]))
                return min(int(messages.offsets[0]), self.wanted.until)
            time.sleep(max(0.0, _PROBE_SECONDS - (time.monotonic() - started)))
        return None

    def _is_compacted(self) -> bool:
        if self._compacted is None:
            self._compacted = self.client.is_compacted(self.wanted.topic)
        return self._compacted

    def _check_bounds(self) -> None:
        """The server skips deleted records without an error."""
        topic, partition = self.wanted.topic, self.wanted.partition
        earliest, latest = self.client.bounds([(topic, partition)])[0]
        if earliest > self._position:
            raise SourceGap(
                f"{self._name}: the server no longer has offsets {self._position} to {earliest - 1} (its earliest is "
                f"{earliest}); they were never read.",
                hint="Run `headrace resume SPEC --accept-gap` to record the gap and continue after it.",
                topic=topic,
                partition=partition,
                wanted=self._position,
                earliest=earliest,
            )
        if latest < self.wanted.until:
            raise SourceRewound(
                f"{self._name}: the server ends at {latest}, but the range to read ends at {self.wanted.until}.",
                hint="If it was restored from a backup, run `headrace resume SPEC --accept-gap` to continue from its "
                "end.",
                topic=topic,
                partition=partition,
                read=self.wanted.until,
                latest=latest,
            )

    def _lost(self, offset: int, following: int) -> SourceGap:
        return SourceGap(
            f"{self._name}: the server returns no records for offsets {offset} to {following - 1}, although its "
            f"earliest is lower. Server version 0.0.22 loses records that way when it is killed.",
            hint="Restore the server's data. If the topic was compacted before a restart of the server, which forgets "
            "that, set its cleanup.policy to compact again.",
            topic=self.wanted.topic,
            partition=self.wanted.partition,
            wanted=offset,
        )


def _missing(position: int, offsets: Integers) -> Integers:
    """Offsets from a position to the last of these offsets that are not among them."""
    expected = np.arange(position, int(offsets[-1]) + 1)
    return np.setdiff1d(expected, offsets) if len(expected) != len(offsets) else offsets[:0]
