"""Staged files of a rewrite whose commit fails: deleted if the commit certainly does not exist, else kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Table
from headrace.delta.log import LOG
from headrace.delta.log_writer import LogWriter
from headrace.errors import StorageUnreachable, TableGone
from headrace.stage.stager import Stager
from headrace.storage.local import LocalFolder
from headrace.write.row_edit import EditAttempt

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "day": ["a", "a", "b"]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "day": "string"})
    table.bulk_insert(ROWS)
    return table


def data_files(table: Table) -> set[Path]:
    return set(Path(table.path).rglob("*.parquet"))


OPERATIONS: dict[str, Callable[[Table], object]] = {
    "delete": lambda table: table.delete("id = 1"),
    "update": lambda table: table.update("id = 1", {"day": "'c'"}),
    "upsert": lambda table: table.upsert([{"id": 1, "day": "z"}], "id"),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_files_are_deleted_if_the_table_is_gone(
    table: Table, monkeypatch: pytest.MonkeyPatch, operation: Callable[[Table], object]
) -> None:
    stage = EditAttempt._stage

    def stage_then_drop(attempt: EditAttempt) -> Any:
        files = stage(attempt)
        shutil.rmtree(Path(table.path) / LOG)
        return files

    monkeypatch.setattr(EditAttempt, "_stage", stage_then_drop)
    before = data_files(table)
    with pytest.raises(TableGone):
        operation(table)
    assert data_files(table) == before


def test_files_are_deleted_if_the_log_is_unreachable_before_the_commit(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> Any:
        raise StorageUnreachable("connection refused")

    rewrite = LogWriter.rewrite

    def rewrite_unreachable(writer: LogWriter, *arguments: Any, **options: Any) -> int:
        monkeypatch.setattr(LocalFolder, "tag", unreachable)
        return rewrite(writer, *arguments, **options)

    monkeypatch.setattr(LogWriter, "rewrite", rewrite_unreachable)
    before = data_files(table)
    with pytest.raises(StorageUnreachable):
        table.delete("id = 1")
    assert data_files(table) == before


def test_files_are_deleted_if_the_log_cannot_be_opened(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any) -> Any:
        raise StorageUnreachable("the log cannot be read")

    stage = EditAttempt._stage

    def stage_then_fail(attempt: EditAttempt) -> Any:
        files = stage(attempt)
        monkeypatch.setattr(LogWriter, "open", unreachable)
        return files

    monkeypatch.setattr(EditAttempt, "_stage", stage_then_fail)
    before = data_files(table)
    with pytest.raises(StorageUnreachable):
        table.delete("id = 1")
    assert data_files(table) == before


def test_files_are_kept_if_the_commit_may_still_appear(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that timed out may be executed after its client gave up: its version then refers to the files."""
    put_new, requests = LocalFolder.put_new, list[tuple[LocalFolder, str, bytes]]()

    def time_out(folder: LocalFolder, path: str, data: bytes) -> str:
        requests.append((folder, path, data))
        raise StorageUnreachable("timed out")

    monkeypatch.setattr(LocalFolder, "put_new", time_out)
    with pytest.raises(StorageUnreachable):
        table.delete("id = 1")
    for request in requests:
        put_new(*request)
    assert sorted(row["id"] for row in Table(table.path).query().records()) == [2, 3]


def test_files_are_kept_if_the_answer_of_the_log_cannot_be_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version was put, its response was lost, and the log cannot be read to find out."""
    put_new = LocalFolder.put_new

    def lose_response(folder: LocalFolder, path: str, data: bytes) -> str:
        put_new(folder, path, data)
        monkeypatch.setattr(LocalFolder, "tag", unreachable)
        raise StorageUnreachable("connection reset")

    def unreachable(*_: Any) -> Any:
        raise StorageUnreachable("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "put_new", lose_response)
        with pytest.raises(StorageUnreachable):
            table.delete("id = 1")
    monkeypatch.undo()
    assert sorted(row["id"] for row in Table(table.path).query().records()) == [2, 3]


def test_files_of_an_insert_are_deleted_if_the_table_is_gone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Stager.finish

    def finish_then_drop(stager: Stager) -> Any:
        files = finish(stager)
        shutil.rmtree(Path(table.path) / LOG)
        return files

    monkeypatch.setattr(Stager, "finish", finish_then_drop)
    before = data_files(table)
    with pytest.raises(TableGone):
        table.bulk_insert(ROWS)
    assert data_files(table) == before


def test_files_of_an_insert_are_kept_if_the_commit_may_still_appear(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_out(*_: Any) -> str:
        raise StorageUnreachable("timed out")

    monkeypatch.setattr(LocalFolder, "put_new", time_out)
    before = data_files(table)
    with pytest.raises(StorageUnreachable):
        table.bulk_insert(ROWS)
    assert len(data_files(table) - before) == 1
