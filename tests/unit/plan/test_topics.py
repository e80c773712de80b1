"""Settings of some topics: every record is decoded, transformed and written as the entry of its topic says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.delta.schema import RECORD_SCHEMA
from headrace.plan.batch_result import BatchResult
from headrace.plan.plan import Plan
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.validate.load import loads
from services.plans import MOMENT, envelope

TOPICS = ("orders", "payments", "raw", "logs.a", "logs.b", "items")
CONTENT: dict[str, Any] = {
    "pipeline": "shop",
    "source": {"kafka": {"brokers": "localhost:9", "topics": list(TOPICS)}},
    "route": {"by": "topic"},
    "table": {"path": "/lake/{topic}"},
    "transform": [{"where": "CAST(id AS VARCHAR) <> '0'"}],
    "branches": [{"name": "all", "table": {"path": "/other/branch"}}],
    "topics": [
        {
            "name": "payments",
            "topic": "payments",
            "transform": [{"set": {"twice": "id * 2"}}],
            "table": {"path": "/lake/payments", "columns": [{"name": "id", "type": "bigint"}], "strict": True},
        },
        {
            "name": "raw",
            "topic": ["raw"],
            "decode": {"string": {"tombstone": "skip"}},
            "table": {"path": "/lake/texts/of_raw", "source": False},
        },
        {
            "name": "logs",
            "match": "^logs",
            "route": {"by": {"field": "level"}},
            "table": {"path": "/lake/logs/{route}"},
            "tables": [{"match": "^debug$", "create": "auto", "contract": {"new_field": "ignore"}}],
        },
        {"name": "items", "topic": "items", "explode": "items", "table": {"path": "/lake/each/item"}},
    ],
}


def shop(**changes: Any) -> Spec:
    return loads(json.dumps(CONTENT | changes), Path("/"))[0]


def records(values: list[tuple[str, bytes | None]]) -> pa.Table:
    offsets = Counter[str]()
    made = []
    for topic, value in values:
        made.append(envelope(offsets[topic], value, topic=topic))
        offsets[topic] += 1
    return pa.Table.from_pylist(made, RECORD_SCHEMA)


def applied(spec: Spec, values: pa.Table) -> BatchResult:
    return Plan(spec, now=lambda: MOMENT).apply(values)


def tables_of(spec: Spec, result: BatchResult) -> dict[str, list[str]]:
    return {
        spec.uri_of(route): sorted(json.dumps(row, default=str, sort_keys=True) for row in table.to_pylist())
        for route, table in result.tables.items()
    }


def dead(result: BatchResult) -> Counter[tuple[Any, ...]]:
    names = ("topic", "partition", "offset", "value", "step", "reason", "detail", "pipeline", "spec")
    return Counter(tuple(row[name] for name in names) for row in result.dead_letters.to_pylist())


def test_each_topic_has_its_own_settings():
    values = [
        ("orders", b'{"id": 1}'),
        ("orders", b'{"id": 0}'),
        ("payments", b'{"id": 0}'),
        ("payments", b'{"id": 1, "new": 2}'),
        ("raw", b"\xc3\xa9"),
        ("raw", b"\xff"),
        ("raw", None),
        ("logs.a", b'{"level": "info", "text": "x"}'),
        ("logs.b", b'{"level": "info", "text": 5}'),
        ("logs.b", b"{}"),
        ("items", b'{"items": [{"n": 1}, {"n": 2}]}'),
    ]
    spec = shop()
    result = applied(spec, records(values))
    rows = {
        spec.uri_of(route): [
            {key: value for key, value in row.items() if key != "_source"} for row in table.to_pylist()
        ]
        for route, table in result.tables.items()
    }
    assert rows == {
        "/lake/orders": [{"id": 1}],
        "/other/branch": [{"id": 1}, {"id": 0}],
        "/lake/payments": [{"id": 0, "twice": 0}],
        "/lake/texts/of_raw": [{"data": "é"}],
        "/lake/logs/info": [{"level": "info", "text": '"x"'}, {"level": "info", "text": "5"}],
        "/lake/each/item": [{"n": 1}, {"n": 2}],
    }
    assert sorted((row["topic"], row["table"], row["reason"]) for row in result.dead_letters.to_pylist()) == [
        ("logs.b", "/lake/logs/{route}", "unrouted"),
        ("payments", "/lake/payments", "new_field"),
        ("raw", "/lake/texts/of_raw", "encoding"),
    ]
    counts = result.counts
    assert (counts.read, counts.routed, counts.dead, counts.filtered) == (11, 7, 3, 1)
    assert counts.is_complete


VALUES = st.one_of(
    st.sampled_from([b"{", b"\xff", None, b"[]", b"", b'"x"']),
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.one_of(st.integers(-2, 5), st.just("x"), st.none()),
            "level": st.sampled_from(["info", "debug", "a/b", 5]),
            "new": st.integers(0, 3),
            "items": st.lists(st.fixed_dictionaries({"n": st.integers(0, 9)}), max_size=3),
        },
    ).map(lambda value: json.dumps(value).encode()),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(TOPICS), VALUES), min_size=1, max_size=30))
def test_topics_together_are_the_same_as_each_alone(values: list[tuple[str, bytes | None]]):
    spec, whole = shop(), records(values)
    together = applied(spec, whole)
    alone = [(spec.model_copy(update={"topics": ()}), tuple(t for t in TOPICS if spec.entry_of(t) is None))]
    alone += [(spec.along(entry), tuple(t for t in TOPICS if spec.entry_of(t) is entry)) for entry in spec.topics]
    assert sorted(topic for _, topics in alone for topic in topics) == sorted(TOPICS)
    tables: dict[str, list[str]] = {}
    letters, counts = Counter[tuple[Any, ...]](), []
    for own, topics in alone:
        part = pa.Table.from_pylist([row for row in whole.to_pylist() if row["topic"] in topics], RECORD_SCHEMA)
        result = applied(own, part)
        tables |= tables_of(own, result)
        letters += dead(result)
        counts.append(result.counts.records())
    assert tables_of(spec, together) == tables
    assert dead(together) == letters
    assert together.counts.records() == {name: sum(each[name] for each in counts) for name in counts[0]}
    assert together.counts.is_complete


def test_each_route_and_its_table_name_each_other():
    spec = shop()
    routes = {
        RouteId("", "orders"): "/lake/orders",
        RouteId("payments"): "/lake/payments",
        RouteId("logs", "info"): "/lake/logs/info",
        RouteId("items"): "/lake/each/item",
    }
    assert {route: spec.uri_of(route) for route in routes} == routes
    assert {spec.route_of(uri): uri for uri in routes.values()} == routes


def test_an_entry_has_the_formats_and_triggers_that_it_does_not_set():
    flush = [{"name": "a", "topic": "orders", "table": {"path": "/lake/a"}, "flush": {"rows": 7}}]
    spec = shop(decode={"json": {"rows": "lines"}}, flush={"every": "9s"}, topics=flush)
    own = spec.branch_specs()["a"]
    assert own.decode == spec.decode
    assert (own.flush.every, own.flush.rows) == (spec.flush.every, 7)
    assert (own.transform, own.branches, own.state_uri) == ((), (), spec.state_uri)


@pytest.mark.parametrize("topic", ["/default/orders", "default.orders"])
def test_topics_of_danube_are_named_as_in_the_source(topic: str):
    source = {"danube": {"url": "http://localhost:6650", "topics": ["/default/orders"]}}
    entry = {"name": "orders", "topic": topic, "table": {"path": "/lake/o/orders"}}
    spec = shop(source=source, topics=[entry], branches=[])
    assert spec.entry_of("default.orders") is spec.topics[0]
