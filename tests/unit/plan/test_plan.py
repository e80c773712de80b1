"""The plan: envelopes in, rows per table and dead letters out, every record accounted for; no JVM."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.delta.schema import DEAD_LETTERS, SOURCE
from headrace.errors import ColumnMismatch, ContractViolation
from headrace.plan.accounting import Counts
from headrace.plan.branch import EVERY
from headrace.plan.plan import Plan
from headrace.spec.route_id import RouteId
from services.pipelines import environment
from services.plans import MOMENT, adds_up, envelopes, letters, plan_of, rows, shaped, spec_of

ID = {"name": "id", "type": "bigint", "nullable": False}
EXISTING = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("day", pa.date32())])


def test_neither_the_plan_nor_its_run_imports_spark():
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from services.plans import envelopes, plan_of\n"
        "plan = plan_of(route={'by': {'sql': 'kind'}}, transform=[{'where': 'id > 0'}])\n"
        "assert plan.apply(envelopes([{'kind': 'a', 'id': 1}, b'x'])).counts.routed == 1\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] in ('pyspark', 'py4j')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# ---- where columns come from ----


def test_declared_columns_are_the_table_and_the_rest_is_ignored_and_counted():
    plan = plan_of(table={"columns": [ID, {"name": "price", "type": "decimal(9,2)"}]})
    applied = plan.apply(envelopes([{"id": 1, "price": 2.5, "more": 1}, {"id": 2, "more": {"x": 1}, "other": None}]))
    assert applied.tables[RouteId()].schema == pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("price", pa.decimal128(9, 2)), SOURCE]
    )
    assert adds_up(applied).ignored == {"/lake/web: more": 2, "/lake/web: other": 1}


def test_an_existing_table_keeps_its_columns_and_its_order_and_gets_no_source_unasked():
    plan = plan_of({"": EXISTING})
    applied = plan.apply(envelopes([{"name": "a", "id": 1, "new": True}, {"day": "2026-01-02"}]))
    assert applied.tables[RouteId()].schema == EXISTING.append(pa.field("new", pa.bool_()))
    assert [row["new"] for row in rows(applied)] == [True, None]


def test_inferred_columns_hold_every_record_of_the_batch():
    plan = plan_of()
    values = [{"a": 1}, {"a": 2.5, "b": "x"}, {"c": {"d": [1]}, "e": None}, {"f": [], "g": {}}]
    applied = plan.apply(envelopes(values))
    types = {item.name: item.type for item in applied.tables[RouteId()].schema}
    assert types == {
        "a": pa.float64(),
        "b": pa.string(),
        "c": pa.struct([pa.field("d", pa.list_(pa.field("element", pa.int64())))]),
        "_source": SOURCE.type,
    }
    assert [row["a"] for row in rows(applied)] == [1.0, 2.5, None, None]


def test_a_plan_learns_new_fields_and_a_known_column_never_changes_its_type():
    plan = plan_of()
    plan.apply(envelopes([{"a": 1}]))
    applied = plan.apply(envelopes([{"a": 2, "b": {"c": 1}}, {"a": 2.5}, {"b": {"d": "x"}}]))
    assert rows(applied) == [{"a": 2, "b": {"c": 1, "d": None}}, {"a": None, "b": {"c": None, "d": "x"}}]
    assert letters(applied) == [(1, "decode", "type")]


def test_records_that_are_all_bad_teach_nothing_and_cost_nothing():
    """Whatever the contract says: the columns of a table are those of its first good records."""
    for answer in ("evolve", "ignore", "reject"):
        plan = plan_of(table={"contract": {"new_field": answer}, "partition_by": ["day"]})
        assert letters(plan.apply(envelopes([b"x", b""]))) == [(0, "decode", "malformed"), (1, "decode", "empty")]
        assert rows(plan.apply(envelopes([{"id": 1, "day": "d"}]))) == [{"id": 1, "day": "d"}]


def test_a_plan_with_given_shapes_says_what_it_met_instead_of_learning():
    task = shaped(plan_of(), existing=pa.schema([pa.field("id", pa.int64())]))
    applied = task.apply(envelopes([{"id": 1}, {"id": 2, "new": "x"}]))
    assert applied.discovered == {RouteId(): {"type": "struct", "fields": {"new": {"type": "string"}}}}
    assert applied.tables == {}


def test_what_was_discovered_is_the_same_for_every_split_of_the_batch():
    values = [{"id": 1, "v": 1}, {"id": 2, "v": 1.5}, {"id": 3, "w": [1]}, {"id": 4}]
    task = shaped(plan_of(), existing=pa.schema([pa.field("id", pa.int64())]))
    whole = task.apply(envelopes(values)).discovered[RouteId()]
    fields = {"v": {"type": "double"}, "w": {"type": "list", "element": {"type": "long"}}}
    assert whole == {"type": "struct", "fields": fields}


def test_source_says_where_a_row_came_from_and_can_be_left_out():
    given = envelopes([{"id": 1}, b"x", {"id": 2}], topic="orders")
    sources = plan_of().apply(given).tables[RouteId()]["_source"].to_pylist()
    assert [(each["topic"], each["partition"], each["offset"]) for each in sources] == [
        ("orders", 0, 0),
        ("orders", 0, 2),
    ]
    assert {each["timestamp"] for each in sources} == {MOMENT}
    assert plan_of(table={"source": False}).apply(given).tables[RouteId()].column_names == ["id"]


def test_a_table_that_has_the_column_gets_it_filled_and_a_strange_one_of_that_name_stays_empty():
    asked = plan_of({"": pa.schema([pa.field("id", pa.int64()), SOURCE])})
    assert asked.apply(envelopes([{"id": 1}])).tables[RouteId()]["_source"].to_pylist()[0]["offset"] == 0
    strange = plan_of({"": pa.schema([pa.field("id", pa.int64()), pa.field("_source", pa.string())])})
    assert strange.apply(envelopes([{"id": 1}])).tables[RouteId()]["_source"].to_pylist() == [None]


# ---- the contract ----


@pytest.mark.parametrize(
    ("contract", "value", "reason"),
    [
        ({"new_field": "reject"}, {"id": 1, "new": 1}, "new_field"),
        ({}, {"id": "1"}, "type"),
        ({}, {"id": 2**63}, "overflow"),
        ({}, {}, "missing"),
    ],
)
def test_what_the_contract_rejects_is_a_dead_letter(contract: dict[str, str], value: Any, reason: str):
    applied = plan_of(table={"columns": [ID], "contract": contract}).apply(envelopes([value, {"id": 5}]))
    assert letters(applied) == [(0, "decode", reason)]
    assert rows(applied) == [{"id": 5}]
    adds_up(applied)


@pytest.mark.parametrize(
    ("contract", "value", "said"),
    [
        ({"new_field": "stop"}, {"id": 1, "new": 1}, "'new'"),
        ({"wrong_type": "stop"}, {"id": "1"}, "id: "),
        ({"wrong_type": "stop"}, {"id": 2**63}, "(overflow)"),
        ({"missing": "stop"}, {}, "(missing)"),
    ],
)
def test_what_the_contract_stops_is_named(contract: dict[str, str], value: Any, said: str):
    plan = plan_of(table={"columns": [ID], "contract": contract})
    assert rows(plan.apply(envelopes([{"id": 5}]))) == [{"id": 5}]
    with pytest.raises(ContractViolation) as stopped:
        plan.apply(envelopes([{"id": 5}, value]))
    assert said in stopped.value.message


def test_a_contract_that_stops_lets_other_poison_be_dead_letters():
    contract = {"new_field": "stop", "wrong_type": "stop", "missing": "stop"}
    applied = plan_of(table={"columns": [ID], "contract": contract}).apply(envelopes([b"{", None, {"id": 1}]))
    assert [reason for _, _, reason in letters(applied)] == ["malformed", "tombstone"]


def test_missing_default_fills_what_is_absent_and_not_what_is_null():
    column = {**ID, "default": 7}
    plan = plan_of(table={"columns": [column], "contract": {"missing": "default"}})
    applied = plan.apply(envelopes([{}, {"id": None}, {"id": 1}]))
    assert rows(applied) == [{"id": 7}, {"id": 1}]
    assert letters(applied) == [(1, "decode", "missing")]


def test_tables_of_some_routes_have_rules_of_their_own():
    plan = plan_of(
        route={"by": {"field": "kind"}},
        tables=[{"match": "^strict", "columns": [ID], "contract": {"new_field": "reject"}}],
    )
    applied = plan.apply(envelopes([{"kind": "strict", "id": 1}, {"kind": "free", "id": "x"}]))
    assert letters(applied) == [(0, "decode", "new_field")]
    assert rows(applied, "free") == [{"kind": "free", "id": "x"}]


# ---- routes ----


def test_every_topic_has_a_table_with_its_own_columns():
    given = pa.concat_tables([envelopes([{"a": 1}], "one"), envelopes([{"b": 2}, b"x"], "two")])
    applied = plan_of(route={"by": "topic"}).apply(given)
    assert (rows(applied, "one"), rows(applied, "two")) == ([{"a": 1}], [{"b": 2}])
    assert applied.dead_letters["table"].to_pylist() == ["/lake/two"]


def test_a_field_decides_before_the_decode_so_types_may_differ():
    values = [{"kind": "a", "v": 1}, {"kind": "b", "v": "x"}, {"v": 1}, {"kind": "../x"}, {"kind": {}}, b"[1]"]
    applied = plan_of(route={"by": {"field": "kind"}}).apply(envelopes(values))
    assert rows(applied, "a") == [{"kind": "a", "v": 1}]
    assert rows(applied, "b") == [{"kind": "b", "v": "x"}]
    assert letters(applied) == [
        (2, "route", "unrouted"),
        (3, "route", "bad_route"),
        (4, "decode", "type"),
        (5, "decode", "not_an_object"),
    ]
    assert set(applied.dead_letters["table"].to_pylist()) == {None}


def test_a_header_decides_and_its_bytes_are_never_a_path():
    headers = [[{"key": "t", "value": b"a"}, {"key": "t", "value": b"b"}], [{"key": "t", "value": b"\xff"}], []]
    parts = [envelopes([{"v": at}], headers=each) for at, each in enumerate(headers)]
    applied = plan_of(route={"by": {"header": "t"}, "unrouted": "skip"}).apply(pa.concat_tables(parts))
    assert rows(applied, "b") == [{"v": 0}]
    assert [reason for _, _, reason in letters(applied)] == ["bad_route"]
    assert adds_up(applied).filtered == 1


def test_an_expression_decides_after_the_decode_and_its_tables_share_their_columns():
    values = [{"kind": "a", "n": 1}, {"kind": "b", "n": 2.5}, {"n": 3}, {"kind": "a", "m": True}, {"kind": "x/y"}]
    plan = plan_of(route={"by": {"sql": "kind || '_' || (n > 2)"}}, transform=[{"set": {"n": "coalesce(n, 0)"}}])
    applied = plan.apply(envelopes(values))
    assert rows(applied, "a_false") == [{"kind": "a", "n": 1.0, "m": None}, {"kind": "a", "n": 0.0, "m": True}]
    assert rows(applied, "b_true") == [{"kind": "b", "n": 2.5, "m": None}]
    assert letters(applied) == [(2, "route", "unrouted"), (4, "route", "bad_route")]
    later = plan.apply(envelopes([{"kind": "a", "n": 1, "later": "x"}]))
    assert rows(later, "a_false") == [{"kind": "a", "n": 1.0, "m": None, "later": "x"}]


def test_an_expression_that_fails_for_a_record_costs_that_record():
    plan = plan_of(route={"by": {"sql": "'t' || CAST(v AS INTEGER)"}})
    applied = plan.apply(envelopes([{"v": "1"}, {"v": "no"}]))
    assert letters(applied) == [(1, "route", "transform")]
    assert set(map(str, applied.tables)) == {"t1"}
    adds_up(applied)


def test_tables_beyond_the_limit_take_no_records():
    spec = spec_of(route={"by": "topic"}, limits={"tables": 1})
    known = shaped(Plan(spec), "one", existing=pa.schema([pa.field("id", pa.int64())]))
    plan = Plan(spec, {**known.schemas, RouteId("", "two"): None})
    applied = plan.apply(pa.concat_tables([envelopes([{"id": 1}], "one"), envelopes([{"id": 2}, b"x"], "two")]))
    assert letters(applied) == [(0, "route", "too_many_tables"), (1, "route", "too_many_tables")]
    assert "limit of 1" in applied.dead_letters["detail"][0].as_py()
    assert adds_up(applied).routed == 1


def test_tables_beyond_the_limit_of_an_expression_take_no_records():
    spec = spec_of(route={"by": {"sql": "kind"}})
    known = shaped(Plan(spec), EVERY, "a", existing=pa.schema([pa.field("kind", pa.string())]))
    plan = Plan(spec, {**known.schemas, RouteId("", "b"): None})
    applied = plan.apply(envelopes([{"kind": "a"}, {"kind": "b"}]))
    assert letters(applied) == [(1, "route", "too_many_tables")]
    adds_up(applied)


# ---- transforms against tables ----

STEPS: list[dict[str, Any]] = [
    {"where": "coalesce(status, 0) < 500"},
    {"rename": {"n": "name"}},
    {"set": {"day": "CAST(moment AS DATE)", "loud": "upper(name)"}},
    {"drop": ["secret", "moment"]},
]


def test_steps_run_over_inferred_records():
    values = [
        {"id": 1, "n": "a", "moment": "2026-01-02T00:00:00Z", "secret": "s"},
        {"id": 2, "status": 500},
        {"id": 3, "moment": "never"},
        {"id": 4},
    ]
    applied = plan_of(transform=STEPS).apply(envelopes(values))
    assert [(row["id"], row["name"], row["loud"]) for row in rows(applied)] == [(1, "a", "A"), (4, None, None)]
    assert not {"secret", "moment", "n"} & set(applied.tables[RouteId()].column_names)
    assert letters(applied) == [(2, "transform", "transform")]
    assert adds_up(applied).filtered == 1


def test_derived_and_renamed_columns_are_those_of_the_existing_table():
    plan = plan_of({"": EXISTING.append(pa.field("loud", pa.string()))}, transform=STEPS)
    values = [{"id": 1, "n": "a", "moment": "2026-01-02T00:00:00Z"}, {"id": 2, "n": 5}, {"id": 3, "day": "junk"}]
    applied = plan.apply(envelopes(values))
    assert applied.tables[RouteId()].column_names == ["id", "name", "day", "loud"]
    assert [(row["id"], row["name"], row["loud"]) for row in rows(applied)] == [(1, "a", "A"), (3, None, None)]
    assert letters(applied) == [(1, "decode", "type")]  # `n` has the type of `name`


def test_a_number_is_stored_in_another_numbers_column_only_when_it_comes_back_unchanged():
    table = pa.schema([pa.field("id", pa.int64()), pa.field("half", pa.int32())])
    plan = plan_of({"": table}, transform=[{"set": {"half": "id / 2"}}])
    applied = plan.apply(envelopes([{"id": 4}, {"id": 5}, {"id": 2**60}, {}]))
    assert rows(applied) == [{"id": 4, "half": 2}, {"id": None, "half": None}]
    assert letters(applied) == [(1, "stage", "overflow"), (2, "stage", "overflow")]


def test_an_expression_of_another_type_than_the_tables_column_is_refused_before_any_record():
    plan = plan_of({"": EXISTING}, transform=[{"set": {"name": "id"}}])
    with pytest.raises(ColumnMismatch, match="column 'name' is string in the table, but long in the spec"):
        plan.apply(envelopes([{"id": 1}]))


def test_required_values_are_required_at_every_depth_also_of_expressions():
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    table = pa.schema(
        [
            pa.field("s", inner),
            pa.field("l", pa.list_(pa.field("element", inner, nullable=False))),
            pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        ]
    )
    decoded = plan_of({"": table}).apply(
        envelopes([{"s": {"a": 1}}, {"s": {}}, {"l": [{"a": 1}, None]}, {"l": [{}]}, {"m": {"x": None}}, {}])
    )
    assert letters(decoded) == [(at, "decode", "missing") for at in (1, 2, 3, 4)]
    steps = {"s": "CASE WHEN x = 0 THEN NULL ELSE {'a': x} END", "l": "[{'a': y}]", "m": "map(['k'], [z])"}
    made = plan_of({"": table}, transform=[{"set": steps}, {"drop": ["x", "y", "z"]}])
    good = {"x": 1, "y": 1, "z": 1}
    applied = made.apply(
        envelopes([good, {**good, "x": 0}, {**good, "x": None}, {**good, "y": None}, {"x": 1, "y": 1}])
    )
    assert letters(applied) == [(at, "stage", "missing") for at in (2, 3, 4)]
    assert [row["s"] for row in rows(applied)] == [{"a": 1}, None]
    assert applied.tables[RouteId()].schema == table
    applied.tables[RouteId()].validate(full=True)


def test_a_partition_value_is_never_an_empty_text():
    plan = plan_of(table={"partition_by": ["day"]})
    applied = plan.apply(envelopes([{"id": 1, "day": ""}, {"id": 2, "day": "x"}, {"id": 3}]))
    assert letters(applied) == [(0, "stage", "bad_partition")]
    assert [row["day"] for row in rows(applied)] == ["x", None]


# ---- null values, and what is already there ----


@pytest.mark.parametrize("by", ["fixed", "topic", {"field": "kind"}, {"header": "kind"}, {"sql": "kind"}])
@pytest.mark.parametrize("answer", ["dead_letter", "skip", "row"])
def test_null_values_get_the_answer_of_the_spec_under_every_route(by: Any, answer: str):
    headers = [{"key": "kind", "value": b"a"}]
    plan = plan_of(route={"by": by}, decode={"json": {"tombstone": answer}})
    applied = plan.apply(envelopes([{"kind": "a"}, None, {"kind": "a"}], "a", headers=headers))
    counts = adds_up(applied)
    if answer == "dead_letter":
        assert letters(applied) == [(1, "decode", "tombstone")]
    elif answer == "skip":
        assert (counts.routed, counts.filtered, counts.dead) == (2, 1, 0)
    elif isinstance(by, dict) and "header" not in by:  # a route of the value, and there is none
        assert letters(applied) == [(1, "route", "unrouted")]
    else:
        (table,) = applied.tables.values()
        assert table["kind"].to_pylist() == ["a", None, "a"]


def test_a_row_of_nulls_is_no_row_where_a_value_is_required():
    plan = plan_of(table={"columns": [ID]}, decode={"json": {"tombstone": "row"}})
    assert letters(plan.apply(envelopes([None, {"id": 1}]))) == [(0, "stage", "missing")]


def test_records_a_table_already_has_are_skipped_before_they_are_evaluated():
    floors = {("web", 0): 2, ("other", 0): 9}
    plan = shaped(plan_of(), existing=pa.schema([pa.field("id", pa.int64())]), floors=floors)
    applied = plan.apply(envelopes([{"id": 0}, b"x", {"id": 2}, {"id": 3}, b"y"]))
    assert rows(applied) == [{"id": 3}]
    assert letters(applied) == [(4, "decode", "malformed")]
    counts = adds_up(applied)
    assert (counts.read, counts.skipped, counts.routed, counts.dead) == (5, 3, 1, 1)


# ---- dead letters ----


def test_a_dead_letter_holds_the_record_as_it_came_and_why():
    headers = [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]
    plan = plan_of(table={"columns": [ID]})
    applied = plan.apply(envelopes([b'{"id": "\x00"}'], "orders", headers=headers))
    assert applied.dead_letters.schema == DEAD_LETTERS
    (letter,) = applied.dead_letters.to_pylist()
    assert letter.pop("detail")
    assert letter == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": MOMENT,
        "key": b"k0",
        "value": b'{"id": "\x00"}',
        "headers": headers,
        "table": "/lake/web",
        "step": "decode",
        "reason": "malformed",
        "schema_id": None,
        "pipeline": "web",
        "spec": plan.spec.digest,
        "rejected_at": MOMENT,
        "date": MOMENT.date(),
    }


def test_no_records_make_no_tables():
    applied = plan_of().apply(envelopes([]))
    assert (applied.tables, len(applied.dead_letters), applied.counts) == ({}, 0, Counts())


def test_batches_slices_and_reordered_columns_are_the_same_records():
    whole = envelopes([{"id": at} for at in range(6)])
    plan = plan_of()
    assert rows(plan.apply(whole.slice(2, 2))) == [{"id": 2}, {"id": 3}]
    assert rows(plan.apply(whole.to_batches()[0])) == rows(plan.apply(whole))
    assert rows(plan.apply(whole.select(whole.column_names[::-1]))) == rows(plan.apply(whole))
    assert rows(plan.apply(pa.concat_tables([whole.slice(0, 3), whole.slice(3)]))) == rows(plan.apply(whole))


# ---- records without anything in them ----


@pytest.mark.parametrize("value", [{}, {"a": None}, {"gone": 1}])
@pytest.mark.parametrize("by", ["fixed", {"sql": "'t'"}])
def test_a_record_that_brings_no_column_is_a_row_all_the_same(value: Any, by: Any):
    plan = plan_of(route={"by": by}, transform=[{"drop": ["gone"]}], decode={"json": {"tombstone": "row"}})
    applied = plan.apply(envelopes([value, None, value]))
    assert adds_up(applied).routed == 3
    (table,) = applied.tables.values()
    assert [each["offset"] for each in table["_source"].to_pylist()] == [0, 1, 2]


def test_a_table_that_would_have_no_column_at_all_takes_no_record():
    applied = plan_of(table={"source": False}).apply(envelopes([{}, {}]))
    assert letters(applied) == [(0, "stage", "missing"), (1, "stage", "missing")]
    adds_up(applied)


# ---- the account, whatever comes ----

_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5)
)
_objects = st.dictionaries(
    st.sampled_from(["id", "kind", "v", "ID", "n", "day", "x y"]),
    st.one_of(_scalars, st.lists(_scalars, max_size=2), st.dictionaries(st.sampled_from("ab"), _scalars, max_size=2)),
    max_size=5,
)
_values = st.one_of(
    _objects,
    st.builds(lambda kind, n: {"kind": kind, "id": n, "v": n}, st.sampled_from("abc"), st.integers(0, 9)),
    st.sampled_from([None, b"", b"{", b"[]", b"\xff", b'{"id":1,"id":2}', b'{"id":NaN}', b'{"id":1}x']),
)
SPECS: dict[str, dict[str, Any]] = {
    "declared": {"table": {"columns": [ID, {"name": "v", "type": "double"}], "partition_by": ["v"]}},
    "inferred": {},
    "field": {"route": {"by": {"field": "kind"}, "unrouted": "skip"}, "decode": {"json": {"tombstone": "skip"}}},
    "sql": {"route": {"by": {"sql": "CAST(id AS VARCHAR)"}}, "decode": {"json": {"tombstone": "row"}}},
    "steps": {
        "table": {"columns": [{**ID, "nullable": True}, {"name": "v", "type": "string", "json": True}]},
        "transform": [{"where": "id > 0 OR id IS NULL"}, {"set": {"w": "CAST(v AS INTEGER)"}}, {"drop": ["v"]}],
    },
    "skipped": {"table": {"columns": [ID], "strict": True}},
}


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=25, deadline=None)
@given(values=st.lists(_values, max_size=12))
def test_every_record_is_in_exactly_one_place(name: str, values: list[Any]):
    plan = plan_of(**SPECS[name])
    if name == "skipped":
        plan = shaped(plan, floors={("web", 0): 3})
    applied = plan.apply(envelopes(values))
    counts = adds_up(applied)
    assert counts.read == len(values)
    there = [each["offset"] for table in applied.tables.values() for each in table["_source"].to_pylist()]
    there += applied.dead_letters["offset"].to_pylist()
    assert len(there) == len(set(there)) == counts.routed + counts.dead
    assert all(0 < len(detail) <= 512 for detail in applied.dead_letters["detail"].to_pylist())
    for table in applied.tables.values():
        table.validate(full=True)


def test_an_expressions_tables_are_told_together_with_the_columns_it_reads():
    plan = Plan(spec_of(route={"by": {"sql": "lower(kind)"}}, table={"path": "/lake/{route}"}), {})
    found = plan.apply(envelopes([{"kind": "A"}, {"kind": "B", "v": 1}, b"{", {"v": 2}])).discovered
    assert set(map(str, found)) == {"*", "a", "b"}
    assert set(found[RouteId("", EVERY)]["fields"]) == {"kind", "v"}
    assert found[RouteId("", "a")] == found[RouteId("", "b")] == {}


def test_an_expression_that_does_not_fit_what_records_bring_is_named():
    plan = Plan(spec_of(route={"by": {"sql": "lower(kind)"}}, table={"path": "/lake/{route}"}))
    with pytest.raises(ColumnMismatch, match=r"route\.by\.sql.*lower.*BIGINT") as stop:
        plan.apply(envelopes([{"kind": 1}]))
    assert "run again" in stop.value.hint


@pytest.mark.parametrize(
    ("steps", "table", "said"),
    [
        ([{"set": {"name": "lower(id)"}}], {}, r"/lake/web: set name: 'lower\(id\)' does not fit.*BIGINT"),
        ([{"where": "id"}], {}, "/lake/web: where: 'id' is int64, not true or false"),
        ([{"rename": {"id": "name"}}], {}, "/lake/web: rename: the column 'name' already exists"),
        ([], {"partition_by": ["day"]}, "/lake/web: partition_by: unknown column 'day'. Columns: id, na"),
        ([], {"partition_by": ["tags"]}, "/lake/web: partition_by: column 'tags' is list<"),
    ],
)
def test_what_records_bring_against_the_spec_stops_with_a_name(steps: Any, table: Any, said: str):
    plan = Plan(spec_of(transform=steps, table={"path": "/lake/web", **table}))
    with pytest.raises(ColumnMismatch, match=said) as stop:
        plan.apply(envelopes([{"id": 1, "name": "x", "tags": ["a"]}]))
    assert stop.value.exit_code == 1
    assert stop.value.hint.endswith("Then run again; the batch will be read again.")
