"""Avro for the contract suite: bare, framed with a registry's ids, as single objects, and in container files."""

from __future__ import annotations

import io
import json
import tempfile
import threading
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from headrace.reasons import Reason

from . import Case, Poison

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("kind", pa.string()),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("inner", pa.struct([pa.field("n", pa.int32())])),
    ]
)
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "amount", "type": "double"},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "long"}]}},
    ],
}
PARSED = fastavro.parse_schema(SCHEMA)
NAMELESS = {**SCHEMA, "fields": SCHEMA["fields"][1:]}
FOLDER = Path(tempfile.mkdtemp(prefix="avro-"))
(FOLDER / "event.avsc").write_text(json.dumps(SCHEMA))


def row(number: int, **other: Any) -> dict[str, Any]:
    made = {
        "id": number,
        "name": f"n{number} é" if number % 3 else None,
        "amount": number / 4,
        "price": Decimal(number % 100) / 4 if number % 5 else None,
        "at": 1_714_564_800_000 + number,
        "kind": "AB"[number % 2],
        "tags": [f"t{each}" for each in range(number % 4)],
        "inner": {"n": number % 7},
    }
    return {**made, **other}


def written(content: dict[str, Any], schema: Any = PARSED) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, content)
    return out.getvalue()


def good(number: int) -> bytes:
    return written(row(number))


HEAD = b"\x02\x00" + b"\0" * 8 + b"\x00"  # id 1, no name, amount 0, no price
MISFITS: Poison = [
    (written(row(1, price=Decimal(10**9))), Reason.OVERFLOW),
    (written(row(1, inner={"n": 1 << 40})), Reason.OVERFLOW),
    (written(row(1, at=1 << 50)), Reason.TIMESTAMP),
    (written(row(1, at=-(1 << 62))), Reason.TIMESTAMP),
]
GARBAGE: Poison = [
    (b"\x02", Reason.MALFORMED),
    (good(1) + b"\0", Reason.TRAILING_DATA),
    (good(1) + good(2), Reason.TRAILING_DATA),
    (b"\xff" * 10 + good(1)[1:], Reason.MALFORMED),  # a number of 70 bits
    (b"\xff" * 11, Reason.MALFORMED),
    (b"\x02\x04" + good(1)[2:], Reason.MALFORMED),  # a third branch of two
    (b"\x02\x01" + good(1)[2:], Reason.MALFORMED),  # branch -1
    (b"\x02\x02\x04\xc3\x28" + written(row(3))[2:], Reason.ENCODING),
    (b"\x02\x02\x04\xed\xa0" + written(row(3))[2:], Reason.ENCODING),
    (b"\x02\x02\x01" + written(row(3))[2:], Reason.MALFORMED),  # a text of -1 bytes
    (b"\x02\x02\xfe\xff\xff\xff\x0f" + b"x" * 9, Reason.MALFORMED),  # a text of 2³¹ bytes
    (HEAD[:-1] + b"\x02\x00" + b"\0" * 6, Reason.MALFORMED),  # a decimal of no bytes
    (HEAD[:-1] + b"\x02\x22" + b"\x7f" * 17 + b"\0" * 5, Reason.OVERFLOW),
    (HEAD + b"\x00" + b"\x04" + b"\0\0", Reason.MALFORMED),  # a third symbol of two
    (HEAD + b"\x00\x00" + b"\x80\x80\x80\x80\x10" + b"\x02x" * 9, Reason.MALFORMED),  # 2³¹ items
    (HEAD + b"\x00\x00" + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x02x" * 9, Reason.MALFORMED),
    (HEAD + b"\x00\x00" + b"\x04\x02x" + b"\0\0", Reason.MALFORMED),
]
SHARED: Poison = [(None, Reason.TOMBSTONE), (b"", Reason.EMPTY), (b"\0" * (17 << 20), Reason.TOO_BIG)]
assert written(row(3))[:2] == b"\x06\x00"


# ---- a registry of a few schemas, good and bad ----


def nested(levels: int) -> Any:
    return "int" if not levels else {"type": "array", "items": nested(levels - 1)}


def laughing(levels: int) -> Any:
    fields = [{"name": "a", "type": "int" if not levels else laughing(levels - 1)}]
    fields += [{"name": name, "type": "int" if not levels else f"L{levels - 1}"} for name in "bcdefgh"]
    return {"type": "record", "name": f"L{levels}", "fields": fields}


REGISTERED: dict[int, Any] = {
    1: SCHEMA,
    2: NAMELESS,
    3: {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]},
    4: {"type": "record", "name": "D", "fields": [{"name": "id", "type": nested(100)}]},
    5: laughing(12),
    6: {"type": "record", "name": "N", "fields": [{"name": "id", "type": {"type": "array", "items": "null"}}]},
    7: {"type": "record", "name": "C", "fields": [{"name": "id", "type": "long"}, {"name": "ID", "type": "long"}]},
    8: {"type": "record", "name": "T", "fields": [{"name": "id", "type": "string"}]},
    10: {"type": "record", "name": "U", "fields": [{"name": "id", "type": "elsewhere.Thing"}]},
    11: 5,
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        number = int(self.path.rpartition("/")[2])
        kind = "PROTOBUF" if number == 9 else "AVRO"
        known = number in REGISTERED or number == 9
        answer = {"schema": json.dumps(REGISTERED.get(number)), "schemaType": kind} if known else {"error_code": 40403}
        body = json.dumps(answer).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _url() -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def framed(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big", signed=True) + payload


FRAMES: Poison = [
    (b"\0\0\0\0", Reason.FRAMING),
    (good(1), Reason.FRAMING),
    (b"{}", Reason.FRAMING),
    (b"\x01\0\0\0\x01" + good(1), Reason.FRAMING),
    (framed(1, b""), Reason.MALFORMED),
    (framed(77, good(1)), Reason.UNKNOWN_SCHEMA),
    (framed(-1, good(1)), Reason.UNKNOWN_SCHEMA),
    (framed(2, written(row(1), fastavro.parse_schema(NAMELESS))), Reason.MISSING),
    *[(framed(number, good(1)), Reason.UNKNOWN_SCHEMA) for number in (3, 4, 5, 6, 7, 9, 10, 11)],
    (framed(8, b"\x021"), Reason.TYPE),
]


# ---- single objects and files ----

PRINT = bytes.fromhex(fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(SCHEMA), "CRC-64-AVRO"))


def single(payload: bytes) -> bytes:
    return b"\xc3\x01" + PRINT + payload


def file_of(number: int, codec: str = "deflate", schema: Any = PARSED, rows: Any = None) -> bytes:
    out = io.BytesIO()
    inside = [row(3 * number + each) for each in range(number % 3 + 1)] if rows is None else rows
    fastavro.writer(out, schema, inside, codec, sync_interval=60, sync_marker=b"0123456789abcdef")
    return out.getvalue()


ZEROS = file_of(0, rows=[row(1, name="0" * 10_000_000)])
FILES: Poison = [
    *SHARED[:2],
    (good(1), Reason.FRAMING),
    (b"Obj\x01", Reason.MALFORMED),
    (file_of(2)[:-1], Reason.MALFORMED),
    (file_of(2)[:-40], Reason.MALFORMED),
    (file_of(2) + b"x", Reason.MALFORMED),
    (file_of(2).replace(b"deflate", b"deflat3"), Reason.MALFORMED),
    (file_of(2).replace(b'"long"', b'"lang"'), Reason.UNKNOWN_SCHEMA),
    (file_of(2, "null", rows=[row(1), row(2, inner={"n": 1 << 40})]), Reason.OVERFLOW),
    (ZEROS, Reason.RATIO),
]

CASES = {
    "avro": Case("avro", COLUMNS, good, [*SHARED, *MISFITS, *GARBAGE], {"schema": str(FOLDER / "event.avsc")}),
    "avro registry": Case(
        "avro",
        COLUMNS,
        lambda n: framed(1, good(n)),
        [*SHARED, *FRAMES, *[(framed(1, value or b""), reason) for value, reason in [*MISFITS, *GARBAGE]]],
        {"registry": _url()},
        truncated=frozenset({Reason.EMPTY, Reason.FRAMING, Reason.MALFORMED}),
    ),
    "avro single object": Case(
        "avro",
        COLUMNS,
        lambda n: single(good(n)),
        [
            *SHARED,
            (good(1), Reason.FRAMING),
            (single(b"")[:-1], Reason.FRAMING),
            (b"\xc3\x01" + bytes(8) + good(1), Reason.UNKNOWN_SCHEMA),
            (single(b""), Reason.MALFORMED),
            *[(single(value or b""), reason) for value, reason in [*MISFITS, *GARBAGE]],
        ],
        {"single_object": str(FOLDER)},
        truncated=frozenset({Reason.EMPTY, Reason.FRAMING, Reason.MALFORMED}),
    ),
    "avro container": Case(
        "avro",
        COLUMNS,
        file_of,
        FILES,
        {"container": True},
        truncated=None,
        peeked=None,
    ),
}
