"""PySpark data source for generated events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

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


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        return [_Span(*span) for span in json.loads(self.options["spans"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Span)  # noqa: S101
        for start in range(partition.start, partition.until, _CHUNK):
            yield batch(self.options, partition.partition, start, min(start + _CHUNK, partition.until))
