"""Routes: every record has one or is accounted for, and no value of a record can choose a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.delta.schema import RECORD_SCHEMA
from headrace.pipeline.existing_tables import table_uris
from headrace.plan.routing import routes, split_by_route
from headrace.reasons import Reason
from headrace.spec.route_id import RouteId
from headrace.spec.routing import NAME, Routing
from headrace.storage.store import Profile
from services.in_process_pipeline import Harness
from services.plans import spec_of

# Values a producer may send in the hope of writing elsewhere.
PATHS = [
    "../x",
    "..",
    ".",
    ".hidden",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "s3://other/bucket",
    "file:///etc",
    "%2e%2e%2fx",
    "a\0b",
    "a\nb",
    "a ",
    " a",
    "",
    "\u2024\u2024/x",  # one-dot leaders
    "\uff0e\uff0e",  # full-width dots
    "é",
    "a:b",
    "{route}",
    "_delta_log",
    "-rf",
    "x" * 129,
    "x" * 300,
    "'; drop table x",
]


def envelopes(*topics: str, headers: list[list[tuple[str, bytes | None]] | None] | None = None) -> pa.Table:
    count = len(headers) if headers else len(topics)
    given = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in headers or [[]] * count]
    columns = {
        "topic": list(topics) or ["t"] * count,
        "partition": [0] * count,
        "offset": list(range(count)),
        "timestamp": [0] * count,
        "timestamp_type": [0] * count,
        "key": [None] * count,
        "value": [b"{}"] * count,
        "headers": given,
    }
    return pa.table(columns, schema=RECORD_SCHEMA)


def peeked(*values: str | None) -> tuple[pa.Table, pa.StringArray]:
    return envelopes(*["t"] * len(values)), pa.array(values, pa.string())


def test_fixed_is_one_route_without_a_name() -> None:
    routed = routes(Routing(), envelopes("a", "b"))
    assert routed.values.to_pylist() == ["", ""]
    assert not routed.rejects.index
    assert not len(routed.filtered)


def test_topics_are_routes_when_they_are_names() -> None:
    routed = routes(Routing("topic"), envelopes("shop.orders", "__consumer_offsets", "a-b_c"))
    assert routed.values.to_pylist() == ["shop.orders", None, "a-b_c"]
    assert routed.rejects.index == [1]
    assert routed.rejects.reason == [Reason.BAD_ROUTE]


@pytest.mark.parametrize("value", PATHS, ids=[repr(value[:20]) for value in PATHS])
def test_what_is_not_a_name_is_a_dead_letter(value: str) -> None:
    routed = routes(Routing("field", "/type"), *peeked("good", value, "good"))
    assert routed.values.to_pylist() == ["good", None, "good"]
    assert (routed.rejects.index, routed.rejects.reason) == ([1], [Reason.BAD_ROUTE])
    assert len(routed.rejects.detail[0]) < 512


def test_missing_and_not_included_are_unrouted() -> None:
    routing = Routing("field", "type", include="^shop", exclude="test$")
    routed = routes(routing, *peeked("shop.a", None, "web.a", "shop.test"))
    assert routed.values.to_pylist() == ["shop.a", None, None, None]
    assert routed.rejects.index == [1, 2, 3]
    assert set(routed.rejects.reason) == {Reason.UNROUTED}
    assert "missing" in routed.rejects.detail[0]
    assert "include" in routed.rejects.detail[1]
    assert "exclude" in routed.rejects.detail[2]


def test_skip_filters_the_unrouted_but_never_a_bad_route() -> None:
    routing = Routing("field", "type", include="^(shop|\\.)", unrouted="skip")
    routed = routes(routing, *peeked("shop.a", None, "web.a", "../x"))
    assert routed.filtered.to_pylist() == [1, 2]
    assert (routed.rejects.index, routed.rejects.reason) == ([3], [Reason.BAD_ROUTE])


def test_the_last_header_of_a_name_decides() -> None:
    headers = [[("type", b"a"), ("x", b"y"), ("type", b"b")], [], None, [("type", None)], [("type", b"\xff/")]]
    routed = routes(Routing("header", "type"), envelopes(headers=headers))
    assert routed.values.to_pylist() == ["b", None, None, None, None]
    assert routed.rejects.reason == [Reason.UNROUTED] * 3 + [Reason.BAD_ROUTE]


def test_headers_of_a_slice_are_its_own() -> None:
    headers = [[("type", b"a")], [("type", b"b")], [("type", b"c")]]
    routed = routes(Routing("header", "type"), envelopes(headers=headers).slice(1))
    assert routed.values.to_pylist() == ["b", "c"]


def test_split_gives_positions_in_order() -> None:
    parts = split_by_route(pa.array(["b", "a", None, "b", "a", "b"]))
    assert {name: index.to_pylist() for name, index in parts.items()} == {"b": [0, 3, 5], "a": [1, 4]}
    assert split_by_route(pa.array([], pa.string())) == {}


@settings(deadline=None)
@given(st.lists(st.none() | st.sampled_from("abcdef")))
def test_split_loses_and_duplicates_nothing(values: list[str | None]) -> None:
    parts = split_by_route(pa.array(values, pa.string()))
    seen = sorted((position, name) for name, index in parts.items() for position in index.to_pylist())
    assert seen == [(position, name) for position, name in enumerate(values) if name is not None]


@settings(deadline=None)
@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=20))
def test_every_record_has_a_route_or_is_accounted_for(values: list[str | None]) -> None:
    for unrouted in ("dead_letter", "skip"):
        routed = routes(Routing("field", "f", include="[a-z]", unrouted=unrouted), *peeked(*values))
        names = routed.values.to_pylist()
        assert all(NAME.fullmatch(name) for name in names if name is not None)
        gone = sorted([*routed.rejects.index, *routed.filtered.to_pylist()])
        assert gone == [position for position, name in enumerate(names) if name is None]


def test_every_topic_may_have_tables_of_its_own() -> None:
    table, values = peeked("a", None, "b/c", "b")
    named = table.set_column(table.column_names.index("topic"), "topic", pa.array(["shop", "shop", "shop", "_odd"]))
    routed = routes(Routing("field", "f", include="^[ab]", topics=True), named, values)
    assert routed.values.to_pylist() == ["shop:a", None, None, None]
    assert routed.rejects.reason == [Reason.UNROUTED, Reason.BAD_ROUTE, Reason.BAD_ROUTE]
    assert "the topic '_odd' is not a valid directory name" in routed.rejects.detail[2]


@pytest.mark.parametrize(
    ("path", "route", "name", "uri"),
    [
        ("/lake/{topic}/{type}", "type", "shop:Order", "/lake/shop/Order"),
        ("/lake/{type}-of-{topic}/rows", "type", "shop:Order", "/lake/Order-of-shop/rows"),
        ("/lake/{topic}/{topic}_{route}", {"field": "a"}, "x.y:eu", "/lake/x.y/x.y_eu"),
        ("/lake/{topic}", "topic", "shop", "/lake/shop"),
    ],
)
def test_a_path_with_several_variables_leads_there_and_back(path: str, route: Any, name: str, uri: str) -> None:
    decode = {"json": {"registry": "http://localhost:9"}} if route == "type" else "json"
    spec = spec_of(route={"by": route}, table={"path": path}, decode=decode)
    assert (spec.uri_of(RouteId("", name)), spec.route_of(uri)) == (uri, RouteId("", name))
    assert spec.route_of(f"{uri}/more") is None
    assert spec.route_of("/lake/shop/shop_x/y") is None
    assert spec.route_of("/lake/a/b_eu") is None or path != "/lake/{topic}/{topic}_{route}"


@pytest.mark.parametrize("by", [{"field": "kind"}, {"sql": "kind"}], ids=["field", "sql"])
def test_topics_with_tables_of_their_own_are_written_known_again_and_found(tmp_path: Path, by: dict[str, str]) -> None:
    table = {"path": f"{tmp_path}/lake/of-{{topic}}/{{route}}/rows"}
    harness = Harness(tmp_path, {"route": {"by": by}, "table": table, "tables": [{"match": "s:b$", "strict": True}]})
    for _ in range(2):
        harness.feed([{"kind": "a", "id": 1}, {"kind": "b", "id": 2}, {"kind": "../c"}])
    assert [len(harness.rows(f"lake/of-orders/{kind}/rows")) for kind in "ab"] == [2, 2]
    assert {row["reason"] for row in harness.dead()} == {"bad_route"}
    assert harness.spec.table_for(RouteId("", "orders:b")).strict
    (tmp_path / "lake/other/a/rows").mkdir(parents=True)
    found = table_uris(harness.spec, Profile())
    assert found == [f"{tmp_path}/lake/of-orders/{kind}/rows" for kind in "ab"]


def test_rules_run_once_per_distinct_value() -> None:
    routed = routes(Routing("field", "f"), *peeked(*["a", "b/c"] * 50_000))
    assert len(routed.rejects.index) == 50_000
    assert routed.values.null_count == 50_000
