"""Protobuf for the contract suite: bare messages by a file, framed ones by a registry."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
from google.protobuf import message_factory

from headrace.decode.protobuf.schema_files import in_file
from headrace.reasons import Reason
from services.schemas import registered, registry_url

from . import Case, Poison

FILE = Path(__file__).parent / "shop.proto"
ORDER = message_factory.GetMessageClass(in_file(str(FILE), 64).pool.FindMessageTypeByName("shop.Order"))
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float32()),
        pa.field("state", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("inner", pa.struct([pa.field("n", pa.int16()), pa.field("inmost", pa.struct([("m", pa.int32())]))])),
        pa.field("numbers", pa.list_(pa.field("element", pa.int32()))),
        pa.field("small", pa.int64()),
        pa.field("raw", pa.binary()),
        pa.field("counts", pa.map_(pa.string(), pa.int32())),
        pa.field("box", pa.struct([pa.field("size", pa.int32())])),
        pa.field("card", pa.string()),
        pa.field("cents", pa.int64()),
    ]
)


def good(number: int) -> bytes:
    order = ORDER(id=number, check=7)
    if number % 2:
        order.name, order.amount, order.state = f"é{number}", number / 4, 1
        order.at.seconds = 1_700_000_000 + number
        order.card = "c"
    if number % 3:
        order.tags.extend(["a"] * (number % 4))
        order.numbers.extend([number, -number, 0])
        order.counts[f"k{number % 5}"] = -number
        order.inner.inmost.m = number % 100
        order.raw = b"\x80\xff"
    if number % 7 == 0:
        order.box.size = number
    return order.SerializeToString()


CHECK = b"\x78\x07"
ID = b"\x08\x01"


def order(piece: bytes) -> bytes:
    """A message with a piece between the fields it needs."""
    return ID + piece + CHECK


def inside(number: int, piece: bytes) -> bytes:
    return bytes([number << 3 | 2, len(piece)]) + piece


BAD: Poison = [
    (order(b"\x07"), Reason.MALFORMED),  # field 0
    (order(b"\x0e"), Reason.MALFORMED),  # no such wire type
    (order(b"\x0f\x01"), Reason.MALFORMED),
    (order(b"\x80\x80\x80\x80\x80\x01\x00"), Reason.MALFORMED),  # too long a tag
    (order(b"\x08" + b"\xff" * 10 + b"\x01"), Reason.MALFORMED),  # eleven bytes
    (order(b"\x08" + b"\xff" * 9 + b"\x02"), Reason.MALFORMED),  # 65 bits
    (order(b"\x12\x05ab"), Reason.MALFORMED),
    (order(b"\x12" + b"\xff" * 9 + b"\x01"), Reason.MALFORMED),  # longer than everything
    (order(b"\x12\xff\xff\xff\xff\x0f"), Reason.MALFORMED),
    (order(b"\x10\x05"), Reason.MALFORMED),  # a number for a text
    (order(b"\x0a\x01\x05"), Reason.MALFORMED),  # a length for a number
    (order(b"\x09" + b"\0" * 8), Reason.MALFORMED),
    (order(b"\x1d" + b"\0" * 4), Reason.MALFORMED),  # four bytes for a double
    (order(b"\x38\x05"), Reason.MALFORMED),  # a number for a message
    (order(b"\x60\x05"), Reason.MALFORMED),  # a number for a group
    (order(inside(12, b"\x08\x01")), Reason.MALFORMED),  # a length for a group
    (order(b"\x63\x08\x01"), Reason.MALFORMED),  # a group without end
    (order(b"\x63\x08\x01\x6c"), Reason.MALFORMED),  # another's end
    (order(b"\x64"), Reason.MALFORMED),  # an end without a group
    (order(inside(7, b"\x08")), Reason.MALFORMED),
    (order(inside(7, b"\x0a\x01x")), Reason.MALFORMED),
    (order(inside(7, inside(2, b"\x0a\x00"))), Reason.MALFORMED),
    (order(inside(8, b"\x80")), Reason.MALFORMED),  # packed, and open at its end
    (order(inside(8, b"\xff" * 10 + b"\x01")), Reason.MALFORMED),
    (order(inside(11, b"\x0a\x05a")), Reason.MALFORMED),
    (b'{"id":1}', Reason.MALFORMED),
    (b" \t\r\n", Reason.MALFORMED),
    (order(b"\x12\x01\x80"), Reason.ENCODING),
    (order(b"\x12\x02\xc0\xaf"), Reason.ENCODING),
    (order(b"\x12\x03\xed\xa0\x80"), Reason.ENCODING),
    (order(b"\x32\x01a\x32\x01\xff"), Reason.ENCODING),
    (order(inside(11, b"\x0a\x01\xff\x10\x01")), Reason.ENCODING),
    (order(b"\x20\x80\x80\x80\x80\x10"), Reason.OVERFLOW),  # an enum of 33 bits
    (order(b"\x48\x80\x80\x80\x80\x10"), Reason.OVERFLOW),
    (order(inside(8, b"\x80\x80\x80\x80\x10")), Reason.OVERFLOW),
    (order(inside(7, b"\x08\x80\x80\x04")), Reason.OVERFLOW),  # more than the column takes
    (order(b"\x19" + struct.pack("<d", 1e300)), Reason.OVERFLOW),
    (order(inside(5, b"\x08\xff\xff\xff\xff\xff\xff\xff\x7f")), Reason.TIMESTAMP),
    (order(inside(5, b"\x10\xff\xff\xff\xff\x07")), Reason.TIMESTAMP),
    (ID, Reason.MISSING),  # what the message requires
    (CHECK, Reason.MISSING),  # what the column requires
    (order(b"\xa3\x06" * 100 + b"\xa4\x06" * 100), Reason.TOO_DEEP),
    (order(b"\xa3\x06" * 10_000 + b"\xa4\x06" * 10_000), Reason.TOO_DEEP),
    (order(b"\xa3\x06" * 10_000), Reason.TOO_DEEP),
    (order(b"\x12\xff\xff\xff\x08" + b"x" * (17 << 20)), Reason.TOO_BIG),
]
GONE: Poison = [(None, Reason.TOMBSTONE), (b"", Reason.EMPTY)]


def framed(value: bytes, id: int, index: bytes = b"\x02\x02") -> bytes:
    return b"\0" + struct.pack(">i", id) + index + value


TEXT = FILE.read_text()
ID_OF = registered(TEXT)
AVRO = registered('"string"', "AVRO")
RECURSIVE = registered('syntax = "proto3"; message A { A a = 1; }')
BROKEN = registered('syntax = "proto3"; message A { int32 }')
FRAMES: Poison = [
    *GONE,
    (b"\0", Reason.FRAMING),
    (b"\1" + framed(good(1), ID_OF)[1:], Reason.FRAMING),
    (framed(b"", ID_OF, b""), Reason.FRAMING),
    (framed(b"", ID_OF, b"\x02"), Reason.FRAMING),
    (framed(good(1), ID_OF, b"\x01"), Reason.FRAMING),  # fewer than no indexes
    (framed(good(1), ID_OF, b"\x02\x01"), Reason.FRAMING),
    (framed(good(1), ID_OF, b"\xfe\xff\xff\xff\x0f"), Reason.FRAMING),
    (framed(good(1), ID_OF, b"\x02\x40"), Reason.FRAMING),  # a message the file does not have
    (framed(good(1), ID_OF, b"\x04\x02\x40"), Reason.FRAMING),
    (framed(good(1), 999_999_999), Reason.UNKNOWN_SCHEMA),
    (framed(good(1), -1), Reason.UNKNOWN_SCHEMA),
    (framed(good(1), AVRO), Reason.UNKNOWN_SCHEMA),
    (framed(good(1), RECURSIVE, b"\0"), Reason.UNKNOWN_SCHEMA),
    (framed(good(1), BROKEN, b"\0"), Reason.UNKNOWN_SCHEMA),
    (framed(b"", ID_OF), Reason.MISSING),
    (framed(order(b"\x10\x05"), ID_OF), Reason.MALFORMED),
    (framed(b"", ID_OF, b"\0"), Reason.MISSING),  # the first message, with defaults
]

CASES = {
    "protobuf": Case(
        "protobuf",
        SCHEMA,
        good,
        [*GONE, *BAD],
        {"descriptor": str(FILE), "message": "shop.Order"},
        truncated=frozenset({Reason.EMPTY, Reason.MALFORMED, Reason.MISSING}),
    ),
    "protobuf framed": Case(
        "protobuf",
        SCHEMA,
        lambda number: framed(good(number), ID_OF),
        FRAMES,
        {"registry": registry_url()},
        truncated=frozenset({Reason.EMPTY, Reason.FRAMING, Reason.MALFORMED, Reason.MISSING}),
    ),
}
