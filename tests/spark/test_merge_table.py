"""Merges by Spark: the model's table, once for each batch, whoever comes again, beside others."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.batch_commits import newest_part
from headrace.delta.features import append_blocker
from headrace.delta.snapshot import load_state
from headrace.errors import CommitConflict, TableChanged
from headrace.write.intent import MergeRules
from headrace.write.merge_sql import MergeSql
from model.merging import Change, Model
from services.changes import Merged, cut, goes_in_once, log
from services.staging import intent, opened
from services.wait import eventually

BY_SEQUENCE = MergeRules(("id",), sequence="seq", tombstone_retention=3600)
PARTIAL = MergeRules(("id",), partial=True, ignore_nulls=True, tombstone_retention=3600)
MARK = "headrace:shop"


@pytest.fixture(autouse=True)
def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """No merge is small enough to be done without Spark."""
    monkeypatch.setattr(Merged, "in_process_bytes", 0)


def test_a_log_in_any_order_with_duplicates_ends_as_the_log_in_order(spark: Any, tmp_path: Path) -> None:
    made, changes = Merged(spark, tmp_path, BY_SEQUENCE), log(3000, 400, seed=1)
    mixed = [*changes, *changes[::5]]
    random.Random(2).shuffle(mixed)
    for number, batch in enumerate(cut(mixed, 4), 1):
        made.batch(batch, number)
    in_order = sorted(changes, key=lambda each: each.sequence or 0)
    assert made.rows() == Model(BY_SEQUENCE).take(in_order).table()
    state = load_state(made.table, [MARK])
    assert state is not None
    assert state.txns == {MARK: 4}
    assert "headrace.writer is 'merge'" in (append_blocker(state) or "")


def test_who_merges_may_change_with_every_batch(spark: Any, tmp_path: Path) -> None:
    """Each finds what the other has committed, and its tombstones."""
    made, changes = Merged(spark, tmp_path, BY_SEQUENCE), log(800, 100, seed=11)
    for number, batch in enumerate(cut([*changes[::-1], *changes[::7]], 5), 1):
        made.in_process_bytes = number % 2 * 1_000_000
        made.batch(batch, number)
    in_order = sorted(changes, key=lambda each: each.sequence or 0)
    assert made.rows() == Model(BY_SEQUENCE).take(in_order).table()
    found = spark.sql(f"SELECT id, seq, a, b FROM delta.`{made.table.spark_uri}`").collect()
    assert {row.id: (row.seq, row.a, row.b) for row in found} == made.rows()
    said = [
        commit["engineInfo"].split("/")[0] for commit in opened(made.table).history() if "MERGE" in commit["operation"]
    ]
    assert said == ["headrace", "Apache-Spark", "headrace", "Apache-Spark", "headrace"]


def test_partial_changes_and_a_truncate(spark: Any, tmp_path: Path) -> None:
    made, changes = Merged(spark, tmp_path, PARTIAL), log(600, 100, seed=3, sequences=False, deletes=0.1)
    changes[450:450] = [Change("truncate", partition=0, offset=450, at=449)]
    for number, batch in enumerate(cut(changes, 2), 1):
        made.batch(batch, number)
    made.batch([Change("put", 999, values=(1, 1), partition=1, offset=999, at=100)], 3)  # a partition that was behind
    assert made.rows() == Model(PARTIAL).take(changes).table()


def test_a_batch_goes_in_once_and_a_zombie_never(spark: Any, tmp_path: Path) -> None:
    goes_in_once(Merged(spark, tmp_path, BY_SEQUENCE))


def test_delta_itself_skips_a_batch_that_it_has(spark: Any, tmp_path: Path) -> None:
    """The reply is lost and the log is not looked at: the MERGE alone must not count twice."""
    made = Merged(spark, tmp_path, MergeRules(("id",), partial=True, columns=("a",), tombstone_retention=60))
    made.batch([Change("put", 1, values=(1, 1))], 1)
    part, driver = made.part([Change("put", 1, values=(2, 2), offset=5)], 2), made.open()
    driver.commit(part, intent(2))
    version = opened(made.table).version()
    spark.sql(f"UPDATE delta.`{made.table.spark_uri}` SET a = 9, _source = NULL")
    driver._write(part, intent(2))
    assert opened(made.table).version() == version + 1
    assert made.rows() == {1: (None, 9, 1)}


def test_a_batch_that_changes_nothing_is_marked_too(spark: Any, tmp_path: Path) -> None:
    made = Merged(spark, tmp_path, BY_SEQUENCE)
    made.batch([Change("put", 1, 5, (5, 5))], 1)
    late = made.batch([Change("put", 1, 4, (4, 4), offset=1), Change("delete", 7, 1, offset=2)], 2)
    assert (late.inserted, late.updated, late.deleted) == (0, 0, 0)
    assert opened(made.table).transaction_version(MARK) == 2
    assert made.rows() == {1: (5, 5, 5)}
    part = newest_part(made.table, late.version, MARK)
    assert part is not None
    assert part.rows == 2, "what the batch brought, not what the MERGE wrote"
    assert part.txns == {MARK: 2, f"{MARK}:orders:0": 19}


def test_a_deleted_row_does_not_come_back_by_an_older_change(spark: Any, tmp_path: Path) -> None:
    made = Merged(spark, tmp_path, BY_SEQUENCE)
    made.batch([Change("delete", 1, 10)], 1)
    made.batch([Change("put", 1, 9, (9, 9), offset=1), Change("put", 2, 1, (1, 1), offset=2)], 2)
    assert made.rows() == {2: (1, 1, 1)}
    made.batch([Change("put", 1, 11, (11, 11), offset=3)], 3)
    assert made.rows() == {1: (11, 11, 11), 2: (1, 1, 1)}


def test_files_outside_the_keys_of_a_batch_are_not_even_read(spark: Any, tmp_path: Path) -> None:
    made = Merged(spark, tmp_path, BY_SEQUENCE)
    for number in (1, 2):
        made.batch([Change("put", number * 1000 + at, 1, (at, at), offset=number) for at in range(3)], number)
    for file in pa.table(opened(made.table).get_add_actions(flatten=True)).to_pylist():
        if file["max.id"] < 2000:
            (Path(made.table.root) / file["path"]).unlink()
    assert made.batch([Change("put", 2001, 2, (7, 7), offset=3)], 3).updated == 1


def test_only_the_partitions_that_the_keys_name_are_read(spark: Any, tmp_path: Path) -> None:
    made = Merged(spark, tmp_path, MergeRules(("a", "id"), tombstone_retention=3600), partition_by=("a",))
    made.batch([Change("put", 1, 1, (at, 1), offset=at) for at in (1, 2, 3)], 1)
    for path in Path(made.table.root).glob("a=2/*.parquet"):
        path.unlink()
    done = made.batch([Change("put", 1, 1, (at, 2), offset=10 + at) for at in (1, 3)], 2)
    assert (done.inserted, done.updated) == (0, 2)


def test_rows_that_move_to_another_partition_are_there_once(spark: Any, tmp_path: Path) -> None:
    made = Merged(spark, tmp_path, BY_SEQUENCE, partition_by=("a",))
    made.batch([Change("put", 1, 1, (1, 1)), Change("put", 2, 1, (1, 1), offset=1)], 1)
    made.batch([Change("put", 1, 2, (2, 1), offset=2)], 2)
    assert made.rows() == {1: (2, 2, 1), 2: (1, 1, 1)}


def test_who_changes_the_same_rows_meanwhile_is_met_with_fresh_state(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Merged(spark, tmp_path, BY_SEQUENCE)
    made.batch([Change("put", key, 1, (1, 1), offset=key) for key in range(5)], 1)
    part = made.part([Change("put", key, 2, (2, 2), offset=100 + key) for key in range(5)], 2)
    driver, begun, go = made.open(), tmp_path / "begun", tmp_path / "go"
    driver.merge._spark_merge._own_session().udf.register(
        "held", _holding(str(begun), str(go), str(Path(__file__).parents[1])), "boolean"
    )
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(MergeSql, "_live", lambda *_: "SELECT c.* FROM changes AS c WHERE held(c.id)")
        merging = pool.submit(driver.commit, part, intent(2))
        eventually(begun.exists, 60, "the merge reads its changes")
        spark.sql(f"UPDATE delta.`{made.table.spark_uri}` SET b = 9 WHERE id = 3")
        go.touch()
        with pytest.raises(CommitConflict, match="at the same time"):
            merging.result(60)
    assert driver.commit(part, intent(2)).updated == 5
    assert {row[0] for row in made.rows().values()} == {2}


def _holding(begun: str, go: str, tests: str) -> Callable[[int], bool]:
    """Goes by value into the worker, which has to be told where the tests are."""

    def held(_: int) -> bool:
        import sys
        from pathlib import Path

        sys.path.append(tests)
        from services.wait import eventually

        Path(begun).touch()
        return eventually(Path(go).exists, within=60)

    return held


def test_a_table_that_somebody_else_made_meanwhile_is_left_alone(spark: Any, tmp_path: Path) -> None:
    made = Merged(spark, tmp_path, BY_SEQUENCE)
    part = made.part([Change("put", 1, 1)], 1)
    spark.sql(f"CREATE TABLE delta.`{made.table.spark_uri}` (id BIGINT) USING delta")
    with pytest.raises(TableChanged):
        made.open().commit(part, intent(1))
