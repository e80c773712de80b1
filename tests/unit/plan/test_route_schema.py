"""Shapes: what a spec declares, what a table has and what records have shown, brought together."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.decode.inference import of
from headrace.decode.payload_field import PayloadField, is_json_text, payload_field
from headrace.delta.schema import SOURCE
from headrace.errors import ColumnMismatch
from headrace.plan.plan import Plan
from headrace.plan.route_schema import RouteSchema
from headrace.spec.types import same_columns, same_type
from services.plans import spec_of

EXISTING = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


def _schema(table: dict[str, Any] | None = None, steps: list[Any] | None = None, **known: Any) -> RouteSchema:
    spec = spec_of(table=table or {}, transform=steps or [])
    return Plan(spec, {}).branches[""].route_schema("", **known)


def test_declared_columns_carry_how_they_are_read_and_the_table_only_what_lasts():
    columns = [
        {"name": "id", "type": "bigint", "path": "a.b", "nullable": False},
        {"name": "moment", "type": "timestamp", "unit": "ms", "default": 5},
        {"name": "raw", "type": "string", "json": True},
    ]
    schema = _schema({"columns": columns})
    assert payload_field(schema.payload.field("id")) == PayloadField("id", pa.int64(), False, path="a.b")
    moment = payload_field(schema.payload.field("moment"))
    assert (moment.unit, moment.default) == ("ms", "5")
    assert is_json_text(schema.table.field("raw"))
    assert not any(item.metadata for item in list(schema.table)[:2])
    assert not schema.table.field("id").nullable
    assert schema.table.names == ["id", "moment", "raw", "_source"]


def test_an_existing_table_rules_and_declared_columns_it_lacks_are_added_as_nullable():
    schema = _schema({"columns": [{"name": "new", "type": "int", "nullable": False}]}, existing=EXISTING)
    assert schema.table == EXISTING.append(pa.field("new", pa.int32()))


def test_learned_fields_grow_an_existing_table_unless_the_contract_is_closed():
    learned = of({"id": 1, "new": {"x": 1}})
    assert _schema(existing=EXISTING, learned=learned).table.names == ["id", "name", "new"]
    for answer in ("ignore", "reject", "stop"):
        closed = _schema({"contract": {"new_field": answer}}, existing=EXISTING, learned=learned)
        assert closed.table == EXISTING


def test_the_first_records_make_the_columns_whatever_the_contract_says():
    schema = _schema({"contract": {"new_field": "ignore"}}, learned=of({"id": 1}))
    assert schema.table == pa.schema([pa.field("id", pa.int64()), SOURCE])


def test_derived_columns_are_known_in_the_payload_but_not_read_from_it():
    steps = [{"set": {"name": "upper(n)"}}]
    schema = _schema(existing=EXISTING, steps=steps)
    assert payload_field(schema.payload.field("name")).skipped
    assert schema.absent == ("n",)
    assert _schema(existing=EXISTING, steps=steps, learned=of({"n": "x"})).absent == ()


def test_a_column_made_of_itself_is_read():
    schema = _schema(existing=EXISTING, steps=[{"set": {"name": "upper(name)"}}])
    assert schema.payload == EXISTING


def test_renamed_columns_are_read_under_their_old_names_with_the_tables_type():
    schema = _schema(existing=EXISTING, steps=[{"rename": {"n": "name"}}])
    assert schema.payload == pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.string())])
    assert schema.table == EXISTING


def test_source_is_no_payload_of_a_table_that_has_it():
    assert _schema(existing=EXISTING.append(SOURCE)).payload == EXISTING


def test_partition_columns_must_be_there_once_columns_are_known():
    spec = {"partition_by": ["day"]}
    assert _schema(spec).table.names == ["_source"]
    assert _schema(spec, learned={}).table.names == ["_source"]  # records that were all bad
    for known in ({"existing": EXISTING}, {"learned": of({"id": 1})}):
        with pytest.raises(ColumnMismatch, match="'day'"):
            _schema(spec, **known)
    assert _schema(spec, steps=[{"set": {"day": "'x'"}}], learned=of({"id": 1})).partition_by == ("day",)


@pytest.mark.parametrize(
    ("one", "two", "answer"),
    [
        (pa.int64(), pa.int8(), True),
        (pa.float64(), pa.decimal128(4, 1), True),
        (pa.string(), pa.int64(), False),
        (pa.int64(), pa.string(), False),
        (pa.bool_(), pa.int64(), False),
        (pa.list_(pa.int64()), pa.list_(pa.field("element", pa.int64(), nullable=False)), True),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), False),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), True),
        (pa.struct([("a", pa.int64())]), pa.struct([pa.field("a", pa.int64(), nullable=False)]), True),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.struct([("b", pa.int64()), ("a", pa.int64())]), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), False),
    ],
)
def test_which_types_may_be_offered_to_a_column(one: pa.DataType, two: pa.DataType, answer: bool):
    assert same_columns(one, two) is answer
    if answer and not pa.types.is_primitive(one):
        assert same_type(one, two)


def test_nested_fields_that_records_bring_grow_the_tables_column_in_its_place():
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    existing = pa.schema(
        [
            pa.field("s", inner),
            pa.field("l", pa.list_(pa.field("element", inner))),
            pa.field("m", pa.map_(pa.string(), inner)),
        ]
    )
    brought = {"a": 1, "b": {"c": "x"}}
    learned = of({"s": brought, "l": [brought], "m": {"k": brought}})
    schema = _schema(existing=existing, learned=learned)
    grown = pa.struct([*inner, pa.field("b", pa.struct([pa.field("c", pa.string())]))])
    assert schema.table.types == [grown, pa.list_(pa.field("element", grown)), pa.map_(pa.string(), grown)]
    assert schema.payload.types == schema.table.types


def test_a_declared_struct_with_less_than_the_tables_is_refused():
    existing = pa.schema([pa.field("s", pa.struct([("a", pa.int64()), ("b", pa.int64())]))])
    with pytest.raises(ColumnMismatch, match="column 's' is struct<a: long, b: long> in the table"):
        _schema({"columns": [{"name": "s", "type": "struct<a: bigint>"}]}, existing=existing)


ORDERS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), pa.field("at", pa.timestamp("us"))]
)
AMOUNT = [{"name": "amount", "type": "decimal(10,2)"}]


def test_declared_columns_extend_those_of_the_table():
    schema = _schema({"columns": AMOUNT}, existing=ORDERS)
    assert schema.payload.names == ["amount", "id", "name", "at"]
    assert schema.payload.field("id") == ORDERS.field("id")
    assert schema.table == ORDERS.append(pa.field("amount", pa.decimal128(10, 2)))
    assert schema.unfilled == ()


def test_a_declared_column_is_read_as_declared_and_the_others_as_the_table_has_them():
    columns = [{"name": "n", "type": "string", "path": "who.name"}, {"name": "ID", "type": "bigint"}]
    schema = _schema({"columns": columns[:1]}, existing=ORDERS, steps=[{"rename": {"n": "name"}}])
    assert schema.payload.names == ["n", "id", "at"]
    assert schema.table == ORDERS
    assert _schema({"columns": columns[1:]}, existing=pa.schema([pa.field("ID", pa.int64())])).payload.names == ["ID"]


def test_columns_are_left_out_of_the_write_only_by_a_word_of_the_spec():
    table = {"columns": AMOUNT, "only_declared": True}
    loose = pa.schema([item.with_nullable(True) for item in ORDERS])
    schema = _schema(table, existing=loose)
    assert (schema.payload.names, schema.unfilled) == (["amount"], ("id", "name", "at"))
    assert _schema(table, existing=loose, steps=[{"set": {"name": "'x'"}}]).unfilled == ("id", "at")
    with pytest.raises(ColumnMismatch, match="only_declared excludes 'id', which must not be NULL"):
        _schema(table, existing=ORDERS)
