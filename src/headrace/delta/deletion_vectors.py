"""Deletion vectors: bitmaps of the deleted rows of a data file.

A vector in a file, at `offset` 1 with `sizeInBytes` 36, for the deleted rows 2 and 5:

    offset  bytes         content
    0       01            version of the file format
    1       00 00 00 24   size of the bitmap, big-endian: 36
    5       d1 d3 39 64   magic number 1681511377, little-endian: portable format
    9       ...           a 64-bit Roaring bitmap: {2, 5}; `pyroaring` reads and validates it
    41      ...           CRC-32 of the bitmap, magic number included, big-endian

An inline vector in the log is the bitmap alone, from the magic number on, in Z85.
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
from headrace.storage.base import NotFound
from headrace.storage.store import Store

Rows: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_MAGIC, _MAGIC_BYTES = 1681511377, 4
_THREADS = 8  # vectors that are read in parallel


def without_deleted(store: Store, file: File, rows: pa.Table) -> pa.Table:
    """The rows of a file that are not deleted; `rows` are all rows of the file, in order."""
    return rows if file.vector is None else rows.filter(pa.array(kept_mask(store, file.vector, len(rows))))


def kept_mask(store: Store, vector: DeletionVector | None, count: int) -> Mask:
    """A mask of the rows that a vector does not delete, of `count` rows; TableDamaged if it is missing or invalid."""
    mask = np.ones(count, bool)
    if vector is not None:
        rows = deleted_rows(store, vector)
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
        if vector is None or file.num_records is None or (vector.kind != "i" and vector.path is None):
            return
        try:
            kept_mask(store, vector, file.num_records)
        except TableDamaged as error:
            if not isinstance(error.__cause__, NotFound):
                raise

    vectored = [file for file in files if file.vector is not None]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-vectors") as pool:
        list(pool.map(check, vectored))


def deleted_rows(store: Store, vector: DeletionVector) -> Rows:
    """The numbers of the rows that a vector deletes, ascending; TableDamaged if it is missing or invalid."""
    try:
        rows = bitmap(_content(store, vector))
    except NotFound as error:
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
    return np.frombuffer(BitMap64.deserialize(data[_MAGIC_BYTES:]).to_array(), np.uint64)
