"""The file layout of a table: partitioning, compression, target size and statistics of its data files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headrace.delta.properties import SUFFIXES
from headrace.delta.snapshot import TableState
from headrace.stage.statistics import Leaf, leaves

MIB = 1024 * 1024
_CODEC = "delta.parquet.compression.codec"
_TARGET = "delta.targetFileSize"
_INDEXED = "delta.dataSkippingNumIndexedCols"


@dataclass(frozen=True)
class FileLayout:
    """The layout of a table's data files."""

    path: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    target_file_bytes: int = 128 * MIB
    stats_columns: int = 32  # leaf columns with statistics; negative: all

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The columns inside the files: all except the partition columns."""
        return pa.schema([item for item in self.schema if item.name not in self.partition_by])

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The columns with statistics."""
        return leaves(self.file_schema, self.stats_columns)


def file_layout_of(state: TableState, uri: str = "") -> FileLayout:
    """The layout of an existing table, by its properties."""
    properties = state.properties
    codec = properties.get(_CODEC, "snappy").lower()
    return FileLayout(
        uri,
        state.schema,
        state.partition_by,
        codec if codec in SUFFIXES else "snappy",
        int(properties[_TARGET]) if properties.get(_TARGET, "").isdecimal() else 128 * MIB,
        int(properties.get(_INDEXED, "32")) if properties.get(_INDEXED, "32").lstrip("-").isdecimal() else 32,
    )
