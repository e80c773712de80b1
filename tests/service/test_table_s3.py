"""The life of a table on a real S3 server, and compaction there beside the appends of another process."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace import Table
from headrace.compat.builder import DeltaConfig, DeltaLakeConnector, UpsertOperation
from headrace.delta import commit_builder as actions
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import to_delta
from headrace.delta.txn import batch_txn
from headrace.errors import LeaseHeld, TableDamaged
from headrace.maintain.scheduler import MaintenanceScheduler
from headrace.recovery.startup import StartupRecovery
from headrace.storage.lease import Lease
from headrace.storage.store import Profile, Store
from headrace.table.sql import select_tables
from headrace.write.intent import TableIntent
from headrace.write.leased_writer import LeasedWriter
from services.concurrent_writers import append_many, compact_many, rivals
from services.in_process_pipeline import Harness, InProcess, no_spark
from services.s3 import S3
from services.staging import SCHEMA, ids, marks, staged

DAYS = ["plain", "a b", "100%", "x=y", "ü", "a/b", "日本"]


@pytest.fixture
def profile(s3: S3) -> Profile:
    return Profile(s3.settings)


@pytest.fixture
def base(bucket: str) -> str:
    return f"s3://{bucket}/my lake"


def test_a_table_by_builders(base: str, s3: S3) -> None:
    storage = {"s3": s3.settings}
    config = DeltaConfig().with_table_path(f"{base}/spans").with_partition_by(["date"]).with_storage(storage)
    assert s3.secret not in repr(config)
    table = DeltaLakeConnector(config).get_or_create_table()
    spans = [{"id": number, "timestamp": "2024-01-01T00:00:00Z"} for number in range(3)]
    assert table.upsert(UpsertOperation().with_records(spans).with_merge_key("id")).inserted_count == 3
    assert DeltaLakeConnector(config).list_tables() == [f"{base}/spans"]
    assert len(DeltaLakeConnector(config).get_table().query().filter("date = '2024-01-01'").execute().records) == 3
    DeltaLakeConnector(config).delete_table()
    assert DeltaLakeConnector(config).list_tables() == []


def test_the_life_of_a_table(base: str, s3: S3, profile: Profile) -> None:
    storage = {"s3": s3.settings}
    table = Table.get_or_create(f"{base}/orders", {"id": "bigint", "day": "string"}, ["day"], storage=storage)
    for number in range(3):
        table.bulk_insert([{"id": number, "day": day} for day in DAYS])
    assert Table.list_tables(base, profile) == [table.path]
    assert (table.statistics().files, table.statistics().partitions) == (21, 7)
    assert table.query().where("day = 'a/b'").order_by("id").select("id").records() == [
        {"id": each} for each in range(3)
    ]
    assert table.changes(2, 2).count() == 7
    answer = select_tables(
        f"SELECT day, max(id) AS last FROM '{table.path}' GROUP BY ALL", lambda path: Table(path, profile)
    )
    assert {(row["day"], row["last"]) for batch in answer.batches for row in batch.to_pylist()} == {
        (d, 2) for d in DAYS
    }
    assert table.optimize().files_removed == 21
    assert len(table.vacuum("0s", force=True).files) == 21
    table.checkpoint()
    table.update_schema(add={"note": "string"})
    table.set_properties({"owner": "ann"})
    assert [entry.rows_after for entry in table.history()][-4:] == [21, 14, 7, 0]
    assert table.query().at(version=4).count() == 21
    assert table.repair(deep=True).intact
    done = table.upsert([{"id": 1, "day": "ü", "note": "new"}, {"id": 9, "day": "x=y"}], ["id", "day"])
    assert (done.inserted, done.updated) == (1, 1)
    assert table.update("day = 'ü'", {"id": "id + 10"}).rows == 3
    assert table.delete("id = 9 or note is not null").rows == 2
    assert table.delete("id = 0", hard=False).rows == 6
    assert (table.query().count(), table.query().with_deleted().count()) == (14, 20)
    table.restore(version=4)
    assert table.query().count() == 21
    table.drop()
    assert Table.list_tables(base, profile) == []
    assert list(Store(base, profile).list()) == []


@pytest.mark.slow
def test_the_life_of_a_table_that_spark_writes(base: str, profile: Profile, spark: Any) -> None:
    """By Spark what commits, without it what does not; the name of the bucket's folder has a blank in it."""
    store = Store(f"{base}/merged", profile)
    made = LeasedWriter(lambda: spark, store, "shop", Store(f"{base}/state/tombstones", profile))
    properties = {"delta.enableDeletionVectors": "true"}
    made._create(TableIntent(store.uri, "", True, to_delta(SCHEMA), ("day",), properties, ()))
    table = Table(store.uri, profile, spark=spark)
    assert table.metadata().writer == "spark"
    for number in range(2):
        table.bulk_insert([{"id": number, "day": day} for day in DAYS])
    done = table.upsert([{"id": 1, "day": "ü"}, {"id": 9, "day": "x=y"}], ["id", "day"])
    assert (done.inserted, done.updated) == (1, 1)
    assert table.update("day = 'ü'", {"id": "id + 10"}).rows == 2
    assert table.delete("id = 9").rows == 1
    packed = table.optimize("day = 'a/b' or day = '100%'")
    assert (packed.partitions, packed.files_removed, packed.files_added) == (2, 4, 2)
    assert table.query().where("day = 'a/b'").count() == 2
    table.restore(version=table.resolve() - 2)
    assert table.query().count() == 2 * len(DAYS) + 1
    gone = table.vacuum("0s", force=True)
    assert any(path.endswith(".bin") for path in gone.files)
    assert table.query().count() == 2 * len(DAYS) + 1
    table.drop()
    assert Table.list_tables(base, profile) == []  # Spark leaves a mark for a folder, which S3 has none of


def test_missing_and_spoiled_objects(base: str, profile: Profile) -> None:
    table = Table.get_or_create(f"{base}/orders", {"id": "bigint", "day": "string"}, ["day"], storage=profile)
    table.bulk_insert([{"id": 1, "day": day} for day in DAYS])
    store = Store(table.path, profile)
    first, second, *_ = (item for item in store.list() if item.path.endswith(".parquet"))
    store.delete([first.path])
    store.put(second.path, store.get(second.path)[:-9])
    with pytest.raises(TableDamaged):
        table.query().arrow()
    done = table.repair()
    assert [each.path for each in done.missing] == [first.path]
    assert [each.path for each in done.unreadable] == [second.path]
    assert table.repair().missing == ()


def test_a_running_pipeline_is_found_beside_the_table(base: str, profile: Profile) -> None:
    store = Store(f"{base}/orders", profile)
    LogWriter.open(store).create(to_delta(SCHEMA), (), {}, str(uuid.uuid4()), [staged(store, [1])], marks(1), {})
    table = Table(store.uri, profile)
    table.bulk_insert([{"id": 2}])
    with Lease.take(Store(f"{base}/_headrace/shop", profile)), pytest.raises(LeaseHeld, match="'shop'"):
        table.restore(version=0)
    table.restore(version=0)


@pytest.mark.parametrize(("place", "z_order"), [("local", ()), ("s3", ()), ("s3", ("id",))])
def test_compaction_beside_appends_of_another_process(
    request: pytest.FixtureRequest, tmp_path: Path, place: str, z_order: tuple[str, ...]
) -> None:
    store = Store(str(tmp_path / "t"))
    if place == "s3":
        store = Store(f"{request.getfixturevalue('base')}/t", request.getfixturevalue("profile"))
    tail = LogWriter.open(store, [batch_txn("shop")])
    tail.create(to_delta(SCHEMA), (), {}, str(uuid.uuid4()), [staged(store, [0])], marks(1), {})
    with rivals() as race:
        _, rounds = race(_either, [append_many, compact_many], [store] * 2, [z_order] * 2)
    assert rounds > 0
    assert ids(store) == list(range(100))
    assert DeltaTable(store.delta_uri, storage_options=store.delta_options).transaction_version("headrace:shop") == 100
    history = Table(store.uri, store.profile).history()
    assert [entry.headrace["batch"] for entry in history if entry.operation == "STREAMING UPDATE"] == list(
        range(100, 1, -1)
    )
    assert history[0].rows_after == 100


def _either(what: object, store: Store, z_order: tuple[str, ...]) -> int:
    return what(store, z_order)  # type: ignore[operator,no-any-return]


def test_maintenance_of_a_pipeline_on_s3(s3: S3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction, vacuum and the notes of both, by the verbs that a bucket has."""
    kept = {"delta.deletedFileRetentionDuration": "interval 1 minute", "delta.checkpointInterval": "2"}
    harness = Harness(
        tmp_path,
        {
            "route": {"by": "fixed"},
            "table": {"path": f"s3://{bucket}/lake/web", "properties": kept, "source": False},
            "maintenance": {"min_input_files": 4, "retention": "1m", "vacuum_every": "1m"},
        },
        s3=s3,
        bucket=bucket,
    )
    for number in range(8):
        harness.feed([{"id": number}])
    pipeline, ahead = InProcess(harness.spec, no_spark, report=harness.events.append, recovery=StartupRecovery()), [0.0]
    monkeypatch.setattr(actions, "now", lambda: int((time.time() + ahead[0] - 60) * 1000))
    assert harness.spec.maintenance is not None
    pipeline.maintenance = MaintenanceScheduler(harness.spec.maintenance, lambda: time.time() + ahead[0])
    with pipeline.take_lease():
        pipeline.open_ledger()
        pipeline.tables.open()
        for _ in range(4):
            pipeline.maintain(at_end=True)
            ahead[0] += 120
            pipeline.ledger.log_writer.note("BOOKED", {}, {})  # the ledger proves that the time has passed
    done = {each["operation"] for each in harness.events if each["event"] == "maintenance" and each["state"] == "done"}
    assert done >= {"compact", "vacuum"}
    assert not [each for each in harness.events if each.get("state") == "failed"]
    harness.feed([{"id": 8}])
    table = Table(f"s3://{bucket}/lake/web", Profile(**harness.spec.storage_profile()))
    assert sorted(row["id"] for row in table.query().records()) == list(range(9))
    assert table.statistics().files == 2
