"""A day of a small table, as Debezium tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def event(op: str, before: Any, after: Any, at: int) -> dict[str, Any]:
    """One change, with the key of its record."""
    key = (after or before or {}).get("id")
    said = {"before": before, "after": after, "source": {"table": "orders", "lsn": at}, "op": op, "ts_ms": at}
    return {
        "key": json.dumps({"schema": {"type": "struct"}, "payload": {"id": key}}),
        "value": json.dumps({"schema": {"type": "struct"}, "payload": said}),
    }


def recorded() -> Iterator[dict[str, Any]]:
    """What Debezium sends for a small table's day: a snapshot, inserts, updates, a change of a key, deletes with their
    tombstones, and a row that comes back."""
    row = {number: {"id": number, "state": "new", "total": number * 10} for number in range(1, 9)}
    yield from (event("r", None, row[number], 100) for number in (1, 2, 3))
    yield from (event("c", None, row[number], 110 + number) for number in (4, 5, 6))
    yield event("u", row[1], {**row[1], "state": "paid"}, 120)
    yield event("d", row[2], None, 130)
    yield {"key": event("d", row[2], None, 130)["key"], "value": None}
    yield event("d", row[3], None, 140)  # a primary key is updated: Debezium deletes the old one and makes the new one
    yield {"key": event("d", row[3], None, 140)["key"], "value": None}
    yield event("c", None, {**row[3], "id": 30}, 140)
    yield event("u", row[4], {**row[4], "id": 40}, 150)  # others say it in one event
    yield event("c", None, {**row[2], "state": "again"}, 160)
    yield event("u", {**row[1], "state": "paid"}, {**row[1], "state": "sent"}, 170)


FINAL = {
    1: ("sent", 10),
    2: ("again", 20),
    5: ("new", 50),
    6: ("new", 60),
    30: ("new", 30),
    40: ("new", 40),
}
