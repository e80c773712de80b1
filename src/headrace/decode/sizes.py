"""Sizes of values: an Arrow column has 32-bit offsets, and a task has limited memory."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CAPACITY = 512 * 1024 * 1024  # bytes of rows in one pass; some Arrow kernels triple a text without a check
_ALL_COLUMNS = 4  # maximum capacity of all columns together, in capacities of one

# Messages of Arrow and DuckDB for a column that is too large. Arrow has a class for it and does not always use it.
_OVERFLOWS = ("overflowed binary array capacity", "offset overflow", "maximum total string size")


class Oversized(Exception):
    """The rows of several records exceed the capacity of one pass: take fewer records at once."""


def is_overflow(error: Exception) -> bool:
    """Whether an error says that a column cannot hold all its bytes."""
    if isinstance(error, Oversized | pa.ArrowCapacityError):
        return True
    return isinstance(error, pa.ArrowInvalid | duckdb.Error) and any(words in str(error) for words in _OVERFLOWS)


def check_capacity(sizes: np.ndarray) -> None:
    """Raise Oversized if several records together exceed the capacity of one pass; `sizes`: bytes of each record."""
    if len(sizes) > 1 and sizes.sum() > CAPACITY:
        raise Oversized(f"{len(sizes)} records make {sizes.sum()} bytes of rows")


def check_rows(rows: pa.Table, owners: np.ndarray) -> None:
    """The same for existing rows; `owners`: the record of each row."""
    large = rows.nbytes > _ALL_COLUMNS * CAPACITY or any(column.nbytes > CAPACITY for column in rows.columns)
    if large and np.ptp(owners) > 0:
        raise Oversized(f"{len(rows)} rows have {rows.nbytes} bytes")


def row_bytes(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Bytes of each value of a column, offset included."""
    if isinstance(column, pa.ChunkedArray):
        return np.concatenate([np.zeros(0, np.int64), *map(row_bytes, column.chunks)])
    kind: Any = column.type
    sizes: np.ndarray
    if pa.types.is_dictionary(kind):
        sizes = row_bytes(column.dictionary)[pc.fill_null(column.indices, 0).to_numpy()]
        return sizes
    if pa.types.is_struct(kind):
        return sum(map(row_bytes, column.flatten()), np.zeros(len(column), np.int64))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        # Cumulative sizes of all elements: the difference between two offsets is the size of a list.
        sums = np.concatenate([[0], np.cumsum(row_bytes(column.values))])
        sizes = np.diff(sums[column.offsets.to_numpy()]) + 4
        return sizes
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64) + 4
        return sizes
    return np.full(len(column), 0 if pa.types.is_null(kind) else -(-kind.bit_width // 8), np.int64)


def plain_array(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without dictionary encoding."""
    if not pa.types.is_dictionary(column.type):
        return column
    return pa.chunked_array([each.dictionary.take(each.indices) for each in column.chunks], column.type.value_type)
