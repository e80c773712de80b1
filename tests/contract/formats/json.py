"""JSON for the contract suite."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa

from headrace.reasons import Reason

from . import Case, Poison

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("inner", pa.struct([pa.field("n", pa.int32())])),
    ]
)


def good(number: int) -> bytes:
    row = {
        "id": number,
        "name": f"n{number}",
        "amount": number / 4,
        "price": number % 100,
        "at": "2024-05-01T12:00:00Z",
        "tags": ["a", "b"],
        "inner": {"n": number % 7},
    }
    return json.dumps({key: row[key] for key in row if key == "id" or (number + len(key)) % 5}).encode()


def nested(depth: int) -> bytes:
    return b'{"id":1,"x":' + b"[" * depth + b"]" * depth + b"}"


# The JSON poison of the guarantees (Q1-Q17), each with the one reason it must get.
POISON: Poison = [
    (b"", Reason.EMPTY),
    (None, Reason.TOMBSTONE),
    (b" \t\r\n", Reason.MALFORMED),
    (b'{"id":1', Reason.MALFORMED),
    (b'{"id":1,}', Reason.MALFORMED),
    (b'{"id":1 , \n}', Reason.MALFORMED),
    (b'{"id":1,"tags":["a",]}', Reason.MALFORMED),
    (b"{'id':1}", Reason.MALFORMED),
    (b'{"id":1,"name":"\x01"}', Reason.MALFORMED),
    (b'{"id":01}', Reason.MALFORMED),
    (b'{"id":1}//', Reason.TRAILING_DATA),
    (b'{"id":1,"name":"\x80"}', Reason.ENCODING),
    (b'{"id":1,"name":"\xc0\xaf"}', Reason.ENCODING),
    (b'{"id":1,"name":"\xed\xa0\x80"}', Reason.ENCODING),
    (b'{"id":1,"name":"\\ud800"}', Reason.ENCODING),
    (b'{"id":1,"\\udc00":1}', Reason.ENCODING),
    (b'{"id":9223372036854775808}', Reason.OVERFLOW),
    (b'{"id":-9223372036854775809}', Reason.OVERFLOW),
    (b'{"id":1' + b"0" * 400 + b"}", Reason.OVERFLOW),
    (b'{"id":1' + b"0" * 9000 + b"}", Reason.OVERFLOW),
    (b'{"id":1,"inner":{"n":2147483648}}', Reason.OVERFLOW),
    (b'{"id":1,"amount":1e400}', Reason.OVERFLOW),
    (b'{"id":1,"amount":-1e400}', Reason.OVERFLOW),
    (b'{"id":1.0}', Reason.TYPE),
    (b'{"id":1e3}', Reason.TYPE),
    (b'{"id":1.7}', Reason.TYPE),
    (b'{"id":"12"}', Reason.TYPE),
    (b'{"id":true}', Reason.TYPE),
    (b'{"id":1,"name":5}', Reason.TYPE),
    (b'{"id":1,"name":{}}', Reason.TYPE),
    (b'{"id":1,"amount":"1"}', Reason.TYPE),
    (b'{"id":1,"amount":NaN}', Reason.MALFORMED),
    (b'{"id":1,"amount":Infinity}', Reason.MALFORMED),
    (b'{"id":1,"amount":-Infinity}', Reason.MALFORMED),
    (b'{"id":1,"x":NaN}', Reason.MALFORMED),
    (b'{"id":1,"x":{"y":[nan]}}', Reason.MALFORMED),
    (b'{"id":1,"price":' + b"1" * 40 + b"}", Reason.OVERFLOW),
    (b'{"id":1,"price":0.' + b"0" * 38 + b"1}", Reason.OVERFLOW),
    (b'{"id":1,"price":1.234}', Reason.OVERFLOW),
    (b'{"id":1,"price":1.000000000000000000001}', Reason.OVERFLOW),
    (b'{"id":1,"id":2}', Reason.DUPLICATE_KEY),
    (b'{"id":1,"ID":2}', Reason.DUPLICATE_KEY),
    (b'{"id":1,"\\u0069d":2}', Reason.DUPLICATE_KEY),
    (b'{"id":1,"inner":{"n":1,"n":1}}', Reason.DUPLICATE_KEY),
    (b'{"id":1,"x":[{"y":{"z":1,"z":1}}]}', Reason.DUPLICATE_KEY),
    (b'{"ID":1}', Reason.BAD_NAME),
    (nested(100), Reason.TOO_DEEP),
    (nested(1_000), Reason.TOO_DEEP),
    (nested(100_000), Reason.TOO_DEEP),
    (b'{"id":1,"x":' + b'{"y":' * 100_000, Reason.TOO_DEEP),
    (b"{" + b",".join(b'"k%d":1' % number for number in range(100_000)) + b"}", Reason.TOO_WIDE),
    (b'{"id":1,"name":"' + b"x" * (17 << 20) + b'"}', Reason.TOO_BIG),
    (b"[1,2]", Reason.NOT_AN_OBJECT),
    (b'"text"', Reason.NOT_AN_OBJECT),
    (b"5", Reason.NOT_AN_OBJECT),
    (b"true", Reason.NOT_AN_OBJECT),
    (b"null", Reason.NOT_AN_OBJECT),
    (b'{"id":1}{"id":2}', Reason.TRAILING_DATA),
    (b'{"id":1}\n{"id":2}', Reason.TRAILING_DATA),
    (b'{"id":1}\0', Reason.TRAILING_DATA),
    (b'{"id":1,"at":"0000-00-00"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"9999-12-31T23:59:60Z"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"2024-02-30T00:00:00Z"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"2024-01-01T00:00:00"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"2024-01-01 00:00:00Z"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"0001-01-01T00:00:00+10:00"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":1714564800}', Reason.TYPE),
    (b'{"name":"x"}', Reason.MISSING),
    (b'{"id":null}', Reason.MISSING),
    (b"{}", Reason.MISSING),
    (b'{"id":1,"tags":{"a":1}}', Reason.TYPE),
    (b'{"id":1,"tags":["a",1]}', Reason.TYPE),
    (b'{"id":1,"inner":[1]}', Reason.TYPE),
    (b'{"id":1,"inner":"n"}', Reason.TYPE),
]


def packed(codec: str, value: bytes) -> bytes:
    if codec == "gzip":
        return gzip.compress(value)
    if codec == "snappy":
        return bytes(pa.Codec("snappy").compress(value))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(value)
    return bytes(sink.getvalue())


BOMBS = {"snappy": b"\x80\xad\xe2\x04" + b"\xfe\x01\x00" * 8}  # says ten million bytes


def packed_case(codec: str) -> Case:
    whole = packed(codec, good(17))
    poison: Poison = [
        (None, Reason.TOMBSTONE),
        (b"", Reason.EMPTY),
        (good(1), Reason.MALFORMED),
        (packed(codec, b""), Reason.EMPTY),
        (packed(codec, b"[1]"), Reason.NOT_AN_OBJECT),
        (packed(codec, packed(codec, good(1))), Reason.ENCODING),
        (BOMBS.get(codec) or packed(codec, b" " * 10_000_000), Reason.RATIO),
        (whole + b"x", Reason.MALFORMED),
        (whole[:-1], Reason.MALFORMED),
    ]
    return Case("json", SCHEMA, lambda n: packed(codec, good(n)), poison, {"compression": codec})


def array(number: int) -> bytes:
    inner = [good(3 * number + each) for each in range(number % 3 + 1)]
    return b" [" + b" ,\n".join(inner) + b"]"


def lines(number: int) -> bytes:
    inner = [good(3 * number + each) for each in range(number % 3 + 1)]
    return b"\r\n".join(inner) + b"\n" * (number % 2)


EMPTY_HANDED: Poison = [(None, Reason.TOMBSTONE), (b"", Reason.EMPTY), (b" \n\t", Reason.MALFORMED)]
BAD_ARRAYS: Poison = [
    *EMPTY_HANDED,
    (b'{"id":1}', Reason.TYPE),
    (b"5", Reason.TYPE),
    (b"[", Reason.MALFORMED),
    (b"[]]", Reason.MALFORMED),
    (b"[]}", Reason.MALFORMED),
    (b"]", Reason.MALFORMED),
    (b"xyz", Reason.MALFORMED),
    (b'[{"id":1},]', Reason.EMPTY),
    (b'[,{"id":1}]', Reason.EMPTY),
    (b'[{"id":1},{"id":2}', Reason.MALFORMED),
    (b'[{"id":1}],[{"id":2}]', Reason.MALFORMED),
    (b'[{"id":1}] 5', Reason.MALFORMED),
    (b'[{"id":1},5]', Reason.NOT_AN_OBJECT),
    (b'[{"id":1},{"id":"x"}]', Reason.TYPE),
    (b'[{"id":1},{"id":2]}', Reason.MALFORMED),
    (b'[[{"id":1}]]', Reason.NOT_AN_OBJECT),
    (b'[{"id":1,"name":"]"},{"id":2,"id":3}]', Reason.DUPLICATE_KEY),
    (b"[" + b'{"id":1},' * 100_001 + b'{"id":1}]', Reason.TOO_WIDE),
]
BAD_LINES: Poison = [
    *EMPTY_HANDED,
    (b'{"id":1}\nx', Reason.MALFORMED),
    (b'{"id":1}\n5', Reason.NOT_AN_OBJECT),
    (b'{"id":1}\n{"id":2}{"id":3}', Reason.TRAILING_DATA),
    (b'{"id":1}\n{"id":"x"}', Reason.TYPE),
    (b'{"id":1}\n' * 100_001, Reason.TOO_WIDE),
]
BYTES = b'{}[]",:\\0123456789eE.-+ntfu \n\x00\x80\xff'
CASES = {
    "json": Case("json", SCHEMA, good, POISON, alphabet=BYTES),
    "json array": Case("json", SCHEMA, array, BAD_ARRAYS, {"rows": "array"}, alphabet=BYTES, peeked=None),
    "json lines": Case(
        "json", SCHEMA, lines, BAD_LINES, {"rows": "lines"}, truncated=None, alphabet=BYTES, peeked=None
    ),
    **{f"json {codec}": packed_case(codec) for codec in ("gzip", "zstd", "lz4", "snappy")},
}
