"""One kind of committer per table: what Spark writes is left to it, what a pipeline writes is not changed under it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Table
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import to_delta
from headrace.delta.txn import batch_txn
from headrace.errors import DirectCommitBlocked, LeaseHeld, SparkWriterRequired, UsageError
from headrace.ledger.known_tables import KnownTable, KnownTables
from headrace.storage.lease import Lease, holder
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners
from services.in_process_pipeline import Harness
from services.staging import SCHEMA, marks, staged

Operation = Callable[[Table], Any]

BESIDE: dict[str, Operation] = {  # go along with appends
    "bulk_insert": lambda table: table.bulk_insert([{"id": 7}]),
    "optimize": lambda table: table.optimize(),
    "vacuum": lambda table: table.vacuum(),
    "checkpoint": lambda table: table.checkpoint(),
    "repair": lambda table: table.repair(),
    "set_properties": lambda table: table.set_properties({"owner": "ann"}),
    "update_schema": lambda table: table.update_schema(add={"more": "string"}),
}
ALONE: dict[str, Operation] = {  # need the table to themselves
    "restore": lambda table: table.restore(version=0),
    "vacuum below the retention": lambda table: table.vacuum("0s", force=True),
    "drop": lambda table: table.drop(),
    "enable_feature": lambda table: table.enable_feature("columnMapping"),
}

# Where Spark writes the table, Spark does them; or they commit nothing, and are done as ever; or Spark has no word for
# them, and they are done while nobody writes.
BY_SPARK = {"bulk_insert", "enable_feature", "optimize", "restore", "set_properties", "update_schema"}
WITHOUT_COMMIT = {"vacuum", "vacuum below the retention", "drop", "checkpoint"}
AT_REST = {"repair"}
CHANGING: dict[str, Operation] = {  # as well; by Spark where the table has features
    "upsert": lambda table: table.upsert([{"id": 0}], "id"),
    "delete": lambda table: table.delete("id = 0"),
    "update": lambda table: table.update("id = 1", {"id": "7"}),
}


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    for number in range(2):
        harness.feed([{"id": number, "kind": "alpha"}])
    return harness


@pytest.fixture
def table(harness: Harness) -> Table:
    return Table(harness.folder / "lake" / "alpha")


@pytest.fixture
def state(harness: Harness) -> Store:
    return Store(str(harness.folder / "lake" / "_headrace" / "shop"))


@pytest.mark.parametrize("name", BESIDE)
def test_what_goes_along_with_appends_is_done_while_the_pipeline_runs(
    name: str, harness: Harness, table: Table, state: Store
) -> None:
    with Lease.take(state):
        BESIDE[name](table)
    harness.feed([{"id": 3, "kind": "alpha"}])  # and the pipeline goes on
    assert table.query().where("_source.offset = 2").count() == 1


@pytest.mark.parametrize("name", [*ALONE, *CHANGING])
def test_what_needs_the_table_to_itself_names_the_holder(name: str, table: Table, state: Store) -> None:
    before = table.resolve()
    with Lease.take(state), pytest.raises(LeaseHeld, match=r"'shop', which writes it, is running on .* as pid") as held:
        (ALONE | CHANGING)[name](table)
    assert held.value.exit_code == 3
    assert held.value.facts["pipeline"] == "shop"
    assert table.resolve() == before
    (ALONE | CHANGING)[name](table)
    assert holder(state) is None  # given back


def test_the_lease_is_held_while_it_is_done(table: Table, state: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(Store, "delete", lambda *_: seen.append(holder(state)))
    table.drop()
    assert seen
    assert seen[0]


def test_a_state_that_is_elsewhere_must_be_named(table: Table, state: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    Path(state.uri).rename(elsewhere)
    with pytest.raises(UsageError, match="'shop'"):
        table.restore(version=0)
    table.optimize()
    named = Table(table.path, states={"shop": str(elsewhere)})
    with Lease.take(Store(str(elsewhere))), pytest.raises(LeaseHeld):
        named.restore(version=0)
    named.restore(version=0)


def test_every_operation_is_of_one_kind() -> None:
    assert (BESIDE | ALONE).keys() == BY_SPARK | WITHOUT_COMMIT | AT_REST


@pytest.fixture
def by_spark(table: Table, state: Store) -> Table:
    KnownTables.load(state).store(tables={table.path: KnownTable(table.metadata().id, "spark")})
    return table


def test_a_table_that_a_pipeline_writes_by_spark_is_read_and_looked_at_by_all(by_spark: Table, state: Store) -> None:
    assert by_spark.metadata().writer == "spark"
    with Lease.take(state):
        assert by_spark.query().count() == 2
        assert by_spark.repair(dry_run=True).intact


def test_repair_of_a_table_that_spark_writes_needs_it_to_itself(by_spark: Table, state: Store) -> None:
    file = next(Path(by_spark.path).rglob("*.parquet"))
    file.unlink()
    with Lease.take(state), pytest.raises(LeaseHeld, match="repair requires exclusive access"):
        by_spark.repair()
    done = by_spark.repair()
    assert [Path(each.path).name for each in done.missing] == [file.name]
    assert (done.version, by_spark.query().count()) == (by_spark.resolve(), 1)
    assert holder(state) is None


def test_what_spark_writes_is_not_read_again_into_it(by_spark: Table, harness: Harness) -> None:
    before = by_spark.resolve()
    with pytest.raises(SparkWriterRequired, match="with Spark"):
        by_spark.repair(reingest=harness.spec)
    assert by_spark.resolve() == before


@pytest.mark.parametrize("name", [*sorted(BY_SPARK | AT_REST), *CHANGING])
def test_what_spark_does_waits_for_the_pipeline(name: str, by_spark: Table, state: Store) -> None:
    before = by_spark.resolve()
    with Lease.take(state), pytest.raises(LeaseHeld):
        (BESIDE | ALONE | CHANGING)[name](by_spark)
    assert by_spark.resolve() == before


@pytest.mark.parametrize("name", CHANGING)
def test_rows_that_a_pipeline_merges_itself_are_changed_without_spark(name: str, by_spark: Table, state: Store) -> None:
    before = by_spark.resolve()
    CHANGING[name](by_spark)
    newest = by_spark.history(1)[0]
    assert (newest.version, newest.operation) == (before + 1, "MERGE" if name == "upsert" else name.upper())
    assert by_spark.metadata().writer == "spark"
    assert holder(state) is None


@pytest.mark.parametrize("name", sorted(WITHOUT_COMMIT))
def test_what_commits_nothing_is_the_same_whoever_writes(name: str, by_spark: Table, state: Store) -> None:
    before = by_spark.resolve()
    with Lease.take(state):
        if name in ALONE:
            with pytest.raises(LeaseHeld):
                ALONE[name](by_spark)
        else:
            BESIDE[name](by_spark)
        assert by_spark.resolve() == before
    (BESIDE | ALONE)[name](by_spark)
    assert by_spark.exists() == (name != "drop")


@pytest.mark.parametrize("name", CHANGING)
def test_a_pipeline_goes_on_after_its_rows_were_changed(name: str, harness: Harness, table: Table) -> None:
    CHANGING[name](table)
    harness.feed([{"id": 3, "kind": "alpha"}])
    assert table.query().where("_source.offset = 2").count() == 1
    assert table.metadata().writer == "direct"


@pytest.fixture
def plain(tmp_path: Path) -> Table:
    """A table that is no pipeline's."""
    return Table.get_or_create(tmp_path / "plain", {"id": "bigint"})


def test_a_table_whose_newest_commit_is_by_spark_is_left_to_spark(plain: Table) -> None:
    info = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}}
    (Path(plain.path) / "_delta_log" / f"{1:020}.json").write_text(json.dumps(info) + "\n")
    assert plain.metadata().writer == "spark"
    adopted = Table(plain.path, direct_commit=True)
    assert adopted.metadata().writer == "direct"
    assert adopted.bulk_insert([{"id": 1}]).version == 2
    assert plain.metadata().writer == "direct"  # the newest is ours now


def test_a_table_whose_engine_is_unknown_is_left_to_spark(plain: Table) -> None:
    for log in (Path(plain.path) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            action.get("commitInfo", {}).pop("engineInfo", None)
        log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    assert plain.metadata().writer == "spark"
    owners = TableOwners(Store(plain.path), {})
    with pytest.raises(SparkWriterRequired, match="none of its last commits names an engine"):
        owners.beside_appends("optimize")
    assert Table(plain.path, direct_commit=True).metadata().writer == "direct"


def test_an_old_commit_of_delta_rs_names_its_engine_as_client(plain: Table) -> None:
    info = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "clientVersion": "delta-rs.0.17.1"}}
    (Path(plain.path) / "_delta_log" / f"{1:020}.json").write_text(json.dumps(info) + "\n")
    (Path(plain.path) / "_delta_log" / f"{0:020}.json").write_text(
        (Path(plain.path) / "_delta_log" / f"{0:020}.json").read_text().replace("engineInfo", "engine")
    )
    assert plain.metadata().writer == "direct"


def test_a_repair_does_not_make_the_table_ours(plain: Table) -> None:
    plain.bulk_insert([{"id": 1}])
    info = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}}
    (Path(plain.path) / "_delta_log" / f"{2:020}.json").write_text(json.dumps(info) + "\n")
    next(Path(plain.path).glob("*.parquet")).unlink()
    assert plain.repair().version == 3
    assert plain.metadata().writer == "spark"


def _changed(folder: Path, old: str, new: str) -> str:
    """A table whose first commit says something else."""
    store = Store(str(folder / "t"))
    LogWriter.open(store).create(to_delta(SCHEMA), (), {}, str(uuid.uuid4()), [staged(store, [1])], {}, {})
    log = folder / "t" / "_delta_log" / f"{0:020}.json"
    assert old in log.read_text()
    log.write_text(log.read_text().replace(old, new))
    return store.uri


def test_a_feature_that_only_spark_may_write_blocks_direct_commits(tmp_path: Path) -> None:
    path = _changed(tmp_path, '"delta.checkpointInterval":"100"', '"delta.enableRowTracking":"true"')
    assert {Table(path, direct_commit=direct).metadata().writer for direct in (False, True)} == {"spark"}


def test_a_feature_that_a_repair_does_not_know_is_named(tmp_path: Path) -> None:
    features = '"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["inCommitTimestamp"]'
    table = Table(_changed(tmp_path, '"minReaderVersion":1,"minWriterVersion":2', features))
    next(Path(table.path).glob("*.parquet")).unlink()
    assert len(table.repair(dry_run=True).missing) == 1
    with pytest.raises(DirectCommitBlocked, match="inCommitTimestamp"):
        table.repair()
    assert table.resolve() == 0


def test_several_pipelines_must_all_rest(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "lake" / "t"))
    LogWriter.open(store).create(to_delta(SCHEMA), (), {}, str(uuid.uuid4()), [staged(store, [1])], marks(1), {})
    LogWriter.open(store, [batch_txn("web")]).append([staged(store, [2])], marks(1, "web"), {})
    states = [Store(str(tmp_path / "lake" / "_headrace" / name)) for name in ("shop", "web")]
    for each in states:
        Lease.take(each).release()
    table = Table(store.uri)
    assert dict(table.metadata().pipelines) == {"shop": 1, "web": 1}
    with Lease.take(states[1]), pytest.raises(LeaseHeld, match="'web'"):
        table.restore(version=0)
    assert holder(states[0]) is None
    table.restore(version=0)
