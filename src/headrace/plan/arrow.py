"""Small things done to Arrow tables, over and over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.schema import RECORD_SCHEMA

_LARGE = ("key", "value", "headers")  # of an envelope


def as_envelopes(given: pa.Table | pa.RecordBatch) -> pa.Table:
    """Exactly the columns of an envelope."""
    table = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
    return table if table.schema == RECORD_SCHEMA else table.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)


def values_of(envelopes: pa.Table) -> pa.BinaryArray:
    """The values as one array."""
    return _whole(envelopes.column("value"))


def _whole(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks or [pa.array([], values.type)])


def take(table: pa.Table, index: Any) -> pa.Table:
    """The rows at `index`; the table itself when that is all of them (positions are ascending)."""
    if index is None or len(index) == len(table):
        return table
    return table.take(index if isinstance(index, pa.Array) else pa.array(index, pa.int64()))


def lent(envelopes: pa.Table, index: pa.Int64Array) -> pa.Table:
    """The envelope of each row, where a record may have many: its key, value and headers are there but once."""
    columns = [
        pa.DictionaryArray.from_arrays(index, _whole(envelopes[name]))
        if name in _LARGE
        else envelopes[name].take(index)
        for name in envelopes.column_names
    ]
    return pa.table(columns, envelopes.column_names)


def without(length: int, gone: list[int]) -> pa.Int64Array | None:
    """The positions that are left; None where all are."""
    return pa.array(np.delete(np.arange(length), gone), pa.int64()) if gone else None


def fill_columns(rows: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    """Rows whose NULLs of one column are filled."""
    at = rows.schema.get_field_index(name)
    item = rows.schema.field(at)
    return rows.set_column(at, item, pc.coalesce(rows[name], values.cast(item.type)))


def with_nulls(rows: pa.Table, names: Iterable[str], count: int) -> pa.Table:
    """Rows with more columns, of no type and no value."""
    fields = [pa.field(name, pa.null()) for name in names]
    nulls = [pa.nulls(count)] * len(fields)
    return pa.Table.from_arrays([*rows.columns, *nulls], schema=pa.schema([*rows.schema, *fields]))


def with_blanks(rows: pa.Table, index: np.ndarray, at: list[int]) -> tuple[pa.Table, np.ndarray]:
    """Rows and their positions with a row of NULLs at each of some more, in the order of the positions."""
    empty = pa.table([pa.nulls(len(at), item.type) for item in rows.schema], schema=rows.schema)
    whole = np.concatenate([index, np.array(at, np.int64)])
    order = np.argsort(whole, kind="stable")
    made = pa.concat_tables([rows, empty])
    return made.take(pa.array(order)) if made.column_names else made, whole[order]


def spans(owner: np.ndarray) -> list[tuple[int, tuple[int, int]]]:
    """Start and length of each owner's stretch, where all that is one's lies together."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    counts = np.diff(starts, append=len(owner))
    return [(int(owner[start]), (int(start), int(count))) for start, count in zip(starts, counts, strict=True)]
