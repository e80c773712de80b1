"""Every stop on the errors page leads back to a running pipeline, by the command or action that its message names."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from obstore.exceptions import GenericError, UnauthenticatedError
from typer.testing import CliRunner

from headrace import errors
from headrace.cli import app
from headrace.delta.log import version_path
from headrace.errors import HeadraceError
from headrace.faults import Abandoned, Point, armed, disarm
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.resume import Decision, decide
from headrace.recovery.startup import StartupRecovery
from headrace.runtime import spark_errors
from headrace.storage.store import Profile, Store
from services.in_process_pipeline import Harness
from services.kafka_delta_ingest import Ingest, commit, set_options

ROOT = Path(__file__).parents[3]
SECTIONS = ("Source errors", "Table errors", "Hot store errors", "Infrastructure errors")

# What only a JVM, a database or another source can show is shown, with the run after it, by a test that has one.
ELSEWHERE = {
    "HotStoreTableInvalid": (
        "tests/fault/test_hot_store.py",
        "test_a_table_that_cannot_hold_the_rows_is_dropped_as_its_error_says",
    ),
    "HotStoreValueRejected": (
        "tests/fault/test_hot_store.py",
        "test_a_row_that_postgresql_cannot_store_is_deleted_by_the_command_of_its_error",
    ),
    "FileChanged": ("tests/fault/test_files.py", "test_a_changed_file_is_skipped_by_the_command_of_its_error"),
    "SpoolDamaged": ("tests/fault/test_spool.py", "test_a_pipeline_continues_when_its_spool_is_restored"),
    "SparkExited": ("tests/fault/test_kills.py", "test_without_its_jvm_python_ends_by_itself"),
    "EnvironmentMismatch": ("tests/service/test_spark_cluster.py", "test_executors_without_headrace_are_named"),
}


def stops() -> list[str]:
    """The names of the errors page that end a pipeline."""
    page = (ROOT / "docs/reference/errors.md").read_text()
    parts = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    return [name for section in SECTIONS for name in re.findall(r"^\| `(\w+)` \|", parts[section], re.MULTILINE)]


@dataclass
class Way:
    """A pipeline that is stopped, and the way back that its stop names."""

    harness: Harness
    name: str
    given_up: set[int] = field(default_factory=set)  # the ids of records that a person gave up
    sent: int = 0
    always: dict[str, Any] = field(default_factory=dict)  # fields that all records have from now on

    def send(self, count: int = 2, **more: Any) -> list[int]:
        """Records with ids of their own."""
        ids = list(range(self.sent, self.sent + count))
        self.harness.send({"id": each, **self.always, **more} for each in ids)
        self.sent += count
        return ids

    def ran(self, *batches: int) -> None:
        """Some batches before the trouble."""
        for count in batches:
            self.send(count)
            self.harness.run()

    def stops(self, match: str | None = None) -> HeadraceError:
        """The stop; it is the same at each start."""
        for _ in range(2):
            with pytest.raises(HeadraceError, match=match) as stopped:
                self.harness.run()
            assert stopped.value.name == self.name, stopped.value
        assert stopped.value.hint, "it says what to do next"
        return stopped.value

    def dies(self, point: Point = Point.BEFORE_LEDGER_WRITE) -> None:
        """A run that ends at a crash point, so that its batch is open."""
        with armed(point, "abandon"), pytest.raises(Abandoned):
            self.harness.run()

    def dies_begun(self) -> None:
        """A run that ends with a batch that is planned, and in no table."""
        with mock.patch.object(Pipeline, "_commit_one", side_effect=Abandoned), pytest.raises(Abandoned):
            self.harness.run()

    def follows(self, stop: HeadraceError, option: str = "") -> str:
        """Carry out the command that the message names."""
        named = [each for each in re.findall(r"`(headrace [^`]+)`", stop.hint) if option in each]
        assert named, f"no command {option} in: {stop.hint}"
        arguments = shlex.split(named[0].replace("SPEC", str(self.harness.write_spec())))[1:]
        arguments += ["--yes"] if arguments[0] in ("table", "takeover") else []
        found = CliRunner().invoke(app, arguments)
        assert found.exit_code == 0, (named[0], found.output, found.exception)
        return found.output

    def table(self, name: str = "orders") -> Path:
        return self.harness.place / "lake" / name

    def state(self) -> Path:
        return self.harness.place / "lake/_headrace/shop"

    def audit(self) -> None:
        """Each record is a row or a dead letter, once, but for those that were given up."""
        rows = Counter(row["id"] for table in ("orders", "other") for row in self.harness.rows(f"lake/{table}"))
        dead = Counter(json.loads(row["value"])["id"] for row in self.harness.dead())
        found = Counter({each: count for each, count in (rows + dead).items() if each is not None and each >= 0})
        assert found == Counter(set(range(self.sent)) - self.given_up)


CASES: dict[str, list[Callable[[Way], None]]] = {}


def case(name: str) -> Callable[[Callable[[Way], None]], Callable[[Way], None]]:
    """One way into a stop and out of it; after it the pipeline must run."""

    def add(function: Callable[[Way], None]) -> Callable[[Way], None]:
        CASES.setdefault(name, []).append(function)
        return function

    return add


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    made = Harness(tmp_path, {"route": {}, "table": {"path": f"{tmp_path}/lake/orders"}})
    made.serve(monkeypatch)
    return made


@pytest.fixture(autouse=True)
def _disarmed() -> Any:
    yield
    disarm()


# ---- the source ----


@case("SourceGap")
def records_that_were_never_read_are_gone(way: Way) -> None:
    way.ran(2)
    way.given_up |= set(way.send(3))
    way.send(1)
    way.harness.earliest = 5
    way.follows(way.stops())


@case("SourceGap")
def records_of_an_open_batch_are_gone_and_so_are_its_files(way: Way) -> None:
    way.ran(2)
    way.given_up |= set(way.send(3))
    way.dies_begun()
    way.send(1)
    for file in set(way.table().glob("*.parquet")) - set(map(Path, DeltaTable(str(way.table())).file_uris())):
        file.unlink()
    way.harness.earliest = 5
    way.follows(way.stops())


@case("SourceGap")
def some_records_of_an_open_batch_are_gone_and_one_table_has_it(way: Way) -> None:
    """What is left of it is read again for the other table."""
    also = {"name": "other", "table": {"path": f"{way.harness.folder}/lake/a_copy"}}
    way.harness.options["branches"] = [also]
    way.ran(2)
    gone = way.send(3)
    way.dies(Point.AFTER_FIRST_TABLE)
    way.given_up |= set(gone[:2])
    for file in set(way.table().glob("*.parquet")) - set(map(Path, DeltaTable(str(way.table())).file_uris())):
        file.unlink()
    way.harness.earliest = 4
    way.follows(way.stops())
    way.harness.run()
    assert sorted(row["id"] for row in way.harness.rows("lake/a_copy")) == list(range(5)), "it has the batch already"


@case("SourceTopicGone")
def a_topic_is_gone_and_is_created_again(way: Way) -> None:
    way.ran(2)
    way.harness.topic_id = None
    assert way.stops().hint == "Create the topic, or remove it from the spec; no offset was reset."
    way.harness.topic_id = "id"


@case("SourceTopicGone")
def a_partition_is_gone_whose_records_must_be_read_again(way: Way) -> None:
    way.ran(2)
    way.given_up |= set(way.send(3))
    way.dies_begun()
    for file in set(way.table().glob("*.parquet")) - set(map(Path, DeltaTable(str(way.table())).file_uris())):
        file.unlink()
    way.harness.partitions = 0
    way.follows(way.stops("must be read again"), "--accept-gap")
    way.harness.partitions = 1


@case("SourceReplaced")
def a_topic_was_deleted_and_created_again(way: Way) -> None:
    way.ran(2)
    way.harness.sent.clear()
    way.harness.topic_id = "id-2"
    way.send(3)
    way.follows(way.stops())


@case("SourceReplaced")
def a_topic_was_created_again_and_the_files_of_an_open_batch_are_gone(way: Way) -> None:
    way.ran(2)
    way.given_up |= set(way.send(3))
    way.dies_begun()
    for file in set(way.table().glob("*.parquet")) - set(map(Path, DeltaTable(str(way.table())).file_uris())):
        file.unlink()
    way.harness.sent.clear()
    way.harness.topic_id = "id-2"
    way.send(3)
    way.follows(way.stops())


@case("SourceReplaced")
def a_topic_was_created_again_and_changes_are_ordered_by_offset(way: Way) -> None:
    """The command refuses what would lose the changes, and names what is to be changed first."""
    table = {**way.harness.options["table"], "mode": "upsert", "merge": {"keys": ["id"]}}
    way.harness.options["table"] = table
    way.send(2, at=1)
    way.harness.run()
    way.harness.sent.clear()
    way.harness.topic_id = "id-2"
    way.send(3, at=2)
    stop = way.stops()
    with pytest.raises(errors.SourceReplaced, match="sequence_by"):
        decide(way.harness.spec, [Decision.REPLACED_TOPIC])
    way.harness.options["table"] = {**table, "merge": {"keys": ["id"], "sequence_by": "at"}}
    way.follows(stop)
    way.always = {"at": 3}


@case("SourceRewound")
def the_broker_ends_before_what_was_read(way: Way) -> None:
    way.ran(4)
    del way.harness.sent[2:]
    way.follows(way.stops())


@case("SourceRepartitioned")
def partitions_were_added_and_every_key_stays_in_its_own(way: Way) -> None:
    way.harness.options["table"] = {**way.harness.options["table"], "mode": "upsert", "merge": {"keys": ["id"]}}
    way.ran(2)
    way.harness.partitions = 2
    way.follows(way.stops())


@case("SourceRepartitioned")
def partitions_were_added_and_changes_get_an_order(way: Way) -> None:
    table = {**way.harness.options["table"], "mode": "upsert"}
    way.always = {"at": 1}
    way.harness.options["table"] = {**table, "merge": {"keys": ["id"]}}
    way.ran(2)
    way.harness.partitions = 2
    assert "merge.sequence_by" in way.stops().hint
    way.harness.options["table"] = {**table, "merge": {"keys": ["id"], "sequence_by": "at"}}


# ---- tables ----


@case("TableGone")
def a_table_is_gone(way: Way) -> None:
    way.given_up |= {0, 1}
    way.ran(2)
    shutil.rmtree(way.table())
    way.follows(way.stops())


@case("TableGone")
def a_table_is_gone_with_an_open_batch(way: Way) -> None:
    way.given_up |= {0, 1}
    way.ran(2)
    way.send(2)
    way.dies_begun()
    shutil.rmtree(way.table())
    way.follows(way.stops())


@case("TableGone")
def the_table_may_not_be_created(way: Way) -> None:
    way.harness.options["table"] = {**way.harness.options["table"], "create": "never"}
    way.send(2)
    assert "Create it first" in way.stops().hint
    write_deltalake(str(way.table()), pa.table({"id": pa.array([-1], pa.int64())}))


@case("TableReplaced")
def a_table_was_created_again(way: Way) -> None:
    way.given_up |= {0, 1}
    way.ran(2)
    shutil.rmtree(way.table())
    write_deltalake(str(way.table()), pa.table({"id": pa.array([-1], pa.int64())}))
    way.follows(way.stops())


@case("TableReplaced")
def a_table_was_created_again_with_an_open_batch(way: Way) -> None:
    way.given_up |= {0, 1}
    way.ran(2)
    way.send(2)
    way.dies_begun()
    shutil.rmtree(way.table())
    write_deltalake(str(way.table()), pa.table({"id": pa.array([-1], pa.int64())}))
    way.follows(way.stops())


@case("TableReplaced")
def a_table_that_no_ledger_knows_was_created_again(way: Way) -> None:
    write_deltalake(str(way.table()), pa.table({"id": pa.array([-1], pa.int64())}))
    way.send(2)
    way.dies_begun()
    shutil.rmtree(way.table() / "_delta_log")
    write_deltalake(str(way.table()), pa.table({"id": pa.array([-1], pa.int64())}))
    way.follows(way.stops())


@case("TableRestored")
def a_restored_table_is_refilled(way: Way) -> None:
    way.ran(2, 2)
    DeltaTable(str(way.table())).restore(0)
    way.follows(way.stops(), "refill")


@case("TableRestored")
def a_restored_table_is_kept(way: Way) -> None:
    way.ran(2, 2)
    way.given_up |= {2, 3}
    DeltaTable(str(way.table())).restore(0)
    stop = way.stops()
    assert "--table-restored=keep" in stop.hint
    way.follows(HeadraceError("", hint="`headrace resume SPEC --table-restored=keep`"))


@case("TableRestored")
def a_table_is_restored_with_an_open_batch(way: Way) -> None:
    way.ran(2, 2)
    way.send(2)
    way.dies()
    DeltaTable(str(way.table())).restore(0)
    way.follows(way.stops(), "refill")


@case("TableRestored")
def a_log_no_longer_tells_whether_the_table_was_restored(way: Way) -> None:
    way.ran(2, 2)
    way.given_up |= {2, 3}
    table = DeltaTable(str(way.table()))
    table.restore(0)
    table.create_checkpoint()
    for version in range(table.version()):
        (way.table() / version_path(version)).unlink()
    (way.table() / version_path(table.version())).unlink()
    way.follows(way.stops("no longer reaches back"))


@case("TableRestored")
def an_older_copy_took_the_place_of_a_table(way: Way) -> None:
    way.ran(2, 2)
    way.given_up |= {2, 3}
    (way.table() / version_path(1)).unlink()
    way.follows(way.stops("older copy"))


def _without_text(way: Way) -> None:
    table = pa.schema(DeltaTable(str(way.table())).schema().to_arrow())
    left = pa.schema([item for item in table if item.name != "text"])
    write_deltalake(str(way.table()), left.empty_table(), mode="overwrite", schema_mode="overwrite")


@case("TableChanged")
def a_column_is_dropped_under_an_open_batch(way: Way) -> None:
    way.send(2, text="a")
    way.harness.run()
    way.given_up |= {0, 1}  # whoever dropped the column took the rows away
    way.send(2, text="b")
    way.dies_begun()
    _without_text(way)
    way.follows(way.stops())


@case("TableChanged")
def a_column_is_retyped_and_the_batch_becomes_dead_letters(way: Way) -> None:
    way.send(2, text="a")
    way.harness.run()
    way.given_up |= {0, 1}
    way.send(2, text="b")
    way.dies_begun()
    table = pa.schema(DeltaTable(str(way.table())).schema().to_arrow())
    kept = pa.schema([item if item.name != "text" else pa.field("text", pa.int64()) for item in table])
    write_deltalake(str(way.table()), kept.empty_table(), mode="overwrite", schema_mode="overwrite")
    way.follows(way.stops())


@case("TableFeature")
def txns_of_the_table_expire(way: Way) -> None:
    way.ran(2)
    name = "delta.setTransactionRetentionDuration"
    DeltaTable(str(way.table())).alter.set_table_properties({name: "interval 1 days"}, raise_if_not_exists=False)
    way.follows(way.stops())


@case("TableFeature")
def rows_are_told_apart_in_another_way(way: Way) -> None:
    way.ran(2)
    before = way.harness.options["table"]
    way.harness.options["table"] = {**before, "mode": "upsert", "merge": {"keys": ["id"]}}
    assert "Remove that from the spec" in way.stops().hint
    way.harness.options["table"] = before


MANIFESTS = "delta.compatibility.symlinkFormatManifest.enabled"  # only Spark writes them


def _write_manifests(way: Way) -> None:
    """Another writer turns a feature on."""
    log = sorted((way.table() / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for file in log for line in file.read_text().splitlines()]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    metadata["configuration"][MANIFESTS] = "true"
    lines = [{"commitInfo": {"operation": "SET TBLPROPERTIES", "timestamp": 0}}, {"metaData": metadata}]
    (way.table() / version_path(len(log))).write_text("\n".join(map(json.dumps, lines)))


@case("DirectCommitBlocked")
def a_feature_is_turned_on_in_the_middle_of_a_batch(way: Way) -> None:
    """The first stop is told by the running commit, those of later starts by the table that is opened."""
    way.ran(2)
    way.send(2)
    with armed(Point.AFTER_STAGING, lambda: _write_manifests(way)), pytest.raises(HeadraceError) as stopped:
        way.harness.run()
    assert stopped.value.name == "DirectCommitBlocked"
    assert MANIFESTS in stopped.value.message
    assert stopped.value.hint.startswith("Remove the feature and run again, or run `headrace resume SPEC")
    unset = ["table", "set-properties", str(way.table()), "--unset", MANIFESTS, "--yes"]
    found = CliRunner().invoke(app, unset)
    assert found.exit_code == 0, (found.output, found.exception)


@case("TxnMismatch")
def the_txn_of_a_table_is_gone(way: Way) -> None:
    way.ran(2)
    _forget_txns(way)
    way.follows(way.stops())


def _forget_txns(way: Way) -> None:
    import pyarrow.parquet as pq

    table = DeltaTable(str(way.table()))
    table.create_checkpoint()
    path = way.table() / f"_delta_log/{table.version():020}.checkpoint.parquet"
    content = pq.read_table(path)
    pq.write_table(content.filter(content["txn"].is_null()), path)


@case("TxnMismatch")
def nothing_tells_whether_an_open_batch_is_in_its_table(way: Way) -> None:
    way.send(2)
    way.dies()
    write_deltalake(str(way.table()), pa.table({"id": pa.array([-1], pa.int64())}), mode="append", schema_mode="merge")
    DeltaTable(str(way.table())).optimize.compact()
    _forget_txns(way)
    newest = DeltaTable(str(way.table())).version()
    for version in range(newest):
        (way.table() / version_path(version)).unlink()
    stop = way.stops("offsets 0 to 1")
    DeltaTable(str(way.table())).delete("id >= 0")  # what the message asks for
    way.follows(stop)


@case("TxnMismatch")
def the_state_is_lost(way: Way) -> None:
    way.ran(2, 2)
    shutil.rmtree(way.state() / "ledger")
    shutil.rmtree(way.state() / "intents")
    shutil.rmtree(way.state() / "known_tables")
    way.follows(way.stops())


@case("TxnMismatch")
def the_ledger_is_lost_and_the_log_of_the_table_was_cleaned_up(way: Way) -> None:
    """Where to go on is told by the txns; whether the table was restored is another question, with its own answer."""
    way.ran(2, 2)
    data = pa.table({"id": pa.array([-1], pa.int64())})
    write_deltalake(str(way.table()), data, mode="append", schema_mode="merge")
    table = DeltaTable(str(way.table()))
    table.create_checkpoint()
    for version in range(table.version()):
        (way.table() / version_path(version)).unlink()
    shutil.rmtree(way.state() / "ledger")
    shutil.rmtree(way.state() / "intents")
    way.follows(way.stops())
    way.name = "TableRestored"
    way.follows(way.stops())


@case("TxnMismatch")
def the_state_is_set_back(way: Way) -> None:
    way.ran(2)
    shutil.copytree(way.state(), way.harness.folder / "old")
    way.ran(2)
    shutil.move(way.state(), way.harness.folder / "new")
    shutil.copytree(way.harness.folder / "old", way.state())
    assert "Restore the state directory" in way.stops("lost or replaced").hint
    shutil.rmtree(way.state())
    shutil.move(way.harness.folder / "new", way.state())


@case("TxnMismatch")
def a_state_that_was_set_back_is_lost_for_good(way: Way) -> None:
    way.ran(2)
    shutil.copytree(way.state(), way.harness.folder / "old")
    way.ran(2, 2)
    shutil.rmtree(way.state())
    shutil.copytree(way.harness.folder / "old", way.state())
    way.follows(way.stops())


@case("TxnMismatch")
def what_was_begun_is_lost_after_one_table_has_it(way: Way) -> None:
    also = {"name": "other", "table": {"path": f"{way.harness.folder}/lake/a_copy"}}
    way.harness.options["branches"] = [also]
    way.ran(2)
    way.send(2)
    way.dies(Point.AFTER_FIRST_TABLE)
    shutil.rmtree(way.state() / "intents")
    way.follows(way.stops())
    way.harness.run()
    assert sorted(row["id"] for row in way.harness.rows("lake/a_copy")) == list(range(4))


@case("TxnMismatch")
def what_is_known_of_topics_and_tables_is_lost(way: Way) -> None:
    """Without the ids, a topic or a table that was created again would be taken for the one before."""
    way.ran(2, 2)
    shutil.rmtree(way.state() / "known_tables")
    way.follows(way.stops("known_tables"))
    shutil.rmtree(way.table())
    way.given_up |= set(range(way.sent))
    with pytest.raises(errors.TableGone) as stopped:
        way.harness.run()
    way.follows(stopped.value)


@case("TxnMismatch")
def the_state_is_of_another_pipeline(way: Way) -> None:
    way.harness.options["state"] = str(way.state())
    way.ran(2)
    way.harness.options["pipeline"] = "web"
    assert "a separate state directory" in way.stops("'web'").hint
    way.harness.options["pipeline"] = "shop"


@case("TxnMismatch")
def the_deletes_of_a_table_that_merges_are_lost(way: Way) -> None:
    merge = {"keys": ["id"], "delete_when": "gone = true"}
    way.harness.options["table"] = {**way.harness.options["table"], "mode": "upsert", "merge": merge}
    way.send(2, gone=False)
    way.harness.run()
    way.given_up |= set(way.send(1, gone=True))
    way.harness.run()
    shutil.rmtree(way.state() / "tombstones")
    way.send(1, gone=False)
    way.follows(way.stops("tombstones"))
    way.always = {"gone": False}


@case("TxnMismatch")
def another_tool_set_the_txn_back(way: Way) -> None:
    way.ran(2, 2)
    way.send(2)

    def set_back() -> None:
        txn = CommitProperties(app_transactions=[Transaction("headrace:shop", 1)])
        data = pa.table({"id": pa.array([-1], pa.int64())})
        write_deltalake(str(way.table()), data, mode="append", schema_mode="merge", commit_properties=txn)

    with armed(Point.AFTER_STAGING, set_back), pytest.raises(errors.TxnMismatch) as stopped:
        way.harness.run()
    assert "Find out who else writes to this table, then run again" in stopped.value.hint


@case("CommitConflict")
def other_writers_are_first_each_time(way: Way) -> None:
    way.harness.options["table"] = {**way.harness.options["table"], "mode": "upsert", "merge": {"keys": ["id"]}}
    way.harness.options["retry"] = {"conflict": 2, "unreachable": {"initial_interval": "10ms", "max_interval": "20ms"}}
    way.ran(2)
    way.send(2)
    from headrace.write.row_edit import EditAttempt

    stage = EditAttempt._stage

    def overtaken(attempt: EditAttempt) -> Any:
        staged = stage(attempt)
        DeltaTable(str(way.table())).update({"id": "id"})
        return staged

    with mock.patch.object(EditAttempt, "_stage", overtaken):
        assert way.stops("changed rows|removed files").hint == "Run again when the other writer has finished."


@case("TooManyPartitions")
def a_batch_has_too_many_partitions(way: Way) -> None:
    way.harness.options |= {"limits": {"partition_values": 2}}
    way.harness.options["table"] = {**way.harness.options["table"], "partition_by": ["id"]}
    way.send(3)
    assert "limits.partition_values" in way.stops().hint
    way.harness.options["limits"] = {"partition_values": 10}


@case("ContractViolation")
def a_record_breaks_a_contract_that_stops(way: Way) -> None:
    before = way.harness.options["table"]
    way.ran(2)
    way.harness.options["table"] = {**before, "contract": {"new_field": "stop"}}
    way.send(2, more=1)
    way.stops()
    way.harness.options["table"] = before


@case("ContractViolation")
def a_message_keeps_what_a_record_brings_into_it(way: Way) -> None:
    """Field names are the producer's: none of their characters cuts the message, or the way out that follows it."""
    before = way.harness.options["table"]
    way.ran(2)
    way.harness.options["table"] = {**before, "contract": {"new_field": "stop"}}
    way.send(2, **{"a|b": 1})
    stop = way.stops()
    assert "'a|b'" in stop.message
    assert stop.hint.startswith("Change the producer")
    way.harness.options["table"] = {**before, "contract": {"new_field": "ignore"}}


@case("TooManyRejected")
def too_many_records_are_rejected(way: Way) -> None:
    way.harness.options["circuit_breaker"] = {"max_reject_ratio": 0.5, "min_records": 2}
    way.ran(2)
    way.send(2)
    ids = range(way.sent, way.sent + 8)
    way.harness.send({"id": each, "other,": 1} for each in ids)
    way.sent += 8
    with pytest.raises(errors.TooManyRejected) as stopped:
        way.harness.run()
    assert "headrace run SPEC" in stopped.value.hint
    way.harness.options.pop("circuit_breaker")


@case("ColumnMismatch")
def a_partition_column_is_not_there(way: Way) -> None:
    before = way.harness.options["table"]
    way.harness.options["table"] = {**before, "partition_by": ["day"]}
    way.send(2)
    way.stops()
    way.harness.options["table"] = before


@case("UnknownColumn")
def an_expression_names_what_nobody_has(way: Way) -> None:
    way.harness.options["transform"] = [{"where": "idd >= 0"}]
    way.send(2)
    assert "allow_missing" in way.stops("idd").hint
    way.harness.options["transform"] = [{"where": "id >= 0"}]


# ---- the surroundings ----


@case("PermissionDenied")
def a_store_refuses_a_write(way: Way) -> None:
    way.ran(2)
    way.send(2)
    with mock.patch.object(os, "fsync", side_effect=PermissionError(13, "Permission denied")):
        assert way.stops().hint == "Grant read and write access there, then run again."


def _s3_answers(way: Way, error: Exception) -> HeadraceError:
    """Stop the pipeline by the error of an S3 client, as the store of Headrace names it."""
    way.ran(2)
    way.send(2)
    client = Store("s3://lake/orders", Profile({"region": "eu-central-1"}))._open()

    def put_new(store: Store, path: str, data: bytes) -> str:
        return client.put_new(path, data)

    with mock.patch.object(Store, "put_new", put_new), mock.patch("obstore.put", side_effect=error):
        return way.stops()


@case("AuthenticationFailed")
def a_store_refuses_the_credentials(way: Way) -> None:
    stopped = _s3_answers(way, UnauthenticatedError("ExpiredToken"))
    assert stopped.hint == "Check storage.s3 and the environment (AWS_…), then run again."


@case("EndpointInvalid")
def a_bucket_is_in_another_region(way: Way) -> None:
    stopped = _s3_answers(way, GenericError("<Code>PermanentRedirect</Code>"))
    assert stopped.hint.startswith("Check endpoint and region in storage.s3 and the environment (AWS_…)")


@case("StorageUnsupported")
def a_store_has_no_conditional_writes(way: Way) -> None:
    stopped = _s3_answers(way, GenericError("<Code>NotImplemented</Code>"))
    assert stopped.hint == "Use an object store that supports conditional writes (If-None-Match)."


@case("StorageFull")
def a_disk_is_full(way: Way) -> None:
    way.ran(2)
    way.send(2)
    with mock.patch.object(os, "fsync", side_effect=OSError(28, "No space left on device")):
        way.stops()


@case("Fenced")
def another_instance_has_gone_on(way: Way) -> None:
    way.ran(2)
    way.send(2)

    def go_on() -> None:
        other = Harness(way.harness.folder, way.harness.options, sent=way.harness.sent)
        pipeline = Pipeline(other.spec, lambda: None, recovery=StartupRecovery())
        pipeline.open_ledger().decide("another instance", {})

    with armed(Point.AFTER_STAGING, go_on), pytest.raises(errors.Fenced) as stopped:
        way.harness.run()
    assert "Restart it" in stopped.value.hint


@case("TakeoverRequired")
def a_table_has_records_of_kafka_delta_ingest(way: Way) -> None:
    way.send(5)
    Ingest(way.harness).run(3)
    way.follows(way.stops())


@case("TakeoverRequired")
def a_table_has_records_of_kafka_delta_ingest_which_is_to_continue(way: Way) -> None:
    way.send(5)
    Ingest(way.harness).run(3)
    assert "`table.txn: {kafka-delta-ingest: web}`" in way.stops().hint
    set_options(way.harness, txn={"kafka-delta-ingest": "web"})
    way.harness.run()
    way.send(2)
    Ingest(way.harness).run()


@case("TxnMismatch")
def kafka_delta_ingest_still_runs(way: Way) -> None:
    set_options(way.harness, txn={"kafka-delta-ingest": "web"})
    way.send(5)
    Ingest(way.harness).run(3)
    with armed(Point.AFTER_STAGING, Ingest(way.harness).run), pytest.raises(errors.TxnMismatch) as stopped:
        way.harness.run()
    assert "Stop kafka-delta-ingest, then run again" in stopped.value.hint


@case("SourceRewound")
def a_table_has_txns_beyond_the_end_of_the_topic(way: Way) -> None:
    set_options(way.harness, txn={"kafka-delta-ingest": "web"})
    commit(way.table(), pa.table({"id": pa.array([-1], pa.int64())}), {"web-0": 40})
    way.send(2)
    assert "`table.txn: {kafka-delta-ingest: web_2, ignore: [web]}`" in way.stops().hint
    set_options(way.harness, txn={"kafka-delta-ingest": "web_2", "ignore": ["web"]})


@case("UnsupportedStateFormat")
def the_state_is_of_a_newer_release(way: Way) -> None:
    way.ran(2)
    newest = max((way.state() / "known_tables").iterdir())
    before = newest.read_text()
    newest.write_text(json.dumps({**json.loads(before), "format": 99}))
    assert "Run the version of Headrace that wrote it" in way.stops().hint
    newest.write_text(before)


@case("PipelineStopped")
def spark_fails_in_a_way_that_has_no_name(way: Way) -> None:
    way.ran(2)
    way.send(2)

    def fail() -> None:
        raise spark_errors.error_of(RuntimeError("something in Spark"), way.harness.folder)

    with armed(Point.AFTER_STAGING, fail), pytest.raises(errors.PipelineStopped) as stopped:
        way.harness.run()
    assert stopped.value.name == "PipelineStopped"


@case("HeadraceError")
def a_fault_of_our_own(way: Way) -> None:
    way.ran(2)
    way.send(2)
    with armed(Point.AFTER_STAGING, lambda: {}["no such key"]), pytest.raises(HeadraceError, match="report it"):
        way.harness.run()


# ---- all of them ----


def test_each_stop_of_the_errors_page_has_a_way_out() -> None:
    classes = {name for name, each in errors.ERRORS.items() if issubclass(each, errors.PipelineStopped)}
    assert set(stops()) == classes | {"HeadraceError"}
    assert set(stops()) == CASES.keys() | ELSEWHERE.keys()
    assert not CASES.keys() & ELSEWHERE.keys()
    for path, name in ELSEWHERE.values():
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(
    "function", [each for cases in CASES.values() for each in cases], ids=lambda each: each.__name__
)
def test_a_stop_leads_back_to_a_running_pipeline(harness: Harness, function: Callable[[Way], None]) -> None:
    (name,) = [name for name, cases in CASES.items() if function in cases]
    way = Way(harness, name)
    function(way)
    harness.run()
    way.send(2)
    harness.run()
    way.audit()
    ledger = sorted(harness.rows("lake/_headrace/shop/ledger"), key=lambda row: row["batch"])
    assert all(row["read"] == row["routed"] + row["dead"] + row["filtered"] + row["skipped"] for row in ledger)
