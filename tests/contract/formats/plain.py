"""Text, numbers and bytes for the contract suite."""

from __future__ import annotations

import struct

import pyarrow as pa

from headrace.reasons import Reason

from . import Case, Poison

TEXT = pa.schema([pa.field("data", pa.string(), nullable=False)])
BYTES = pa.schema([pa.field("data", pa.string(), nullable=False), pa.field("size", pa.int64())])
RAW = pa.schema([pa.field("data", pa.binary(), nullable=False)])
LONG = pa.schema([pa.field("value", pa.int64(), nullable=False)])
DOUBLE = pa.schema([pa.field("value", pa.float64(), nullable=False)])

GONE: Poison = [(None, Reason.TOMBSTONE), (b"x" * (17 << 20), Reason.TOO_BIG)]
NOT_TEXT: Poison = [(b"\x80", Reason.ENCODING), (b"\xc0\xaf", Reason.ENCODING), (b"\xed\xa0\x80", Reason.ENCODING)]
NOT_A_NUMBER: Poison = [
    (b"", Reason.EMPTY),
    (b"one", Reason.TYPE),
    (b"NaN", Reason.TYPE),
    (b"-", Reason.TYPE),
    (b"01", Reason.TYPE),
    (b"+1", Reason.TYPE),
    (b"1 2", Reason.TYPE),
    (b'"1"', Reason.TYPE),
    (b" \t", Reason.TYPE),
    (b"1" * 400, Reason.OVERFLOW),
]

CASES = {
    "string": Case(
        "string", TEXT, lambda n: f"n{n} é".encode(), [*GONE, *NOT_TEXT], truncated=None, peeked=("data", "n1 é")
    ),
    "bytes": Case("bytes", BYTES, lambda n: b"%d" % n, GONE, truncated=None, peeked=("size", "1")),
    "raw": Case("raw", RAW, lambda n: b"%d" % n, GONE, truncated=None, peeked=("data", '"MQ=="')),
    "int64": Case(
        "int64",
        LONG,
        lambda n: struct.pack(">q", n - 7),
        [*GONE, (b"", Reason.EMPTY), (b"42", Reason.TYPE), (b"\0" * 9, Reason.TYPE)],
        truncated=frozenset({Reason.EMPTY, Reason.TYPE}),
        peeked=("value", "-6"),
    ),
    "int64 text": Case(
        "int64",
        LONG,
        lambda n: b"%d" % (n - 7),
        [
            *GONE,
            *NOT_TEXT,
            *NOT_A_NUMBER,
            (b"1.0", Reason.TYPE),
            (b"9223372036854775808", Reason.OVERFLOW),
            (b"-9223372036854775809", Reason.OVERFLOW),
        ],
        options={"text": True},
        truncated=None,
        peeked=("value", "-6"),
    ),
    "number": Case(
        "number",
        DOUBLE,
        lambda n: b"%d.5" % n,
        [*GONE, *NOT_TEXT, *NOT_A_NUMBER, (b"1e400", Reason.OVERFLOW), (b"1.", Reason.TYPE)],
        truncated=None,
        peeked=("value", "1.5"),
    ),
    "number whole": Case(
        "number",
        LONG,
        lambda n: b"%d" % (n - 7),
        [
            *GONE,
            *NOT_TEXT,
            *NOT_A_NUMBER,
            *((raw, Reason.TYPE) for raw in (b"1.5", b"1.0", b"1e3", b"1e400", b"-0.0")),
            (b"9223372036854775808", Reason.OVERFLOW),
            (b"-9223372036854775809", Reason.OVERFLOW),
        ],
        truncated=None,
        peeked=("value", "-6"),
    ),
}
