"""Rows in PostgreSQL's binary COPY format, built by columns.

A row is the number of its fields, then for each field its length and its value, all big-endian. A field is therefore
bytes that depend on its column only, and a row is their concatenation, which Arrow does for all rows at once:

    00 02 | 00 00 00 04  00 00 00 07 | FF FF FF FF      two fields: the integer 7, and NULL
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.hot_store.columns import HotColumn
from headrace.hot_store.json_text import json_texts

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_MAX_BYTES = 8 << 20  # of a part that is sent at once, about
_NULL = pa.scalar(b"\xff\xff\xff\xff", pa.large_binary())
_EMPTY = pa.scalar(b"", pa.large_binary())
_MICROSECONDS, _DAYS = 946_684_800_000_000, 10_957  # from 1970 to 2000, the epoch of PostgreSQL
_DTYPES = {"boolean": "u1", "smallint": ">i2", "integer": ">i4", "bigint": ">i8", "real": ">f4"} | {
    "double precision": ">f8",
    "date": ">i4",
    "timestamp with time zone": ">i8",
    "timestamp without time zone": ">i8",
}


def copy_parts(columns: Sequence[HotColumn], rows: pa.Table) -> Iterator[pa.Buffer]:
    """The rows in the format, in parts, without header and trailer; `rows` has the columns in the same order."""
    size = max(1, int(len(rows) * _MAX_BYTES / max(rows.nbytes, 1)))
    for batch in rows.to_batches(max_chunksize=size):
        yield _encoded(columns, batch)


def _encoded(columns: Sequence[HotColumn], batch: pa.RecordBatch) -> pa.Buffer:
    count = pa.scalar(len(columns).to_bytes(2, "big"), pa.large_binary())
    fields = [part for column, values in zip(columns, batch.columns, strict=True) for part in _field(column, values)]
    joined = pc.binary_join_element_wise(count, *fields, _EMPTY)
    offsets = np.frombuffer(joined.buffers()[1], np.int64, len(batch) + 1, joined.offset * 8)
    return joined.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _field(column: HotColumn, values: pa.Array) -> list[pa.Array]:
    """Lengths and values of a column."""
    if dtype := _DTYPES.get(column.staged):
        pairs = _fixed(values, np.dtype(dtype))
        return [pc.if_else(values.is_valid(), pairs, _NULL) if values.null_count else pairs]
    texts = values if pa.types.is_binary(values.type) else _texts(values)
    content = texts.cast(pa.binary()).cast(pa.large_binary())
    lengths = pc.fill_null(pc.binary_length(content).cast(pa.int32()), -1)
    prefixes = _as_binary(np.ascontiguousarray(lengths.to_numpy(zero_copy_only=False).astype(">i4")).view("V4"))
    return [prefixes, pc.fill_null(content, _EMPTY)]


def _texts(values: pa.Array) -> pa.Array:
    return json_texts(values) if pa.types.is_nested(values.type) else values.cast(pa.string())


def _fixed(values: pa.Array, dtype: np.dtype) -> pa.Array:
    """Length and value of a field whose values all have one length."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        shift, number = (_DAYS, pa.int32()) if pa.types.is_date(kind) else (_MICROSECONDS, pa.int64())
        values = pc.subtract(pc.fill_null(values.cast(number), shift), pa.scalar(shift, number))
    elif values.null_count:
        values = pc.fill_null(values, False if pa.types.is_boolean(kind) else pa.scalar(0, kind))
    pairs = np.empty(len(values), np.dtype([("length", ">i4"), ("value", dtype)]))
    pairs["length"] = dtype.itemsize
    pairs["value"] = values.to_numpy(zero_copy_only=False)
    return _as_binary(pairs)


def _as_binary(items: np.ndarray) -> pa.Array:
    width = items.dtype.itemsize
    buffer = pa.py_buffer(items.tobytes())
    fixed = pa.Array.from_buffers(pa.binary(width), len(items), [None, buffer])
    return fixed.cast(pa.binary()).cast(pa.large_binary())
