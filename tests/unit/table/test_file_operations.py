"""Compaction beside appends, vacuum, checkpoints, restore and repair: nothing is lost, doubled or taken from others."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace import Table
from headrace.delta import log, snapshot
from headrace.delta.actions import File
from headrace.delta.followed_log import FollowedLog
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import to_delta
from headrace.delta.txn import batch_txn
from headrace.errors import (
    OperationDisabled,
    PartitionNotFound,
    TableError,
    TableReplaced,
    TableRestored,
    UsageError,
    VersionNotFound,
)
from headrace.ledger.ledger import Ledger
from headrace.source.ranges import Range
from headrace.storage.store import Store
from headrace.table import restore
from headrace.table.optimize import Compaction
from headrace.table.versions import Moment
from services.clocks import DAY, clock
from services.in_process_pipeline import Harness
from services.staging import SCHEMA, ids, intent, marks, staged, table_intent

COLUMNS = {"id": "bigint", "real": "double"}
DAYS = ["plain", "a b", "100%", "x=y", "ü", "a/b", "a%2Fb", "#?&+:;,'\"", "日本"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.get_or_create(tmp_path / "t", COLUMNS)


def filled(table: Table, commits: int, start: int = 0) -> None:
    for number in range(start, start + commits):
        table.bulk_insert([{"id": number, "real": float(number)}])


def held(table: Table) -> list[int]:
    return [row["id"] for row in table.query().select("id").order_by("id").records()]


def aged(table: Table, *paths: Path, days: float = 30) -> None:
    """Files as if written some days ago."""
    for path in paths:
        os.utime(path, (time.time() - days * 86400,) * 2)


# ---- compaction ----


def test_many_small_files_become_one(table: Table) -> None:
    filled(table, 8)
    done = table.optimize()
    assert (done.files_removed, done.files_added) == (8, 1)
    assert 0 < done.bytes_added < done.bytes_removed
    assert table.statistics().files == 1
    assert held(table) == list(range(8))
    assert table.optimize().files_removed == 0
    entry = table.history(1)[0]
    assert (entry.operation, entry.rows_after, entry.headrace["operation"]) == ("OPTIMIZE", 8, "optimize")


def test_small_files_are_compacted_and_large_ones_split(table: Table) -> None:
    table.bulk_insert([{"id": number, "real": number / 3} for number in range(200_000)])
    filled(table, 3, 200_000)
    large = table.statistics().bytes
    assert table.optimize(target_size=large // 4, min_file_size=1).files_removed == 0, "no file is that small"
    done = table.optimize(target_size=large // 4, min_file_size=large // 8, max_file_size=large // 2)
    assert done.files_removed == 4
    assert done.files_added > 2, "the large one in parts, the small ones as one"
    assert table.optimize(target_size=large // 4, min_file_size=1, max_file_size=large // 2).files_removed == 0
    assert held(table) == list(range(200_003))
    for refused in ({"min_file_size": 101}, {"max_file_size": 199}):
        with pytest.raises(UsageError, match=r"the target size of 100 bytes"):
            table.optimize(target_size=100, **refused)


def test_only_the_partitions_asked_for(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "p", {"id": "bigint", "day": "string"}, ["day"])
    for number in range(3):
        table.bulk_insert([{"id": number, "day": day} for day in [*DAYS, None]])
    assert table.optimize("day = 'a/b' or day is null").partitions == 2
    assert table.statistics().files == 3 * (len(DAYS) + 1) - 4
    with pytest.raises(PartitionNotFound):
        table.optimize("day = 'never'")
    with pytest.raises(UsageError, match="unknown column 'id'"):
        table.optimize("id = 1")
    table.optimize()
    assert table.statistics().files == len(DAYS) + 1
    assert [row["day"] for row in table.query().where("id = 0").order_by("day").records()] == [*sorted(DAYS), None]


def test_z_order_rewrites_and_loses_nothing(table: Table) -> None:
    filled(table, 6)
    done = table.optimize(z_order=["real"])
    assert (done.files_removed, done.z_order) == (6, ("real",))
    assert held(table) == list(range(6))
    with pytest.raises(UsageError, match="nobody"):
        table.optimize(z_order=["nobody"])


@pytest.mark.parametrize("z_order", [(), ("id",)])
def test_compaction_beside_appends_loses_and_duplicates_nothing(tmp_path: Path, z_order: tuple[str, ...]) -> None:
    """One thread appends batches by the log tail, another compacts all the while."""
    store = Store(str(tmp_path / "t"))
    tail = LogWriter.open(store, [batch_txn("shop")])
    tail.create(to_delta(SCHEMA), (), {}, str(uuid.uuid4()), [staged(store, [0])], marks(1), {})
    table, over = Table(store.uri), Event()

    def append() -> None:
        for number in range(1, 120):
            tail.append([staged(store, [number])], marks(number + 1), {})
        over.set()

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(append)
        rounds = 0
        while not over.is_set() or rounds == 0:
            table.optimize(z_order=z_order)
            rounds += 1
        writer.result()
    table.optimize(z_order=z_order)
    assert ids(store) == list(range(120))
    operations = [entry.operation for entry in table.history()]
    assert operations.count("STREAMING UPDATE") == 119
    assert operations.count("OPTIMIZE") >= 2
    assert {entry.rows_after for entry in table.history() if entry.operation == "OPTIMIZE"} <= set(range(1, 121))
    assert DeltaTable(store.uri).transaction_version("headrace:shop") == 120


def test_statistics_after_a_compaction_hide_nothing(table: Table) -> None:
    for value in (float("nan"), 1.0, 2.0):
        table.bulk_insert([{"id": int(value) if value == value else 0, "real": value}])
    table.optimize()
    assert table.query().where("real > 100").count() == 1


# ---- vacuum ----


def test_a_vacuum_takes_what_is_old_and_not_needed(table: Table) -> None:
    filled(table, 3)
    table.optimize()
    before = set(Path(table.path).glob("*.parquet"))
    plan = table.vacuum(dry_run=True)
    assert (plan.files, plan.dry_run) == ((), True)
    plan = table.vacuum("0s", dry_run=True, force=True)
    assert len(plan.files) == 3
    assert plan.bytes == sum((Path(table.path) / path).stat().st_size for path in plan.files)
    assert set(Path(table.path).glob("*.parquet")) == before
    assert table.vacuum("0s", force=True).files == plan.files
    assert len(list(Path(table.path).glob("*.parquet"))) == 1
    assert held(table) == [0, 1, 2]
    assert table.vacuum("0s", force=True).files == ()


def test_a_vacuum_takes_what_failed_writers_left_but_not_what_is_being_staged(table: Table) -> None:
    store = Store(table.path)
    with clock(-2 * DAY):
        filled(table, 1)
    old, young = (Path(table.path) / staged(store, [1]).path for _ in range(2))
    aged(table, old)
    assert table.vacuum(dry_run=True).files == (old.name,)
    table.vacuum()
    assert (old.exists(), young.exists()) == (False, True)


def test_versions_within_the_retention_stay_whole(table: Table) -> None:
    filled(table, 4)
    table.optimize()
    for number in range(5):
        _dated(table, number, days=20 - number)
    _dated(table, 5, days=3)  # up to then the small files were the newest version's
    aged(table, *Path(table.path).glob("*.parquet"))
    assert table.vacuum("7d", dry_run=True).files == ()
    assert len(table.vacuum("2d", force=True, dry_run=True).files) == 4
    table.checkpoint()
    assert table.vacuum("7d", dry_run=True).files == ()
    assert table.query().at(version=4).count() == 4


def _dated(table: Table, version: int, days: float) -> None:
    """A commit as if made some days ago."""
    path = Path(table.path) / "_delta_log" / f"{version:020}.json"
    then = int((time.time() - days * 86400) * 1000)
    path.write_text(re.sub(r'"(timestamp|deletionTimestamp)":\d+', rf'"\1":{then}', path.read_text()))


def test_change_data_stays_as_long_as_the_versions_that_tell_it(tmp_path: Path) -> None:
    feed = {"delta.enableChangeDataFeed": "true"}
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "_day": "string"}, ["_day"], feed)
    table.bulk_insert([{"id": each, "_day": "x"} for each in range(3)])
    table.delete("id = 1")
    changed = [row["id"] for row in table.changes(2).records()]
    assert changed == [1]
    fed = [str(path.relative_to(table.path)) for path in Path(table.path).glob("_change_data/**/*.parquet")]
    for path in fed:
        os.utime(Path(table.path) / path, (1, 1))  # staged long before it was committed
    assert len(fed) == 1
    assert table.vacuum(dry_run=True).files == ()
    gone = table.vacuum("0s", force=True)
    assert set(fed) < set(gone.files)
    assert len(gone.files) == 2, "and the file that the rows were in"
    assert [row["id"] for row in table.query().order_by("id").records()] == [0, 2]


@pytest.mark.parametrize("address", ["file://{}", "file:{}", "{}"])
def test_a_vacuum_leaves_files_that_the_log_has_as_whole_addresses(tmp_path: Path, address: str) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "p": "string"}, ["p"])
    table.bulk_insert([{"id": 1, "p": "a b"}])
    log, file = Path(table.path) / "_delta_log" / f"{1:020}.json", next((tmp_path / "t").rglob("*.parquet"))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (add,) = [line["add"] for line in lines if "add" in line]
    add["path"] = address.format(f"{table.path}/{add['path']}")
    log.write_text("\n".join(map(json.dumps, lines)) + "\n")
    os.utime(file, (0, 0))
    assert table.vacuum("0s", force=True).files == ()
    assert file.exists()


def test_a_vacuum_takes_odd_names_and_leaves_other_tables_and_hidden_files(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "p", {"id": "bigint", "_day": "string"}, ["_day"])
    for number in range(2):
        table.bulk_insert([{"id": number, "_day": day} for day in [*DAYS, None]])
    table.optimize("_day = 'a/b' or _day = '100%'")
    inner = Table.get_or_create(tmp_path / "p" / "inner", {"id": "bigint"})
    inner.bulk_insert([{"id": 1}])
    (tmp_path / "p" / "_notes").write_text("mine")
    assert len(table.vacuum("0s", force=True).files) == 4
    assert table.query().count() == 2 * (len(DAYS) + 1)
    assert inner.query().count() == 1
    assert (tmp_path / "p" / "_notes").exists()


@pytest.mark.parametrize("retain", ["167h", "0s", "1d"])
def test_below_the_retention_it_is_refused(table: Table, retain: str) -> None:
    filled(table, 1)
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="168 h"):
            table.vacuum(retain, dry_run=dry_run)
    with pytest.raises(UsageError, match="Invalid duration"):
        table.vacuum("soon")
    with pytest.raises(UsageError, match="is negative"):
        table.vacuum(timedelta(hours=-1), force=True)


def test_the_table_s_own_retention_counts(table: Table) -> None:
    filled(table, 1)
    table.set_properties({"delta.deletedFileRetentionDuration": "interval 2 days"})
    assert table.vacuum("2d").files == ()
    with pytest.raises(UsageError, match="48 h"):
        table.vacuum("47h")
    table.set_properties({"delta.deletedFileRetentionDuration": "interval 3 weeks"})
    with pytest.raises(UsageError, match="504 h"):
        table.vacuum()
    table.set_properties({"delta.deletedFileRetentionDuration": "interval 30 days 12 hours"})
    with pytest.raises(UsageError, match="732 h"):
        table.vacuum("30d", dry_run=True)


def test_a_retention_that_nobody_reads_is_no_retention_of_a_week(table: Table) -> None:
    filled(table, 1)
    odd = {"delta.deletedFileRetentionDuration": "interval '30' day"}  # as others may have left it
    LogWriter.open(Store(table.path)).alter(
        lambda metadata: replace(metadata, properties=odd), lambda _: ("SET TBLPROPERTIES", {}), {}
    )
    for force in (True, False):
        with pytest.raises(TableError, match="deletedFileRetentionDuration: 'interval '30' day'"):
            table.vacuum("9000h", force=force)
    assert table.bulk_insert([{"id": 1}]).rows == 1, "it is written to all the same"
    table.set_properties({"delta.deletedFileRetentionDuration": "30 days"})
    assert table.vacuum("30d").files == ()


def test_files_of_an_open_batch_are_never_vacuumed(tmp_path: Path) -> None:
    """A pipeline that died after it staged may come back weeks later and commit just these files."""
    harness = Harness(tmp_path)
    harness.feed([{"id": 1, "kind": "alpha"}])
    store = Store(str(tmp_path / "lake" / "alpha"))
    table = Table(store.uri)
    file = staged(store, [1])
    path = Path(store.uri) / file.path
    aged(table, path)
    state = Store(str(tmp_path / "lake" / "_headrace" / "shop"))
    begun = intent(2)
    tables = (table_intent(store, [file], table.metadata().id),)
    Ledger.open(state, "shop").begin(type(begun)(**{**_fields(begun), "tables": tables}))
    assert table.vacuum().files == ()
    table.vacuum("0s", force=True)
    assert path.exists()


def _fields(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}  # type: ignore[attr-defined]


# ---- checkpoint ----


def test_a_checkpoint_is_written_and_read(table: Table) -> None:
    filled(table, 3)
    before = snapshot.active_files(Store(table.path), 3)
    assert table.checkpoint() == 3
    assert (Path(table.path) / "_delta_log" / f"{3:020}.checkpoint.parquet").exists()
    assert snapshot.active_files(Store(table.path), 3) == before
    filled(table, 1, start=3)
    assert held(table) == [0, 1, 2, 3]


# ---- restore ----


def test_an_older_version_is_held_again(table: Table) -> None:
    filled(table, 4)
    done = table.restore(version=2)
    assert (done.version, done.to, done.files_removed, done.pipelines, done.next) == (5, 2, 2, (), "")
    assert held(table) == [0, 1]
    with pytest.raises(UsageError, match="at version 5"):
        table.restore(timestamp=datetime.now(UTC))
    assert table.restore(version=4).files_restored == 2
    assert held(table) == [0, 1, 2, 3]
    with pytest.raises(VersionNotFound):
        table.restore(version=99)
    with pytest.raises(UsageError):
        table.restore()
    with pytest.raises(UsageError, match="mutually exclusive"):
        table.restore(1, datetime.now(UTC))


def test_a_moment_tells_the_version_to_go_back_to(table: Table) -> None:
    filled(table, 4)
    moment = table.history()[2].timestamp
    assert moment is not None
    to = table.resolve(timestamp=moment)
    assert 2 <= to < 4
    done = table.restore(timestamp=moment.isoformat())
    assert (done.to, held(table)) == (to, list(range(to)))


def test_a_table_that_only_takes_rows_is_not_restored(table: Table) -> None:
    filled(table, 1)
    table.set_properties({"delta.appendOnly": "true"})
    with pytest.raises(OperationDisabled, match="restore"):
        table.restore(version=0)
    assert held(table) == [0]


def test_a_version_whose_files_are_gone_is_not_restored_and_not_found(table: Table) -> None:
    filled(table, 2)
    table.optimize()
    table.vacuum("0s", force=True)
    with pytest.raises(VersionNotFound, match="missing"):
        table.restore(version=1)
    with pytest.raises(VersionNotFound, match="vacuum"):
        table.query().at(version=1).records()
    with pytest.raises(VersionNotFound, match="vacuum"):
        list(table.query().at(version=2).batches())
    with pytest.raises(VersionNotFound, match="vacuum"):
        table.changes(1, 2).records()
    assert held(table) == [0, 1]
    assert not table.repair(dry_run=True).missing


def test_a_replaced_table_is_not_restored(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(table, 3)
    resolve = restore.resolve_version

    def resolved(store: Store, version: int | None, timestamp: Moment | None) -> int:
        number = resolve(store, version, timestamp)
        shutil.rmtree(table.path)
        filled(Table.get_or_create(table.path, COLUMNS), 3)
        return number

    monkeypatch.setattr(restore, "resolve_version", resolved)
    with pytest.raises(TableReplaced, match="Run the operation again"):
        table.restore(version=1)
    assert held(table) == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.set_properties({"owner": "ann"}),
        lambda table: table.update_schema(add={"more": "string"}),
        lambda table: table.bulk_insert([{"id": 7}]),
        lambda table: table.repair(),
    ],
)
def test_a_replaced_table_is_not_changed(
    table: Table, monkeypatch: pytest.MonkeyPatch, change: Callable[[Table], object]
) -> None:
    filled(table, 3)
    next(Path(table.path).glob("*.parquet")).unlink()
    open_log, follow_log = LogWriter.open, FollowedLog.writer  # an insert continues from the log that it has read

    def replace_table() -> None:
        monkeypatch.setattr(LogWriter, "open", open_log)
        monkeypatch.setattr(FollowedLog, "writer", follow_log)
        shutil.rmtree(table.path)
        filled(Table.get_or_create(table.path, COLUMNS), 2)

    def opened(store: Store, *arguments: Any, **settings: Any) -> LogWriter:
        replace_table()
        return open_log(store, *arguments, **settings)

    def followed(log: FollowedLog) -> LogWriter:
        replace_table()
        return follow_log(log)

    monkeypatch.setattr(LogWriter, "open", opened)
    monkeypatch.setattr(FollowedLog, "writer", followed)
    with pytest.raises(TableReplaced, match="Run the operation again"):
        change(table)
    assert table.resolve() == 2
    assert held(table) == [0, 1]


def test_a_replaced_table_is_not_optimized(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(table, 3)
    add = Compaction.add

    def added(compaction: Compaction, files: Sequence[File]) -> None:
        add(compaction, files)
        shutil.rmtree(table.path)
        filled(Table.get_or_create(table.path, COLUMNS), 2)

    monkeypatch.setattr(Compaction, "add", added)
    with pytest.raises(TableReplaced, match="Run the operation again"):
        table.optimize()
    assert held(table) == [0, 1]


def test_a_restored_table_asks_its_pipeline(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for number in range(3):
        harness.feed([{"id": number, "kind": "alpha"}])
    table = Table(tmp_path / "lake" / "alpha")
    done = table.restore(version=0)
    assert done.pipelines == ("shop",)
    assert "--table-restored=refill" in done.next
    assert table.query().count() == 1
    assert table.metadata().pipelines == {"shop": 3}  # marks stay: the pipeline must be asked
    with pytest.raises(TableRestored):
        harness.feed([{"id": 9, "kind": "alpha"}])


# ---- repair ----


def test_a_whole_table_needs_no_repair(table: Table) -> None:
    filled(table, 2)
    for deep in (False, True):
        found = table.repair(deep=deep)
        assert found.intact
        assert found.version is None
    assert table.resolve() == 2


def test_missing_files_leave_the_log_in_one_commit(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "p", {"id": "bigint", "day": "string"}, ["day"])
    for number in range(2):
        table.bulk_insert([{"id": number, "day": day} for day in [*DAYS, None]])
    gone = sorted(Path(table.path).rglob("*.parquet"))[::3]
    for path in gone:
        path.unlink()
    found = table.repair(dry_run=True)
    assert {each.path for each in found.missing} == {str(path.relative_to(table.path)) for path in gone}
    assert (found.rows, found.version, table.resolve()) == (len(gone), None, 2)
    done = table.repair()
    assert (done.version, len(done.missing), done.unreadable) == (3, len(gone), ())
    assert table.query().count() == 2 * (len(DAYS) + 1) - len(gone)
    assert table.repair().intact
    entry = table.history(1)[0]
    assert (entry.operation, entry.rows_after) == ("FSCK", table.query().count())
    assert DeltaTable(table.path).to_pyarrow_table().num_rows == table.query().count()


def test_spoiled_files_are_named_and_left(table: Table) -> None:
    filled(table, 5)
    paths = {log.read_commit(Store(table.path), version).added[0].path: version for version in range(1, 6)}  # type: ignore[union-attr]
    cut, broken, swapped, torn, _ = (Path(table.path) / path for path in paths)
    cut.write_bytes(cut.read_bytes()[:-20])
    broken.write_bytes(b"x" * broken.stat().st_size)
    pages = bytearray(torn.read_bytes())
    pages[4:60] = b"\xff" * 56
    torn.write_bytes(bytes(pages))
    swapped.write_bytes(swapped.read_bytes())
    found = table.repair()
    assert {each.path for each in found.unreadable} == {cut.name, broken.name}
    assert "its commit says" in next(each.why for each in found.unreadable if each.path == cut.name)
    assert {each.path for each in table.repair(deep=True).unreadable} == {cut.name, broken.name, torn.name}
    assert (table.resolve(), found.version) == (5, None)


def test_lost_records_are_told_back_through_compactions(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for start in range(0, 12, 3):
        harness.feed([{"id": start + number, "kind": "alpha"} for number in range(3)])
    table = Table(tmp_path / "lake" / "alpha")
    table.optimize()
    harness.feed([{"id": 12, "kind": "alpha"}])
    table.bulk_insert([{"id": 99, "kind": "alpha"}])
    for file in snapshot.active_files(Store(table.path), table.resolve()).values():
        (Path(table.path) / file.path).unlink()
    found = table.repair(dry_run=True)
    assert found.rows == 14
    told = {(each.pipeline, each.batch): each.ranges for each in found.lost}
    assert told == {
        (None, None): (),
        ("shop", 5): (Range("orders", 0, 12, 13, "id"),),
        **{("shop", batch): (Range("orders", 0, batch * 3 - 3, batch * 3, "id"),) for batch in range(1, 5)},
    }
    assert found.unknown_origin == ()
    for number in range(5):
        (Path(table.path) / "_delta_log" / f"{number:020}.json").unlink()
    # without a checkpoint the log tells nothing of what came before
    assert len(list(log.LogWalk(Store(table.path), table.resolve()))) == 2


def test_repair_beside_appends(table: Table) -> None:
    filled(table, 3)
    stale = Table(table.path)
    next(Path(table.path).glob("*.parquet")).unlink()
    tail = LogWriter.open(Store(table.path))
    filled(table, 1, start=3)
    assert stale.repair().version == 5
    assert tail.follow()[-1].operation == "FSCK"
    assert table.query().count() == 3


def test_missing_deletion_vectors_are_named(tmp_path: Path) -> None:
    """The log of such a table as Spark writes it, since only Spark does."""
    store = Store(str(tmp_path / "t"))
    tail = LogWriter.open(store)
    file = staged(store, [1, 2, 3])
    tail.create(to_delta(SCHEMA), (), {}, str(uuid.uuid4()), [file], {}, {})
    log = Path(store.uri) / "_delta_log" / f"{0:020}.json"
    features = '"readerFeatures":["deletionVectors"],"writerFeatures":["deletionVectors"]'
    text = log.read_text().replace(
        '"minReaderVersion":1,"minWriterVersion":2', f'"minReaderVersion":3,"minWriterVersion":7,{features}'
    )
    told = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1}
    vector = f'"deletionVector":{json.dumps({**told, "sizeInBytes": 36, "cardinality": 2})}'
    log.write_text(text.replace('"dataChange":true', f'"dataChange":true,{vector}'))
    table = Table(store.uri)
    (damage,) = table.repair(dry_run=True).vectors
    assert "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin is missing" in damage.why
    assert damage.rows == 1
    size = table.statistics()
    assert (size.rows, size.deletion_vectors, size.deleted_rows) == (1, 1, 2)
    assert table.metadata().writer == "spark"
    assert table.history()[0].rows_after == 1
