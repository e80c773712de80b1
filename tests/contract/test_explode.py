"""Every format with fields: the elements of its lists become the same rows, under the same contract."""

from __future__ import annotations

import io
import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import pyarrow as pa
import pytest
from google.protobuf import message_factory

from headrace.decode.protobuf.schema_files import in_file
from headrace.plan.plan import Plan
from headrace.spec.route_id import RouteId
from services.plans import adds_up, envelopes, letters, plan_of, rows

Encode = Callable[[dict[str, Any]], bytes]

PROTO = """
syntax = "proto3";
package shop;
message Item { string sku = 1; int64 qty = 2; Extra extra = 3; }
message Extra { int64 n = 1; }
message Order { int64 id = 1; string note = 2; repeated Item items = 3; repeated string tags = 4; Extra beside = 5; }
"""
EXTRA = {"type": "record", "name": "Extra", "fields": [{"name": "n", "type": "long"}]}
ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "qty", "type": "long"},
        {"name": "extra", "type": ["null", EXTRA]},
    ],
}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": "string"},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "beside", "type": ["null", "Extra"]},
    ],
}
MSGPACK = {
    "id": 7,
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "bigint"},
        {"name": "note", "type": "string"},
        {"name": "items", "type": "array<struct<sku: string, qty: bigint, extra: struct<n: bigint>>>"},
        {"name": "tags", "type": "array<string>"},
        {"name": "beside", "type": "struct<n: bigint>"},
    ],
}


def order(number: int, *items: tuple[str, int], extra: bool = False) -> dict[str, Any]:
    made = [{"sku": sku, "qty": qty, "extra": {"n": qty} if extra else None} for sku, qty in items]
    return {"id": number, "note": f"n{number}", "items": made, "tags": ["t"] * number, "beside": {"n": 1}}


ORDERS = [order(1, ("a", 1), ("b", 2)), order(0), order(3, ("c", 3), extra=True)]


def _json(folder: Path) -> tuple[dict[str, Any], Encode]:
    def encode(value: dict[str, Any]) -> bytes:
        items = [{key: each[key] for key in each if each[key] is not None} for each in value["items"]]
        return json.dumps({**value, "items": items}).encode()

    return {"json": {}}, encode


def _avro(folder: Path) -> tuple[dict[str, Any], Encode]:
    (folder / "order.avsc").write_text(json.dumps(AVRO))
    parsed = fastavro.parse_schema(AVRO)

    def encode(value: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    return {"avro": {"schema": str(folder / "order.avsc")}}, encode


def _protobuf(folder: Path) -> tuple[dict[str, Any], Encode]:
    file = folder / "shop.proto"
    file.write_text(PROTO)
    made = message_factory.GetMessageClass(in_file(str(file), 64).pool.FindMessageTypeByName("shop.Order"))
    return {"protobuf": {"descriptor": str(file), "message": "shop.Order"}}, lambda value: made(
        **value
    ).SerializeToString()


def _msgpack(folder: Path) -> tuple[dict[str, Any], Encode]:
    (folder / "orders.json").write_text(json.dumps(MSGPACK))
    return {"msgpack": {"schemas": str(folder)}}, lambda value: struct.pack(">I", 7) + msgpack.packb(value)


def _alone_json(folder: Path) -> tuple[dict[str, Any], Encode]:
    def encode(value: dict[str, Any]) -> bytes:
        item = value["items"]
        return json.dumps({**value, "items": {key: item[key] for key in item if item[key] is not None}}).encode()

    return {"json": {}}, encode


def _alone_avro(folder: Path) -> tuple[dict[str, Any], Encode]:
    fields = [{"name": "id", "type": "long"}, {"name": "items", "type": ITEM}]
    schema = {"type": "record", "name": "Alone", "fields": fields}
    (folder / "alone.avsc").write_text(json.dumps(schema))
    parsed = fastavro.parse_schema(schema)

    def encode(value: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    return {"avro": {"schema": str(folder / "alone.avsc")}}, encode


def _alone_protobuf(folder: Path) -> tuple[dict[str, Any], Encode]:
    file = folder / "alone.proto"
    file.write_text(PROTO + "message Alone { int64 id = 1; Item items = 2; }\n")
    made = message_factory.GetMessageClass(in_file(str(file), 64).pool.FindMessageTypeByName("shop.Alone"))
    return {"protobuf": {"descriptor": str(file), "message": "shop.Alone"}}, lambda value: made(
        **value
    ).SerializeToString()


def _alone_msgpack(folder: Path) -> tuple[dict[str, Any], Encode]:
    (folder / "alone").mkdir()
    item = {"name": "items", "type": "struct<sku: string, qty: bigint, extra: struct<n: bigint>>"}
    schema = {"id": 8, "name": "shop.Alone", "fields": [{"name": "id", "type": "bigint"}, item]}
    (folder / "alone" / "alone.json").write_text(json.dumps(schema))
    return {"msgpack": {"schemas": str(folder / "alone")}}, lambda value: struct.pack(">I", 8) + msgpack.packb(value)


ALONE = {_json: _alone_json, _avro: _alone_avro, _protobuf: _alone_protobuf, _msgpack: _alone_msgpack}


@pytest.fixture
def single(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], Encode]:
    """The format of the test at hand, with one item where there is a list otherwise."""
    return ALONE[request.node.callspec.params["format"]](tmp_path)


@pytest.fixture(params=[_json, _avro, _protobuf, _msgpack], ids=lambda make: make.__name__.strip("_"))
def format(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], Encode]:
    made: tuple[dict[str, Any], Encode] = request.param(tmp_path)
    return made


def exploding(decode: dict[str, Any], existing: pa.Schema | None = None, **content: Any) -> Plan:
    explode = {"column": "items", "keep": {"order_id": "id"}, "position": "nth"}
    return plan_of({} if existing is None else {"": existing}, decode=decode, **{"explode": explode, **content})


def test_elements_are_rows_and_lists_are_empty_alike(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    plan = exploding(decode)
    for _ in range(2):
        applied = plan.apply(envelopes([encode(each) for each in ORDERS]))
        assert [(row["order_id"], row["nth"], row["sku"], row["qty"], row["extra"]) for row in rows(applied)] == [
            (1, 0, "a", 1, None),
            (1, 1, "b", 2, None),
            (3, 0, "c", 3, {"n": 3}),
        ]
        assert applied.tables[RouteId()].column_names == ["order_id", "nth", "sku", "qty", "extra", "_source"]
        assert adds_up(applied).filtered == 1


def test_elements_without_fields(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    applied = exploding(decode, explode={"column": "tags", "keep": ["note"]}).apply(
        envelopes([encode(each) for each in ORDERS])
    )
    assert rows(applied) == [{"note": "n1", "tags": "t"}, *[{"note": "n3", "tags": "t"}] * 3]


def test_a_misfit_in_one_element_is_a_dead_letter_of_the_record(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    existing = pa.schema([("order_id", pa.int64()), ("sku", pa.string()), ("qty", pa.int8())])
    values = [*ORDERS, order(4, ("d", 1), ("e", 1000))]
    applied = exploding(decode, existing).apply(envelopes([encode(each) for each in values]))
    assert {row["order_id"] for row in rows(applied)} == {1, 3}
    assert letters(applied) == [(3, "decode", "overflow")]
    assert re.match(r"items\[1?\]\.qty: ", applied.dead_letters["detail"].to_pylist()[0])


@pytest.mark.parametrize("answer", ["reject", "ignore", "evolve"])
def test_the_contract_is_about_elements_and_not_about_what_is_beside_them(
    format: tuple[dict[str, Any], Encode], answer: str
):
    decode, encode = format
    existing = pa.schema([("order_id", pa.int64()), ("sku", pa.string()), ("qty", pa.int64()), ("nth", pa.int64())])
    plan = exploding(decode, existing, table={"contract": {"new_field": answer}})
    applied = plan.apply(envelopes([encode(each) for each in ORDERS]))
    counts = adds_up(applied)
    assert ("extra" in applied.tables[RouteId()].column_names) == (answer == "evolve")
    assert bool(counts.ignored) == (answer == "ignore")
    assert set(counts.ignored) <= {"/lake/web: items.extra", "/lake/web: items.extra.n"}
    assert bool(counts.reasons.get("new_field")) == (answer == "reject")


def test_a_branch_of_elements_beside_the_records_themselves(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    child = {"name": "tags", "explode": {"column": "tags", "keep": ["id"]}, "table": {"path": "/lake/tags"}}
    applied = plan_of(decode=decode, branches=[child]).apply(envelopes([*(encode(each) for each in ORDERS), b"\xff"]))
    assert [row["id"] for row in rows(applied)] == [1, 0, 3]
    assert [row["id"] for row in rows(applied, "tags/")] == [1, 3, 3, 3]
    assert {(row["offset"], row["table"]) for row in applied.dead_letters.to_pylist()} == {
        (3, "/lake/web"),
        (3, "/lake/tags"),
    }
    counts = adds_up(applied)
    assert (counts.routed, counts.dead) == (3, 1)


@pytest.mark.parametrize("declared", [False, True])
def test_columns_of_elements_widen(format: tuple[dict[str, Any], Encode], declared: bool):
    decode, encode = format
    types = {"order_id": "int", "sku": "string", "qty": "int"}
    columns = {"columns": [{"name": name, "type": kind} for name, kind in types.items()]} if declared else {}
    existing = pa.schema([("order_id", pa.int32()), ("sku", pa.string()), ("qty", pa.int32())])
    table = {"contract": {"wrong_type": "widen", "new_field": "ignore"}, "features": ["typeWidening"], **columns}
    plan = exploding(decode, existing, table=table, explode={"column": "items", "keep": {"order_id": "id"}})
    values = [order(1, ("a", 2**40), ("b", 1)), {**order(2, ("c", 1)), "id": 2**50}]
    applied = plan.apply(envelopes([encode(each) for each in values]))
    assert [(row["order_id"], row["qty"]) for row in rows(applied)] == [(1, 2**40), (1, 1), (2**50, 1)]
    assert [applied.tables[RouteId()].schema.field(name).type for name in ("order_id", "qty")] == [pa.int64()] * 2
    adds_up(applied)


def test_a_partition_column_of_elements_keeps_its_type(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    existing = pa.schema([("order_id", pa.int32()), ("sku", pa.string()), ("qty", pa.int32())])
    table = {"contract": {"wrong_type": "widen"}, "features": ["typeWidening"], "partition_by": ["qty"]}
    applied = exploding(decode, existing, table=table).apply(envelopes([encode(order(1, ("a", 2**40)))]))
    assert letters(applied) == [(0, "decode", "overflow")]


def test_jmespath_gives_every_row_the_value_of_its_record(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    queries = {
        "note": "note",
        "first": "items[0].sku",
        "count": "length(items)",
        "beside_n": "beside.n",
        "total": "sum(items[].qty)",
        "own": "id",
        "at": "kafka.offset",
    }
    types = {"count": pa.int64(), "beside_n": pa.int64(), "total": pa.float64()}
    known = {"order_id": pa.int64(), "sku": pa.string(), "qty": pa.int64()}
    plan = exploding(decode, pa.schema({**known, **types}), transform=[{"jmespath": queries}])
    for _ in range(2):
        applied = plan.apply(envelopes([encode(each) for each in ORDERS]))
        found = [tuple(row[name] for name in ("sku", *queries)) for row in rows(applied)]
        assert found == [
            ("a", "n1", "a", 2, 1, 3.0, 1, 0),
            ("b", "n1", "a", 2, 1, 3.0, 1, 0),
            ("c", "n3", "c", 1, 1, 3.0, 3, 2),
        ]
        assert adds_up(applied).filtered == 1


def test_jmespath_beside_elements_without_fields(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    step = {"jmespath": {"note": "note", "offset": "kafka.offset"}}
    first = exploding(decode, explode="tags", transform=[step])
    applied = first.apply(envelopes([encode(each) for each in ORDERS]))
    expected = [{"tags": "t", "note": "n1", "offset": 0}, *[{"tags": "t", "note": "n3", "offset": 2}] * 3]
    assert rows(applied) == expected
    again = exploding(decode, applied.tables[RouteId()].schema, explode="tags", transform=[step])
    assert rows(again.apply(envelopes([encode(each) for each in ORDERS]))) == expected


def test_a_record_that_jmespath_fails_for_is_one_dead_letter(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    steps = [{"where": "sku <> 'd'"}, {"jmespath": {"bad": "length(id)"}}]
    values = [order(1, ("d", 1), ("e", 2), ("f", 3)), order(2, ("d", 1))]
    applied = exploding(decode, transform=steps).apply(envelopes([encode(each) for each in values]))
    assert rows(applied) == []
    assert letters(applied) == [(0, "transform", "transform")]
    assert adds_up(applied).filtered == 1


@pytest.mark.parametrize("new_field", ["ignore", "evolve", "reject"])
def test_what_does_not_fit_a_kept_column_is_rescued_in_every_row(format: tuple[dict[str, Any], Encode], new_field: str):
    decode, encode = format
    columns = [
        {"name": "order_id", "type": "tinyint", "contract": {"wrong_type": "rescue"}},
        {"name": "sku", "type": "string"},
        {"name": "qty", "type": "tinyint"},
        {"name": "extra", "type": "struct<n: bigint>"},
    ]
    step = {"jmespath": {"id": "id"}}
    table = {"columns": [*columns, {"name": "id", "type": "bigint"}], "contract": {"new_field": new_field}}
    explode = {"column": "items", "keep": {"order_id": "id"}}
    values = [order(1, ("a", 1)), order(1000, ("b", 1), ("c", 2)), order(2, ("d", 1000)), order(2000, ("e", 2000))]
    plan = exploding(decode, table=table, explode=explode, transform=[step])
    for _ in range(2):
        applied = plan.apply(envelopes([encode({**each, "tags": []}) for each in values]))
        assert [(row["id"], row["order_id"], row["sku"], row["_rescued"]) for row in rows(applied)] == [
            (1, 1, "a", None),
            (1000, None, "b", '{"id":1000}'),
            (1000, None, "c", '{"id":1000}'),
        ]
        assert letters(applied) == [(2, "decode", "overflow"), (3, "decode", "overflow")]
        assert adds_up(applied).rescued == 2


# ---- rescue, element by element ----

BOTH = {"new_field": "rescue", "wrong_type": "rescue"}
OF_ITEMS = {"sku": "string", "qty": "tinyint"}


def rescuing(decode: dict[str, Any], contract: dict[str, str], **content: Any) -> Plan:
    types = {"order_id": "tinyint", **OF_ITEMS}
    table = {"columns": [{"name": name, "type": kind} for name, kind in types.items()], "contract": contract}
    return exploding(decode, **{"table": table, "explode": {"column": "items", "keep": {"order_id": "id"}}, **content})


def test_each_row_holds_what_did_not_fit_of_its_element_and_of_its_record(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    values = [order(1, ("a", 1), ("b", 1000)), order(0), order(2, ("c", 3))]
    values += [{**order(1, ("d", 2000), ("e", 1), extra=True), "id": 2**40, "tags": []}]
    plan = rescuing(decode, {"wrong_type": "rescue"})
    for _ in range(2):
        applied = plan.apply(envelopes([encode(each) for each in values]))
        assert [(row["order_id"], row["sku"], row["qty"], row["_rescued"]) for row in rows(applied)] == [
            (1, "a", 1, None),
            (1, "b", None, '{"items.qty":1000}'),
            (2, "c", 3, None),
            (None, "d", None, f'{{"id":{2**40},"items.qty":2000}}'),
            (None, "e", 1, f'{{"id":{2**40}}}'),
        ]
        counts = adds_up(applied)
        assert (counts.rescued, counts.filtered) == (3, 1)
        assert set(counts.ignored) <= {"/lake/web: items.extra", "/lake/web: items.extra.n"}


def test_new_fields_of_elements_are_rescued_and_those_beside_are_not(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    values = [order(1, ("a", 1)), order(2, ("b", 2), ("c", 1000), extra=True)]
    plan = rescuing(decode, BOTH)
    for _ in range(2):
        applied = plan.apply(envelopes([encode(each) for each in values]))
        found = [(row["sku"], json.loads(row["_rescued"] or "{}")) for row in rows(applied)]
        assert found == [
            ("a", {}),
            ("b", {"items.extra": {"n": 2}}),
            ("c", {"items.qty": 1000, "items.extra": {"n": 1000}}),
        ]
        assert adds_up(applied).ignored == {}


def test_elements_without_fields_are_rescued(format: tuple[dict[str, Any], Encode]):
    decode, encode = format
    table = {"columns": [{"name": "tags", "type": "bigint"}], "contract": BOTH}
    plan = exploding(decode, table=table, explode={"column": "tags", "position": "nth"})
    applied = plan.apply(envelopes([encode({**order(1), "tags": ["x", "y"]}), encode(order(0))]))
    assert [(row["nth"], row["tags"], row["_rescued"]) for row in rows(applied)] == [
        (0, None, '{"tags":"x"}'),
        (1, None, '{"tags":"y"}'),
    ]


def test_a_column_that_may_not_be_null_makes_a_dead_letter_that_names_the_element(
    format: tuple[dict[str, Any], Encode],
):
    decode, encode = format
    columns = [{"name": "sku", "type": "string"}, {"name": "qty", "type": "tinyint", "nullable": False}]
    table = {"columns": columns, "contract": BOTH}
    plan = exploding(decode, table=table, explode={"column": "items"})
    applied = plan.apply(envelopes([encode(order(1, ("a", 1), ("b", 1000))), encode(order(2, ("c", 3)))]))
    assert [row["sku"] for row in rows(applied)] == ["c"]
    assert letters(applied) == [(0, "decode", "overflow")]
    assert applied.dead_letters["detail"].to_pylist()[0].startswith("items[1].qty: ")


def test_rows_are_those_of_each_element_as_a_record_of_its_own(
    format: tuple[dict[str, Any], Encode], single: tuple[dict[str, Any], Encode]
):
    """The same values in a list and alone: the format of `single` has one item where the other has a list of them."""
    decode, encode = format
    pick = random.Random(7)
    values = [
        {
            **order(pick.choice([1, 2]), *((pick.choice("abc"), pick.choice([1, -9, 300])) for _ in range(count))),
            "id": pick.choice([1, 5, 1000]),
        }
        for count in [0, 1, 2, 3] * 10
    ]
    for value in values:
        for item in value["items"]:
            item["extra"] = pick.choice([None, {"n": 7}])
    paths = {"order_id": ("tinyint", "id"), **{name: (kind, f"items.{name}") for name, kind in OF_ITEMS.items()}}
    columns = [{"name": name, "type": kind, "path": path} for name, (kind, path) in paths.items()]
    alone = plan_of(decode=single[0], table={"columns": columns, "contract": BOTH})
    texts = [single[1]({"id": each["id"], "items": item}) for each in values for item in each["items"]]
    expected = rows(alone.apply(envelopes(texts)))
    made = rows(rescuing(decode, BOTH).apply(envelopes([encode(each) for each in values])))
    assert len(made) == len(expected) == 60
    assert [_parsed(row) for row in made] == [_parsed(row) for row in expected]


def _parsed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "_rescued": json.loads(row["_rescued"] or "{}")}
