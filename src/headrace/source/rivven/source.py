"""The source `rivven`: topics of a Rivven server, read by the tasks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import SourceTopicGone, UsageError
from headrace.source.base import Bounds, Lag, Offsets, Partition, ends_of
from headrace.source.ranges import Range
from headrace.source.record_frame import RecordFrame, TaskReader, frame_of_ranges
from headrace.source.rivven.client import RivvenClient, RivvenConnection, TlsFiles
from headrace.source.rivven.reader import read_batches
from headrace.spec import Spec
from headrace.spec.rivven_source import RivvenSpec
from headrace.spec.security import TlsSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_PARTITIONS = 16  # that are asked for the age of the oldest record


class RivvenSource:
    """The topics of a spec on a Rivven server."""

    def __init__(self, spec: Spec) -> None:
        self.rivven = spec.rivven
        self._connection = connection_of(self.rivven)
        self._client = RivvenClient(self._connection)
        self._committed = self.rivven.isolation == "read_committed"

    # ---- topics and offsets ----

    def topics(self) -> dict[str, str]:
        """Names of the topics, also as their ids: the protocol has none."""
        return {topic: topic for topic in self._partition_counts()}

    def bounds(self) -> dict[Partition, Bounds]:
        """Earliest and latest offset of every partition."""
        partitions = [
            (topic, partition) for topic, count in self._partition_counts().items() for partition in range(count)
        ]
        bounds = self._client.bounds(partitions)
        return {each: Bounds(*offsets) for each, offsets in zip(partitions, bounds, strict=True)}

    def latest(self, partitions: Sequence[Partition]) -> Offsets:
        """Latest offsets of these partitions."""
        bounds = self._client.bounds(partitions)
        return {each: latest for each, (_, latest) in zip(partitions, bounds, strict=True)}

    def start(self, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """Start offsets from `source.rivven.start`."""
        start = self.rivven.start
        if isinstance(start, str):
            return {each: part.latest if start == "latest" else part.earliest for each, part in bounds.items()}
        if start.timestamp is not None:
            return self._offsets_at(start.timestamp, bounds)
        return _explicit(start.offsets_by_topic(self._names()), bounds)

    def _offsets_at(self, timestamp: datetime, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """Also finds records that were deleted, which the earliest offset excludes."""
        offsets = self._client.offsets_at(list(bounds), int(timestamp.timestamp() * 1000))
        return {
            each: part.latest if offset is None else min(max(offset, part.earliest), part.latest)
            for (each, part), offset in zip(bounds.items(), offsets, strict=True)
        }

    def _names(self) -> list[str]:
        if self.rivven.topics:
            return list(self.rivven.topics)
        pattern = re.compile(self.rivven.pattern or "")
        return [name for name in self._client.topics() if pattern.search(name)]

    def _partition_counts(self) -> dict[str, int]:
        """Number of partitions by topic; SourceTopicGone, with similar names, if a topic does not exist."""
        names = sorted(self._names())
        try:
            return dict(zip(names, self._client.partitions(names), strict=True))
        except SourceTopicGone as gone:
            close = get_close_matches(str(gone.facts["topic"]), self._client.topics(), n=3, cutoff=0.7)
            if not close:
                raise
            similar = " or ".join(repr(name) for name in close)
            message = f"{gone.message.removesuffix('.')}; did you mean {similar}?"
            raise SourceTopicGone(message, hint=gone.hint, **gone.facts) from None

    # ---- records ----

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> RecordFrame:
        """Exactly these ranges; each task opens its own connection."""
        return frame_of_ranges(spark, ranges, self.reader())

    def reader(self) -> TaskReader:
        """The function that reads a range in a task."""
        return partial(read_batches, self._connection, self._committed)

    def committed(self, position: Offsets) -> None:
        """The server's own retention decides how long it keeps records."""

    def tail(self, count: int, where: str = "end") -> pa.Table:
        """The last `count` records of each topic, or the first, or the first since a timestamp."""
        bounds = self.bounds()
        if where == "end":
            start = {each: max(part.earliest, part.latest - count) for each, part in bounds.items()}
        elif where == "start":
            start = {each: part.earliest for each, part in bounds.items()}
        else:
            start = self._offsets_at(datetime.fromisoformat(where), bounds)
        ranges = [Range(*each, start[each], min(start[each] + count, part.latest)) for each, part in bounds.items()]
        batches = [
            batch
            for wanted in ranges
            if wanted.start < wanted.until
            for batch in read_batches(self._connection, self._committed, wanted)
        ]
        return _sample(pa.Table.from_batches(batches, RECORD_SCHEMA), count, where)

    def lag(self, position: Offsets) -> Lag:
        """Unread records, and the age of the oldest."""
        bounds = self.bounds()
        waiting = {
            each: max(position.get(each, part.earliest), part.earliest)
            for each, part in bounds.items()
            if part.latest > position.get(each, part.earliest)
        }
        records = sum(bounds[each].latest - offset for each, offset in waiting.items())
        ages = self._ages(waiting) if waiting else {}
        return Lag(records, max(ages.values(), default=None) if waiting else 0.0, ends_of(bounds), ages=ages)

    def _ages(self, waiting: Offsets) -> dict[Partition, float]:
        """Age of the oldest unread record of each partition, where the server has returned it."""
        requests = [(*each, offset, 1) for each, offset in sorted(waiting.items())[:_MAX_PARTITIONS]]
        now, fetched = time.time(), self._client.fetch_all(requests, self._committed)
        return {
            (topic, partition): round(max(0.0, now - int(one.timestamps[0]) / 1000), 3)
            for (topic, partition, _, _), one in zip(requests, fetched, strict=True)
            if len(one)
        }

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def connection_of(rivven: RivvenSpec) -> RivvenConnection:
    """Connection settings with secrets resolved."""
    files = None if rivven.tls is None else _tls_files(rivven.tls)
    if rivven.sasl is None:
        return RivvenConnection(rivven.broker, files)
    sasl = rivven.sasl
    return RivvenConnection(rivven.broker, files, sasl.mechanism, sasl.username, sasl.password.reveal())


def _tls_files(tls: TlsSpec) -> TlsFiles:
    key = None if tls.key is None else tls.key.reveal()
    return TlsFiles(tls.ca, tls.certificate, key, None if tls.key_password is None else tls.key_password.reveal())


def _explicit(offsets: Mapping[str, Mapping[int, int]], bounds: Mapping[Partition, Bounds]) -> Offsets:
    for topic, partitions in offsets.items():
        for number, offset in partitions.items():
            if (topic, number) not in bounds:
                raise UsageError(f"start.offsets: the partition {topic}/{number} does not exist.")
            part = bounds[topic, number]
            if not part.earliest <= offset <= part.latest:
                raise UsageError(
                    f"start.offsets: {topic}/{number} has no offset {offset}; the server has {part.earliest} to "
                    f"{part.latest}.",
                    hint="Set source.rivven.start.offsets to an offset in that range.",
                )
    return {each: offsets.get(each[0], {}).get(each[1], part.earliest) for each, part in bounds.items()}


def _sample(records: pa.Table, count: int, where: str) -> pa.Table:
    """The newest, or the oldest, records of each topic."""
    order = [(name, "ascending") for name in ("topic", "timestamp", "partition", "offset")]
    ordered = records.sort_by(order)
    parts = []
    for topic in ordered["topic"].unique().to_pylist():
        of_topic = ordered.filter(pa.compute.equal(ordered["topic"], topic))
        parts.append(of_topic.slice(max(0, len(of_topic) - count)) if where == "end" else of_topic.slice(0, count))
    return pa.concat_tables(parts) if parts else ordered
