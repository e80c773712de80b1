"""Tables that only Spark may write (column mapping, constraints, generated columns): the same promises as for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.delta.features import append_blocker
from headrace.errors import Fenced, TableChanged, TableFeature
from headrace.storage.store import Store
from headrace.write.append import AppendWriter
from headrace.write.intent import TableIntent
from headrace.write.leased_writer import LeasedWriter
from services.staging import SCHEMA, intent, staged, table_intent

TABLES = {
    "mapped": "(id BIGINT, day STRING) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    "checked": "(id BIGINT, day STRING) USING delta TBLPROPERTIES ('delta.constraints.small' = 'id < 1000')",
    "generated": "(id BIGINT, day STRING, twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta",
    "partitioned": (
        "(id BIGINT, day STRING, tens BIGINT GENERATED ALWAYS AS (CAST(id / 10 AS BIGINT))) "
        "USING delta PARTITIONED BY (tens)"
    ),
    "required": "(id BIGINT, day STRING NOT NULL DEFAULT 'x') USING delta "
    "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
    "forgetful": "(id BIGINT, day STRING) USING delta TBLPROPERTIES "
    "('delta.constraints.small' = 'id < 1000', 'delta.setTransactionRetentionDuration' = 'interval 1 days')",
}


class Bench:
    """One table, where its files are staged, and how a driver opens it."""

    def __init__(self, spark: Any, folder: Path, columns: str) -> None:
        self.spark, self.table, self.staging = spark, Store(str(folder / "t")), Store(str(folder / "staging"))
        spark.sql(f"CREATE TABLE delta.`{self.table.spark_uri}` {columns}")

    def open(self) -> LeasedWriter:
        return LeasedWriter(lambda: self.spark, self.table, "shop", self.staging.child("tombstones"), 0)

    def part(self, values: list[int]) -> TableIntent:
        state = self.open().state
        assert state is not None
        return table_intent(self.table, [staged(self.staging, values)], state.table_id)

    def ids(self) -> list[int]:
        return sorted(row.id for row in self.spark.read.format("delta").load(self.table.spark_uri).collect())

    def version(self) -> int:
        state = self.open().state
        assert state is not None
        return state.version


@pytest.fixture
def bench(spark: Any, tmp_path: Path) -> Callable[[str], Bench]:
    return lambda name: Bench(spark, tmp_path, TABLES[name])


@pytest.mark.parametrize("name", ["mapped", "checked", "generated", "partitioned"])
def test_a_batch_goes_in_once_and_a_zombie_never(bench: Callable[[str], Bench], name: str) -> None:
    made = bench(name)
    state = AppendWriter.open(made.table, "shop").state
    assert state is not None
    assert append_blocker(state), "a blind append must not touch it"
    zombie, heir = made.open(), made.open()
    first = made.part([1, 2])
    assert not heir.commit(first, intent(1)).skipped
    version = made.version()
    for driver in (heir, made.open(), zombie):
        assert driver.commit(first, intent(1)).skipped
    assert made.version() == version
    heir.commit(made.part([13]), intent(2))
    version = made.version()
    with pytest.raises(Fenced):
        zombie.commit(first, intent(1))
    assert made.version() == version
    assert made.ids() == [1, 2, 13]


@pytest.mark.parametrize("name", ["checked", "generated"])
def test_every_file_of_the_table_has_its_schema(bench: Callable[[str], Bench], name: str) -> None:
    made = bench(name)
    driver = made.open()
    for batch in (1, 2):
        driver.commit(made.part([batch]), intent(batch))
    assert driver.state is not None
    for file in Path(made.table.root).glob("*.parquet"):
        found = pq.read_schema(file)
        assert [(each.name, each.type) for each in found] == [(each.name, each.type) for each in driver.state.schema]


def test_a_table_whose_txns_expire_is_refused(bench: Callable[[str], Bench]) -> None:
    made = bench("forgetful")
    part, version = made.part([1]), made.version()
    with pytest.raises(TableFeature, match="--unset"):
        made.open().commit(part, intent(1))
    assert made.version() == version


def test_rows_that_break_a_constraint_leave_nothing_behind(bench: Callable[[str], Bench]) -> None:
    made = bench("checked")
    version = made.version()
    with pytest.raises(TableChanged, match="small"):
        made.open().commit(made.part([999, 1000]), intent(1))
    assert made.version() == version
    made.open().commit(made.part([999]), intent(1))
    assert made.ids() == [999]


def test_a_null_where_the_table_allows_none_is_refused(bench: Callable[[str], Bench]) -> None:
    made = bench("required")
    version = made.version()
    with pytest.raises(TableChanged):
        made.open().commit(made.part([1]), intent(1))  # `day` is NULL in every staged file
    assert made.version() == version


def test_a_file_whose_types_are_not_the_ones_it_claims_is_refused(bench: Callable[[str], Bench]) -> None:
    made = bench("checked")
    version, part = made.version(), made.part([1])
    wrong = pa.table({"id": ["one"], "day": ["d"]})
    pq.write_table(wrong, Path(made.staging.root) / part.files[0].path)
    with pytest.raises(TableChanged):
        made.open().commit(part, intent(1))
    assert made.version() == version


def test_rows_of_another_spark_writer_stay(bench: Callable[[str], Bench]) -> None:
    made = bench("checked")
    driver = made.open()
    for batch in (1, 2, 3):
        made.spark.sql(f"INSERT INTO delta.`{made.table.spark_uri}` VALUES ({-batch}, 'theirs')")
        driver.commit(made.part([batch]), intent(batch))
    assert made.ids() == [-3, -2, -1, 1, 2, 3]


def test_columns_that_spark_computes_are_not_asked_of_records(bench: Callable[[str], Bench]) -> None:
    made = bench("generated")
    assert made.open().writable().names == SCHEMA.names
    made.open().commit(made.part([4]), intent(1))
    (row,) = made.spark.read.format("delta").load(made.table.spark_uri).collect()
    assert (row.id, row.twice) == (4, 8)
