"""What every kind of committer promises, whoever writes the table; a new kind adds one line to KINDS."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.errors import Fenced, TableChanged, TableGone, TableReplaced
from headrace.storage.store import Store
from headrace.write.append import AppendWriter
from headrace.write.intent import TableIntent
from headrace.write.table_writer import TableWriter
from services.staging import SCHEMA, WIDER, ids, intent, opened, rows, staged, table_intent


@dataclass
class Bench:
    """An empty table of one kind, where its files are staged, and how a driver opens it."""

    table: Store
    staging: Store
    open: Callable[[], TableWriter]
    make: Callable[[], None]

    def part(self, values: list[int], driver: TableWriter, schema: pa.Schema = SCHEMA) -> TableIntent:
        """A batch's part in the table: one new file with these ids."""
        return table_intent(self.table, [staged(self.staging, values)], known(driver), schema=schema)


def known(driver: TableWriter) -> str:
    assert driver.state is not None
    return driver.state.table_id


def _adopted(folder: Path, _: pytest.FixtureRequest) -> Bench:
    store = Store(str(folder / "orders"))

    def make() -> None:
        born = AppendWriter.open(store, "maker")
        born.commit(table_intent(store, [], str(uuid.uuid4()), create=True), intent(1, "maker"))

    return Bench(store, store, lambda: AppendWriter.open(store, "shop"), make)


def _by_spark(folder: Path, request: pytest.FixtureRequest) -> Bench:
    from headrace.write.leased_writer import LeasedWriter

    spark: Any = request.getfixturevalue("spark")
    store = Store(str(folder / "orders"))

    def make() -> None:
        spark.sql(
            f"CREATE TABLE delta.`{store.spark_uri}` (id BIGINT, day STRING) USING delta "
            "TBLPROPERTIES ('delta.constraints.whole' = 'id > -100')"
        )

    staging = Store(str(folder / "staging"))

    def open_writer() -> TableWriter:
        return LeasedWriter(lambda: spark, store, "shop", staging.child("tombstones"), 0)

    return Bench(store, staging, open_writer, make)


KINDS = {"adopt": _adopted, "spark": _by_spark}


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    made = KINDS[request.param](tmp_path, request)
    made.make()
    return made


def test_a_batch_is_there_with_its_txn_and_its_receipt(bench: Bench) -> None:
    driver = bench.open()
    part = bench.part([1, 2], driver)
    receipt = driver.commit(part, intent(1))
    assert ids(bench.table) == [1, 2]
    assert (receipt.path, receipt.rows, receipt.files, receipt.skipped) == (bench.table.uri, 2, 1, False)
    assert receipt.version == opened(bench.table).version()
    assert opened(bench.table).transaction_version("headrace:shop") == 1
    assert driver.state is not None
    assert driver.state.version == receipt.version


def test_the_same_batch_twice_changes_nothing(bench: Bench) -> None:
    driver = bench.open()
    part = bench.part([1, 2], driver)
    first = driver.commit(part, intent(1))
    again, recovered = driver.commit(part, intent(1)), bench.open().commit(part, intent(1))
    assert again.skipped
    assert recovered.skipped
    assert (again.rows, again.files, again.bytes) == (first.rows, first.files, first.bytes)
    assert opened(bench.table).version() == first.version
    assert ids(bench.table) == [1, 2]


def test_a_zombie_changes_nothing(bench: Bench) -> None:
    zombie, heir = bench.open(), bench.open()
    late = bench.part([7], zombie)
    heir.commit(bench.part([1], heir), intent(1))
    heir.commit(bench.part([2], heir), intent(2))
    version = opened(bench.table).version()
    for _ in range(2):
        with pytest.raises(Fenced):
            zombie.commit(late, intent(1))
    assert opened(bench.table).version() == version
    assert ids(bench.table) == [1, 2]


def test_batches_follow_each_other(bench: Bench) -> None:
    driver = bench.open()
    versions = [driver.commit(bench.part([batch], driver), intent(batch)).version for batch in (1, 2, 3)]
    assert versions == sorted(set(versions))
    assert ids(bench.table) == [1, 2, 3]


def test_a_batch_may_skip_numbers_a_table_was_not_part_of(bench: Bench) -> None:
    driver = bench.open()
    driver.commit(bench.part([1], driver), intent(3))
    driver.commit(bench.part([2], driver), intent(9))
    assert ids(bench.table) == [1, 2]


def test_columns_are_added_before_the_rows_that_bring_them(bench: Bench) -> None:
    driver = bench.open()
    driver.commit(bench.part([1], driver), intent(1))
    driver.evolve(WIDER)
    assert driver.writable().names == ["id", "day", "note"]
    driver.commit(bench.part([2], driver), intent(2))  # staged for the narrower schema: NULL in the new column
    assert rows(bench.table) == [{"id": 1, "day": None, "note": None}, {"id": 2, "day": None, "note": None}]


def test_a_column_that_others_dropped_does_not_come_back_with_a_new_one(bench: Bench) -> None:
    driver = bench.open()
    narrower = pa.schema([SCHEMA.field("id")])
    write_deltalake(bench.table.delta_uri, narrower.empty_table(), mode="overwrite", schema_mode="overwrite")
    version = opened(bench.table).version()
    for _ in range(2):  # a stop stays a stop
        with pytest.raises(TableChanged, match="column day is not in the table") as stop:
            driver.evolve(WIDER)
        assert "--accept-new-table" in stop.value.hint
    assert opened(bench.table).version() == version


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([pa.field("id", pa.string()), pa.field("day", pa.string())]),
        SCHEMA.append(pa.field("unknown", pa.string())),
    ],
    ids=["type", "name"],
)
def test_files_of_another_schema_are_refused(bench: Bench, schema: pa.Schema) -> None:
    driver = bench.open()
    version = opened(bench.table).version()
    with pytest.raises(TableChanged):
        driver.commit(bench.part([1], driver, schema), intent(1))
    assert opened(bench.table).version() == version


def test_a_table_that_is_gone_is_not_made_again(bench: Bench) -> None:
    driver = bench.open()
    part = bench.part([1], driver)
    shutil.rmtree(bench.table.root)
    with pytest.raises(TableGone):
        driver.commit(part, intent(1))
    assert bench.open().state is None


def test_a_recreated_table_is_left_alone(bench: Bench) -> None:
    driver = bench.open()
    part = bench.part([1], driver)
    shutil.rmtree(bench.table.root)
    bench.make()
    with pytest.raises(TableReplaced):
        driver.commit(part, intent(1))
    assert ids(bench.table) == []
