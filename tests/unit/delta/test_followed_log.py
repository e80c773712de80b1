"""A followed log returns what a load of the whole table returns, and loads it only if it must."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace import Table
from headrace.delta import followed_log, log_writer
from headrace.delta.followed_log import FollowedLog
from headrace.delta.snapshot import TableState, load_state
from headrace.storage.store import Store


class Loads:
    """Counts the loads of whole tables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(followed_log, "load_state", self._load)

    def _load(self, store: Store, *, version: int) -> TableState | None:
        self.count += 1
        return load_state(store, version=version)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(monkeypatch)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.get_or_create(tmp_path / "t", {"id": "bigint"})


@pytest.fixture
def log(table: Table) -> FollowedLog:
    return FollowedLog(Store(table.path))


def test_no_table(tmp_path: Path) -> None:
    log = FollowedLog(Store(str(tmp_path / "none")))
    assert log.newest() is None
    assert log.writer().state is None


def test_commits_of_other_writers_are_followed_without_a_load(table: Table, log: FollowedLog, loads: Loads) -> None:
    assert log.newest() == load_state(Store(table.path))
    for number in range(3):
        table.bulk_insert([{"id": number}])
        assert log.newest() == load_state(Store(table.path))
    assert loads.count == 2  # one of the log, one of the table


def test_txns_of_commits_are_added(table: Table, log: FollowedLog, loads: Loads) -> None:
    for batch in range(3):
        log.writer().append((), {"headrace:p": batch}, {})
        state = log.newest()
        assert state is not None
        assert log.txns(state) == {"headrace:p": batch}
    assert loads.count == 1


def test_txns_of_an_older_state(table: Table, log: FollowedLog) -> None:
    before = log.newest()
    log.writer().append((), {"headrace:p": 1}, {})
    log.newest()
    assert before is not None
    assert log.txns(before) == {}


def test_changed_columns_and_properties_are_loaded(table: Table, log: FollowedLog, loads: Loads) -> None:
    log.newest()
    Table(table.path).update_schema(add={"name": "string"})
    state = log.newest()
    assert state == load_state(Store(table.path))
    assert state is not None
    assert state.schema.names == ["id", "name"]
    Table(table.path).set_properties({"delta.appendOnly": "true"})
    assert log.newest() == load_state(Store(table.path))


def test_a_table_that_was_created_again_is_loaded(table: Table, log: FollowedLog) -> None:
    table.bulk_insert([{"id": 1}])
    first = log.newest()
    shutil.rmtree(table.path)
    assert log.newest() is None
    Table.get_or_create(table.path, {"id": "bigint"}).bulk_insert([{"id": 2}])
    second = log.newest()
    assert first is not None
    assert second is not None
    assert (first.version, second.version) == (1, 1)
    assert first.table_id != second.table_id


def test_many_commits_are_loaded(table: Table, log: FollowedLog, loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_log, "MAX_COMMITS", 2)
    log.newest()
    for _ in range(3):
        log_writer.LogWriter.open(Store(table.path)).append((), {}, {})
        assert log.newest() == load_state(Store(table.path))
    assert loads.count == 2


def test_a_cleaned_log_is_loaded(table: Table, log: FollowedLog) -> None:
    log.newest()
    for number in range(2):
        table.bulk_insert([{"id": number}])
    table.checkpoint()
    (Path(table.path) / "_delta_log" / f"{0:020}.json").unlink()
    assert log.newest() == load_state(Store(table.path))


def test_a_writer_continues_from_the_newest_version(table: Table, log: FollowedLog) -> None:
    assert log.writer().append((), {}, {}).version == 1
    writer = log.writer()
    table.bulk_insert([{"id": 1}])
    assert writer.append((), {}, {}).version == 3
