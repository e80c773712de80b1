"""Avro of a real registry, through Kafka and Spark into tables: schemas change, the registry goes, nothing is lost."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
from deltalake import DeltaTable

from headrace import run
from headrace.dev.kafka import Broker
from headrace.validate.online import online
from services.kafka import produce
from services.pipelines import make_spec
from services.plans import spec_of
from services.registry import RegistryServer
from services.s3gate import s3gate

LINE = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": "shop.Line"}},
    ],
}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "price", "type": ["null", PRICE], "default": None}]}
CLICK = {"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}
READER = [{"name": "shop.Line", "subject": "line", "version": 1}]


def framed(number: int, schema: Any, row: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas={"shop.Line": LINE}), row)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "at": 1_700_000_000_000 + number, "lines": [{"sku": "a"}] * (number % 3), **more}


def test_orders_and_clicks(spark: Any, kafka: Broker, registry: RegistryServer, topic: str, lake: Path):
    registry.register("line", LINE)
    old = registry.register("order", ORDER, references=READER)
    new = registry.register("order", NEWER, references=READER)
    click = registry.register("click", CLICK)
    values = [framed(old, ORDER, order(n)) for n in range(100)]
    values += [framed(new, NEWER, order(100 + n, price=Decimal(n) / 4)) for n in range(100)]
    values += [framed(click, CLICK, {"id": n}) for n in range(50)]
    letters = {
        b'{"id": 1}': ("framing", None),
        framed(new, NEWER, order(1, price=None))[:-1]: ("malformed", new),
        framed(click, CLICK, {"id": 1}) + b"x": ("trailing_data", click),
        framed(987_654, CLICK, {"id": 1}): ("unknown_schema", 987_654),
    }
    with s3gate(registry.url) as gate:
        place = f"{gate.endpoint}/apis/ccompat/v7"
        spec = make_spec(
            kafka.bootstrap,
            [topic],
            lake,
            decode={"avro": {"registry": place}},
            transform=[],
            route={"by": "type"},
            table={"path": f"{lake}/{{type}}"},
        )
        gate.on("GET", "/schemas/ids/", "refuse", times=2)
        for partition in (0, 1):
            produce(kafka.bootstrap, topic, [*values, *letters][partition::2], partition)
        events: list[dict[str, Any]] = []
        summary = run(spec, until="latest", report=events.append)
        assert {event["error"] for event in events if event["event"] == "retry"} == {"RegistryUnreachable"}
        assert (summary.counts.read, summary.counts.routed, summary.counts.dead) == (254, 250, 4)

        # Nobody is asked for what is known.
        gate.on("*", "", "refuse", times=1_000_000)
        produce(kafka.bootstrap, topic, [framed(old, ORDER, order(1000 + n)) for n in range(10)], 0)
        assert run(spec, until="latest").counts.routed == 10

    orders = DeltaTable(str(lake / "shop.Order")).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["id"] for row in orders] == [*range(200), *range(1000, 1010)]
    assert [row["price"] for row in orders[98:102]] == [None, None, Decimal("0.00"), Decimal("0.25")]
    assert orders[5]["lines"] == [{"sku": "a"}] * 2
    assert orders[5]["at"].timestamp() == 1_700_000_000.005
    assert len(DeltaTable(str(lake / "Click")).to_pyarrow_table()) == 50
    dead = DeltaTable(spec.dead_letters_uri).to_pyarrow_table().to_pylist()
    assert {row["value"]: (row["reason"], row["schema_id"]) for row in dead} == letters


def test_check_online_predicts_what_the_newest_schema_does(
    kafka: Broker, registry: RegistryServer, topic: str, lake: Path
):
    def said(**table: Any) -> list[tuple[str, str]]:
        spec = make_spec(
            kafka.bootstrap,
            [topic],
            lake,
            decode={"avro": {"registry": registry.url}},
            transform=[],
            route={"by": "fixed"},
            table={"path": str(lake / "orders"), **table},
        )
        return [(each.severity, each.message) for each in online(spec)]

    assert said() == [("warning", f"no subject {topic}-value; its schema was not checked")]
    more = [{"name": "url", "type": "string"}, {"name": "cost", "type": "double"}]
    id = registry.register(f"{topic}-value", {**CLICK, "fields": [*CLICK["fields"], *more]})
    newest, place = f"the latest schema of {topic}-value (id {id})", lake / "orders"
    columns = [{"name": "id", "type": "bigint"}]
    assert said() == []
    assert said(columns=columns) == []
    assert said(columns=columns, contract={"new_field": "evolve"}) == [
        ("warning", f"{newest} adds columns to {place}: url, cost"),
    ]
    assert said(columns=[{"name": "id", "type": "string"}]) == [
        ("error", f"{newest} is incompatible with {place}: id: expected string, saw int64 (type)"),
    ]
    wide = {"features": ["typeWidening"], "contract": {"wrong_type": "widen"}}
    assert said(columns=[{"name": "cost", "type": "int"}], **wide) == [
        (
            "warning",
            f"{newest} requires wider columns in {place}; otherwise its records are dead letters: "
            "cost: expected integer, saw double",
        ),
    ]
    assert said(columns=[*columns, {"name": "user", "type": "string", "nullable": False}]) == [
        ("error", f"{newest} is incompatible with {place}: user: required, and absent or null (missing)"),
    ]


def test_check_online_compares_the_schemas_of_an_entry_of_topics(
    kafka: Broker, registry: RegistryServer, topic: str, new_topic: Any, lake: Path
):
    entry = {
        "name": "clicks",
        "topic": topic,
        "decode": {"avro": {"registry": registry.url}},
        "table": {"path": f"{lake}/clicks", "columns": [{"name": "id", "type": "string"}]},
    }
    spec = spec_of(
        source={"kafka": {"brokers": kafka.bootstrap, "topics": [topic, new_topic()]}},
        table={"path": f"{lake}/others"},
        topics=[entry],
    )
    place = "topics[0].decode.avro.registry"
    assert [(each.key, each.message) for each in online(spec)] == [
        (place, f"no subject {topic}-value; its schema was not checked")
    ]
    id = registry.register(f"{topic}-value", CLICK)
    [finding] = online(spec)
    assert (finding.key, finding.message) == (
        place,
        f"the latest schema of {topic}-value (id {id}) is incompatible with {lake}/clicks: "
        "id: expected string, saw int64 (type)",
    )
