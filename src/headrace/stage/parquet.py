"""Parquet as Spark, delta-rs, DuckDB and Polars all read it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.stage.statistics import Leaf, Tally, column_at, parquet_columns

_SAMPLE = (256, 4096)  # values looked at per column: at least, at most
_DISTINCT = 0.9  # above this share of distinct values a dictionary costs time and space


def read_parquet(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a whole Parquet file, read in this thread.

    A thread of Arrow may hold the bytes a little longer than the read takes; where the interpreter ends meanwhile, to
    let go of an object of Python's aborts the process.
    """
    return pq.ParquetFile(pa.BufferReader(data)).read(columns=columns, use_threads=False)


class OpenFile:
    """A Parquet file that grows in memory, one row group at a time."""

    def __init__(self, schema: pa.Schema, leaves: tuple[Leaf, ...], compression: str, dictionary: list[str]) -> None:
        self._sink = pa.BufferOutputStream()
        self._footers: list[Any] = []
        self._tally = Tally(leaves)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            version="2.6",
            data_page_version="1.0",
            compression=compression,
            use_dictionary=dictionary,
            write_statistics=_footed(schema),
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
        self._tally.add(rows)
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> tuple[Any, int, str]:
        """The file's bytes (a view: no store needs a copy of them), its rows and its statistics."""
        self._writer.close()
        footer = self._footers[0]
        view = memoryview(self._sink.getvalue()).cast("B")
        return view, footer.num_rows, self._tally.to_json(footer)


@lru_cache(maxsize=1024)
def _footed(schema: pa.Schema) -> list[str]:
    """Columns whose footer carries bounds: all but floats, as readers would miss the NaN outside of them."""
    return [".".join(path) for path, kind in parquet_columns(schema) if not pa.types.is_floating(kind)]


def dictionary_columns(rows: pa.Table) -> list[str]:
    """Columns that repeat their values, by a sample: a dictionary of ids and clocks doubles the cost of a file."""
    least, most = _SAMPLE
    sample = rows.slice(0, min(most, max(least, rows.num_rows // 16)))
    return [".".join(path) for path, kind in parquet_columns(rows.schema) if _repeats(sample, path, kind)]


def _repeats(sample: pa.Table, path: tuple[str, ...], kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return False  # Spark leaves out row groups by their dictionaries, and there takes -0.0 for less than 0.0
    values = column_at(sample, path)
    if values is None:
        return True  # inside a list or a map
    return bool(len(values.unique()) <= _DISTINCT * (len(values) - values.null_count))
