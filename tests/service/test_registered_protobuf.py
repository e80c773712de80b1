"""Protobuf from a real broker, by a real schema registry, through Spark into Delta tables: a table per message."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from deltalake import DeltaTable
from google.protobuf import message_factory

from headrace.decode.protobuf.schema_files import in_texts
from services.pipelines import Shop
from services.registry import RegistryServer

GEO = 'syntax = "proto3";\npackage geo;\nmessage Point {\n  double x = 1;\n  double y = 2;\n}\n'
SHOP = """syntax = "proto3";
package shop;
import "geo/point.proto";
import "google/protobuf/timestamp.proto";
message Ping {
  int64 id = 1;
}
message Order {
  int64 id = 1;
  State state = 2;
  geo.Point to = 3;
  google.protobuf.Timestamp at = 4;
  repeated Line lines = 5;
  map<string, sint32> counts = 6;
  enum State {
    NEW = 0;
    PAID = 1;
  }
  message Line {
    string sku = 1;
    uint32 count = 2;
  }
}
"""
PING, ORDER, LINE = b"\0", b"\x02\x02", b"\x04\x02\x00"  # message indexes; the first is the short form of [0]


@pytest.fixture
def ids(registry: RegistryServer) -> tuple[int, int]:
    """The shop's schema, and a newer one with a field more."""
    registry.register("geo-point", GEO, "PROTOBUF")
    refers = [{"name": "geo/point.proto", "subject": "geo-point", "version": 1}]
    old = registry.register("shop-value", SHOP, "PROTOBUF", refers)
    newer = SHOP.replace("map<string, sint32> counts = 6;", "map<string, sint32> counts = 6;\n  string note = 7;")
    return old, registry.register("shop-value", newer, "PROTOBUF", refers)


def order(number: int, newer: bool) -> bytes:
    text = SHOP.replace("counts = 6;", "counts = 6; string note = 7;")
    pool = in_texts(text, {"geo/point.proto": GEO}, 64).pool
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(id=number, state=number % 2)
    made.to.x = number / 4
    made.at.seconds = 1_700_000_000 + number
    made.lines.add(sku=f"s{number}", count=number)
    made.counts["c"] = -number
    if newer:
        made.note = f"n{number}"
    return made.SerializeToString()


def framed(id: int, index: bytes, payload: bytes) -> bytes:
    return struct.pack(">bI", 0, id) + index + payload


def values(old: int, new: int) -> list[bytes | None]:
    return [
        *[framed(old, ORDER, order(number, False)) for number in range(40)],
        *[framed(old, PING, b"\x08\x05"), framed(old, PING, b""), framed(old, LINE, b"\x0a\x01s")],
        framed(new, ORDER, order(40, True)),
        framed(999_999, ORDER, order(1, False)),
        framed(old, ORDER, b"\x08"),
        framed(old, b"\x02\x10", b""),
        framed(old, ORDER, b"\x0a\x01x"),
        None,
    ]


def test_each_message_in_its_table(kafka, topic, registry, ids, tmp_path, spark):
    shop = Shop(kafka.bootstrap, topic, str(tmp_path / "lake"), tmp_path)
    shop.options = {
        "decode": {"protobuf": {"registry": registry.url}},
        "route": {"by": "type"},
        "table": {"path": f"{shop.lake}/{{type}}"},
        "transform": [],
    }
    sent = values(*ids)
    shop.send_values(sent[::2], 0)
    shop.run()
    shop.send_values(sent[1::2], 1)
    shop.run()

    orders = {row["id"]: row for row in rows(shop, "shop.Order")}
    assert sorted(orders) == list(range(41))
    first = orders[3]
    assert {**first, "at": first["at"].timestamp()} == {
        "id": 3,
        "state": "PAID",
        "to": {"x": 0.75, "y": 0.0},
        "at": 1_700_000_003.0,
        "lines": [{"sku": "s3", "count": 3}],
        "counts": [("c", -3)],
        "note": None,
    }
    assert orders[40]["note"] == "n40"
    assert sorted(row["id"] for row in rows(shop, "shop.Ping")) == [0, 5]
    assert rows(shop, "shop.Order.Line") == [{"sku": "s", "count": 0}]
    letters = DeltaTable(shop.spec.dead_letters_uri).to_pyarrow_table().to_pylist()
    assert sorted(((row["reason"], row["schema_id"]) for row in letters), key=str) == sorted(
        [
            ("unknown_schema", 999_999),
            ("malformed", ids[0]),
            ("framing", ids[0]),
            ("malformed", ids[0]),
            ("tombstone", None),
        ],
        key=str,
    )


def rows(shop: Shop, table: str) -> list[dict[str, Any]]:
    found = DeltaTable(f"{shop.lake}/{table}").to_pyarrow_table()
    return found.drop_columns([name for name in found.column_names if name.startswith("_")]).to_pylist()
