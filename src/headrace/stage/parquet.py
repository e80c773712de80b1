"""Parquet files that Spark, delta-rs, DuckDB and Polars all read correctly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.stage.statistics import FileStatistics, Leaf, column_at, parquet_columns

_SAMPLE = (256, 4096)  # sampled values per column: minimum, maximum
_DISTINCT = 0.9  # above this share of distinct values a dictionary costs time and space


def read_parquet(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file in this thread.

    A thread of Arrow may keep a reference to the bytes after the read has returned. If the interpreter ends meanwhile,
    releasing a Python object from that thread aborts the process.
    """
    return pq.ParquetFile(pa.BufferReader(data)).read(columns=columns, use_threads=False)


class OpenFile:
    """A Parquet file in memory that is written one row group at a time."""

    def __init__(self, schema: pa.Schema, leaves: tuple[Leaf, ...], compression: str, dictionary: list[str]) -> None:
        self._sink = pa.BufferOutputStream()
        self._footers: list[Any] = []
        self._statistics = FileStatistics(leaves)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            version="2.6",
            data_page_version="1.0",
            compression=compression,
            use_dictionary=dictionary,
            write_statistics=_columns_with_bounds(schema),
            store_decimal_as_integer=True,
            store_schema=False,
            metadata_collector=self._footers,
        )

    @property
    def size(self) -> int:
        """Encoded bytes so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Add one row group."""
        self._statistics.add(rows)
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> tuple[Any, int, str]:
        """Close the file; returns its content (a view, not a copy), its number of rows and its statistics."""
        self._writer.close()
        footer = self._footers[0]
        view = memoryview(self._sink.getvalue()).cast("B")
        return view, footer.num_rows, self._statistics.to_json(footer)


@lru_cache(maxsize=1024)
def _columns_with_bounds(schema: pa.Schema) -> list[str]:
    """Columns with bounds in the footer: all except floats, as readers would skip NaN values outside of them."""
    return [".".join(path) for path, kind in parquet_columns(schema) if not pa.types.is_floating(kind)]


def dictionary_columns(rows: pa.Table) -> list[str]:
    """Columns with repeated values, by a sample: a dictionary of ids or timestamps doubles the cost of a file."""
    least, most = _SAMPLE
    sample = rows.slice(0, min(most, max(least, rows.num_rows // 16)))
    return [".".join(path) for path, kind in parquet_columns(rows.schema) if _repeats(sample, path, kind)]


def _repeats(sample: pa.Table, path: tuple[str, ...], kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return False  # Spark skips row groups by their dictionaries, and takes -0.0 for less than 0.0 there
    values = column_at(sample, path)
    if values is None:
        return True  # inside a list or a map
    return bool(len(values.unique()) <= _DISTINCT * (len(values) - values.null_count))
