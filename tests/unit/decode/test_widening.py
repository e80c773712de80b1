"""Widening: which types a column may become, what values ask for, and that nobody asks in vain."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.inference import evolve, merge_inferred, struct
from headrace.delta.schema import SOURCE
from headrace.delta.type_widening import common_type, widened_for, widens
from headrace.plan.plan import Plan
from headrace.spec.route_id import RouteId
from headrace.spec.types import TIMESTAMP_NTZ, parse_type, type_name
from headrace.validate.load import examine_text
from services.plans import MOMENT, adds_up, envelopes, letters, plan_of, rows, spec_of

WIDEN = {"features": ["typeWidening"], "contract": {"wrong_type": "widen"}}
TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.bool_(), pa.date32()),
    *(pa.decimal128(3, 1), pa.decimal128(10, 0), pa.decimal128(20, 0), pa.decimal128(22, 2), pa.decimal128(38, 18)),
]


# ---- the law ----


def test_the_pairs_that_may_widen() -> None:
    names = ["byte", "short", "integer", "long", "float", "double", "decimal(10,0)", "decimal(20,0)", "decimal(22,2)"]
    kinds = {name: parse_type(name) for name in names}
    assert {one: [two for two in names if widens(kinds[one], kinds[two])] for one in names} == {
        "byte": ["short", "integer", "long", "double", "decimal(10,0)", "decimal(20,0)", "decimal(22,2)"],
        "short": ["integer", "long", "double", "decimal(10,0)", "decimal(20,0)", "decimal(22,2)"],
        "integer": ["long", "double", "decimal(10,0)", "decimal(20,0)", "decimal(22,2)"],
        "long": ["decimal(20,0)", "decimal(22,2)"],
        "float": ["double"],
        "double": [],
        "decimal(10,0)": ["decimal(20,0)", "decimal(22,2)"],
        "decimal(20,0)": ["decimal(22,2)"],
        "decimal(22,2)": [],
    }


@pytest.mark.parametrize("one", TYPES, ids=str)
@pytest.mark.parametrize("two", TYPES, ids=str)
def test_widening_is_an_order(one: pa.DataType, two: pa.DataType) -> None:
    assert not (widens(one, two) and widens(two, one))
    assert all(widens(one, three) for three in TYPES if widens(one, two) and widens(two, three))


NUMBERS = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.integers(-300, 300).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(TYPES), NUMBERS)
def test_what_a_number_asks_for_is_wider_and_holds_it(kind: pa.DataType, text: str) -> None:
    wide = widened_for(kind, text)
    if wide is None:
        return
    assert widens(kind, wide)
    if pa.types.is_floating(wide):
        assert float(text) == pytest.approx(float(text))
    else:
        number = Decimal(text)
        assert pa.scalar(int(number) if pa.types.is_integer(wide) else number, wide).as_py() == number


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(TYPES), NUMBERS, NUMBERS)
def test_what_two_numbers_ask_for_is_one_type_whichever_comes_first(kind: pa.DataType, one: str, two: str) -> None:
    asked = [each for each in (widened_for(kind, one), widened_for(kind, two)) if each is not None]
    if len(asked) == 2:
        both = common_type(*asked)
        assert both == common_type(*reversed(asked))
        assert widens(kind, both)


def test_a_structure_asks_and_only_known_columns_answer() -> None:
    asks = struct(
        {"a": {"type": "wider", "to": "long"}, "b": {"type": "list", "element": {"type": "wider", "to": "double"}}}
    )
    schema = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.int16())), pa.field("c", pa.int8())])
    grown = evolve(schema, asks)
    assert [type_name(item.type) for item in grown] == ["long", "array<double>", "byte"]
    assert evolve(grown, asks) == grown
    more = struct({"a": {"type": "wider", "to": "decimal(20,0)"}, "c": {"type": "string"}})
    assert [type_name(item.type) for item in evolve(schema, merge_inferred(more, asks))] == [
        "decimal(20,0)",
        "array<double>",
        "byte",
    ]


# ---- in a plan ----


def wide(existing: pa.Schema | None, values: list[Any], **content: Any) -> tuple[dict[str, str], list[Any], list[Any]]:
    """The table's types, its rows and its letters, once a plan has seen the values."""
    table = {**WIDEN, "source": False, **content.pop("table", {})}
    plan = plan_of(None if existing is None else {"": existing}, table=table, **content)
    found = plan.apply(envelopes(values))
    adds_up(found)
    types = {item.name: type_name(item.type) for item in found.tables[RouteId()].schema}
    return types, rows(found), letters(found)


@pytest.mark.parametrize(
    ("kind", "values", "becomes"),
    [
        ("byte", [1, 200], "short"),
        ("byte", [1, 70_000], "integer"),
        ("integer", [1, 3_000_000_000], "long"),
        ("integer", [1, 1.5], "double"),
        ("integer", [1, 3_000_000_000, 1.5], "double"),
        ("integer", [2**63, 3_000_000_000], "decimal(20,0)"),
        ("long", [1, 2**63], "decimal(20,0)"),
        ("long", [1, 2**64 - 1, 1.25], "decimal(22,2)"),
        ("float", [0.5, 1e300], "double"),
        ("decimal(4,2)", [1.25, 123.5, 1.375], "decimal(6,3)"),
    ],
)
def test_values_widen_their_column_and_none_is_lost(kind: str, values: list[Any], becomes: str) -> None:
    types, found, dead = wide(pa.schema([pa.field("v", parse_type(kind))]), [{"v": each} for each in values])
    assert (types, dead) == ({"v": becomes}, [])
    assert [float(row["v"]) for row in found] == [float(each) for each in values]


def test_a_date_becomes_a_time_and_dates_go_on_being_read() -> None:
    existing = pa.schema([pa.field("d", pa.date32()), pa.field("s", pa.struct([pa.field("d", pa.date32())]))])
    values = [{"d": "2026-01-02"}, {"d": "2026-01-02T03:04:05.5"}, {"s": {"d": "2026-01-03T00:00:01"}}, {"d": "2026"}]
    for more in ([], [{"d": "2026-01-02T03:04:05Z"}]):
        types, found, dead = wide(existing, [*values, *more])
        assert types == {"d": "timestamp_ntz", "s": "struct<d: timestamp_ntz>"}
        assert [str(row["d"]) for row in found] == ["2026-01-02 00:00:00", "2026-01-02 03:04:05.500000", "None"]
        assert [each[0] for each in dead] == [3, 4][: 1 + len(more)]
    # As after a restart: the table's own note says that it was a date.
    note = {"delta.typeChanges": '\0[{"fromType": "date", "toType": "timestamp_ntz"}]'}
    stored = pa.schema([pa.field("d", TIMESTAMP_NTZ, metadata=note)])
    for columns in ([], [{"name": "d", "type": "date"}]):
        types, found, dead = wide(stored, values[:2], table={"columns": columns})
        assert (len(found), dead, types) == (2, [], {"d": "timestamp_ntz"})
    assert letters(plan_of({"": pa.schema([pa.field("d", TIMESTAMP_NTZ)])}).apply(envelopes(values[:1]))) == [
        (0, "decode", "timestamp")
    ]


@pytest.mark.parametrize("value", ["x", "12", True, {"a": 1}, [1], 1e39, 10**38])
def test_what_fits_no_wider_type_is_a_dead_letter_and_changes_nothing(value: Any) -> None:
    types, found, dead = wide(
        pa.schema([pa.field("v", pa.int64()), pa.field("w", pa.int32())]), [{"v": 1}, {"v": value, "w": 2**40}]
    )
    assert types == {"v": "long", "w": "integer"}
    assert found == [{"v": 1, "w": None}]
    assert [each[0] for each in dead] == [1]


def test_a_record_that_cannot_be_helped_leaves_the_others_help_alone() -> None:
    existing = pa.schema([pa.field("v", pa.int32()), pa.field("w", pa.int32())])
    types, found, dead = wide(existing, [{"v": 2**40, "w": "x"}, {"w": 2**40}, {"v": 1}])
    assert types == {"v": "integer", "w": "long"}
    assert found == [{"v": None, "w": 2**40}, {"v": 1, "w": None}]
    assert dead == [(0, "decode", "overflow")]


def test_widening_reaches_into_structs_arrays_and_maps() -> None:
    kinds = {"s": "struct<a: int, b: struct<c: float>>", "l": "array<int>", "m": "map<string,short>"}
    existing = pa.schema([pa.field(name, parse_type(kind)) for name, kind in kinds.items()])
    first = {"s": {"a": 2**40, "b": {"c": 1e300}}, "l": [1, 2.5], "m": {"x": 1, "y": 70_000}}
    types, found, dead = wide(existing, [first, {"l": [3]}])
    assert types == {"s": "struct<a: long, b: struct<c: double>>", "l": "array<double>", "m": "map<string,integer>"}
    assert dead == []
    assert found[0]["s"] == first["s"]
    assert (found[0]["l"], dict(found[0]["m"]), found[1]["l"]) == ([1.0, 2.5], first["m"], [3.0])


def test_declared_columns_widen_too_and_stay_wide_after_a_restart() -> None:
    columns = [{"name": "id", "type": "int", "nullable": False}, {"name": "deep", "type": "int", "path": "a.b"}]
    values = [{"id": 2**40, "a": {"b": 1.5}, "other": 1}]
    types, found, dead = wide(None, values, table={"columns": columns})
    assert (types, dead) == ({"id": "long", "deep": "double"}, [])
    assert found == [{"id": 2**40, "deep": 1.5}]
    existing = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("deep", pa.float64())])
    plan = plan_of({"": existing}, table={**WIDEN, "source": False, "columns": columns})
    again = plan.apply(envelopes([{"id": 2**50, "a": {"b": 2.5}}]))
    assert again.tables[RouteId()].schema == existing
    assert rows(again) == [{"id": 2**50, "deep": 2.5}]


def test_new_fields_and_wider_types_are_met_in_one_run() -> None:
    spec = spec_of(table={**WIDEN, "source": False})
    existing = pa.schema([pa.field("v", pa.int32())])
    schema = Plan(spec, {}).branches[""].route_schema("", existing=existing)
    task = Plan(spec, {RouteId(): schema}, now=lambda: MOMENT)
    found = task.apply(envelopes([{"v": 2**40}, {"new": "x"}, {"v": 1.5}]))
    assert found.discovered == {RouteId(): struct({"new": {"type": "string"}, "v": {"type": "wider", "to": "double"}})}
    json.dumps(found.discovered[RouteId()])


@pytest.mark.parametrize("answer", ["ignore", "reject"])
def test_a_closed_table_widens_without_taking_new_fields(answer: str) -> None:
    table = {"contract": {"wrong_type": "widen", "new_field": answer}}
    existing = pa.schema([pa.field("v", pa.int32())])
    types, found, dead = wide(existing, [{"v": 2**40, "new": 1}, {"v": 2**40}], table=table)
    assert types == {"v": "long"}
    assert found[-1] == {"v": 2**40}
    assert len(dead) == (answer == "reject")


def test_a_renamed_column_and_what_expressions_make_of_it() -> None:
    existing = pa.schema([pa.field("amount", pa.int32()), pa.field("twice", pa.int32())])
    steps = [{"set": {"twice": "a * 2"}}, {"rename": {"a": "amount"}}]
    types, found, dead = wide(existing, [{"a": 3_000_000_000}], transform=steps)
    assert (types, dead) == ({"amount": "long", "twice": "long"}, [])
    assert found == [{"amount": 3_000_000_000, "twice": 6_000_000_000}]


def test_a_partitions_column_keeps_its_type() -> None:
    existing = pa.schema([pa.field("p", pa.int32()), pa.field("v", pa.int32())])
    types, _, dead = wide(existing, [{"p": 2**40}, {"p": 1, "v": 2**40}], table={"partition_by": ["p"]})
    assert types == {"p": "integer", "v": "long"}
    assert dead == [(0, "decode", "overflow")]


def test_many_rows_in_a_record() -> None:
    existing = pa.schema([pa.field("v", pa.int32())])
    spec = {"decode": {"json": {"rows": "array"}}}
    plan = plan_of({"": existing}, table={**WIDEN, "source": False}, **spec)
    found = plan.apply(envelopes([[{"v": 1}, {"v": 2**40}], [{"v": 2}, {"v": "x"}]]))
    assert rows(found) == [{"v": 1}, {"v": 2**40}]
    assert letters(found) == [(1, "decode", "type")]


def test_formats_with_types_of_their_own(tmp_path: Path) -> None:
    """The texts of a typed value are read back by its own decoder: what only looks like a number helps nobody."""
    existing = pa.schema([pa.field("value", pa.int32())])
    plan = plan_of({"": existing}, table={**WIDEN, "source": False}, decode="int64")
    found = plan.apply(envelopes([(2**40).to_bytes(8, "big"), (5).to_bytes(8, "big")]))
    assert rows(found) == [{"value": 2**40}, {"value": 5}]
    assert type_name(found.tables[RouteId()].schema.field("value").type) == "long"


def test_without_the_contract_nothing_widens() -> None:
    existing = pa.schema([pa.field("v", pa.int32())])
    found = plan_of({"": existing}, table={"source": False}).apply(envelopes([{"v": 2**40}]))
    assert letters(found) == [(0, "decode", "overflow")]


def test_routes_read_apart_widen_each_for_itself() -> None:
    existing = {name: pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int32()), SOURCE]) for name in "ab"}
    plan = plan_of(existing, table=WIDEN, route={"by": {"field": "k"}})
    found = plan.apply(envelopes([{"k": "a", "v": 2**40}, {"k": "b", "v": 1}]))
    assert {str(name): type_name(table.schema.field("v").type) for name, table in found.tables.items()} == {
        "a": "long",
        "b": "integer",
    }


# ---- findings ----

SPEC = 'pipeline: web\nsource: {generate: {}}\ntable: {path: "./lake/%s"%s}\n'


def findings(text: str) -> list[tuple[str, str]]:
    _, found = examine_text(text, Path("/"), "web.yaml")
    return [(each.severity, each.key) for each in found]


def test_the_price_is_said_and_the_feature_is_asked_for() -> None:
    asked = ", contract: {wrong_type: widen}"
    assert findings(SPEC % ("web", asked)) == [("error", "table.contract.wrong_type")]
    assert findings(SPEC % ("web", f"{asked}, features: [typeWidening]")) == [("warning", "table.features")]
    assert findings(SPEC % ("web", ", features: [deletionVectors]")) == [("error", "table.features[0]")]
    assert findings(SPEC % ("web", f"{asked}, features: [typeWidening], strict: true"))[0][0] == "error"
    merged = ", mode: upsert, merge: {keys: [id]}"
    assert findings(SPEC % ("web", f"{merged}, features: [deletionVectors]")) == [("warning", "table.features")]
    assert findings(SPEC % ("web", f"{merged}, features: [typeWidening, deletionVectors]")) == [
        ("warning", "table.features"),
        ("warning", "table.features"),
    ]
    widens = f"{merged}{asked}, features: [deletionVectors]"
    assert ("error", "table.contract.wrong_type") in findings(SPEC % ("web", widens))


def test_a_tracked_history_may_have_vectors_but_no_types_that_widen() -> None:
    tracked = ", mode: scd2, merge: {keys: [id], sequence_by: at, scd2: {track: [v]}}, features: [%s]"
    assert findings(SPEC % ("web", tracked % "deletionVectors")) == [("warning", "table.features")]
    assert ("error", "table.merge.scd2.track") in findings(SPEC % ("web", tracked % "typeWidening"))


def test_tables_of_some_routes_may_widen_alone() -> None:
    text = SPEC % ("{route}", "") + "route: {by: topic}\ntables:\n  - {match: a, contract: {wrong_type: widen}%s}\n"
    assert findings(text % "") == [("error", "tables[0].contract.wrong_type")]
    assert findings(text % ", features: [typeWidening]") == [("warning", "tables[0].features")]


def test_tables_of_an_expression_cannot() -> None:
    asked = ", features: [typeWidening], contract: {wrong_type: widen}"
    text = SPEC % ("{route}", asked) + "route: {by: {sql: kind}}\n"
    assert ("error", "table.contract.wrong_type") in findings(text)
