"""Rows upserted, deleted and updated in tables that the log tail may write: no JVM, one commit, as a model has it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Table
from headrace.delta.log_writer import LogWriter
from headrace.errors import (
    ConcurrentModification,
    OperationDisabled,
    PartitionNotFound,
    SchemaMismatch,
    TableNotFound,
    TableReplaced,
    UsageError,
)
from headrace.stage.stager import Stager
from headrace.transform.sql.parser import ExpressionNotAllowed

COLUMNS = {"id": "bigint", "shop": "string", "day": "date", "amount": "decimal(12,2)", "seq": "bigint"}
DAYS = [date(2026, 1, day) for day in (1, 2, 3)]


def row(
    id: int, shop: str = "north", day: int = 0, amount: str | None = "1.00", seq: int | None = None
) -> dict[str, Any]:
    return {"id": id, "shop": shop, "day": DAYS[day], "amount": amount and Decimal(amount), "seq": seq}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three days, a file each."""
    made = Table.get_or_create(tmp_path / "orders", COLUMNS, ["day"])
    made.bulk_insert([row(number, day=number // 3) for number in range(9)])
    return made


def by_id(table: Table, column: str = "shop") -> dict[int, Any]:
    found = table.query().records()
    assert len({each["id"] for each in found}) == len(found)
    return {each["id"]: each[column] for each in found}


# ---- upsert ----


def test_rows_are_replaced_by_their_key_and_others_added(table: Table) -> None:
    before = set(DeltaTable(table.path).file_uris())
    done = table.upsert([row(1, "south"), row(20, "south")], "id")
    assert (done.version, done.inserted, done.updated) == (2, 1, 1)
    assert by_id(table) == {**dict.fromkeys(range(9), "north"), 1: "south", 20: "south"}
    after = set(DeltaTable(table.path).file_uris())
    assert len(before & after) == 2, "files of other keys stay as they are"
    newest = table.history(1)[0]
    assert (newest.operation, newest.rows_after) == ("MERGE", 10)
    assert newest.metrics["numTargetRowsUpdated"] == "1"
    assert len(DeltaTable(table.path).to_pyarrow_table()) == 10  # others read the same
    assert table.operation_metrics().since_open["upsert"].count == 1


def test_of_several_records_with_a_key_the_last_counts(table: Table) -> None:
    assert table.upsert([row(1, "a"), row(1, "b"), row(50, "c"), row(50, "d")], "id").inserted == 1
    assert by_id(table)[1] == "b"
    assert by_id(table)[50] == "d"
    table.upsert([row(1, "x", seq=5), row(1, "y", seq=4), row(2, "z", seq=1)], "id", sequence_by="seq")
    assert by_id(table)[1] == "x"
    with pytest.raises(UsageError, match="2 records have the key id = 1"):
        table.upsert([row(1), row(1)], "id", deduplicate=False)
    table.upsert([row(1), row(2)], "id", deduplicate=False)


def test_an_older_record_loses_to_the_row_and_an_equal_one_wins(table: Table) -> None:
    table.upsert([row(1, "new", seq=5)], "id", sequence_by="seq")
    late = table.upsert([row(1, "old", seq=4)], "id", sequence_by="seq")
    assert (late.version, late.inserted, late.updated) == (table.resolve(), 0, 0)
    assert table.history(1)[0].version == 2, "nothing changed, nothing committed"
    assert table.upsert([row(1, "same", seq=5)], "id", sequence_by="seq").updated == 1
    assert by_id(table)[1] == "same"


def test_several_columns_are_one_key(table: Table) -> None:
    done = table.upsert([row(1, "north", amount="9"), row(1, "south")], ["id", "shop"])
    assert (done.inserted, done.updated) == (1, 1)
    assert table.query().where("id = 1").count() == 2


def test_a_column_of_the_key_may_be_named_twice(table: Table) -> None:
    assert table.upsert([row(1, "a"), row(1, "b")], ["id", "id"]).updated == 1


def test_a_row_may_move_to_another_partition(table: Table) -> None:
    assert table.upsert([row(0, day=2)], "id").updated == 1
    assert table.query().where("id = 0").select("day").records() == [{"day": DAYS[2]}]


def test_rows_with_one_key_are_all_replaced(table: Table) -> None:
    table.bulk_insert([row(1, "twice")])
    assert table.upsert([row(1, "x")], "id").updated == 2
    assert table.query().where("id = 1 and shop = 'x'").count() == 2


def test_a_partition_limits_the_merge(table: Table) -> None:
    done = table.upsert([{"id": 1, "shop": "here"}, {"id": 8, "shop": "here"}], "id", partition="day=2026-01-01")
    assert (done.inserted, done.updated) == (1, 1)
    assert table.query().where("id = 8").count() == 2  # the one of another day was not looked at
    for wrong in ("shop=x", "day", "day=x", "day=2026-01-01/shop=x"):
        with pytest.raises(PartitionNotFound) as refused:
            table.upsert([row(1)], "id", partition=wrong)
        assert refused.value.partition == wrong
    with pytest.raises(SchemaMismatch, match="Not all records"):
        table.upsert([row(1, day=1)], "id", partition="day=2026-01-01")


def test_the_first_columns_of_a_partition_mean_all_below(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "a": "string", "b": "int"}, ["a", "b"])
    table.bulk_insert([{"id": 1, "a": "x", "b": 1}, {"id": 1, "a": "y", "b": 1}, {"id": 2, "a": "x", "b": 2}])
    assert table.upsert([{"id": 1, "b": 7}, {"id": 2, "b": 2}], "id", partition="a=x").updated == 2
    assert table.delete("id = 1", partition="a=y").rows == 1
    assert table.query().order_by("id").records() == [{"id": 1, "a": "x", "b": 7}, {"id": 2, "a": "x", "b": 2}]


AT = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        ("string", "a/b", ["p=a%2Fb", "p=a%2fb", "/p=a%2Fb/"]),
        ("string", "it's 5% of a=b", ["p=it%27s 5%25 of a%3Db", "p=it's 5% of a=b"]),
        ("string", "%41", ["p=%2541"]),
        ("string", None, ["p=__HIVE_DEFAULT_PARTITION__"]),
        ("int", None, ["p=__HIVE_DEFAULT_PARTITION__"]),
        ("int", 7, ["p=7", "p=007"]),
        ("decimal(6,2)", Decimal("1.50"), ["p=1.50", "p=1.5"]),
        ("double", 0.1, ["p=0.1", "p=1e-1"]),
        ("boolean", True, ["p=true"]),
        ("date", date(2026, 1, 1), ["p=2026-01-01"]),
        ("timestamp", AT, ["p=2026-01-01T12%3A30%3A00.000000Z", "p=2026-01-01T13:30:00+01:00"]),
        ("timestamp_ntz", AT.replace(tzinfo=None), ["p=2026-01-01 12%3A30%3A00.000000", "p=2026-01-01T12:30:00"]),
    ],
)
def test_a_partition_goes_by_the_name_of_its_folder(tmp_path: Path, kind: str, value: Any, texts: list[str]) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "n": "int", "p": kind}, ["p"])
    other = None if value is not None else 1 if kind == "int" else "other"
    table.bulk_insert([{"id": 1, "p": value}, {"id": 2, "p": other}])
    own = {path.parent.name for path in Path(table.path).glob("*/*.parquet")}
    texts = [*texts, *(name for name in own if (other is None) != name.endswith("PARTITION__"))]
    for number, text in enumerate(texts):
        assert [row["id"] for row in table.query().within(text).records()] == [1], text
        assert table.update("true", {"n": number}, text).rows == 1
        assert table.upsert([{"id": 1}], "id", partition=text).updated == 1
        assert table.delete("id = 1", text).rows == 1
        table.bulk_insert([{"id": 1}], text)
    assert {path.parent.name for path in Path(table.path).glob("*/*.parquet")} == own
    assert {row["id"]: row["p"] for row in table.query().records()} == {1: value, 2: other}


def test_rows_of_a_partition_that_is_not_there_are_not_found(table: Table) -> None:
    for wrong in ("day=2026-02-01", "day=__HIVE_DEFAULT_PARTITION__", "x=1", "day", "day=", "day=x", "", "day=2026/01"):
        for ask in (
            lambda text: table.query().within(text).count(),
            lambda text: table.delete("true", text),
            lambda text: table.delete("true", text, hard=False),
            lambda text: table.update("true", {"seq": 1}, text),
        ):
            with pytest.raises(PartitionNotFound) as refused:
                ask(wrong)
            assert refused.value.partition == wrong
    assert table.resolve() == 1
    table.delete("true", "day=2026-01-01")
    with pytest.raises(PartitionNotFound):
        table.query().within("day=2026-01-01").count()
    assert table.query().within("day=2026-01-01").at(version=1).count() == 3
    assert table.upsert([{"id": 1}], "id", partition="day=2026-02-01").inserted == 1, "records make a partition"


@pytest.mark.parametrize(
    ("key", "records", "error"),
    [
        ("nothing", [row(1)], UsageError),
        ([], [row(1)], UsageError),
        ("id", [{"shop": "x"}], SchemaMismatch),
        ("id", [row(1), {"id": None, "day": DAYS[0]}], SchemaMismatch),
        ("id", [{"id": "1"}], SchemaMismatch),
        ("id", [{"id": 1, "stranger": 1}], SchemaMismatch),
    ],
)
def test_what_cannot_be_merged_is_refused(table: Table, key: Any, records: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        table.upsert(records, key)
    with pytest.raises(SchemaMismatch, match="no value for seq"):
        table.upsert([row(1)], "id", sequence_by="seq")
    assert table.resolve() == 1


def test_fractions_and_structs_are_no_keys(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"x": "double", "s": "struct<a: int>"})
    for name in ("x", "s"):
        with pytest.raises(UsageError, match=f"key: .*'{name}'"):
            table.upsert([{"x": 1.0}], name)


@pytest.mark.parametrize(
    "made", [pa.Table.from_pylist, lambda rows: pa.Table.from_pylist(rows).to_pandas(), pl.DataFrame]
)
def test_records_come_in_any_form(table: Table, made: Callable[[Any], Any]) -> None:
    assert table.upsert(made([{"id": 1, "shop": "x", "day": DAYS[0]}]), "id").updated == 1


def test_no_records_are_no_version(table: Table) -> None:
    assert table.upsert([], "id").version == 1


def test_there_must_be_a_table(tmp_path: Path) -> None:
    for do in (lambda t: t.upsert([], "id"), lambda t: t.delete("true"), lambda t: t.update("true", {"a": 1})):
        with pytest.raises(TableNotFound):
            do(Table(tmp_path / "nothing"))


# ---- delete ----


def test_rows_are_deleted_by_a_condition(table: Table) -> None:
    done = table.delete("id >= 7 or (id < 2 and shop = 'north')")
    assert (done.version, done.rows, done.hard) == (2, 4, True)
    assert sorted(by_id(table)) == [2, 3, 4, 5, 6]
    assert table.delete("id = 100").version == 2
    assert table.delete("amount > 1").rows == 0
    assert table.delete("true", partition="day=2026-01-02").rows == 3
    assert table.history(1)[0].operation == "DELETE"
    assert table.delete("true").rows == 2
    assert table.statistics().files == 0


def test_null_is_not_true(table: Table) -> None:
    table.upsert([row(1, amount=None)], "id")
    assert table.delete("amount > 0").rows == 8
    assert list(by_id(table)) == [1]


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("", UsageError),
        ("  ", UsageError),
        ("nothing = 1", ExpressionNotAllowed),
        ("id =", ExpressionNotAllowed),
        ("read_text('/x') = 'a'", ExpressionNotAllowed),
    ],
)
def test_a_condition_must_be_one(table: Table, where: str, error: type[Exception]) -> None:
    for do in (lambda: table.delete(where), lambda: table.update(where, {"shop": "'x'"})):
        with pytest.raises(error):
            do()
    assert table.resolve() == 1


def test_what_is_softly_deleted_is_hidden_and_can_come_back(table: Table) -> None:
    began = datetime.now(UTC)
    done = table.delete("id < 3", hard=False)
    assert (done.rows, done.hard) == (3, False)
    assert sorted(by_id(table)) == [3, 4, 5, 6, 7, 8]
    hidden = table.query().with_deleted().where("_deleted").records()
    assert sorted(each["id"] for each in hidden) == [0, 1, 2]
    assert all(began <= each["_deleted_at"] <= datetime.now(UTC) for each in hidden)
    assert table.delete("id < 4", hard=False).rows == 1, "the others are deleted already"
    table.upsert([row(0, "back")], "id")
    assert by_id(table)[0] == "back"
    assert table.delete("_deleted").rows == 3


def test_columns_that_mean_something_else_are_no_marks(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "_deleted": "string"})
    with pytest.raises(SchemaMismatch, match="_deleted for soft deletes: its type is string"):
        table.delete("true", hard=False)


# ---- update ----


def test_columns_are_set_by_expressions_and_values(table: Table) -> None:
    done = table.update("id in (1, 2)", {"amount": "amount * 2 + id", "shop": "upper(shop)", "seq": 7})
    assert (done.version, done.rows) == (2, 2)
    found = table.query().where("id = 2").records()[0]
    assert (found["amount"], found["shop"], found["seq"]) == (Decimal("4.00"), "NORTH", 7)
    assert table.update("id = 1", {"day": DAYS[2], "amount": None}).rows == 1
    assert table.query().where("day = date '2026-01-03'").count() == 4
    assert table.history(1)[0].operation == "UPDATE"
    assert table.query().count() == 9


def test_values_must_fit_their_columns(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint!", "x": "double", "n": "int"})
    table.bulk_insert([{"id": 1, "x": 0.5, "n": 1}])
    assert table.update("true", {"x": "3"}).rows == 1
    for values in ({"id": None}, {"id": "null"}, {"n": "x"}, {"n": "id + 9000000000"}, {"n": "'1'"}, {"n": 2.0}):
        with pytest.raises(SchemaMismatch):
            table.update("true", values)
    for values in ({}, {"nothing": 1}):
        with pytest.raises(UsageError):
            table.update("true", values)
    for text in ("1 / 0", "0 / 0", "x / 0"):
        with pytest.raises(SchemaMismatch, match="not a finite number"):
            table.update("true", {"x": text})
    assert table.query().records() == [{"id": 1, "x": 3.0, "n": 1}]


def test_commits_tell_the_rows_that_changed_and_the_time_it_took(table: Table) -> None:
    table.upsert([row(1, "new"), row(90)], "id")
    table.update("id = 1", {"seq": 1})
    table.delete("id = 2")
    table.delete("id = 1", hard=False)
    table.bulk_insert([row(91)])
    table.optimize()
    told = {each.operation: (each.rows_written, each.rows_after) for each in table.history(7) if each.rows_written != 1}
    assert told == {"MERGE": (2, 10), "DELETE": (0, 9), "OPTIMIZE": (0, 10), "ADD COLUMNS": (0, 9)}
    assert [each.rows_written for each in table.history(7) if each.operation == "UPDATE"] == [1, 1]
    took = table.operation_metrics().history
    changed = {"MERGE": 1, "UPDATE": 2, "DELETE": 1}
    assert {name: each.count for name, each in took.items() if name in changed} == changed
    assert all(each.last > 0 for each in took.values())


def test_a_column_under_a_name_of_the_merge_is_refused_by_it(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "_headrace_nth": "bigint"})
    with pytest.raises(UsageError, match="_headrace_nth"):
        table.upsert([{"id": 1, "_headrace_nth": 1}], "id")


# ---- beside others ----


@pytest.fixture
def meanwhile(table: Table, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What others do between the plan of a change and its commit."""
    todo: list[Callable[[], object]] = []
    finish = Stager.finish

    def finished(stager: Stager) -> Any:
        files = finish(stager)
        if stager._name.startswith(("merge", "delete", "update")) and todo:
            todo.pop(0)()
        return files

    monkeypatch.setattr(Stager, "finish", finished)
    return todo


def test_rows_that_come_meanwhile_are_seen(table: Table, meanwhile: list[Callable[[], object]]) -> None:
    meanwhile.append(lambda: table.bulk_insert([row(77)]))
    assert table.upsert([row(77, "mine")], "id").updated == 1
    meanwhile.append(lambda: table.bulk_insert([row(78)]))
    assert table.delete("id >= 77").rows == 2
    meanwhile.append(lambda: table.optimize())
    table.bulk_insert([row(9)])
    assert table.update("id = 0", {"shop": "'x'"}).rows == 1
    meanwhile.append(lambda: table.update_schema(add={"more": "int"}))
    assert table.update("id = 0", {"shop": "'y'"}).rows == 1
    assert by_id(table) == {**dict.fromkeys(range(10), "north"), 0: "y"}
    written = {path.name for path in Path(table.path).rglob("*.parquet")}
    assert written <= _added(table), "what was not committed is deleted"


@pytest.mark.parametrize(
    "once",
    [iter, lambda rows: (each for each in rows), lambda rows: pa.Table.from_pylist(rows).to_reader()],
    ids=["iterator", "generator", "reader"],
)
def test_records_that_can_be_read_once_survive_a_second_attempt(
    table: Table, meanwhile: list[Callable[[], object]], once: Callable[[Any], Any]
) -> None:
    meanwhile.append(lambda: table.bulk_insert([row(77)]))
    done = table.upsert(once([row(1, "mine"), row(50, "mine")]), "id")
    assert not meanwhile
    assert (done.inserted, done.updated) == (1, 1)
    assert {id for id, shop in by_id(table).items() if shop == "mine"} == {1, 50}


def _added(table: Table) -> set[str]:
    """Every file that any version added."""
    logs = Path(table.path, "_delta_log").glob("*.json")
    lines = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    return {Path(each["add"]["path"]).name for each in lines if "add" in each}


def test_who_never_comes_first_is_told_so(
    table: Table, meanwhile: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.table.ownership.sleep", lambda _: None)
    meanwhile += [lambda: table.bulk_insert([row(77)])] * 20
    with pytest.raises(ConcurrentModification) as refused:
        table.delete("id = 1")
    assert refused.value.retryable
    assert refused.value.version == 11
    assert 1 in by_id_twice(table)


def replaced(table: Table) -> None:
    """Somebody drops the table and creates another one at its path, with the same columns and a row of its own."""
    shutil.rmtree(table.path)
    Table.get_or_create(table.path, COLUMNS, ["day"]).bulk_insert([row(1, "new table")])


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.upsert([row(1, "mine"), row(50, "mine")], "id"),
        lambda table: table.delete("id = 1"),
        lambda table: table.update("id = 1", {"shop": "'mine'"}),
    ],
)
@pytest.mark.parametrize("after_a_conflict", [False, True])
def test_a_replaced_table_ends_the_operation(
    table: Table,
    meanwhile: list[Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Table], object],
    after_a_conflict: bool,
) -> None:
    if after_a_conflict:  # in the pause before the next attempt
        meanwhile.append(lambda: table.bulk_insert([row(77)]))
        monkeypatch.setattr("headrace.table.ownership.sleep", lambda _: replaced(table))
    else:  # between the plan of the change and its commit
        meanwhile.append(lambda: replaced(table))
    with pytest.raises(TableReplaced, match="Run the operation again"):
        change(table)
    assert by_id(table) == {1: "new table"}
    assert table.resolve() == 1


def by_id_twice(table: Table) -> set[int]:
    return {each["id"] for each in table.query().records()}


def test_a_lost_reply_is_no_second_change(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LogWriter._put
    monkeypatch.setattr(LogWriter, "_put", lambda tail, version, text: put(tail, version, text) and None)
    assert table.update("id = 1", {"seq": "coalesce(seq, 0) + 1"}).version == 2
    assert by_id(table, "seq")[1] == 1
    assert table.resolve() == 2


def test_a_table_that_only_takes_rows_refuses(table: Table) -> None:
    table.set_properties({"delta.appendOnly": "true"})
    for do in (
        lambda: table.upsert([row(1)], "id"),
        lambda: table.delete("true"),
        lambda: table.update("true", {"seq": 1}),
    ):
        with pytest.raises(OperationDisabled, match="appendOnly"):
            do()


def test_change_data_is_kept(tmp_path: Path) -> None:
    table = Table.get_or_create(
        tmp_path / "t", {"id": "bigint", "v": "string", "p": "int"}, ["p"], {"delta.enableChangeDataFeed": "true"}
    )
    table.bulk_insert([{"id": 1, "v": "a", "p": 1}, {"id": 2, "v": "a", "p": 1}, {"id": 3, "v": "a", "p": 2}])
    table.upsert([{"id": 1, "v": "b", "p": 2}, {"id": 9, "v": "b", "p": 9}], "id")
    table.delete("id = 2")
    table.update("id = 3", {"v": "'c'"})
    told = {
        (each["_commit_version"], each["_change_type"], each["id"], each["v"], each["p"])
        for each in table.changes(2).records()
    }
    assert told == {
        (2, "update_preimage", 1, "a", 1),
        (2, "update_postimage", 1, "b", 2),
        (2, "insert", 9, "b", 9),
        (3, "delete", 2, "a", 1),
        (4, "update_preimage", 3, "a", 2),
        (4, "update_postimage", 3, "c", 2),
    }


# ---- the law ----

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "upsert", "sequence", "delete", "soft", "update", "insert", "optimize"]),
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 9)), max_size=5),
        st.integers(0, 9),
    ),
    max_size=6,
)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_any_life_of_a_table_is_as_its_model_has_it(tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    path = tmp_path_factory.mktemp("life") / "t"
    table = Table.get_or_create(path, {"id": "bigint", "p": "int", "v": "bigint", "_deleted": "boolean"}, ["p"])
    model: dict[int, dict[str, Any]] = {}
    for operation, changes, at in steps:
        records = [{"id": id, "p": p, "v": v} for id, p, v in changes]
        _apply(table, model, operation, records, at)
        assert {each["id"]: each for each in table.query().with_deleted().records()} == model
        assert table.history(1)[0].rows_after == len(model)


def _apply(table: Table, model: dict[int, dict[str, Any]], operation: str, records: Any, at: int) -> None:
    whole = [{**each, "_deleted": None} for each in records]
    if operation == "upsert":
        done = table.upsert(records, "id")
        assert done.inserted == len({each["id"] for each in records} - model.keys())
        model |= {each["id"]: each for each in whole}
    elif operation == "sequence":
        table.upsert(records, "id", sequence_by="v")
        for each in whole:
            if each["id"] not in model or each["v"] >= model[each["id"]]["v"]:
                model[each["id"]] = each
    elif operation == "delete":
        assert table.delete(f"v = {at}").rows == sum(each["v"] == at for each in model.values())
        for id in [id for id, each in model.items() if each["v"] == at]:
            del model[id]
    elif operation == "soft":
        table.update(f"v > {at}", {"_deleted": True})
        model |= {id: {**each, "_deleted": True} for id, each in model.items() if each["v"] > at}
    elif operation == "update":
        table.update(f"p = {at % 3}", {"v": f"v + {at}", "p": "(p + 1) % 3"})
        moved = {id: each for id, each in model.items() if each["p"] == at % 3}
        model |= {id: {**each, "v": each["v"] + at, "p": (each["p"] + 1) % 3} for id, each in moved.items()}
    elif operation == "insert":
        new = {each["id"]: each for each in whole if each["id"] not in model}
        table.bulk_insert([{name: each[name] for name in ("id", "p", "v")} for each in new.values()])
        model |= new
    else:
        table.optimize()


def test_many_keys_meet_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "v": "bigint"})
    for start in range(0, 50_000, 10_000):
        table.bulk_insert(pa.table({"id": range(start, start + 10_000), "v": pa.repeat(0, 10_000)}))
    chosen = random.Random(1).sample(range(20_000, 30_000), 1000)
    for path in Path(table.path).glob("*.parquet"):  # a file that is read without need is missed
        if not any(20_000 <= id < 30_000 for id in pa.parquet.read_table(path)["id"].to_pylist()):
            path.rename(path.with_suffix(".away"))
    done = table.upsert(pa.table({"id": chosen, "v": pa.repeat(1, 1000)}), "id")
    assert (done.inserted, done.updated) == (0, 1000)
    assert table.history(1)[0].metrics["numRemovedFiles"] == "1"
