"""The transform's steps over rows: order, failures per record, types, names, and the account of every record."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.payload_field import is_json_text, json_field
from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import UsageError
from headrace.reasons import Reason
from headrace.spec.types import TIMESTAMP
from headrace.transform.steps import (
    DropStep,
    RenameStep,
    SetStep,
    Transform,
    Transformed,
    TransformStep,
    WhereStep,
    evaluate_expression,
)

NOW = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)

PAYLOAD = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("s", pa.string()),
        pa.field("f", pa.float64()),
        json_field("j"),
        pa.field("deep", pa.struct([pa.field("x", pa.struct([pa.field("y", pa.int32())]))])),
        pa.field("l", pa.list_(pa.field("element", pa.int64()))),
    ]
)


def rows(*values: dict[str, Any]) -> pa.Table:
    empty = {"a": 0, "s": None, "f": None, "j": None, "deep": None, "l": None}
    return pa.Table.from_pylist([{**empty, **each} for each in values], schema=PAYLOAD)


def envelopes(count: int, headers: Any = ()) -> pa.Table:
    columns = {
        "topic": ["shop"] * count,
        "partition": [3] * count,
        "offset": list(range(100, 100 + count)),
        "timestamp": [NOW] * count,
        "timestamp_type": [1] * count,
        "key": [b"k%d" % nth for nth in range(count)],
        "value": [b"{}"] * count,
        "headers": list(headers) or [[]] * count,
    }
    return pa.table(columns, schema=RECORD_SCHEMA)


def apply(table: pa.Table, *steps: TransformStep) -> Transformed:
    return Transform(steps).apply(table, envelopes(len(table)), NOW)


def one(expression: str, **value: Any) -> Any:
    """The value of an expression for one row."""
    done = apply(rows(value), SetStep({"made": expression}))
    assert not done.rejects.index, done.rejects
    return done.rows["made"].to_pylist()[0]


def kind(expression: str) -> pa.DataType:
    return Transform([SetStep({"made": expression})]).output(PAYLOAD).field("made").type


def test_no_steps_cost_nothing() -> None:
    table = rows({"a": 1}, {"a": 2})
    done = Transform([]).apply(table, envelopes(2), NOW)
    assert done.rows is table
    assert done.index.to_pylist() == [0, 1]


def test_steps_run_in_order_and_see_earlier_results() -> None:
    done = apply(
        rows({"a": 1}, {"a": 5}, {"a": 9}),
        SetStep({"b": "a + 1", "c": "b * 10"}),
        WhereStep("c < 100"),
        RenameStep({"b": "next"}),
        SetStep({"a": "next + c"}),
        DropStep(("s", "f", "j", "deep", "l")),
    )
    assert done.rows.to_pylist() == [{"a": 22, "next": 2, "c": 20}, {"a": 66, "next": 6, "c": 60}]
    assert done.index.to_pylist() == [0, 1]
    assert done.filtered.to_pylist() == [2]


def test_columns_are_replaced_in_their_place_and_added_at_the_end() -> None:
    names = apply(rows({}), SetStep({"zz": "1", "s": "'x'"}), RenameStep({"a": "first"})).rows.column_names
    assert names == ["first", "s", "f", "j", "deep", "l", "zz"]


def test_where_keeps_only_what_is_true() -> None:
    done = apply(rows({"f": 1.0}, {"f": None}, {"f": 9.0}), WhereStep("f < 5"))
    assert done.index.to_pylist() == [0]
    assert done.filtered.to_pylist() == [1, 2]


def test_a_failing_expression_makes_that_record_a_reject() -> None:
    done = apply(rows({"s": "1"}, {"s": "x"}, {"s": None}, {"s": "3"}), SetStep({"n": "s::int"}))
    assert done.rows["n"].to_pylist() == [1, None, 3]
    assert done.index.to_pylist() == [0, 2, 3]
    assert done.rejects.index == [1]
    assert done.rejects.reason == [Reason.TRANSFORM]
    assert done.rejects.detail == ["set n: Could not convert string 'x' to INT32"]


def test_a_failing_where_is_a_reject_and_not_a_filter() -> None:
    done = apply(rows({"s": "1"}, {"s": "x"}), WhereStep("s::int > 1"))
    assert (done.rejects.index, done.filtered.to_pylist()) == ([1], [0])
    assert done.rejects.detail[0].startswith("where: Could not convert")


def test_the_first_event_of_a_record_stands() -> None:
    """Filtered before it can fail; failed before it can be filtered."""
    table = rows({"a": 0, "s": "x"}, {"a": 1, "s": "x"}, {"a": 1, "s": "7"})
    done = apply(table, WhereStep("a = 1"), SetStep({"n": "s::int"}))
    assert (done.filtered.to_pylist(), done.rejects.index, done.index.to_pylist()) == ([0], [1], [2])
    done = apply(table, SetStep({"n": "s::int"}), WhereStep("a = 1"))
    assert (done.filtered.to_pylist(), done.rejects.index, done.index.to_pylist()) == ([], [0, 1], [2])


@pytest.mark.parametrize(
    "expression",
    [
        "1 / f",
        "sqrt(f - 1)",
        "ln(f)",
        "(1 / f)::float",
        "[1.0::double, 1 / f]",
        "{'x': {'y': 1 / f}}",
        "MAP {'k': 1 / f}",
        "[{'x': [1 / f]}]",
        "CASE WHEN f = 0 THEN DATE 'infinity' ELSE DATE '2024-01-01' END",
        "CASE WHEN f = 0 THEN '-infinity'::timestamptz ELSE now() END",
        "CASE WHEN f = 0 THEN DATE '12000-01-01' ELSE DATE '2024-01-01' END",
    ],
)
def test_results_that_are_not_finite_are_rejects(expression: str) -> None:
    table = rows({"f": 0.0}, {"f": 2.0}, {"f": 0.0})
    done = apply(table, SetStep({"x": expression}))
    assert done.rejects.index == [0, 2]
    assert "cannot be stored" in done.rejects.detail[0]
    assert len(done.rows) == 1


def test_a_result_that_grows_too_long_is_a_reject() -> None:
    table = rows({"s": "x" * 1_100_000}, {"s": "y"})
    done = apply(table, SetStep({"t": "s || s || s || s"}), SetStep({"u": "t || t || t || t"}))
    assert done.rejects.index == [0]
    assert done.rows["u"].to_pylist() == ["y" * 16]


def test_the_envelope_can_be_read() -> None:
    headers = [[{"key": "a", "value": b"1"}, {"key": "b", "value": b"x"}, {"key": "a", "value": b"2"}], None]
    wanted = {
        "t": "_topic || '/' || _partition || '/' || _offset",
        "k": "decode(_key)",
        "h": "decode(_headers['a'])",
        "n": "_headers['nope']",
        "at": "_timestamp",
        "how": "_timestamp_type",
    }
    done = Transform([SetStep(wanted), DropStep(tuple(PAYLOAD.names))]).apply(rows({}, {}), envelopes(2, headers), NOW)
    assert done.rows.to_pylist() == [
        {"t": "shop/3/100", "k": "k0", "h": "2", "n": None, "at": NOW, "how": 1},
        {"t": "shop/3/101", "k": "k1", "h": None, "n": None, "at": NOW, "how": 1},
    ]


def test_headers_in_many_chunks_and_slices() -> None:
    headers = [[{"key": "n", "value": b"%d" % nth}, {"key": None, "value": b"?"}] for nth in range(10)]
    parts = envelopes(10, headers)
    split = pa.concat_tables([parts.slice(7), parts.slice(2, 3), parts.slice(0, 0)])
    done = Transform([SetStep({"n": "decode(_headers['n'])::int"})]).apply(rows(*[{}] * 6), split, NOW)
    assert done.rows["n"].to_pylist() == [7, 8, 9, 2, 3, 4]


def test_payload_fields_named_like_the_envelope_are_shadowed_and_stored() -> None:
    table = pa.table({"_topic": ["mine"], "_KEY": ["k"]})
    done = Transform([SetStep({"x": "_topic", "y": "decode(_key)"})]).apply(table, envelopes(1), NOW)
    assert done.rows.to_pylist() == [{"_topic": "mine", "_KEY": "k", "x": "shop", "y": "k0"}]


def test_a_made_column_wins_over_the_envelope() -> None:
    done = apply(rows({}), SetStep({"_key": "decode(_key)"}), SetStep({"x": "upper(_key)"}))
    assert (done.rows["_key"].to_pylist(), done.rows["x"].to_pylist()) == (["k0"], ["K0"])


def test_the_clock_is_the_batches() -> None:
    assert one("now()") == NOW
    assert one("current_timestamp") == NOW
    assert one("current_date") == date(2024, 5, 1)
    assert one("today()") == date(2024, 5, 1)


def test_names_are_case_insensitive_as_in_the_table() -> None:
    assert one("S || DEEP.X.Y", s="x", deep={"x": {"y": 4}}) == "x4"
    assert apply(rows({"s": "x"}), SetStep({"S": "s || '!'"})).rows["s"].to_pylist() == ["x!"]


def test_untouched_columns_keep_their_metadata_and_nullability() -> None:
    done = apply(rows({"a": 1, "j": '{"k": 1.70}'}), SetStep({"x": "j ->> 'k'"}), RenameStep({"j": "raw"}))
    assert is_json_text(done.rows.schema.field("raw"))
    assert not done.rows.schema.field("a").nullable
    assert done.rows["raw"].to_pylist() == ['{"k": 1.70}']


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1::tinyint", pa.int8()),
        ("a::utinyint", pa.int16()),
        ("a::usmallint", pa.int32()),
        ("a::uinteger", pa.int64()),
        ("a::ubigint", pa.decimal128(20, 0)),
        ("a::hugeint", pa.decimal128(38, 0)),
        ("list_sum(l)", pa.decimal128(38, 0)),
        ("1.50", pa.decimal128(3, 2)),
        ("1.5::float", pa.float32()),
        ("s", pa.string()),
        ("to_json(a)", pa.string()),
        ("s::uuid", pa.string()),
        ("encode(s)", pa.binary()),
        ("'2024-01-01'::date", pa.date32()),
        ("now()", TIMESTAMP),
        ("s::timestamp", pa.timestamp("us")),
        ("s::timestamp_s", pa.timestamp("us")),
        ("[a]", pa.list_(pa.field("element", pa.int64()))),
        ("{'x': a, 'y': [s]}", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.field("element", pa.string())))])),
        ("MAP {s: a}", pa.map_(pa.string(), pa.int64())),
        ("_headers", pa.map_(pa.string(), pa.binary())),
        ("NULL", pa.null()),
    ],
)
def test_results_have_a_type_of_our_language(expression: str, expected: pa.DataType) -> None:
    assert kind(expression) == expected
    done = apply(rows({"a": 1, "s": None, "l": [1]}), SetStep({"made": expression}))
    assert done.rows.schema.field("made").type == expected


@pytest.mark.parametrize(
    "expression",
    ["INTERVAL 1 DAY", "MAP {1: 2}", "[]", "{'x': NULL}", "upper(a)", "s + {'x': 1}", "nope(1)", "a.b.c"],
)
def test_what_no_table_can_hold_is_named_before_any_record(expression: str) -> None:
    with pytest.raises(UsageError, match="made"):
        kind(expression)


def test_a_where_must_be_true_or_false() -> None:
    with pytest.raises(UsageError, match="not true or false"):
        Transform([WhereStep("a + 1")]).output(PAYLOAD)


def test_a_hugeint_beyond_38_digits_is_a_reject() -> None:
    done = apply(rows({"a": 1}, {"a": 17}), SetStep({"x": "a::hugeint * 10000000000000000000000000000000000000"}))
    assert done.rejects.index == [1]
    assert done.rows["x"].to_pylist() == [Decimal(10**37)]


@pytest.mark.parametrize("expression", ["gone", "gone + 1", "gone.x.y", "gone['x']", "gone[1]", "round(gone * 2)"])
def test_a_field_nobody_has_sent_is_null_of_no_type(expression: str) -> None:
    assert kind(expression) == pa.null()
    assert one(expression) is None


def test_a_field_nobody_has_sent_can_still_be_used() -> None:
    assert one("coalesce(gone, 'none')") == "none"
    assert kind("coalesce(gone, 1)") == pa.int64()
    assert kind("substr(gone, 1, 10)") == pa.string()
    assert apply(rows({}), WhereStep("gone > 1")).filtered.to_pylist() == [0]
    assert apply(
        rows({}), WhereStep("gone IS NULL"), DropStep(("other",)), RenameStep({"x": "y"})
    ).index.to_pylist() == [0]


def test_a_null_typed_column_stands_for_an_absent_field() -> None:
    table = rows({"s": "x"}).append_column("S", pa.nulls(1)).append_column("gone", pa.nulls(1))
    done = apply(table, SetStep({"x": "s", "y": "gone"}))
    assert done.rows["x"].to_pylist() == ["x"]
    assert done.rows.schema.field("y").type == pa.null()


def test_setting_a_column_to_null_keeps_its_type() -> None:
    done = apply(rows({"s": "secret"}), SetStep({"s": "NULL"}))
    assert done.rows.schema.field("s").type == pa.string()
    assert done.rows["s"].to_pylist() == [None]


def test_rename_never_overwrites() -> None:
    with pytest.raises(UsageError, match="already"):
        Transform([RenameStep({"a": "s"})]).output(PAYLOAD)
    swapped = apply(
        rows({"a": 1, "s": "x"}), RenameStep({"a": "old"}), RenameStep({"s": "a"}), RenameStep({"old": "s"})
    )
    assert swapped.rows.select(["s", "a"]).to_pylist() == [{"s": 1, "a": "x"}]


def test_inputs_targets_and_where_a_field_ends_up() -> None:
    transform = Transform(
        [
            SetStep({"date": "substr(modified, 1, 10)", "date2": "date || _topic"}),
            RenameStep({"id": "key", "date": "day"}),
            WhereStep("key > now() AND day IS NOT NULL"),
            DropStep(("modified",)),
        ]
    )
    assert transform.inputs() == {"modified", "id"}
    assert transform.targets() == {"date", "date2"}
    assert transform.renamed("id") == "key"
    assert transform.renamed("modified") is None
    assert transform.renamed("other") == "other"


def test_a_column_replaced_by_itself_is_an_input() -> None:
    assert Transform([SetStep({"a": "a + 1"}), SetStep({"b": "a"})]).inputs() == {"a"}


def test_hostile_expressions_do_not_become_a_transform() -> None:
    for step in (SetStep({"x": "(SELECT 1)"}), WhereStep("random() < 0.5")):
        with pytest.raises(UsageError, match="not allowed"):
            Transform([step])


def test_steps_cross_processes() -> None:
    steps = (SetStep({"x": "a + 1"}), WhereStep("x > 1"), DropStep(("s",)), RenameStep({"x": "y"}))
    again = pickle.loads(pickle.dumps(Transform(steps)))  # noqa: S301 our own bytes
    assert again.steps == steps
    assert again.output(PAYLOAD).names == ["a", "f", "j", "deep", "l", "y"]
    assert json.loads(json.dumps(dict(steps[0].expressions))) == {"x": "a + 1"}


def test_empty_tables_have_the_output_schema() -> None:
    transform = Transform([SetStep({"x": "a + 1"}), WhereStep("x > 1"), DropStep(("s",))])
    done = transform.apply(PAYLOAD.empty_table(), envelopes(0), NOW)
    assert done.rows.schema.equals(transform.output(PAYLOAD), check_metadata=True)
    assert len(done.rows) == 0


def test_constants_need_no_column() -> None:
    assert apply(rows({}, {}), SetStep({"x": "'v'"})).rows["x"].to_pylist() == ["v", "v"]


def test_many_failures_are_all_rejects_and_the_first_are_explained() -> None:
    done = apply(rows(*[{"s": f"x{nth}"} for nth in range(3000)]), SetStep({"n": "s::int"}))
    assert done.rejects.index == list(range(3000))
    assert "x7" in done.rejects.detail[7]
    assert all(detail.startswith("set n: ") for detail in done.rejects.detail)
    assert len(done.rows) == 0


_SCARCE = """
import resource
from datetime import UTC, datetime
import pyarrow as pa
from headrace.engine import duck
from headrace.delta.schema import RECORD_SCHEMA
from headrace.transform.steps import SetStep, Transform

duck.connection()
with open("/proc/self/statm") as pages:
    have = int(pages.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (have + 2**30, have + 2**30))
small, large = [1, 2, 3], list(range(16_000))
rows = pa.table({"l": [small] * 4 + [large] + [small] * 4})
envelopes = pa.table([pa.nulls(9, item.type) for item in RECORD_SCHEMA], schema=RECORD_SCHEMA)
squared = Transform([SetStep({"x": "len(flatten(list_transform(l, lambda x: l)))"})])
done = squared.apply(rows, envelopes, datetime.now(UTC))
print(done.rejects.index, done.index.to_pylist(), done.rows["x"].to_pylist())
"""


def test_memory_that_runs_out_for_one_record_costs_that_record() -> None:
    """TRY does not hold this; the pass is halved until the record is found. In a child, with little memory."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _SCARCE]
    child = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert child.stdout.splitlines() == ["[4] [0, 1, 2, 3, 5, 6, 7, 8] [9, 9, 9, 9, 9, 9, 9, 9]"], child.stderr


def test_many_steps_stay_affordable() -> None:
    chained = SetStep({f"c{nth}": f"c{nth - 1} + 1" if nth else "a" for nth in range(30)})
    assert apply(rows({"a": 1}), chained).rows["c29"].to_pylist() == [30]


def test_evaluate_gives_text_in_the_place_of_each_row() -> None:
    table = rows({"a": 1, "s": "1"}, {"a": 2, "s": "x"}, {"a": 3, "s": None})
    values, rejects = evaluate_expression("'t' || s::int -- comment", table, envelopes(3), NOW)
    assert values.to_pylist() == ["t1", None, None]
    assert rejects.index == [1]
    values, rejects = evaluate_expression("a", table, envelopes(3), NOW)
    assert (values.to_pylist(), rejects.index) == (["1", "2", "3"], [])


VALUES = st.fixed_dictionaries(
    {
        "a": st.integers(-3, 3),
        "s": st.none() | st.sampled_from(["1", "2", "x", "", "9" * 20]),
        "f": st.none() | st.sampled_from([0.0, -1.0, 2.5, 1e308]),
    }
)
WHOLE = Transform(
    [
        SetStep({"n": "s::int", "q": "f * f / a"}),
        WhereStep("n IS NULL OR n < 2"),
        SetStep({"m": "10 // a", "r": "sqrt(q)"}),
        RenameStep({"m": "mm"}),
        WhereStep("mm <> 5"),
        DropStep(("f",)),
    ]
)


@settings(deadline=None, max_examples=25)
@given(st.lists(VALUES, max_size=5))
def test_a_record_fares_the_same_alone_and_among_others(values: list[dict[str, Any]]) -> None:
    together = WHOLE.apply(rows(*values), envelopes(len(values)), NOW)
    seen = sorted([*together.index.to_pylist(), *together.filtered.to_pylist(), *together.rejects.index])
    assert seen == list(range(len(values)))
    made = dict(zip(together.index.to_pylist(), together.rows.to_pylist(), strict=True))
    letters = dict(zip(together.rejects.index, together.rejects.detail, strict=True))
    for position, value in enumerate(values):
        alone = WHOLE.apply(rows(value), envelopes(1), NOW)
        assert alone.rows.to_pylist() == ([made[position]] if position in made else [])
        assert alone.rejects.detail == ([letters[position]] if position in letters else [])


def test_a_column_that_is_another_is_copied_and_read_by_later_steps() -> None:
    headers = [[{"key": "n", "value": b"1"}], [], [{"key": "n", "value": b"3"}]]
    steps = [
        SetStep({"h": "_headers", "b": "a", "x": "deep"}),
        SetStep({"a": "b + 1", "n": "h['n']"}),
        WhereStep("b <> 2"),
    ]
    table = rows({"a": 1, "deep": {"x": {"y": 7}}}, {"a": 2}, {"a": 3})
    done = Transform(steps).apply(table, envelopes(3, headers), NOW)
    assert done.index.to_pylist() == [0, 2]
    assert done.filtered.to_pylist() == [1]
    kept = done.rows.select(["h", "b", "x", "a", "n"]).to_pylist()
    assert kept == [
        {"h": [("n", b"1")], "b": 1, "x": {"x": {"y": 7}}, "a": 2, "n": b"1"},
        {"h": [("n", b"3")], "b": 3, "x": None, "a": 4, "n": b"3"},
    ]
    copies = Transform([SetStep({"h": "_headers", "b": "a"})])
    assert copies._program(PAYLOAD).checks == ()
    assert copies.apply(table, envelopes(3, headers), NOW).rows["b"].to_pylist() == [1, 2, 3]
