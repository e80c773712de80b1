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
    frames = framed(values, at, rejects)
    return Framed(_without_frames(TextBytes(frames.payloads)), frames.ids, frames.at)


def framed(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> Framed:
    """The values with a valid frame, still in it: a reader that starts at the sixth byte saves a copy."""
    texts = TextBytes(values)
    long, marked = _framed(texts)
    for row in np.flatnonzero(~long).tolist():
        size = texts.starts[row + 1] - texts.starts[row]
        rejects.add(
            int(at[row]), Reason.FRAMING, f"value has {size} bytes; expected a magic byte and a 4-byte schema id"
        )
    for row in np.flatnonzero(long & ~marked).tolist():
        first = texts.content[texts.starts[row]]
        rejects.add(int(at[row]), Reason.FRAMING, f"expected magic byte 0, saw {first}")
    if not (long & marked).all():
        valid = long & marked
        values, at = values.filter(pa.array(valid)), at[valid]
        texts = TextBytes(values)
    return Framed(values, _ids(texts, texts.starts[:-1].astype(np.int64)), at)


def schema_ids(values: pa.BinaryArray, framing: Framing) -> pa.Int64Array:
    """The schema id of each value, NULL if it has none."""
    if framing == "none":
        return pa.nulls(len(values), pa.int64())
    texts = TextBytes(values.fill_null(b""))
    has_id, ids = _headed(texts) if framing == "bare" else _in_frames(texts)
    whole = np.zeros(len(values), np.int64)
    whole[has_id] = ids
    return pa.array(whole, mask=~has_id)


def _in_frames(texts: TextBytes) -> tuple[Mask, Numbers]:
    """Which values have a frame, and their ids."""
    long, marked = _framed(texts)
    has_id = long & marked
    return has_id, _ids(texts, texts.starts[:-1].astype(np.int64)[has_id])


def _headed(texts: TextBytes) -> tuple[Mask, Numbers]:
    """Which values are long enough for a bare id, and their ids: four bytes, big-endian, unsigned."""
    has_id = np.diff(texts.starts) >= BARE
    heads = texts.content[texts.starts[:-1].astype(np.int64)[has_id][:, None] + np.arange(BARE)]
    return has_id, np.ascontiguousarray(heads).view(">u4").reshape(-1).astype(np.int64)


def _framed(texts: TextBytes) -> tuple[Mask, Mask]:
    """Which values are long enough for a frame, and which start like one."""
    sizes = np.diff(texts.starts)
    filled = sizes > 0
    marked = np.zeros(len(sizes), bool)
    marked[filled] = texts.content[texts.starts[:-1][filled]] == 0
    return sizes >= HEAD, marked


def _ids(texts: TextBytes, starts: Numbers) -> Numbers:
    heads = texts.content[starts[:, None] + np.arange(1, HEAD)]
    ids: Numbers = np.ascontiguousarray(heads).view(">i4").reshape(-1).astype(np.int64)
    return ids


def _without_frames(texts: TextBytes) -> pa.BinaryArray:
    """Every value without its frame."""
    count = len(texts.starts) - 1
    keep = np.ones(len(texts.content), bool)
    keep[(texts.starts[:-1].astype(np.int64)[:, None] + np.arange(HEAD)).reshape(-1)] = False
    starts = (texts.starts - HEAD * np.arange(count + 1)).astype(np.int32)
    content = np.ascontiguousarray(texts.content[keep])
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(starts), pa.py_buffer(content)])
