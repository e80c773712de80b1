"""Records of a table that keeps a history: its columns, what ends a row, and what a history cannot keep."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.schema import SOURCE
from headrace.errors import ColumnMismatch
from headrace.validate.load import examine_text
from services.plans import LAKE, adds_up, changes, envelopes, event, letters, plan_of, shaped


def scd2(**more: Any) -> dict[str, Any]:
    return {"mode": "scd2", "merge": {"keys": ["id"], "sequence_by": "at", **more}}


COLUMNS = [{"name": name, "type": kind} for name, kind in (("id", "bigint"), ("name", "string"), ("at", "timestamp"))]
DEBEZIUM = {"json": {"envelope": "debezium"}}


def test_the_table_says_since_when_and_until_when():
    plan = plan_of(table={**scd2(delete_when="gone"), "columns": [*COLUMNS, {"name": "gone", "type": "boolean"}]})
    at = "2026-01-01T00:00:00Z"
    applied = plan.apply(envelopes([{"id": 1, "at": at}, {"id": 1, "at": at, "gone": True}, {"id": 2}]))
    assert changes(applied, "id", "valid_from") == [("put", 0, 1, None), ("delete", 1, 1, None)]
    assert letters(applied) == [(2, "stage", "missing")]
    table = shaped(plan).branches[""].schemas[""].table
    assert table.names == ["id", "name", "at", "gone", "valid_from", "valid_to", "current", "_source"]
    assert [table.field(name).type for name in ("valid_from", "valid_to")] == [table.field("at").type] * 2


def test_a_table_that_is_there_is_not_read_from_records():
    own = [pa.field("since", pa.int64()), pa.field("until", pa.int64()), pa.field("now", pa.bool_())]
    existing = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.int64()), *own, SOURCE])
    names = {"valid_from": "since", "valid_to": "until", "current": "now"}
    plan = plan_of({"": existing}, table=scd2(scd2=names))
    schema = plan.branches[""].route_schema("", existing=existing)
    assert schema.payload.names == ["id", "at"]
    assert schema.table == existing


def test_a_field_under_the_name_of_the_history_stops_the_pipeline():
    with pytest.raises(ColumnMismatch, match="records have a field 'Current', which is an SCD2 column"):
        plan_of(table=scd2()).apply(envelopes([{"id": 1, "at": 1, "Current": True}]))


def test_what_is_tracked_must_be_there_and_comparable():
    with pytest.raises(ColumnMismatch, match=r"merge\.scd2\.track: unknown column 'total'"):
        plan_of(table=scd2(scd2={"track": ["total"]})).apply(envelopes([{"id": 1, "at": 1}]))


def test_null_values_and_truncates_do_not_say_when():
    plan = plan_of(table={"mode": "scd2", "merge": {"keys": ["id"], "sequence_by": "_changed_at"}}, decode=DEBEZIUM)
    applied = plan.apply(envelopes([event("c", after={"id": 1}), None, event("t"), event("d", {"id": 1})]))
    assert changes(applied, "id") == [("put", 0, 1), ("delete", 3, 1)]
    assert letters(applied) == [(1, "decode", "tombstone"), (2, "stage", "unknown_operation")]
    adds_up(applied)


def test_a_row_that_gets_another_key_ends_when_the_other_begins():
    plan = plan_of(table={"mode": "scd2", "merge": {"keys": ["id"], "sequence_by": "_changed_at"}}, decode=DEBEZIUM)
    found = changes(plan.apply(envelopes([event("u", {"id": 1}, {"id": 2})])), "id", "_changed_at")
    assert [each[:3] for each in found] == [("delete", 0, 1), ("put", 0, 2)]
    assert found[0][3] == found[1][3] is not None


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ({"mode": "scd2"}, "table.mode"),
        ({"mode": "scd2", "merge": {"keys": ["id"]}}, "table.merge"),
        ({"mode": "upsert", "merge": {"keys": ["id"], "scd2": {}}}, "table.merge.scd2"),
        (scd2(truncate_when="id = 1"), "table.merge.truncate_when"),
        (scd2(scd2={"current": "Name"}), "table.merge.scd2.current"),
        (scd2(scd2={"valid_to": "valid_from"}), "table.merge.scd2.valid_to"),
        (scd2(scd2={"valid_to": "a b"}), "table.merge.scd2.valid_to"),
        (scd2(scd2={"track": ["id"]}), "table.merge.scd2.track[0]"),
        (scd2(scd2={"track": ["nr"]}), "table.merge.scd2.track[0]"),
        ({**scd2(scd2={"track": ["name"]}), "features": ["typeWidening"]}, "table.merge.scd2.track"),
        ({**scd2(), "partition_by": ["valid"]}, "table.partition_by[0]"),
        ({**scd2(), "partition_by": ["current"]}, None),
    ],
)
def test_a_spec_that_cannot_be_is_refused(table: dict[str, Any], path: str | None) -> None:
    whole = {"pipeline": "web", "source": {"generate": {}}}
    text = json.dumps({**whole, "table": {"path": "/lake/web", "columns": COLUMNS, **table}})
    _, findings = examine_text(text, LAKE, "web.yaml")
    assert [each.key for each in findings if each.severity == "error"] == ([path] if path else [])
