"""Unknown fields as the bytes of a message."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.decode.protobuf.columns import ProtobufColumns, UnknownField
from headrace.decode.protobuf.wire import END_GROUP, FIXED64, GROUP, LENGTH, VARINT


def kept_bytes(reader: ProtobufColumns) -> pa.BinaryArray:
    """The unknown fields of each record in their order, nested ones inside their parent fields; NULL if there are none.

    Merged with the values of the columns, they are the message that was sent.
    """
    pieces: dict[int, list[tuple[int, bytes]]] = {}
    for unknown in reader.unknown_fields:
        rows = unknown.scope.rows[unknown.occurrences.owners].tolist()
        for row, at, word in zip(
            rows, unknown.occurrences.at.tolist(), unknown.occurrences.words.tolist(), strict=True
        ):
            pieces.setdefault(row, []).append((at, _piece(reader, unknown, at, word)))
    joined = np.full(reader.count, None, object)
    for row, row_pieces in pieces.items():
        joined[row] = b"".join(piece for _, piece in sorted(row_pieces))
    return pa.array(joined, pa.binary())


def _piece(reader: ProtobufColumns, unknown: UnknownField, at: int, word: int) -> bytes:
    kind = unknown.tag & 7
    content = reader.content.bytes
    if kind == VARINT:
        body = _varint(word)
    elif kind in (LENGTH, GROUP):
        body = (_varint(word) if kind == LENGTH else b"") + content[at : at + word].tobytes()
    else:
        body = content[at : at + (8 if kind == FIXED64 else 4)].tobytes()
    piece = _varint(unknown.tag) + body
    if kind == GROUP:
        piece += _varint(unknown.tag - GROUP + END_GROUP)
    for number in reversed(unknown.scope.path):
        piece = _varint(number << 3 | LENGTH) + _varint(len(piece)) + piece
    return piece


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
