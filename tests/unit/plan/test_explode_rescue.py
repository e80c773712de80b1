"""Explode with rescue: each row holds what did not fit of its own element, and of what is kept of its record."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.decode.base import LIMITS, Rejects
from headrace.decode.elements import ElementsDecoder
from headrace.decode.payload import payload_schema_of
from headrace.decode.payload_field import PayloadField, rescue_field
from headrace.decode.rescue import Rescuer
from headrace.decode.typed.fit import fit_values
from headrace.delta.schema import RESCUED
from headrace.errors import ContractViolation
from headrace.plan.explode import explode_records, with_rescued
from headrace.plan.plan import Plan
from headrace.spec.explode import Explode
from headrace.spec.route_id import RouteId
from services.plans import adds_up, envelopes, letters, plan_of, rows, shaped

BOTH = {"new_field": "rescue", "wrong_type": "rescue"}
EXPLODE = {"column": "items", "keep": {"order_id": "id"}}
COLUMNS = [
    {"name": "order_id", "type": "bigint"},
    {"name": "id", "type": "bigint"},
    {"name": "price", "type": "decimal(9,2)"},
    {"name": "to", "type": "struct<city: string>"},
]
NAMES = ("order_id", "id", "price", "to")


def rescuing(contract: dict[str, str] = BOTH, columns: Any = COLUMNS, **content: Any) -> Plan:
    table = {"contract": contract, "source": False, **({"columns": columns} if columns else {})}
    return plan_of(content.pop("existing", None), **{"explode": EXPLODE, "table": table, **content})


def kept(applied: Any) -> list[str | None]:
    return [row["_rescued"] for row in rows(applied)]


# ---- rows ----


def test_clean_records_have_nothing_rescued():
    applied = rescuing().apply(envelopes([{"id": 1, "items": [{"id": 2, "price": 1.5}, {"id": 3}]}]))
    assert [(row["order_id"], row["id"], row["_rescued"]) for row in rows(applied)] == [(1, 2, None), (1, 3, None)]
    assert applied.tables[RouteId()].schema.field("_rescued") == RESCUED
    assert adds_up(applied).rescued == 0


def test_each_row_holds_what_did_not_fit_of_its_own_element_as_it_was_written():
    value = (
        b'{"id":1,"items":[{"id":2},{"id": "x","price": 1.7050, "new" : [1 , 2.10]},{"to":{"city":"B","zip": 0.10}}]}'
    )
    applied = rescuing().apply(envelopes([value]))
    assert rows(applied) == [
        {"order_id": 1, "id": 2, "price": None, "to": None, "_rescued": None},
        {
            **{"order_id": 1, "id": None, "price": None, "to": None},
            "_rescued": '{"items.id":"x","items.price":1.7050,"items.new":[1 , 2.10]}',
        },
        {"order_id": 1, "id": None, "price": None, "to": {"city": "B"}, "_rescued": '{"items.to.zip":0.10}'},
    ]
    assert adds_up(applied).rescued == 2


def test_every_digit_of_a_rescued_number_is_kept():
    digits = "123456789012345678901234567890.123456789012345678901234567890"
    value = f'{{"id":{digits},"items":[{{"price":{digits}}},{{"price":1e-400}},{{"new":{digits}}}]}}'.encode()
    assert kept(rescuing().apply(envelopes([value]))) == [
        f'{{"id":{digits},"items.price":{digits}}}',
        f'{{"id":{digits},"items.price":1e-400}}',
        f'{{"id":{digits},"items.new":{digits}}}',
    ]


def test_a_misfit_of_what_is_kept_is_in_every_row_beside_those_of_the_element():
    applied = rescuing().apply(envelopes([{"id": "y", "items": [{"id": 1}, {"id": "x"}]}]))
    assert [(row["order_id"], row["id"], row["_rescued"]) for row in rows(applied)] == [
        (None, 1, '{"id":"y"}'),
        (None, None, '{"id":"y","items.id":"x"}'),
    ]


def test_new_fields_inside_what_is_kept_are_rescued_and_those_beside_are_not():
    explode = {"column": "items", "keep": {"shop": "at.shop"}}
    columns = [{"name": "shop", "type": "struct<name: string>"}, {"name": "id", "type": "bigint"}]
    plan = rescuing(columns=columns, explode=explode)
    value = {"n": 1, "at": {"shop": {"name": "a", "size": 2}, "hour": 3}, "a.b": {"c": 4}, "": 5, "items": [{"id": 6}]}
    for _ in range(2):
        applied = plan.apply(envelopes([value, {**value, "items": [{"id": 7, "new": None}]}]))
        assert rows(applied) == [
            {"shop": {"name": "a"}, "id": 6, "_rescued": '{"at.shop.size":2}'},
            {"shop": {"name": "a"}, "id": 7, "_rescued": '{"at.shop.size":2,"items.new":null}'},
        ]
        assert adds_up(applied).ignored == {}


def test_fields_beside_the_list_do_not_make_clean_records_slow(monkeypatch: pytest.MonkeyPatch):
    """Once some records with them were seen, all others are read as if there were none."""
    mended, met = ElementsDecoder._decode_in_parts, []
    monkeypatch.setattr(
        ElementsDecoder, "_decode_in_parts", lambda self, some: met.append(len(some)) or mended(self, some)
    )
    values = [{"id": nth, "note": "x", "more": {"a": 1}, "items": [{"id": nth}]} for nth in range(1000)]
    plan = rescuing()
    for _ in range(2):
        assert len(rows(plan.apply(envelopes(values)))) == 1000
    assert 0 < sum(met) < 100


def test_new_fields_without_a_typed_value_are_not_lost():
    applied = rescuing().apply(envelopes([b'{"id":1,"items":[{"a":null},{"a":[]},{"a":{}},{"a":[ null ]}]}']))
    assert kept(applied) == ['{"items.a":null}', '{"items.a":[]}', '{"items.a":{}}', '{"items.a":[ null ]}']


def test_an_element_that_is_no_object_is_rescued_as_a_whole():
    applied = rescuing().apply(envelopes([b'{"id":1,"items":[{"id":2}, 5 ,"x",[{"id" : 1}],null]}']))
    assert [(row["id"], row["_rescued"]) for row in rows(applied)] == [
        (2, None),
        (None, '{"items":5}'),
        (None, '{"items":"x"}'),
        (None, '{"items":[{"id" : 1}]}'),
        (None, None),
    ]


def test_elements_without_fields():
    columns = [{"name": "tags", "type": "bigint"}]
    plan = rescuing(columns=columns, explode={"column": "tags", "position": "nth"})
    applied = plan.apply(envelopes([b'{"tags":[1,"x",null,2.5,{"a": 1}]}']))
    assert [(row["nth"], row["tags"], row["_rescued"]) for row in rows(applied)] == [
        (0, 1, None),
        (1, None, '{"tags":"x"}'),
        (2, None, None),
        (3, None, '{"tags":2.5}'),
        (4, None, '{"tags":{"a": 1}}'),
    ]


def test_elements_without_fields_keep_their_columns_own_contract_and_unit():
    own = {"contract": {"wrong_type": "rescue"}}
    columns = [{"name": "at", "type": "timestamp", "unit": "ms", **own}]
    plan = rescuing({}, columns, explode="at")
    assert kept(plan.apply(envelopes([{"at": [0, "x"]}]))) == [None, '{"at":"x"}']


def test_a_list_of_lists_keeps_the_element_with_a_new_field_inside():
    columns = [{"name": "grid", "type": "array<struct<a: bigint>>"}]
    plan = rescuing(columns=columns, explode="grid")
    applied = plan.apply(envelopes([b'{"grid":[[{"a":1}],[{"a":2, "b":3}]]}']))
    assert rows(applied) == [
        {"grid": [{"a": 1}], "_rescued": None},
        {"grid": [{"a": 2}], "_rescued": '{"grid":[{"a":2, "b":3}]}'},
    ]


def test_without_an_element_a_row_holds_what_did_not_fit_of_its_record():
    plan = rescuing(explode={**EXPLODE, "empty": "row"})
    applied = plan.apply(envelopes([{"id": "x", "items": []}, {"id": 1}, {"id": "y", "items": None}, {"items": [3]}]))
    assert [(row["order_id"], row["_rescued"]) for row in rows(applied)] == [
        (None, '{"id":"x"}'),
        (1, None),
        (None, '{"id":"y"}'),
        (None, '{"items":3}'),
    ]
    assert adds_up(rescuing().apply(envelopes([{"id": "x", "items": []}]))).filtered == 1


def test_what_is_no_list_has_no_row_to_stand_in_and_is_a_dead_letter():
    applied = rescuing().apply(
        envelopes([{"id": 1, "items": "x"}, {"id": 2, "items": {"id": 1}}, {"id": 3, "items": 4}])
    )
    assert letters(applied) == [(0, "decode", "type"), (1, "decode", "type"), (2, "decode", "type")]
    assert "items: expected an array" in applied.dead_letters["detail"].to_pylist()[0]


def test_where_null_is_not_allowed_the_record_is_a_dead_letter():
    columns = [*COLUMNS[:2], {"name": "sku", "type": "string", "nullable": False}]
    values = [
        {"id": 1, "items": [{"sku": "a"}, {"sku": 5}]},
        {"id": 2, "items": [{"sku": "a", "id": "x"}]},
        {"id": 3, "items": [{"sku": "a"}, {"id": "x"}]},
        {"id": 4, "items": [{"sku": "a"}, 7]},
    ]
    applied = rescuing(columns=columns).apply(envelopes(values))
    assert [(row["order_id"], row["_rescued"]) for row in rows(applied)] == [(2, '{"items.id":"x"}')]
    assert letters(applied) == [(0, "decode", "type"), (2, "decode", "missing"), (3, "decode", "type")]
    assert applied.dead_letters["detail"].to_pylist()[0].startswith("items[1].sku: ")


def test_a_default_fills_what_an_element_lacks_and_not_what_does_not_fit():
    columns = [*COLUMNS[:2], {"name": "qty", "type": "int", "default": 1}]
    applied = rescuing(columns=columns).apply(envelopes([{"id": 1, "items": [{"id": "x"}, {"qty": "y"}, None]}]))
    assert [(row["qty"], row["_rescued"]) for row in rows(applied)] == [
        (1, '{"items.id":"x"}'),
        (None, '{"items.qty":"y"}'),
        (None, None),
    ]


def test_bad_names_and_duplicate_keys_of_elements_are_dead_letters_still():
    values = [
        b'{"id":1,"items":[{"new":1,"NEW":2}]}',
        b'{"id":1,"items":[{"ID":1}]}',
        b'{"id":1,"items":[{"id":1,"id":1}]}',
    ]
    reasons = [reason for _, _, reason in letters(rescuing().apply(envelopes(values)))]
    assert reasons == ["duplicate_key", "bad_name", "duplicate_key"]


# ---- the two halves of a contract, and those of columns ----


def test_each_half_of_the_contract_rescues_its_own_kind_only():
    values = envelopes(
        [
            {"id": 1, "items": [{"id": "x"}]},
            {"id": 2, "items": [{"n": 1}]},
            {"id": 3, "items": [{"id": "x", "n": 1}, {"n": 2}]},
        ]
    )
    wrong = rescuing({"wrong_type": "rescue", "new_field": "ignore"}).apply(values)
    assert kept(wrong) == ['{"items.id":"x"}', None, '{"items.id":"x"}', None]
    assert adds_up(wrong).ignored == {"/lake/web: items.n": 2}
    new = rescuing({"new_field": "rescue"}).apply(values)
    assert kept(new) == ['{"items.n":1}']
    assert letters(new) == [(0, "decode", "type"), (2, "decode", "type")]
    refused = rescuing({"wrong_type": "rescue", "new_field": "reject"}).apply(values)
    assert letters(refused) == [(1, "decode", "new_field"), (2, "decode", "new_field")]
    with pytest.raises(ContractViolation, match=r"items\.n"):
        rescuing({"wrong_type": "rescue", "new_field": "stop"}).apply(values)


def test_a_column_has_its_own_answer():
    one = {"name": "id", "type": "bigint", "contract": {"wrong_type": "rescue"}}
    plan = rescuing({"new_field": "ignore"}, [COLUMNS[0], one, {"name": "n", "type": "int"}])
    values = [{"id": 1, "items": [{"id": "x"}]}, {"id": 2, "items": [{"n": "x"}]}, {"id": "z", "items": [{}]}]
    applied = plan.apply(envelopes(values))
    assert kept(applied) == ['{"items.id":"x"}']
    assert letters(applied) == [(1, "decode", "type"), (2, "decode", "type")]


def test_new_fields_of_rescued_elements_evolve_the_table():
    existing = {"": pa.schema([("order_id", pa.int64()), ("id", pa.int64())])}
    plan = rescuing({"new_field": "evolve", "wrong_type": "rescue"}, None, existing=existing)
    applied = plan.apply(envelopes([{"id": 1, "items": [{"id": "x", "n": 1}, {"id": 2}]}]))
    assert rows(applied) == [
        {"order_id": 1, "id": None, "n": 1, "_rescued": '{"items.id":"x"}'},
        {"order_id": 1, "id": 2, "n": None, "_rescued": None},
    ]


def test_an_inferred_table_takes_its_first_columns_from_records_and_rescues_what_comes_later():
    plan = rescuing(columns=None)
    assert rows(plan.apply(envelopes([{"id": 1, "items": [{"a": 1}]}]))) == [{"order_id": 1, "a": 1, "_rescued": None}]
    later = shaped(plan, existing=pa.schema([("order_id", pa.int64()), ("a", pa.int64()), RESCUED]))
    assert rows(later.apply(envelopes([{"id": 2, "items": [{"a": "x"}, {"b": 1}]}]))) == [
        {"order_id": 2, "a": None, "_rescued": '{"items.a":"x"}'},
        {"order_id": 2, "a": None, "_rescued": '{"items.b":1}'},
    ]


def test_widen_and_rescue_side_by_side():
    table = {
        "columns": [*COLUMNS[:1], {"name": "n", "type": "int", "contract": {"wrong_type": "rescue"}}],
        "contract": {"wrong_type": "widen"},
        "features": ["typeWidening"],
    }
    existing = {"": pa.schema([("order_id", pa.int32()), ("n", pa.int32()), RESCUED])}
    plan = plan_of(
        existing,
        explode=EXPLODE,
        table={**table, "columns": [{"name": "order_id", "type": "int"}, table["columns"][1]]},
    )
    applied = plan.apply(envelopes([{"id": 2**40, "items": [{"n": 2**40}]}]))
    assert [(row["order_id"], row["n"], row["_rescued"]) for row in rows(applied)] == [
        (2**40, None, f'{{"items.n":{2**40}}}')
    ]


# ---- beside other things ----


def test_expressions_see_what_was_rescued():
    plan = rescuing(transform=[{"where": "_rescued IS NOT NULL"}, {"set": {"raw": "_rescued ->> '$.\"items.id\"'"}}])
    (row,) = rows(plan.apply(envelopes([{"id": 1, "items": [{"id": 2}, {"id": "x"}]}])))
    assert row["raw"] == "x"


def test_jmespath_sees_the_list_as_it_came():
    columns = [*COLUMNS, {"name": "was", "type": "string"}, {"name": "all", "type": "string"}]
    steps = [{"jmespath": {"was": "items[1].id", "all": "to_string(items)"}}]
    applied = rescuing(columns=columns, transform=steps).apply(
        envelopes([{"id": 1, "items": [{"id": 2}, {"id": "x"}]}])
    )
    assert [(row["was"], row["all"]) for row in rows(applied)] == [("x", '[{"id":2},{"id":"x"}]')] * 2


def test_envelopes_lines_and_packed_values():
    change = {"op": "c", "ts_ms": 1, "after": {"id": "y", "items": [{"id": "x", "n": 1}]}, "before": None, "source": {}}
    applied = rescuing(decode={"json": {"envelope": "debezium"}}).apply(envelopes([change]))
    assert kept(applied) == ['{"after.id":"y","after.items.id":"x","after.items.n":1}']
    lines = b'{"id":1,"items":[{"id":2}]}\n{"id":"x","items":[{"id":3},{"id":"z"}]}'
    applied = rescuing(decode={"json": {"rows": "lines"}}).apply(envelopes([lines]))
    assert kept(applied) == [None, '{"id":"x"}', '{"id":"x","items.id":"z"}']


def test_a_null_value_that_is_a_row_has_nothing_rescued():
    plan = rescuing(explode={**EXPLODE, "empty": "row"}, decode={"json": {"tombstone": "row"}})
    applied = plan.apply(envelopes([None, {"id": 1, "items": [{"id": "x"}]}]))
    assert [(row["order_id"], row["_rescued"]) for row in rows(applied)] == [(None, None), (1, '{"items.id":"x"}')]


def test_a_route_can_be_picked_for_each_element():
    plan = plan_of(explode=EXPLODE, route={"by": {"sql": "kind"}}, table={"contract": BOTH})
    plan.apply(envelopes([{"id": 1, "items": [{"kind": "a", "n": 1}, {"kind": "b", "n": 2}]}]))
    applied = plan.apply(envelopes([{"id": 2, "items": [{"kind": "a", "n": "x"}, {"kind": "b", "n": 2, "new": 3}]}]))
    assert [row["_rescued"] for row in rows(applied, "a")] == ['{"items.n":"x"}']
    assert [row["_rescued"] for row in rows(applied, "b")] == ['{"items.new":3}']


def test_an_upsert_of_elements_rescues_too():
    table = {"mode": "upsert", "merge": {"keys": ["id"]}, "columns": COLUMNS, "contract": BOTH}
    applied = plan_of(explode=EXPLODE, table=table).apply(envelopes([{"id": 1, "items": [{"id": 2, "price": "x"}]}]))
    assert kept(applied) == ['{"items.price":"x"}']


def test_branches_rescue_for_themselves():
    child = {
        "name": "items",
        "explode": EXPLODE,
        "table": {"path": "/lake/items", "columns": COLUMNS, "contract": BOTH},
    }
    plan = plan_of(branches=[child])
    for _ in range(2):
        applied = plan.apply(envelopes([{"id": 1, "note": "n", "items": [{"id": 2}, {"id": 3, "n": 1}]}]))
        assert [row["_rescued"] for row in rows(applied, "items/")] == [None, '{"items.n":1}']
        assert rows(applied)[0]["note"] == "n"
        adds_up(applied)


def test_a_list_longer_than_the_limit_is_too_wide():
    applied = rescuing(limits={"rows": 2}).apply(
        envelopes([{"id": 1, "items": ["x"] * 3}, {"id": 2, "items": ["x"] * 2}])
    )
    assert len(rows(applied)) == 2
    assert letters(applied) == [(0, "decode", "too_wide")]


def test_what_is_rescued_of_a_record_counts_among_the_bytes_that_its_rows_repeat():
    plan = rescuing(limits={"repeated_bytes": 1000})
    applied = plan.apply(envelopes([{"id": "x" * 600, "items": [{"id": 1}] * n} for n in (1, 2)]))
    assert len(rows(applied)) == 1
    assert letters(applied) == [(1, "decode", "too_big")]


def test_texts_with_escapes_and_spaces_are_cut_at_the_right_places():
    value = ' {"id" : 1 ,\n "it\\u0065ms" : [ {"id":"]\\"}," , "a" : "\\u007b" } , [ ] , "é,[" ] } '
    assert kept(rescuing().apply(envelopes([value.encode()]))) == [
        '{"items.id":"]\\"},","items.a":"\\u007b"}',
        '{"items":[ ]}',
        '{"items":"é,["}',
    ]


def test_what_misfits_in_every_record_is_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch):
    plan = rescuing()
    values = [
        json.dumps({"id": nth, "items": [{"id": nth, "n": nth}] * 3}, separators=(",", ":")) for nth in range(300)
    ]
    read, calls = Rescuer.read, []
    monkeypatch.setattr(Rescuer, "read", lambda self, raw: calls.append(raw) or read(self, raw))
    applied = plan.apply(envelopes([value.encode() for value in values]))
    assert kept(applied) == [f'{{"items.n":{nth}}}' for nth in range(300) for _ in range(3)]
    assert len(calls) < 30


# ---- the same as each element as a record of its own ----

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab."\\ é', max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(["sku", "qty", "price", "tags", "to", "x", "y.z", 'q"', ""])
ELEMENTS = st.one_of(st.dictionaries(FIELDS, VALUES, max_size=4), st.none(), VALUES)
LISTS = st.lists(ELEMENTS, min_size=1, max_size=4)
OTHERS = st.dictionaries(st.sampled_from(["n", "m.x", "deep", "\\", ""]), VALUES, max_size=2)
OF_ELEMENTS = {
    "sku": "string",
    "qty": "int",
    "price": "decimal(20,3)",
    "tags": "array<string>",
    "to": "struct<a: bigint, b: string>",
}


def _columns(prefix: str) -> list[dict[str, Any]]:
    own = [{"name": "order_id", "type": "bigint", **({"path": "id"} if prefix else {})}]
    return own + [
        {"name": name, "type": kind, **({"path": prefix + name} if prefix else {})}
        for name, kind in OF_ELEMENTS.items()
    ]


CONTRACTS = [BOTH, {"wrong_type": "rescue", "new_field": "ignore"}, {"new_field": "rescue"}]
EXPLODED = [rescuing(contract, _columns("")) for contract in CONTRACTS]
ALONE = [plan_of(table={"columns": _columns("items."), "contract": each, "source": False}) for each in CONTRACTS]


def _exactly(row: dict[str, Any]) -> dict[str, Any]:
    text = row["_rescued"]
    return {**row, "_rescued": text and json.loads(text, parse_float=Decimal)}


@given(st.lists(st.tuples(VALUES, LISTS, OTHERS), min_size=1, max_size=4), st.sampled_from(range(3)))
@example([(1, [{"price": 1e22}, {"price": 0.1}], {}), (2, [{"sku": "a"}], {})], 0)
@settings(max_examples=60, deadline=None)
def test_rows_are_those_of_each_element_as_a_record_of_its_own(records: list[tuple[Any, Any, Any]], which: int):
    applied = EXPLODED[which].apply(envelopes([{**beside, "id": id, "items": items} for id, items, beside in records]))
    bad = {at for at, _, _ in letters(applied)}
    made = iter(rows(applied))
    for at, (id, items, _) in enumerate(records):
        alone = ALONE[which].apply(envelopes([{"id": id, "items": item} for item in items]))
        assert (at in bad) == bool(len(alone.dead_letters))
        if at not in bad:
            assert [_exactly(next(made)) for _ in items] == [_exactly(row) for row in rows(alone)]
    assert next(made, None) is None
    adds_up(applied)


# ---- values that bring their own types ----

INNER = pa.struct(
    [
        ("sku", pa.string()),
        ("qty", pa.int64()),
        ("price", pa.decimal128(38, 10)),
        ("blob", pa.binary()),
        ("ratio", pa.float64()),
        ("to", pa.struct([("a", pa.int64()), ("new", pa.decimal128(38, 0))])),
        ("tags", pa.list_(pa.struct([("a", pa.int64()), ("new", pa.int64())]))),
    ]
)
WANTED = pa.struct(
    [
        ("sku", pa.int64()),
        ("qty", pa.int8()),
        pa.field("price", pa.decimal128(9, 2)),
        ("ratio", pa.int32()),
        ("to", pa.struct([("a", pa.int32())])),
        ("tags", pa.list_(pa.field("element", pa.struct([("a", pa.int32())])))),
    ]
)
WHOLE = st.sampled_from([None, 0, 1, 200, 1 << 40])
TYPED = st.fixed_dictionaries(
    {
        "sku": st.sampled_from([None, "x", "12"]),
        "qty": WHOLE,
        "price": st.sampled_from([None, Decimal("1.5"), Decimal("1.505"), Decimal(10) ** 27]),
        "blob": st.sampled_from([None, b"", b"\x00\xff"]),
        "ratio": st.sampled_from([None, 1.0, 0.5, float("nan")]),
        "to": st.none() | st.fixed_dictionaries({"a": WHOLE, "new": st.sampled_from([None, Decimal(10**37)])}),
        "tags": st.none() | st.lists(st.fixed_dictionaries({"a": WHOLE, "new": WHOLE}), max_size=2),
    }
)
TYPED_LISTS = st.none() | st.lists(st.none() | TYPED, max_size=3)


@given(st.lists(st.tuples(WHOLE, TYPED_LISTS), min_size=1, max_size=5), st.sampled_from(["rescue", "ignore"]))
@settings(max_examples=60, deadline=None)
def test_typed_rows_are_those_of_each_element_as_a_record_of_its_own(records: list[tuple[Any, Any]], new_field: Any):
    explode = Explode(column="items", keep={"order_id": "id"})
    rescue = rescue_field("type")
    order = PayloadField("order_id", pa.int8(), path="id").to_arrow()
    listed = pa.schema([order, pa.field("items", pa.list_(pa.field("element", WANTED))), rescue])
    ids = pa.array([id for id, _ in records], pa.int64())
    natural = pa.table({"id": ids, "items": pa.array([items for _, items in records], pa.list_(INNER)), "beside": ids})
    layout = payload_schema_of(with_rescued(explode, listed))
    found = fit_values(natural, np.arange(len(records)), layout, new_field, Rejects())
    made, _ = explode_records(explode, found, LIMITS, np.zeros(len(records), np.int64))

    pairs = [(id, item) for id, items in records for item in items or []]
    ids = pa.array([id for id, _ in pairs], pa.int64())
    natural = pa.table({"id": ids, "items": pa.array([item for _, item in pairs], INNER)})
    columns = [PayloadField(item.name, item.type, path=f"items.{item.name}").to_arrow() for item in WANTED]
    alone = payload_schema_of(pa.schema([order, *columns, rescue]))
    expected = fit_values(natural, np.arange(len(pairs)), alone, new_field, Rejects())
    assert made.rejects.index == expected.rejects.index == []
    assert [_exactly(row) for row in made.rows.to_pylist()] == [_exactly(row) for row in expected.rows.to_pylist()]
