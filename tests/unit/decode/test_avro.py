"""Avro: random schemas and records equal to what an independent library wrote, by the column and one by one."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.decode.avro import columns as avro_wire
from headrace.decode.avro import decoder as avro
from headrace.decode.avro.decoder import AvroGroup, natural
from headrace.decode.avro.schema import BadAvroSchema, Type, canonical_avro, fingerprint, parse_avro_schema
from headrace.decode.avro.value_reader import AvroValueReader
from headrace.decode.base import NewField, Rejects
from headrace.decode.decoders import decoder
from headrace.decode.payload_field import MessageScope, PayloadField
from headrace.decode.scalars import UnfitValue
from headrace.errors import ContractViolation, UsageError
from headrace.reasons import Reason
from headrace.spec import Decode


@dataclass(frozen=True)
class Made:
    """A schema, values for the writer, and what becomes of each."""

    schema: Any
    values: st.SearchStrategy[Any]
    expected: Callable[[Any], Any] = lambda value: value


INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
SOME_LONGS = st.one_of(st.integers(-100, 100), LONGS)
PLAIN = [
    Made("null", st.none()),
    Made("boolean", st.booleans()),
    Made("int", INTS),
    Made("long", SOME_LONGS),
    Made("float", st.floats(width=32, allow_nan=False)),
    Made("double", st.floats(allow_nan=False)),
    Made("bytes", st.binary(max_size=20)),
    Made("string", st.text(max_size=20)),
    Made({"type": "int", "logicalType": "date"}, st.integers(-719_162, 2_932_896)),
    Made({"type": "long", "logicalType": "timestamp-millis"}, SOME_LONGS),
    Made({"type": "long", "logicalType": "timestamp-micros"}, SOME_LONGS),
    Made({"type": "long", "logicalType": "local-timestamp-micros"}, SOME_LONGS),
    Made({"type": "int", "logicalType": "time-millis"}, INTS),
    Made({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
]


def digits(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda n: Decimal(n).scaleb(-scale, Context(prec=60)))


@st.composite
def types(draw: Any, count: list[int], depth: int = 3) -> Made:
    """A random type; names are numbered by `count`."""
    count[0] += 1
    name = f"N{count[0]}"
    kinds = ["plain"] * 3 + ["decimal", "fixed", "enum", "uuid"]
    kinds += ["record", "union", "option", "array", "map"] * 2 if depth else []
    kind = draw(st.sampled_from(kinds))
    if kind == "plain":
        return draw(st.sampled_from(PLAIN))
    if kind == "decimal":
        precision = draw(st.integers(1, 38))
        scale = draw(st.integers(0, precision))
        logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
        shape = draw(st.sampled_from([{"type": "bytes"}, {"type": "fixed", "name": name, "size": 17}]))
        return Made({**shape, **logical}, digits(precision, scale))
    if kind == "fixed":
        size = draw(st.integers(1, 20))
        return Made({"type": "fixed", "name": name, "size": size}, st.binary(min_size=size, max_size=size))
    if kind == "uuid":
        schema = {"type": "fixed", "name": name, "size": 16, "logicalType": "uuid"}
        return Made(schema, st.uuids().map(lambda u: u.bytes), lambda raw: str(UUID(bytes=raw)))
    if kind == "enum":
        symbols = [f"S{n}" for n in range(draw(st.integers(1, 5)))]
        return Made({"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols))
    if kind == "record":
        return record(name, draw(st.lists(types(count, depth - 1), max_size=4)))
    if kind == "array":
        return listed(draw(types(count, depth - 1)))
    if kind == "map":
        inner = draw(types(count, depth - 1))
        values = st.dictionaries(st.text(max_size=4), inner.values, max_size=4)
        return Made(
            {"type": "map", "values": inner.schema},
            values,
            lambda items: [(key, inner.expected(item)) for key, item in items.items()],
        )
    if kind == "option":
        return option(draw(types(count, depth - 1)), draw(st.booleans()))
    return united(draw(st.lists(types(count, depth - 1), min_size=2, max_size=4)))


def record(name: str, inner: list[Made]) -> Made:
    fields = [{"name": f"f{n}", "type": each.schema} for n, each in enumerate(inner)]
    return Made(
        {"type": "record", "name": name, "fields": fields},
        st.fixed_dictionaries({f"f{n}": each.values for n, each in enumerate(inner)}),
        lambda row: {f"f{n}": each.expected(row[f"f{n}"]) for n, each in enumerate(inner)},
    )


def listed(inner: Made) -> Made:
    # A few bytes must not stand for millions of items, so that there are no arrays of nothing.
    if parse_avro_schema(json.dumps(inner.schema)).least == 0:
        return inner
    return Made(
        {"type": "array", "items": inner.schema},
        st.lists(inner.values, max_size=5),
        lambda items: [inner.expected(item) for item in items],
    )


def option(inner: Made, first: bool) -> Made:
    null = Made("null", st.none())
    return united([null, inner] if first else [inner, null])


def united(inner: list[Made]) -> Made:
    """A union of whatever may stand in one: each name once, no unions."""
    branches: dict[str, Made] = {}
    for each in inner:
        if not isinstance(each.schema, list):
            kind = each.schema if isinstance(each.schema, str) else each.schema.get("name", each.schema["type"])
            branches.setdefault(kind, each)
    if not branches:
        return inner[0]
    others = [name for name in branches if name != "null"]
    tagged = [each.values.map(lambda value, name=name: (name, value)) for name, each in branches.items()]

    def expected(pair: tuple[str, Any]) -> Any:
        name, value = pair
        if name == "null":
            return None
        found = branches[name].expected(value)
        return found if len(others) == 1 else {name: found}

    return Made([each.schema for each in branches.values()], st.one_of(tagged), expected)


@st.composite
def records(draw: Any) -> tuple[Made, list[Any]]:
    made = record("Top", draw(st.lists(types([0]), min_size=1, max_size=4)))
    return made, draw(st.lists(made.values, min_size=1, max_size=30))


def written(schema: Any, rows: list[Any]) -> list[bytes]:
    parsed, made = fastavro.parse_schema(schema), []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        made.append(out.getvalue())
    return made


def read(kind: Type, values: list[bytes]) -> tuple[pa.Table, list[int], Rejects]:
    rejects = Rejects()
    every = np.arange(len(values))
    table, at = natural(AvroGroup(kind, pa.array(values, pa.binary()), 0, every, every), rejects)
    return table, at.tolist(), rejects


def plain(value: pa.Scalar) -> Any:
    """As Python has it, but for times that it does not know and floats that do not equal themselves."""
    if not value.is_valid:
        return None
    if isinstance(value, pa.StructScalar):
        return {name: plain(value[name]) for name in value}
    if isinstance(value, pa.MapScalar):
        return [
            (key, plain(each))
            for key, each in zip(value.values.field(0).to_pylist(), value.values.field(1), strict=True)
        ]
    if isinstance(value, pa.ListScalar):
        return [plain(each) for each in value.values]
    if isinstance(value, pa.TimestampScalar):
        return value.value
    return repr(value.as_py()) if pa.types.is_floating(value.type) else value.as_py()


@pytest.mark.parametrize("few", [0, 16, 1_000_000])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(given=records())
def test_what_was_written_is_read(few, given):
    made, rows = given
    kind = parse_avro_schema(json.dumps(made.schema))
    values = written(made.schema, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_wire, "FEW", few)
        table, at, rejects = read(kind, values)
    assert not rejects.detail
    assert at == list(range(len(values)))
    expected = pa.array([made.expected(row) for row in rows], kind.arrow)
    assert table.to_struct_array().combine_chunks().cast(kind.arrow).equals(expected)
    alone = [AvroValueReader(value, len(value)).value(kind, 0) for value in values]
    assert [end for _, end in alone] == [len(value) for value in values]
    assert pa.array([value for value, _ in alone], kind.arrow).equals(expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(given=records(), data=st.data())
def test_both_ways_agree_on_changed_bytes(given, data):
    made, rows = given
    kind = parse_avro_schema(json.dumps(made.schema))
    values = [bytearray(value) for value in written(made.schema, rows)]
    for value in values:
        for _ in range(data.draw(st.integers(0, 2))):
            if value:
                value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    table, at, rejects = read(kind, [bytes(value) for value in values])
    good, verdicts = [], {}
    for position, value in enumerate(values):
        try:
            found, end = AvroValueReader(value, len(value)).value(kind, 0)
            if end < len(value):
                raise UnfitValue(Reason.TRAILING_DATA, f"{len(value) - end} bytes follow the value")
            good.append((position, found))
        except UnfitValue as unfit:
            verdicts[position] = unfit.reason
    assert dict(zip(rejects.index, rejects.reason, strict=True)) == verdicts
    assert at == [position for position, _ in good]
    expected = pa.array([found for _, found in good], kind.arrow)
    assert [plain(each) for each in table.to_struct_array()] == [plain(each) for each in expected]


def test_long_arrays_of_every_sort():
    fields = [("n", "long"), ("t", "string"), ("d", "double"), ("b", "boolean"), ("m", "int")]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": {"type": "array", "items": kind}} for name, kind in fields],
    }
    rows = [
        {
            "n": [(-1) ** k * 7**k % 2**62 for k in range(size)],
            "t": [f"é{k}" * (k % 3) for k in range(size)],
            "d": [k / 3 for k in range(size)],
            "b": [k % 3 == 0 for k in range(size)],
            "m": list(range(-size, 0)),
        }
        for size in [0, 1, 5000, 3, *[40] * 40, 100]
    ]
    table, _, rejects = read(parse_avro_schema(json.dumps(schema)), written(schema, rows))
    assert not rejects.detail
    assert table.to_pylist() == rows


def test_blocks_with_their_sizes():
    kind = parse_avro_schema(
        '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":"string"}}]}'
    )
    one = b"\x03\x08\x02a\x02b" + b"\x02\x02c" + b"\x00"
    table, _, rejects = read(kind, [one] * 40)
    assert not rejects.detail
    assert table.to_pylist() == [{"a": ["a", "b", "c"]}] * 40


# ---- schemas ----


@pytest.mark.parametrize(
    ("schema", "arrow"),
    [
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.timestamp("ns", "UTC")),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, pa.timestamp("ms")),
        ({"type": "long", "logicalType": "time-micros"}, pa.int64()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, pa.binary()),
        ({"type": "int", "logicalType": "decimal", "precision": 4}, pa.int32()),
        ({"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}, pa.binary()),
        ({"type": {"type": "string"}}, pa.string()),
        (["null"], pa.null()),
        (["null", "int"], pa.int32()),
        (["int", "string"], pa.struct([("int", pa.int32()), ("string", pa.string())])),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32())),
    ],
)
def test_natural_types(schema, arrow):
    assert parse_avro_schema(json.dumps(schema)).arrow == arrow


def test_names_are_looked_up_in_their_namespace():
    inner = {"type": "record", "name": "P", "namespace": "geo", "fields": [{"name": "x", "type": "int"}]}
    line = {
        "type": "record",
        "name": "geo.Line",
        "fields": [{"name": "a", "type": "P"}, {"name": "b", "type": "geo.P"}],
    }
    kind = parse_avro_schema(json.dumps(line), {"geo.P": json.dumps(inner)})
    assert kind.children[0] is kind.children[1]
    union = parse_avro_schema(json.dumps(["geo.P", "geo.Line"]), {"p": json.dumps(inner), "l": json.dumps(line)})
    assert union.names == ("P", "Line")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("nothing", "not defined"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, "recursive"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]},
            "case",
        ),
        ({"type": "record", "name": "R"}, "fields"),
        ({"type": "record", "fields": []}, "name"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "name"),
        ({"type": "enum", "name": "E", "symbols": []}, "symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, "size"),
        ({"type": "array", "items": "null"}, "no bytes"),
        ([], "branches"),
        (["int", ["null"]], "branches"),
        (["int", "int"], "one name"),
        ([{"type": "enum", "name": "E", "symbols": ["a"]}, {"type": "enum", "name": "E", "symbols": ["a"]}], "twice"),
        (5, "is not a type"),
        ({"type": None}, "is not a type"),
        ({}, "is not a type"),
    ],
)
def test_schemas_that_are_refused(schema, why):
    with pytest.raises(BadAvroSchema, match=why):
        parse_avro_schema(json.dumps(schema))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"type":' * 5_000, "x" * (5 << 20)])
def test_texts_that_are_no_schema(text):
    with pytest.raises(BadAvroSchema):
        parse_avro_schema(text)


# The canonical forms and fingerprints are those of an independent library.
@settings(max_examples=60, deadline=None)
@given(records())
def test_fingerprints(given):
    made, _ = given
    form = fastavro.schema.to_parsing_canonical_form(made.schema)
    assert canonical_avro(made.schema) == form
    assert fingerprint(json.dumps(made.schema)).hex() == fastavro.schema.fingerprint(form, "CRC-64-AVRO")


# ---- into columns ----

EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "extra", "type": ["null", "string"]},
        {"name": "either", "type": ["int", "string"]},
        {"name": "sizes", "type": {"type": "map", "values": "int"}},
    ],
}
ROWS = [
    {"id": 1, "extra": None, "either": 5, "sizes": {"a": 1}},
    {"id": 2, "extra": "x", "either": "five", "sizes": {}},
]


def from_file(tmp_path: Path, schema: Any, columns: pa.Schema, new_field: NewField = "ignore") -> Any:
    (tmp_path / "s.avsc").write_text(json.dumps(schema))
    options = Decode.model_validate({"avro": {"schema": str(tmp_path / "s.avsc")}}).options
    return decoder("avro", columns, new_field=new_field, options=options)


def test_new_fields(tmp_path):
    values = pa.array(written(EVENT, ROWS), pa.binary())
    columns = pa.schema([("id", pa.int64())])
    found = from_file(tmp_path, EVENT, columns).decode(values)
    assert found.rows.to_pylist() == [{"id": 1}, {"id": 2}]
    assert found.ignored == {"extra": 1, "either": 2, "sizes": 2}
    found = from_file(tmp_path, EVENT, columns, "evolve").decode(values)
    assert found.unknown == {
        "type": "struct",
        "fields": {
            "extra": {"type": "string"},
            "either": {"type": "struct", "fields": {"int": {"type": "long"}, "string": {"type": "string"}}},
            "sizes": {"type": "map", "value": {"type": "long"}},
        },
    }
    found = from_file(tmp_path, EVENT, columns, "reject").decode(values)
    assert found.rejects.reason == [Reason.NEW_FIELD] * 2
    with pytest.raises(ContractViolation):
        from_file(tmp_path, EVENT, columns, "stop").decode(values)


def test_unions_and_maps_in_columns(tmp_path):
    values = pa.array(written(EVENT, ROWS), pa.binary())
    columns = pa.schema(
        [
            pa.field("either", pa.struct([("int", pa.int32()), ("string", pa.string())])),
            pa.field("sizes", pa.map_(pa.string(), pa.int64())),
            PayloadField("text", pa.string(), path="sizes", json_text=True).to_arrow(),
        ]
    )
    found = from_file(tmp_path, EVENT, columns).decode(values)
    assert found.rows.to_pylist() == [
        {"either": {"int": 5, "string": None}, "sizes": [("a", 1)], "text": '{"a":1}'},
        {"either": {"int": None, "string": "five"}, "sizes": [], "text": "{}"},
    ]


def test_a_schema_that_is_no_record_has_one_field(tmp_path):
    found = from_file(tmp_path, "string", pa.schema([("value", pa.string())])).decode(
        pa.array([b"\x04hi"], pa.binary())
    )
    assert found.rows.to_pylist() == [{"value": "hi"}]
    empty = {"type": "record", "name": "E", "fields": []}
    found = from_file(tmp_path, ["null", empty], pa.schema([])).decode(pa.array([b"\x00", b"\x02"], pa.binary()))
    assert (found.rejects.reason, found.index.to_pylist()) == ([Reason.TOMBSTONE], [1])


def test_a_union_of_records_tells_which_each_value_is(tmp_path):
    other = {"type": "record", "name": "Other", "namespace": "shop", "fields": [{"name": "id", "type": "string"}]}
    schema = ["null", "long", EVENT, other]
    rows = [("Event", ROWS[0]), ("shop.Other", {"id": "x"}), ("null", None), ("Event", ROWS[1]), ("long", 7)]
    values = pa.array([*written(schema, rows), b"\x08", b"\x01", b"\x80\x00"], pa.binary())
    asked = from_file(tmp_path, schema, pa.schema([("id", pa.int64()), ("value", pa.int32())]))
    found = asked.decode(values)
    assert found.rows.to_pylist() == [{"id": 1, "value": None}, {"id": 2, "value": None}, {"id": None, "value": 7}]
    assert dict(zip(found.rejects.index, found.rejects.reason, strict=True)) == {
        1: Reason.TYPE,
        2: Reason.TOMBSTONE,
        **dict.fromkeys((5, 6, 7), Reason.MALFORMED),
    }
    types, rejects = asked.types(values)
    assert types.to_pylist() == ["Event", "shop.Other", None, "Event", None, None, None, None]
    assert rejects.index == [2, 5, 6, 7]


def test_a_type_name_without_its_namespace(tmp_path):
    other = {"type": "record", "name": "Other", "namespace": "bank.eu", "fields": []}
    plain = {"type": "record", "name": "Plain", "fields": []}
    (tmp_path / "s.avsc").write_text(json.dumps(["null", other, plain]))
    options = Decode.model_validate({"avro": {"schema": str(tmp_path / "s.avsc"), "type_name": "short"}}).options
    values = pa.array([b"\x02", b"\x04", b"\x00"], pa.binary())
    types, _ = decoder("avro", pa.schema([]), options=options).types(values)
    assert types.to_pylist() == ["Other", "Plain", None]


VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}],
}
CHANGE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "db.customers",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": [{"name": "db", "type": "string"}]}},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


def test_changes_of_debezium(tmp_path):
    ann, bob = {"id": 1, "name": "Ann"}, {"id": 1, "name": None}
    around = {"source": {"db": "shop"}, "ts_ms": 1_700_000_000_000}
    changes = [
        {"before": None, "after": ann, "op": "c", **around},
        {"before": ann, "after": bob, "op": "u", **around},
        {"before": bob, "after": None, "op": "d", **around},
        {"before": None, "after": None, "op": "t", **around},
    ]
    (tmp_path / "s.avsc").write_text(json.dumps(CHANGE))
    options = Decode.model_validate({"avro": {"schema": str(tmp_path / "s.avsc"), "envelope": "debezium"}}).options
    columns = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("_op", pa.string()), ("_changed_at", pa.timestamp("us", "UTC"))]
    )
    asked = decoder("avro", columns, new_field="reject", options=options)
    found = asked.decode(pa.array([*written(CHANGE, changes), b"\x00", None], pa.binary()))
    at = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert found.rows.to_pylist() == [
        {"id": 1, "name": "Ann", "_op": "insert", "_changed_at": at},
        {"id": 1, "name": None, "_op": "update", "_changed_at": at},
        {"id": 1, "name": None, "_op": "delete", "_changed_at": at},
    ]
    assert found.rejects.reason == [Reason.UNKNOWN_OPERATION, Reason.MALFORMED, Reason.TOMBSTONE]
    new = decoder("avro", pa.schema([]), new_field="evolve", options=options)
    unknown = new.decode(pa.array(written(CHANGE, changes[:3]), pa.binary())).unknown
    assert sorted(unknown["fields"]) == ["_changed_at", "_op", "id", "name"]


def test_schemas_that_differ_in_name_are_read_as_one(tmp_path, monkeypatch):
    fields = [{"name": "id", "type": {"type": "array", "items": "long"}}]
    schema = [{"type": "record", "name": f"N{n}", "fields": fields} for n in range(5)]
    schema.append({"type": "record", "name": "Other", "fields": [{"name": "id", "type": "long"}]})
    rows = [(f"N{n % 5}", {"id": [n]}) if n % 7 else ("Other", {"id": n}) for n in range(50)]
    asked = from_file(tmp_path, schema, pa.schema([("id", pa.list_(pa.field("element", pa.int64())))]))
    values = pa.array(written(schema, rows), pa.binary())
    read = []
    monkeypatch.setattr(avro, "AvroColumns", lambda *given: read.append(given) or avro_wire.AvroColumns(*given))
    found = asked.decode(values)
    assert len(read) == 2
    assert found.index.to_pylist() == [n for n in range(50) if n % 7]
    assert found.rows["id"].to_pylist() == [[n] for n in range(50) if n % 7]
    assert found.rejects.reason == [Reason.TYPE] * 8
    assert asked.types(values)[0].to_pylist() == [name for name, _ in rows]


def test_the_whole_message_as_text(tmp_path):
    schema = [EVENT, {"type": "record", "name": "Other", "fields": [{"name": "id", "type": "string"}]}]
    message = PayloadField("m", pa.string(), message=MessageScope()).to_arrow()
    asked = from_file(tmp_path, schema, pa.schema([pa.field("extra", pa.string()), message]))
    values = pa.array([*written(schema, [("Event", ROWS[1]), ("Other", {"id": "x"})]), b"\x09"], pa.binary())
    assert asked.decode(values).rows.to_pylist() == [
        {"extra": "x", "m": '{"id":2,"extra":"x","either":{"int":null,"string":"five"},"sizes":{}}'},
        {"extra": None, "m": '{"id":"x"}'},
    ]
    assert asked.decode(values[2:]).rows.schema.names == ["extra", "m"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("id", ["1", "2"]), ("/extra", [None, "x"]), ("either.int", ["5", None]), ("no.such", [None, None])],
)
def test_peek(tmp_path, path, expected):
    asked = from_file(tmp_path, EVENT, pa.schema([]))
    texts, rejects = asked.peek(pa.array(written(EVENT, ROWS), pa.binary()), path)
    assert (texts.to_pylist(), rejects.index) == (expected, [])
    assert asked.peek(pa.array(written(EVENT, ROWS), pa.binary()), "sizes")[1].reason == [Reason.TYPE] * 2


def test_schema_files_that_are_none(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        decoder("avro", pa.schema([]), options=Decode.model_validate({"avro": {"schema": str(tmp_path / "x")}}).options)
    with pytest.raises(UsageError, match="cannot be used"):
        from_file(tmp_path, "nothing", pa.schema([]))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="no schema file"):
        decoder(
            "avro",
            pa.schema([]),
            options=Decode.model_validate({"avro": {"single_object": str(tmp_path / "folder")}}).options,
        )


def by_library(codec: str) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, EVENT, ROWS * 50, codec, sync_interval=200)
    return out.getvalue()


def by_hand(codec: str) -> bytes:
    """A file with one block, packed by Arrow."""
    plain = b"".join(written(EVENT, ROWS * 50))
    if codec == "snappy":
        block = bytes(pa.Codec("snappy").compress(plain)) + zlib.crc32(plain).to_bytes(4, "big")
    else:
        block = bytes(pa.Codec("zstd").compress(plain))
    meta = {"avro.schema": json.dumps(EVENT).encode(), "avro.codec": codec.encode()}
    head, counts = io.BytesIO(), io.BytesIO()
    fastavro.schemaless_writer(head, {"type": "map", "values": "bytes"}, meta)
    for number in (100, len(block)):
        fastavro.schemaless_writer(counts, "long", number)
    return b"Obj\x01" + head.getvalue() + b"s" * 16 + counts.getvalue() + block + b"s" * 16


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_container_files(codec):
    whole = by_hand(codec) if codec in ("snappy", "zstandard") else by_library(codec)
    options = Decode.model_validate({"avro": {"container": True}}).options
    columns = pa.schema([("id", pa.int64())])
    none = io.BytesIO()
    fastavro.writer(none, EVENT, [])
    found = decoder("avro", columns, options=options).decode(pa.array([whole, none.getvalue(), whole], pa.binary()))
    assert not found.rejects.detail
    assert found.index.to_pylist() == [0] * 100 + [2] * 100
    assert found.rows.to_pylist() == [{"id": 1}, {"id": 2}] * 100
    broken = whole[:-20] + b"?" + whole[-19:]
    found = decoder("avro", columns, options=options).decode(pa.array([broken], pa.binary()))
    assert codec == "null" or found.rejects.reason == [Reason.MALFORMED]
