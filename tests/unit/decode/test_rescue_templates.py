"""What a stencil rescues of many texts is what is rescued of each by itself."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.base import DecodeLimits, NewField
from headrace.decode.json.decoder import bound_errors
from headrace.decode.json.template_match import TemplateMatchers
from headrace.decode.payload import PayloadSchema, payload_schema_of
from headrace.decode.payload_field import PayloadField, Rescue, rescue_field
from headrace.decode.rescue import RescuingDecoder

COLUMNS = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("n", pa.int32()),
    PayloadField("x", pa.float64(), default="0.5").to_arrow(),
    pa.field("ok", pa.bool_()),
    pa.field("text", pa.string()),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("tags", pa.list_(pa.field("element", pa.string()))),
    pa.field("to", pa.struct([("city", pa.string()), ("zip", pa.int64())])),
    PayloadField("deep", pa.int64(), path="way.floor").to_arrow(),
]
GOOD: dict[str, Any] = {
    **{"id": 1, "n": 2, "x": 1.25, "ok": True, "text": "é", "at": "2024-01-01T00:00:00Z", "tags": ["a", "b"]},
    "to": {"city": "B", "zip": 7},
    "way": {"floor": 3},
}
ODD = ["12", "", 7, -1.5, 1e99, 2**70, True, None, [], ["x", 1], {"k": 1}, "2024-01-01", "back\\slash"]


def layout(rescue: Rescue) -> PayloadSchema:
    column = rescue_field(rescue)
    return payload_schema_of(pa.schema([*COLUMNS, column]))


def batch(pick: random.Random) -> pa.BinaryArray:
    """Texts that misfit in a few ways, again and again, and some in ways of their own."""
    habits = [{}, *(_change(pick) for _ in range(2))]
    rows = []
    for _ in range(40):
        change = pick.choice(habits) if pick.random() < 0.9 else _change(pick)
        row = {**GOOD, "id": pick.randrange(100), **change}
        if pick.random() < 0.2:
            row[pick.choice(list(row))] = pick.choice(ODD)
        rows.append(json.dumps(row, ensure_ascii=False, separators=pick.choice([(",", ":"), (", ", ": ")])).encode())
    return pa.array(rows, pa.binary())


def _change(pick: random.Random) -> dict[str, Any]:
    to = pick.choice([GOOD["to"], {**GOOD["to"], "new": 1}, {**GOOD["to"], "zip": "x"}])
    way = pick.choice([GOOD["way"], {"floor": "x"}, {"floor": 1, "new": "y"}])
    names = pick.sample(["n", "x", "ok", "text", "at", "tags", "new", "a.b", "Text"], pick.randrange(3))
    return {"to": to, "way": way, **{name: pick.choice(ODD) for name in names}}


@pytest.mark.parametrize("new_field", ["rescue", "ignore", "reject", "evolve"])
@pytest.mark.parametrize("rescue", ["type", "field"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_by_template_and_one_by_one_are_the_same(new_field: NewField, rescue: Rescue, seed: int):
    pick = random.Random(seed)
    made = bound_errors(layout(rescue), new_field, DecodeLimits())
    alone = bound_errors(layout(rescue), new_field, DecodeLimits())
    assert isinstance(made, RescuingDecoder)
    assert isinstance(alone, RescuingDecoder)
    alone._templates = None
    for _ in range(3):
        values = batch(pick)
        fast, slow = made.decode(values), alone.decode(values)
        assert fast.rejects == slow.rejects
        assert fast.index.equals(slow.index)
        assert fast.rows.to_pylist() == slow.rows.to_pylist()
        assert fast.rows.schema.equals(slow.rows.schema, check_metadata=True)
        assert fast.ignored == slow.ignored
        assert fast.unknown == slow.unknown


def test_what_misfits_everywhere_is_taken_at_once():
    seen: list[int] = []

    class Counting(TemplateMatchers):
        def fit(self, texts: pa.StringArray) -> Any:
            found = super().fit(texts)
            seen.append(len(texts) - sum(len(each.index) for each in found))
            return found

    made = bound_errors(layout("type"), "rescue", DecodeLimits())
    assert isinstance(made, RescuingDecoder)
    assert made._templates is not None
    made._templates.__class__ = Counting
    rows = [{**GOOD, "id": id, "text": "x", "n": "12", "new": [1.0, 2]} for id in range(500)]
    found = made.decode(pa.array([json.dumps(row).encode() for row in rows], pa.binary()))
    assert set(found.rows["_rescued"].to_pylist()) == {'{"n":"12","new":[1.0, 2]}'}
    assert set(found.rows["n"].to_pylist()) == {None}
    assert seen == [0]
