"""Tables written by `headrace.Table` get log checkpoints, and each commit tells how long its operation took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Table
from headrace.delta import checkpoints
from headrace.delta.log import LOG


def checkpoints_of(table: Table) -> list[int]:
    assert checkpoints.SHARED.wait(30)
    return sorted(int(path.name[:20]) for path in Path(table.path, LOG).glob("*.checkpoint.parquet"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.get_or_create(tmp_path / "t", {"id": "bigint"}, properties={"delta.checkpointInterval": "5"})


def test_every_interval_of_a_table_s_own_commits_has_a_log_checkpoint(table: Table) -> None:
    for number in range(12):
        table.bulk_insert([{"id": number}])
        checkpoints_of(table)
    assert checkpoints_of(table) == [5, 10]
    table.update("id = 1", {"id": 100})
    table.delete("id = 2")
    table.optimize()
    assert checkpoints_of(table)[-1] >= 15
    assert table.query().count() == 11


def test_scripts_that_commit_once_each_make_them_as_well(table: Table) -> None:
    for number in range(3):
        table.bulk_insert([{"id": number}])
    script = f"import headrace; headrace.Table({table.path!r}).bulk_insert([{{'id': 9}}])"
    for _ in range(3):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert table.resolve() == 6
    (made,) = checkpoints_of(table)
    assert made in (5, 6)


def test_creates_inserts_and_compactions_tell_how_long_they_took(table: Table) -> None:
    for number in range(3):
        table.bulk_insert([{"id": number}])
    table.optimize()
    told = {entry.operation: int(entry.metrics["executionTimeMs"]) for entry in table.history()}
    assert set(told) == {"CREATE TABLE", "WRITE", "OPTIMIZE"}
    assert min(told.values()) >= 1
    assert set(table.operation_metrics().history) == {"CREATE TABLE", "WRITE", "OPTIMIZE"}
    assert table.operation_metrics().history["WRITE"].count == 3
