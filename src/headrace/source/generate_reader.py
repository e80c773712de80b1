"""PySpark data source for generated events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from headrace.source.generate import batch

_SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
_CHUNK = 10_000


class _Span(InputPartition):
    def __init__(self, partition: int, start: int, until: int) -> None:
        self.partition, self.start, self.until = partition, start, until


class GeneratedData(DataSource):
    """The data source as Spark registers it."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "headrace_generate"

    def schema(self) -> str:
        """Columns of a record."""
        return _SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        """Reader for ranges."""
        return _Reader(self.options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Reader for a stream."""
        return _StreamReader(self.options)


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        return [_Span(*span) for span in json.loads(self.options["spans"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def initialOffset(self) -> dict[str, int]:
        starts: dict[str, int] = json.loads(self.options["starts"])
        return starts

    def prepareForTriggerAvailableNow(self) -> None:
        """The end of the topic never moves; with this method, Spark also applies the read limit to a drain."""

    def getDefaultReadLimit(self) -> ReadLimit:
        max_rows = int(self.options["max_rows"])
        return ReadMaxRows(max_rows) if max_rows else ReadAllAvailable()

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
        yield batch(options, partition.partition, start, min(start + _CHUNK, partition.until))
