"""One rule for all formats: what one of them refuses, or makes a column of, the others do, too, for the same reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from headrace.spec.route_id import RouteId
from headrace.spec.types import type_name
from services.plans import adds_up, envelopes, letters, plan_of, rows
from services.random_rows import MOMENT, WRITERS, Columns, Row

MAP = pa.map_(pa.string(), pa.int64())


def encoded(format: str, columns: Columns, records: list[Row], folder: Path) -> tuple[dict[str, Any], list[bytes]]:
    """What `decode` must say, with the folder in it, and the values."""
    decode, values = WRITERS[format](columns, records, folder)
    ((name, options),) = decode.items()
    files = {"schema", "schemas", "descriptor"}
    return {name: {key: f"{folder}/{each}" if key in files else each for key, each in options.items()}}, values


def declared(**types: str) -> dict[str, Any]:
    return {"columns": [{"name": name, "type": kind} for name, kind in types.items()], "source": False}


# ---- a schema declares its columns ----

EMPTY: Columns = {
    "id": pa.int64(),
    "note": pa.string(),
    "at": MOMENT,
    "ratio": pa.float64(),
    "to": pa.struct([("city", pa.string()), ("zip", pa.int64())]),
    "small": pa.int16(),
}


@pytest.mark.parametrize("format", ["avro", "protobuf", "msgpack"])
def test_a_column_that_only_has_nulls_is_made_with_its_declared_type(format: str, tmp_path: Path):
    records = [{**dict.fromkeys(EMPTY), "id": number} for number in range(20)]
    decode, values = encoded(format, EMPTY, records, tmp_path)
    applied = plan_of(decode=decode, table={"source": False}).apply(envelopes(values))
    assert [(item.name, type_name(item.type)) for item in applied.tables[RouteId()].schema] == [
        ("id", "long"),
        ("note", "string"),
        ("at", "timestamp"),
        ("ratio", "double"),
        ("to", "struct<city: string, zip: long>"),
        ("small", "long"),
    ]
    assert rows(applied) == records
    adds_up(applied)


@pytest.mark.parametrize("format", ["avro", "protobuf", "msgpack"])
def test_a_field_inside_of_a_known_struct_list_or_map_is_gained_without_a_value(format: str, tmp_path: Path):
    old, new = pa.struct([("n", pa.int64())]), pa.struct([("n", pa.int64()), ("m", pa.string())])
    shapes = {"one": lambda kind: kind, "many": pa.list_, "named": lambda kind: pa.map_(pa.string(), kind)}
    existing = pa.schema([(name, shape(old)) for name, shape in shapes.items()])
    record = {"one": {"n": 1, "m": None}, "many": [{"n": 2, "m": None}], "named": [("k", {"n": 3, "m": None})]}
    decode, values = encoded(format, {name: shape(new) for name, shape in shapes.items()}, [record], tmp_path)
    applied = plan_of({"": existing}, decode=decode, table={"source": False}).apply(envelopes(values))
    for name, shape in shapes.items():
        assert type_name(applied.tables[RouteId()].schema.field(name).type) == type_name(shape(new))
    assert rows(applied) == [record]


def test_two_schemas_of_a_map_in_one_first_batch_make_one_column(tmp_path: Path):
    """Each alone would be a map of its own type; together they are a map that holds both."""
    for nth, fields in enumerate([{"n": "bigint"}, {"n": "bigint", "m": "string"}]):
        inner = ", ".join(f"{name}: {kind}" for name, kind in fields.items())
        named = {"name": "named", "type": f"map<string,struct<{inner}>>"}
        (tmp_path / f"{nth}.json").write_text(json.dumps({"id": nth, "name": "R", "fields": [named]}))
    entries = [{"n": 1}, {"m": "x"}]
    values = [nth.to_bytes(4, "big") + msgpack.packb({"named": {"k": each}}) for nth, each in enumerate(entries)]
    plan = plan_of(decode={"msgpack": {"schemas": str(tmp_path)}}, table={"source": False})
    applied = plan.apply(envelopes(values))
    assert type_name(applied.tables[RouteId()].schema.field("named").type) == "map<string,struct<n: long, m: string>>"
    assert rows(applied) == [{"named": [("k", {"n": 1, "m": None})]}, {"named": [("k", {"n": None, "m": "x"})]}]


# ---- maps ----


@pytest.mark.parametrize("column", ["in a column", "ignored", "as text", "inside of others"])
@pytest.mark.parametrize("format", WRITERS)
def test_a_map_with_more_keys_than_the_limit_is_too_wide(format: str, column: str, tmp_path: Path):
    inside = column == "inside of others"
    kind = pa.list_(pa.struct([("m", MAP)])) if inside else MAP
    maps = [[(str(at), at) for at in range(count)] for count in (5, 6, 0, 60)]
    records = [{"id": nth, "m": [{"m": []}, {"m": each}] if inside else each} for nth, each in enumerate(maps)]
    decode, values = encoded(format, {"id": pa.int64(), "m": kind}, records, tmp_path)
    table = declared(id="bigint", **({} if column == "ignored" else {"m": type_name(kind)}))
    if column == "as text":
        table["columns"][1] = {"name": "m", "type": "string", "json": True}
    for repeat in (1, 20):  # one by one, and by the column
        applied = plan_of(decode=decode, table=table, limits={"keys": 5}).apply(envelopes(values * repeat))
        assert [row["id"] for row in rows(applied)] == [0, 2] * repeat
        assert {(offset % 4, step, why) for offset, step, why in letters(applied)} == {
            (1, "decode", "too_wide"),
            (3, "decode", "too_wide"),
        }
        adds_up(applied)


# ---- integers in columns of floats ----

LARGE = [0, -1, 2**24 + 1, 2**53 - 1, 2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize(("kind", "near"), [("double", np.float64), ("float", np.float32)])
def test_a_float_takes_the_number_nearest_to_an_integer(format: str, kind: str, near: type[Any], tmp_path: Path):
    decode, values = encoded(format, {"v": pa.int64()}, [{"v": number} for number in LARGE], tmp_path)
    for repeat in (1, 20):  # one by one, and by the column
        applied = plan_of(decode=decode, table=declared(v=kind)).apply(envelopes(values * repeat))
        assert [row["v"] for row in rows(applied)] == [float(near(number)) for number in LARGE] * repeat
        assert letters(applied) == []


@pytest.mark.parametrize("text", ["int64", "number"])
def test_so_does_one_of_plain_numbers(text: str):
    decode = {"int64": {"text": True}} if text == "int64" else "number"
    applied = plan_of(decode=decode, table=declared(value="double")).apply(
        envelopes([str(number).encode() for number in LARGE])
    )
    assert [row["value"] for row in rows(applied)] == [*map(float, LARGE)]
