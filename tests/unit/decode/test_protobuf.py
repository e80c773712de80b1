"""Protobuf off the wire: equal to Google's library where that is exact, stricter where that looks away."""

from __future__ import annotations

import json
import random
import struct
from base64 import b64decode
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.base import Decoded, DecodeLimits, NewField
from headrace.decode.inference import evolve
from headrace.decode.payload_field import MessageScope, PayloadField, is_json_text, json_field, rescue_field
from headrace.decode.protobuf import wire
from headrace.decode.protobuf.decoder import ProtobufDecoder, ProtobufGroup
from headrace.decode.protobuf.proto_text import parsed
from headrace.decode.protobuf.schema import ParsedFile, Schema, linked
from headrace.decode.registry.client import Registered, UnknownSchema
from headrace.errors import ContractViolation
from headrace.reasons import Reason
from headrace.spec.decode import ProtobufFormat
from services import protos

OPTIONS = ProtobufFormat.model_construct(allow_empty=True, keep_unknown_fields=False)


class Given:
    """A message type at hand."""

    def __init__(self, schema: Schema, name: str = "t.M") -> None:
        self.message = schema.message(name)

    def groups(self, values: pa.BinaryArray, at: Any, rejects: Any) -> list[ProtobufGroup]:
        return [ProtobufGroup(self.message, values, 0, at)]


def decoder(file: Any, payload: pa.Schema, new_field: NewField = "ignore", **options: Any) -> ProtobufDecoder:
    given = OPTIONS.model_copy(update=options)
    return ProtobufDecoder(Given(linked([ParsedFile(file)])), payload, new_field, DecodeLimits(), given)


def payload_of(file: Any, values: pa.BinaryArray) -> pa.Schema:
    """The columns that the values ask for."""
    found = decoder(file, pa.schema([]), "evolve").decode(values)
    return evolve(pa.schema([]), found.unknown) if found.unknown else pa.schema([])


def decode(file: Any, values: list[bytes], new_field: NewField = "ignore") -> Decoded:
    column = pa.array(values, pa.binary())
    return decoder(file, payload_of(file, column), new_field).decode(column)


def rows_of(found: Decoded) -> list[dict[str, Any]]:
    return [_sorted_maps(row) for row in found.rows.to_pylist()]


def _sorted_maps(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_maps(item) for key, item in value.items()}
    if isinstance(value, list):
        made = [_sorted_maps(item) for item in value]
        return sorted(made) if made and all(isinstance(item, tuple) for item in made) else made
    return (value[0], _sorted_maps(value[1])) if isinstance(value, tuple) else value


def _without_unasked(expected: Any, found: Any) -> Any:
    """A column that nothing asked for is not there: always absent, or empty in all messages."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return {key: _without_unasked(expected[key], found[key]) for key in expected if key in found}
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [_without_unasked(one, two) for one, two in zip(expected, found, strict=True)]
    if isinstance(expected, tuple) and isinstance(found, tuple):
        return expected[0], _without_unasked(expected[1], found[1])
    return expected


def held_to(file: Any, messages: list[Any], found: Decoded) -> None:
    assert not found.rejects.detail
    rows = rows_of(found)
    if found.rows.column_names:
        assert rows == [_without_unasked(protos.row(each), row) for each, row in zip(messages, rows, strict=True)]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_messages_of_random_schemas(seed):
    pick = random.Random(seed)
    file = protos.schema(pick)
    kind = protos.factory(file)
    messages = [protos.fill(kind(), pick) for _ in range(pick.randrange(1, 30))]
    held_to(file, messages, decode(file, [each.SerializeToString() for each in messages]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_messages_in_pieces_are_merged(seed):
    pick = random.Random(seed)
    file = protos.schema(pick)
    kind = protos.factory(file)
    values = [b"".join(protos.fill(kind(), pick, 3).SerializeToString() for _ in range(3)) for _ in range(10)]
    held_to(file, [kind.FromString(each) for each in values], decode(file, values))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_one_by_one_and_all_at_once_are_the_same(seed):
    pick = random.Random(seed)
    file = protos.schema(pick)
    kind = protos.factory(file)
    values = [_changed(protos.fill(kind(), pick).SerializeToString(), pick) for _ in range(20)]
    column = pa.array(values, pa.binary())
    payload = payload_of(file, column)
    together = decoder(file, payload).decode(column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_SMALL_ROUNDS", 0)
        patch.setattr(wire, "_FEW", 10**9)
        alone = decoder(file, payload).decode(column)
    assert repr(alone.rows.to_pylist()) == repr(together.rows.to_pylist())  # a changed byte can make a NaN
    assert alone.rejects == together.rejects
    assert alone.ignored == together.ignored


def _changed(raw: bytes, pick: random.Random) -> bytes:
    made = bytearray(raw)
    for _ in range(pick.randrange(3)):
        if made:
            made[pick.randrange(len(made))] = pick.randrange(256)
    return bytes(made[: pick.randrange(len(made) + 1)]) if pick.random() < 0.2 else bytes(made)


STRICTER = {Reason.MALFORMED, Reason.OVERFLOW, Reason.ENCODING, Reason.TIMESTAMP, Reason.MISSING}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_taken_google_takes_and_reads_alike(seed):
    pick = random.Random(seed)
    file = protos.schema(pick, closed=False)  # Google drops what a closed enum does not know
    kind = protos.factory(file)
    good = [protos.fill(kind(), pick).SerializeToString() for _ in range(5)]
    values = [*good, *(_changed(pick.choice(good), pick) for _ in range(25))]
    found = decode(file, values, "reject")  # it also drops entries of maps in which there is an unknown field
    assert set(found.rejects.reason) <= STRICTER | {Reason.NEW_FIELD}
    for position, row in zip(found.index.to_pylist(), rows_of(found), strict=True):
        try:
            theirs = kind.FromString(values[position])
        except DecodeError:
            pytest.fail(f"{values[position]!r} is no message, and was taken")
        assert repr(row) == repr(_without_unasked(protos.row(theirs), row))


# ---- what the values mean ----

SHOP = """
syntax = "proto3";
package shop;
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";

enum State { NEW = 0; PAID = 1; }
message Order {
  int64 id = 1;
  optional int32 size = 2;
  State state = 3;
  google.protobuf.Timestamp at = 4;
  google.protobuf.Duration took = 5;
  google.protobuf.Int64Value count = 6;
  google.protobuf.StringValue note = 7;
  google.protobuf.Struct more = 8;
  google.protobuf.Value any_value = 9;
  google.protobuf.ListValue list = 10;
  google.protobuf.Any any = 11;
  google.protobuf.Empty nothing = 12;
  repeated google.protobuf.Timestamp times = 13;
  map<string, google.protobuf.Duration> spans = 14;
  oneof pay { string card = 15; Cash cash = 16; }
  message Cash { int64 cents = 1; repeated State states = 2; google.protobuf.Struct notes = 3; }
}
"""


@pytest.fixture(scope="module")
def shop() -> Schema:
    return linked([parsed(SHOP, "shop.proto")])


def order(shop: Schema, **values: Any) -> Any:
    kind = message_factory.GetMessageClass(shop.pool.FindMessageTypeByName("shop.Order"))
    return kind(**values)


class Shop:
    def __init__(self, shop: Schema) -> None:
        self.shop = shop

    def decoder(self, payload: pa.Schema, new_field: NewField = "ignore", **options: Any) -> ProtobufDecoder:
        given = OPTIONS.model_copy(update=options)
        return ProtobufDecoder(Given(self.shop, "shop.Order"), payload, new_field, DecodeLimits(), given)

    def learned(self, values: pa.BinaryArray, **options: Any) -> pa.Schema:
        found = self.decoder(pa.schema([]), "evolve", **options).decode(values)
        return evolve(pa.schema([]), found.unknown or {})

    def decode(self, *values: bytes, new_field: NewField = "ignore", **options: Any) -> Decoded:
        column = pa.array(values, pa.binary())
        return self.decoder(self.learned(column, **options), new_field, **options).decode(column)


@pytest.fixture
def at(shop: Schema) -> Shop:
    return Shop(shop)


def test_well_known_types(shop, at):
    made = order(shop, id=5, state=1, card="c")
    made.at.FromJsonString("2024-05-01T12:00:00.123456789Z")
    made.took.FromJsonString("-3.000000001s")
    made.count.value = 0
    made.note.value = "n"
    made.more.update({"a": [1, None, {"b": "\u00e9"}], "c": 1.5, "d": True})
    made.any_value.number_value = 2**60
    made.list.extend([1, "x"])
    made.any.Pack(order(shop, id=1))
    made.nothing.SetInParent()
    made.times.add().FromJsonString("1969-12-31T23:59:59.999999999Z")
    made.spans["s"].FromJsonString("315576000000s")
    found = at.decode(made.SerializeToString(), order(shop).SerializeToString())
    assert not found.rejects.detail
    full, empty = found.rows.to_pylist()
    assert full["id"] == 5
    assert full["state"] == "PAID"
    assert full["at"].isoformat() == "2024-05-01T12:00:00.123456+00:00"
    assert full["took"] == Decimal("-3.000000001")
    assert (full["count"], full["note"]) == (0, "n")
    assert json.loads(full["more"]) == {"a": [1, None, {"b": "é"}], "c": 1.5, "d": True}
    assert full["any_value"] == "1.152921504606847e+18"
    assert full["list"] == '[1,"x"]'
    assert full["any"] == {"type_url": "type.googleapis.com/shop.Order", "value": b"\x08\x01"}
    assert full["nothing"] == "{}"
    assert full["times"][0].isoformat() == "1969-12-31T23:59:59.999999+00:00"
    assert full["spans"] == [("s", Decimal(315576000000))]
    assert full["card"] == "c"
    assert empty == {
        **dict.fromkeys(full),
        **{"id": 0, "state": "NEW", "times": [], "spans": []},
    }
    assert is_json_text(found.rows.schema.field("more"))


def test_a_message_as_text_holds_the_json_within(shop, at):
    made = order(shop, id=5)
    made.cash.states.extend([0, 1, 9])
    made.more["a"] = 1
    payload = pa.schema([json_field("cash"), pa.field("more", pa.string())])
    found = at.decoder(payload).decode(pa.array([made.SerializeToString()], pa.binary()))
    assert found.rows.to_pylist() == [
        {"cash": '{"cents":0,"states":["NEW","PAID","9"],"notes":null}', "more": '{"a":1}'}
    ]
    assert found.ignored == {"id": 1}


def test_an_enum_as_number_where_the_column_is_one(shop, at):
    column = pa.array([order(shop, state=number).SerializeToString() for number in (0, 1, -5)], pa.binary())
    found = at.decoder(pa.schema([("state", pa.int32())])).decode(column)
    assert found.rows["state"].to_pylist() == [0, 1, -5]


@pytest.mark.parametrize(
    ("field", "raw", "reason"),
    [
        ("at", b"\x08\x80\x92\xb8\xc3\x98\xfe\xff\xff\xff\x01", None),  # the year 1
        ("at", b"\x08\xff\x91\xb8\xc3\x98\xfe\xff\xff\xff\x01", Reason.TIMESTAMP),
        ("at", b"\x10\x80\x94\xeb\xdc\x03", Reason.TIMESTAMP),  # a billion nanoseconds
        ("took", b"\x08\x01\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Reason.TIMESTAMP),  # 1 s and -1 ns
        ("more", b"\x0a\x05\x0a\x01\xff\x12\x00", Reason.ENCODING),
        ("more", b"\x0a\x02\x18\x01", Reason.MALFORMED),
        ("any_value", b"\x11" + struct.pack("<d", float("nan")), Reason.TYPE),
        ("any_value", b"\x12\x01\x00", Reason.MALFORMED),
        ("note", b"\x0a\x01\x80", Reason.ENCODING),
        ("count", b"\x0a\x00", Reason.MALFORMED),
        ("any", b"\x0a\x01", Reason.MALFORMED),
    ],
)
def test_what_well_known_types_refuse(shop, at, field, raw, reason):
    number = next(each.number for each in shop.message("shop.Order").fields if each.name == field)
    found = at.decode(bytes([number << 3 | 2, len(raw)]) + raw)
    assert found.rejects.reason == ([reason] if reason else []), found.rejects.detail


def test_a_value_nested_too_deeply(shop, at):
    raw = b""
    for _ in range(200):
        raw = _field(6, _field(1, raw))  # a list in a list
    found = at.decode(_field(9, raw))
    assert found.rejects.reason == [Reason.TOO_DEEP]


def _field(number: int, raw: bytes) -> bytes:
    size = bytes([len(raw)]) if len(raw) < 128 else bytes([len(raw) & 127 | 128, len(raw) >> 7])
    return bytes([number << 3 | 2]) + size + raw


def test_the_last_member_of_a_oneof_counts(at):
    card, cash = _field(15, b"c"), b"\x82\x01\x02\x08\x07"
    rows = at.decode(card + cash, cash + card, cash + card + cash, card, cash + cash).rows.to_pylist()
    assert [(row["card"], (row["cash"] or {}).get("cents")) for row in rows] == [
        (None, 7),
        ("c", None),
        (None, 7),
        ("c", None),
        (None, 7),
    ]


# ---- fields nobody knows ----

STRAY = b"\xa0\x06\x05"  # field 100, a varint
INSIDE = b"\x82\x01\x03\xa0\x06\x05"  # the same in cash


def test_unknown_fields_are_ignored_and_counted(at):
    found = at.decode(b"\x08\x01" + STRAY, STRAY + STRAY, INSIDE)
    assert not found.rejects.detail
    assert found.ignored == {"#100": 2, "cash.#100": 1}


def test_unknown_fields_are_dead_letters_under_a_strict_contract(at):
    found = at.decode(b"\x08\x01" + STRAY, b"\x08\x02", INSIDE, new_field="reject")
    assert (found.rejects.index, set(found.rejects.reason)) == ([0, 2], {Reason.NEW_FIELD})
    assert found.rejects.detail[1] == "cash.#100: the schema does not have this field"
    with pytest.raises(ContractViolation):
        at.decode(STRAY, new_field="stop")


def test_unknown_fields_are_kept_by_option(at):
    group = b"\xa3\x06\x08\x01\xa4\x06"
    long = b"\xa2\x06\x02xy"
    fixed = b"\xa1\x0612345678" + b"\xa5\x061234"
    values = [b"\x08\x01" + STRAY + long, b"\x08\x02", group + b"\x08\x03" + fixed, INSIDE]
    found = at.decode(*values, keep_unknown_fields=True)
    assert found.rows["_unknown"].to_pylist() == [STRAY + long, None, group + fixed, INSIDE]
    assert not found.ignored


def test_unknown_fields_are_rescued(at):
    values = pa.array([b"\x08\x01" + STRAY, b"\x08\x02", INSIDE], pa.binary())
    payload = pa.schema([("id", pa.int64()), rescue_field("field")])
    found = at.decoder(payload, "rescue").decode(values)
    texts = [json.loads(text)["_unknown"] if text else None for text in found.rows["_rescued"].to_pylist()]
    assert [text and b64decode(text) for text in texts] == [STRAY, None, INSIDE]
    assert not found.ignored


def test_a_known_field_that_no_column_wants(shop, at):
    values = pa.array([order(shop, id=1, size=0).SerializeToString(), order(shop).SerializeToString()], pa.binary())
    payload = pa.schema([("state", pa.string())])
    assert at.decoder(payload).decode(values).ignored == {"id": 1, "size": 1}
    found = at.decoder(payload, "reject").decode(values)
    assert (found.rejects.index, found.rejects.reason) == ([0], [Reason.NEW_FIELD])


# ---- peek ----


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *[("id", "7"), ("/id", "7"), ("cash.cents", "9"), ("/cash/cents", "9"), ("state", "PAID"), ("card", None)],
        *[
            ("cash", None),
            ("cash.states", None),
            ("nowhere", None),
            ("id.x", None),
            ("note", "n"),
            ("note.value", None),
        ],
    ],
)
def test_peek(shop, at, path, expected):
    made = order(shop, id=7, state=1)
    made.cash.cents = 9
    made.note.value = "n"
    texts, _ = at.decoder(pa.schema([])).peek(pa.array([b"\x08", made.SerializeToString()], pa.binary()), path)
    assert texts.to_pylist() == [None, expected]


# ---- shapes of the wire ----


def test_numbers_beyond_their_kind_are_not_cut(at):
    found = at.decode(
        b"\x10\x80\x80\x80\x80\x08", b"\x10\x80\x80\x80\x80\xf8\xff\xff\xff\xff\x01", b"\x10\xff\xff\xff\xff\x0f"
    )
    assert found.rejects.index == [0, 2]
    assert set(found.rejects.reason) == {Reason.OVERFLOW}
    assert found.rows["size"].to_pylist() == [-(2**31)]


def test_long_runs_of_unpacked_elements():
    file = parsed(
        'syntax = "proto2"; package t; message M { repeated int32 n = 1; optional string s = 2; }', "t.proto"
    ).descriptor
    values = [b"\x08\x05" * 3000 + b"\x12\x01x", *[b"\x08\x01"] * 500, b"\x0a\x03\x01\x02\x03\x08\x04"]
    found = decode(file, values)
    assert [len(row) for row in found.rows["n"].to_pylist()] == [3000, *[1] * 500, 4]
    assert found.rows["n"][501].as_py() == [1, 2, 3, 4]
    assert found.rows["s"][0].as_py() == "x"


NESTED = """
syntax = "proto3";
package t;
import "google/protobuf/timestamp.proto";
message M {
  int64 id = 1;
  message To { string zip = 1; Geo geo = 2; google.protobuf.Timestamp at = 3; }
  message Geo { double lat = 1; }
  To to = 2;
  repeated Geo stops = 3;
  map<string, Geo> named = 4;
}
"""


def test_nested_messages_are_flattened():
    schema = linked([parsed(NESTED, "m.proto")])
    kind = message_factory.GetMessageClass(schema.pool.FindMessageTypeByName("t.M"))
    whole = kind(id=1, to={"zip": "0815", "geo": {"lat": 1.5}}, stops=[{"lat": 2.5}])
    values = pa.array([whole.SerializeToString(), kind(id=2).SerializeToString()], pa.binary())
    options = OPTIONS.model_copy(update={"flatten": True})
    given, limits = Given(schema), DecodeLimits()
    unknown = ProtobufDecoder(given, pa.schema([]), "evolve", limits, options).decode(values).unknown
    payload = evolve(pa.schema([]), unknown or {})
    assert sorted(payload.names) == ["id", "named", "stops", "to_at", "to_geo_lat", "to_zip"]
    rows = ProtobufDecoder(given, payload, "reject", limits, options).decode(values).rows.to_pylist()
    first, second = ({**row, "named": dict(row["named"])} for row in rows)
    nested = {"to_zip": "0815", "to_geo_lat": 1.5, "to_at": None}
    assert first == {"id": 1, **nested, "stops": [{"lat": 2.5}], "named": {}}
    assert second == {"id": 2, **dict.fromkeys(nested), "stops": [], "named": {}}


def test_names_that_are_equal_when_flattened_are_dead_letters():
    text = """
    syntax = "proto3";
    package t;
    message M { message To { string zip = 1; } To to = 1; string to_zip = 2; }
    """
    schema = linked([parsed(text, "m.proto")])
    options = OPTIONS.model_copy(update={"flatten": True})
    asked = ProtobufDecoder(Given(schema), pa.schema([("to_zip", pa.string())]), "ignore", DecodeLimits(), options)
    found = asked.decode(pa.array([b"\x12\x01x"], pa.binary()))
    assert found.rejects.reason == [Reason.UNKNOWN_SCHEMA]
    assert found.rejects.detail == ["two fields of t.M have the name 'to_zip' with flatten"]


def test_cut_at_every_byte(shop, at):
    made = order(shop, id=300, card="card", size=-1)
    made.at.FromJsonString("2024-05-01T12:00:00Z")
    whole = made.SerializeToString()
    ends = {0}
    for tag, begin, word in wire.fields(whole + bytes(24), 0, len(whole), 64):
        ends.add(begin + (word if tag & 7 == wire.LENGTH else len(_varint(word))))
    found = at.decode(*[whole[:end] for end in range(len(whole) + 1)])
    assert set(found.index.to_pylist()) == ends  # between two fields the wire does not show it
    assert set(found.rejects.reason) == {Reason.MALFORMED}


def _varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made, value = made + b"\x80", value >> 7
    return made + b"\x00"


def test_proto2_keeps_absent_apart_from_default():
    text = 'syntax = "proto2"; package t; message M { required int32 r = 1; optional int32 o = 2 [default = 5]; }'
    found = decode(parsed(text, "t.proto").descriptor, [b"\x08\x00", b"\x08\x01\x10\x00", b"\x10\x01", b""])
    assert found.rows.to_pylist() == [{"r": 0, "o": None}, {"r": 1, "o": 0}]
    assert found.rejects.reason == [Reason.MISSING] * 2


# ---- before there are records ----


def test_what_a_schema_would_do(at):
    schema = Registered(1, "PROTOBUF", SHOP)
    kind, found = at.decoder(pa.schema([]), "evolve").predict(schema)
    assert kind == "shop.Order"
    assert found.unknown is not None
    assert set(found.unknown["fields"]) == {field.name for field in at.shop.message("shop.Order").fields}
    _, found = at.decoder(pa.schema([("id", pa.string()), ("size", pa.int64())])).predict(schema)
    assert found.rejects.reason == [Reason.TYPE]
    for bad in (Registered(1, "AVRO", SHOP), Registered(1, "PROTOBUF", "message A { A a = 1; }")):
        with pytest.raises(UnknownSchema):
            at.decoder(pa.schema([])).predict(bad)


def test_whole_messages_for_expressions(shop, at):
    payload = pa.schema([pa.field("id", pa.int64()), PayloadField("m", pa.string(), message=MessageScope()).to_arrow()])
    values = [order(shop, id=7, card="x").SerializeToString(), b"\x08"]
    found = at.decoder(payload).decode(pa.array(values, pa.binary()))
    text = json.loads(found.rows["m"][0].as_py())
    assert (text["id"], text["card"], text["state"]) == (7, "x", "NEW")
    assert at.decoder(payload).decode(pa.array([None], pa.binary())).rows.column_names == found.rows.column_names
