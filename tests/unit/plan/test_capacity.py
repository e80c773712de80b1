"""Neither one record nor many overflow a column: a record that is too big is a dead letter, many are taken in parts."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode import sizes
from headrace.engine import duck
from headrace.plan.batch_result import BatchResult, merge_results
from headrace.plan.plan import Plan
from headrace.spec.route_id import RouteId
from headrace.stage.stager import _combined
from headrace.transform import steps as sql
from headrace.transform.program import INPUT
from services.plans import adds_up, envelopes, letters, plan_of, rows

MB = 1_000_000
MANY = 3_000  # elements: with 1 MB in each row, more than Arrow's 32-bit offsets can count
LONG = " || ".join(["text"] * 20)
SMALL = {"id": 1, "note": "n", "items": [{"sku": "a"}]}


def order(note: str = "n", elements: int = MANY) -> dict[str, Any]:
    return {"id": 7, "note": note, "items": [{"sku": f"s{nth}"} for nth in range(elements)]}


def exploding(**content: Any) -> Plan:
    return plan_of(**{"explode": {"column": "items", "keep": ["id"]}, **content})


def with_shapes(plan: Plan) -> Plan:
    """A plan as a task has it, with the schemas that this one has learned."""
    return Plan(plan.spec, plan.schemas, now=plan.now)


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capacity that a few rows fill."""
    monkeypatch.setattr(sizes, "CAPACITY", 2_000)


# ---- one record ----


def test_a_large_field_that_many_rows_keep_is_a_dead_letter():
    plan = exploding(explode={"column": "items", "keep": ["id", "note"]})
    applied = plan.apply(envelopes([SMALL, order("x" * MB), SMALL]))
    assert letters(applied) == [(1, "decode", "too_big")]
    assert (
        applied.dead_letters["detail"][0].as_py().startswith("3000 rows that repeat 3000036000 bytes of the record; ")
    )
    assert applied.dead_letters["detail"][0].as_py().endswith("the limit is 256000000 (limits.repeated_bytes)")
    assert len(applied.dead_letters["value"][0].as_py()) > MB
    assert [row["sku"] for row in rows(applied)] == ["a", "a"]
    adds_up(applied)


def test_the_limit_is_the_one_of_the_spec():
    kept = {"column": "items", "keep": ["note"]}
    for limit, dead in ((1_200, 0), (1_199, 1)):
        plan = exploding(explode=kept, limits={"repeated_bytes": limit})
        applied = plan.apply(envelopes([order("x" * 296, 4), SMALL]))  # 296 bytes and an offset, four times
        assert applied.counts.dead == dead


def test_a_large_value_with_many_elements_is_no_more_than_its_rows():
    applied = exploding().apply(envelopes([order("x" * MB)]))
    assert (len(rows(applied)), letters(applied)) == (MANY, [])
    assert adds_up(applied).routed == 1


@pytest.mark.parametrize("form", ["array", "lines"])
def test_a_large_value_of_many_rows_is_no_more_than_its_rows(form: str):
    objects = [{"n": nth} for nth in range(MANY)] + [{"n": 1, "text": "x" * MB}]
    value = json.dumps(objects) if form == "array" else "\n".join(map(json.dumps, objects))
    applied = plan_of(decode={"json": {"rows": form}}).apply(envelopes([value.encode(), b"[{]"]))
    assert (len(rows(applied)), letters(applied)) == (MANY + 1, [(1, "decode", "malformed")])
    adds_up(applied)


@pytest.mark.parametrize("form", ["explode", "array"])
def test_a_large_key_in_many_rows_is_a_dead_letter(form: str):
    steps = [{"set": {"whose": "_key"}}]
    how = {"explode": "items"} if form == "explode" else {"decode": {"json": {"rows": "array"}}}
    value = order() if form == "explode" else order()["items"]
    plan = plan_of(**how, transform=steps)
    large = plan.apply(envelopes([value], key=b"x" * MB))
    assert letters(large) == [(0, "decode", "too_big")]
    small = plan.apply(envelopes([value], key=b"me"))
    assert [row["whose"] for row in rows(small)] == [b"me"] * MANY
    unread = plan_of(**how).apply(envelopes([value], key=b"x" * MB))
    assert len(rows(unread)) == MANY


def test_a_large_header_in_many_rows_is_a_dead_letter():
    plan = exploding(transform=[{"set": {"trace": "_headers['t']", "all_of_them": "_headers"}}])
    large = plan.apply(envelopes([order()], headers=[{"key": "t", "value": b"x" * MB}]))
    assert letters(large) == [(0, "decode", "too_big")]
    small = plan.apply(
        envelopes([order(elements=2)], headers=[{"key": "t", "value": b"1"}, {"key": "t", "value": b"2"}])
    )
    assert [(row["trace"], row["all_of_them"]) for row in rows(small)] == [(b"2", [("t", b"2")])] * 2


def test_a_large_result_over_the_message_in_many_rows_is_a_dead_letter():
    plan = exploding(transform=[{"jmespath": {"copy": "note"}}])
    applied = plan.apply(envelopes([SMALL, order("x" * MB), order("y", 2)]))
    assert letters(applied) == [(1, "transform", "transform")]
    assert applied.dead_letters["detail"][0].as_py() == (
        "jmespath copy: its result in each of 3000 rows has 3000012000 bytes, the limit is 256000000 "
        "(limits.repeated_bytes)"
    )
    assert [row["copy"] for row in rows(applied)] == ["n", "y", "y"]
    adds_up(applied)


def test_a_dead_letter_of_one_row_among_many_has_the_whole_record():
    plan = exploding(transform=[{"set": {"n": "CAST(sku AS INTEGER)"}}])
    value = {"id": 1, "items": [{"sku": "1"}, {"sku": "x"}, {"sku": "y"}]}
    applied = plan.apply(envelopes([value], headers=[{"key": "h", "value": b"v"}]))
    (letter,) = applied.dead_letters.to_pylist()
    assert (letter["key"], json.loads(letter["value"]), letter["headers"]) == (
        b"k0",
        value,
        [{"key": "h", "value": b"v"}],
    )


# ---- many records ----


def test_rows_of_many_records_are_made_in_parts(tight: None):
    plan = exploding(explode={"column": "items", "keep": ["id", "note"]})
    values = envelopes([order("x" * 100, 6) for _ in range(20)])
    plan.apply(values)
    parts = list(with_shapes(plan).parts(values))
    assert len(parts) > 5
    assert sum(len(part.tables[RouteId()]) for part in parts) == 120
    assert max(part.tables[RouteId()].nbytes for part in parts) < 3 * sizes.CAPACITY
    assert rows(merge_results(parts)) == rows(plan.apply(values))
    adds_up(merge_results(parts))


def test_large_results_of_expressions_are_made_in_parts(tight: None):
    plan = plan_of(transform=[{"set": {"long": LONG}}])
    values = envelopes([{"text": "x" * nth} for nth in range(30)])
    plan.apply(values)
    parts = list(with_shapes(plan).parts(values))
    assert len(parts) > 5
    assert [len(row["long"]) for row in rows(merge_results(parts))] == [20 * nth for nth in range(30)]


def test_large_inputs_of_expressions_are_evaluated_in_slices(monkeypatch: pytest.MonkeyPatch):
    """DuckDB holds what an expression makes on its way for 2,048 rows, and counts it to no limit."""
    seen: list[int] = []
    planned = duck.plan_of_query

    def watched(statement: str, **tables: pa.Table) -> Any:
        seen.extend(len(table) for name, table in tables.items() if name == INPUT)
        return planned(statement, **tables)

    monkeypatch.setattr(duck, "plan_of_query", watched)
    monkeypatch.setattr(sql, "_SLICE_BYTES", 1_000)
    plan = exploding(transform=[{"set": {"whose": "_key", "loud": "upper(sku)"}}])
    applied = plan.apply(envelopes([order("n", 400), order("n", 3)], key=b"k" * 2_000))
    assert max(seen) < 120
    assert min(seen) > 40  # the key, there but once, does not count for each row
    assert [(row["loud"], row["whose"]) for row in rows(applied)] == [
        (f"S{nth}", b"k" * 2_000) for nth in [*range(400), *range(3)]
    ]


VALUES = st.lists(
    st.fixed_dictionaries(
        {"id": st.one_of(st.integers(0, 9), st.just("no number"))},
        optional={
            "note": st.text("ab", max_size=400),
            "items": st.one_of(
                st.none(), st.lists(st.fixed_dictionaries({"sku": st.text("cd", max_size=3)}), max_size=9)
            ),
            "new": st.integers(0, 3),
        },
    ),
    max_size=12,
)


def _outcome(applied: BatchResult) -> Any:
    """All that is told of a batch; chunks are nobody's business."""
    adds_up(applied)
    tables = {name: (table.schema, table.to_pylist()) for name, table in applied.tables.items()}
    dead = sorted(zip(applied.dead.tolist(), applied.dead_letters.to_pylist(), strict=True), key=str)
    origins = {name: of.tolist() for name, of in applied.origins.items()}
    return tables, dead, origins, applied.counts, applied.discovered, applied.assumed


@cache
def _known() -> Plan:
    """Two branches that know their columns; compiled once for all examples."""
    steps = [{"jmespath": {"copy": "note"}}, {"set": {"whose": "_key", "twice": "note || note"}}]
    explode = {"column": "items", "keep": ["id", "note"], "position": "nth", "empty": "row"}
    child = {"name": "items", "explode": explode, "transform": steps, "table": {"path": "/lake/items"}}
    plan = plan_of(branches=[child], limits={"repeated_bytes": 2_500}, table={"contract": {"new_field": "ignore"}})
    plan.apply(envelopes([order("n", 2)]))
    return with_shapes(plan)


@settings(max_examples=30, deadline=None)
@given(VALUES, st.integers(1, 3_000))
def test_parts_are_the_combined(values: list[Any], capacity: int):
    plan, given = _known(), envelopes([*values, order("n", 2), b"{"])
    whole = _outcome(plan.apply(given))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "CAPACITY", capacity)
        assert _outcome(plan.apply(given)) == whole


def test_rows_that_one_column_cannot_hold_stay_in_their_chunks(monkeypatch: pytest.MonkeyPatch):
    pieces = [pa.table({"v": ["x" * 100] * 10})] * 3
    assert _combined(pieces)["v"].num_chunks == 1
    monkeypatch.setattr(sizes, "CAPACITY", 2_000)
    assert _combined(pieces)["v"].num_chunks == 3
    assert _combined(pieces).to_pylist() == pa.concat_tables(pieces).to_pylist()


# ---- what nobody has foreseen ----


def test_an_overflow_that_was_not_predicted_halves_the_batch_down_to_the_record(monkeypatch: pytest.MonkeyPatch):
    """Whatever column overflows: the record that does it alone is a dead letter of its branch, the others are rows."""
    from headrace.plan import apply

    fit, limit = apply.fit, 3

    def narrow(rows: pa.Table, *rest: Any) -> Any:
        if len(rows) > limit or ("big" in rows.column_names and 1 in rows["big"].to_pylist()):
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return fit(rows, *rest)

    plan = plan_of(branches=[{"name": "ids", "transform": [{"drop": ["big"]}], "table": {"path": "/lake/ids"}}])
    values = envelopes([{"id": nth, "big": 1 if nth in (2, 9) else None} for nth in range(12)])
    plan.apply(values)
    monkeypatch.setattr(apply, "fit", narrow)
    applied = plan.apply(values)
    assert letters(applied) == [(2, "decode", "too_big"), (9, "decode", "too_big")]
    assert [row["id"] for row in rows(applied)] == [0, 1, 3, 4, 5, 6, 7, 8, 10, 11]
    assert [row["id"] for row in rows(applied, "ids/")] == list(range(12))
    adds_up(applied)


def test_other_errors_of_arrow_are_no_overflow():
    assert not sizes.is_overflow(pa.ArrowInvalid("Could not parse"))
    assert not sizes.is_overflow(ValueError("overflow"))


@pytest.mark.slow
def test_arrow_and_duckdb_say_that_a_column_overflows():
    """The words by which an overflow is known are theirs: 2 GB of bytes show them."""
    large = pa.array([b"x" * MB] * 1_100)
    some = pa.array(np.zeros(2_200, np.int64))
    acts = (
        lambda: large.slice(0, 1).take(some),
        lambda: pa.concat_arrays([large, large]),
        lambda: pa.chunked_array([large, large]).take(some),
        lambda: duck.query("SELECT repeat('x', 1000000) AS v FROM range(2200)"),
    )
    for act in acts:
        with pytest.raises(Exception) as met:  # noqa: PT011
            act()
        assert sizes.is_overflow(met.value), met.value


@pytest.mark.slow
def test_rows_of_many_records_beyond_a_column_are_made_in_parts():
    plan = exploding(explode={"column": "items", "keep": ["note"]})
    values = envelopes([order("x" * 200_000, 600)] * 20)  # 2.4 GB in one column
    plan.apply(envelopes([SMALL]))
    counts = [len(part.tables[RouteId()]) for part in with_shapes(plan).parts(values)]
    assert len(counts) > 4
    assert sum(counts) == 20 * 600
