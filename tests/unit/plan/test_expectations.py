"""Expectations: named predicates, what becomes of rows that break them, and the account of both."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ColumnMismatch, ContractViolation, SpecError
from services.plans import adds_up, envelopes, letters, plan_of, rows, spec_of

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "amount", "type": "double"}]


def expecting(*expectations: tuple[str, str, str], **more: Any) -> Any:
    listed = [{"name": name, "expect": text, "on_violation": on_violation} for name, text, on_violation in expectations]
    return plan_of(table={"columns": COLUMNS, "expectations": listed, "source": False}, **more)


VALUES = [{"id": 1, "amount": 5}, {"id": 2, "amount": -1}, {"id": 3, "amount": None}, {"id": -4, "amount": -1}]


@pytest.mark.parametrize(("on_violation", "kept"), [("warn", [1, 2, 3, -4]), ("drop", [1, 3]), ("reject", [1, 3])])
def test_a_broken_expectation_is_counted_and_answered(on_violation: str, kept: list[int]):
    """NULL passes, as it does in a CHECK."""
    applied = expecting(("positive", "amount > 0", on_violation)).apply(envelopes(VALUES))
    assert [row["id"] for row in rows(applied)] == kept
    counts = adds_up(applied)
    assert counts.violations == {"/lake/web: positive": 2}
    assert (counts.filtered, counts.dead) == {"warn": (0, 0), "drop": (2, 0), "reject": (0, 2)}[on_violation]


def test_a_dead_letter_names_the_expectation():
    applied = expecting(("positive", "amount > 0", "reject")).apply(envelopes(VALUES))
    assert letters(applied) == [(1, "expect", "expectation"), (3, "expect", "expectation")]
    assert applied.dead_letters["detail"][0].as_py() == "positive: amount > 0"
    assert applied.dead_letters["table"][0].as_py() == "/lake/web"


def test_stop_names_the_expectation_and_the_record():
    with pytest.raises(ContractViolation, match="web/0/1 violates the expectation 'positive'"):
        expecting(("positive", "amount > 0", "stop")).apply(envelopes(VALUES))


def test_every_expectation_looks_at_every_row_and_the_first_takes_it_away():
    plan = expecting(("positive", "amount > 0", "drop"), ("known", "id > 0", "reject"), ("small", "id < 2", "warn"))
    counts = adds_up(plan.apply(envelopes(VALUES)))
    assert counts.violations == {"/lake/web: positive": 2, "/lake/web: known": 1, "/lake/web: small": 2}
    assert (counts.routed, counts.filtered, counts.dead) == (2, 2, 0)


def test_an_expression_that_fails_for_a_row_is_not_fulfilled():
    plan = plan_of(
        table={"expectations": [{"name": "number", "expect": "CAST(v AS BIGINT) > 0", "on_violation": "reject"}]}
    )
    applied = plan.apply(envelopes([{"v": "1"}, {"v": "x"}]))
    assert letters(applied) == [(1, "expect", "expectation")]


def test_expectations_see_the_transformed_row_and_its_envelope():
    plan = expecting(
        ("doubled", "twice = 2 * amount AND _topic = 'web'", "reject"), transform=[{"set": {"twice": "2 * amount"}}]
    )
    assert len(rows(plan.apply(envelopes(VALUES)))) == 4


def test_a_field_nobody_has_sent_breaks_nothing():
    plan = plan_of(table={"expectations": [{"name": "late", "expect": "later > 0", "on_violation": "stop"}]})
    assert rows(plan.apply(envelopes([{"id": 1}]))) == [{"id": 1}]


def test_a_predicate_that_does_not_fit_the_columns_stops_by_its_name():
    plan = plan_of(table={"expectations": [{"name": "odd", "expect": "v.x > 0"}]})
    with pytest.raises(ColumnMismatch, match="expectation odd"):
        plan.apply(envelopes([{"v": 1}]))


def test_tables_have_expectations_of_their_own():
    listed = [{"name": "few", "expect": "id < 2", "on_violation": "reject"}]
    plan = plan_of(route={"by": {"field": "kind"}}, tables=[{"match": "^b$", "expectations": listed}])
    values = [{"kind": "a", "id": 5}, {"kind": "b", "id": 5}, {"kind": "b", "id": 1}]
    applied = plan.apply(envelopes(values))
    assert [len(rows(applied, name)) for name in ("a", "b")] == [1, 1]
    assert adds_up(applied).violations == {"/lake/b: few": 1}


def test_of_a_record_with_many_rows_a_rejected_one_takes_the_others_along():
    plan = expecting(("positive", "amount > 0", "reject"), decode={"json": {"rows": "array"}})
    applied = plan.apply(envelopes([[{"id": 1, "amount": 1}, {"id": 2, "amount": -1}], [{"id": 3}]]))
    assert [row["id"] for row in rows(applied)] == [3]
    assert letters(applied) == [(0, "expect", "expectation")]
    dropping = expecting(("positive", "amount > 0", "drop"), decode={"json": {"rows": "array"}})
    applied = dropping.apply(envelopes([[{"id": 1, "amount": 1}, {"id": 2, "amount": -1}], [{"id": 3, "amount": -1}]]))
    assert ([row["id"] for row in rows(applied)], applied.counts.filtered) == ([1], 1)


@pytest.mark.parametrize(
    ("expectations", "said"),
    [
        ([{"name": "a", "expect": "amuont > 0"}], "amuont"),
        ([{"name": "a", "expect": "random() > 0"}], "random"),
        ([{"name": "a", "expect": "id > 0"}, {"name": "a", "expect": "id < 0"}], "duplicate name 'a'"),
        ([{"name": "a b", "expect": "id > 0"}], "name"),
        ([{"name": "a", "expect": "id > 0", "on_violation": "shout"}], "on_violation"),
    ],
)
def test_what_cannot_be_expected_is_found_before_anything_runs(expectations: Any, said: str):
    with pytest.raises(SpecError) as trouble:
        spec_of(table={"columns": COLUMNS, "expectations": expectations})
    assert said in " ".join(str(finding) for finding in trouble.value.diagnostics)
