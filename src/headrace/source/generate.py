"""The source `generate`: deterministic events, without a broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA
from headrace.source.base import Bounds, Lag, Offsets, Partition
from headrace.source.ranges import Range
from headrace.source.sample_events import events
from headrace.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "generated"


class GenerateSource:
    """A finite topic of events that are computed from a seed."""

    def __init__(self, spec: Spec) -> None:
        self.generate = spec.generate

    def topics(self) -> dict[str, str]:
        """One topic with the seed as its id, so that another seed is another topic."""
        return {TOPIC: f"seed-{self.generate.seed}"}

    def bounds(self) -> dict[Partition, Bounds]:
        """Records are distributed evenly over the partitions."""
        size, remainder = divmod(self.generate.records, self.generate.partitions)
        return {(TOPIC, part): Bounds(0, size + (part < remainder)) for part in range(self.generate.partitions)}

    def latest(self, partitions: Sequence[Partition]) -> Offsets:
        """Number of events of each partition."""
        bounds = self.bounds()
        return {each: bounds[each].latest for each in partitions}

    def start(self, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """Always the first record."""
        return {partition: offsets.earliest for partition, offsets in bounds.items()}

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        """Batch DataFrame of exactly these ranges."""
        from headrace.source.generate_reader import GeneratedData

        spark.dataSource.register(GeneratedData)
        spans = json.dumps([[part.partition, part.start, part.until] for part in ranges])
        return spark.read.format(GeneratedData.name()).options(**self._options(), spans=spans).load()

    def tail(self, count: int, where: str = "end") -> pa.Table:
        """The last (or first) events."""
        batches = []
        for (_, part), offsets in self.bounds().items():
            start = max(0, offsets.latest - count) if where == "end" else 0
            batches.append(batch(self._options(), part, start, min(start + count, offsets.latest)))
        return pa.Table.from_batches(batches, RECORD_SCHEMA).slice(0, count)

    def lag(self, position: Offsets) -> Lag:
        """Unread events; generated events have no age."""
        bounds = self.bounds()
        records = sum(offsets.latest - position.get(partition, 0) for partition, offsets in bounds.items())
        return Lag(records, None, frozenset(bounds))

    def close(self) -> None:
        """There is no connection."""

    def _options(self) -> dict[str, str]:
        sizes = {str(part): offsets.latest for (_, part), offsets in self.bounds().items()}
        return {"seed": str(self.generate.seed), "bad": str(self.generate.bad_ratio), "sizes": json.dumps(sizes)}


def batch(options: Mapping[str, str], partition: int, start: int, until: int) -> pa.RecordBatch:
    """A range of events as records."""
    produced = list(events(int(options["seed"]), partition, start, until, float(options["bad"])))
    count = len(produced)
    columns = [
        pa.array([TOPIC] * count),
        pa.array([partition] * count, pa.int32()),
        pa.array(range(start, until), pa.int64()),
        pa.array([event.timestamp for event in produced], RECORD_SCHEMA.field("timestamp").type),
        pa.array([0] * count, pa.int32()),
        pa.array([event.key for event in produced], pa.binary()),
        pa.array([event.value for event in produced], pa.binary()),
        pa.array(
            [[{"key": key, "value": value} for key, value in event.headers] for event in produced],
            RECORD_SCHEMA.field("headers").type,
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
