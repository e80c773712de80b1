"""Deletion vectors: bitmaps beside a data file that say which of its rows are deleted.

The bitmap is a number and a 64-bit Roaring bitmap in the portable format, which `pyroaring` reads and validates.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from headrace.delta.actions import DeletionVector, File
from headrace.errors import TableDamaged, TableFeature
from headrace.storage.base import NotThere
from headrace.storage.store import Store

Rows: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_MAGIC, _HEAD = 1681511377, 4  # of the portable format, and its size in bytes
_THREADS = 8  # vectors that are read in parallel


def living(store: Store, file: File, rows: pa.Table) -> pa.Table:
    """The rows of a file that are not deleted; `rows` are all rows of the file, in order."""
    return rows if file.vector is None else rows.filter(pa.array(not_deleted(store, file.vector, len(rows))))


def not_deleted(store: Store, vector: DeletionVector | None, count: int) -> Mask:
    """Which of the `count` rows of a file a vector keeps; TableDamaged if the vector is missing or invalid."""
    mask = np.ones(count, bool)
    if vector is not None:
        rows = deleted(store, vector)
        if len(rows) and rows[-1] >= count:
            raise _damaged(store, vector, f"deletes row {rows[-1]:,} of a file of {count:,} rows")
        mask[rows] = False
    return mask


def check_vectors(store: Store, files: Iterable[File]) -> None:
    """TableDamaged if a vector is invalid, or deletes rows that its file does not have.

    delta-rs ignores such rows, panics or runs out of memory: its mask is as long as the largest row number. Missing
    vectors and those outside of the table are left to it.
    """

    def check(file: File) -> None:
        vector = file.vector
        if vector is None or file.held is None or (vector.kind != "i" and vector.path is None):
            return
        try:
            not_deleted(store, vector, file.held)
        except TableDamaged as error:
            if not isinstance(error.__cause__, NotThere):
                raise

    vectored = [file for file in files if file.vector is not None]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-vectors") as pool:
        list(pool.map(check, vectored))


def deleted(store: Store, vector: DeletionVector) -> Rows:
    """The numbers of the rows that a vector deletes, ascending; TableDamaged if it is missing or invalid."""
    try:
        rows = bitmap(_content(store, vector))
    except NotThere as error:
        raise _damaged(store, vector, "is missing") from error
    except (struct.error, ValueError, IndexError) as error:
        raise _damaged(store, vector, f"is corrupt: {error}") from error
    if len(rows) != vector.rows:
        raise _damaged(store, vector, f"deletes {len(rows):,} rows, but its commit says {vector.rows:,}")
    return rows


def _damaged(store: Store, vector: DeletionVector, what: str) -> TableDamaged:
    return TableDamaged(
        f"{store.uri}: the deletion vector {vector.path or 'in its log'} {what}.",
        hint="`headrace table repair PATH --dry-run` lists the files whose deletion vector is missing.",
    )


def _content(store: Store, vector: DeletionVector) -> bytes:
    """The bytes of the bitmap, from the log or from a file, where its size precedes it and its checksum follows."""
    if vector.kind == "i":
        return vector.inline
    if vector.path is None:
        raise TableFeature(
            f"{store.uri}: a deletion vector is stored outside of the table, at {vector.where}.",
            hint="Read it with Spark.",
        )
    data, at = store.get(vector.path), vector.offset or 0
    (size,) = struct.unpack_from(">i", data, at)
    content = data[at + 4 : at + 4 + size]
    (checksum,) = struct.unpack_from(">I", data, at + 4 + size)
    if zlib.crc32(content) != checksum:
        raise ValueError("its checksum does not match")
    return content


def bitmap(data: bytes) -> Rows:
    """The row numbers of a bitmap; ValueError or IndexError if it is invalid."""
    (magic,) = struct.unpack_from("<i", data)
    if magic != _MAGIC:
        raise ValueError(f"it starts with the number {magic}, not with {_MAGIC}")
    return np.frombuffer(BitMap64.deserialize(data[_HEAD:]).to_array(), np.uint64)
