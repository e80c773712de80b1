"""Rescue: what does not fit, or has no column, is kept beside the row as it was written."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.decode.base import Rejects
from headrace.decode.decoders import decoder
from headrace.decode.payload import payload_schema_of
from headrace.decode.payload_field import PayloadField, Rescue, rescue_field
from headrace.decode.typed.fit import fit_values
from headrace.delta.schema import RESCUED
from headrace.errors import ColumnMismatch, UsageError
from headrace.plan.plan import Plan
from headrace.reasons import Reason
from headrace.spec.route_id import RouteId
from services.plans import adds_up, envelopes, letters, plan_of, rows, shaped

BOTH = {"new_field": "rescue", "wrong_type": "rescue"}
COLUMNS = [
    {"name": "id", "type": "bigint", "nullable": False},
    {"name": "price", "type": "decimal(9,2)"},
    {"name": "at", "type": "timestamp"},
    {"name": "tags", "type": "array<bigint>"},
    {"name": "to", "type": "struct<city: string, zip: bigint>"},
]


def rescuing(contract: dict[str, str] = BOTH, **more: Any) -> Plan:
    return plan_of(table={"columns": COLUMNS, "contract": contract, "source": False}, **more)


def test_clean_rows_have_nothing_rescued_and_the_column_is_there():
    applied = rescuing().apply(envelopes([{"id": 1, "price": 2.5}]))
    assert applied.tables[RouteId()].schema.field("_rescued") == RESCUED
    assert applied.tables[RouteId()].column_names[-1] == "_rescued"
    assert (rows(applied)[0]["_rescued"], applied.counts.rescued) == (None, 0)


def test_a_wrong_value_is_null_in_its_column_and_its_text_is_as_it_was_written():
    applied = rescuing().apply(
        envelopes([b'{"id":1,"price": 1.7050,"at":"today","tags":[1, "x"],"to":{"zip": "9 9"}}'])
    )
    (row,) = rows(applied)
    assert (row["id"], row["price"], row["at"], row["tags"], row["to"]) == (1, None, None, None, None)
    assert row["_rescued"] == '{"price":1.7050,"at":"today","tags":[1, "x"],"to":{"zip": "9 9"}}'
    assert adds_up(applied).rescued == 1


def test_new_fields_are_kept_wherever_they_stand():
    applied = rescuing().apply(envelopes([b'{"id":1, "n": 1.10, "to":{"city":"B","m.x":null,"zip":1}, "":{"k" : 0}}']))
    (row,) = rows(applied)
    assert row["to"] == {"city": "B", "zip": 1}
    assert row["_rescued"] == '{"n":1.10,"to.\\"m.x\\"":null,"\\"\\"":{"k" : 0}}'


def test_a_new_field_inside_an_array_keeps_the_array():
    columns = [{"name": "items", "type": "array<struct<n: bigint>>"}]
    plan = plan_of(table={"columns": columns, "contract": BOTH, "source": False})
    (row,) = rows(plan.apply(envelopes([b'{"items":[{"n":1},{"n":2, "m": 3}]}'])))
    assert row == {"items": [{"n": 1}, {"n": 2}], "_rescued": '{"items":[{"n":1},{"n":2, "m": 3}]}'}


def test_where_null_is_not_allowed_the_record_is_a_dead_letter():
    applied = rescuing().apply(envelopes([{"id": "x"}, {"price": 1}, b"{", {"id": 1, "ID": 2}]))
    assert letters(applied) == [
        (0, "decode", "type"),
        (1, "decode", "missing"),
        (2, "decode", "malformed"),
        (3, "decode", "duplicate_key"),
    ]


def test_each_half_of_the_contract_rescues_its_own_kind_only():
    values = envelopes([{"id": 1, "price": "x"}, {"id": 2, "n": 1}, {"id": 3, "price": "x", "n": 1}])
    wrong = rescuing({"wrong_type": "rescue", "new_field": "ignore"}).apply(values)
    assert [row["_rescued"] for row in rows(wrong)] == ['{"price":"x"}', None, '{"price":"x"}']
    assert adds_up(wrong).ignored == {"/lake/web: n": 2}
    strange = rescuing({"new_field": "rescue"}).apply(values)
    assert [row["_rescued"] for row in rows(strange)] == ['{"n":1}']
    assert letters(strange) == [(0, "decode", "type"), (2, "decode", "type")]
    refused = rescuing({"wrong_type": "rescue", "new_field": "reject"}).apply(values)
    assert letters(refused) == [(1, "decode", "new_field"), (2, "decode", "new_field")]


def test_new_fields_of_rescued_records_evolve_the_table_too():
    plan = plan_of(
        {"": pa.schema([pa.field("id", pa.int64())])},
        table={"contract": {"new_field": "evolve", "wrong_type": "rescue"}},
    )
    applied = plan.apply(envelopes([{"id": "x", "n": 1}, {"id": 2}]))
    assert rows(applied) == [{"id": None, "n": 1, "_rescued": '{"id":"x"}'}, {"id": 2, "n": None, "_rescued": None}]


def test_an_inferred_table_takes_its_first_columns_from_records_and_rescues_what_comes_later():
    plan = plan_of(table={"contract": {"new_field": "rescue"}, "source": False})
    assert letters(plan.apply(envelopes([b"x"]))) == [(0, "decode", "malformed")]
    assert rows(plan.apply(envelopes([{"a": 1}]))) == [{"a": 1, "_rescued": None}]
    later = shaped(plan, existing=pa.schema([pa.field("a", pa.int64()), RESCUED]))
    assert rows(later.apply(envelopes([{"a": 2, "b": 1}]))) == [{"a": 2, "_rescued": '{"b":1}'}]


def test_an_existing_table_gets_the_column_and_one_of_another_type_stops():
    have = pa.schema([pa.field("a", pa.int64())])
    plan = plan_of({"": have}, table={"contract": {"new_field": "rescue"}})
    assert plan.apply(envelopes([{"a": 1, "b": 2}])).tables[RouteId()].schema == have.append(RESCUED)
    strange = plan_of({"": have.append(pa.field("_rescued", pa.int64()))}, table={"contract": {"new_field": "rescue"}})
    with pytest.raises(ColumnMismatch, match="_rescued"):
        shaped(strange, existing=have.append(pa.field("_rescued", pa.int64())))
    turned_off = plan_of({"": have.append(RESCUED)})
    assert rows(turned_off.apply(envelopes([{"a": 1}]))) == [{"a": 1, "_rescued": None}]


def test_expressions_see_what_was_rescued():
    plan = rescuing(transform=[{"where": "_rescued IS NOT NULL"}, {"set": {"raw": "_rescued ->> '$.price'"}}])
    (row,) = rows(plan.apply(envelopes([{"id": 1}, {"id": 2, "price": "x"}])))
    assert (row["id"], row["raw"]) == (2, "x")


def test_jmespath_sees_the_message_as_it_came_whatever_was_rescued_of_it():
    columns = [{"name": "id", "type": "bigint"}, {"name": "was", "type": "string"}, {"name": "more", "type": "bigint"}]
    plan = plan_of(
        table={"columns": columns, "contract": BOTH, "source": False},
        transform=[{"jmespath": {"was": "id || 'none'", "more": "new.n"}}],
    )
    made = rows(plan.apply(envelopes([b'{"id": "x", "new": {"n": 7}}', b'{"new": {"n": 8}}'])))
    assert made == [
        {"id": None, "was": "x", "more": 7, "_rescued": '{"id":"x","new":{"n": 7}}'},
        {"id": None, "was": "none", "more": 8, "_rescued": '{"new":{"n": 8}}'},
    ]


@pytest.mark.parametrize(
    "answers", [("reject", "rescue"), ("rescue", None), ("rescue", "rescue"), ("rescue", "reject")]
)
def test_jmespath_sees_what_was_rescued_whoever_says_rescue(answers: tuple[str, str | None]):
    table, own = answers
    columns = [
        {"name": "id", "type": "bigint", "contract": {"wrong_type": own} if own else {}},
        {"name": "was", "type": "string"},
    ]
    contract = {"wrong_type": table, "new_field": "ignore"}
    plan = plan_of(table={"columns": columns, "contract": contract}, transform=[{"jmespath": {"was": "id"}}])
    applied = plan.apply(envelopes([{"id": "x"}, {"id": 1}]))
    kept = (own or table) == "rescue"
    assert [row["was"] for row in rows(applied)] == (["x", "1"] if kept else ["1"])
    assert len(applied.dead_letters) == (0 if kept else 1)


def test_rescue_reaches_into_envelopes_arrays_and_packed_values():
    columns = [{"name": "id", "type": "bigint"}]
    change = {"op": "c", "ts_ms": 1, "after": {"id": "x", "n": 1}, "before": None, "source": {}}
    table = {"columns": columns, "contract": BOTH, "source": False}
    framed = plan_of(table=table, decode={"json": {"envelope": "debezium"}}).apply(envelopes([change]))
    assert rows(framed) == [{"id": None, "_rescued": '{"after.id":"x","after.n":1}'}]
    many = plan_of(table=table, decode={"json": {"rows": "array"}}).apply(envelopes([[{"id": 1}, {"id": "x"}]]))
    assert [row["_rescued"] for row in rows(many)] == [None, '{"id":"x"}']


def test_without_its_column_nothing_can_be_rescued():
    with pytest.raises(UsageError, match="rescue"):
        decoder("json", pa.schema([]), new_field="rescue")


# ---- values that bring their own types ----

NATURAL = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "n": pa.array([1, 1 << 40, None], pa.int64()),
        "blob": pa.array([b"\x00", None, None], pa.binary()),
        "f": pa.array([float("nan"), 0.5, None]),
        "deep": pa.array([{"k": 1, "x": 2}, {"k": None, "x": None}, None]),
        "items": pa.array([[{"a": 1, "b": 2}], [{"a": 3, "b": None}], []]),
    }
)


def typed(new_field: Any, rescue: Rescue, **types: pa.DataType) -> Any:
    payload = pa.schema([*(pa.field(name, kind) for name, kind in types.items()), rescue_field(rescue)])
    return fit_values(NATURAL, np.arange(3), payload_schema_of(payload), new_field, Rejects())


def test_typed_values_are_rescued_as_json_text():
    items = pa.list_(pa.field("element", pa.struct([pa.field("a", pa.int64())])))
    found = typed("rescue", "type", id=pa.int64(), n=pa.int32(), deep=pa.struct([("k", pa.int64())]), items=items)
    assert found.rows["n"].to_pylist() == [1, None, None]
    assert [text and json.loads(text) for text in found.rows["_rescued"].to_pylist()] == [
        {"blob": "AA==", "f": "NaN", "deep.x": 2, "items": [{"a": 1, "b": 2}]},
        {"n": 1 << 40, "f": 0.5},
        None,
    ]
    assert not found.rejects.index


def test_a_typed_value_that_is_json_already_is_rescued_as_it_is():
    text = '{"a": 1.10, "b": 123456789012345678901234567890}'
    natural = pa.table({"j": pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array([text, None]))})
    for known in ([], [pa.field("j", pa.int64())]):
        payload = pa.schema([pa.field("id", pa.int64()), *known, rescue_field("type")])
        found = fit_values(natural, np.arange(2), payload_schema_of(payload), "rescue", Rejects())
        assert found.rows["_rescued"].to_pylist() == [f'{{"j":{text}}}', None]


def test_typed_values_without_the_contract_are_rejects_as_before():
    found = typed("rescue", "field", id=pa.int64(), n=pa.int32())
    assert (found.rejects.index, found.rejects.reason) == ([1], [Reason.OVERFLOW])
    required = payload_schema_of(pa.schema([pa.field("n", pa.int32(), nullable=False), rescue_field("type")]))
    refused = fit_values(NATURAL, np.arange(3), required, "ignore", Rejects())
    assert refused.rejects.reason == [Reason.OVERFLOW, Reason.MISSING]


def test_strict_holds_for_typed_values():
    natural = NATURAL.select(["id", "blob"])
    found = fit_values(
        natural, np.arange(3), payload_schema_of(pa.schema([pa.field("id", pa.int64())])), "reject", Rejects()
    )
    assert (found.rejects.index, found.rejects.reason) == ([0], [Reason.NEW_FIELD])


def test_a_default_fills_what_typed_records_do_not_have():
    word = PayloadField("word", pa.string(), nullable=False, default='"none"')
    payload = pa.schema([pa.field("id", pa.int64()), word.to_arrow()])
    found = fit_values(NATURAL, np.arange(3), payload_schema_of(payload), "ignore", Rejects())
    assert found.rows["word"].to_pylist() == ["none"] * 3


def test_strict_refuses_new_fields_of_plain_formats_too():
    columns = [{"name": "size", "type": "bigint"}]
    plan = plan_of(table={"columns": columns, "strict": True}, decode="bytes")
    assert letters(plan.apply(envelopes([b"x"]))) == [(0, "decode", "new_field")]


# ---- nothing is lost ----

SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab."\\ é', max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["id", "price", "tags", "to", "x", "y.z", 'q"', ""])
RECORDS = st.dictionaries(KEYS, VALUES, max_size=6)
LAX = [
    {"name": "id", "type": "bigint"},
    {"name": "price", "type": "double"},
    {"name": "tags", "type": "array<string>"},
    {"name": "to", "type": "struct<a: bigint, b: string>"},
]
LAX_PLAN = plan_of(table={"columns": LAX, "contract": BOTH, "source": False})


@given(st.lists(RECORDS, min_size=1, max_size=5))
@example([{"price": 2**53 + 1}, {"price": -(2**53) - 1}, {"price": 2**53}, {"price": 1 << 70}])
@settings(max_examples=60, deadline=None)
def test_the_row_and_what_was_rescued_are_the_record(records: list[dict[str, Any]]):
    texts = [json.dumps(record, ensure_ascii=False).encode() for record in records]
    applied = LAX_PLAN.apply(envelopes(texts))
    bad = {offset for offset, _, _ in letters(applied)}  # keys that differ in case, half surrogates
    stored = iter(rows(applied))
    for offset, record in enumerate(records):
        if offset not in bad:
            assert _rebuilt(next(stored)) == _without_nulls(_as_double(record))


def _as_double(record: dict[str, Any]) -> dict[str, Any]:
    """A double takes the nearest number; Python compares an integer with it exactly."""
    price = record.get("price")
    return {**record, "price": float(price)} if type(price) is int else record


def _rebuilt(row: dict[str, Any]) -> Any:
    kept = row.pop("_rescued")
    whole: dict[str, Any] = _without_nulls(row)
    for path, value in json.loads(kept or "{}").items():
        *way, last = _keys(path)
        here = whole
        for key in way:
            here = here.setdefault(key, {})
        here[last] = value
    return _without_nulls(whole)


def _keys(path: str) -> list[str]:
    keys, at = [], 0
    while at <= len(path):
        if path[at : at + 1] == '"':
            key, at = json.JSONDecoder().raw_decode(path, at)
        else:
            end = path.find(".", at) if "." in path[at:] else len(path)
            key, at = path[at:end], end
        keys.append(key)
        at += 1
    return keys


def _without_nulls(value: Any) -> Any:
    """A column that is NULL, a key that is null and one that is absent are one to a table; so is an empty object."""
    if not isinstance(value, dict):
        return value
    made = {key: _without_nulls(item) for key, item in value.items()}
    return {key: item for key, item in made.items() if item is not None and item != {}}
