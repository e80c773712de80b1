"""Column mapping and type widening are enabled by the last direct commit; and what is said of clients is so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from headrace import Table
from headrace.delta.actions import Protocol
from headrace.delta.log import read_commit
from headrace.delta.log_writer import LogWriter
from headrace.delta.txn import batch_txn
from headrace.errors import DirectCommitBlocked, FeatureRequired, LeaseHeld, OperationDisabled, UsageError
from headrace.ledger.known_tables import KnownTables, TakenOver
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from headrace.table import EnabledFeature
from headrace.table.enable_feature import enable_directly
from headrace.table.ownership import existing_table
from services.in_process_pipeline import Harness, ingest

FEATURES = ["columnMapping", "typeWidening"]
COLUMNS = {"id": "int!", "day": "string", "s": "struct<a: int, l: array<struct<x: int>>>", "m": "map<string,int>"}
ROW = {"id": 1, "day": "a", "s": {"a": 2, "l": [{"x": 3}]}, "m": {"k": 4}}


@pytest.fixture
def table(lake: Path) -> Table:
    table = Table.get_or_create(lake / "t", COLUMNS, ["day"])
    table.bulk_insert([ROW])
    return table


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.feed([{"id": 1, "kind": "alpha"}])
    return harness


@pytest.mark.parametrize("feature", FEATURES)
def test_one_commit_enables_a_feature_and_names_the_writer(table: Table, feature: str) -> None:
    plan = table.enable_feature(feature, dry_run=True)
    assert (plan.version, plan.enabled, table.resolve()) == (1, False, 1)
    done = table.enable_feature(feature)
    assert (done.version, done.enabled, done.before, done.after) == (2, True, plan.before, plan.after)
    about = table.metadata()
    assert (about.writer, about.min_reader_version, about.min_writer_version) == ("spark", 3, 7)
    assert about.features == tuple(sorted(["appendOnly", feature, "invariants"])), "older rules stay in force"
    assert table.history(1)[0].operation == "ENABLE FEATURE"
    assert table.query().records() == [ROW]
    again = table.enable_feature(feature)
    assert (again.version, again.enabled, again.before) == (2, False, done.after)


def test_every_field_is_mapped_to_the_name_that_files_have(table: Table) -> None:
    table.enable_feature("columnMapping")
    commit = read_commit(Store(table.path), 2)
    assert commit is not None
    assert commit.metadata is not None
    properties = commit.metadata.properties
    assert (properties["delta.columnMapping.mode"], properties["delta.columnMapping.maxColumnId"]) == ("name", "7")
    names = re.findall(r'"delta.columnMapping.physicalName": "(\w+)"', commit.metadata.schema_json)
    numbers = map(int, re.findall(r'"delta.columnMapping.id": (\d+)', commit.metadata.schema_json))
    numbered = {"id": 1, "day": 2, "s": 3, "a": 4, "l": 5, "x": 6, "m": 7}
    assert dict(zip(names, numbers, strict=True)) == numbered


@pytest.mark.parametrize("feature", FEATURES)
def test_a_writer_that_planned_a_direct_commit_before_is_refused(table: Table, feature: str) -> None:
    late = LogWriter.open(Store(table.path))
    table.enable_feature(feature)
    with pytest.raises(DirectCommitBlocked, match=feature) as refused:
        late.append((), {}, {})
    assert "Spark writes the table from now on" in refused.value.hint
    assert table.resolve() == 2


def test_the_second_feature_needs_spark(table: Table) -> None:
    """It is not committed beside Spark: the way is through `Table(spark=…)`, as for any change."""
    table.enable_feature("columnMapping")
    plan = table.enable_feature("typeWidening", dry_run=True)
    assert _access(plan, "headrace table") == (("yes", "with Spark"), ("yes", "with Spark"))
    assert _access(plan, "delta-rs") == (("QueryBuilder only", "no"), ("no", "no"))


def test_an_unknown_feature(table: Table) -> None:
    with pytest.raises(UsageError, match="deletionVectors") as refused:
        table.enable_feature("deletionVectors")
    assert refused.value.hint == "Specify columnMapping or typeWidening."


# ---- clients ----


def _access(plan: EnabledFeature, client: str) -> tuple[tuple[str, str], tuple[str, str]]:
    before, after = (
        next((each.read, each.write) for each in rows if each.client == client) for rows in (plan.before, plan.after)
    )
    return before, after


READERS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "headrace table": lambda path: Table(path).query().records(),
    "delta-rs": lambda path: DeltaTable(path).to_pyarrow_table().to_pylist(maps_as_pydicts="strict"),
    "Polars": lambda path: polars.read_delta(path).to_dicts(),
}


def _query_builder(path: str) -> list[dict[str, Any]]:
    found = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT id FROM t")
    return list(pa.table(found).to_pylist())


@pytest.mark.parametrize("feature", FEATURES)
def test_readers_are_those_that_are_named(table: Table, feature: str) -> None:
    before, after = zip(*(_access(table.enable_feature(feature, dry_run=True), name) for name in READERS), strict=True)
    assert {read for read, _ in before} == {"yes"}
    for read in READERS.values():
        assert read(table.path)[0]["id"] == 1
    table.enable_feature(feature)
    for (name, read), (said, _) in zip(READERS.items(), after, strict=True):
        if said == "yes":
            assert read(table.path)[0]["id"] == 1, name
        else:
            with pytest.raises(Exception, match=feature):
                read(table.path)
    if after[1][0] == "QueryBuilder only":
        assert _query_builder(table.path) == [{"id": 1}]
    else:
        with pytest.raises(Exception, match="TypeWidening"):
            _query_builder(table.path)


@pytest.mark.parametrize("feature", FEATURES)
def test_delta_rs_writes_before_and_must_not_afterwards(table: Table, feature: str) -> None:
    _, after = _access(table.enable_feature(feature, dry_run=True), "delta-rs")
    rows = table.query().arrow()
    write_deltalake(table.path, rows, mode="append")
    assert Table(table.path).enable_feature(feature).version == 3
    assert after[1] == "no"
    with pytest.raises(DirectCommitBlocked, match=feature):
        LogWriter.open(Store(table.path)).append((), {}, {})


@pytest.mark.parametrize("feature", FEATURES)
def test_changes_are_read_as_they_were(lake: Path, feature: str) -> None:
    table = Table.get_or_create(lake / "t", COLUMNS, ["day"], {"delta.enableChangeDataFeed": "true"})
    table.bulk_insert([ROW])
    table.update("id = 1", {"id": 2})
    before = sorted(table.changes(0).records(), key=str)
    assert {row["_change_type"] for row in before} == {"insert", "update_preimage", "update_postimage"}
    table.enable_feature(feature)
    assert sorted(table.changes(0).records(), key=str) == before


# ---- pipelines ----


def test_a_running_pipeline_is_not_overtaken(harness: Harness) -> None:
    table = Table(harness.folder / "lake" / "alpha")
    with Lease.take(Store(harness.spec.state_uri)):
        for dry_run in (True, False):
            with pytest.raises(LeaseHeld, match="enable_feature requires exclusive access"):
                table.enable_feature("columnMapping", dry_run=dry_run)
    assert table.resolve() == 0
    done = table.enable_feature("columnMapping")
    assert (done.pipelines, table.metadata().writer) == (("shop",), "spark"), "although the ledger has not heard of it"


def test_the_lease_is_held_while_a_feature_is_enabled(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    state, seen = Store(harness.spec.state_uri), []
    put = Store.put_new

    def watched(store: Store, path: str, data: bytes) -> str:
        if path.endswith(".json") and "_delta_log" in path:
            with pytest.raises(LeaseHeld):
                Lease.take(state)
            seen.append(path)
        return put(store, path, data)

    monkeypatch.setattr(Store, "put_new", watched)
    Table(harness.folder / "lake" / "alpha").enable_feature("columnMapping")
    assert len(seen) == 1


def test_an_unfinished_batch_is_finished_first(harness: Harness) -> None:
    from headrace.faults import Abandoned, armed

    with armed("after_commit", "abandon"), pytest.raises(Abandoned):
        harness.feed([{"id": 2, "kind": "alpha"}])
    table = Table(harness.folder / "lake" / "alpha")
    with pytest.raises(OperationDisabled, match="a batch of the pipeline 'shop' is not finished") as refused:
        table.enable_feature("columnMapping")
    assert "headrace resume SPEC" in refused.value.hint
    ingest(harness.spec, harness.envelopes(2))
    table.enable_feature("columnMapping")
    assert table.query().count() == 2


@pytest.mark.parametrize("feature", FEATURES)
def test_a_table_that_spark_took_over_gets_no_direct_commit(harness: Harness, feature: str) -> None:
    """The ledger still names direct commits."""
    table = Table(harness.folder / "lake" / "alpha")
    state = existing_table(Store(table.path))
    protocol = Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors"}))
    commit = Path(table.path, "_delta_log", f"{1:020}.json")
    commit.write_text("\n".join(json.dumps(line) for line in (protocol.action(), state.metadata.action())))
    for dry_run in (True, False):
        with pytest.raises(OperationDisabled, match=r"no longer possible: .* deletionVectors") as refused:
            table.enable_feature(feature, dry_run=dry_run)
        assert "headrace resume SPEC --accept-new-table" in refused.value.hint
    with pytest.raises(OperationDisabled, match="deletionVectors"):  # it was enabled after the check
        enable_directly(Store(table.path), state, feature)
    assert table.resolve() == 1


def test_a_table_that_a_pipeline_overwrites_stays_as_it_is(tmp_path: Path) -> None:
    path = f"{tmp_path}/lake/all"
    options = {"route": {"by": "fixed"}, "table": {"path": path, "mode": "overwrite"}}
    harness = Harness(tmp_path, options)
    harness.feed([{"id": 1}])
    known = KnownTables.load(Store(harness.spec.state_uri))
    known.store(tables={path: _overwritten(known, path)})
    with pytest.raises(OperationDisabled, match="a pipeline overwrites it"):
        Table(path).enable_feature("typeWidening")


def _overwritten(known: KnownTables, path: str) -> Any:
    from dataclasses import replace

    return replace(known.tables[path], full_refresh=1)


def test_a_table_with_txns_of_kafka_delta_ingest_stays_as_it_is(harness: Harness) -> None:
    path = f"{harness.folder}/lake/alpha"
    KnownTables.load(Store(harness.spec.state_uri)).store_takeover({}, {}, {path: TakenOver("kdi")})
    with pytest.raises(OperationDisabled, match="txns of 'kdi'"):
        Table(path).enable_feature("typeWidening")


def test_dead_letters_stay_readable_for_all(harness: Harness) -> None:
    harness.feed([b"{"])
    with pytest.raises(OperationDisabled, match="state of a pipeline"):
        Table(f"{harness.spec.state_uri}/dead_letters").enable_feature("columnMapping")


def test_tables_of_the_state_stay_readable_wherever_they_are(tmp_path: Path) -> None:
    options = {"state": f"{tmp_path}/own", "dead_letters": {"path": f"{tmp_path}/rejected"}}
    harness = Harness(tmp_path, options)
    harness.feed([{"id": 1, "kind": "alpha"}, b"{"])
    states = {"shop": f"{tmp_path}/own/"}
    further = LogWriter.open(Store(Table.get_or_create(f"{tmp_path}/own/further", {"id": "int"}).path))
    further.append((), {batch_txn("shop"): 1}, {})
    for path, found in (("rejected", {}), ("own/ledger", {}), ("rejected", states), ("own/further", states)):
        with pytest.raises(OperationDisabled, match="state of a pipeline"):
            Table(tmp_path / path, states=found).enable_feature("columnMapping", dry_run=True)
    assert Table(tmp_path / "lake" / "alpha", states=states).enable_feature("columnMapping").enabled


# ---- the way out that errors name ----

REFUSED: dict[str, Callable[[Table], object]] = {
    "rename": lambda table: table.update_schema(rename={"id": "key"}),
    "drop": lambda table: table.update_schema(drop=["m"]),
    "widen": lambda table: table.update_schema(widen={"id": "bigint"}),
    "set widening": lambda table: table.set_properties({"delta.enableTypeWidening": "true"}),
    "set mapping": lambda table: table.set_properties({"delta.columnMapping.mode": "name"}),
    "create": lambda table: Table.get_or_create(f"{table.path}2", COLUMNS, (), {"delta.enableTypeWidening": "true"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_command_that_an_error_names_enables_the_feature(
    table: Table, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.cli import main

    with pytest.raises(FeatureRequired) as refused:
        REFUSED[name](table)
    command = re.search(r"`(headrace table enable-feature PATH \w+)`", refused.value.hint)
    assert command, refused.value.hint
    arguments = command[1].replace("PATH", table.path).split()
    monkeypatch.setattr("sys.argv", [*arguments, "--yes", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    said = json.loads(capsys.readouterr().out)
    assert (said["enabled"], said["feature"] in Table(table.path).metadata().features) == (True, True)
