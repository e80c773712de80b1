"""Deletion vectors: which rows of a file are no more, read from the bitmap that a table's writer left beside it.

A vector is a 64-bit Roaring bitmap in its portable form: bitmaps of 32 bits, each of containers of 16 bits that hold
their numbers as a list, as bits, or as runs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import TableDamaged, TableFeature
from headrace.storage import NotThere, Store
from headrace.tables.files import File, Vector

Rows: TypeAlias = npt.NDArray[np.int64]

_MAGIC = 1681511377
_PLAIN, _WITH_RUNS = 12346, 12347  # the cookies of a 32-bit bitmap
_FEW = 4096  # numbers that a container holds as a list; with more they are bits
_BITS = 8192  # bytes of a container of bits
_OFFSETS_FROM = 4  # containers; with fewer a bitmap that has runs says no offsets
_NOTHING: Rows = np.zeros(0, np.int64)


def living(store: Store, file: File, rows: pa.Table) -> pa.Table:
    """The rows of a file, given all that it holds in their order, without those that its vector deletes."""
    if file.vector is None:
        return rows
    keep = np.ones(len(rows), bool)
    keep[deleted(store, file.vector)] = False
    return rows.filter(pa.array(keep))


def deleted(store: Store, vector: Vector | None) -> Rows:
    """The places of the rows that a vector deletes, ascending; TableDamaged where it is gone or spoiled."""
    if vector is None:
        return _NOTHING
    try:
        found = bitmap(_content(store, vector))
    except (NotThere, struct.error, ValueError, IndexError) as error:
        raise _damaged(store, vector, "is gone" if isinstance(error, NotThere) else f"is spoiled: {error}") from error
    if len(found) != vector.rows:
        raise _damaged(store, vector, f"deletes {len(found):,} rows, and its commit says {vector.rows:,}")
    return found


def _damaged(store: Store, vector: Vector, what: str) -> TableDamaged:
    return TableDamaged(
        f"{store.uri}: the deletion vector {vector.path or 'in its log'} {what}.",
        next="`headrace table repair PATH --dry-run` tells which files have lost theirs.",
    )


def _content(store: Store, vector: Vector) -> bytes:
    """The bitmap's bytes: out of the log, or out of a file, where its size comes first and its sum last."""
    if vector.kind == "i":
        return vector.inline
    if vector.path is None:
        raise TableFeature(
            f"{store.uri}: a deletion vector lies outside of the table, at {vector.where}.", next="Read it with Spark."
        )
    data, at = store.get(vector.path), vector.offset or 0
    (size,) = struct.unpack_from(">i", data, at)
    content = data[at + 4 : at + 4 + size]
    (told,) = struct.unpack_from(">I", data, at + 4 + size)
    if zlib.crc32(content) != told:
        raise ValueError("its sum is another")
    return content


def bitmap(data: bytes) -> Rows:
    """The numbers of a 64-bit bitmap."""
    magic, count = struct.unpack_from("<iq", data)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic}")
    at, parts = 12, []
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, at)
        low, at = _of_32_bits(data, at + 4)
        parts.append((np.int64(high) << np.int64(32)) + low)
    return np.concatenate(parts) if parts else _NOTHING


def _of_32_bits(data: bytes, at: int) -> tuple[Rows, int]:
    """The numbers of a bitmap that begins here, and where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    runs = b""
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = data[at : at + (count + 7) // 8]
        at += len(runs)
    elif cookie == _PLAIN:
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
    else:
        raise ValueError(f"a bitmap in it begins with {cookie}")
    heads = list(struct.iter_unpack("<HH", data[at : at + 4 * count]))
    at += 4 * count + (4 * count if not runs or count >= _OFFSETS_FROM else 0)
    parts = []
    for number, (high, size) in enumerate(heads):
        is_runs = bool(runs) and runs[number // 8] >> number % 8 & 1
        low, at = _runs(data, at) if is_runs else _plain(data, at, size + 1)
        parts.append((np.int64(high) << np.int64(16)) + low)
    return (np.concatenate(parts) if parts else _NOTHING), at


def _plain(data: bytes, at: int, size: int) -> tuple[Rows, int]:
    if size <= _FEW:
        return np.frombuffer(data, "<u2", size, at).astype(np.int64), at + 2 * size
    bits = np.unpackbits(np.frombuffer(data, np.uint8, _BITS, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), at + _BITS


def _runs(data: bytes, at: int) -> tuple[Rows, int]:
    (count,) = struct.unpack_from("<H", data, at)
    pairs = np.frombuffer(data, "<u2", 2 * count, at + 2).astype(np.int64).reshape(count, 2)
    return np.concatenate([*_spans(pairs), _NOTHING]), at + 2 + 4 * count


def _spans(pairs: Rows) -> Iterator[Rows]:
    return (np.arange(first, first + more + 1) for first, more in pairs.tolist())
