"""The hot table has the rows of its Delta table, whatever is done to that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace import Table
from headrace.delta.schema import SOURCE
from headrace.errors import HotStoreTableInvalid
from services.hot_stores import Followed, sources
from services.postgres import Database


@pytest.fixture
def orders(tmp_path: Path, database: Database) -> Iterator[Followed]:
    orders = Followed(tmp_path, database)
    yield orders
    orders.restart()


def states(orders: Followed) -> list[tuple[str, int]]:
    return [(event["state"], event["rows"]) for event in orders.events]


def test_appends_follow_in_order(orders: Followed):
    orders.orders(1, 2)
    orders.catch_up()
    orders.orders(3)
    orders.orders(4)
    orders.catch_up()
    orders.catch_up()
    orders.check_equal()
    assert states(orders) == [("loaded", 2), ("applied", 2)]
    [row] = [row for row in orders.hot() if row["number"] == 4]
    assert (row["_source_topic"], row["_source_partition"], row["_source_offset"], row["_source_row"]) == (
        "orders",
        0,
        4,
        0,
    )


def test_a_restart_continues_at_the_position(orders: Followed):
    orders.orders(1)
    orders.catch_up()
    orders.restart()
    orders.orders(2)
    orders.catch_up()
    orders.check_equal()
    assert states(orders) == [("loaded", 1), ("applied", 1)]


def test_a_compaction_changes_nothing(orders: Followed):
    for offset in range(5):
        orders.orders(offset)
    orders.catch_up()
    DeltaTable(orders.path).optimize.compact()
    orders.orders(5)
    orders.catch_up()
    orders.check_equal()
    assert states(orders) == [("loaded", 5), ("applied", 1)]


def test_deletes_updates_and_restores_arrive(orders: Followed):
    orders.orders(1, 2, 3)
    orders.catch_up()
    table = Table(orders.path)
    table.delete("number = 2")
    orders.catch_up()
    assert orders.numbers() == [1, 3]
    table.update("number = 3", {"number": "number * 10"})
    orders.catch_up()
    assert orders.numbers() == [1, 30]
    orders.check_equal()
    table.restore(0)
    orders.catch_up()
    assert orders.numbers() == [1, 2, 3]
    assert {state for state, _ in states(orders)[1:]} == {"applied"}


def test_an_overwrite_replaces_the_rows(orders: Followed):
    orders.orders(1, 2, 3)
    orders.catch_up()
    orders.append(pa.table({"number": pa.array([7], pa.int64()), SOURCE.name: sources([2])}))
    DeltaTable(orders.path).delete("number < 7")
    orders.catch_up()
    orders.check_equal()


def test_rows_of_one_record_are_told_apart(orders: Followed):
    """A list that was exploded; a delete of one of its elements cannot be told by the record alone."""
    orders.append(pa.table({"number": pa.array([1, 2, 3], pa.int64()), SOURCE.name: sources([5, 5, 6])}))
    orders.catch_up()
    orders.append(pa.table({"number": pa.array([4, 5], pa.int64()), SOURCE.name: sources([7, 7])}))
    orders.catch_up()
    assert [(row["_source_offset"], row["_source_row"]) for row in orders.hot()] == [
        (5, 0),
        (5, 1),
        (6, 0),
        (7, 0),
        (7, 1),
    ]
    DeltaTable(orders.path).delete("number in (2, 4)")
    orders.catch_up()
    orders.check_equal()
    # A row of a record whose other rows the table has already, as a reingest adds it.
    orders.append(pa.table({"number": pa.array([2], pa.int64()), SOURCE.name: sources([5])}))
    orders.catch_up()
    orders.check_equal()


def test_elements_in_other_files_survive_a_delete(orders: Followed):
    rows = pa.table({"number": pa.array([1, 2], pa.int64()), "day": ["a", "b"], SOURCE.name: sources([5, 5])})
    orders.append(rows, partition_by=["day"])
    orders.catch_up()
    DeltaTable(orders.path).delete("day = 'a'")
    orders.catch_up()
    assert orders.numbers() == [2]
    orders.check_equal()


def test_rows_without_a_position(orders: Followed):
    """As another program inserts them; a delete cannot name them."""
    orders.orders(1)
    orders.append(pa.table({"number": pa.array([8, 8], pa.int64()), SOURCE.name: pa.nulls(2, SOURCE.type)}))
    orders.catch_up()
    orders.append(pa.table({"number": pa.array([9], pa.int64()), SOURCE.name: pa.nulls(1, SOURCE.type)}))
    orders.catch_up()
    DeltaTable(orders.path).delete("number = 8")
    orders.catch_up()
    assert sorted(orders.numbers()) == [1, 9]
    assert states(orders) == [("loaded", 3), ("applied", 1), ("loaded", 2)]


def test_columns_and_types_follow(orders: Followed):
    orders.orders(1)
    orders.catch_up()
    orders.orders(2, name="two", price=1.5)
    orders.catch_up()
    assert [(row["name"], row["price"]) for row in orders.hot()] == [(None, None), ("two", 1.5)]
    orders.restart()
    orders.orders(3, name="three")
    orders.catch_up()
    orders.check_equal()


def test_a_table_that_was_created_again_is_loaded_again(orders: Followed, tmp_path: Path):
    orders.orders(1, 2)
    orders.catch_up()
    (tmp_path / "lake" / "orders").rename(tmp_path / "old")
    orders.orders(2, 3)
    orders.catch_up()
    orders.check_equal()


@pytest.mark.parametrize("restart", [False, True])
def test_a_cleaned_log_and_vacuumed_files_are_no_gap(orders: Followed, restart: bool):
    orders.orders(1)
    orders.catch_up()
    for offset in (2, 3, 4):
        orders.orders(offset)
    table = DeltaTable(orders.path)
    table.optimize.compact()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    if restart:  # of the log, only the checkpoint and what follows is left
        orders.restart()
        table.create_checkpoint()
        for version in range(table.version()):
            Path(orders.path, "_delta_log", f"{version:020}.json").unlink()
    orders.catch_up()
    orders.check_equal()
    assert states(orders) == [("loaded", 1), ("loaded", 4)]


def test_a_dropped_hot_table_is_loaded_again(orders: Followed):
    orders.orders(1)
    orders.catch_up()
    orders.database.query("DROP TABLE headrace.orders")
    orders.orders(2)
    with pytest.raises(HotStoreTableInvalid, match="does not exist"):
        orders.catch_up()
    orders.catch_up()
    orders.check_equal()


def test_a_table_with_rows_of_others_is_not_touched(orders: Followed):
    role = orders.database.role
    orders.database.query(
        f"SET ROLE {role}; CREATE TABLE headrace.orders (number bigint); INSERT INTO headrace.orders VALUES (7)"
    )
    orders.orders(1)
    with pytest.raises(HotStoreTableInvalid, match="has rows, and headrace_positions does not tell"):
        orders.catch_up()
    assert orders.database.query("SELECT * FROM headrace.orders") == [(7,)]
    orders.database.query("TRUNCATE headrace.orders")  # the way out
    orders.catch_up()
    orders.check_equal()


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("number text", "the column 'number' of type text cannot hold all values of long; bigint can"),
        ("number bigint, shop text NOT NULL", "the column 'shop' is NOT NULL"),
        ("number bigint GENERATED ALWAYS AS IDENTITY", "the column 'number' of type bigint cannot"),
    ],
)
def test_a_table_that_cannot_hold_the_rows(orders: Followed, columns: str, reason: str):
    orders.database.query(f"SET ROLE {orders.database.role}; CREATE TABLE headrace.orders ({columns})")
    orders.orders(1)
    with pytest.raises(HotStoreTableInvalid, match=reason):
        orders.catch_up()


@pytest.mark.parametrize("name", ["x" * 64, "ctid", "_source_row"])
def test_names_that_postgresql_does_not_take(orders: Followed, name: str):
    orders.orders(1, **{name: "a"})
    with pytest.raises(HotStoreTableInvalid, match=name):
        orders.catch_up()


def test_names_are_quoted(orders: Followed):
    names: list[Any] = ['a"; DROP TABLE x; --', "Größe", "select", "%s", "{table}", "x" * 63]
    orders.orders(1, **dict.fromkeys(names, "v"))
    orders.catch_up()
    [row] = orders.hot()
    assert [row[name] for name in names] == ["v"] * len(names)
