"""`generate`: made-up events as a source, through PySpark's own data source API; needs no broker."""

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
    """A finite topic that exists nowhere but in its seed."""

    def __init__(self, spec: Spec) -> None:
        self.generate = spec.generate

    def topics(self) -> dict[str, str]:
        """One topic; its id is its seed, so another seed is another topic."""
        return {TOPIC: f"seed-{self.generate.seed}"}

    def bounds(self) -> dict[Partition, Bounds]:
        """The records are spread evenly over the partitions."""
        each, more = divmod(self.generate.records, self.generate.partitions)
        return {(TOPIC, part): Bounds(0, each + (part < more)) for part in range(self.generate.partitions)}

    def start(self, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """Always from the first record."""
        return {partition: found.earliest for partition, found in bounds.items()}

    def stream(self, spark: SparkSession, position: Offsets, limits: Mapping[str, int | str]) -> DataFrame:
        """A streaming frame of the events from `position` on."""
        from headrace.source.generate_reader import GeneratedData

        spark.dataSource.register(GeneratedData)
        reader = spark.readStream.format(GeneratedData.name()).options(**self._options())
        starts = json.dumps({str(part): offset for (_, part), offset in position.items()})
        return reader.options(starts=starts, cap=str(limits.get("maxOffsetsPerTrigger", 0))).load()

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        """A plain frame of exactly these ranges."""
        from headrace.source.generate_reader import GeneratedData

        spark.dataSource.register(GeneratedData)
        spans = json.dumps([[each.partition, each.start, each.until] for each in ranges])
        return spark.read.format(GeneratedData.name()).options(**self._options(), spans=spans).load()

    def ends(self, offset: str) -> Offsets:
        """The end offsets in the source's own JSON."""
        return {(TOPIC, int(part)): until for part, until in json.loads(offset).items()}

    def tail(self, count: int, where: str = "end") -> pa.Table:
        """The last (or first) events."""
        sizes = self.bounds()
        begin = {part: max(0, found.latest - count) if where == "end" else 0 for part, found in sizes.items()}
        batches = [
            batch(self._options(), part, start, min(start + count, sizes[(topic, part)].latest))
            for (topic, part), start in begin.items()
        ]
        return pa.Table.from_batches(batches, RECORD_SCHEMA).slice(0, count)

    def lag(self, position: Offsets) -> Lag:
        """Events not yet read; made-up events have no age."""
        bounds = self.bounds()
        records = sum(found.latest - position.get(each, 0) for each, found in bounds.items())
        return Lag(records, None, frozenset(bounds))

    def close(self) -> None:
        """Nothing is held."""

    def _options(self) -> dict[str, str]:
        sizes = {str(part): found.latest for (_, part), found in self.bounds().items()}
        return {"seed": str(self.generate.seed), "bad": str(self.generate.bad_ratio), "sizes": json.dumps(sizes)}


def batch(options: Mapping[str, str], partition: int, start: int, until: int) -> pa.RecordBatch:
    """A range of events as envelopes."""
    made = list(events(int(options["seed"]), partition, start, until, float(options["bad"])))
    count = len(made)
    columns = [
        pa.array([TOPIC] * count),
        pa.array([partition] * count, pa.int32()),
        pa.array(range(start, until), pa.int64()),
        pa.array([each.timestamp for each in made], RECORD_SCHEMA.field("timestamp").type),
        pa.array([0] * count, pa.int32()),
        pa.array([each.key for each in made], pa.binary()),
        pa.array([each.value for each in made], pa.binary()),
        pa.array(
            [[{"key": key, "value": value} for key, value in each.headers] for each in made],
            RECORD_SCHEMA.field("headers").type,
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
