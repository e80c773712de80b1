"""The source of all kinds that receive into a spool; what differs is the receiver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import HeadraceError, LeaseHeld, StorageUnreachable
from headrace.source.base import Bounds, Lag, Offsets, Partition, ends_of
from headrace.source.ranges import Range
from headrace.source.record_frame import RecordFrame, frame_of_ranges
from headrace.source.spool.layout import SPOOL
from headrace.source.spool.object_spool import open_object_spool
from headrace.source.spool.reader import open_reader, record_batches
from headrace.source.spool.receiver import Receiver, ReceiverReport
from headrace.source.spool.writer import Spool, SpoolLimits
from headrace.spec import Spec
from headrace.spec.spool import SpoolSpec
from headrace.storage.store import Profile, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITION = 0
_SEGMENT_PART = 32  # of the maximum size


class SpoolSource:
    """Topics with one partition each, in the spool of a pipeline. The offset is the position in the spool."""

    def __init__(
        self, spec: Spec, spool: SpoolSpec, topics: Sequence[str], new_receiver: Callable[[], Receiver]
    ) -> None:
        self._pipeline, self._listed = spec.pipeline, tuple(topics)
        self._folder, self._limits = spool_folder(spec, spool), _limits(spool)
        self._profile, self._lease = Profile(**spec.storage_profile()), spec.lease
        self._create_bucket = spec.storage.create_bucket
        self._reader = open_reader(self._folder, self._profile)
        self._new_receiver = new_receiver
        self._spool: Spool | None = None
        self._receiver: Receiver | None = None

    # ---- receiving ----

    def receive(self, report: ReceiverReport, *, accept: bool) -> None:
        """Open the spool for writing if no other process has; with `accept`, start the receiver as well."""
        if self._spool is None:
            try:
                self._spool = self.open_destination()
            except LeaseHeld as held:
                if not held.facts.get("ready"):  # its recovery may still move the ends
                    raise StorageUnreachable(f"The spool {self._folder} is being opened by another process.") from None
                return
        if accept and self._receiver is None:
            receiver = self.new_receiver()
            receiver.start(self._spool, report)
            self._receiver = receiver

    def open_destination(self) -> Spool:
        """Open the spool for writing; LeaseHeld if another process does."""
        store = Store(self._folder, self._profile)
        if store.local:
            spool = Spool.open(self._folder, self._pipeline, self._limits)
        else:
            if self._create_bucket:
                store.create_bucket()
            ttl, renew = self._lease.ttl.total_seconds(), self._lease.renew.total_seconds()
            spool = open_object_spool(store, self._pipeline, self._limits, ttl=ttl, renew=renew)
        spool.add_topics(self._listed)
        return spool

    def new_receiver(self) -> Receiver:
        """A receiver with the settings of the spec."""
        return self._new_receiver()

    def listed_topics(self) -> Sequence[str]:
        """Topics that exist before a record was received."""
        return self._listed

    # ---- topics and offsets ----

    def topics(self) -> dict[str, str]:
        """The topics of the spec and those that were received, with the id of the spool.

        UsageError if the spool belongs to another pipeline.
        """
        identity = self._reader.identity()
        if identity is not None:
            identity.verify(self._pipeline, self._folder)
        spool_id = identity.spool_id if identity else ""
        return dict.fromkeys(sorted({*self._listed, *self._reader.ends()}), spool_id)

    def bounds(self) -> dict[Partition, Bounds]:
        """The oldest stored record, and the durable end."""
        ends = self._ends()
        first = {topic: min(self._reader.first(topic), ends.get(topic, 0)) for topic in self.topics()}
        return {(topic, _PARTITION): Bounds(first[topic], ends.get(topic, 0)) for topic in first}

    def latest(self, partitions: Sequence[Partition]) -> Offsets:
        """Durable ends; an error if the receiver or the spool has failed."""
        ends = self._ends()
        return {(topic, partition): ends.get(topic, 0) for topic, partition in partitions}

    def _ends(self) -> dict[str, int]:
        failures = [self._spool.failure] if self._spool is not None else []
        failures += [self._receiver.failure()] if self._receiver is not None else []
        for failure in failures:
            if failure is not None:
                raise failure
        return self._reader.ends()

    def start(self, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """The oldest stored record."""
        return {partition: offsets.earliest for partition, offsets in bounds.items()}

    def lag(self, position: Offsets) -> Lag:
        """Unread records, and how long the oldest one has been in the spool."""
        bounds = self.bounds()
        unread = {each: offsets.latest - position.get(each, 0) for each, offsets in bounds.items()}
        waiting = [each for each, records in unread.items() if records > 0]
        stored = {each: self._reader.time_of(each[0], position.get(each, 0)) for each in waiting}
        now = time.time()
        ages = {each: max(0.0, round(now - at / 1000, 3)) for each, at in stored.items() if at is not None}
        records = sum(max(0, each) for each in unread.values())
        return Lag(records, max(ages.values(), default=None) if waiting else 0.0, ends_of(bounds), ages=ages)

    # ---- records ----

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> RecordFrame:
        """Exactly these ranges, read by the tasks from the segments or objects."""
        return frame_of_ranges(spark, ranges, partial(record_batches, self._reader))

    def committed(self, position: Offsets) -> None:
        """Let the writer of the spool delete what is before the position."""
        with suppress(HeadraceError, OSError):  # on a full disk; the next batch releases it
            self._reader.commit({topic: offset for (topic, _), offset in position.items()})
            if self._spool is not None:
                self._spool.trim()

    def tail(self, count: int, where: str = "end") -> pa.Table:
        """The last records of each topic, the first ones, or those from a time on. Nothing is released."""
        ranges = [self._sample(each, offsets, count, where) for each, offsets in self.bounds().items()]
        batches = chain.from_iterable(record_batches(self._reader, each) for each in ranges if each.until > each.start)
        return pa.Table.from_batches(batches, RECORD_SCHEMA)

    def _sample(self, partition: Partition, bounds: Bounds, count: int, where: str) -> Range:
        topic, number = partition
        if where == "end":
            return Range(topic, number, max(bounds.earliest, bounds.latest - count), bounds.latest)
        start = bounds.earliest
        if where != "start":
            start = self._offset_at(topic, bounds, int(datetime.fromisoformat(where).timestamp() * 1000))
        return Range(topic, number, start, min(bounds.latest, start + count))

    def _offset_at(self, topic: str, bounds: Bounds, time_ms: int) -> int:
        """The first record that was stored at a time or later."""
        blocks = self._reader.blocks(topic, bounds.earliest, bounds.latest) if bounds.earliest < bounds.latest else ()
        return next((block.first for block in blocks if block.time >= time_ms), bounds.latest)

    def close(self) -> None:
        """Stop the receiver, and write what it has accepted."""
        if self._receiver is not None:
            self._receiver.stop()
            self._receiver = None
        if self._spool is not None:
            self._spool.close()
            self._spool = None


def spool_folder(spec: Spec, spool: SpoolSpec) -> str:
    """Where the spool of a pipeline is."""
    return spool.path or f"{spec.state_uri}/{SPOOL}"


def _limits(spool: SpoolSpec) -> SpoolLimits:
    default = SpoolLimits()
    return replace(
        default,
        max_bytes=spool.max_bytes,
        segment_bytes=min(default.segment_bytes, spool.max_bytes // _SEGMENT_PART),
        max_requests=spool.retry_requests,
        request_age=spool.retry_window.total_seconds(),
    )
