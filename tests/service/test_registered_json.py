"""JSON behind a real schema registry: its schema names the type, the fields, and what is required."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Plan
from headrace.decode.base import Decoder
from headrace.decode.decoders import decoder
from headrace.dev.kafka import Broker
from headrace.spec import Decode
from headrace.spec.route_id import RouteId
from headrace.validate.load import examine_text, loads
from headrace.validate.online import online
from services.pipelines import make_spec
from services.plans import envelopes
from services.registry import RegistryServer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
        "any": {},
    },
    "required": ["id"],
    "definitions": {"line": {"type": "object", "properties": {"sku": {"type": "string"}, "of": {"$ref": "#"}}}},
}
CLICK = {"title": "Click", "type": "object", "properties": {"at": {"type": "string"}}}


@pytest.fixture
def applied(registry: RegistryServer) -> Callable[..., Any]:
    def run(route: str, path: str, *values: bytes | None) -> Any:
        [spec] = loads(f"""
pipeline: shop
source: {{kafka: {{brokers: "localhost:9092", topics: [t]}}}}
decode: {{json: {{registry: "{registry.url}"}}}}
route: {{by: {route}}}
table: {{path: "/lake/{path}"}}
""")
        return Plan(spec, now=lambda: NOW).apply(envelopes(values, "t"))

    return run


def framed(id: int, value: Any) -> bytes:
    return struct.pack(">bI", 0, id) + (value if isinstance(value, bytes) else json.dumps(value).encode())


def test_each_type_has_its_table_with_the_columns_of_its_schema(registry: RegistryServer, applied: Callable[..., Any]):
    order = registry.register("order-value", json.dumps(ORDER), "JSON")
    click = registry.register("click-value", json.dumps(CLICK), "JSON")
    found = applied(
        "type",
        "{type}",
        framed(order, {"id": 1, "price": 2, "lines": [{"sku": "a"}]}),
        framed(click, {"at": "now", "x": 1}),
        framed(order, {"id": 2, "any": {"deep": 1.50}}),
        framed(order, {"price": 3}),
        framed(9_999_999, {"id": 3}),
        framed(order, b"not json"),
        b"\0\0",
        b"\1" + framed(order, {"id": 4})[1:],
        None,
    )
    orders, clicks = found.tables[RouteId("", "Order")], found.tables[RouteId("", "Click")]
    assert orders.drop_columns(["_source"]).to_pylist() == [
        {"id": 1, "price": 2.0, "note": None, "lines": [{"sku": "a", "of": None}], "any": None},
        {"id": 2, "price": None, "note": None, "lines": None, "any": '{"deep": 1.5}'},
    ]
    assert orders.schema.field("price").type == pa.float64()
    assert orders.schema.field("lines").type.value_type.field("of").type == pa.string()  # a schema without end is text
    assert clicks.drop_columns(["_source"]).to_pylist() == [{"at": "now", "x": 1}]
    letters = found.dead_letters.to_pylist()
    assert [
        (row["offset"], row["reason"], row["schema_id"]) for row in sorted(letters, key=lambda row: row["offset"])
    ] == [
        (3, "missing", order),
        (4, "unknown_schema", 9_999_999),
        (5, "malformed", order),
        (6, "framing", None),
        (7, "framing", None),
        (8, "tombstone", None),
    ]
    assert found.counts.read == 9 == found.counts.routed + found.counts.dead


def test_a_record_with_one_row_that_lacks_something_has_none(registry: RegistryServer):
    order = registry.register("orders-value", json.dumps(ORDER), "JSON")
    registered = decoding("json", pa.schema([pa.field("id", pa.int64())]), {"registry": registry.url, "rows": "array"})
    values = [framed(order, [{"id": 1}, {}, {}]), framed(order, [{"id": 2}, {"id": 3}])]
    found = registered.decode(pa.array(values, pa.binary()))
    assert found.rows["id"].to_pylist() == [2, 3]
    assert found.index.to_pylist() == [1, 1]
    assert found.rejects.index == [0]


def decoding(format: str, payload: pa.Schema, options: dict[str, Any]) -> Decoder:
    return decoder(format, payload, options=Decode.model_validate({format: options}).options)


def test_a_schema_of_another_kind_is_no_json(registry: RegistryServer, applied: Callable[..., Any]):
    avro = registry.register("avro-value", '{"type":"record","name":"R","fields":[]}', "AVRO")
    found = applied("fixed", "one", framed(avro, {"id": 1}))
    assert found.dead_letters["reason"].to_pylist() == ["unknown_schema"]


def test_a_type_is_refused_where_values_tell_none():
    _, findings = examine_text(
        """
pipeline: shop
source: {kafka: {brokers: "localhost:9092", topics: [t]}}
route: {by: type}
table: {path: "/lake/{type}"}
""",
        Path("/"),
    )
    assert ["do not carry a type name" in finding.message for finding in findings] == [True]


def test_check_online_predicts_what_the_newest_schema_does(
    kafka: Broker, registry: RegistryServer, topic: str, lake: Path
):
    def said(**table: Any) -> list[tuple[str, str]]:
        spec = make_spec(
            kafka.bootstrap,
            [topic],
            lake,
            decode={"json": {"registry": registry.url}},
            transform=[],
            route={"by": "fixed"},
            table={"path": str(lake / "orders"), **table},
        )
        return [(each.severity, each.message) for each in online(spec)]

    assert said() == [("warning", f"no subject {topic}-value; its schema was not checked")]
    id = registry.register(f"{topic}-value", json.dumps(ORDER), "JSON")
    newest, place = f"the latest schema of {topic}-value (id {id})", lake / "orders"
    whole = [{"name": "id", "type": "bigint"}, {"name": "any", "type": "string", "json": True, "nullable": False}]
    assert said() == []
    assert said(columns=whole) == []
    assert said(columns=whole, contract={"new_field": "evolve"}) == [
        ("warning", f"{newest} adds columns to {place}: price, note, lines"),
    ]
    assert said(columns=[{"name": "price", "type": "int"}]) == [
        ("error", f"{newest} is incompatible with {place}: price: expected integer, saw the number 0.5 (type)"),
    ]
    assert said(columns=[{"name": "user", "type": "string", "nullable": False}]) == [
        ("error", f"{newest} is incompatible with {place}: user: required, and absent or null (missing)"),
    ]
