"""A table is made, found, described, counted, given columns and properties, and dropped."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import Table
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import to_delta
from headrace.errors import (
    FeatureRequired,
    HeadraceError,
    SchemaMismatch,
    TableNotFound,
    TransientError,
    UsageError,
    VersionNotFound,
)
from headrace.spec.types import parse_type
from headrace.storage.store import Store
from services.in_process_pipeline import Harness
from services.staging import SCHEMA, marks, staged

ORDERS = {"id": "bigint!", "day": "date", "amount": "decimal(12,2)", "note": "string"}


@pytest.fixture
def orders(lake: Path) -> Table:
    """An empty table, partitioned by day."""
    return Table.get_or_create(lake / "orders", ORDERS, ["day"])


def row(number: int, day: str = "2026-01-01", **more: object) -> dict[str, object]:
    return {"id": number, "day": day, **more}


# ---- made and found ----


def test_a_table_is_made_once_and_found_again(orders: Table, lake: Path) -> None:
    again = Table.get_or_create(lake / "orders", ORDERS, ["day"])
    said = again.metadata()
    assert (said.version, said.partition_by, said.writer) == (0, ("day",), "direct")
    assert [item.name for item in said.schema] == list(ORDERS)
    assert not said.schema.field("id").nullable
    assert said.properties["delta.checkpointInterval"] == "100"
    assert DeltaTable(lake / "orders").version() == 0


@pytest.mark.parametrize(
    ("columns", "by", "said"),
    [
        ({**ORDERS, "id": "string!"}, ["day"], "column id is long in the table and string"),
        ({**ORDERS, "more": "string"}, ["day"], "column more is not in the table"),
        (ORDERS, [], "partitioned by \\['day'\\], not \\[\\]"),
    ],
)
def test_another_table_than_the_one_asked_for(orders: Table, columns: dict[str, str], by: list[str], said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said) as refused:
        Table.get_or_create(orders.path, columns, by)
    assert "id long" in refused.value.actual
    assert not refused.value.retryable


def test_no_table(lake: Path) -> None:
    table = Table(lake / "nothing")
    assert not table.exists()
    for ask in (table.metadata, table.statistics, table.history, table.query().arrow, table.checkpoint, table.drop):
        with pytest.raises(TableNotFound):
            ask()
    assert list(lake.iterdir()) == []


def test_tables_below_a_folder(harness: Harness) -> None:
    lake = harness.folder / "lake"
    Table.get_or_create(lake / "deep" / "down" / "here", ORDERS)
    (lake / "no-table").mkdir()
    assert Table.list_tables(lake) == [str(lake / name) for name in ("alpha", "beta", "deep/down/here")]
    assert Table.list_tables(lake / "alpha") == [str(lake / "alpha")]
    assert Table.list_tables(lake / "nowhere") == []
    deep = Path("deep", *map(str, range(20)), "t")
    Table.get_or_create(lake / deep, {"id": "int"})
    (lake / "deep" / "round").symlink_to(lake)
    assert str(lake / deep) in Table.list_tables(lake)
    assert len(Table.list_tables(lake)) == 4


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """A pipeline's two tables, two batches each."""
    harness = Harness(tmp_path)
    for start in (0, 10):
        harness.feed({"id": start + number, "kind": "alpha" if number % 2 else "beta"} for number in range(6))
    return harness


def test_a_pipeline_s_table(harness: Harness) -> None:
    table = Table(harness.folder / "lake" / "alpha")
    said = table.metadata()
    assert (said.writer, dict(said.pipelines)) == ("direct", {"shop": 2})
    first, second = reversed(table.history())
    assert (first.operation, first.rows_written, first.rows_after) == ("CREATE TABLE AS SELECT", 3, 3)
    assert (second.operation, second.rows_written, second.rows_after) == ("STREAMING UPDATE", 3, 6)
    assert (second.headrace["pipeline"], second.headrace["batch"]) == ("shop", 2)
    assert second.headrace["ranges"] == [["orders", 0, 6, 12]]
    assert second.user is not None
    assert second.user.startswith("headrace/")
    assert second.timestamp is not None
    assert abs((datetime.now(UTC) - second.timestamp).total_seconds()) < 600


def test_all_txns_are_found_behind_a_checkpoint(harness: Harness) -> None:
    table = Table(harness.folder / "lake" / "alpha")
    assert table.checkpoint() == 1
    table.bulk_insert([{"id": 99, "kind": "alpha"}])
    for number in range(2):
        (harness.folder / "lake" / "alpha" / "_delta_log" / f"{number:020}.json").unlink()
    assert dict(table.metadata().pipelines) == {"shop": 2}
    assert [entry.version for entry in table.history()] == [2]
    assert table.history()[0].rows_after == 7
    with pytest.raises(VersionNotFound, match="versions 1 to 2"):
        table.query().at(version=0).arrow()
    assert table.query().at(version=1).count() == 6


# ---- counted ----


def test_statistics(orders: Table) -> None:
    assert (orders.statistics().files, orders.statistics().rows, orders.statistics().partitions) == (0, 0, 0)
    orders.bulk_insert([row(1), row(2, "2026-01-02"), row(3, "2026-01-02")])
    orders.bulk_insert([{"id": 4}])
    size = orders.statistics()
    assert (size.version, size.files, size.partitions, size.rows) == (2, 3, 3, 4)
    assert size.bytes == sum(file.stat().st_size for file in Path(orders.path).rglob("*.parquet"))
    assert (size.small_files, size.small_share, size.deletion_vectors) == (3, 1.0, 0)


def test_rows_that_nobody_counted_are_unknown(lake: Path) -> None:
    store = Store(str(lake / "t"))
    tail = LogWriter.open(store)
    untold = staged(store, [1, 2])
    tail.create(to_delta(SCHEMA), (), {}, str(uuid.uuid4()), [staged(store, [3])], marks(1), {})
    path = lake / "t" / "_delta_log" / f"{1:020}.json"
    add = {"path": untold.path, "partitionValues": {}, "size": untold.size, "modificationTime": 1, "dataChange": True}
    path.write_text(
        json.dumps({"commitInfo": {"timestamp": 1, "operation": "WRITE"}}) + "\n" + json.dumps({"add": add})
    )
    table = Table(store.uri)
    assert table.statistics().rows is None
    assert [(entry.rows_after, entry.rows_written) for entry in table.history()] == [(None, None), (None, 1)]
    assert table.query().count() == 3


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["insert", "delete", "optimize", "restore", "checkpoint"]), max_size=7))
def test_rows_after_is_what_each_version_holds(tmp_path: Path, steps: list[str]) -> None:
    table = Table.get_or_create(tmp_path / uuid.uuid4().hex, ORDERS)
    table.bulk_insert([row(number) for number in range(5)])
    for at, step in enumerate(steps):
        if step == "insert":
            table.bulk_insert([row(at * 10 + number) for number in range(at + 1)])
        elif step == "delete":
            DeltaTable(table.path).delete(f"id % 3 = {at % 3}")
        elif step == "restore":
            table.restore(version=table.resolve() // 2)
        else:
            getattr(table, step)()
    for entry in table.history():
        assert entry.rows_after == table.query().at(version=entry.version).count()


def test_operation_metrics(orders: Table) -> None:
    orders.bulk_insert([row(1)])
    orders.bulk_insert([row(2)])
    orders.query().arrow()
    found = orders.operation_metrics()
    assert set(found.since_open) == {"create", "bulk_insert", "query"}, "to ask for them is no operation"
    assert found.since_open["bulk_insert"].count == 2
    assert 0 < found.since_open["query"].last <= found.since_open["query"].longest
    DeltaTable(orders.path).delete("id = 1")
    assert {operation: each.count for operation, each in found.history.items()} == {"CREATE TABLE": 1, "WRITE": 2}
    assert orders.operation_metrics().history["DELETE"].count == 1


# ---- properties and columns ----


def test_properties_are_set_and_taken_away(orders: Table) -> None:
    after = orders.set_properties({"delta.logRetentionDuration": "interval 7 days", "owner": "ann"})
    assert (after.version, after.properties["owner"]) == (1, "ann")
    after = orders.set_properties({"owner": None})
    assert "owner" not in after.properties
    assert after.properties["delta.logRetentionDuration"] == "interval 7 days"
    assert orders.set_properties({"delta.logRetentionDuration": "interval 7 days"}).version == 2
    assert [entry.operation for entry in orders.history()][:2] == ["UNSET TBLPROPERTIES", "SET TBLPROPERTIES"]
    assert DeltaTable(orders.path).metadata().configuration["delta.logRetentionDuration"] == "interval 7 days"


@pytest.mark.parametrize("name", ["delta.enableDeletionVectors", "delta.enableRowTracking", "delta.enableTypeWidening"])
def test_properties_that_shut_writers_out_are_refused(orders: Table, name: str) -> None:
    with pytest.raises(FeatureRequired, match=name):
        orders.set_properties({name: "true"})
    assert orders.resolve() == 0


def test_change_data_feed_raises_the_protocol(orders: Table) -> None:
    assert orders.set_properties({"delta.enableChangeDataFeed": "true"}).min_writer_version == 4
    orders.bulk_insert([row(1)])
    assert orders.query().count() == 1


def test_columns_and_comments_are_added_in_one_commit(orders: Table) -> None:
    orders.bulk_insert([row(1)])
    after = orders.update_schema(add={"shop": "struct<name: string>"}, comment={"id": "the order", "shop": "where"})
    assert (after.version, after.schema.names[-1]) == (2, "shop")
    assert after.schema.field("id").metadata == {b"comment": b"the order"}
    assert after.schema.field("shop").metadata == {b"comment": b"where"}
    orders.bulk_insert([row(2, shop={"name": "here"})])
    assert orders.query().order_by("id").select("id", "shop").records() == [
        {"id": 1, "shop": None},
        {"id": 2, "shop": {"name": "here"}},
    ]


def test_a_whole_schema(orders: Table) -> None:
    there = orders.schema()
    assert orders.update_schema(there).version == 0
    after = orders.update_schema(there.append(pa.field("user", pa.string())))
    assert after.schema.names == [*there.names, "user"]
    with pytest.raises(FeatureRequired, match="columnMapping"):
        orders.update_schema(there)
    with pytest.raises(UsageError, match="mutually exclusive"):
        orders.update_schema(there, add={"x": "string"})


def test_a_field_inside_a_struct_is_added_and_old_files_follow(lake: Path) -> None:
    old, new = {"a": "int"}, {"a": "int", "b": "string"}
    inner = {
        name: ", ".join(f"{field}: {kind}" for field, kind in each.items()) for name, each in (("o", old), ("n", new))
    }
    kinds = {"id": "bigint", "s": f"struct<{inner['o']}>", "l": f"array<struct<{inner['o']}>>"}
    table = Table.get_or_create(lake / "t", kinds)
    for number in range(2):
        table.bulk_insert([{"id": number, "s": {"a": number}, "l": [{"a": 1}, None]}, {"id": number + 10}])
    grown = {"id": "bigint", "s": f"struct<{inner['n']}>", "l": f"array<struct<{inner['n']}>>"}
    assert table.update_schema(grown).version == 3
    table.bulk_insert([{"id": 5, "s": {"a": 5, "b": "x"}, "l": [{"b": "y"}]}])
    expected = [
        {"id": 0, "s": {"a": 0, "b": None}, "l": [{"a": 1, "b": None}, None]},
        {"id": 1, "s": {"a": 1, "b": None}, "l": [{"a": 1, "b": None}, None]},
        {"id": 5, "s": {"a": 5, "b": "x"}, "l": [{"a": None, "b": "y"}]},
        {"id": 10, "s": None, "l": None},
        {"id": 11, "s": None, "l": None},
    ]
    assert table.changes(0).select("id", "s", "l").order_by("id").records() == expected
    assert table.query().order_by("id").records() == expected
    table.optimize()
    assert table.query().order_by("id").records() == expected
    assert table.statistics().files == 1


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"rename": {"note": "text"}}, FeatureRequired, "columnMapping"),
        ({"drop": ["note"]}, FeatureRequired, "columnMapping"),
        ({"widen": {"amount": "decimal(20,2)"}}, FeatureRequired, "typeWidening"),
        ({"widen": {"day": "timestamp_ntz"}}, FeatureRequired, "typeWidening"),
        ({"widen": {"note": "bigint"}}, SchemaMismatch, "cannot widen column note from string to long"),
        ({"widen": {"amount": "decimal(10,2)"}}, SchemaMismatch, "cannot widen column"),
        ({"add": {"Note": "string"}}, SchemaMismatch, "has a column 'Note'"),
        ({"add": {"must": "string!"}}, SchemaMismatch, "must cannot be added as NOT NULL: existing rows have no value"),
        ({"add": {"x": "int", "X": "int"}}, UsageError, "'x' more than once"),
        ({"add": {"x": "struct<a: int>", "y": "array<struct<b: int, B: int>>"}}, UsageError, "'b' more than once"),
        ({"rename": {"nobody": "x"}}, UsageError, "Cannot rename column 'nobody': it does not exist"),
        ({"drop": ["nobody"]}, UsageError, "Cannot drop column 'nobody': it does not exist"),
        ({"drop": "nobody"}, UsageError, "Cannot drop column 'nobody': it does not exist"),
        ({"widen": {"nobody": "long"}}, UsageError, "Cannot widen column 'nobody': it does not exist"),
        ({"widen": {"id": "decimal(22,2)"}}, FeatureRequired, "id from long to decimal"),
        ({"widen": {"id": "decimal(19,0)"}}, SchemaMismatch, "cannot widen column"),
        ({"add": {"x": "nonsense"}}, UsageError, "Invalid type: 'nonsense'"),
        ({"comment": {"nobody": "x"}}, UsageError, "Cannot comment on column 'nobody': it does not exist"),
    ],
)
def test_refused_changes_name_their_rule(
    orders: Table, change: dict[str, object], error: type[HeadraceError], said: str
) -> None:
    with pytest.raises(error, match=said):
        orders.update_schema(**change)  # type: ignore[arg-type]
    assert orders.resolve() == 0


def test_a_field_is_added_by_its_path_and_a_comment_taken_away(lake: Path) -> None:
    table = Table.get_or_create(lake / "t", {"id": "int", "s": "struct<a: int, t: struct<b: int>>", "l": "array<int>"})
    table.update_schema(add={"s.c": "string", "s.t.d": "date", "id.x": "int"}, comment={"id": "key"})
    assert table.schema().field("s").type == parse_type("struct<a: int, t: struct<b: int, d: date>, c: string>")
    assert table.schema().names == ["id", "s", "l", "id.x"]
    assert table.update_schema(comment={"id": None}).schema.field("id").metadata is None
    for wrong in ("s.A", "s.t.D", "l.x"):
        with pytest.raises(UsageError):
            table.update_schema(add={wrong: "int"})
    with pytest.raises(SchemaMismatch, match="NOT NULL"):
        table.update_schema(add={"s.e": "int!"})
    assert table.resolve() == 2


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"b": "int", "a": "int!", "s": "struct<x: int>"}, "Cannot change the order of columns: a, b, s"),
        ({"n": "int", "b": "int", "a": "int!", "s": "struct<x: int>"}, "Cannot change the order of columns"),
        ({"a": "int", "b": "int", "s": "struct<x: int>"}, "nullability of column a, which is NOT NULL"),
        ({"a": "int!", "b": "int!", "s": "struct<x: int>"}, "nullability of column b, which is nullable"),
        ({"a": "int!", "b": "int", "s": "struct<x: int>", "n": "int!"}, "n cannot be added as NOT NULL"),
    ],
)
def test_a_whole_schema_is_what_it_says_or_refused(lake: Path, wanted: dict[str, str], said: str) -> None:
    table = Table.get_or_create(lake / "t", {"a": "int!", "b": "int", "s": "struct<x: int>"})
    with pytest.raises(SchemaMismatch, match=said):
        table.update_schema(wanted)
    inner = pa.field("s", pa.struct([pa.field("x", pa.int32(), nullable=False)]))
    with pytest.raises(SchemaMismatch, match="nullability of a field of column s"):
        table.update_schema(table.schema().set(2, inner))
    assert table.resolve() == 0
    new = {"a": "int!", "n": "int", "b": "int", "s": "struct<x: int>"}
    assert table.update_schema(new).schema.names == list(new)


def test_names_that_differ_only_in_case_make_no_table(lake: Path) -> None:
    for columns in ({"a": "int", "A": "int"}, pa.schema([("a", pa.int32()), ("a", pa.int32())])):
        with pytest.raises(UsageError, match="'a' more than once"):
            Table.get_or_create(lake / "t", columns)
    for records in ([{"a b": 1, "A B": 2}], pa.table([[1], [2]], names=["a b", "a b"])):
        with pytest.raises((UsageError, SchemaMismatch), match="'a b' more than once"):
            Table.get_or_create(lake / "t").bulk_insert(records)
    assert not Table(lake / "t").exists()


def test_a_table_has_columns(lake: Path) -> None:
    with pytest.raises(UsageError, match="requires at least one column"):
        Table.get_or_create(lake / "t", {})


def test_one_name_may_be_a_text(lake: Path) -> None:
    table = Table.get_or_create(lake / "t", {"id": "int", "day": "date"}, "day")
    table.bulk_insert([{"id": 1}])
    assert (table.metadata().partition_by, table.optimize(z_order="id").z_order) == (("day",), ("id",))


# ---- dropped ----


def test_a_dropped_table_is_gone_with_its_files(orders: Table) -> None:
    orders.bulk_insert([row(1), row(2, "2026-02-02")])
    assert orders.drop() == 4
    assert not [path for path in Path(orders.path).rglob("*") if path.is_file()]
    assert not orders.exists()


def test_a_table_around_another_is_not_dropped(orders: Table, lake: Path) -> None:
    inner = Table.get_or_create(lake / "orders" / "inner", ORDERS)
    with pytest.raises(UsageError, match="inner"):
        orders.drop()
    assert inner.exists()
    assert orders.exists()


# ---- errors are values ----


def test_every_error_says_whether_it_may_be_tried_again() -> None:
    def below(kind: type[HeadraceError]) -> set[type[HeadraceError]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    retryable = {each.__name__ for each in below(HeadraceError) if each.retryable}
    assert retryable == {each.__name__ for each in below(TransientError)} | {
        "LeaseHeld",
        "CommitConflict",
        "ConcurrentModification",
        "SpoolFull",
        "QueueFull",
    }


def test_what_others_wrote_is_read_alike(lake: Path) -> None:
    write_deltalake(lake / "theirs", pa.table({"x": [1, 2]}))
    table = Table(lake / "theirs")
    assert table.metadata().writer == "direct"
    assert table.statistics().rows == 2
    assert table.history()[0].rows_after == 2
