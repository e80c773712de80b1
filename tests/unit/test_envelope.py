"""Envelopes: the row inside, what happened to it, and nothing taken for what it is not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headrace import Plan
from headrace.spec import loads
from headrace.tables.schema import ENVELOPE

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SENT = datetime(2025, 5, 5, tzinfo=UTC)
CHANGED = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
TS = int(CHANGED.timestamp() * 1000)
COLUMNS = """  columns:
    - {name: id, type: bigint, nullable: false}
    - {name: name, type: string}
    - {name: _op, type: string, nullable: false}
    - {name: _changed_at, type: timestamp}
"""


def applied(
    envelope: str, *values: Any, columns: str = "", extra: str = ""
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows stored, and the letters by offset."""
    text = f"""
pipeline: changes
source: {{kafka: {{brokers: "localhost:9092", topics: [t]}}}}
decode: {{json: {{envelope: {envelope}}}}}
table:
  path: /lake/changes
{columns}
{extra}
"""
    [spec] = loads(text)
    raw = [value if isinstance(value, bytes | None) else json.dumps(value).encode() for value in values]
    rows = [
        {
            "topic": "t",
            "partition": 0,
            "offset": at,
            "timestamp": SENT,
            "timestamp_type": 0,
            "value": value,
            "headers": [],
        }
        for at, value in enumerate(raw)
    ]
    found = Plan(spec, now=lambda: NOW).apply(pa.Table.from_pylist(rows, schema=ENVELOPE))
    counts = found.counts
    assert counts.read == counts.routed + counts.dead + counts.filtered
    stored = [row for table in found.tables.values() for row in table.to_pylist()]
    for row in stored:
        row.pop("_source")
    return stored, {row["offset"]: row["reason"] for row in found.letters.to_pylist()}


def change(op: str, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    source = {"db": "shop", "table": "orders", "lsn": 7}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": TS, "transaction": None, **more}


def wrapped(value: dict[str, Any]) -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": [], "name": "shop.Envelope"}, "payload": value}


@pytest.mark.parametrize("form", [lambda value: value, wrapped], ids=["bare", "with its schema part"])
@pytest.mark.parametrize("columns", [COLUMNS, ""], ids=["declared", "inferred"])
def test_debezium_changes_are_rows(form, columns):
    old, new = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    rows, letters = applied(
        "debezium",
        form(change("c", None, old)),
        form(change("u", old, new)),
        form(change("d", new, None)),
        form(change("r", None, {"id": 2, "name": "c"})),
        columns=columns,
    )
    assert not letters
    assert [(row["id"], row["name"], row["_op"]) for row in rows] == [
        (1, "a", "insert"),
        (1, "b", "update"),
        (1, "b", "delete"),
        (2, "c", "snapshot"),
    ]
    assert {row["_changed_at"] for row in rows} == {CHANGED}


def test_debezium_both_forms_in_one_batch_and_in_order():
    rows, _ = applied(
        "debezium",
        wrapped(change("c", None, {"id": 1})),
        change("c", None, {"id": 2}),
        wrapped(change("d", {"id": 3})),
        change("u", None, {"id": 4}),
    )
    assert [row["id"] for row in rows] == [1, 2, 3, 4]


def test_debezium_what_is_no_change_of_a_row_is_a_letter():
    rows, letters = applied(
        "debezium",
        change("c", None, {"id": 1}),
        change("x", None, {"id": 2}),
        change("t"),
        {"ts_ms": TS},  # a heartbeat
        {"status": "BEGIN", "id": "571", "event_count": None},  # of the transaction topic
        {"schema": {"type": "struct"}},
        change("d", None, None),
        change("c", None, None),
        b"not json",
        None,
        change("c", None, {"id": "x"}),
        columns=COLUMNS,
    )
    assert [row["id"] for row in rows] == [1]
    operation = "unknown_operation"
    assert [letters.get(at) for at in range(11)] == [
        None,
        operation,
        operation,
        operation,
        operation,
        operation,
        "missing",
        "missing",
        "malformed",
        "tombstone",
        "type",
    ]


def test_debezium_a_change_without_a_row_is_a_letter_also_where_every_column_may_be_null():
    columns = "  columns: [{name: id, type: bigint}, {name: _op, type: string}]"
    rows, letters = applied("debezium", change("d"), change("d", {"id": 5}), columns=columns)
    attributes = {"_ce_id": "7", "_ce_source": "/shop", "_ce_type": "order.made", "_ce_subject": None}
    assert rows == [{"id": 1, **attributes, "_ce_time": CHANGED}]
