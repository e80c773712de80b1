"""Records of a table that merges: what each does at which key, and which of them cannot."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headrace.delta.schema import SOURCE
from headrace.errors import ColumnMismatch, SourceReplaced
from headrace.plan.batch_result import BatchResult
from headrace.recovery.resume import check_order
from headrace.spec.route_id import RouteId
from headrace.validate.load import examine_text
from services.plans import LAKE, MOMENT, changes, envelopes, event, letters, plan_of, shaped, spec_of
from services.schemas import registered, registry_url

UPSERT = {"mode": "upsert", "merge": {"keys": ["id"]}}
COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "name", "type": "string"}]
CHANGE = "_headrace"


def merge(**more: Any) -> dict[str, Any]:
    return {"mode": "upsert", "merge": {"keys": ["id"], **more}}


def keyed(records: list[tuple[bytes | None, Any]]) -> pa.Table:
    """Envelopes with keys of their own."""
    made = envelopes([value for _, value in records])
    keys = pa.array([key for key, _ in records], pa.binary())
    return made.set_column(made.schema.get_field_index("key"), made.schema.field("key"), keys)


def test_a_record_is_a_put_at_its_key_and_knows_its_place():
    applied = plan_of(table=UPSERT).apply(envelopes([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]))
    table = applied.tables[RouteId()]
    assert table.column_names == [CHANGE, "id", "name", "_source"]
    first = table[CHANGE][0].as_py()
    assert first == {"op": "put", "topic": "web", "partition": 0, "offset": 0, "timestamp": MOMENT, "row": 0}
    assert changes(applied, "id", "name") == [("put", 0, 1, "a"), ("put", 1, 2, "b")]


def test_what_a_predicate_says_is_deleted_and_a_null_predicate_says_nothing():
    plan = plan_of(table=merge(delete_when="gone", truncate_when="kind = 'reset'"))
    values = [{"id": 1, "gone": True}, {"id": 2, "gone": False}, {"id": 3}, {"kind": "reset"}]
    assert changes(plan.apply(envelopes(values)), "id") == [
        ("delete", 0, 1),
        ("put", 1, 2),
        ("put", 2, 3),
        ("truncate", 3, None),
    ]


def test_a_predicate_over_what_no_record_has_sent_deletes_nothing():
    plan = plan_of(table=merge(delete_when="gone"))
    assert changes(plan.apply(envelopes([{"id": 1}])), "id") == [("put", 0, 1)]


def test_a_predicate_that_fails_makes_a_dead_letter():
    plan = plan_of(table=merge(delete_when="CAST(name AS INTEGER) = 1"))
    applied = plan.apply(envelopes([{"id": 1, "name": "1"}, {"id": 2, "name": "x"}]))
    assert changes(applied, "id") == [("delete", 0, 1)]
    assert letters(applied) == [(1, "stage", "transform")]


def test_no_key_or_no_sequence_is_a_dead_letter():
    plan = plan_of(table=merge(keys=["id", "name"], sequence_by="at"))
    values = [{"id": 1, "name": "a", "at": 1}, {"id": None, "name": "a", "at": 2}, {"id": 1, "at": 3}]
    applied = plan.apply(envelopes([*values, {"id": 1, "name": "a"}]))
    assert changes(applied, "id") == [("put", 0, 1)]
    assert letters(applied) == [(1, "stage", "no_key"), (2, "stage", "no_key"), (3, "stage", "missing")]


def test_a_delete_need_not_bring_what_a_row_must_have():
    required = [COLUMNS[0], {**COLUMNS[1], "nullable": False}, {"name": "gone", "type": "boolean"}]
    plan = plan_of(table={**merge(delete_when="gone"), "columns": required})
    applied = plan.apply(envelopes([{"id": 1, "gone": True}, {"id": 2}, {"id": 3, "name": "c"}]))
    assert changes(applied, "id") == [("delete", 0, 1), ("put", 2, 3)]
    assert letters(applied) == [(1, "stage", "missing")]


# ---- null values ----

BY_KEY = {
    "object": ("json", b'{"id": 7}'),
    "object of Debezium": ("json", b'{"schema": {"type": "struct"}, "payload": {"id": 7}}'),
    "value": ("json", b" 7"),
    "text": ("text", b"7"),
    "number": ("int64", (7).to_bytes(8, "big")),
}


@pytest.mark.parametrize(("how", "key"), BY_KEY.values(), ids=BY_KEY)
def test_a_null_value_deletes_the_row_of_its_key(how: str, key: bytes) -> None:
    plan = shaped(plan_of(table={**UPSERT, "columns": COLUMNS}, decode={"json": {"key": how}}))
    applied = plan.apply(keyed([(b"", {"id": 1, "name": "a"}), (key, None)]))
    assert changes(applied, "id", "name") == [("put", 0, 1, "a"), ("delete", 1, 7, None)]
    assert not letters(applied)


@pytest.mark.parametrize(
    ("how", "key", "reason"),
    [
        ("json", None, "no_key"),
        ("json", b'{"other": 7}', "no_key"),
        ("json", b'{"id": "x"}', "type"),
        ("json", b"{", "malformed"),
        ("int64", b"7", "type"),
        ("text", b"seven", "malformed"),
    ],
)
def test_a_key_that_cannot_be_read_is_a_dead_letter(how: str, key: bytes | None, reason: str) -> None:
    plan = shaped(plan_of(table={**UPSERT, "columns": COLUMNS}, decode={"json": {"key": how}}))
    applied = plan.apply(keyed([(key, None)]))
    assert changes(applied) == []
    assert letters(applied) == [(0, "decode", reason)]


def framed(schema: Any, value: Any) -> bytes:
    """In the frame of a registry that knows the schema."""
    made = io.BytesIO()
    fastavro.schemaless_writer(made, fastavro.parse_schema(schema), value)
    return b"\0" + registered(json.dumps(schema), "AVRO").to_bytes(4, "big") + made.getvalue()


def test_an_avro_key_is_of_the_registry_that_values_are_of():
    """As Debezium writes them: a record with the key's columns; a producer of its own may write the value alone."""
    record = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    other = {"type": "record", "name": "Other", "fields": [{"name": "nr", "type": "long"}]}
    avro = {"registry": {"url": registry_url(), "plaintext": True}}
    keys = [framed(record, {"id": 7}), framed("long", 8), framed(other, {"nr": 9}), framed("string", "x"), b"{}"]
    for said in ({}, {"key": "avro"}):
        plan = shaped(plan_of(table={**UPSERT, "columns": COLUMNS}, decode={"avro": {**avro, **said}}))
        applied = plan.apply(keyed([(key, None) for key in keys]))
        assert changes(applied, "id") == [("delete", 0, 7), ("delete", 1, 8)]
        assert letters(applied) == [(2, "decode", "no_key"), (3, "decode", "type"), (4, "decode", "framing")]
    plan = shaped(plan_of(table={**UPSERT, "columns": COLUMNS}, decode={"avro": {**avro, "key": "json"}}))
    assert changes(plan.apply(keyed([(b'{"id": 7}', None)])), "id") == [("delete", 0, 7)]


def test_avro_keys_need_the_registry_of_avro_values():
    text = json.dumps({"pipeline": "web", "source": {"generate": {}}, "decode": {"json": {"key": "avro"}}})
    found = examine_text(text, LAKE, "web.yaml")[1]
    assert "decode.json.key" in {each.key for each in found}


def test_a_text_key_is_the_text():
    columns = [{"name": "id", "type": "string"}]
    plan = shaped(plan_of(table={**UPSERT, "columns": columns}, decode={"json": {"key": "text"}}))
    assert changes(plan.apply(keyed([("x é".encode(), None)])), "id") == [("delete", 0, "x é")]


def test_keys_go_by_the_names_that_records_have():
    plan = plan_of(
        table={"mode": "upsert", "merge": {"keys": ["number"]}, "columns": COLUMNS},
        transform=[{"rename": {"id": "number"}}],
    )
    assert changes(shaped(plan).apply(keyed([(b'{"id": 7}', None)])), "number") == [("delete", 0, 7)]


@pytest.mark.parametrize(("answer", "expected"), [("skip", []), ("dead_letter", [(0, "decode", "tombstone")])])
def test_the_spec_may_want_null_values_otherwise(answer: str, expected: list[Any]) -> None:
    plan = shaped(plan_of(table={**UPSERT, "columns": COLUMNS}, decode={"json": {"tombstone": answer}}))
    applied = plan.apply(keyed([(b'{"id": 7}', None)]))
    assert changes(applied) == []
    assert letters(applied) == expected


# ---- change events ----


def debezium(*values: Any, **options: Any) -> BatchResult:
    return plan_of(table={**UPSERT, **options}, decode={"json": {"envelope": "debezium"}}).apply(envelopes(values))


def test_change_events_say_themselves_what_is_to_happen():
    a, b = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    applied = debezium(event("r", after=a), event("u", a, b), event("d", b), event("c", after=a), event("t"))
    assert [each[0] for each in changes(applied)] == ["put", "put", "delete", "put", "truncate"]
    assert applied.tables[RouteId()].column_names == [CHANGE, "id", "name", "_changed_at", "_source"]


def test_change_events_say_it_also_where_columns_are_declared():
    applied = debezium(event("c", after={"id": 1, "name": "a"}), event("d", {"id": 1, "name": "a"}), columns=COLUMNS)
    assert changes(applied, "id") == [("put", 0, 1), ("delete", 1, 1)]
    assert applied.tables[RouteId()].column_names == [CHANGE, "id", "name", "_source"]


def test_an_update_of_the_key_deletes_the_row_that_was():
    same, other = {"id": 1, "name": "a"}, {"id": 2, "name": "a"}
    applied = debezium(event("u", same, {**same, "name": "b"}), event("u", same, other), event("u", None, same))
    assert changes(applied, "id") == [("put", 0, 1), ("delete", 1, 1), ("put", 1, 2), ("put", 2, 1)]
    assert applied.counts.routed == 3


def test_the_delete_of_the_key_that_was_is_as_old_as_the_put_of_the_one_that_is():
    moves = [event("u", {"id": old, "at": 1}, {"id": old + 1, "at": 5 + old}) for old in (1, 2, 3)]
    applied = debezium(*moves, merge={"keys": ["id"], "sequence_by": "at"})
    found = {(each["_headrace"]["op"], each["id"]): each for each in applied.tables[RouteId()].to_pylist()}
    for old in (1, 2, 3):
        delete, put = found["delete", old], found["put", old + 1]
        assert delete["at"] == put["at"] == 5 + old
        # One record may have many rows: a delete comes after the rows before its own, and before those after it.
        assert delete["_headrace"]["row"] == put["_headrace"]["row"]


def test_a_delete_that_knows_only_its_key_has_the_time_of_its_event():
    """PostgreSQL's default tells no more of a row that is deleted."""
    said = [event("c", after={"id": 1, "at": 5}), event("d", {"id": 1, "at": None}), event("d", {"id": 2})]
    applied = debezium(*said, merge={"keys": ["id"], "sequence_by": "_changed_at"})
    assert changes(applied, "id") == [("put", 0, 1), ("delete", 1, 1), ("delete", 2, 2)]
    applied = debezium(*said, merge={"keys": ["id"], "sequence_by": "at"})
    assert letters(applied) == [(1, "stage", "missing"), (2, "stage", "missing")]


def test_a_value_that_debezium_does_not_have_can_be_none():
    said = {"body": "nullif(body, '__debezium_unavailable_value')"}
    table = merge(update={"ignore_nulls": True})
    plan = plan_of(table=table, decode={"json": {"envelope": "debezium"}}, transform=[{"set": said}])
    rows = [{"id": 1, "body": body} for body in ("long", "__debezium_unavailable_value")]
    assert changes(plan.apply(envelopes([event("u", None, row) for row in rows])), "body") == [
        ("put", 0, "long"),
        ("put", 1, None),
    ]


def test_changes_of_rivven_are_changes_too():
    common = {"source_type": "postgres", "schema": "public", "table": "orders", "timestamp": 1_700_000_000}
    said = [
        ("Insert", None, {"id": 1, "name": "a"}),
        ("Update", {"id": 1}, {"id": 2, "name": "a"}),
        ("Delete", {"id": 2, "name": "a"}, None),
        ("Truncate", None, None),
        ("Schema", None, None),
    ]
    values = [{**common, "op": op, "before": before, "after": after} for op, before, after in said]
    plan = plan_of(table=merge(sequence_by="_changed_at"), decode={"json": {"envelope": "rivven_changes"}})
    applied = plan.apply(envelopes(values))
    assert changes(applied, "id") == [
        ("put", 0, 1),
        ("delete", 1, 1),
        ("put", 1, 2),
        ("delete", 2, 2),
        ("truncate", 3, None),
    ]
    assert letters(applied) == [(4, "decode", "unknown_operation")]


def test_a_tombstone_of_rivven_deletes_by_its_records_key():
    common = {"source_type": "postgres", "table": "orders", "timestamp": 1_700_000_000, "after": None}
    values = [
        {**common, "op": "Insert", "before": None, "after": {"id": 7, "name": "a"}},
        {**common, "op": "Tombstone", "before": None},
        {**common, "op": "Tombstone", "before": {"id": 8, "name": "b"}},
        {**common, "op": "Delete", "before": None},
    ]
    records = keyed([(b'{"id": 7}', value) for value in values])
    decode = {"json": {"envelope": "rivven_changes"}}
    applied = shaped(plan_of(table={**UPSERT, "columns": COLUMNS}, decode=decode)).apply(records)
    assert changes(applied, "id") == [("put", 0, 7), ("delete", 1, 7), ("delete", 2, 8)]
    assert letters(applied) == [(3, "decode", "unknown_operation")]
    applied = shaped(plan_of(table={"columns": COLUMNS}, decode=decode)).apply(records)
    assert letters(applied) == [(1, "decode", "tombstone"), (3, "decode", "unknown_operation")]


def test_a_truncate_is_a_dead_letter_where_rows_are_only_added():
    plan = plan_of(decode={"json": {"envelope": "debezium"}})
    applied = plan.apply(envelopes([event("t"), event("c", after={"id": 1})]))
    assert letters(applied) == [(0, "decode", "unknown_operation")]


# ---- what cannot be ----


def test_keys_that_records_do_not_have_stop_the_pipeline():
    with pytest.raises(ColumnMismatch, match=r"merge\.keys: unknown column 'id'"):
        plan_of(table=UPSERT).apply(envelopes([{"name": "a"}]))


def test_no_record_brings_the_names_of_the_merge_itself():
    values = [{"id": 1}, {"id": 2, "_headrace": 1}, {"id": 3, "_headrace_nth": 1}]
    applied = plan_of(table=UPSERT).apply(envelopes(values))
    assert changes(applied, "id") == [("put", 0, 1)]
    assert letters(applied) == [(1, "decode", "bad_name"), (2, "decode", "bad_name")]


def test_a_table_whose_columns_have_the_names_of_the_merge_is_not_merged_into():
    existing = {"": pa.schema([pa.field("id", pa.int64()), pa.field("_headrace_nth", pa.int64()), SOURCE])}
    with pytest.raises(ColumnMismatch, match="'_headrace_nth'"):
        plan_of(existing, table=UPSERT).apply(envelopes([{"id": 1, "new": 1}]))


def test_a_table_without_its_rows_places_needs_a_sequence():
    existing = {"": pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.int64())])}
    with pytest.raises(ColumnMismatch, match="_source"):
        plan_of(existing, table=UPSERT).apply(envelopes([{"id": 1, "new": 1}]))


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ({"mode": "upsert"}, "table.mode"),
        ({"merge": {"keys": ["id"]}}, "table.merge"),
        ({"mode": "upsert", "merge": {"keys": []}}, "table.merge.keys"),
        (merge(keys=["id", "id"]), "table.merge.keys"),
        (merge(sequence_by="id"), "table.merge.sequence_by"),
        (merge(sequence_by="name", update={"ignore_nulls": True}), "table.merge.update"),
        (merge(update={}), "table.merge.update"),
        ({**UPSERT, "source": False}, "table.source"),
        (merge(keys=["nr"]), "table.merge.keys[0]"),
        (merge(delete_when="nr = 1"), "table.merge.delete_when"),
        (merge(update={"columns": ["id"]}), "table.merge.update.columns[0]"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(table: dict[str, Any], path: str) -> None:
    whole = {"pipeline": "web", "source": {"generate": {}}}
    text = json.dumps({**whole, "table": {"path": "/lake/web", "columns": COLUMNS, **table}})
    _, findings = examine_text(text, LAKE, "web.yaml")
    assert [each.key for each in findings if each.severity == "error"] == [path]


@pytest.mark.parametrize(
    ("source", "more", "merge", "said"),
    [
        ({"topics": ["a", "b"]}, {}, {}, ["offsets of different topics are not ordered"]),
        ({"pattern": "^a"}, {}, {}, ["offsets of different topics are not ordered"]),
        ({"topics": ["a", "b"]}, {}, {"sequence_by": "name"}, []),
        ({"topics": ["a", "b"]}, {}, {"sequence_by": "name", "truncate_when": "id = 0"}, ["a truncate in one topic"]),
        ({"topics": ["a"]}, {}, {"truncate_when": "id = 0"}, []),
        ({"topics": ["a", "b"]}, {"route": {"by": "topic"}}, {"truncate_when": "id = 0"}, []),
    ],
)
def test_several_topics_in_one_table_are_doubtful(source: Any, more: Any, merge: Any, said: list[str]) -> None:
    table = {"path": "/lake/{route}" if more else "/lake/web", "columns": COLUMNS, "mode": "upsert"}
    whole = {"pipeline": "web", "source": {"kafka": {"brokers": "localhost:9", **source}}, **more}
    text = json.dumps({**whole, "table": {**table, "merge": {"keys": ["id"], **merge}}})
    found = [each for each in examine_text(text, LAKE, "web.yaml")[1] if each.key == "table.merge"]
    assert [each.severity for each in found] == ["warning"] * len(said)
    assert all(part in each.message for part, each in zip(said, found, strict=True))


def test_a_topic_that_restarts_its_offsets_is_refused_where_offsets_are_the_order():
    check_order(spec_of(table=merge(sequence_by="at")), {"web"})
    check_order(spec_of(), {"web"})
    with pytest.raises(SourceReplaced, match="ordered by offset"):
        check_order(spec_of(table=UPSERT), {"web"})
    one_of_them = [{"match": "eu", "merge": {"keys": ["id"]}}]
    by_route = {"path": "./lake/{route}", **merge(sequence_by="at")}
    with pytest.raises(SourceReplaced, match="was recreated"):
        check_order(spec_of(table=by_route, route={"by": {"field": "kind"}}, tables=one_of_them), {"web"})
