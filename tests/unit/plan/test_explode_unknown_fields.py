"""Explode with fields that the MessagePack or Protobuf schema does not have: the contract for new fields decides.

Fields of an element, or of a field that is kept, are new fields of the table; other fields of the record are not.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.decode.msgpack import columns as msgpack_wire
from headrace.errors import ContractViolation
from headrace.plan.plan import Plan
from services.plans import adds_up, envelopes, letters, plan_of, rows

PROTO = """
syntax = "proto3";
message Shop { string name = 1; }
message Item { string sku = 1; }
message Order { int64 id = 1; Shop shop = 2; repeated Item items = 3; string note = 4; }
"""
FIELDS = [
    {"name": "id", "type": "bigint"},
    {"name": "shop", "type": "struct<name: string>"},
    {"name": "items", "type": "array<struct<sku: string>>"},
    {"name": "note", "type": "string"},
]
COLUMNS = [
    {"name": "id", "type": "bigint"},
    {"name": "shop", "type": "struct<name: string>"},
    {"name": "sku", "type": "string"},
]
EXPLODE = {"column": "items", "keep": ["id", "shop"]}
UNKNOWN = b"\xa0\x06\x01"  # Protobuf field 100: varint 1


def in_msgpack(id: int, skus: list[tuple[str, bool]], shop: bool = False, beside: bool = False) -> bytes:
    """Encode an order; True: the unknown field `x` is there."""
    items = [{"sku": sku, **({"x": 1} if new else {})} for sku, new in skus]
    record = {"id": id, "shop": {"name": "s", **({"x": 1} if shop else {})}, "items": items}
    return struct.pack(">I", 9) + msgpack.packb({**record, **({"x": 1} if beside else {})})


def in_protobuf(id: int, skus: list[tuple[str, bool]], shop: bool = False, beside: bool = False) -> bytes:
    """Encode an order; True: the unknown field 100 is there."""
    items = [(3, b"\x0a" + bytes([len(sku)]) + sku.encode() + (UNKNOWN if new else b"")) for sku, new in skus]
    parts = [(2, b"\x0a\x01s" + (UNKNOWN if shop else b"")), *items]
    body = b"".join(bytes([number << 3 | 2, len(content)]) + content for number, content in parts)
    return b"\x08" + bytes([id]) + body + (UNKNOWN if beside else b"")


ENCODERS: dict[str, Callable[..., bytes]] = {"msgpack": in_msgpack, "protobuf": in_protobuf}
NAMES = {"msgpack": "x", "protobuf": "#100"}


@pytest.fixture(params=[1, 10**9], ids=["columns", "one by one"])
def _msgpack_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack_wire, "FEW", request.param)


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("schemas")
    (folder / "order.json").write_text(json.dumps({"id": 9, "name": "Order", "fields": FIELDS}))
    (folder / "order.proto").write_text(PROTO)
    return {
        "msgpack": {"schemas": str(folder / "order.json")},
        "protobuf": {"descriptor": str(folder / "order.proto"), "message": "Order"},
    }


def plan_with(schemas: dict[str, Any], name: str, new_field: str, **options: Any) -> Plan:
    table = {"columns": COLUMNS, "contract": {"new_field": new_field}, "source": False}
    return plan_of(decode={name: {**schemas[name], **options}}, explode=EXPLODE, table=table)


def orders(name: str) -> pa.Table:
    """Records: clean; unknown beside the list; in one element; in the kept struct."""
    encode = ENCODERS[name]
    return envelopes(
        [
            encode(0, [("a", False), ("b", False)]),
            encode(1, [("a", False), ("b", False)], beside=True),
            encode(2, [("a", False), ("b", True)], beside=True),
            encode(3, [("a", False)], shop=True),
        ]
    )


pytestmark = pytest.mark.usefixtures("_msgpack_reader")


@pytest.mark.parametrize("name", ENCODERS)
def test_ignored_fields_are_counted_and_those_beside_the_list_are_not(schemas, name):
    plan = plan_with(schemas, name, "ignore")
    for _ in range(2):
        applied = plan.apply(orders(name))
        assert [row["id"] for row in rows(applied)] == [0, 0, 1, 1, 2, 2, 3]
        x = NAMES[name]
        assert adds_up(applied).ignored == {f"/lake/web: items.{x}": 1, f"/lake/web: shop.{x}": 1}


@pytest.mark.parametrize("name", ENCODERS)
def test_records_with_unknown_fields_of_elements_are_rejected(schemas, name):
    plan = plan_with(schemas, name, "reject")
    for _ in range(2):
        applied = plan.apply(orders(name))
        assert [row["id"] for row in rows(applied)] == [0, 0, 1, 1]
        assert letters(applied) == [(2, "decode", "new_field"), (3, "decode", "new_field")]
        assert [text.partition(":")[0] for text in applied.dead_letters["detail"].to_pylist()] == [
            f"items.{NAMES[name]}",
            f"shop.{NAMES[name]}",
        ]
        adds_up(applied)


@pytest.mark.parametrize("name", ENCODERS)
def test_unknown_fields_are_rescued_or_their_records_are_dead_letters(schemas, name):
    """MessagePack: a field of a kept struct is rescued in all rows. Otherwise the record is a dead letter."""
    plan = plan_with(schemas, name, "rescue")
    for _ in range(2):
        applied = plan.apply(orders(name))
        rescued = [(row["id"], row["_rescued"]) for row in rows(applied)]
        clean = [(0, None), (0, None), (1, None), (1, None)]
        if name == "msgpack":
            assert rescued == [*clean, (3, '{"shop.x":1}')]
            assert letters(applied) == [(2, "decode", "new_field")]
        else:
            assert rescued == clean
            assert letters(applied) == [(2, "decode", "new_field"), (3, "decode", "new_field")]
        adds_up(applied)


@pytest.mark.parametrize("name", ENCODERS)
def test_the_pipeline_stops_at_unknown_fields_of_elements_only(schemas, name):
    plan = plan_with(schemas, name, "stop")
    assert [row["id"] for row in rows(plan.apply(orders(name).slice(0, 2)))] == [0, 0, 1, 1]
    for at, field in ((2, "items"), (3, "shop")):
        with pytest.raises(ContractViolation, match=f"{field}.{NAMES[name]}"):
            plan.apply(orders(name).slice(at, 1))


@pytest.mark.parametrize("new_field", ["reject", "rescue", "stop", "ignore"])
def test_unknown_fields_that_are_kept_do_not_hide_those_of_elements(schemas, new_field):
    """`keep_unknown_fields` stores the bytes of a record in a column that an exploded table does not have."""
    plan = plan_with(schemas, "protobuf", new_field, keep_unknown_fields=True)
    if new_field == "stop":
        assert len(rows(plan.apply(orders("protobuf").slice(0, 2)))) == 4
        with pytest.raises(ContractViolation, match="items"):
            plan.apply(orders("protobuf").slice(2, 1))
        return
    applied = plan.apply(orders("protobuf"))
    if new_field == "ignore":
        assert adds_up(applied).ignored == {"/lake/web: items.#100": 1, "/lake/web: shop.#100": 1}
    else:
        assert letters(applied) == [(2, "decode", "new_field"), (3, "decode", "new_field")]


@pytest.mark.parametrize("new_field", ["reject", "evolve"])
def test_unknown_fields_are_stored_with_the_rows_of_their_record(schemas, new_field):
    explode = {"column": "items", "keep": ["id", "_unknown"]}
    columns = [*COLUMNS[:1], {"name": "_unknown", "type": "binary"}, *COLUMNS[2:]]
    table = {"columns": columns, "contract": {"new_field": new_field}, "source": False}
    decode = {"protobuf": {**schemas["protobuf"], "keep_unknown_fields": True}}
    applied = plan_of(decode=decode, explode=explode, table=table).apply(orders("protobuf"))
    assert [row["id"] for row in rows(applied)] == [0, 0, 1, 1, 2, 2, 3]
    assert [row["_unknown"] for row in rows(applied)][:4] == [None, None, UNKNOWN, UNKNOWN]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(ENCODERS)),
    batch=st.lists(
        st.tuples(st.lists(st.booleans(), max_size=3), st.booleans(), st.booleans()), min_size=1, max_size=5
    ),
)
def test_a_record_is_rejected_for_its_own_fields_alone(schemas, name, batch):
    values = [
        ENCODERS[name](nth, [("a", new) for new in elements], shop, beside)
        for nth, (elements, shop, beside) in enumerate(batch)
    ]
    applied = plan_with(schemas, name, "reject").apply(envelopes(values))
    assert [at for at, _, _ in letters(applied)] == [
        nth for nth, (elements, shop, _) in enumerate(batch) if any(elements) or shop
    ]
    adds_up(applied)
