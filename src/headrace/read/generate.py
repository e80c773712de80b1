"""`generate`: made-up events as a source, through PySpark's own data source API; needs no broker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from headrace.batch import Range
from headrace.read import Bounds, Offsets, Partition
from headrace.read.events import events
from headrace.spec import Spec
from headrace.tables.schema import ENVELOPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "generated"
_SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
_CHUNK = 10_000


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

    def start(self) -> Offsets:
        """Always from the first record."""
        return {partition: bounds.earliest for partition, bounds in self.bounds().items()}

    def stream(self, spark: SparkSession, position: Offsets, limits: Mapping[str, int | str]) -> DataFrame:
        """A streaming frame of the events from `position` on."""
        spark.dataSource.register(GeneratedData)
        reader = spark.readStream.format(GeneratedData.name()).options(**self._options())
        starts = json.dumps({str(part): offset for (_, part), offset in position.items()})
        return reader.options(starts=starts, cap=str(limits.get("maxOffsetsPerTrigger", 0))).load()

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        """A plain frame of exactly these ranges."""
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
            _batch(self._options(), part, start, min(start + count, sizes[(topic, part)].latest))
            for (topic, part), start in begin.items()
        ]
        return pa.Table.from_batches(batches, ENVELOPE).slice(0, count)

    def lag(self, position: Offsets) -> tuple[int, float | None]:
        """Events not yet read; made-up events have no age."""
        return sum(found.latest - position.get(each, 0) for each, found in self.bounds().items()), None

    def close(self) -> None:
        """Nothing is held."""

    def _options(self) -> dict[str, str]:
        sizes = {str(part): found.latest for (_, part), found in self.bounds().items()}
        return {"seed": str(self.generate.seed), "bad": str(self.generate.bad), "sizes": json.dumps(sizes)}


class _Span(InputPartition):
    def __init__(self, partition: int, start: int, until: int) -> None:
        self.partition, self.start, self.until = partition, start, until


class GeneratedData(DataSource):
    """What Spark sees of the source."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "headrace_generate"

    def schema(self) -> str:
        """The envelope's columns."""
        return _SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        """Ranges, read once."""
        return _Reader(self.options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """An unrolling topic."""
        return _StreamReader(self.options)


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        return [_Span(*span) for span in json.loads(self.options["spans"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def initialOffset(self) -> dict[str, int]:
        starts: dict[str, int] = json.loads(self.options["starts"])
        return starts

    def getDefaultReadLimit(self) -> ReadLimit:
        cap = int(self.options["cap"])
        return ReadMaxRows(cap) if cap else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        sizes: dict[str, int] = json.loads(self.options["sizes"])
        share = limit.max_rows // len(sizes) if isinstance(limit, ReadMaxRows) else max(sizes.values())
        return {part: min(size, start.get(part, 0) + max(1, share)) for part, size in sizes.items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [
            _Span(int(part), start.get(part, 0), until) for part, until in end.items() if until > start.get(part, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)


def _read(options: Mapping[str, str], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, _Span)  # noqa: S101
    for start in range(partition.start, partition.until, _CHUNK):
        yield _batch(options, partition.partition, start, min(start + _CHUNK, partition.until))


def _batch(options: Mapping[str, str], partition: int, start: int, until: int) -> pa.RecordBatch:
    made = list(events(int(options["seed"]), partition, start, until, float(options["bad"])))
    count = len(made)
    columns = [
        pa.array([TOPIC] * count),
        pa.array([partition] * count, pa.int32()),
        pa.array(range(start, until), pa.int64()),
        pa.array([each.timestamp for each in made], ENVELOPE.field("timestamp").type),
        pa.array([0] * count, pa.int32()),
        pa.array([each.key for each in made], pa.binary()),
        pa.array([each.value for each in made], pa.binary()),
        pa.array(
            [[{"key": key, "value": value} for key, value in each.headers] for each in made],
            ENVELOPE.field("headers").type,
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENVELOPE)
