"""Explode: one record, one row for each element of its list; all of them, or a letter."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.delta.schema import SOURCE
from headrace.errors import ColumnMismatch, ContractViolation
from headrace.plan.plan import Plan
from headrace.spec.route_id import RouteId
from headrace.transform.jmespath import dialect
from services.plans import adds_up, envelopes, letters, plan_of, rows, shaped

ITEMS = {"column": "items", "keep": ["id"]}
CHILD = pa.schema([pa.field("id", pa.int64()), pa.field("sku", pa.string()), pa.field("qty", pa.int64())])
DECLARED = [
    {"name": "id", "type": "bigint", "nullable": False},
    {"name": "sku", "type": "string", "nullable": False},
    {"name": "qty", "type": "int"},
]
TWO = {"id": 7, "items": [{"sku": "a", "qty": 1}, {"sku": "b", "qty": 2}]}


def exploding(existing: dict[str, pa.Schema] | None = None, **content: Any) -> Plan:
    return plan_of(existing, **{"explode": ITEMS, **content})


# ---- rows ----


def test_every_element_is_a_row_with_what_is_kept_of_its_record():
    applied = exploding().apply(envelopes([TWO, {"id": 8, "items": [{"sku": "c", "qty": 3}], "note": "x"}]))
    assert rows(applied) == [
        {"id": 7, "sku": "a", "qty": 1},
        {"id": 7, "sku": "b", "qty": 2},
        {"id": 8, "sku": "c", "qty": 3},
    ]
    assert [row["offset"] for row in applied.tables[RouteId()]["_source"].to_pylist()] == [0, 0, 1]
    assert adds_up(applied).routed == 2


def test_elements_that_are_no_objects_are_a_column_with_the_lists_name():
    applied = plan_of(explode="tags").apply(envelopes([{"tags": ["a", None, "b"]}]))
    assert rows(applied) == [{"tags": "a"}, {"tags": None}, {"tags": "b"}]


def test_the_position_counts_from_0_in_each_list():
    explode = {"column": "tags", "position": "nth"}
    applied = plan_of(explode=explode).apply(envelopes([{"tags": ["a", "b"]}, {"tags": ["c"]}]))
    assert rows(applied) == [{"nth": 0, "tags": "a"}, {"nth": 1, "tags": "b"}, {"nth": 0, "tags": "c"}]
    assert applied.tables[RouteId()].schema.field("nth").type == pa.int64()


EMPTY = [{"id": 1, "items": []}, {"id": 2, "items": None}, {"id": 3}, TWO]


def test_a_list_that_is_empty_null_or_absent_makes_no_row_and_is_filtered():
    counts = adds_up(exploding().apply(envelopes(EMPTY)))
    assert (counts.read, counts.routed, counts.filtered) == (4, 1, 3)


def test_or_one_row_without_an_element():
    explode = {**ITEMS, "position": "nth", "empty": "row"}
    applied = exploding(explode=explode).apply(envelopes(EMPTY))
    assert [(row["id"], row["nth"], row["sku"]) for row in rows(applied)] == [
        (1, None, None),
        (2, None, None),
        (3, None, None),
        (7, 0, "a"),
        (7, 1, "b"),
    ]
    assert adds_up(applied).routed == 4


def test_before_any_element_was_seen_empty_lists_are_as_empty():
    plan = exploding(table={"partition_by": ["sku"]})
    assert adds_up(plan.apply(envelopes(EMPTY[:3]))).filtered == 3
    assert len(rows(plan.apply(envelopes(EMPTY)))) == 2
    kept = exploding(explode={**ITEMS, "empty": "row"})
    assert rows(kept.apply(envelopes(EMPTY[:3]))) == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert len(rows(kept.apply(envelopes(EMPTY)))) == 5


def test_a_field_can_be_kept_under_another_name_and_from_deeper_down():
    explode = {"column": "items", "keep": {"order_id": "id", "city": "to.address.city"}}
    value = {"id": 1, "to": {"name": "x", "address": {"city": "Faro", "zip": 8000}}, "items": [{"id": 5}, {"id": 6}]}
    plan = exploding(explode=explode)
    expected = [{"order_id": 1, "city": "Faro", "id": 5}, {"order_id": 1, "city": "Faro", "id": 6}]
    assert rows(plan.apply(envelopes([value]))) == expected
    assert rows(plan.apply(envelopes([value]))) == expected
    other = exploding(
        {"": pa.schema([("id", pa.int64()), ("city", pa.string()), ("order_id", pa.int64())])}, explode=explode
    )
    assert rows(other.apply(envelopes([value]))) == [
        {"id": 5, "city": "Faro", "order_id": 1},
        {"id": 6, "city": "Faro", "order_id": 1},
    ]


def test_the_transform_sees_rows_of_elements_and_the_envelope_of_their_record():
    steps = [{"set": {"total": "qty * 2", "at": "_offset"}}, {"where": "sku <> 'a'"}, {"rename": {"qty": "amount"}}]
    applied = exploding(transform=steps).apply(envelopes([TWO, {"id": 8, "items": [{"sku": "a", "qty": 1}]}]))
    assert rows(applied) == [{"id": 7, "sku": "b", "amount": 2, "total": 4, "at": 0}]
    counts = adds_up(applied)
    assert (counts.routed, counts.filtered) == (1, 1)


def test_a_route_can_be_picked_for_each_element():
    plan = exploding(route={"by": {"sql": "sku"}})
    applied = plan.apply(envelopes([TWO, {"id": 8, "items": [{"sku": "a", "qty": 3}, {"sku": "/", "qty": 1}]}]))
    assert {str(name): table["id"].to_pylist() for name, table in applied.tables.items()} == {"a": [7], "b": [7]}
    assert letters(applied) == [(1, "route", "bad_route")]
    adds_up(applied)


def test_a_route_of_the_record_gives_each_type_elements_of_its_own():
    plan = exploding(route={"by": {"field": "kind"}})
    applied = plan.apply(
        envelopes([{**TWO, "kind": "a"}, {"id": 8, "kind": "b", "items": ["x"]}, {"id": 9, "kind": "b", "items": []}])
    )
    assert rows(applied, "b") == [{"id": 8, "items": "x"}]
    assert (len(rows(applied, "a")), adds_up(applied).filtered) == (2, 1)


def test_lines_and_lists_together():
    plan = exploding(decode={"json": {"rows": "lines"}}, limits={"rows": 3})
    line = b'{"id":1,"items":[{"sku":"a"},{"sku":"b"}]}\n'
    applied = plan.apply(envelopes([line + b'{"id":2,"items":[{"sku":"c"}]}', line + line, b'{"id":3,"items":[]}']))
    assert [row["sku"] for row in rows(applied)] == ["a", "b", "c"]
    assert letters(applied) == [(1, "decode", "too_wide")]
    assert adds_up(applied).filtered == 1


def test_a_null_value_is_what_the_spec_says_it_is():
    for answer, made in (("dead_letter", (1, 0)), ("skip", (0, 1)), ("row", (0, 1))):
        counts = adds_up(exploding(decode={"json": {"tombstone": answer}}).apply(envelopes([TWO, None])))
        assert (counts.dead, counts.filtered) == made


# ---- all rows of a record, or a letter ----


def test_one_bad_element_makes_the_record_a_dead_letter():
    values = [TWO, {"id": 8, "items": [{"sku": "c", "qty": 1}, {"sku": "d", "qty": "many"}]}, {"id": "x", "items": []}]
    applied = exploding({"": CHILD}).apply(envelopes(values))
    assert {row["id"] for row in rows(applied)} == {7}
    assert letters(applied) == [(1, "decode", "type"), (2, "decode", "type")]
    assert "items[1].qty" in applied.dead_letters["detail"].to_pylist()[0]
    assert set(applied.dead_letters["table"].to_pylist()) == {"/lake/web"}
    adds_up(applied)


def test_an_expression_that_fails_for_one_element_fails_the_record():
    plan = exploding(transform=[{"set": {"n": "CAST(sku AS BIGINT)"}}])
    applied = plan.apply(
        envelopes([{"id": 1, "items": [{"sku": "1"}, {"sku": "x"}]}, {"id": 2, "items": [{"sku": "3"}]}])
    )
    assert rows(applied) == [{"id": 2, "sku": "3", "n": 3}]
    assert letters(applied) == [(0, "transform", "transform")]
    adds_up(applied)


def test_a_list_longer_than_the_limit_is_too_wide():
    applied = exploding(limits={"rows": 2}).apply(envelopes([TWO, {"id": 8, "items": [{"sku": "x"}] * 3}]))
    assert len(rows(applied)) == 2
    assert letters(applied) == [(1, "decode", "too_wide")]
    assert "3 rows; the limit is 2" in applied.dead_letters["detail"].to_pylist()[0]


def test_what_is_no_list_is_a_dead_letter_before_and_after_elements_are_known():
    plan = exploding()
    poison = [{"id": 1, "items": "x"}, {"id": 2, "items": {"sku": "a"}}, {"id": 3, "items": 4}]
    for values in (poison, [TWO, {"id": 9, "items": [1, "a"]}], poison):
        applied = plan.apply(envelopes(values))
        assert {reason for _, _, reason in letters(applied)} == {"type"}
        adds_up(applied)
    assert letters(applied) == [(at, "decode", "type") for at in range(3)]
    assert len(rows(plan.apply(envelopes([TWO])))) == 2


def test_required_fields_are_required_of_every_element():
    plan = exploding(table={"columns": DECLARED})
    applied = plan.apply(
        envelopes(
            [TWO, {"id": 1, "items": [{"sku": "a"}, {"qty": 1}]}, {"id": 2, "items": [None]}, {"items": [{"sku": "a"}]}]
        )
    )
    assert [row["id"] for row in rows(applied)] == [7, 7]
    assert [(at, reason) for at, _, reason in letters(applied)] == [(1, "missing"), (2, "missing"), (3, "missing")]
    assert applied.tables[RouteId()].schema == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("sku", pa.string(), nullable=False),
            pa.field("qty", pa.int32()),
            SOURCE,
        ]
    )


def test_a_default_fills_what_an_element_lacks():
    plan = exploding(table={"columns": [*DECLARED[:2], {**DECLARED[2], "nullable": False, "default": 1}]})
    assert rows(plan.apply(envelopes([{"id": 1, "items": [{"sku": "a"}]}]))) == [{"id": 1, "sku": "a", "qty": 1}]


# ---- contracts: what is new inside an element counts, what is beside the list does not ----

NEW = {"id": 8, "note": "x", "more": {"a": [1]}, "items": [{"sku": "c", "color": "red"}]}


def test_a_new_field_of_an_element_is_a_new_column_and_one_beside_the_list_is_not():
    plan = exploding({"": CHILD})
    applied = plan.apply(envelopes([TWO, NEW]))
    assert rows(applied)[2] == {"id": 8, "sku": "c", "qty": None, "color": "red"}
    assert applied.counts.ignored == {}
    assert rows(plan.apply(envelopes([{**NEW, "other": 1}]))) == [{"id": 8, "sku": "c", "qty": None, "color": "red"}]


def test_ignored_fields_are_those_of_elements():
    plan = exploding(table={"columns": DECLARED})
    for _ in range(2):
        applied = plan.apply(envelopes([TWO, NEW, {**NEW, "id": 9}]))
        assert applied.counts.ignored == {"/lake/web: items.color": 2}
        assert len(rows(applied)) == 4


@pytest.mark.parametrize("strict", [{"strict": True}, {"contract": {"new_field": "reject"}}])
def test_a_contract_that_rejects_new_fields_rejects_those_of_elements(strict: dict[str, Any]):
    plan = exploding(table={"columns": DECLARED, **strict})
    for _ in range(2):
        applied = plan.apply(envelopes([{**TWO, "note": 1}, NEW, {**TWO, "id": 9, "Zip": "1"}]))
        assert [row["id"] for row in rows(applied)] == [7, 7, 9, 9]
        assert letters(applied) == [(1, "decode", "new_field")]
        assert "items.color" in applied.dead_letters["detail"].to_pylist()[0]


@pytest.mark.parametrize("value", [None, [], {}, [None], "red"])
@pytest.mark.parametrize("rescue", [{}, {"wrong_type": "rescue"}])
def test_a_new_field_of_an_element_is_met_whatever_its_value(value: Any, rescue: dict[str, str]):
    record = {"id": 8, "items": [{"sku": "c", "color": value}]}
    rejecting = exploding(table={"columns": DECLARED, "contract": {"new_field": "reject", **rescue}})
    for _ in range(2):
        applied = rejecting.apply(envelopes([{**TWO, "a.b": 1, "": 2, "note": value}, record]))
        assert [row["id"] for row in rows(applied)] == [7, 7]
        assert letters(applied) == [(1, "decode", "new_field")]
    stopping = exploding(table={"columns": DECLARED, "contract": {"new_field": "stop", **rescue}})
    assert len(rows(stopping.apply(envelopes([{**TWO, "a.b": 1, "": 2, "note": value}])))) == 2
    with pytest.raises(ContractViolation, match=r"items\.color"):
        stopping.apply(envelopes([TWO, record]))


_VALUES = st.sampled_from([None, [], {}, 1, "x", [None], {"a": None}])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(["note", "a.b", "", "at"]), _VALUES, max_size=3),
            st.lists(st.dictionaries(st.sampled_from(["color", "size"]), _VALUES, max_size=1), max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_record_is_rejected_for_its_own_new_fields_alone(batch: list[tuple[dict[str, Any], list[dict[str, Any]]]]):
    """Neither fields beside the list nor the other records of the batch count."""
    values = [
        {**beside, "id": nth, "items": [{"sku": "a", **new} for new in elements]}
        for nth, (beside, elements) in enumerate(batch)
    ]
    plan = exploding(table={"columns": DECLARED, "contract": {"new_field": "reject"}})
    applied = plan.apply(envelopes(values))
    expected = [nth for nth, (_, elements) in enumerate(batch) if any(elements)]
    assert [at for at, _, _ in letters(applied)] == expected
    assert len(rows(applied)) == sum(len(elements) for _, elements in batch if not any(elements))


def test_a_contract_that_stops_at_new_fields_stops_at_those_of_elements():
    plan = exploding(table={"columns": DECLARED, "contract": {"new_field": "stop"}})
    assert len(rows(plan.apply(envelopes([{**TWO, "note": 1}])))) == 2
    with pytest.raises(ContractViolation, match=r"items\.color"):
        plan.apply(envelopes([NEW]))


def test_a_task_says_only_what_is_new_to_its_table():
    task = shaped(exploding(), existing=CHILD)
    assert task.apply(envelopes([{**TWO, "note": 1}])).discovered == {}
    found = task.apply(envelopes([NEW])).discovered[RouteId()]
    element = {"type": "struct", "fields": {"color": {"type": "string"}}}
    assert found == {"type": "struct", "fields": {"items": {"type": "list", "element": element}}}


def test_a_table_is_read_backwards_whatever_its_order_and_whatever_was_added_to_it():
    table = pa.schema(
        [("more", pa.string()), ("sku", pa.string()), ("total", pa.int64()), ("id", pa.int64()), ("nth", pa.int64())]
    )
    plan = exploding({"": table}, explode={**ITEMS, "position": "nth"}, transform=[{"set": {"total": "nth + 1"}}])
    assert rows(plan.apply(envelopes([{"id": 1, "items": [{"sku": "a"}, {"sku": "b"}]}]))) == [
        {"more": None, "sku": "a", "total": 1, "id": 1, "nth": 0},
        {"more": None, "sku": "b", "total": 2, "id": 1, "nth": 1},
    ]


@pytest.mark.parametrize(
    ("explode", "value"),
    [
        (ITEMS, {"id": 1, "items": [{"id": 2}]}),
        ({**ITEMS, "keep": ["ID"]}, {"ID": 1, "items": [{"id": 2}]}),
        ({**ITEMS, "position": "nth"}, {"id": 1, "items": [{"nth": 2}]}),
        (ITEMS, {"id": 1, "items": [{"items": 2}]}),
    ],
)
def test_two_columns_of_one_name_stop_with_what_to_do(explode: Any, value: Any):
    with pytest.raises(ColumnMismatch, match="two columns") as stopped:
        exploding(explode=explode).apply(envelopes([value]))
    assert "explode.keep" in stopped.value.hint


# ---- the same as plain Python ----

scalar = st.one_of(st.none(), st.integers(-9, 9))
element = st.fixed_dictionaries(
    {}, optional={"sku": st.sampled_from(["a", "b", ""]), "qty": scalar, "on": st.booleans()}
)
listed = st.one_of(st.none(), st.lists(st.one_of(st.none(), element), max_size=4))
record = st.fixed_dictionaries({"id": st.integers(0, 99)}, optional={"items": listed, "beside": scalar})
POISON = [b"{", None, b"[]", {"id": 1, "items": 3}, {"id": 2, "items": [{"sku": 1}]}, {"id": "x"}]
poison = st.sampled_from(POISON)


def flattened(values: list[Any], empty: str) -> list[dict[str, Any]]:
    made = []
    for value in values:
        items = value.get("items") or ([] if empty == "skip" else [None])
        none = not value.get("items")
        for nth, item in enumerate(items):
            given = item or {}
            made.append(
                {
                    "id": value["id"],
                    "nth": None if none else nth,
                    "sku": given.get("sku"),
                    "qty": given.get("qty"),
                    "on": given.get("on"),
                }
            )
    return made


@given(st.lists(st.one_of(record, record, record, poison), max_size=12), st.sampled_from(["skip", "row"]))
@settings(max_examples=60, deadline=None)
def test_rows_are_what_plain_python_makes_of_the_records(values: list[Any], empty: str):
    table = pa.schema([*CHILD, pa.field("on", pa.bool_())])
    plan = exploding({"": table}, explode={**ITEMS, "position": "nth", "empty": empty})
    applied = plan.apply(envelopes(values))
    bad = {at for at, _, _ in letters(applied)}
    good = [value for at, value in enumerate(values) if at not in bad]
    assert rows(applied) == [{name: row[name] for name in (*table.names, "nth")} for row in flattened(good, empty)]
    assert bad == {at for at, value in enumerate(values) if value in POISON}
    adds_up(applied)


QUERIES = {
    "whole": "to_string(@)",
    "count": "length(items || `[]`)",
    "first": "items[0].sku",
    "qty_of": "items[-1].qty",
    "number": "id",
    "text": "to_string(beside)",
    "fails": "abs(beside)",
    "at": "kafka.offset",
}
MADE = [("count", pa.int64()), ("qty_of", pa.int64()), ("number", pa.int64()), ("fails", pa.float64())]


@given(
    st.lists(record, max_size=8),
    st.sampled_from(["skip", "row"]),
    st.sets(st.sampled_from(sorted(QUERIES)), min_size=1),
)
@settings(max_examples=60, deadline=None)
def test_jmespath_of_rows_is_jmespath_of_their_records_repeated(values: list[Any], empty: str, names: set[str]):
    queries = [{"jmespath": {name: QUERIES[name] for name in sorted(names)}}]
    made = [(name, kind) for name, kind in MADE if name in names]
    lists = pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int64()), ("on", pa.bool_())]))
    alone = pa.schema([("id", pa.int64()), ("items", lists), *made, SOURCE])
    records = plan_of({"": alone}, transform=queries, table={"contract": {"new_field": "ignore"}})
    whole = records.apply(envelopes(values))
    stored = whole.tables[RouteId()].to_pylist() if RouteId() in whole.tables else []
    told = {row["_source"]["offset"]: row for row in stored}

    table = pa.schema([*CHILD, ("on", pa.bool_()), *made])
    plan = exploding({"": table}, explode={**ITEMS, "empty": empty}, transform=queries)
    applied = plan.apply(envelopes(values))
    counts = [len(value.get("items") or ([] if empty == "skip" else [None])) for value in values]
    expected = [{name: row.get(name) for name in names} for at, row in told.items() for _ in range(counts[at])]
    assert [{name: row.get(name) for name in names} for row in rows(applied)] == expected
    assert letters(applied) == [each for each in letters(whole) if counts[each[0]]]
    adds_up(applied)


def test_jmespath_sees_the_record_and_not_the_element():
    value = {"id": 7, "status": "open", "items": [{"sku": "a", "status": "packed"}, {"sku": "b", "status": None}]}
    plan = exploding(transform=[{"jmespath": {"order_status": "status", "status": "missing"}}])
    for _ in range(2):
        assert rows(plan.apply(envelopes([value]))) == [
            {"id": 7, "sku": "a", "status": "packed", "order_status": "open"},
            {"id": 7, "sku": "b", "status": None, "order_status": "open"},
        ]


def test_jmespath_reads_each_record_once(monkeypatch: pytest.MonkeyPatch):
    """However many rows it has: an expression that only the interpreter knows is the measure."""
    met = []
    load = dialect.load_json
    monkeypatch.setattr(dialect, "load_json", lambda text, exact: met.append(text) or load(text, exact=exact))
    value = {"id": 7, "n": [3, 1, 2], "items": [{"sku": str(nth)} for nth in range(500)]}
    applied = exploding(transform=[{"jmespath": {"sorted": "to_string(sort(n))"}}]).apply(envelopes([value, value]))
    assert {row["sorted"] for row in rows(applied)} == {"[1,2,3]"}
    assert len(rows(applied)) == 1000
    assert len(met) == 2


def test_jmespath_over_lines_sees_its_own_line():
    plan = exploding(decode={"json": {"rows": "lines"}}, transform=[{"jmespath": {"note": "note"}}])
    lines = [json.dumps({"id": nth, "note": f"n{nth}", "items": [{"sku": "a"}] * nth}) for nth in (1, 2)]
    applied = plan.apply(envelopes(["\n".join(lines).encode()]))
    assert [(row["id"], row["note"]) for row in rows(applied)] == [(1, "n1"), (2, "n2"), (2, "n2")]


def test_jmespath_beside_a_null_value_that_is_a_row():
    explode = {**ITEMS, "empty": "row"}
    steps = [{"jmespath": {"note": "note", "at": "kafka.offset"}}]
    plan = exploding({"": CHILD}, explode=explode, transform=steps, decode={"json": {"tombstone": "row"}})
    applied = plan.apply(envelopes([None, {"id": 1, "note": "x", "items": [{"sku": "a"}]}]))
    assert [(row["id"], row["note"], row["at"]) for row in rows(applied)] == [(None, None, 0), (1, "x", 1)]


def test_a_route_can_be_picked_by_what_jmespath_made():
    plan = exploding(route={"by": {"sql": "country"}}, transform=[{"jmespath": {"country": "to.country"}}])
    values = [{**TWO, "to": {"country": country}} for country in ("pt", "fi", "pt")]
    for _ in range(2):
        applied = plan.apply(envelopes(values))
        assert {str(name): len(table) for name, table in applied.tables.items()} == {"pt": 4, "fi": 2}
        assert adds_up(applied).routed == 3


def test_branches_share_a_decode_and_not_their_expressions():
    child = {
        "name": "items",
        "explode": ITEMS,
        "transform": [{"jmespath": {"count": "length(items)", "note": "note"}}],
        "table": {"path": "/lake/items"},
    }
    plan = plan_of(branches=[child], transform=[{"jmespath": {"sku": "items[0].sku"}}])
    values = [{**TWO, "note": "x"}, {"id": 8, "items": []}, {"id": 9, "items": [{"sku": "c", "qty": 3}]}]
    for _ in range(2):
        applied = plan.apply(envelopes(values))
        assert [row["sku"] for row in rows(applied)] == ["a", None, "c"]
        assert [(row["sku"], row["note"], row["count"]) for row in rows(applied, "items/")] == [
            ("a", "x", 2),
            ("b", "x", 2),
            ("c", None, 1),
        ]
        adds_up(applied)
