"""The message index that Confluent's frame has for Protobuf: which message of the schema's file follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.decode.framing import HEAD
from headrace.decode.proto.wire import Malformed, varint
from headrace.decode.scan import Bytes, Numbers

_NESTED = 64  # messages in messages
_SINGLE = 64  # indexes that one byte says


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index of each framed value as a code (none: -1), how many bytes stand before its message, and the codes."""

    codes: Numbers
    heads: Numbers
    paths: list[tuple[int, ...]]  # by code

    @property
    def span(self) -> int:
        """How many codes there are."""
        return len(self.paths)


def indexed(values: pa.BinaryArray) -> Indexed:
    """Read the index behind each frame: zigzag varints, how many and which; a single 0 stands for the first message."""
    seen = Bytes(values)
    begins = seen.starts[:-1].astype(np.int64) + HEAD
    sizes = seen.starts[1:] - begins
    padded = np.concatenate([seen.content, np.zeros(16, np.uint8)])
    first, second = padded[begins], padded[begins + 1]
    short = (first == 0) & (sizes > 0)
    one = (first == 2) & (sizes > 1) & (second < 2 * _SINGLE) & (second % 2 == 0)
    codes = np.where(short, 0, np.where(one, second >> 1, -1)).astype(np.int64)
    heads = np.where(short, HEAD + 1, HEAD + 2)
    paths: list[tuple[int, ...]] = [(index,) for index in range(_SINGLE)]
    known = {path: code for code, path in enumerate(paths)}
    for row in np.flatnonzero(~short & ~one).tolist():
        try:
            path, behind = _path(padded.data, int(begins[row]), int(seen.starts[row + 1]))
        except Malformed:
            continue
        if path not in known:
            known[path] = len(paths)
            paths.append(path)
        codes[row], heads[row] = known[path], behind - seen.starts[row]
    return Indexed(codes, heads, paths)


def _path(content: memoryview, at: int, end: int) -> tuple[tuple[int, ...], int]:
    if at >= end:
        raise Malformed("no index")
    count, at = _zigzag(content, at)
    if not 0 <= count <= _NESTED:
        raise Malformed("no index")
    path = []
    for _ in range(count):
        index, at = _zigzag(content, at)
        path.append(index)
        if at > end or not 0 <= index < 1 << 31:
            raise Malformed("no index")
    return tuple(path) or (0,), at


def _zigzag(content: memoryview, at: int) -> tuple[int, int]:
    value, at = varint(content, at, 0)
    return (value >> 1) ^ -(value & 1), at
