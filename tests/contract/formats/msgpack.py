"""MessagePack for the contract suite, as maps and as arrays."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa

from headrace.decode.payload_field import json_field
from headrace.reasons import Reason

from . import Case, Poison

FILE = Path(__file__).parent / "orders.json"
NAMES = ("id", "name", "amount", "ok", "at", "tags", "inner", "raw", "any", "day")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float32()),
        pa.field("ok", pa.bool_()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("inner", pa.struct([pa.field("n", pa.int16()), pa.field("more", pa.map_(pa.string(), pa.int64()))])),
        pa.field("raw", pa.binary()),
        json_field("any"),
        pa.field("day", pa.date32()),
    ]
)


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"é{number}",
        "amount": number / 4 if number % 2 else number,
        "ok": None if number % 3 == 0 else number % 2 == 0,
        "at": msgpack.Timestamp(1_700_000_000 + number, 123_456_789),
        "tags": ["a", "b"][: number % 3],
        "inner": {"n": number % 7, "more": {"k": number, "m": None}},
        "raw": b"\x80",
        "any": [1, {"x": b"b"}, None, msgpack.Timestamp(0, 0)],
        "day": f"2024-01-{number % 28 + 1:02}",
    }


def framed(value: Any, id: int = 7) -> bytes:
    return struct.pack(">I", id) + (value if isinstance(value, bytes) else msgpack.packb(value))


def good(number: int) -> bytes:
    whole = row(number)
    return framed({key: whole[key] for key in whole if key == "id" or (number + len(key)) % 5})


def ordered(number: int) -> bytes:
    return framed([row(number)[name] for name in NAMES][: len(NAMES) if number == 17 else 1 + number % len(NAMES)])


GONE: Poison = [
    (None, Reason.TOMBSTONE),
    (b"", Reason.EMPTY),
    (b"\0", Reason.FRAMING),
    (b"\0\0\0\7", Reason.FRAMING),
    (framed({"id": 1}, 8), Reason.UNKNOWN_SCHEMA),
    (framed({"id": 1}, 1 << 31), Reason.UNKNOWN_SCHEMA),
    (framed(b"x" * (17 << 20)), Reason.TOO_BIG),
    (framed(b"\xc1"), Reason.MALFORMED),
    (framed(b"\x82\xa2id\x01"), Reason.MALFORMED),
    (framed(b"\xdf\x7f\xff\xff\xff\xa1a"), Reason.MALFORMED),
    (framed(b"\xdd\xff\xff\xff\xff"), Reason.MALFORMED),
    (framed(b"\xc6\xff\xff\xff\xff"), Reason.MALFORMED),
    (framed(b"\xc7\x0c\xff" + b"\xff" * 12), Reason.MALFORMED),  # a time with four billion nanoseconds
    (framed(msgpack.packb({"id": 1}) + b"\x01"), Reason.TRAILING_DATA),
    (framed(b"\x91" * 100 + b"\x01"), Reason.TOO_DEEP),
    (framed(b"\x91" * 100_000), Reason.TOO_DEEP),
    (framed(5), Reason.NOT_AN_OBJECT),
    (framed("text"), Reason.NOT_AN_OBJECT),
    (framed(None), Reason.NOT_AN_OBJECT),
    (framed(b'{"id":1}'), Reason.TRAILING_DATA),
]
MAPS: Poison = [
    *GONE,
    (framed({}), Reason.MISSING),
    (framed({"id": None}), Reason.MISSING),
    (framed({"ID": 1}), Reason.MISSING),
    (framed({"id": "1"}), Reason.TYPE),
    (framed({"id": True}), Reason.TYPE),
    (framed({"id": 1.0}), Reason.TYPE),
    (framed({"id": 2**63}), Reason.OVERFLOW),
    (framed({"id": 1, "name": b"x"}), Reason.TYPE),
    (framed({"id": 1, "name": 5}), Reason.TYPE),
    (framed(b"\x82\xa2id\x01\xa4name\xa1\xff"), Reason.ENCODING),
    (framed({"id": 1, "raw": "x"}), Reason.TYPE),
    (framed({"id": 1, "ok": 1}), Reason.TYPE),
    (framed({"id": 1, "amount": "1"}), Reason.TYPE),
    (framed({"id": 1, "amount": 1e300}), Reason.OVERFLOW),
    (framed({"id": 1, "at": 5}), Reason.TYPE),
    (framed({"id": 1, "at": msgpack.Timestamp(1 << 40, 0)}), Reason.TIMESTAMP),
    (framed({"id": 1, "tags": {"a": 1}}), Reason.TYPE),
    (framed({"id": 1, "tags": ["a", 1]}), Reason.TYPE),
    (framed({"id": 1, "inner": [1]}), Reason.TYPE),
    (framed({"id": 1, "inner": {"n": 2**31}}), Reason.OVERFLOW),
    (framed({"id": 1, "inner": {"n": 2**15}}), Reason.OVERFLOW),
    (framed({"id": 1, "inner": {"more": {"k": "v"}}}), Reason.TYPE),
    (framed({"id": 1, "inner": {"more": {b"k": 1}}}), Reason.TYPE),
    (framed({"id": 1, "any": float("nan")}), Reason.TYPE),
    (framed({"id": 1, "day": "2024-02-30"}), Reason.TIMESTAMP),
    (framed({"id": 1, "x": msgpack.ExtType(5, b"")}), Reason.TYPE),
    (framed({"id": 1, 5: 1}), Reason.TYPE),
    (framed({"id": 1, b"x": 1}), Reason.TYPE),
    (framed(b"\x82\xa2id\x01\xa2id\x02"), Reason.DUPLICATE_KEY),
    (framed({"id": 1, "any": {str(number): 1 for number in range(10_001)}}), Reason.TOO_WIDE),
    (framed(b"\x82\xa2id\x01\xa3any\x82\xa1a\x01\xa1a\x02"), Reason.DUPLICATE_KEY),
    (framed(b"\x82\xa2id\x01\xa3any" + b"\x91" * 80 + b"\x01"), Reason.TOO_DEEP),
]
ARRAYS: Poison = [
    *GONE,
    (framed([]), Reason.MISSING),
    (framed([1] + [None] * 10), Reason.TYPE),
    (framed(["1"]), Reason.TYPE),
]

OPTIONS = {"schemas": str(FILE)}
CUT = frozenset({Reason.EMPTY, Reason.FRAMING, Reason.MALFORMED})
CASES = {
    "msgpack": Case("msgpack", SCHEMA, good, MAPS, OPTIONS, truncated=CUT),
    "msgpack array": Case("msgpack", SCHEMA, ordered, ARRAYS, OPTIONS, truncated=CUT),
}
