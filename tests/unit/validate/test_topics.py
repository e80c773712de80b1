"""Rules for `topics`: every entry can get records, and writes where no other one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.spec import Diagnostic
from headrace.validate.load import examine_text

KAFKA = {"kafka": {"brokers": "localhost:9092", "topics": ["orders", "payments", "logs.a"]}}


def told(*topics: dict[str, Any], **content: Any) -> list[Diagnostic]:
    whole = {"pipeline": "shop", "source": KAFKA, "table": {"path": "/lake/rest"}, "topics": list(topics), **content}
    return examine_text(json.dumps(whole), Path("/"))[1]


def entry(name: str = "orders", **keys: Any) -> dict[str, Any]:
    keys = keys if "match" in keys else {"topic": name, **keys}
    return {"name": name, "table": {"path": f"/lake/{name}"}, **keys}


def test_a_valid_spec():
    assert told(entry(), entry("payments"), entry("logs", match=r"^logs\.")) == []


@pytest.mark.parametrize(
    ("topics", "key", "message"),
    [
        ([entry(topic="order")], "topics[0].topic[0]", "the source does not read 'order'"),
        ([entry(topic="/orders")], "topics[0].topic[0]", "the source does not read '/orders'"),
        ([entry("logs", match="^log_")], "topics[0].match", "no topic of the source matches"),
        ([entry(topic=["orders", "orders"])], "topics[0].topic[1]", "duplicate topic 'orders'"),
        (
            [entry("logs", match="."), entry()],
            "topics[1].topic[0]",
            "'orders' is already selected by the entry 'logs'",
        ),
        ([entry(), entry("two", topic="orders")], "topics[1].topic[0]", "'orders' is already selected by the entry"),
        ([entry(), entry(topic="payments", table={"path": "/lake/p"})], "topics[1].name", "duplicate name 'orders'"),
        ([entry(), entry("payments", table={"path": "/lake/orders/x"})], "topics[1].table.path", "overlaps with the"),
        ([entry(table={"path": "/lake/rest"})], "topics[0].table.path", "overlaps with the pipeline's main table"),
        ([entry(table={"path": "/lake/_headrace/shop"})], "topics[0].table.path", "overlaps with the state"),
        ([entry(transform=[{"where": "1 +"}])], "topics[0].transform[0].where", ""),
        ([entry(decode={"avro": {"schema": "missing.avsc"}})], "topics[0].decode.avro.schema", "cannot be read"),
        ([entry(flush={"every": "2d"})], "topics[0].flush.every", "more than one day"),
        ([entry(flush={"rows": 2_000_000})], "topics[0].flush.rows", "more than limits.batch_rows"),
        ([entry(route={"by": "type"}, table={"path": "/lake/o/{type}"})], "topics[0].route.by", "do not carry a type"),
        ([entry(table={"path": "/lake/o", "mode": "overwrite"})], "topics[0].table.mode", "overwrite together with"),
        ([entry(transfrom=[])], "topics[0].transfrom", "unknown key"),
        ([entry(branches=[])], "topics[0].branches", "unknown key"),
        ([{"name": "a", "table": {"path": "/lake/a"}}], "topics[0]", "none of topic, match"),
        ([entry("logs", match="x", topic="orders")], "topics[0]", "topic and match together"),
        ([entry(table={})], "topics[0].table", "missing"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_an_error(topics: list[dict[str, Any]], key: str, message: str):
    diagnostics = [each for each in told(*topics) if each.severity == "error"]
    assert [(each.key.startswith(key), message in each.message) for each in diagnostics] == [(True, True)], diagnostics


def test_a_mistyped_topic_gets_a_suggestion():
    [diagnostic] = told(entry(topic="ordres"))
    assert diagnostic.suggestion == "orders"


def test_names_are_unique_among_branches_too():
    [diagnostic] = told(entry(), branches=[{"name": "orders", "table": {"path": "/lake/all"}}])
    assert (diagnostic.key, diagnostic.message) == ("topics[0].name", "duplicate name 'orders'")


def test_triggers_of_topics_are_not_used_with_a_rate():
    source = {"kafka": {**KAFKA["kafka"], "rate": "100/s"}}
    [diagnostic] = told(entry(flush={"every": "1s"}), source=source)
    assert diagnostic.key == "topics[0].flush"


def test_triggers_of_topics_fit_the_freshness_target():
    [diagnostic] = told(entry(flush={"every": "1h"}), freshness={"target": "1m"})
    assert diagnostic.key == "topics[0].flush.every"


@pytest.mark.parametrize(
    ("path", "accepted"),
    [
        ("/lake/orders", True),  # of a topic with an entry
        ("/lake/payments", False),  # of a topic that the pipeline's settings apply to
        ("/lake/other", True),  # of a topic that is not read
        ("/lake/orders/inner", True),
        ("/lake/payments/inner", False),
        ("/lake", False),
    ],
)
def test_an_entry_may_write_where_the_pipeline_never_does(path: str, accepted: bool):
    lake = {"route": {"by": "topic"}, "table": {"path": "/lake/{topic}"}, "state": "/state"}
    assert (told(entry(table={"path": path}), **lake) == []) is accepted


def test_a_topic_of_a_pattern_may_come_later():
    source = {"kafka": {"brokers": "localhost:9092", "pattern": "^shop"}}
    lake = {"route": {"by": "topic"}, "table": {"path": "/lake/{topic}"}, "source": source}
    assert told(entry(topic="shop.a", table={"path": "/lake/other"}), **lake) == []
    [diagnostic] = told(entry(topic="shop.a", table={"path": "/lake/shop.b"}), **lake)
    assert diagnostic.key == "topics[0].table.path"
    [diagnostic] = told(entry(topic="web", table={"path": "/lake/web"}), **lake)
    assert diagnostic.message == "the source does not read 'web'"


@pytest.mark.parametrize("source", [{"generate": {}}, {"files": {"path": "/in"}}], ids=str)
def test_a_source_with_one_topic_has_no_entries(source: dict[str, Any]):
    [diagnostic] = told(entry(), source=source)
    assert (diagnostic.key, diagnostic.expected) == ("topics", "a source with topics")


def test_signals_of_otlp_may_have_layouts_of_their_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTLP_TOKEN", "x" * 32)
    source = {"otlp": {"grpc": "127.0.0.1:4317", "tokens": ["${env:OTLP_TOKEN}"], "spool": {"path": "/spool"}}}
    traces = entry("traces", decode={"otlp": {"layout": "zerobus"}})
    found = told(traces, entry("logs", decode="json"), source=source, decode="otlp")
    assert [each.key for each in found if each.key.startswith("topics")] == ["topics[1].decode"]


def test_merges_of_one_topic_need_no_order_beside_the_offsets():
    merged = {
        "path": "/lake/o",
        "mode": "upsert",
        "merge": {"keys": ["id"]},
        "columns": [{"name": "id", "type": "long"}],
    }
    assert told(entry(table=merged)) == []
    [warning] = told(entry("both", topic=["orders", "payments"], table=merged))
    assert (warning.severity, "several topics in one table" in warning.message) == ("warning", True)
