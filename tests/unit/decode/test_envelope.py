"""Envelopes: the row inside, what happened to it, and nothing taken for what it is not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headrace import Plan
from headrace.validate.load import loads
from services.plans import envelopes

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
    found = Plan(spec, now=lambda: NOW).apply(envelopes(values, "t", timestamp=SENT))
    counts = found.counts
    assert counts.read == counts.routed + counts.dead + counts.filtered
    stored = [row for table in found.tables.values() for row in table.to_pylist()]
    for row in stored:
        row.pop("_source")
    return stored, {row["offset"]: row["reason"] for row in found.dead_letters.to_pylist()}


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


def test_debezium_what_is_no_change_of_a_row_is_a_dead_letter():
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


def test_debezium_a_change_without_a_row_is_a_dead_letter_also_where_every_column_may_be_null():
    columns = "  columns: [{name: id, type: bigint}, {name: _op, type: string}]"
    rows, letters = applied("debezium", change("d"), change("d", {"id": 5}), columns=columns)
    assert rows == [{"id": 5, "_op": "delete"}]
    assert letters == {0: "unknown_operation"}


def test_debezium_keeps_before_and_origin_for_those_who_ask():
    columns = """  columns:
    - {name: id, type: bigint}
    - {name: _before, type: string, json: true}
    - {name: _origin, type: string, json: true}
"""
    raw = b'{"before": {"id":1, "p": 1.50}, "after": {"id":1}, "source": {"lsn": 7}, "op": "u", "ts_ms": 1}'
    rows, letters = applied("debezium", raw, change("d", {"id": 2}), columns=columns)
    assert not letters
    assert rows[0] == {"id": 1, "_before": '{"id":1, "p": 1.50}', "_origin": '{"lsn": 7}'}
    assert rows[1]["_before"] == '{"id": 2}'


def test_debezium_new_fields_are_those_of_the_row():
    rows, _ = applied("debezium", change("c", None, {"id": 1}), change("c", None, {"id": 2, "size": {"w": 3}}, extra=1))
    assert [row.get("size") for row in rows] == [None, {"w": 3}]
    assert set(rows[0]) == {"id", "size", "_op", "_changed_at"}


def test_rivven_events_in_four_columns():
    at = "2024-05-01T12:00:00Z"
    kinds = ("insert", "update", "delete", "state", "log", "schema", "record")
    events = [
        {
            "event_type": kind,
            "stream": f"s.{kind}",
            "namespace": "n",
            "timestamp": at,
            "data": {"n": 1.50},
            "metadata": {},
        }
        for kind in kinds
    ]
    rows, letters = applied("rivven", *events, {"event_type": "nonsense", "timestamp": at, "data": {}})
    assert letters == {7: "unknown_operation"}
    assert [row["event_type"] for row in rows] == list(kinds)
    assert rows[0] == {"data": '{"n": 1.5}', "event_type": "insert", "timestamp": CHANGED, "stream": "s.insert"}


def test_rivven_changes_and_plain_records():
    seconds = int(CHANGED.timestamp())
    common = {"source_type": "postgres", "database": "d", "schema": "public", "table": "orders", "timestamp": seconds}
    old, new = {"id": 1}, {"id": 2}
    ops = ("Insert", "Update", "Delete", "Tombstone", "Truncate", "Snapshot", "Schema")
    changes = [
        {**common, "op": op, "before": old, "after": None if op in ("Delete", "Tombstone", "Truncate") else new}
        for op in ops
    ]
    rows, letters = applied("rivven", *changes, b'{"any": 1.50}', {**common, "op": "Dance"})
    assert letters == {8: "unknown_operation"}
    assert [(row["event_type"], row["data"], row["stream"]) for row in rows] == [
        ("insert", '{"id": 2}', "public.orders"),
        ("update", '{"before":{"id": 1},"after":{"id": 2}}', "public.orders"),
        ("delete", '{"id": 1}', "public.orders"),
        ("delete", "null", "public.orders"),
        ("truncate", "null", "public.orders"),
        ("insert", '{"id": 2}', "public.orders"),
        ("schema", '{"id": 2}', "public.orders"),
        ("record", '{"any": 1.50}', "t"),
    ]
    assert {row["timestamp"] for row in rows[:-1]} == {CHANGED}
    assert rows[-1]["timestamp"] == SENT


def test_rivven_columns_may_be_required():
    columns = """  columns:
    - {name: data, type: string, json: true, nullable: false}
    - {name: event_type, type: string, nullable: false}
    - {name: timestamp, type: timestamp, nullable: false}
    - {name: stream, type: string}
"""
    rows, letters = applied("rivven", {"a": 1}, {"event_type": "log", "data": {"level": "info"}}, columns=columns)
    assert not letters
    assert [(row["event_type"], row["stream"], row["timestamp"]) for row in rows] == [
        ("record", "t", SENT),
        ("log", "t", SENT),
    ]


def test_rivven_takes_from_the_record_also_where_tables_are_read_together():
    text = """
pipeline: changes
source: {kafka: {brokers: "localhost:9092", topics: [a, b]}}
decode: {json: {envelope: rivven}}
route: {by: topic}
table: {path: "/lake/{route}"}
"""
    [spec] = loads(text)
    given = pa.concat_tables(envelopes([{"x": 1}], topic, timestamp=SENT) for topic in ("a", "b"))
    plan = Plan(spec, now=lambda: NOW)
    for _ in range(2):
        found = plan.apply(given)
        stored = {str(name): table.to_pylist()[0] for name, table in found.tables.items()}
        assert {name: (row["stream"], row["timestamp"]) for name, row in stored.items()} == {
            "a": ("a", SENT),
            "b": ("b", SENT),
        }


def test_cloudevents_attributes_stand_beside_the_data():
    event = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order.made", "time": "2024-05-01T12:00:00Z"}
    rows, letters = applied(
        "cloudevents",
        {**event, "datacontenttype": "application/json", "data": {"id": 1}},
        {"id": 2},
        {**event, "specversion": "0.3"},
    )
    assert letters == {1: "framing", 2: "framing"}
    attributes = {"_ce_id": "7", "_ce_source": "/shop", "_ce_type": "order.made", "_ce_subject": None}
    assert rows == [{"id": 1, **attributes, "_ce_time": CHANGED}]
