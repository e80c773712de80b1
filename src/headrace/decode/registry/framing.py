"""Confluent's wire format: a zero byte, the schema id in four bytes (big-endian), then the payload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.decode.base import Rejects
from headrace.decode.byte_scan import Mask, Numbers, TextBytes
from headrace.reasons import Reason
from headrace.spec.decode import Framing

HEAD = 5  # bytes of the frame
BARE = 4  # bytes of an id without a frame


@dataclass(frozen=True, slots=True)
class Framed:
    """Values without their frames: payload, schema id and position of each, columns of equal length."""

    payloads: pa.BinaryArray
    ids: Numbers
    at: Numbers


def unframed(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> Framed:
    """Remove the frames; `at` has the positions of the values; values without a valid frame are rejected."""
    kept = framed(values, at, rejects)
    return Framed(_without_frames(TextBytes(kept.payloads)), kept.ids, kept.at)


def framed(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> Framed:
    """The values with a valid frame, still in it: a reader that starts at the sixth byte saves a copy."""
    seen = TextBytes(values)
    long, marked = _framed(seen)
    for row in np.flatnonzero(~long).tolist():
        size = seen.starts[row + 1] - seen.starts[row]
        rejects.add(int(at[row]), Reason.FRAMING, f"a frame has {HEAD} bytes, saw {size}")
    for row in np.flatnonzero(long & ~marked).tolist():
        size = seen.content[seen.starts[row]]
        rejects.add(int(at[row]), Reason.FRAMING, f"a frame begins with byte 0, saw {size}")
    if not (long & marked).all():
        kept = long & marked
        values, at = values.filter(pa.array(kept)), at[kept]
        seen = TextBytes(values)
    return Framed(values, _ids(seen, seen.starts[:-1].astype(np.int64)), at)


def schema_ids(values: pa.BinaryArray, framing: Framing) -> pa.Int64Array:
    """The schema id of each value, NULL if it has none."""
    if framing == "none":
        return pa.nulls(len(values), pa.int64())
    seen = TextBytes(values.fill_null(b""))
    there, ids = _headed(seen) if framing == "bare" else _in_frames(seen)
    whole = np.zeros(len(values), np.int64)
    whole[there] = ids
    return pa.array(whole, mask=~there)


def _in_frames(seen: TextBytes) -> tuple[Mask, Numbers]:
    """Which values have a frame, and their ids."""
    long, marked = _framed(seen)
    there = long & marked
    return there, _ids(seen, seen.starts[:-1].astype(np.int64)[there])


def _headed(seen: TextBytes) -> tuple[Mask, Numbers]:
    """Which values are long enough for a bare id, and their ids: four bytes, big-endian, unsigned."""
    there = np.diff(seen.starts) >= BARE
    heads = seen.content[seen.starts[:-1].astype(np.int64)[there][:, None] + np.arange(BARE)]
    return there, np.ascontiguousarray(heads).view(">u4").reshape(-1).astype(np.int64)


def _framed(seen: TextBytes) -> tuple[Mask, Mask]:
    """Which values are long enough for a frame, and which start like one."""
    sizes = np.diff(seen.starts)
    filled = sizes > 0
    marked = np.zeros(len(sizes), bool)
    marked[filled] = seen.content[seen.starts[:-1][filled]] == 0
    return sizes >= HEAD, marked


def _ids(seen: TextBytes, starts: Numbers) -> Numbers:
    heads = seen.content[starts[:, None] + np.arange(1, HEAD)]
    ids: Numbers = np.ascontiguousarray(heads).view(">i4").reshape(-1).astype(np.int64)
    return ids


def _without_frames(seen: TextBytes) -> pa.BinaryArray:
    """Every value without its frame."""
    count = len(seen.starts) - 1
    keep = np.ones(len(seen.content), bool)
    keep[(seen.starts[:-1].astype(np.int64)[:, None] + np.arange(HEAD)).reshape(-1)] = False
    starts = (seen.starts - HEAD * np.arange(count + 1)).astype(np.int32)
    content = np.ascontiguousarray(seen.content[keep])
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(starts), pa.py_buffer(content)])
