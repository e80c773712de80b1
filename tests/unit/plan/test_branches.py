"""One record to several tables: every branch takes it as decoded, once, or has a letter for it."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.dead_letters import _table
from headrace.dead_letters.dry_run import dry_run
from headrace.dead_letters.reader import RecordPosition, Selection
from headrace.errors import SpecError
from headrace.faults import Abandoned, Point, armed
from headrace.pipeline import task
from headrace.pipeline.manifest import Manifest
from headrace.pipeline.preview import preview_records
from headrace.plan import decoding
from headrace.plan.accounting import Counts
from headrace.plan.decode_cache import DecodeCache
from headrace.plan.plan import Plan
from headrace.spec.route_id import RouteId
from headrace.validate import online
from headrace.validate.load import loads
from services.in_process_pipeline import Harness
from services.plans import adds_up, envelopes, plan_of, rows, shaped, spec_of

CHILD = {"name": "items", "explode": {"column": "items", "keep": {"order_id": "id"}}, "table": {"path": "/lake/items"}}
ORDER = {"id": 7, "to": "Faro", "items": [{"sku": "a", "qty": 1}, {"sku": "b", "qty": 2}]}


def branched(*branches: dict[str, Any], **content: Any) -> Plan:
    return plan_of(branches=list(branches or [CHILD]), **content)


def places(applied: Any) -> dict[tuple[int, str | None], str]:
    """The reason of each letter, by offset and table."""
    return {(row["offset"], row["table"]): row["reason"] for row in applied.dead_letters.to_pylist()}


# ---- the plan ----


def test_a_record_is_in_its_table_and_its_elements_in_another():
    applied = branched().apply(envelopes([ORDER, {"id": 8, "to": "Lagos", "items": []}]))
    assert rows(applied) == [{**ORDER}, {"id": 8, "to": "Lagos", "items": []}]
    assert rows(applied, "items/") == [
        {"order_id": 7, "sku": "a", "qty": 1},
        {"order_id": 7, "sku": "b", "qty": 2},
    ]
    counts = adds_up(applied)
    assert (counts.read, counts.routed, counts.filtered) == (2, 2, 0)


def test_a_branch_sees_records_as_they_were_decoded_and_has_steps_and_routes_of_its_own():
    big = {
        "name": "big",
        "transform": [{"where": "id > 7"}, {"drop": ["items"]}],
        "route": {"by": {"field": "to"}},
        "table": {"path": "/lake/big/{route}"},
    }
    plan = branched(CHILD, big, transform=[{"set": {"to": "'elsewhere'"}}, {"drop": ["items"]}])
    applied = plan.apply(envelopes([ORDER, {**ORDER, "id": 8}]))
    assert rows(applied) == [{"id": 7, "to": "elsewhere"}, {"id": 8, "to": "elsewhere"}]
    assert rows(applied, "big/Faro") == [{"id": 8, "to": "Faro"}]
    assert set(map(str, applied.tables)) == {"", "items/", "big/Faro"}
    adds_up(applied)


def test_a_branch_masks_with_a_key_of_its_own_that_nobody_sees(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASK_KEY", "a key that is long enough for it")
    masked = {
        "name": "masked",
        "transform": [{"mask": {"to": {"sha256": "${env:MASK_KEY}"}}}],
        "table": {"path": "/lake/m"},
    }
    plan = branched(masked)
    applied = plan.apply(envelopes([ORDER]))
    assert rows(applied) == [ORDER]
    assert len(rows(applied, "masked/")[0]["to"]) == 64
    assert not any(
        "long enough" in shown for shown in (repr(plan.spec), plan.spec.text, repr(plan.spec.branch_specs()))
    )


def test_a_record_without_a_row_anywhere_is_filtered():
    plan = branched(transform=[{"where": "id > 7"}])
    counts = adds_up(plan.apply(envelopes([{"id": 1, "items": []}, ORDER, {"id": 8, "items": []}])))
    assert (counts.routed, counts.filtered) == (2, 1)


def test_what_cannot_be_read_is_a_dead_letter_for_every_table_it_is_meant_for():
    big = {"name": "big", "route": {"by": {"field": "to"}}, "table": {"path": "/lake/big/{route}"}}
    applied = branched(CHILD, big).apply(envelopes([ORDER, b"{"]))
    assert places(applied) == dict.fromkeys(
        [(1, "/lake/web"), (1, "/lake/items"), (1, "/lake/big/{route}")], "malformed"
    )
    counts = adds_up(applied)
    assert (counts.routed, counts.dead, counts.reasons) == (1, 1, {"malformed": 3})


def test_a_dead_letter_of_one_table_is_a_row_of_another():
    columns = [{"name": "id", "type": "bigint"}]
    child = {
        **CHILD,
        "table": {
            "path": "/lake/items",
            "columns": [{"name": "order_id", "type": "string"}, {"name": "sku", "type": "string"}],
        },
    }
    applied = branched(child, table={"columns": columns}).apply(envelopes([{**ORDER, "id": "x"}, ORDER]))
    assert places(applied) == {(0, "/lake/web"): "type", (1, "/lake/items"): "type"}
    assert [row["order_id"] for row in rows(applied, "items/")] == ["x", "x"]
    counts = adds_up(applied)
    assert (counts.routed, counts.dead) == (2, 0)


def test_new_fields_go_to_the_branches_that_want_them():
    plan = shaped(branched(), "", "items/", learned={"type": "struct", "fields": {}})
    found = plan.apply(envelopes([ORDER])).discovered
    assert set(found) == {RouteId(), RouteId("items")}
    assert set(found[RouteId()]["fields"]) == {"id", "to", "items"}
    assert set(found[RouteId("items")]["fields"]) == {"order_id", "items"}


def test_sql_routes_in_two_branches_learn_apart():
    other = {"name": "sku", "explode": "items", "route": {"by": {"sql": "sku"}}, "table": {"path": "/skus/{route}"}}
    plan = branched(other, route={"by": {"sql": 'lower("to")'}})
    applied = plan.apply(envelopes([ORDER, {"id": 8, "to": None, "items": [{"sku": None, "qty": 1}]}]))
    assert rows(applied, "faro") == [ORDER]
    assert rows(applied, "sku/b") == [{"sku": "b", "qty": 2}]
    assert places(applied) == {(1, None): "unrouted", (1, "/skus/{route}"): "unrouted"}
    adds_up(applied)


scalar = st.one_of(st.none(), st.integers(-3, 3))
element = st.fixed_dictionaries({}, optional={"sku": st.sampled_from(["a", "b"]), "qty": scalar})
order = st.fixed_dictionaries({"id": st.integers(0, 5)}, optional={"items": st.lists(element, max_size=3), "n": scalar})
poison = st.sampled_from([b"{", b"", None, {"id": "x"}, {"id": 1, "items": 2}, {"id": 1, "items": [{"qty": "x"}]}])
COLUMNS = [{"name": "order_id", "type": "bigint"}, {"name": "sku", "type": "string"}, {"name": "qty", "type": "bigint"}]


@given(st.lists(st.one_of(order, order, poison), max_size=12))
@settings(max_examples=60, deadline=None)
def test_every_record_is_in_each_table_or_has_a_dead_letter_for_it_or_is_filtered_there(values: list[Any]):
    main = {"columns": [{"name": "id", "type": "bigint"}, {"name": "n", "type": "bigint"}]}
    child = {**CHILD, "table": {"path": "/lake/items", "columns": COLUMNS}}
    small = {"name": "small", "transform": [{"where": "id < 3"}], "table": {"path": "/lake/small", **main}}
    applied = branched(child, small, table=main).apply(envelopes(values))
    refused = places(applied)
    for name, uri, due in (
        (RouteId(), "/lake/web", lambda value: 1),
        (RouteId("items"), "/lake/items", lambda value: len(value.get("items", ()))),
        (RouteId("small"), "/lake/small", lambda value: int(value["id"] < 3)),
    ):
        met = Counter(applied.origins[name].tolist() if name in applied.origins else [])
        for at, value in enumerate(values):
            if (at, uri) in refused:
                assert met[at] == 0
            else:
                assert isinstance(value, dict)
                assert met[at] == due(value)
    adds_up(applied)


def learned(values: list[Any], **content: Any) -> Any:
    """All that a plan says of a second batch, after a first has taught it the columns."""
    plan = branched(CHILD, {"name": "copy", "table": {"path": "/lake/copy"}}, **content)
    plan.apply(envelopes([{"id": 1, "n": 1, "items": [{"sku": "a", "qty": 1}]}]))
    applied = plan.apply(envelopes(values))
    tables = {name: table.to_pylist() for name, table in applied.tables.items()}
    return tables, sorted(places(applied).items(), key=str), adds_up(applied)


@pytest.mark.parametrize(
    "content", [{}, {"table": {"contract": {"new_field": "ignore"}}}, {"decode": {"json": {"tombstone": "row"}}}]
)
@given(values=st.lists(st.one_of(order, order, poison, st.just({"id": 1, "new": 1})), max_size=10))
@settings(max_examples=10, deadline=None)
def test_nobody_can_tell_that_a_decode_was_shared(content: dict[str, Any], values: list[Any]):
    shared = learned(values, **content)
    with mock.patch.object(DecodeCache, "find", return_value=None):
        assert learned(values, **content) == shared


def test_what_two_branches_read_alike_is_decoded_once():
    plan = branched(CHILD, {"name": "copy", "table": {"path": "/lake/copy"}})
    plan.apply(envelopes([ORDER]))
    with mock.patch.object(decoding, "decode_records", wraps=decoding.decode_records) as asked:
        plan.apply(envelopes([ORDER, {**ORDER, "id": "x"}]))
    assert [len(call.args[1]) for call in asked.call_args_list] == [2, 1, 1]  # the rejected one by every branch


# ---- check ----


def findings(text: str) -> list[str]:
    with pytest.raises(SpecError) as wrong:
        loads(text, "/lake", "shop.yaml")
    return str(wrong.value).splitlines()


HEAD = "pipeline: shop\nsource: {generate: {}}\ntable: {path: /lake/orders}\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "branches:\n  - {name: a, table: {path: /lake/orders}}",
            "shop.yaml:5:29 branches[0].table.path: overlaps with the",
        ),
        (
            "branches:\n  - {name: a, table: {path: /lake/orders/a}}",
            "branches[0].table.path: overlaps with the pipeline's main",
        ),
        (
            "branches:\n  - {name: a, table: {path: /lake/a}}\n"
            "  - {name: b, route: {by: topic}, table: {path: '/lake/{topic}'}}",
            "branches[1].table.path: overlaps with the pipeline's main table (/lake/orders)",
        ),
        (
            "branches:\n  - {name: a, table: {path: /lake/a}}\n  - {name: a, table: {path: /lake/b}}",
            "branches[1].name: duplicate name 'a'",
        ),
        (
            "branches:\n  - {name: a, table: {path: /lake/_headrace/shop}}",
            "branches[0].table.path: overlaps with the state",
        ),
        (
            "branches:\n  - {name: a, table: {path: '/lake/{route}/b'}}",
            "branches[0].table.path: {route} requires a route",
        ),
        (
            "branches:\n  - {name: a, table: {path: /lake/a}, transform: [{where: 'a +'}]}",
            "branches[0].transform[0].where",
        ),
        ("branches:\n  - {name: a/b, table: {path: /lake/a}}", "branches[0].name"),
        ("branches:\n  - {name: a, table: {path: /lake/a}, decode: json}", "branches[0].decode: unknown key"),
        ("explode: {column: items, keep: [id, ID]}", "explode.keep.ID: duplicate column 'ID'"),
        ("explode: {column: items, keep: [items]}", "explode.keep.items: duplicate column 'items'"),
        ("explode: {column: items, keep: {a: items.b}}", "explode.keep.a: 'items.b' is the exploded array"),
        ("explode: {column: items, keep: {a: x..y}}", "explode.keep.a: 'x..y'"),
        ("explode: {column: items, keep: [a.b]}", "explode.keep.a.b: 'a.b'"),
        ("explode: {column: items, position: _source}", "explode.position: '_source' is reserved"),
        ("explode: {column: items, empty: all}", "explode.empty"),
        ("explode: items\ndecode: string", "explode: explode requires a format with fields; string has none"),
    ],
)
def test_diagnostics_say_where(more: str, said: str):
    found = findings(HEAD + more)
    assert any(said in each for each in found), found
    assert all(each.startswith("shop.yaml:") for each in found)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"columns": [{"name": "id", "type": "bigint"}]}, "table.columns: no column for the elements of 'items'"),
        (
            {"columns": [{"name": "id", "type": "bigint"}, {"name": "sku", "type": "string", "path": "a.b"}]},
            "table.columns[1].path: path is not supported inside an element",
        ),
        (
            {"columns": [{"name": "id", "type": "bigint", "path": "a"}, {"name": "sku", "type": "string"}]},
            "table.columns[0].path: path is not supported for a kept field",
        ),
        ({"columns": [{"name": "sku", "type": "string"}]}, "explode.keep.id: 'id' is not declared"),
        (
            {"columns": [{"name": n, "type": "string"} for n in ("id", "items", "sku")]},
            "table.columns: 'items' (the whole element) together with fields of it",
        ),
    ],
)
def test_a_table_of_elements_that_cannot_be(table: dict[str, Any], said: str):
    text = json.dumps(
        {
            "pipeline": "shop",
            "source": {"generate": {}},
            "explode": {"column": "items", "keep": ["id"]},
            "table": {"path": "/lake/items", **table},
        }
    )
    assert any(said in each for each in findings(text))


UNKNOWN_FIELDS_LOST = "explode.keep: keep_unknown_fields has no column in exploded rows"


@pytest.mark.parametrize(
    ("keep", "contract", "has_error"),
    [
        (["id"], {}, True),
        (["id"], {"new_field": "evolve"}, True),
        (["id", "_unknown"], {}, False),
        ({"order_id": "id", "raw": "_unknown"}, {}, False),
        (["id"], {"new_field": "ignore"}, False),
        (["id"], {"new_field": "reject"}, False),
    ],
)
@pytest.mark.parametrize("in_branch", [False, True])
def test_explode_must_keep_the_unknown_fields_that_protobuf_keeps(
    tmp_path: Path, keep: Any, contract: dict[str, str], has_error: bool, in_branch: bool
):
    (tmp_path / "order.proto").write_text(
        'syntax = "proto3"; message Item { string sku = 1; } message Order { int64 id = 1; repeated Item items = 2; }'
    )
    options = {"descriptor": str(tmp_path / "order.proto"), "message": "Order", "keep_unknown_fields": True}
    exploded = {"explode": {"column": "items", "keep": keep}, "table": {"path": "/lake/items", "contract": contract}}
    whole = {"table": {"path": "/lake/orders"}, "branches": [{"name": "items", **exploded}]}
    spec = {
        "pipeline": "shop",
        "source": {"kafka": {"brokers": "localhost:9092", "topics": ["orders"]}},
        "decode": {"protobuf": options},
        **(whole if in_branch else exploded),
    }
    if not has_error:
        loads(json.dumps(spec), "/lake", "shop.yaml")
        return
    (error,) = [text for text in findings(json.dumps(spec)) if UNKNOWN_FIELDS_LOST in text]
    assert "explode.keep with _unknown, or contract.new_field other than evolve" in error
    assert ("branches[0].explode.keep" in error) == in_branch


def test_a_table_rule_that_evolves_needs_the_unknown_fields_in_explode_keep():
    spec = {
        "pipeline": "shop",
        "source": {"kafka": {"brokers": "localhost:9092", "topics": ["orders"]}},
        "decode": {"protobuf": {"descriptor": "order.proto", "message": "Order", "keep_unknown_fields": True}},
        "explode": {"column": "items", "keep": ["id"]},
        "route": {"by": "topic"},
        "table": {"path": "/lake/{topic}", "contract": {"new_field": "ignore"}},
        "tables": [{"match": "^orders$", "contract": {"new_field": "evolve"}}],
    }
    assert any(UNKNOWN_FIELDS_LOST in text for text in findings(json.dumps(spec)))


def test_names_of_routes_lead_to_their_branch_and_back():
    big = {"name": "big", "route": {"by": "topic"}, "table": {"path": "/lake/big/{topic}.v1"}}
    spec = spec_of(branches=[CHILD, big])
    routes = [RouteId(), RouteId("items"), RouteId("big", "a.b")]
    assert [spec.uri_of(each) for each in routes] == ["/lake/web", "/lake/items", "/lake/big/a.b.v1"]
    for each in routes:
        assert spec.route_of(spec.uri_of(each)) == each
    assert [spec.route_of(uri) for uri in ("/lake", "/lake/big/.v1", "/lake/big/a/b.v1", "/lake/big/a")] == [None] * 4
    for branch in spec.branch_specs().values():
        assert (branch.state_uri, branch.digest) == (spec.state_uri, spec.digest)


# ---- a whole pipeline ----


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """Orders and their items, each in a table with declared types."""
    child = {
        **CHILD,
        "table": {
            "path": f"{tmp_path}/lake/items",
            "columns": [
                {"name": "order_id", "type": "bigint"},
                {"name": "sku", "type": "string"},
                {"name": "qty", "type": "int"},
            ],
        },
    }
    main = {"path": f"{tmp_path}/lake/orders"}
    return Harness(tmp_path, {"route": {}, "table": main, "branches": [child]})


def of_items(harness: Harness) -> list[tuple[int, str]]:
    return sorted((row["order_id"], row["sku"]) for row in harness.rows("lake/items"))


def test_both_tables_are_made_evolved_and_recorded(harness: Harness):
    harness.options["branches"][0]["table"].pop("columns")
    harness.feed([ORDER, {"id": 8, "items": []}])
    harness.feed([{"id": 9, "items": [{"sku": "c", "color": "red"}], "note": "x"}])
    assert of_items(harness) == [(7, "a"), (7, "b"), (9, "c")]
    assert [row["color"] for row in harness.rows("lake/items")].count("red") == 1
    assert "note" not in harness.rows("lake/items")[0]
    assert {row["note"] for row in harness.rows("lake/orders")} == {None, "x"}
    booked = sorted(harness.rows("lake/_headrace/shop/ledger"), key=lambda row: row["batch"])
    assert [(row["read"], row["routed"], row["filtered"], row["written"]) for row in booked] == [
        (2, 2, 0, 4),
        (1, 1, 0, 2),
    ]


@pytest.mark.parametrize(
    "point", [Point.AFTER_FIRST_TABLE, Point.AFTER_COMMIT, Point.BEFORE_DEAD_LETTERS, Point.BEFORE_LEDGER_WRITE]
)
def test_a_batch_that_dies_between_two_tables_is_in_both_once(harness: Harness, point: Point):
    harness.feed([ORDER])
    with armed(point, "abandon"), pytest.raises(Abandoned):
        harness.feed([{"id": 8, "items": [{"sku": "c", "qty": 1}]}, b"{", {"id": 9, "items": [{"qty": 2**40}]}])
    harness.feed([{"id": 10, "items": [{"sku": "d", "qty": 1}]}])
    assert of_items(harness) == [(7, "a"), (7, "b"), (8, "c"), (10, "d")]
    assert sorted(row["id"] for row in harness.rows("lake/orders")) == [7, 8, 9, 10]
    dead = sorted((row["offset"], Path(row["table"]).name) for row in harness.dead())
    assert dead == [(2, "items"), (2, "orders"), (3, "items")]


def test_a_dead_letter_of_a_branch_is_tried_and_replayed_only_there(harness: Harness):
    harness.options["branches"][0]["transform"] = [{"set": {"n": "CAST(sku AS INT)"}}]
    harness.feed([{"id": 8, "items": [{"sku": "1"}, {"sku": "x"}]}, {"id": 9, "items": [{"sku": "2", "qty": 1}]}])
    [letter] = harness.dead()
    assert (letter["offset"], Path(letter["table"]).name, letter["reason"]) == (0, "items", "transform")
    harness.options["branches"][0]["transform"] = [{"set": {"n": "TRY_CAST(sku AS INT)"}}]
    [tried] = dry_run(harness.spec, harness.spec, Selection(), 5)
    assert [(uri, row["sku"]) for uri, row in tried.rows] == [(letter["table"], "1"), (letter["table"], "x")]
    assert (harness.replay().counts.routed, harness.replay().counts.read) == (1, 0)
    assert of_items(harness) == [(8, "1"), (8, "x"), (9, "2")]
    assert harness.offsets("orders") == {0: 1, 1: 1}


def test_a_dead_letter_of_a_branch_that_is_no_more_stays_dead(harness: Harness):
    harness.feed([{"id": 8, "items": [{"sku": "c", "qty": "many"}]}])
    del harness.options["branches"]
    harness.replay()
    assert [(row["outcome"], row["reason"]) for row in harness.outcomes()] == [("still_dead", "unrouted")]
    assert harness.offsets("orders") == {0: 1}


def test_replayed_dead_letters_of_each_table_land_once(harness: Harness):
    harness.options["limits"] = {"record_bytes": 40}
    harness.feed([ORDER, {"id": 8, "items": []}])
    assert [Path(row["table"]).name for row in harness.dead()] == ["orders", "items"]
    del harness.options["limits"]
    items = f"{harness.folder}/lake/items"
    assert harness.replay(Selection(tables=(items,))).counts.routed == 1
    assert (of_items(harness), harness.offsets("orders")) == ([(7, "a"), (7, "b")], {1: 1})
    [letter] = [each for each in harness.dead_letters.find(RecordPosition("orders", 0, 0)) if each["table"] == items]
    assert [(each["outcome"], each["into"]) for each in letter["outcomes"]] == [("replayed", [items])]
    harness.die(Point.AFTER_COMMIT)
    assert [harness.replay().counts.read for _ in range(2)] == [1, 0]  # the plan that was begun, and none after it
    assert (of_items(harness), harness.offsets("orders")) == ([(7, "a"), (7, "b")], {0: 1, 1: 1})


def test_dead_letters_before_a_route_stay_with_their_branch(tmp_path: Path):
    """The pipeline's own letter names no table; a branch's says which tables it could have been."""
    branch = {
        "name": "kinds",
        "route": {"by": {"field": "sort"}},
        "table": {"path": f"{tmp_path}/lake/kinds/{{route}}"},
    }
    own = {"path": f"{tmp_path}/lake/own/{{route}}"}
    harness = Harness(tmp_path, {"table": own, "branches": [branch], "state": f"{tmp_path}/lake/_headrace/shop"})
    harness.feed([{"id": 1, "kind": "a"}, {"id": 2, "sort": "b"}, b"{"])
    assert {(row["offset"], row["table"]) for row in harness.dead()} == {
        (0, f"{tmp_path}/lake/kinds/{{route}}"),
        (1, None),
        (2, None),
        (2, f"{tmp_path}/lake/kinds/{{route}}"),
    }
    branch["route"] = {"by": {"field": "kind"}}
    summary = harness.replay()
    assert (summary.counts.read, summary.counts.routed, summary.counts.dead) == (4, 1, 3)
    assert harness.offsets("kinds/a") == {0: 1}
    assert harness.offsets("own/a") == {0: 1}
    harness.options["route"] = {"by": {"field": "sort"}}
    assert harness.replay().counts.routed == 1
    assert harness.offsets("own/b") == {1: 1}
    assert harness.offsets("kinds/b") == {1: 1}


def test_a_branch_that_is_added_begins_where_the_pipeline_is(harness: Harness):
    also = harness.options.pop("branches")
    harness.feed([ORDER])
    harness.options["branches"] = also
    harness.feed([{"id": 8, "items": [{"sku": "c", "qty": 1}]}])
    assert of_items(harness) == [(8, "c")]
    del harness.options["branches"]
    harness.feed([{"id": 9, "items": [{"sku": "d", "qty": 1}]}])
    harness.options["branches"] = also
    harness.feed([{"id": 10, "items": [{"sku": "e", "qty": 1}]}])
    assert of_items(harness) == [(8, "c"), (10, "e")]


def test_a_look_and_a_check_online_know_the_tables_of_branches(harness: Harness):
    harness.feed([ORDER])
    found = preview_records(harness.spec, envelopes([{**ORDER, "id": 9}, b"{"]))
    items = f"{harness.folder}/lake/items"
    assert [row["order_id"] for row in found.tables[items].to_pylist()] == [9, 9]
    assert [note.partition(" exists")[0] for note in found.notes] == [f"{harness.folder}/lake/orders", items]
    assert (found.counts.records(), len(found.dead_letters)) == (Counts(2, 1, 1).records(), 2)
    assert list(online._tables(harness.spec)) == []
    harness.options["branches"][0]["table"] = {"path": f"{harness.folder}/lake/others", "create": "never"}
    assert [each.message for each in online._tables(harness.spec)] == [f"no table at {harness.folder}/lake/others"]
    harness.options["branches"][0]["table"] = {"path": items, "columns": [{"name": "sku", "type": "boolean"}]}
    harness.options["branches"][0]["explode"] = "items"
    assert [(each.key, "sku" in each.message) for each in online._tables(harness.spec)] == [("branches[0].table", True)]


def test_tasks_that_disagree_about_elements_make_dead_letters_and_the_next_batch_may_agree(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
):
    whole = task._manifest

    def in_parts(order: bytes, batch: int, now: datetime, batches: list[pa.RecordBatch]) -> Manifest:
        return whole(order, batch, now, [each.slice(at, 1) for each in batches for at in range(len(each))])

    monkeypatch.setattr(task, "_manifest", in_parts)
    harness.options["branches"][0]["table"].pop("columns")
    harness.feed([{"id": 1, "items": [1]}, {"id": 2, "items": [{"sku": "a"}]}, {"id": 3, "items": []}])
    assert [(row["offset"], Path(row["table"]).name, row["reason"]) for row in harness.dead()] == [
        (0, "items", "type"),
        (1, "items", "type"),
    ]
    harness.feed([ORDER])
    assert of_items(harness) == [(7, "a"), (7, "b")]
    assert (harness.replay().counts.routed, of_items(harness)) == (1, [(2, "a"), (7, "a"), (7, "b")])


def test_dead_letters_of_a_branch_are_chosen_by_its_name():
    big = {"name": "big", "route": {"by": "topic"}, "table": {"path": "/lake/big/{topic}"}}
    spec = spec_of(branches=[CHILD, big])
    named = {text: _table(spec, text) for text in ("items", "big/eu", "big", "/lake/web", "s3://lake/items")}
    assert list(named.values()) == ["/lake/items", "/lake/big/eu", "/lake/big/{route}", "/lake/web", "s3://lake/items"]
