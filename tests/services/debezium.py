"""Two days of a small table as Debezium sends them: one recorded from a real connector, one written by hand."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_RECORDING = Path(__file__).parents[1] / "golden" / "debezium"
TABLE_TOPIC = "shop.public.orders"


def event(op: str, before: Any, after: Any, at: int) -> dict[str, Any]:
    """One change, with the key of its record."""
    key = (after or before or {}).get("id")
    said = {"before": before, "after": after, "source": {"table": "orders", "lsn": at}, "op": op, "ts_ms": at}
    return {
        "key": json.dumps({"schema": {"type": "struct"}, "payload": {"id": key}}),
        "value": json.dumps({"schema": {"type": "struct"}, "payload": said}),
    }


def written() -> Iterator[dict[str, Any]]:
    """A day written by hand: a snapshot, inserts, updates, a change of a key in both forms, deletes with their
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


WRITTEN_FINAL = {
    1: ("sent", 10),
    2: ("again", 20),
    5: ("new", 50),
    6: ("new", 60),
    30: ("new", 30),
    40: ("new", 40),
}


def recorded(file: str = "orders.jsonl", topic: str = TABLE_TOPIC) -> list[dict[str, Any]]:
    """What a real connector sent for `golden/debezium-maker/day.sql` to one topic; keys and values as text."""
    lines = map(json.loads, (_RECORDING / file).read_text().splitlines())
    return [{"key": _text(each["key"]), "value": _text(each["value"])} for each in lines if each["topic"] == topic]


def final() -> dict[int, dict[str, Any]]:
    """The rows that the database had at the end of the recorded day, by id."""
    return {row["id"]: row for row in json.loads((_RECORDING / "final.json").read_text())}


def _text(coded: str | None) -> str | None:
    return None if coded is None else base64.b64decode(coded).decode()


RECORDED_FINAL = {id: (row["state"], row["total"]) for id, row in final().items()}
DAYS = {"recorded": (recorded(), RECORDED_FINAL), "written": (list(written()), WRITTEN_FINAL)}
