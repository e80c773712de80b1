"""What is inferred of new fields: exactly what records hold, whatever they share a batch or a task with."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from headrace.decode.base import DecodeLimits, Rejects
from headrace.decode.inference import infer, merge_all, merge_inferred
from headrace.decode.json.registered import RegisteredJson
from headrace.decode.json.registered import _parse_schema as told
from headrace.decode.payload import payload_schema_of
from headrace.decode.registry.client import Registered
from headrace.decode.typed.fit import fit_values
from headrace.plan.plan import Plan
from headrace.spec.registry import RegistrySpec
from headrace.spec.route_id import RouteId
from services.plans import adds_up, envelopes, letters, plan_of, rows

BIG = 2**53 + 1  # no double holds it


@pytest.mark.parametrize("order", [[BIG, 0.5], [0.5, BIG]])
@pytest.mark.parametrize("many", [0, 1500])
def test_a_new_field_with_longs_and_doubles_keeps_every_number(order, many):
    """Also where the sample that columns are first inferred from holds neither of the two."""
    values = [*({"n": 1} for _ in range(many)), *({"n": value} for value in order)]
    found = plan_of().apply(envelopes(values))
    assert not letters(found)
    assert sorted(json.loads(row["n"]) for row in rows(found)) == [*sorted([*([1] * many), *order])]


def test_longs_that_a_double_holds_are_doubles():
    found = plan_of().apply(envelopes([{"n": 2**53}, {"n": 0.5}]))
    assert rows(found) == [{"n": float(2**53)}, {"n": 0.5}]


def test_the_same_whichever_task_sees_which_number():
    """Each task tells what it has seen; the driver merges it."""
    one, two = (_seen({"id": 1}, {"n": value}) for value in (BIG, 0.5))
    assert merge_inferred(one, two)["fields"]["n"]["type"] == merge_inferred(two, one)["fields"]["n"]["type"] == "json"


def _seen(*values: object) -> dict:
    plan = plan_of()
    found = Plan(plan.spec, {}).apply(envelopes(values))
    return dict(found.discovered[RouteId()])


@pytest.mark.parametrize("empty", [[], {}, [None], [[]], {"a": None}])
def test_a_field_with_nothing_typed_in_it_waits(empty):
    plan = plan_of(existing={"": pa.schema([("id", pa.int64())])})
    found = plan.apply(envelopes([{"id": 1, "f": empty}, {"id": 2, "f": None}]))
    assert rows(found) == [{"id": 1}, {"id": 2}]
    adds_up(found)


def test_once_typed_an_empty_list_is_an_empty_list():
    plan = plan_of(existing={"": pa.schema([("id", pa.int64())])})
    assert rows(plan.apply(envelopes([{"id": 1, "f": []}]))) == [{"id": 1}]
    assert rows(plan.apply(envelopes([{"id": 2, "f": ["a"]}, {"id": 3, "f": []}, {"id": 4}]))) == [
        {"id": 2, "f": ["a"]},
        {"id": 3, "f": []},
        {"id": 4, "f": None},
    ]
    assert rows(plan.apply(envelopes([{"id": 5, "f": []}]))) == [{"id": 5, "f": []}]


@pytest.mark.parametrize("existing", [None, {"": pa.schema([("id", pa.int64())])}])
def test_what_waited_in_one_batch_does_not_decide_the_next(existing):
    plan = plan_of(existing=existing)
    plan.apply(envelopes([{"f": []}]))
    assert [row["f"] for row in rows(plan.apply(envelopes([{"f": {"a": 1}}])))] == [{"a": 1}]


@pytest.mark.parametrize("first", [[], {"a": 1}])
def test_an_empty_list_where_others_have_objects_is_a_dead_letter_in_any_order(first):
    values = [{"f": first}, *({"id": 1} for _ in range(1500)), {"f": [] if first else {"a": 1}}]
    found = plan_of().apply(envelopes(values))
    assert [row["f"] for row in rows(found) if row["f"] is not None] == [{"a": 1}]
    assert [reason for _, _, reason in letters(found)] == ["type"]


def test_schemas_that_disagree_on_a_number_keep_every_number():
    """One writer's schema has longs, another's doubles; columns that bring their types are no exception."""
    layout = payload_schema_of(pa.schema([]))
    naturals = [pa.table({"n": pa.array([number], kind)}) for number, kind in ((BIG, pa.int64()), (0.5, pa.float64()))]
    seen = [fit_values(each, np.arange(1), layout, "evolve", Rejects()).unknown or {} for each in naturals]
    assert merge_all(seen)["fields"]["n"]["type"] == "json"
    small = fit_values(pa.table({"n": pa.array([5])}), np.arange(1), layout, "evolve", Rejects()).unknown or {}
    assert merge_all([small, seen[1]])["fields"]["n"] == {"type": "double"}


@pytest.mark.parametrize(("number", "kind"), [(BIG, "json"), (5, "double")])
def test_registered_schemas_that_disagree_on_a_number_keep_every_number(number, kind):
    schemas = [json.dumps({"properties": {"n": {"type": each}}, "type": "object"}) for each in ("integer", "number")]
    registered = [Registered(nth, "JSON", text) for nth, text in enumerate(schemas)]
    decoder = RegisteredJson(None, RegistrySpec(url="http://127.0.0.1:9"), pa.schema([]), "evolve", DecodeLimits())  # type: ignore[arg-type]
    values = infer(pa.array([json.dumps({"n": number})]))
    assert decoder._unknown(values, [told(each) for each in registered])["fields"]["n"]["type"] == kind
