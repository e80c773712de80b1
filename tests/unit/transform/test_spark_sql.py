"""Conditions and defaults of Delta tables, which are in Spark's SQL, read without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.decode.payload_field import payload_fields
from headrace.delta.actions import MetadataAction, Protocol
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import SOURCE, to_delta
from headrace.delta.snapshot import TableState
from headrace.errors import ColumnMismatch, TableFeature, UsageError
from headrace.spec import TableSpec
from headrace.spec.types import TIMESTAMP, TIMESTAMP_NTZ
from headrace.storage.store import Store
from headrace.transform.sql.column_defaults import default_text, default_value
from headrace.transform.sql.constraints import constraints_of, violations
from headrace.transform.sql.parser import ExpressionNotAllowed
from headrace.transform.sql.spark_sql import translated
from headrace.validate import online
from services.in_process_pipeline import Harness
from services.plans import envelopes, letters, plan_of, rows, spec_of

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("d", pa.float64()),
        pa.field("x", pa.decimal128(10, 2)),
        pa.field("wide", pa.decimal128(38, 2)),
        pa.field("ts", TIMESTAMP),
        pa.field("local", TIMESTAMP_NTZ),
        pa.field("date", pa.date32()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
FIXED = pa.field("fixed", pa.string(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(3)"})


@pytest.mark.parametrize(
    "text",
    [
        "s RLIKE 'a.*'",
        "s LIKE 'a\\\\_b'",
        r"s = 'it\'s'",
        "s = 'it''s'",
        "upper(s) = s",
        "id / 2 > 1",
        "id % id = 0",
        "x + 1 > 0",
        "x > d",
        "wide > id",
        "s > 5",
        "s > date",
        "date > ts",
        "date > '2024-1-1'",
        "date > '2024-02-30'",
        "ts > 'yesterday'",
        "local > '2024-01-01T00:00:00Z'",
        "id > 1.5BD",
        "id | 1 > 0",
        "! (id > 0)",
        "id > 0 -- and more",
        "size(tags) > 0",
        "tags = tags",
        "fixed = 'ab'",
        "missing > 0",
        "s.inner = 1",
        "id > (SELECT 1)",
        "exists(tags, t -> t = 'x')",
        "r'x' = s",
        "CAST(s AS DATE) > date",
        "id",
    ],
)
def test_what_might_mean_something_else_here_is_refused(text: str):
    with pytest.raises(TableFeature, match=r"the constraint c .* cannot be evaluated: .*table\.constraints"):
        constraints_of("/lake/t", _table(COLUMNS.append(FIXED), c=text), _rules())


def test_texts_of_a_fixed_length_are_held_to_it():
    (constraint,) = constraints_of("/lake/t", _table(COLUMNS.append(FIXED)), _rules())
    table = pa.table({"fixed": ["abc", "abcd", None, "äöü", ""]})
    assert [(said, at.tolist()) for said, at in violations([constraint], table, envelopes([{}] * 5))] == [
        ("fixed.length: char(3)", [1])
    ]
    inner = FIXED.with_metadata({"__CHAR_VARCHAR_TYPE_STRING": "array<char(3)>"}).with_type(pa.list_(pa.string()))
    with pytest.raises(TableFeature, match=r"fixed\.length .* nested fields are not supported"):
        constraints_of("/lake/t", _table(COLUMNS.append(inner)), _rules())


def test_names_are_those_of_the_table_whatever_the_engine_reserves():
    columns = pa.schema([pa.field(name, pa.int64()) for name in ("order", "Group", "_topic", "a b", "c0", "end")])
    text = "order > 0 AND group > 0 AND _topic > 0 AND `a b` > 0 AND C0 > 0 AND `end` > 0"
    found = translated(text, columns)
    assert set(found.columns) == {*columns.names}
    (constraint,) = constraints_of("/lake/t", _table(columns, c=text), _rules())
    table = pa.table([pa.array([1, 1, None])] * 5 + [pa.array([1, -1, 1])], schema=columns)
    ((_, at),) = violations([constraint], table, envelopes([{}] * 3))
    assert at.tolist() == [1, 2]


def test_a_constraint_holds_only_where_it_is_true():
    found = constraints_of("/lake/t", _table(COLUMNS, c="id > 0", b="s IS NULL OR s <> ''"), _rules())
    table = pa.Table.from_pylist([{"id": 1, "s": "a"}, {"id": None}, {"id": 0, "s": ""}], COLUMNS)
    assert [(name, at.tolist()) for name, at in violations(found, table, envelopes([{}] * 3))] == [
        ("b: s IS NULL OR s <> ''", [2]),
        ("c: id > 0", [1, 2]),
    ]


def test_invariants_of_columns_are_constraints_and_generated_columns_are_written_out():
    invariant = json.dumps({"expression": {"expression": "id > 3"}})
    made = {"delta.generationExpression": "CAST(ts AS DATE)"}
    columns = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"delta.invariants": invariant}),
            pa.field("ts", TIMESTAMP),
            pa.field("day", pa.date32(), metadata=made),
        ]
    )
    one, two = constraints_of("/lake/t", _table(columns, c="day >= '2024-01-01'"), _rules())
    assert (one.columns, two.name, two.text) == ((("ts", "c0"),), "id.invariant", "id > 3")


def test_the_spec_may_say_what_a_constraint_means():
    state = _table(COLUMNS, c="s RLIKE '^a'")
    (constraint,) = constraints_of("/lake/t", state, _rules(constraints={"c": "starts_with(S, 'a')"}))
    table = pa.Table.from_pylist([{"s": "ab"}, {"s": "b"}, {}], COLUMNS)
    ((said, at),) = violations([constraint], table, envelopes([{}] * 3))
    assert (said, at.tolist()) == ("c: s RLIKE '^a'", [1, 2])
    for wrong in ("starts_with(t, 'a')", "length(s)", "random() > 0"):
        with pytest.raises(TableFeature, match=r"table\.constraints\.c: "):
            constraints_of("/lake/t", state, _rules(constraints={"c": wrong}))


def test_check_online_names_a_constraint_that_cannot_be_evaluated_and_one_that_is_not_there(tmp_path: Path):
    tail = LogWriter.open(Store(str(tmp_path / "lake/t")), blocker=lambda _: None)
    made = {"delta.generationExpression": "CAST(ts AS DATE)"}
    schema = to_delta(pa.schema([*list(COLUMNS)[:6], pa.field("made", pa.date32(), metadata=made)]))
    tail.create(schema, ("made",), {"delta.constraints.c": "s RLIKE '^a'"}, "id", (), {}, {})
    table = {"path": f"{tmp_path}/lake/t", "partition_by": ["made"]}
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": table})
    (found,) = online._tables(harness.spec)
    assert (found.severity, "TableFeature" in found.message, "table.constraints" in found.message) == (
        "error",
        True,
        True,
    )
    with pytest.raises(TableFeature):
        harness.feed([{"id": 1}])
    table["constraints"] = {"c": "starts_with(s, 'a')", "d": "true"}
    assert [(each.severity, each.key) for each in online._tables(harness.spec)] == [
        ("warning", "table.constraints.d"),
        ("warning", "table.path"),
    ]


def test_changes_of_a_part_of_a_row_cannot_be_held_to_a_constraint():
    merge = {"keys": ["id"], "update": {"ignore_nulls": True}}
    with pytest.raises(TableFeature, match="only some columns of a row"):
        constraints_of("/lake/t", _table(COLUMNS, c="id > 0"), _rules(mode="upsert", merge=merge))
    history = pa.schema([*COLUMNS, pa.field("current", pa.bool_())])
    rules = _rules(mode="scd2", merge={"keys": ["id"], "sequence_by": "d"})
    with pytest.raises(TableFeature, match="it reads current, which only a merge sets"):
        constraints_of("/lake/t", _table(history, c="current OR id > 0"), rules)


# ---- defaults ----


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("'new'", pa.string(), "new"),
        ("5", pa.int32(), 5),
        ("-9007199254740993", pa.int64(), -9007199254740993),
        ("1.5", pa.decimal128(10, 2), "1.50"),
        ("1.5", pa.float64(), 1.5),
        ("1 + 2", pa.float64(), 3.0),
        ("true", pa.bool_(), True),
        ("NULL", pa.string(), None),
        ("DATE '2024-02-29'", pa.date32(), "2024-02-29"),
        ("TIMESTAMP '2024-02-29 12:00:00'", TIMESTAMP, "2024-02-29 12:00:00+00:00"),
    ],
)
def test_constant_defaults_are_evaluated(text: str, kind: pa.DataType, value: Any):
    scalar = default_value(_column(text, kind))
    found = None if scalar is None else scalar.as_py()
    assert found == value or str(found) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("current_timestamp()", TIMESTAMP),
        ("array(1, 2)", pa.list_(pa.int32())),
        ("concat('a', 'b')", pa.string()),
        ("5.5", pa.int32()),
        ("300", pa.int8()),
        ("'x'", pa.int64()),
    ],
)
def test_other_defaults_are_named(text: str, kind: pa.DataType):
    with pytest.raises(UsageError, match=r"column 'c' has the DEFAULT .*, which cannot be evaluated"):
        default_text(_column(text, kind))


STORED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("s", pa.string(), metadata={"CURRENT_DEFAULT": "'new'"}),
        pa.field("n", pa.int32(), nullable=False, metadata={"CURRENT_DEFAULT": "5"}),
    ]
)


def test_an_absent_field_takes_the_tables_default_and_an_explicit_null_does_not():
    plan = plan_of(existing={"": STORED})
    applied = plan.apply(envelopes([{"id": 1}, {"id": 2, "s": None, "n": 6}, {"id": 3, "n": None}]))
    assert rows(applied) == [{"id": 1, "s": "new", "n": 5}, {"id": 2, "s": None, "n": 6}]
    assert letters(applied) == [(2, "decode", "missing")]


def test_a_declared_default_stands_above_the_tables_and_columns_left_out_take_theirs():
    columns = [{"name": "s", "type": "string", "default": "mine"}]
    plan = plan_of(existing={"": STORED}, table={"columns": columns})
    assert rows(plan.apply(envelopes([{"id": 1}]))) == [{"id": 1, "s": "mine", "n": 5}]
    plan = plan_of(existing={"": STORED}, table={"columns": columns, "only_declared": True})
    assert rows(plan.apply(envelopes([{"id": 1}]))) == [{"id": None, "s": "mine", "n": 5}]


def test_a_default_that_cannot_be_evaluated_stops_unless_the_transform_sets_the_column():
    clock = pa.schema([pa.field("id", pa.int64()), _column("current_timestamp()", TIMESTAMP).with_name("made")])
    with pytest.raises(ColumnMismatch, match=r"'made' has the DEFAULT current_timestamp\(\).*Set the column"):
        plan_of(existing={"": clock}).apply(envelopes([{"id": 1}]))
    plan = plan_of(existing={"": clock}, transform=[{"set": {"made": "coalesce(made, now())"}}])
    assert [row["made"] is not None for row in rows(plan.apply(envelopes([{"id": 1}])))] == [True]


def test_a_merge_that_ignores_nulls_takes_no_default():
    table = {"mode": "upsert", "merge": {"keys": ["id"], "update": {"ignore_nulls": True}}}
    schema = plan_of(table=table).branches[""].route_schema("", existing=STORED.append(SOURCE))
    assert not any(item.default for item in payload_fields(schema.payload))


def _column(text: str, kind: pa.DataType) -> pa.Field:
    return pa.field("c", kind, metadata={"CURRENT_DEFAULT": text})


def _table(columns: pa.Schema, **constraints: str) -> TableState:
    properties = {f"delta.constraints.{name}": text for name, text in constraints.items()}
    return TableState(3, MetadataAction("id", to_delta(columns), (), properties), Protocol(1, 3))


def _rules(**table: Any) -> TableSpec:
    return spec_of(table=table).table


def test_refusals_say_what_was_met():
    with pytest.raises(ExpressionNotAllowed, match="the function size"):
        translated("size(tags) > 0", COLUMNS)
