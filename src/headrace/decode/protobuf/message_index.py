"""Message indexes of Confluent's wire format: the position of the message type in the schema's file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.decode.byte_scan import Numbers, TextBytes
from headrace.decode.protobuf.wire import Malformed, varint
from headrace.decode.registry.framing import HEAD

_NESTED = 64  # nested messages
_SINGLE = 64  # indexes of top-level messages that fit one byte


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index path of each value as a code (-1 if invalid), the bytes in front of its message, and the paths."""

    codes: Numbers
    heads: Numbers
    paths: list[tuple[int, ...]]  # by code

    @property
    def span(self) -> int:
        """The number of codes."""
        return len(self.paths)


def indexed(values: pa.BinaryArray) -> Indexed:
    """Read the message index of each value: a count and that many indexes, all zigzag varints; a single 0 means [0].

    02 02 is one index, 1: the second message of the file. 04 02 00 are two: the first message nested in it.
    """
    source = TextBytes(values)
    begins = source.starts[:-1].astype(np.int64) + HEAD
    sizes = source.starts[1:] - begins
    padded = np.concatenate([source.content, np.zeros(16, np.uint8)])
    first, second = padded[begins], padded[begins + 1]
    short = (first == 0) & (sizes > 0)
    one = (first == 2) & (sizes > 1) & (second < 2 * _SINGLE) & (second % 2 == 0)
    codes = np.where(short, 0, np.where(one, second >> 1, -1)).astype(np.int64)
    heads = np.where(short, HEAD + 1, HEAD + 2)
    paths: list[tuple[int, ...]] = [(index,) for index in range(_SINGLE)]
    codes_by_path = {path: code for code, path in enumerate(paths)}
    for row in np.flatnonzero(~short & ~one).tolist():
        try:
            path, behind = _path(padded.data, int(begins[row]), int(source.starts[row + 1]))
        except Malformed:
            continue
        if path not in codes_by_path:
            codes_by_path[path] = len(paths)
            paths.append(path)
        codes[row], heads[row] = codes_by_path[path], behind - source.starts[row]
    return Indexed(codes, heads, paths)


def _path(content: memoryview, at: int, end: int) -> tuple[tuple[int, ...], int]:
    if at >= end:
        raise Malformed("invalid message index")
    count, at = _zigzag(content, at)
    if not 0 <= count <= _NESTED:
        raise Malformed("invalid message index")
    path = []
    for _ in range(count):
        index, at = _zigzag(content, at)
        path.append(index)
        if at > end or not 0 <= index < 1 << 31:
            raise Malformed("invalid message index")
    return tuple(path) or (0,), at


def _zigzag(content: memoryview, at: int) -> tuple[int, int]:
    value, at = varint(content, at, 0)
    return (value >> 1) ^ -(value & 1), at
