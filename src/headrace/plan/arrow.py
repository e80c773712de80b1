"""Helpers for Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.schema import RECORD_SCHEMA

_LARGE = ("key", "value", "headers")  # columns of a record


def as_records(records: pa.Table | pa.RecordBatch) -> pa.Table:
    """Table with exactly the columns of a record."""
    table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
    return table if table.schema == RECORD_SCHEMA else table.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)


def values_of(records: pa.Table) -> pa.BinaryArray:
    """Record values as one array."""
    return _whole(records.column("value"))


def _whole(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks or [pa.array([], values.type)])


def take(table: pa.Table, index: Any) -> pa.Table:
    """Rows at ascending positions; the table itself if these are all."""
    if index is None or len(index) == len(table):
        return table
    return table.take(index if isinstance(index, pa.Array) else pa.array(index, pa.int64()))


def piece(table: pa.Table, start: int, count: int) -> pa.Table:
    """Slice of a table; the table itself if these are all rows."""
    return table if count == len(table) else table.slice(start, count)


def shared_records(records: pa.Table, index: pa.Int64Array) -> pa.Table:
    """Record of each row; key, value and headers are dictionary-encoded, because rows share their record."""
    columns = [
        pa.DictionaryArray.from_arrays(index, _whole(records[name])) if name in _LARGE else records[name].take(index)
        for name in records.column_names
    ]
    return pa.table(columns, records.column_names)


def remaining_positions(length: int, removed: np.ndarray) -> pa.Int64Array | None:
    """Remaining positions; None if these are all."""
    return pa.array(np.delete(np.arange(length), removed), pa.int64()) if len(removed) else None


def fill_columns(rows: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    """Fill the NULLs of a column."""
    at = rows.schema.get_field_index(name)
    item = rows.schema.field(at)
    return rows.set_column(at, item, pc.coalesce(rows[name], values.cast(item.type)))


def append_null_columns(rows: pa.Table, names: Iterable[str], count: int) -> pa.Table:
    """Append columns of type null."""
    fields = [pa.field(name, pa.null()) for name in names]
    nulls = [pa.nulls(count)] * len(fields)
    return pa.Table.from_arrays([*rows.columns, *nulls], schema=pa.schema([*rows.schema, *fields]))


def insert_null_rows(rows: pa.Table, index: np.ndarray, at: list[int]) -> tuple[pa.Table, np.ndarray]:
    """Insert rows of NULLs at positions; returns the rows with their positions, in order."""
    empty = pa.table([pa.nulls(len(at), item.type) for item in rows.schema], schema=rows.schema)
    positions = np.concatenate([index, np.array(at, np.int64)])
    order = np.argsort(positions, kind="stable")
    combined = pa.concat_tables([rows, empty])
    return combined.take(pa.array(order)) if combined.column_names else combined, positions[order]


def spans(owner: np.ndarray) -> list[tuple[int, tuple[int, int]]]:
    """Start and length of each run of equal values: [5, 5, 7] gives (5, (0, 2)) and (7, (2, 1))."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    counts = np.diff(starts, append=len(owner))
    return [(int(owner[start]), (int(start), int(count))) for start, count in zip(starts, counts, strict=True)]
