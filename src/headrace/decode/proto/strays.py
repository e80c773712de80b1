"""Fields that the schema does not name, kept as bytes that make up a message of their own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.decode.proto.columns import Reader, Stray
from headrace.decode.proto.wire import END_GROUP, FIXED64, GROUP, LENGTH, VARINT

UNKNOWN = "_unknown"


def kept_bytes(reader: Reader) -> pa.BinaryArray:
    """Per record its unknown fields in their order, those below in the fields they were in; NULL where there are none.

    Merged with what the columns hold, they give the message that was sent.
    """
    pieces: dict[int, list[tuple[int, bytes]]] = {}
    for stray in reader.strays:
        rows = stray.place.rows[stray.found.owners].tolist()
        for row, at, word in zip(rows, stray.found.at.tolist(), stray.found.words.tolist(), strict=True):
            pieces.setdefault(row, []).append((at, _piece(reader, stray, at, word)))
    joined = np.full(reader.count, None, object)
    for row, theirs in pieces.items():
        joined[row] = b"".join(piece for _, piece in sorted(theirs))
    return pa.array(joined, pa.binary())


def _piece(reader: Reader, stray: Stray, at: int, word: int) -> bytes:
    kind = stray.tag & 7
    content = reader.content.bytes
    if kind == VARINT:
        body = _varint(word)
    elif kind in (LENGTH, GROUP):
        body = (_varint(word) if kind == LENGTH else b"") + content[at : at + word].tobytes()
    else:
        body = content[at : at + (8 if kind == FIXED64 else 4)].tobytes()
    piece = _varint(stray.tag) + body
    if kind == GROUP:
        piece += _varint(stray.tag - GROUP + END_GROUP)
    for number in reversed(stray.place.path):
        piece = _varint(number << 3 | LENGTH) + _varint(len(piece)) + piece
    return piece


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
