"""The log tail on local disk: what it writes, what it goes along with, what it stops at."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from headrace.delta import log
from headrace.delta.foreign_commits import CommitKind
from headrace.delta.log import version_path
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import to_delta
from headrace.delta.txn import batch_txn
from headrace.errors import (
    DirectCommitBlocked,
    Fenced,
    StorageUnreachable,
    TableChanged,
    TableGone,
    TableReplaced,
    TableRestored,
    TxnMismatch,
)
from headrace.storage.store import Store
from services.staging import SCHEMA, WIDER, ids, marks, opened, rows, staged

MARKS = [batch_txn("shop")]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "my lake" / "orders"))


def made(store: Store, schema: pa.Schema = SCHEMA, **properties: str) -> LogWriter:
    """A table at version 0, made by batch 1 with the ids 1 and 2."""
    tail = LogWriter.open(store, MARKS)
    receipt = tail.create(to_delta(schema), (), properties, str(uuid.uuid4()), [staged(store, [1, 2])], marks(1), {})
    assert receipt is not None
    return tail


def test_the_first_version_is_table_rows_and_txns_in_one(store: Store) -> None:
    tail = LogWriter.open(store, MARKS)
    assert tail.state is None
    name, file = str(uuid.uuid4()), staged(store, [1, 2])
    receipt = tail.create(to_delta(SCHEMA), (), {"owner": "me"}, name, [file], marks(1), {"batch": 1})
    assert receipt is not None
    assert (receipt.version, receipt.rows, receipt.files, receipt.bytes) == (0, 2, 1, file.size)
    table = opened(store)
    assert ids(store) == [1, 2]
    assert str(table.metadata().id) == name
    assert table.metadata().configuration == {"owner": "me", "delta.checkpointInterval": "100"}
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
    assert table.transaction_version("headrace:shop") == 1
    assert table.transaction_version("headrace:shop:orders:0") == 9
    assert table.schema().to_json() == to_delta(SCHEMA).replace(": ", ":").replace(", ", ",")


def test_a_commit_says_what_it_did(store: Store) -> None:
    tail = made(store)
    tail.append([staged(store, [3])], marks(2), {"batch": 2, "read": 10})
    lines = [json.loads(line) for line in store.get(version_path(1)).splitlines()]
    info = lines[0]["commitInfo"]
    assert info["isBlindAppend"] is True
    assert info["operation"] == "STREAMING UPDATE"
    assert info["operationParameters"] == {"outputMode": "Append", "queryId": "shop", "epochId": "2"}
    assert info["operationMetrics"]["numOutputRows"] == "1"
    assert info["headrace"] == {"batch": 2, "read": 10}
    assert info["engineInfo"].startswith("headrace/")
    assert uuid.UUID(info["txnId"])
    assert all(line["txn"]["lastUpdated"] > 0 for line in lines if "txn" in line)
    assert opened(store).history(1)[0]["operation"] == "STREAMING UPDATE"


def test_the_same_batch_again_is_skipped_and_an_older_one_is_fenced(store: Store) -> None:
    tail = made(store)
    tail.append([staged(store, [3])], marks(2), {})
    again = tail.append([staged(store, [3])], marks(2), {})
    assert again.skipped
    assert LogWriter.open(store, MARKS).append([staged(store, [3])], marks(2), {}).skipped
    with pytest.raises(Fenced, match="headrace:shop = 2"):
        tail.append([staged(store, [9])], marks(1), {})
    assert ids(store) == [1, 2, 3]


def test_partition_values_of_any_kind_come_back(store: Store) -> None:
    days = ["plain", "a b", "100%", "x=y", "ü", "a/b", "a%2Fb", "#?&+:;,'\"", "日本", "{x}[y]^z`~"]
    tail = LogWriter.open(store, MARKS)
    files = [staged(store, [number], day) for number, day in enumerate(days)]
    tail.create(to_delta(SCHEMA), ("day",), {}, str(uuid.uuid4()), files, marks(1), {})
    assert [row["day"] for row in rows(store)] == days
    opened(store).optimize.compact()
    opened(store).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert [row["day"] for row in rows(store)] == days


def test_a_foreign_append_is_gone_along_with(store: Store) -> None:
    tail = made(store)
    write_deltalake(store.delta_uri, pa.table({"id": [50], "day": ["x"]}), mode="append")
    receipt = tail.append([staged(store, [3])], marks(2), {})
    assert (receipt.version, receipt.skipped) == (2, False)
    assert ids(store) == [1, 2, 3, 50]


def test_a_foreign_compaction_is_gone_along_with(store: Store) -> None:
    tail = made(store)
    tail.append([staged(store, [3])], marks(2), {})
    opened(store).optimize.compact()
    assert tail.append([staged(store, [4])], marks(3), {}).version == 3
    assert ids(store) == [1, 2, 3, 4]


def test_a_column_added_by_others_is_followed_with_the_same_files(store: Store) -> None:
    tail = made(store)
    file = staged(store, [3])
    opened(store).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    assert tail.append([file], marks(2), {}).version == 2
    assert tail.current_state().schema.names == ["id", "day", "note"]
    assert rows(store)[2] == {"id": 3, "day": None, "note": None}


def overwrite(store: Store, table: pa.Table, **more: object) -> None:
    write_deltalake(store.delta_uri, table, mode="overwrite", schema_mode="overwrite", **more)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"id": [1]}), "day is not in the table"),
        (pa.table({"Id": [1], "day": ["x"]}), "id is not in the table"),
        (pa.table({"id": ["1"], "day": ["x"]}), "id is string in the table and long in the files"),
        (
            pa.table({"id": [1], "day": ["x"]}, schema=pa.schema([pa.field("id", pa.int64(), False), SCHEMA.field(1)])),
            "id is NOT NULL",
        ),
        (
            pa.table({"id": [1], "day": ["x"], "k": [1]}, schema=SCHEMA.append(pa.field("k", pa.int64(), False))),
            "k is NOT NULL and not in the files",
        ),
    ],
    ids=["dropped", "renamed", "retyped", "not null", "new not null"],
)
def test_a_table_altered_beyond_following_stops(store: Store, table: pa.Table, said: str) -> None:
    tail = made(store)
    file = staged(store, [3])
    overwrite(store, table)
    version = opened(store).version()
    for _ in range(2):  # a stop stays a stop
        with pytest.raises(TableChanged, match=said):
            tail.append([file], marks(2), {})
    assert opened(store).version() == version


def test_a_batch_that_is_in_the_table_is_skipped_whatever_was_altered_since(store: Store) -> None:
    tail, slow = made(store), LogWriter.open(store, MARKS)
    file = staged(store, [3])
    tail.append([file], marks(2), {})
    overwrite(store, pa.table({"id": ["1"]}))
    narrow = to_delta(SCHEMA)
    assert tail.append([file], marks(2), {}, schema=narrow).skipped
    assert slow.append([file], marks(2), {}, schema=narrow).skipped
    assert LogWriter.open(store, MARKS).append([file], marks(2), {}, schema=narrow).skipped
    with pytest.raises(TableChanged):
        slow.append([staged(store, [4])], marks(3), {}, schema=narrow)


def test_every_stop_says_what_to_do_next(store: Store) -> None:
    tail = made(store)
    shutil.rmtree(store.root)
    with pytest.raises(TableGone) as caught:
        tail.append([], marks(2), {})
    assert "headrace resume SPEC --accept-new-table" in caught.value.hint


def test_another_partitioning_stops(store: Store) -> None:
    tail = made(store)
    metadata = json.loads(store.get(version_path(0)).splitlines()[2])
    metadata["metaData"]["partitionColumns"] = ["day"]
    store.put_new(version_path(1), json.dumps(metadata).encode())
    with pytest.raises(TableChanged, match="partitioned by"):
        tail.append([staged(store, [3])], marks(2), {})


def test_a_constraint_added_underneath_is_not_for_the_log_writer(store: Store) -> None:
    tail = made(store)
    opened(store).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(DirectCommitBlocked, match=r"delta\.constraints\.positive"):
        tail.append([staged(store, [-3])], marks(2), {})
    with pytest.raises(DirectCommitBlocked):
        LogWriter.open(store, MARKS).append([staged(store, [-3])], marks(2), {})


def test_a_restored_table_stops(store: Store) -> None:
    tail = made(store)
    tail.append([staged(store, [3])], marks(2), {})
    opened(store).restore(0)
    for _ in range(2):
        with pytest.raises(TableRestored, match="Version 2"):
            tail.append([staged(store, [4])], marks(3), {})
    with pytest.raises(TableRestored):
        tail.follow()
    assert ids(store) == [1, 2]


def test_a_table_that_is_gone_stops_and_is_not_made_again(store: Store) -> None:
    tail = made(store)
    file = staged(store, [3])
    shutil.rmtree(store.root)
    for _ in range(2):
        with pytest.raises(TableGone):
            tail.append([file], marks(2), {})
    assert not Path(store.root).exists()


@pytest.mark.parametrize("versions", [1, 2, 5])
def test_a_recreated_table_stops_however_far_it_has_come(store: Store, versions: int) -> None:
    tail = made(store)
    tail.append([staged(store, [3])], marks(2), {})
    shutil.rmtree(store.root)
    for number in range(versions):
        write_deltalake(store.delta_uri, pa.table({"id": [number], "day": ["x"]}), mode="append")
    with pytest.raises(TableReplaced):
        tail.append([staged(store, [4])], marks(3), {})
    with pytest.raises(TableReplaced):
        tail.follow()
    assert opened(store).version() == versions - 1


def test_files_staged_for_another_table_are_refused(store: Store) -> None:
    tail = made(store)
    with pytest.raises(TableReplaced, match="the batch is for"):
        tail.append([staged(store, [3])], marks(2), {}, table_id=str(uuid.uuid4()))
    assert not tail.append([staged(store, [3])], marks(2), {}, table_id=tail.current_state().table_id).skipped


def test_a_version_of_ours_written_over_by_others_is_found_out(store: Store) -> None:
    """What an unconditional writer does to a lake: our rows and our mark are gone."""
    tail = made(store)
    tail.append([staged(store, [3])], marks(2), {})
    store.put(version_path(1), b'{"commitInfo":{"operation":"WRITE"}}')
    with pytest.raises(TxnMismatch, match="was 2 and is"):
        tail.append([staged(store, [4])], marks(3), {})


def test_a_log_cleaned_up_underneath_is_read_again(store: Store) -> None:
    slow, quick = made(store), LogWriter.open(store, MARKS)
    for batch in range(2, 8):
        quick.append([staged(store, [batch + 1])], marks(batch), {})
    opened(store).create_checkpoint()
    for version in range(6):
        store.delete([version_path(version)])
    with pytest.raises(Fenced):
        slow.append([staged(store, [99])], marks(2), {})
    assert slow.append([staged(store, [9])], marks(8), {}).version == 7
    assert ids(store) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert opened(store).transaction_version("headrace:shop") == 8


def test_a_table_whose_log_is_only_a_checkpoint_can_be_appended_to_and_can_go(store: Store) -> None:
    made(store)
    opened(store).create_checkpoint()
    store.delete([version_path(0)])
    tail, late = LogWriter.open(store, MARKS), LogWriter.open(store, MARKS)
    assert tail.append([staged(store, [3])], marks(2), {}).version == 1
    assert ids(store) == [1, 2, 3]
    shutil.rmtree(store.root)
    with pytest.raises(TableGone):
        late.append([staged(store, [4])], marks(3), {})


def test_txns_outlive_checkpoint_clean_up_and_transaction_retention(store: Store) -> None:
    tail = made(store, **{"delta.setTransactionRetentionDuration": "interval 7 days"})
    for batch in range(2, 5):
        tail.append([staged(store, [batch + 1])], marks(batch), {})
    opened(store).create_checkpoint()
    for version in range(3):
        store.delete([version_path(version)])
    again = LogWriter.open(store, [batch_txn("shop"), "headrace:shop:orders:0"])
    assert again.current_state().txns == marks(4)


def test_a_restore_behind_a_log_that_was_cleaned_up_under_a_driver_is_reported(store: Store) -> None:
    made(store)
    tail = LogWriter.open(store, MARKS)
    tail.append([staged(store, [3])], marks(2), {})
    opened(store).restore(0)
    LogWriter.open(store, MARKS).append([staged(store, [4])], {}, {})
    opened(store).create_checkpoint()
    store.delete([version_path(0), version_path(1)])  # the driver knows version 1
    with pytest.raises(TableRestored, match="Version 2"):
        tail.append([staged(store, [5])], marks(3), {})
    store.delete([version_path(2)])
    with pytest.raises(TableRestored, match="no longer reaches back to version 2"):
        tail.append([staged(store, [5])], marks(3), {})


def test_a_hint_that_is_ahead_of_its_log_is_not_believed(store: Store) -> None:
    made(store)
    store.put("_delta_log/_last_checkpoint", b'{"version": 9, "size": 1}')
    assert log.newest_version(store) == 0


class Flaky(Store):
    """A real store whose next put of a version loses its reply; optionally nothing can be read afterwards either."""

    lose = False
    blind = False

    def put_new(self, path: str, data: bytes) -> str:
        tag = super().put_new(path, data)
        if self.lose and "_delta_log" in path:
            self.lose = False
            raise StorageUnreachable(f"{path}: reply lost.")
        return tag

    def tag(self, path: str) -> str | None:
        if self.blind and not self.lose:
            self.blind = False
            raise StorageUnreachable(f"{path}: not now.")
        return super().tag(path)


def test_a_lost_reply_is_settled_by_the_log(store: Store) -> None:
    flaky = Flaky(store.uri)
    tail = made(flaky)
    flaky.lose = True
    receipt = tail.append([staged(store, [3])], marks(2), {})
    assert (receipt.version, receipt.skipped) == (1, False)
    assert tail.append([staged(store, [4])], marks(3), {}).version == 2
    assert ids(store) == [1, 2, 3, 4]


def test_a_lost_reply_at_birth_is_settled_by_the_log(store: Store) -> None:
    flaky = Flaky(store.uri)
    flaky.lose = True
    tail = made(flaky)
    assert tail.append([staged(store, [3])], marks(2), {}).version == 1
    assert ids(store) == [1, 2, 3]


def test_while_nothing_can_be_read_the_caller_retries_and_nothing_is_duplicated(store: Store) -> None:
    flaky = Flaky(store.uri)
    tail = made(flaky)
    file = staged(store, [3])
    flaky.lose = flaky.blind = True
    with pytest.raises(StorageUnreachable, match="not now"):
        tail.append([file], marks(2), {})
    write_deltalake(store.delta_uri, pa.table({"id": [50], "day": ["x"]}), mode="append")
    receipt = tail.append([file], marks(2), {})
    assert (receipt.version, receipt.skipped) == (1, False)
    assert ids(store) == [1, 2, 3, 50]


def test_another_driver_with_the_same_batch_came_first(store: Store) -> None:
    ours, theirs = made(store), LogWriter.open(store, MARKS)
    file = staged(store, [3])
    assert not theirs.append([file], marks(2), {}).skipped
    assert ours.append([file], marks(2), {}).skipped
    assert ids(store) == [1, 2, 3]


def test_a_zombie_changes_nothing(store: Store) -> None:
    zombie, alive = made(store), LogWriter.open(store, MARKS)
    file = staged(store, [3])
    alive.append([file], marks(2), {})
    alive.append([staged(store, [4])], marks(3), {})
    for _ in range(2):
        with pytest.raises(Fenced):
            zombie.append([file], marks(2), {})
    assert opened(store).version() == 2


def test_a_txn_set_back_by_others_stops(store: Store) -> None:
    tail = made(store)
    tail.append([staged(store, [3])], marks(5), {})
    back = CommitProperties(app_transactions=[Transaction("headrace:shop", 2)])
    rows = pa.table({"id": [9], "day": ["x"]})
    write_deltalake(store.delta_uri, rows, mode="append", commit_properties=back)
    with pytest.raises(TxnMismatch, match="back to 2"):
        tail.append([staged(store, [4])], marks(6), {})


def test_pipelines_do_not_fence_each_other(store: Store) -> None:
    shop, web = made(store), LogWriter.open(store, [batch_txn("web")])
    for batch in (2, 3):
        shop.append([staged(store, [batch + 1])], marks(batch), {})
        assert not web.append([staged(store, [batch + 100])], marks(batch, "web"), {}).skipped
    assert ids(store) == [1, 2, 3, 4, 102, 103]


def test_of_two_creators_the_second_appends(store: Store) -> None:
    one, two = LogWriter.open(store, MARKS), LogWriter.open(store, [batch_txn("web")])
    arguments = (to_delta(SCHEMA), (), {}, str(uuid.uuid4()))
    assert one.create(*arguments, [staged(store, [1])], marks(1), {}) is not None
    assert two.create(*arguments, [staged(store, [2])], marks(1, "web"), {}) is None
    assert two.append([staged(store, [2])], marks(1, "web"), {}, schema=to_delta(SCHEMA)).version == 1
    assert ids(store) == [1, 2]


def test_what_others_did_is_reported(store: Store) -> None:
    tail, other = made(store), LogWriter.open(store, MARKS)
    write_deltalake(store.delta_uri, pa.table({"id": [50], "day": ["x"]}), mode="append")
    opened(store).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    other.append([staged(store, [3])], marks(2), {})
    opened(store).optimize.compact()
    changes = tail.follow()
    assert [set(change.kinds) for change in changes] == [
        {CommitKind.APPEND},
        {CommitKind.METADATA},
        {CommitKind.APPEND, CommitKind.TXN},
        {CommitKind.REMOVE},
    ]
    assert [change.version for change in changes] == [1, 2, 3, 4]
    assert tail.follow() == []
    assert tail.current_state() == LogWriter.open(store, tail.current_state().txns).current_state()


def test_following_waits_for_a_table_to_be_born(store: Store) -> None:
    tail = LogWriter.open(store, MARKS)
    assert tail.follow() == []
    with pytest.raises(TableGone, match="no table found"):
        tail.append([], marks(1), {})
    made(store)
    tail.follow()
    assert tail.current_state().version == 0


def test_a_commit_that_is_not_whole_yet_is_waited_for(store: Store) -> None:
    tail = made(store)
    store.put(version_path(1), b'{"commitInfo":{"opera')
    with pytest.raises(StorageUnreachable, match="not a complete commit"):
        tail.append([staged(store, [3])], marks(2), {})


NESTED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("day", pa.string()),
        pa.field("s", pa.struct([pa.field("a", pa.int32())])),
        pa.field("l", pa.list_(pa.field("element", pa.struct([pa.field("a", pa.int32())])))),
    ]
)
NESTED_WIDER = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("new", pa.float64()),
        pa.field("day", pa.string()),
        pa.field("s", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])),
        pa.field("l", pa.list_(pa.field("element", pa.struct([pa.field("b", pa.int32()), pa.field("a", pa.int32())])))),
    ]
)


def test_columns_are_added_at_any_depth_and_old_files_still_fit(store: Store) -> None:
    tail = made(store, NESTED)
    before = tail.current_state()
    after = tail.evolve(to_delta(NESTED_WIDER), {"batch": 2})
    assert after.schema == NESTED_WIDER
    assert (after.version, after.table_id, after.properties) == (1, before.table_id, before.properties)
    assert after.metadata.created == before.metadata.created
    assert after.protocol == before.protocol
    assert tail.append([staged(store, [3])], marks(2), {}, schema=to_delta(NESTED)).version == 2
    assert rows(store)[2] == {"id": 3, "new": None, "day": None, "s": None, "l": None}
    assert tail.evolve(to_delta(NESTED_WIDER), {}).version == 2  # nothing to add, nothing written


def test_evolving_keeps_what_others_added_meanwhile(store: Store) -> None:
    tail = made(store)
    opened(store).alter.add_columns([Field("theirs", PrimitiveType("long"), nullable=True)])
    assert tail.evolve(to_delta(WIDER), {}).schema.names == ["id", "day", "note", "theirs"]
    assert LogWriter.open(store).evolve(to_delta(WIDER), {}).version == 2


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (SCHEMA.append(pa.field("k", pa.int64(), False)), "k cannot be added"),
        (pa.schema([pa.field("id", pa.string())]), "id is long in the table, not string"),
        (SCHEMA.append(pa.field("ID", pa.int64())), "ID cannot be added: the table has id"),
    ],
)
def test_a_table_never_evolves_against_its_rows(store: Store, schema: pa.Schema, said: str) -> None:
    with pytest.raises(TableChanged, match=said):
        made(store).evolve(to_delta(schema), {})
    assert opened(store).version() == 0


def test_the_protocol_rises_only_for_a_type_that_needs_it(store: Store) -> None:
    tail = made(store)
    ntz = SCHEMA.append(pa.field("at", pa.timestamp("us")))
    protocol = tail.evolve(to_delta(ntz), {}).protocol
    assert (protocol.min_reader, protocol.min_writer) == (3, 7)
    assert protocol.writer_features == {"appendOnly", "invariants", "timestampNtz"}
    assert tail.append([staged(store, [3])], marks(2), {}).version == 2
    assert ids(store) == [1, 2, 3]
    assert opened(store).protocol().reader_features == ["timestampNtz"]


def test_a_table_the_log_writer_could_not_write_is_not_made_by_it(store: Store) -> None:
    with pytest.raises(DirectCommitBlocked, match="columnMapping"):
        made(store, **{"delta.columnMapping.mode": "name"})
    assert LogWriter.open(store).state is None


def test_others_go_on_with_our_tables(store: Store) -> None:
    tail = made(store)
    table = DeltaTable(store.delta_uri)
    table.update(predicate="id = 1", updates={"day": "'x'"})
    table.delete("id = 2")
    tail.append([staged(store, [3])], marks(2), {})
    assert rows(store) == [{"id": 1, "day": "x"}, {"id": 3, "day": None}]
