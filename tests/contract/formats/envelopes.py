"""JSON in envelopes, and behind a registry's ids, for the contract suite."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa

from headrace.decode.payload_field import json_field
from headrace.reasons import Reason
from services.schemas import registered, registry_url

from . import Case, Poison
from . import json as plain

STAMP = 1_714_564_800_000
FORGED: Poison = [  # what is wrong with the row inside, by any envelope
    (b'{"id":1,"id":2}', Reason.DUPLICATE_KEY),
    (b'{"id":"1"}', Reason.TYPE),
    (b'{"id":9223372036854775808}', Reason.OVERFLOW),
    (b'{"id":1,"amount":NaN}', Reason.MALFORMED),
    (b'{"id":1,"name":"\x80"}', Reason.ENCODING),
    (b'{"id":1,"at":"yesterday"}', Reason.TIMESTAMP),
    (b'{"name":"x"}', Reason.MISSING),
    (plain.nested(1_000), Reason.TOO_DEEP),
]
AROUND: Poison = [  # what is no envelope at all
    (None, Reason.TOMBSTONE),
    (b"", Reason.EMPTY),
    (b" \t\r\n", Reason.MALFORMED),
    (b'{"op":"c"', Reason.MALFORMED),
    (b"[1,2]", Reason.NOT_AN_OBJECT),
    (b'"text"', Reason.NOT_AN_OBJECT),
    (b"\xff", Reason.ENCODING),
]


def change(row: bytes, op: str = "c") -> bytes:
    """A row in Debezium's envelope."""
    place, other = ("before", "after") if op == "d" else ("after", "before")
    return b'{"%b":null,"%b":%b,"source":{"lsn":7},"op":"%b","ts_ms":%d,"transaction":null}' % (
        other.encode(),
        place.encode(),
        row,
        op.encode(),
        STAMP,
    )


def with_schema(value: bytes) -> bytes:
    """The same behind its schema part."""
    return b'{"schema":{"type":"struct","fields":[],"name":"shop.Envelope"},"payload":%b}' % value


def changed(number: int) -> bytes:
    """Every operation, with the schema part and without."""
    made = change(plain.good(number), "curd"[number % 4])
    return with_schema(made) if number % 3 else made


def event(row: bytes, **attributes: Any) -> bytes:
    """A row in a CloudEvents event."""
    head = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order", "time": "2024-05-01T12:00:00Z"}
    return json.dumps({**head, **attributes}).encode()[:-1] + b',"data":%b}' % row


def told(number: int) -> bytes:
    """Events, changes and records of Rivven."""
    row = plain.good(number)
    if number % 3 == 0:
        return row
    if number % 3 == 1:
        return b'{"event_type":"insert","stream":"s","timestamp":"2024-05-01T12:00:00Z","data":%b}' % row
    return b'{"source_type":"pg","schema":"p","table":"t","op":"Update","before":null,"after":%b,"timestamp":%d}' % (
        row,
        STAMP // 1000,
    )


DEBEZIUM = pa.schema([*plain.SCHEMA, pa.field("_op", pa.string()), pa.field("_changed_at", pa.timestamp("us", "UTC"))])
CLOUD = pa.schema([*plain.SCHEMA, *(pa.field(f"_ce_{name}", pa.string()) for name in ("id", "source", "type"))])
RIVVEN = pa.schema(
    [
        json_field("data", nullable=False),
        pa.field("event_type", pa.string(), False),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("stream", pa.string()),
    ]
)
UNCHANGED: Poison = [
    *AROUND,
    *((change(row), reason) for row, reason in FORGED if row is not None),
    *((with_schema(change(row)), reason) for row, reason in FORGED if row is not None),
    (change(b"{}"), Reason.MISSING),
    (change(b"null"), Reason.MISSING),
    (change(b'{"id":1}', "x"), Reason.UNKNOWN_OPERATION),
    (change(b"null", "t"), Reason.UNKNOWN_OPERATION),
    (b'{"ts_ms":1}', Reason.UNKNOWN_OPERATION),
    (b'{"schema":{"type":"struct"}}', Reason.UNKNOWN_OPERATION),
    (b'{"status":"BEGIN","id":"571"}', Reason.UNKNOWN_OPERATION),
]
UNTOLD: Poison = [
    *AROUND,
    (b'{"event_type":"dance","data":{}}', Reason.UNKNOWN_OPERATION),
    (b'{"source_type":"pg","op":"Dance"}', Reason.UNKNOWN_OPERATION),
    (b'{"event_type":"log","timestamp":"yesterday","data":{}}', Reason.TIMESTAMP),
    (b'{"event_type":"log","timestamp":5,"data":{}}', Reason.TYPE),
    (b'{"event_type":"log","data":{},"data":1}', Reason.DUPLICATE_KEY),
    (b'{"any":1,"any":2}', Reason.DUPLICATE_KEY),
    (plain.nested(1_000), Reason.TOO_DEEP),
]
NO_EVENTS: Poison = [
    *AROUND,
    *((event(row), reason) for row, reason in FORGED if row is not None),
    (plain.good(1), Reason.FRAMING),
    (event(b'{"id":1}', specversion="0.3"), Reason.FRAMING),
    (event(b'{"id":1}', id=5), Reason.TYPE),
]

# ---- behind a registry ----

JSON_SCHEMA = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["id"],
}
ID = registered(json.dumps(JSON_SCHEMA), "JSON")
OTHER = registered('"string"', "AVRO")


def framed(value: bytes, id: int = ID) -> bytes:
    return struct.pack(">bi", 0, id) + value


FRAMES: Poison = [
    (None, Reason.TOMBSTONE),
    (b"", Reason.EMPTY),
    (b"\0\0\0\0", Reason.FRAMING),
    (plain.good(1), Reason.FRAMING),
    (framed(plain.good(1), 999_999_999), Reason.UNKNOWN_SCHEMA),
    (framed(plain.good(1), OTHER), Reason.UNKNOWN_SCHEMA),
    (framed(b""), Reason.EMPTY),
    *((framed(value), reason) for value, reason in plain.POISON if value and len(value) < 2_000),
]

CASES = {
    "json debezium": Case(
        "json", DEBEZIUM, changed, UNCHANGED, {"envelope": "debezium"}, alphabet=plain.BYTES, peeked=("payload.op", "u")
    ),
    "json rivven": Case("json", RIVVEN, told, UNTOLD, {"envelope": "rivven"}, alphabet=plain.BYTES, peeked=None),
    "json cloudevents": Case(
        "json",
        CLOUD,
        lambda number: event(plain.good(number)),
        NO_EVENTS,
        {"envelope": "cloudevents"},
        alphabet=plain.BYTES,
        peeked=("data.id", "1"),
    ),
    "json registry": Case(
        "json",
        plain.SCHEMA,
        lambda number: framed(plain.good(number)),
        FRAMES,
        {"registry": registry_url()},
        truncated=frozenset({Reason.EMPTY, Reason.FRAMING, Reason.MALFORMED}),
        alphabet=plain.BYTES,
    ),
}
