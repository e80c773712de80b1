"""MessagePack by the id of its schema: where schemas come from, and what is asked of values beyond the contract."""

from __future__ import annotations

import json
import random
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.base import Decoded, NewField
from headrace.decode.decoders import decoder
from headrace.decode.inference import evolve
from headrace.decode.msgpack import columns as msgpack_wire
from headrace.decode.msgpack.schema import MsgpackSchema, in_path
from headrace.decode.payload_field import rescue_field
from headrace.errors import ContractViolation, RegistryUnreachable, UsageError
from headrace.reasons import Reason
from headrace.spec import Decode
from headrace.validate.load import examine_text
from services import schemas
from services.plans import envelopes, plan_of

ORDER = {
    "id": 7,
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "bigint"}, {"name": "tags", "type": "array<string>"}],
}
PING = {"id": 0xDEADBEEF, "name": "shop.Ping", "fields": [{"name": "at", "type": "timestamp"}]}


def framed(value: Any, id: int = 7) -> bytes:
    return struct.pack(">I", id) + msgpack.packb(value)


def made(options: dict[str, Any], payload: pa.Schema | None = None, new_field: NewField = "ignore") -> Any:
    chosen = Decode.model_validate({"msgpack": options}).options
    return decoder("msgpack", payload if payload is not None else pa.schema([]), new_field=new_field, options=chosen)


def decode(options: dict[str, Any], *values: bytes, new_field: NewField = "ignore") -> Decoded:
    column = pa.array(values, pa.binary())
    unknown = made(options, new_field="evolve").decode(column).unknown
    found: Decoded = made(options, evolve(pa.schema([]), unknown or {}), new_field).decode(column)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "one.json").write_text(json.dumps(ORDER))
    (tmp_path / "two.json").write_text(json.dumps([PING]))
    return {"schemas": str(tmp_path)}


def test_two_schemas_in_a_folder(folder):
    values = [framed({"id": 1, "tags": None}), framed([msgpack.Timestamp(5, 1)], 0xDEADBEEF), framed([2, ["x"]])]
    found = decode(folder, *values)
    at = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert found.rows.to_pylist() == [
        {"id": 1, "tags": None, "at": None},
        {"id": None, "tags": None, "at": at},
        {"id": 2, "tags": ["x"], "at": None},
    ]
    types, rejects = made(folder).types(pa.array([*values, framed([1], 3), None], pa.binary()))
    assert types.to_pylist() == ["shop.Order", "shop.Ping", "shop.Order", None, None]
    assert rejects.reason == [Reason.UNKNOWN_SCHEMA, Reason.TOMBSTONE]


def test_dead_letters_name_the_schema(folder):
    """Ids have 32 bits without a sign, so the column of dead letters is a long."""
    values = [framed({"id": "x"}), framed(["x"], 0xDEADBEEF), framed({}, 2**32 - 1), b"\0\0\0", b"\0\0\0\x09"]
    found = plan_of(decode={"msgpack": folder}).apply(envelopes([framed({"id": 1}), *values, None]))
    told = [(row["reason"], row["schema_id"]) for row in found.dead_letters.to_pylist()]
    assert told == [
        ("type", 7),
        ("type", 0xDEADBEEF),
        ("unknown_schema", 2**32 - 1),
        ("framing", None),
        ("framing", 9),
        ("tombstone", None),
    ]


def test_an_address():
    for item in (ORDER, PING):
        schemas.answer(f"/layouts/{item['id']}", item)
    schemas.answer("/layouts/9", {"name": "x", "fields": "none"})
    options = {"registry": f"{schemas.registry_url()}/layouts"}
    found = decode(options, framed({"id": 1}), framed({"id": 1}, 8), framed({"id": 1}, 9))
    assert found.rows["id"].to_pylist() == [1]
    assert found.rejects.reason == [Reason.UNKNOWN_SCHEMA] * 2
    assert "schema requires `name` and `fields`" in found.rejects.detail[1]
    with pytest.raises(RegistryUnreachable):
        decode({"registry": "http://127.0.0.1:9"}, framed({"id": 1}))


def test_fields_the_schema_does_not_have(folder):
    values = [framed({"id": 1, "x": 1}), framed({"id": 2})]
    assert decode(folder, *values).ignored == {"x": 1}
    strict = decode(folder, *values, new_field="reject")
    assert (strict.rejects.index, strict.rejects.reason) == ([0], [Reason.NEW_FIELD])
    with pytest.raises(ContractViolation):
        decode(folder, *values, new_field="stop")


NESTED = {
    "id": 9,
    "name": "shop.Cart",
    "fields": [
        {"name": "id", "type": "bigint"},
        {"name": "to", "type": "struct<city: string>"},
        {"name": "items", "type": "array<struct<sku: string>>"},
    ],
}
UNNAMED = [
    ({"x": None, "y": [1, b"ab"], "z": "t"}, {"x": None, "y": [1, "YWI="], "z": "t"}),
    ({"to": {"city": "B", "zip": 5}}, {"to.zip": 5}),
    ({"items": [{"sku": "a"}, {"sku": "b", "n": 1}]}, {"items": [{"sku": "a"}, {"sku": "b", "n": 1}]}),
    ({}, None),
]


@pytest.mark.parametrize("few", [1, 10**9])
def test_fields_the_schema_does_not_have_are_rescued_at_every_depth(tmp_path, monkeypatch, few):
    monkeypatch.setattr(msgpack_wire, "FEW", few)
    (tmp_path / "s.json").write_text(json.dumps(NESTED))
    values = pa.array([framed({"id": 1, **more}, 9) for more, _ in UNNAMED], pa.binary())
    options = {"schemas": str(tmp_path)}
    payload = evolve(pa.schema([]), made(options, new_field="evolve").decode(values).unknown or {})
    rescuing = payload.append(rescue_field("field"))
    found = made(options, rescuing, "rescue").decode(values)
    texts = [text and json.loads(text) for text in found.rows["_rescued"].to_pylist()]
    assert texts == [text for _, text in UNNAMED]
    assert not found.ignored
    strict = made(options, payload, "reject").decode(values)
    assert (strict.rejects.index, set(strict.rejects.reason)) == ([0, 1, 2], {Reason.NEW_FIELD})
    assert made(options, payload).decode(values).ignored == dict.fromkeys(["x", "y", "z", "to.zip", "items.n"], 1)


def test_a_rescued_value_that_json_cannot_hold_is_a_dead_letter(folder):
    payload = pa.schema([("id", pa.int64()), rescue_field("field")])
    values = pa.array([framed({"id": 1, "x": float("nan")}), framed({"id": 2})], pa.binary())
    found = made(folder, payload, "rescue").decode(values)
    assert (found.rejects.index, found.rejects.reason) == ([0], [Reason.NEW_FIELD])


def test_names_that_producers_make_up_are_few_and_short(folder):
    values = [framed({"id": 1, f"key-{at}": 1, "x" * 5_000: 1}) for at in range(500)]
    ignored = decode(folder, *values).ignored
    assert sum(ignored.values()) == 1_000
    assert (len(ignored), max(map(len, ignored))) == (201, 201)
    assert ignored["x" * 200 + "…"] == 500


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is not JSON"),
        ("[5]", "an id of 0"),
        ('{"id": -1, "name": "x", "fields": []}', "an id of 0"),
        ('{"id": 1, "name": "x", "fields": []}', "schema requires `name` and `fields`"),
        ('{"id": 1, "fields": [{"name": "a", "type": "int"}]}', "schema requires `name`"),
        ('{"id": 1, "name": "x", "fields": [{"name": "a", "type": "date"}]}', "is not a MessagePack type"),
        ('{"id": 1, "name": "x", "fields": [{"name": "a", "type": "array<decimal(5,2)>"}]}', "not a MessagePack type"),
        ('{"id": 1, "name": "x", "fields": [{"name": "a", "type": "map<int, int>"}]}', "a: "),
        ('{"id": 1, "name": "x", "fields": [{"name": "a", "type": "wat"}]}', "Invalid type: 'wat'"),
        ('{"id": 1, "name": "x", "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}', "same name"),
        (json.dumps([ORDER, ORDER]), "a second schema has the id 7"),
    ],
)
def test_what_is_no_schema(tmp_path, content, why):
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(UsageError, match=why):
        decode({"schemas": str(tmp_path / "s.json")}, framed({"id": 1}))
    text = """
pipeline: p
source: {kafka: {brokers: "localhost:9092", topics: [t]}}
decode: {msgpack: {schemas: s.json}}
table: {path: ./lake/t}
"""
    _, findings = examine_text(text, tmp_path)
    assert [why in finding.message for finding in findings] == [True]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_values_of_random_schemas(tmp_path_factory, seed):
    pick = random.Random(seed)
    fields = {f"f{nth}": _type(pick, 2) for nth in range(pick.randrange(1, 6))}
    layout = {"id": seed % 2**32, "name": "t", "fields": [{"name": k, "type": v} for k, v in fields.items()]}
    file = tmp_path_factory.mktemp("schemas") / "s.json"
    file.write_text(json.dumps(layout))
    rows = [{name: _value(kind, pick) for name, kind in fields.items()} for _ in range(pick.randrange(1, 20))]
    ordered = pick.random() < 0.5
    values = [framed(list(row.values()) if ordered else row, layout["id"]) for row in rows]
    found = decode({"schemas": str(file)}, *values)
    assert not found.rejects.detail
    assert found.rows.to_pylist() == [{name: _expected(item) for name, item in row.items()} for row in rows]


def _type(pick: random.Random, depth: int) -> str:
    shape = pick.choice(["bigint", "double", "string", "binary", "boolean", "timestamp", "array", "map", "struct"])
    if shape in ("array", "map", "struct") and depth == 0:
        return "string"
    if shape == "array":
        return f"array<{_type(pick, depth - 1)}>"
    if shape == "map":
        return f"map<string,{_type(pick, depth - 1)}>"
    if shape == "struct":
        return f"struct<a: {_type(pick, depth - 1)}, b: {_type(pick, depth - 1)}>"
    return shape


def _value(kind: str, pick: random.Random) -> Any:
    if pick.random() < 0.2:
        return None
    if kind.startswith("array"):
        return [_value(kind[6:-1], pick) for _ in range(pick.randrange(4))]
    if kind.startswith("map"):
        return {f"k{nth}": _value(kind[11:-1], pick) for nth in range(pick.randrange(4))}
    if kind.startswith("struct"):
        first, second = _halves(kind[7:-1])
        return {"a": _value(first, pick), "b": _value(second, pick)}
    return {
        "bigint": pick.choice([0, -1, 2**63 - 1, -(2**63), pick.randrange(10**6)]),
        "double": pick.choice([0.5, -1e300]),
        "string": pick.choice(["", "é\0"]),
        "binary": pick.choice([b"", b"\xff"]),
        "boolean": pick.random() < 0.5,
        "timestamp": msgpack.Timestamp(pick.randrange(-(10**9), 10**9), 5000),
    }[kind]


def _halves(inner: str) -> tuple[str, str]:
    level = 0
    for at, sign in enumerate(inner):
        level += {"<": 1, ">": -1}.get(sign, 0)
        if sign == "," and level == 0:
            return inner[3:at], inner[at + 1 :].strip()[3:]
    raise AssertionError(inner)


def _expected(value: Any) -> Any:
    if isinstance(value, msgpack.Timestamp):
        return value.to_datetime().astimezone(UTC)
    if isinstance(value, list):
        return [_expected(item) for item in value]
    if isinstance(value, dict):
        made = {key: _expected(item) for key, item in value.items()}
        return made if set(made) == {"a", "b"} else list(made.items())
    return value


WHOLE = [-(2**63), -(2**31) - 1, -(2**15), -129, -33, -1, 0, 1, 127, 128, 255, 256, 65_536, 2**32, 2**63 - 1, 2**64 - 1]
TIMES = [(0, 0), (1, 999_999_999), (2**32, 0), (2**34, 1), (-1, 5), (253_402_300_799, 999_999_999), (2**40, 0)]


def _odd(pick: random.Random) -> Any:
    """Any value: of another type than its field's, at the limits, or of a length that is written otherwise."""
    return pick.choice(
        [
            *(None, True, 1.5, float("inf"), b"\xff" * pick.choice([0, 31, 32, 300]), pick.choice(WHOLE)),
            *("é" * pick.choice([0, 15, 16, 130, 40_000]), ["a"] * pick.choice([0, 15, 16, 70]), {"a": 1}, {1: 2}),
            msgpack.Timestamp(*pick.choice(TIMES)),
        ]
    )


def _some_record(fields: dict[str, str], pick: random.Random) -> bytes:
    row = {name: _odd(pick) if pick.random() < 0.1 else _value(kind, pick) for name, kind in fields.items()}
    names = pick.sample(list(row), pick.randrange(len(row) + 1)) if pick.random() < 0.3 else list(row)
    pairs: list[tuple[Any, Any]] = [(name, row[name]) for name in names]
    if pick.random() < 0.2:
        pairs.insert(pick.randrange(len(pairs) + 1), (pick.choice(["x", "longer than eight", *names, 5]), _odd(pick)))
    if pick.random() < 0.3:
        return msgpack.packb([item for _, item in pairs])
    packer = msgpack.Packer()
    raw = packer.pack_map_header(len(pairs)) + b"".join(packer.pack(part) for pair in pairs for part in pair)
    if pick.random() < 0.1:
        raw = bytearray(raw)
        raw[pick.randrange(len(raw))] = pick.randrange(256)
    return bytes(raw) if pick.random() < 0.95 else bytes(raw[: pick.randrange(len(raw) + 1)])


@pytest.mark.parametrize("new_field", ["ignore", "reject", "evolve"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_by_the_column_and_one_by_one_are_the_same(tmp_path_factory, new_field, seed):
    pick = random.Random(seed)
    kinds = ["tinyint", "int", "float", "json"]
    fields = {f"field {nth}": _type(pick, 2) if pick.random() < 0.8 else pick.choice(kinds) for nth in range(5)}
    plain = {name: "string" if kind in kinds else kind for name, kind in fields.items()}
    file = tmp_path_factory.mktemp("schemas") / "s.json"
    layout = {"id": 7, "name": "t", "fields": [{"name": k, "type": v} for k, v in fields.items()]}
    file.write_text(json.dumps(layout))
    values = pa.array([struct.pack(">I", 7) + _some_record(plain, pick) for _ in range(60)], pa.binary())
    payload = evolve(pa.schema([]), made({"schemas": str(file)}, new_field="evolve").decode(values).unknown or {})
    found = []
    for few in (1, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(msgpack_wire, "FEW", few)
            decode_all = made({"schemas": str(file)}, payload if new_field != "evolve" else None, new_field)
            found.append(decode_all.decode(values))
            peeked = decode_all.peek(values, "field 0")
        found.append(peeked)
    (fast, fast_peek, slow, slow_peek) = found
    assert fast.rejects == slow.rejects
    assert fast.rows.schema == slow.rows.schema
    assert repr(fast.rows.to_pylist()) == repr(slow.rows.to_pylist())  # a number may be none
    assert fast.index.equals(slow.index)
    assert fast.ignored == slow.ignored
    assert fast.unknown == slow.unknown
    assert fast_peek[0].equals(slow_peek[0])
    assert fast_peek[1] == slow_peek[1]


def test_ordinary_values_are_read_by_the_column(folder):
    wire = msgpack_wire.MsgpackColumns(
        pa.array([framed({"id": n, "tags": ["é"] * (n % 3)}) for n in range(99)]), 4, 10_000
    )
    [(_, schema)] = [(id, form) for id, form in in_path(folder["schemas"]).items() if id == 7]
    id, tags = wire.read(schema)
    assert wire.good.all()
    assert id.to_pylist() == list(range(99))
    assert tags.to_pylist() == [["é"] * (n % 3) for n in range(99)]


def test_keys_in_any_order_are_read_by_the_column():
    """Go's maps have another order in each record. A few records at the end may be left to the exact path."""
    pick, names = random.Random(1), [f"field {nth}" for nth in range(11)]
    schema = MsgpackSchema("t", tuple((name, pa.int64()) for name in names))
    rows = [{name: pick.randrange(1 << 40) for name in names} for _ in range(20_000)]
    shuffled = [framed(dict(pick.sample(list(row.items()), len(names)))) for row in rows]
    wire = msgpack_wire.MsgpackColumns(pa.array(shuffled), 4, 10_000)
    columns = wire.read(schema)
    assert wire.good.mean() > 0.95
    table = pa.Table.from_arrays(columns, names).filter(pa.array(wire.good))
    assert table.to_pylist() == [row for row, good in zip(rows, wire.good, strict=True) if good]


def test_keys_of_single_records_are_left_after_few_steps(monkeypatch):
    """Keys that no two records share must not cost a pass over all records each."""
    schema = MsgpackSchema("t", (("id", pa.int64()),))
    values = pa.array([framed({"id": nth, f"key {nth}": 1}) for nth in range(20_000)])
    steps = []
    same_key = msgpack_wire.MsgpackColumns._same_key
    monkeypatch.setattr(
        msgpack_wire.MsgpackColumns, "_same_key", lambda self, *given: steps.append(1) or same_key(self, *given)
    )
    wire = msgpack_wire.MsgpackColumns(values, 4, 10_000)
    wire.read(schema)
    assert not wire.good[100:].any()
    assert len(steps) < 100
