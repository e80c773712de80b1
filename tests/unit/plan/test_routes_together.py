"""Routes with the same columns are decoded together; nobody can tell from what comes out."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.plan.batch_result import BatchResult
from headrace.plan.plan import Plan
from services.plans import adds_up, envelopes, plan_of, shaped

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "kind", "type": "string"}, {"name": "twice", "type": "bigint"}]
STEPS: list[Any] = [{"set": {"twice": "CAST(id * 2 AS BIGINT)"}}, {"where": "id <> 3"}]
ROUTES = ("a", "b", "c")

good = st.builds(lambda kind, number: {"kind": kind, "id": number}, st.sampled_from(ROUTES), st.integers(0, 5))
bad = st.sampled_from([b"", b"{", b'{"kind":"a","id":"x"}', b'{"kind":"b","id":9223372036854775807}', None, b"[1]"])


def _plan(**table: Any) -> Plan:
    plan = plan_of(route={"by": {"field": "kind"}}, transform=STEPS, table={"columns": COLUMNS, **table})
    return shaped(plan, *ROUTES)


def _apart(plan: Plan) -> Plan:
    """The same plan, made to read each route alone."""

    class Everything(set[Any]):
        def __contains__(self, _: object) -> bool:
            return True

    plan.branches[""].apart = Everything()
    return plan


def _said(applied: BatchResult) -> Any:
    letters = sorted(applied.dead_letters.to_pylist(), key=lambda letter: letter["offset"])
    tables = {name: table.to_pylist() for name, table in applied.tables.items()}
    return tables, letters, adds_up(applied)


@given(st.lists(st.one_of(good, good, bad), max_size=30))
@settings(max_examples=40, deadline=None)
def test_read_together_or_alone_records_become_the_same(values: list[Any]):
    together, alone = _plan(), _apart(_plan())
    assert _said(together.apply(envelopes(values))) == _said(alone.apply(envelopes(values)))
    assert not together.branches[""].apart


def test_ignored_fields_are_counted_for_the_table_that_ignores_them():
    plan = _plan()
    values = [{"kind": "a", "id": 1}, {"kind": "c", "id": 1, "more": True}, {"kind": "b", "id": 2}]
    for _ in range(2):
        assert plan.apply(envelopes(values)).counts.ignored == {"/lake/c: more": 1}


def test_a_new_field_is_told_of_the_route_that_brings_it():
    plan = _plan(contract={"new_field": "evolve"})
    applied = plan.apply(envelopes([{"kind": "a", "id": 1}, {"kind": "b", "id": 1, "more": 1}, {"kind": "c", "id": 2}]))
    assert list(map(str, applied.discovered)) == ["b"]


new_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [2**53 + 1, 1.5, "x", "2026-01-01T00:00:00Z", [], [1], [1, "x"], {}, {"deep": 1}, {"deep": [None]}]
    ),
)
grown = st.builds(
    lambda known, more: {**known, **more},
    good,
    st.dictionaries(st.sampled_from(["one", "two", "ID", "three"]), new_values, max_size=3),
)


@given(st.lists(st.one_of(good, grown, grown, bad), max_size=30))
@settings(max_examples=60, deadline=None)
def test_new_fields_found_together_or_alone_are_those_of_the_same_routes(values: list[Any]):
    together, alone = (_plan(contract={"new_field": "evolve"}) for _ in range(2))
    found, expected = together.apply(envelopes(values)), _apart(alone).apply(envelopes(values))
    assert _by_name(found) == _by_name(expected)
    assert found.discovered or _said(found) == _said(expected)  # else the batch is applied again
    assert not together.branches[""].apart


def _by_name(applied: BatchResult) -> dict[str, Any]:
    """Discovered structures; the order of the fields is not determined."""
    return {str(route): json.dumps(each, sort_keys=True) for route, each in applied.discovered.items()}
