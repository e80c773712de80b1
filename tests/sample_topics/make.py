"""Writes the sample topics and their schemas; uses nothing of Headrace, and gives the same bytes every time."""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import fastavro
import msgpack
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

HERE = Path(__file__).parent
START = 1_714_564_800_000  # 2024-05-01T12:00:00Z
Value = Any  # bytes and None as they are, all else as JSON
Header = tuple[str, bytes]


def topic(name: str, *values: Value, headers: list[list[Header]] | None = None) -> None:
    """One record a second."""
    with (HERE / f"{name}.jsonl").open("w") as file:
        for at, value in enumerate(values):
            raw = value if isinstance(value, bytes | None) else json.dumps(value, ensure_ascii=False).encode()
            record = {
                "timestamp": START + 1000 * at,
                "key": _base64(b"k%d" % at),
                "value": _base64(raw),
                "headers": [[key, _base64(item)] for key, item in (headers[at] if headers else [])],
            }
            file.write(json.dumps(record) + "\n")


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


# ---- Danube: the four schema types of the sink, and the later ones of its core ----


def danube() -> None:
    payment = {"payment_id": "pay-123", "amount": 99.99, "currency": "USD"}
    topic(
        "danube-json",
        payment,
        {**payment, "payment_id": "pay-124", "amount": 12, "note": "a field that no column is declared for"},
        b'{"payment_id": "pay-125", "amount": ',
        {**payment, "payment_id": "pay-126", "amount": "99.99"},
        {"payment_id": "pay-127", "currency": "USD"},
        {**payment, "payment_id": "pay-128", "currency": None},
        {**payment, "payment_id": "pay-129", "amount": -0.5, "currency": "EUR"},
    )
    largest = {
        "utf8": "№ 1",
        "int8": 127,
        "int16": 32767,
        "int32": 2147483647,
        "int64": 9223372036854775807,
        "uint8": 255,
        "uint16": 65535,
        "uint32": 4294967295,
        "uint64": 18446744073709551615,
        "float32": 0.5,
        "float64": 1e308,
        "boolean": True,
        "timestamp": 1714564800,
        "date32": "2024-05-01",
        "date64": "2024-05-02",
        "binary": "AQID",
    }
    beyond = [{"int8": 128}, {"int16": -32769}, {"int32": 2147483648}, {"uint64": 1 << 70}, {"float64": 10**400}]
    wrong = [{"utf8": 5}, {"int64": 1.0}, {"int64": "1"}, {"boolean": 1}, {"binary": "no base64"}]
    times = [{"timestamp": "2024-05-01T12:00:00Z"}, {"timestamp": 1714564800000}, {"date32": "2024-02-30"}]
    topic("danube-types", largest, {}, *beyond, *wrong, *times, {"utf8": "the last"})
    profile = {"id": 1, "user": {"profile": {"email": "a@example.com"}, "plan": "free"}}
    topic("danube-paths", profile, {"id": 2, "user": {"plan": "paid"}}, {"id": 3}, {"id": 4, "user": "nobody"})
    topic("danube-string", b"hello", "grüße, 水".encode(), b"", b"not \xff UTF-8", None, b"42")
    numbers = [struct.pack(">q", number) for number in (42, -1, 2**63 - 1, -(2**63))]
    topic("danube-int64", *numbers, b"42", b"", b"\0" * 9)
    topic("danube-int64-text", b"42", b"-7", b"9223372036854775807", b"9223372036854775808", b"4.2", numbers[0])
    topic("danube-bytes", b"\x01\x02\x03", b"", b"\xff", None)
    topic("danube-number", b"42", b"1.5", b" 1e3\n", b'"42"', b"NaN", b"1e400")
    topic("danube-raw", b"\x01\x02\x03", b"", b"\xff not any format at all")


# ---- Rivven: its events, its changes, and what is neither ----


def rivven() -> None:
    def event(kind: str, data: Any, stream: str | None = "public.users", **more: Any) -> dict[str, Any]:
        head = {"event_type": kind, "stream": stream, "namespace": "public", "timestamp": "2024-05-01T12:00:00.25Z"}
        return {**head, "data": data, "metadata": {"position": "0/16B3748", "transaction_id": 7, "sequence": 1}, **more}

    old, new = {"id": 1, "name": "Ann"}, {"id": 1, "name": "Anna"}
    topic(
        "rivven-events",
        event("insert", old),
        event("update", {"before": old, "after": new}),
        event("update", {"before": None, "after": new}),
        event("delete", new),
        event("state", {"cursor": 17}, "_state"),
        event("log", {"level": "info", "message": "snapshot done"}, "_log"),
        event("schema", {"fields": ["id", "name"]}),
        event("record", [1, 2.50, "three"]),
        event("dance", {}),
        event("insert", {"id": 2}, timestamp="yesterday"),
        event("insert", {"id": 3}, stream=None),
    )

    def change(op: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
        head = {"source_type": "postgres", "database": "shop", "schema": "public", "table": "users"}
        return {**head, "op": op, "before": before, "after": after, "timestamp": 1714564800, **more}

    topic(
        "rivven-changes",
        change("Insert", None, old),
        change("Snapshot", None, {"id": 9, "name": "Zoë"}),
        change("Update", old, new, transaction={"id": "571"}),
        change("Delete", new, None),
        change("Tombstone", None, None),
        change("Truncate", None, None),
        change("Schema", None, {"columns": ["id", "name"]}),
        change("Merge", old, new),
    )
    topic("rivven-records", {"any": "object", "n": 1}, b'{"price": 1.50}', b"plain text", b"[1, 2]", b"\xff", None)

    def debezium(op: str, before: Any, after: Any) -> dict[str, Any]:
        source = {"version": "2.5.0.Final", "connector": "postgresql", "db": "shop", "table": "users", "lsn": 24}
        return {"before": before, "after": after, "source": source, "op": op, "ts_ms": START, "transaction": None}

    schema = {"type": "struct", "name": "shop.public.users.Envelope", "fields": []}
    topic(
        "debezium",
        debezium("c", None, old),
        {"schema": schema, "payload": debezium("u", old, new)},
        debezium("d", new, None),
        None,
        debezium("r", None, {"id": 9, "name": None}),
        debezium("t", None, None),
        {"ts_ms": START},
        debezium("m", None, None),
    )


# ---- kafka-delta-ingest: every row of its formats ----

ORDER_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
CLICK_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [{"name": "page", "type": "string"}, {"name": "ms", "type": "int"}],
}
# A writer that has left the customer out, and sends a field more.
LATER_SCHEMA: dict[str, Any] = {
    **ORDER_SCHEMA,
    "fields": [*ORDER_SCHEMA["fields"][:1], *ORDER_SCHEMA["fields"][2:], {"name": "gift", "type": "boolean"}],
}
TREE_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "left", "type": ["null", "Tree"]}],
}
JSON_ORDER = {
    "title": "order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "price": {"type": "number"}, "note": {"type": "string"}},
    "required": ["id"],
}
JSON_CLICK = {"title": "click", "type": "object", "properties": {"page": {"type": "string"}}}
PROTO = """\
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";

message Ping {
  int64 at = 1;
}

message Order {
  enum State { NEW = 0; PAID = 1; }
  message Address { string street = 1; string zip = 2; }
  int64 id = 1;
  optional string note = 2;
  State state = 3;
  Address to = 4;
  repeated string tags = 5;
  map<string, int32> counts = 6;
  bytes photo = 7;
  google.protobuf.Timestamp placed = 8;
}
"""
PROTOCOL = {
    "id": crc32(b"md.Quote"),
    "name": "md.Quote",
    "fields": [
        {"name": "symbol", "type": "string"},
        {"name": "bid", "type": "double"},
        {"name": "size", "type": "bigint"},
        {"name": "at", "type": "timestamp"},
    ],
}
TRADE = {**PROTOCOL, "id": crc32(b"md.Trade"), "name": "md.Trade", "fields": PROTOCOL["fields"][:3]}
IDS = {"order": 101, "later": 102, "click": 103, "tree": 104, "json order": 111, "json click": 112, "proto": 121}


def order(number: int, **more: Any) -> dict[str, Any]:
    made = {
        "id": number,
        "customer": "Ann" if number % 2 else None,
        "total": Decimal(number) + Decimal("0.50"),
        "placed": START + number,
        "state": ("NEW", "PAID")[number % 2],
        "tags": ["a", "ß"][: number % 3],
    }
    return {**made, **more}


def avro(schema: dict[str, Any], content: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), content)
    return out.getvalue()


def container(schema: dict[str, Any], *rows: dict[str, Any], codec: str = "deflate") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), rows, codec, sync_marker=b"0123456789abcdef")
    return out.getvalue()


def single(schema: dict[str, Any], content: dict[str, Any]) -> bytes:
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    print_ = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
    return b"\xc3\x01" + bytes.fromhex(print_) + avro(schema, content)


def framed(id: int, payload: bytes) -> bytes:
    """As Confluent's serializers do it."""
    return struct.pack(">bI", 0, id) + payload


def kdi() -> None:
    request = {"status": 200, "session_id": "s1", "meta": {"producer": {"timestamp": "2021-03-24T15:06:17.321710Z"}}}
    topic(
        "kdi-json",
        request,
        {**request, "status": 404, "method": "GET"},
        {"status": 500, "session_id": "s2", "meta": {}},
        b"not json",
        b"",
        b"[1]",
        {**request, "status": 301},
    )
    framed_json = [json.dumps(value).encode() for value in ({"id": 1, "price": 9.5}, {"page": "/"}, {"price": 1})]
    topic(
        "kdi-json-registry",
        framed(IDS["json order"], framed_json[0]),
        framed(IDS["json click"], framed_json[1]),
        framed(IDS["json order"], framed_json[2]),
        framed(999, framed_json[0]),
        framed_json[0],
    )
    packed = gzip.compress(json.dumps(request).encode(), mtime=0)
    topic("kdi-json-gzip", packed, json.dumps(request).encode(), packed[:-1], gzip.compress(b"{", mtime=0))
    topic(
        "kdi-avro-container",
        container(ORDER_SCHEMA, order(1), order(2)),
        container(LATER_SCHEMA, order(3, gift=True), codec="null"),
        container(ORDER_SCHEMA),
        container(ORDER_SCHEMA, order(4))[:-20],
        avro(ORDER_SCHEMA, order(5)),
    )
    topic("kdi-avro-reader", container(ORDER_SCHEMA, order(1)), container(LATER_SCHEMA, order(3, gift=True)))
    topic(
        "kdi-avro-registry",
        framed(IDS["order"], avro(ORDER_SCHEMA, order(1))),
        framed(IDS["click"], avro(CLICK_SCHEMA, {"page": "/", "ms": 17})),
        framed(IDS["later"], avro(LATER_SCHEMA, order(2, gift=True))),
        framed(IDS["order"], avro(ORDER_SCHEMA, order(3))[:-1]),
        framed(IDS["tree"], avro(TREE_SCHEMA, {"left": None})),
        framed(999, avro(ORDER_SCHEMA, order(4))),
        avro(ORDER_SCHEMA, order(5)),
    )
    topic(
        "kdi-avro-single-object",
        single(ORDER_SCHEMA, order(1)),
        single(CLICK_SCHEMA, {"page": "/", "ms": 17}),
        single(LATER_SCHEMA, order(2, gift=True)),
        b"\xc3\x01" + avro(ORDER_SCHEMA, order(3))[:8],
    )
    protobuf()
    aidl()


def protobuf() -> None:
    made = messages()
    whole = made["Order"](id=1, note="n", state=1, tags=["a"], counts={"x": 1}, photo=b"\x80\xff")
    whole.to.street, whole.to.zip = "Main", "0815"
    whole.placed.FromMilliseconds(START)
    strange = made["Order"](id=3, state=7)  # a state that nobody has named
    topic(
        "kdi-protobuf",
        framed(IDS["proto"], b"\x02\x02" + whole.SerializeToString(deterministic=True)),
        framed(IDS["proto"], b"\x00" + made["Ping"](at=5).SerializeToString()),
        framed(IDS["proto"], b"\x02\x02" + made["Order"](id=2).SerializeToString()),
        framed(IDS["proto"], b"\x02\x02" + strange.SerializeToString()),
        framed(IDS["proto"], b"\x02\x02" + made["Order"](id=4).SerializeToString() + b"\x78\x05"),  # field 15
        framed(IDS["proto"], b"\x02\x02\x0a\x01x"),
        framed(IDS["proto"], b"\x02\x08"),
        framed(999, b"\x00"),
    )


def messages() -> dict[str, Any]:
    """The classes of the schema above, which is written out here once more for Google's library."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Ping").field.add(name="at", number=1, type=kinds.TYPE_INT64, label=1)
    message = file.message_type.add(name="Order")
    state = message.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    address = message.nested_type.add(name="Address")
    address.field.add(name="street", number=1, type=kinds.TYPE_STRING, label=1)
    address.field.add(name="zip", number=2, type=kinds.TYPE_STRING, label=1)
    entry = message.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=1)
    message.oneof_decl.add(name="_note")
    add = message.field.add
    add(name="id", number=1, type=kinds.TYPE_INT64, label=1)
    add(name="note", number=2, type=kinds.TYPE_STRING, label=1, oneof_index=0, proto3_optional=True)
    add(name="state", number=3, type=kinds.TYPE_ENUM, label=1, type_name=".shop.Order.State")
    add(name="to", number=4, type=kinds.TYPE_MESSAGE, label=1, type_name=".shop.Order.Address")
    add(name="tags", number=5, type=kinds.TYPE_STRING, label=3)
    add(name="counts", number=6, type=kinds.TYPE_MESSAGE, label=3, type_name=".shop.Order.CountsEntry")
    add(name="photo", number=7, type=kinds.TYPE_BYTES, label=1)
    add(name="placed", number=8, type=kinds.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Timestamp")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"shop.{name}") for name in ("Ping", "Order")}
    return {name: message_factory.GetMessageClass(kind) for name, kind in found.items()}


def aidl() -> None:
    """The protocol's values behind its CRC; what the envelope said of the sender is in headers."""

    def quote(protocol: dict[str, Any], value: Any) -> bytes:
        return struct.pack(">I", protocol["id"]) + msgpack.packb(value)

    at = msgpack.Timestamp(START // 1000, 250_000_000)
    values = [
        quote(PROTOCOL, {"symbol": "ACME", "bid": 12.5, "size": 100, "at": at}),
        quote(PROTOCOL, ["ACME", 12.75, 50]),
        quote(TRADE, {"symbol": "ACME", "bid": 12.5, "size": 7}),
        quote({"id": 1}, {"symbol": "ACME"}),
        quote(PROTOCOL, {"symbol": "ACME", "bid": "12.5"}),
        quote(PROTOCOL, ["ACME"])[:-1],
    ]
    sender = [("solace_topic", b"md/quotes"), ("solace_sender_id", b"feed-1")]
    headers = [
        [*sender, ("solace_sender_ts_millis", b"%d" % (START + nth)), ("solace_seq_num", b"%d" % nth)]
        for nth in range(len(values))
    ]
    topic("kdi-aidl", *values, headers=headers)


# ---- Orasi and the analytics platform: JSON with a shape of their own ----


def orasi() -> None:
    span = {
        "id": "span-1",
        "timestamp": "2024-05-01T12:00:00.123456789Z",
        "record_type": "trace",
        "service_name": "cart",
        "operation_name": "GET /cart",
        "duration_ms": 12.5,
        "status_code": 200,
        "attributes": {"region": "eu", "http.method": "GET"},
    }
    topic(
        "orasi-telemetry",
        span,
        {"id": "m-1", "timestamp": "2024-05-01T12:00:01Z", "record_type": "metric", "attributes": {}},
        {**span, "id": "span-2", "attributes": {"retries": 3}},
        {key: span[key] for key in span if key != "id"},
    )


def analytics() -> None:
    event = {"timestamp": "2024-05-01T12:00:00.000Z", "event_type": "click", "channel": "web", "session_id": "s-1"}
    topic(
        "analytics-events",
        {**event, "platform": "ios", "interaction_value": 2.5, "metadata": {"page": 3, "price": 1.50}},
        {**event, "channel": None, "user_id": None, "interaction_value": "12"},
        {"session_id": "s-2", "event_type": "view", "interaction_value": "a lot", "metadata": "none"},
        {**event, "custom_data": {"a": 1}},
        {**event, "timestamp": "yesterday"},
        b"not json",
    )


def schemas() -> None:
    folder = HERE / "schemas"
    for name, schema in (("order", ORDER_SCHEMA), ("later", LATER_SCHEMA), ("click", CLICK_SCHEMA)):
        (folder / f"{name}.avsc").write_text(json.dumps(schema, indent=2) + "\n")
    (folder / "protocols.json").write_text(json.dumps([PROTOCOL, TRADE], indent=2) + "\n")
    answers: dict[str, Any] = {"order": ORDER_SCHEMA, "later": LATER_SCHEMA, "click": CLICK_SCHEMA, "tree": TREE_SCHEMA}
    registry: dict[int, Any] = {
        IDS[name]: {"schema": json.dumps(schema), "schemaType": "AVRO"} for name, schema in answers.items()
    }
    for name, schema in (("json order", JSON_ORDER), ("json click", JSON_CLICK)):
        registry[IDS[name]] = {"schema": json.dumps(schema), "schemaType": "JSON"}
    registry[IDS["proto"]] = {"schema": PROTO, "schemaType": "PROTOBUF"}
    (HERE / "registry.json").write_text(json.dumps(registry, indent=2) + "\n")


if __name__ == "__main__":
    for write in (danube, rivven, kdi, orasi, analytics, schemas):
        write()
