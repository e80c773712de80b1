"""One schema in three spellings: what goes in comes back."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import Schema
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.delta.actions import MetadataAction, Protocol
from headrace.delta.evolution import check_fits, merge_schemas
from headrace.delta.schema import DEAD_LETTERS, RECORD_SCHEMA, SOURCE, from_delta, to_delta
from headrace.delta.snapshot import TableState
from headrace.errors import TableChanged, TableFeature, UsageError
from headrace.spec.types import TIMESTAMP, TIMESTAMP_NTZ, parse_type, type_name, type_names

PLAIN = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    TIMESTAMP,
    TIMESTAMP_NTZ,
    pa.decimal128(38, 10),
    pa.decimal128(1, 0),
]
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=6)


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(NAMES.map(str.lower), inner, min_size=1, max_size=3)
    return (
        inner.map(lambda kind: pa.list_(pa.field("element", kind)))
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
        | fields.map(lambda found: pa.struct([pa.field(name, kind) for name, kind in found.items()]))
    )


TYPES = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=6)


@settings(max_examples=200, deadline=None)
@given(TYPES)
def test_a_type_survives_delta_json(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("c", kind, nullable=False, metadata={"comment": "ü"})])
    assert from_delta(to_delta(schema)).equals(schema, check_metadata=True)


def test_metadata_of_a_field_goes_back_as_it_came() -> None:
    metadata = {"comment": "1", "number": 1, "deep": {"a": [None, True]}}
    fields = [{"name": "c", "type": "long", "nullable": True, "metadata": metadata}]
    text = json.dumps({"type": "struct", "fields": fields})
    assert json.loads(to_delta(from_delta(text))) == json.loads(text)


@settings(max_examples=200, deadline=None)
@given(TYPES)
def test_a_type_survives_its_name(kind: pa.DataType) -> None:
    assert parse_type(type_name(kind)).equals(kind)


@pytest.mark.parametrize("schema", [RECORD_SCHEMA, DEAD_LETTERS, pa.schema([SOURCE])])
def test_delta_rs_reads_our_schemas(schema: pa.Schema) -> None:
    theirs = json.loads(Schema.from_json(to_delta(schema)).to_json())
    assert theirs == json.loads(to_delta(schema))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BIGINT", pa.int64()),
        (" decimal( 10 , 2 ) ", pa.decimal128(10, 2)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("uint64", pa.decimal128(20, 0)),
        ("array< array<int> >", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int32()))))),
        ("struct<a: int, `b c`: map<string,double>>", None),
    ],
)
def test_people_write_types_in_many_ways(text: str, kind: pa.DataType | None) -> None:
    wanted = kind or pa.struct([("a", pa.int32()), ("b c", pa.map_(pa.string(), pa.float64()))])
    assert parse_type(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "strin",
        "int int",
        "decimal(39,0)",
        "decimal(2,3)",
        "array<int",
        "map<int,int>",
        "struct<>",
        "struct<a int>",
        "array",
        "decimal",
        "struct<a: int, A: int>",
    ],
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_type(text)


def test_every_plain_name_is_a_type() -> None:
    for name in type_names():
        if name.isidentifier():
            parse_type(name)


@pytest.mark.parametrize("kind", ["variant", "interval", "void", "decimal(x)"])
def test_a_type_of_a_table_that_we_do_not_know_is_a_feature(kind: str) -> None:
    fields = [{"name": "c", "type": kind, "nullable": True, "metadata": {}}]
    with pytest.raises(TableFeature, match=r"variant|interval|void|decimal"):
        from_delta(json.dumps({"type": "struct", "fields": fields}))


def test_a_decimal_is_one_type_with_and_without_blanks() -> None:
    """As other writers have it in a log: files fit, and nothing is to be altered."""

    def text(kind: str) -> str:
        inner = {"type": "array", "elementType": kind, "containsNull": True}
        kinds = {"a": kind, "b": inner}
        fields = [{"name": name, "type": each, "nullable": True, "metadata": {}} for name, each in kinds.items()]
        return json.dumps({"type": "struct", "fields": fields})

    ours, theirs = text("decimal(10,2)"), text("decimal(10, 2)")
    check_fits(ours, TableState(1, MetadataAction("x", theirs, (), {}), Protocol()))
    assert merge_schemas(theirs, ours) == theirs
    with pytest.raises(TableChanged, match="decimal"):
        merge_schemas(theirs, text("decimal(10,3)"))
