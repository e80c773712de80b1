"""The interface of a source. A new source is a module of this package and a line in `SOURCES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from headrace.source.ranges import Range
from headrace.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.source.record_frame import RecordFrame

Partition = tuple[str, int]  # topic, partition
Offsets = dict[Partition, int]  # the next offset to read

REJECT_HEADER = "file.reject"
"""Header of a record that a source of files has rejected: reason and detail. The plan makes it a dead letter."""


@dataclass(frozen=True)
class Bounds:
    """Offsets of a partition that the broker has: `[earliest, latest)`."""

    earliest: int
    latest: int


@dataclass(frozen=True)
class OpenTransaction:
    """Records after the last stable offset; a read_committed consumer gets them once the transaction ends."""

    records: int
    since: datetime | None  # timestamp of its first record; None if the broker did not return it in time


@dataclass(frozen=True)
class Lag:
    """Unread records: their number, and the age of the oldest in seconds (None if unknown)."""

    records: int
    seconds: float | None
    ends: Mapping[Partition, int]  # the latest offset of each partition that exists
    open_transaction: OpenTransaction | None = None
    ages: Mapping[Partition, float] = field(default_factory=dict)  # of the oldest unread record, where known

    def event(self) -> dict[str, Any]:
        """The lag as events and `status` show it."""
        return lag_event(self.records, self.seconds, self.open_transaction)

    def partitions(self, position: Mapping[Partition, int]) -> list[dict[str, Any]]:
        """The lag of each partition that is read; `position`: the next offset to read."""
        unread = {each: max(0, end - position[each]) for each, end in sorted(self.ends.items()) if each in position}
        return [
            {
                "topic": each[0],
                "partition": each[1],
                "position": position[each],
                "end": self.ends[each],
                "lag": records,
                "lag_seconds": self.ages.get(each) if records else 0.0,
            }
            for each, records in unread.items()
        ]


def ends_of(bounds: Mapping[Partition, Bounds]) -> Offsets:
    """The latest offset of each partition."""
    return {partition: each.latest for partition, each in bounds.items()}


def lag_event(
    records: int | None = None, seconds: float | None = None, transaction: OpenTransaction | None = None
) -> dict[str, Any]:
    """The fields of a lag; without arguments, of an unknown lag."""
    since = transaction.since if transaction else None
    return {
        "lag": records,
        "lag_seconds": seconds,
        "lag_reason": "open_transaction" if transaction else None,
        "open_transaction": None
        if transaction is None
        else {"records": transaction.records, "since": since.isoformat(timespec="milliseconds") if since else None},
    }


class Source(Protocol):
    """Reads records and their offsets. Only `committed` may change the source."""

    def topics(self) -> dict[str, str]:
        """Topic ids by name."""

    def bounds(self) -> dict[Partition, Bounds]:
        """Earliest and latest offsets of every partition, at the isolation level of the spec."""

    def latest(self, partitions: Sequence[Partition]) -> Offsets:
        """Latest offsets of these partitions; asked for several times a second."""

    def start(self, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """Start offsets of these partitions, from `start` of the spec."""

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> RecordFrame:
        """Exactly the records of these ranges, the same each time."""

    def committed(self, position: Offsets) -> None:
        """Called after the ledger has recorded a batch, and at a start: records before `position` are not read again.

        May release them; must be quick, and must not raise an error: the batch is committed.
        """

    def tail(self, count: int, where: str) -> Any:
        """The last (or first) `count` records of each topic as an Arrow table, without Spark."""

    def lag(self, position: Offsets) -> Lag:
        """Lag behind a position."""

    def close(self) -> None:
        """Close connections."""


@runtime_checkable
class NoticeSource(Protocol):
    """A source that observes what users must know although the pipeline continues; asked several times a second."""

    def notices(self) -> list[dict[str, Any]]:
        """Events since the last call, without the name of the pipeline."""


@runtime_checkable
class GapSource(Protocol):
    """A source whose gaps are within the range of its offsets."""

    def accept_gaps(self, position: Offsets) -> list[str]:
        """Skip unread records that no longer exist, and describe them; `position`: the next offset to read."""


@runtime_checkable
class GroupSource(Protocol):
    """A source whose broker stores the offsets of consumer groups."""

    def group_members(self, group: str | None = None) -> int:
        """Number of active members of a group; of the one in the spec by default."""

    def group_offsets(self, group: str) -> Offsets:
        """The committed offsets of a group: the next offset to read of each partition of the topics."""


def _kafka(spec: Spec) -> Source:
    from headrace.source.kafka import KafkaSource

    return KafkaSource(spec)


def _rivven(spec: Spec) -> Source:
    from headrace.source.rivven.source import RivvenSource

    return RivvenSource(spec)


def _danube(spec: Spec) -> Source:
    from headrace.source.danube.source import danube_source

    return danube_source(spec)


def _generate(spec: Spec) -> Source:
    from headrace.source.generate import GenerateSource

    return GenerateSource(spec)


def _files(spec: Spec) -> Source:
    from headrace.source.files.source import FilesSource

    return FilesSource(spec)


def _http(spec: Spec) -> Source:
    from headrace.source.http.source import http_source

    return http_source(spec)


def _otlp(spec: Spec) -> Source:
    from headrace.source.otlp.source import otlp_source

    return otlp_source(spec)


SOURCES: dict[str, Callable[[Spec], Source]] = {
    "kafka": _kafka,
    "rivven": _rivven,
    "danube": _danube,
    "http": _http,
    "otlp": _otlp,
    "files": _files,
    "generate": _generate,
}


def open_source(spec: Spec) -> Source:
    """Open the source of a spec."""
    return SOURCES[spec.source_kind](spec)


def select_record_columns(frame: DataFrame) -> DataFrame:
    """Columns of records from Spark's Kafka source. Built without SQL text: in a new JVM Spark's parser is slow.

    After each row, Spark's Arrow writer computes the size of its batch, and for arrays walks back over all rows that
    are NULL: quadratic time for a topic without headers. `restore_null_headers` undoes the coalesce in the task.
    """
    from pyspark.sql import functions as F

    timestamp_type = F.col("timestampType").alias("timestamp_type")
    headers = F.coalesce("headers", F.array()).alias("headers")
    return frame.select("topic", "partition", "offset", "timestamp", timestamp_type, "key", "value", headers)


def restore_null_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Batch whose records without headers have NULL headers, as in Kafka's source, instead of an empty array."""
    headers = batch.column("headers")
    empty = pc.equal(pc.list_value_length(headers), 0)
    if not pc.any(empty).as_py():
        return batch
    restored = pc.if_else(empty, pa.scalar(None, headers.type), headers)
    return batch.set_column(batch.schema.get_field_index("headers"), batch.schema.field("headers"), restored)
