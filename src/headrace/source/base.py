"""The interface of a source. A new source is a module of this package and a line in `SOURCES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.source.ranges import Range
from headrace.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Partition = tuple[str, int]  # topic, partition
Offsets = dict[Partition, int]  # the next offset to read


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
    partitions: frozenset[Partition]  # all that exist
    open_transaction: OpenTransaction | None = None

    def event(self) -> dict[str, Any]:
        """The lag as events and `status` show it."""
        return lag_event(self.records, self.seconds, self.open_transaction)


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
    """Reads records and their offsets. No method changes the source."""

    def topics(self) -> dict[str, str]:
        """Topic ids by name."""

    def bounds(self) -> dict[Partition, Bounds]:
        """Earliest and latest offsets of every partition, at the isolation level of the spec."""

    def latest(self, partitions: Sequence[Partition]) -> Offsets:
        """Latest offsets of these partitions; asked for several times a second."""

    def start(self, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """Start offsets of these partitions, from `start` of the spec."""

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        """Batch DataFrame of exactly these ranges."""

    def tail(self, count: int, where: str) -> Any:
        """The last (or first) `count` records of each topic as an Arrow table, without Spark."""

    def lag(self, position: Offsets) -> Lag:
        """Lag behind a position."""

    def close(self) -> None:
        """Close connections."""


def _kafka(spec: Spec) -> Source:
    from headrace.source.kafka import KafkaSource

    return KafkaSource(spec)


def _generate(spec: Spec) -> Source:
    from headrace.source.generate import GenerateSource

    return GenerateSource(spec)


SOURCES: dict[str, Callable[[Spec], Source]] = {"kafka": _kafka, "generate": _generate}


def open_source(spec: Spec) -> Source:
    """Open the source of a spec."""
    return SOURCES[spec.source_kind](spec)


# After each row, Spark's Arrow writer computes the size of its batch, and for arrays walks back over all rows that are
# NULL: quadratic time for a topic without headers. `restore_null_headers` undoes the coalesce in the task.
RECORD_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType AS timestamp_type",
    "key",
    "value",
    "coalesce(headers, array()) AS headers",
)


def restore_null_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Batch whose records without headers have NULL headers, as in Kafka's source, instead of an empty array."""
    headers = batch.column("headers")
    empty = pc.equal(pc.list_value_length(headers), 0)
    if not pc.any(empty).as_py():
        return batch
    restored = pc.if_else(empty, pa.scalar(None, headers.type), headers)
    return batch.set_column(batch.schema.get_field_index("headers"), batch.schema.field("headers"), restored)
