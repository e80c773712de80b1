"""Where a pipeline stands survives everything, is told without reading rows, and only one driver moves it."""

import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace.delta import checkpoints
from headrace.delta.log_writer import LogWriter
from headrace.delta.receipt import Receipt
from headrace.delta.staged_file import StagedFile
from headrace.errors import Fenced, StorageUnreachable, TxnMismatch, UnsupportedStateFormat
from headrace.ledger import compaction
from headrace.ledger.known_tables import KnownTable
from headrace.ledger.ledger import Ledger
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range
from headrace.storage.base import NotFound
from headrace.storage.store import Store
from headrace.write.intent import Intent, IntentKind, TableIntent
from services.clocks import DAY, YEAR, clock

KNOWN = "known_tables/000000000001"
THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "state"))


def intent(batch, *ranges, **more):
    defaults = {
        "pipeline": "shop",
        "batch": batch,
        "ranges": tuple(Range(*item) for item in ranges),
        "tables": (),
        "counts": Counts(),
        "started": THEN,
        "token": "t",
        "spec": "pipeline: shop",
        "digest": "abc",
        "headrace": "0.1.0",
    }
    return Intent(**{**defaults, **more})


def written(path, rows, **more):
    return TableIntent(path, "id", False, "{}", (), {}, (StagedFile(path, "f", (), 1, rows, "{}"),), **more)


def run(ledger, *ranges, **more):
    """Begin and book the next batch."""
    decision = intent(ledger.batch + 1, *ranges, **more)
    ledger.begin(decision)
    ledger.record(decision, (), THEN)
    return decision


def reopened(store):
    return Ledger.open(store, "shop")


def versions(store):
    return len(list(Path(store.root, "ledger", "_delta_log").glob("*.json")))


def test_before_the_first_batch_there_is_nothing(store):
    ledger = reopened(store)
    assert (ledger.batch, ledger.position(), ledger.open_batch(), ledger.rows(5)) == (0, {}, None, [])
    assert not Path(store.root).exists()


def test_the_position_of_every_partition_is_in_the_newest_ledger_row(store):
    ledger = reopened(store)
    run(ledger, ("orders", 0, 0, 10), ("orders", 1, 5, 8), ("a.b-c_d", 0, 0, 1))
    run(ledger, ("orders", 0, 10, 12))
    for seen in (ledger, reopened(store)):
        assert seen.batch == 2
        assert seen.position() == {("orders", 0): 12, ("orders", 1): 8, ("a.b-c_d", 0): 1}
        assert seen.open_batch() is None


def test_the_position_is_found_behind_commits_that_are_no_ledger_rows(store):
    ledger = reopened(store)
    run(ledger, ("orders", 0, 0, 10))
    run(ledger, ("orders", 0, 10, 20))
    DeltaTable(ledger_uri(store)).optimize.compact()
    assert reopened(store).position() == {("orders", 0): 20}
    run(ledger, ("orders", 0, 20, 30))
    assert [row["batch"] for row in reopened(store).rows(9)] == [1, 2, 3]


def test_the_position_is_found_when_only_a_log_checkpoint_is_left(store):
    ledger = reopened(store)
    run(ledger, ("orders", 0, 0, 10))
    run(ledger, ("orders", 0, 10, 20), ("orders", 1, 0, 7))
    ledger.decide("the topic is another", {("orders", 0): 0})
    DeltaTable(ledger_uri(store)).create_checkpoint()
    DeltaTable(ledger_uri(store)).optimize.compact()
    for number in range(3):
        Path(store.root, "ledger", "_delta_log", f"{number:020}.json").unlink()
    assert reopened(store).position() == {("orders", 0): 0, ("orders", 1): 7}
    assert reopened(store).batch == 3


def ledger_uri(store):
    return Path(store.root, "ledger").as_uri()


def test_an_open_batch_comes_back_as_its_intent_has_it(store):
    begun = intent(1, ("orders", 0, 0, 10, "id-1"), counts=Counts(read=10, reasons={"type": 2}))
    reopened(store).begin(begun)
    assert reopened(store).open_batch() == begun


def merged(inserted=None, updated=None, deleted=None):
    return {"inserted": inserted, "updated": updated, "deleted": deleted}


def test_a_ledger_row_tells_the_whole_account(store):
    ledger = reopened(store)
    counts = Counts(10, 6, 2, 1, 1, 99, {"type": 1, "missing": 1}, {"lake/a: x": 3}, {"lake/a: few": 2}, 4)
    tables = (written("lake/a", 6), written("lake/_dead", 2, dead_letters=True))
    begun = intent(1, ("orders", 0, 0, 12, "id-1"), counts=counts, runs=2, tables=tables)
    receipts = [
        Receipt("lake/a", 4, 6, 1, 700, inserted=4, updated=2, deleted=0),
        Receipt("lake/_dead", 1, 2, 1, 90, skipped=True),
    ]
    ledger.begin(begun)
    ledger.record(begun, receipts, THEN, "by hand")
    assert reopened(store).rows(1) == [
        {
            "batch": 1,
            "kind": "batch",
            "started": THEN,
            "finished": THEN,
            "ranges": [{"topic": "orders", "topic_id": "id-1", "partition": 0, "from": 0, "until": 12}],
            "read": 10,
            "routed": 6,
            "dead": 2,
            "filtered": 1,
            "skipped": 1,
            "written": 6,
            "runs": 2,
            "reasons": {"type": 1, "missing": 1},
            "ignored": {"lake/a: x": 3},
            "violations": {"lake/a: few": 2},
            "rescued": 4,
            "duplicates": {},
            "tables": [
                {"path": "lake/a", "version": 4, "rows": 6, "files": 1, "bytes": 700, **merged(4, 2, 0)},
                {"path": "lake/_dead", "version": 1, "rows": 2, "files": 1, "bytes": 90, **merged()},
            ],
            "note": "by hand",
            "spec": "abc",
            "headrace": "0.1.0",
        }
    ]


def test_rows_are_the_newest_ones(store):
    ledger = reopened(store)
    for number in range(5):
        run(ledger, ("orders", 0, number, number + 1))
    assert [row["batch"] for row in ledger.rows(2)] == [4, 5]


def test_recording_twice_records_once(store):
    ledger, other = reopened(store), reopened(store)
    begun = intent(1, ("orders", 0, 0, 10))
    ledger.begin(begun)
    ledger.record(begun, (), THEN)
    other.record(begun, (), THEN)
    assert versions(store) == 1
    assert len(reopened(store).rows(9)) == 1
    assert other.position() == ledger.position()


def test_a_ledger_row_whose_reply_was_lost_is_recorded_once(store, monkeypatch):
    ledger = reopened(store)
    run(ledger, ("orders", 0, 0, 10))
    begun = intent(2, ("orders", 0, 10, 20))
    ledger.begin(begun)
    landed = Store.put_new

    def lose_reply(self, *args):
        landed(self, *args)
        raise StorageUnreachable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_new", lose_reply)
        try_ignoring(lambda: ledger.record(begun, (), THEN))
    if ledger.batch == 1:
        ledger.record(begun, (), THEN)
    assert [row["batch"] for row in reopened(store).rows(9)] == [1, 2]
    assert versions(store) == 2


def try_ignoring(attempt):
    """What failed for want of an answer may be asked again."""
    try:
        attempt()
    except StorageUnreachable:
        return


def test_a_begin_whose_reply_was_lost_is_ours(store):
    ledger = reopened(store)
    begun = intent(1, ("orders", 0, 0, 10))
    ledger.begin(begun)
    ledger.begin(begun)


@pytest.mark.parametrize("other", [{"token": "u"}, {"digest": "other"}, {"ranges": (Range("orders", 0, 0, 9),)}])
def test_of_two_drivers_one_begins(store, other):
    one, two = reopened(store), reopened(store)
    begun = intent(1, ("orders", 0, 0, 10))
    one.begin(begun)
    with pytest.raises(Fenced, match="has an intent of another instance"):
        two.begin(replace(begun, **other))


def test_whoever_slept_through_batches_cannot_begin_an_old_one(store):
    sleeper, ledger = reopened(store), reopened(store)
    for number in range(3):
        run(ledger, ("orders", 0, number, number + 1))
    store.delete([item.path for item in store.list("intents")])
    with pytest.raises(Fenced, match="already recorded"):
        sleeper.begin(intent(1, ("orders", 0, 0, 50)))
    with pytest.raises(Fenced):
        sleeper.record(intent(1, ("orders", 0, 0, 50)), (), THEN)
    assert reopened(store).position() == {("orders", 0): 3}


def test_a_batch_that_does_not_follow_is_refused(store):
    ledger = reopened(store)
    with pytest.raises(Fenced, match="does not follow"):
        ledger.begin(intent(2, ("orders", 0, 0, 10)))


def test_old_decisions_are_forgotten_and_the_newest_kept(store):
    ledger = reopened(store)
    for number in range(40):
        run(ledger, ("orders", 0, number, number + 1))
    kept = [int(item.path.rpartition("/")[2]) for item in store.list("intents")]
    assert kept == list(range(31, 41))


def test_the_log_gets_checkpoints_so_that_opening_stays_cheap(store, monkeypatch):
    monkeypatch.setattr(checkpoints, "checkpoint_interval", lambda state: 4)
    ledger = reopened(store)
    for number in range(5):
        run(ledger, ("orders", 0, number, number + 1))
    assert checkpoints.SHARED.wait(20)
    assert [path.name for path in Path(store.root, "ledger", "_delta_log").glob("*.checkpoint.parquet")]
    assert reopened(store).position() == {("orders", 0): 5}


def data_files(store):
    return list(Path(store.root, "ledger").glob("*.parquet"))


def active(store):
    return DeltaTable(Path(store.root, "ledger")).file_uris()


def aged(store, seconds=7200):
    for path in data_files(store):
        os.utime(path, (path.stat().st_mtime - seconds,) * 2)


@pytest.fixture
def few(monkeypatch):
    """Ten files make one of the next size, and the log is looked at every twenty batches."""
    monkeypatch.setattr(compaction, "STEP", 10)
    monkeypatch.setattr(compaction, "_CLEAN_EVERY", 20)
    monkeypatch.setattr(checkpoints, "checkpoint_interval", lambda state: 5)


@pytest.mark.parametrize("runs", [1, 30], ids=["in one run", "in runs of a few batches"])
def test_it_stays_compact_by_itself(store, few, runs):
    """Few files in the table, and few on disk, once readers of older versions are done."""
    for number in range(120):
        ledger = reopened(store) if number % (120 // runs) == 0 else ledger  # noqa: F821
        with clock((number - 120) * timedelta(minutes=10)):
            run(ledger, ("orders", 0, number, number + 1))
        aged(store)
    assert len(active(store)) <= 25
    assert len(data_files(store)) <= len(active(store)) + 30
    assert [row["batch"] for row in reopened(store).rows(200)] == list(range(1, 121))
    assert [row["batch"] for row in reopened(store).rows(3)] == [118, 119, 120]
    assert reopened(store).position() == {("orders", 0): 120}
    assert DeltaTable(Path(store.root, "ledger")).to_pyarrow_table().num_rows == 120


def test_a_clock_a_year_ahead_sweeps_no_file_that_a_reader_may_have_open(store, few, monkeypatch):
    ledger = reopened(store)
    for number in range(30):
        run(ledger, ("orders", 0, number, number + 1))
    files, now = set(data_files(store)), time.time
    assert len(files) > len(active(store))
    monkeypatch.setattr(time, "time", lambda: now() + YEAR.total_seconds())
    with clock(YEAR):
        for number in range(30, 60):
            run(ledger, ("orders", 0, number, number + 1))
    assert files <= set(data_files(store))


def test_its_log_is_cleaned_up_to_what_is_proved_to_be_old(store, few):
    for days, batches in ((9, 35), (4, 15), (0, 10)):
        ledger = reopened(store)
        with clock(-days * DAY):
            for _ in range(batches):
                run(ledger, ("orders", 0, ledger.batch, ledger.batch + 1))
        assert checkpoints.SHARED.wait(20)
        then = time.time() - days * 86_400
        for path in Path(store.root, "ledger", "_delta_log").iterdir():
            if path.stat().st_mtime > then + 60:
                os.utime(path, (then, then))
    assert versions(store) < 40
    assert [row["batch"] for row in reopened(store).rows(99)] == list(range(1, 61))


def test_a_death_while_it_is_compacted_loses_nothing(store, few, monkeypatch):
    ledger = reopened(store)
    for number in range(9):
        run(ledger, ("orders", 0, number, number + 1))

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LogWriter, "rewrite", die)
        with pytest.raises(KeyboardInterrupt):
            run(ledger, ("orders", 0, 9, 10))
    assert [row["batch"] for row in reopened(store).rows(20)] == list(range(1, 11))
    ledger = reopened(store)
    for number in range(10, 40):
        with clock((number - 9) * timedelta(minutes=10)):
            run(ledger, ("orders", 0, number, number + 1))
        aged(store)
    assert [row["batch"] for row in ledger.rows(99)] == list(range(1, 41))
    assert len(data_files(store)) <= len(active(store)) + 30


def test_a_compaction_that_cannot_be_done_fails_no_batch(store, few, monkeypatch):
    def away(*_, **__):
        raise StorageUnreachable("The store is away.")

    monkeypatch.setattr(LogWriter, "rewrite", away)
    ledger = reopened(store)
    for number in range(20):
        run(ledger, ("orders", 0, number, number + 1))
    assert [row["batch"] for row in reopened(store).rows(99)] == list(range(1, 21))


def test_a_decision_moves_the_position_and_is_a_row(store):
    ledger = reopened(store)
    ledger.known.store(topics={"orders": "id-1"})
    run(ledger, ("orders", 0, 0, 10), ("orders", 1, 0, 10))
    ledger.decide("offsets 10 to 19 are gone: accepted", {("orders", 0): 20})
    ledger.decide("the topic was made anew: accepted", {}, [Range("orders", 1, 0, 0, "id-2")])
    assert reopened(store).known.topics == {"orders": "id-2"}
    assert reopened(store).position() == {("orders", 0): 20, ("orders", 1): 0}
    gap, anew = reopened(store).rows(2)
    assert gap["note"] == "offsets 10 to 19 are gone: accepted"
    assert gap["ranges"] == [{"topic": "orders", "topic_id": "id-1", "partition": 0, "from": 10, "until": 20}]
    assert [(item["from"], item["until"]) for item in anew["ranges"]] == [(0, 0)]
    run(ledger, ("orders", 1, 0, 5))
    assert reopened(store).position() == {("orders", 0): 20, ("orders", 1): 5}


def test_a_decision_that_died_half_way_is_finished_with_its_reason(store, monkeypatch):
    ledger = reopened(store)
    run(ledger, ("orders", 0, 0, 10))
    monkeypatch.setattr(ledger, "record", lambda *_: None)
    ledger.decide("accepted", {("orders", 0): 20})
    later = reopened(store)
    begun = later.open_batch()
    assert begun.kind is IntentKind.DECISION
    with pytest.raises(Fenced, match="still open"):
        later.decide("accepted", {("orders", 0): 25})
    later.record(begun, (), THEN)
    assert reopened(store).position() == {("orders", 0): 20}
    assert reopened(store).rows(1)[0]["note"] == "accepted"


def test_what_is_known_is_written_only_when_it_changes(store):
    ledger = reopened(store)
    table = KnownTable("id-a", "direct")
    ledger.known.store(tables={"lake/a": table}, topics={"orders": "id-1"})
    ledger.known.store(tables={"lake/a": table})
    assert [item.path for item in store.list("known_tables")] == [KNOWN]
    ledger.known.store(topics={"orders": "id-2"})
    seen = reopened(store).known
    assert (seen.tables, seen.topics) == ({"lake/a": table}, {"orders": "id-2"})
    seen.forget("lake/a")
    assert reopened(store).known.tables == {}


def test_what_is_known_is_never_written_over_another_drivers(store):
    one, two = reopened(store), reopened(store)
    one.known.store(topics={"orders": "id-1"})
    two.known.store(topics={"orders": "id-1"})
    one.known.store(topics={"orders": "id-2"})
    with pytest.raises(Fenced):
        two.known.store(topics={"orders": "id-3"})
    assert reopened(store).known.topics == {"orders": "id-2"}


def test_a_newer_format_is_refused(store):
    ledger = reopened(store)
    ledger.known.store(topics={"orders": "id-1"})
    store.put(KNOWN, json.dumps({**json.loads(store.get(KNOWN)), "format": 3}).encode())
    with pytest.raises(UnsupportedStateFormat, match="has format 3"):
        reopened(store)
    store.delete([KNOWN])
    run(reopened(store), ("orders", 0, 0, 1))
    log = Path(store.root, "ledger", "_delta_log", f"{0:020}.json")
    log.write_text(log.read_text().replace('"headrace.format":"2"', '"headrace.format":"3"'))
    with pytest.raises(UnsupportedStateFormat, match="has format 3"):
        reopened(store)


def test_a_state_folder_of_another_pipeline_is_refused(store):
    run(reopened(store), ("orders", 0, 0, 1))
    with pytest.raises(TxnMismatch, match="'web'"):
        Ledger.open(store, "web")


def test_a_table_ahead_of_the_ledger_is_reported(store):
    ledger = reopened(store)
    ledger.check_txn("lake/a", None)
    ledger.known.store(tables={"lake/a": KnownTable("id", "direct", writers=("shop",))})
    run(ledger, ("orders", 0, 0, 1))
    ledger.check_txn("lake/a", 1)
    with pytest.raises(TxnMismatch, match="has batch 2"):
        ledger.check_txn("lake/a", 2)
    late = reopened(store)
    ledger.begin(intent(2, ("orders", 0, 1, 2)))
    ledger.check_txn("lake/a", 2)
    ledger.record(intent(2, ("orders", 0, 1, 2)), (), THEN)
    run(ledger, ("orders", 0, 2, 3))
    with pytest.raises(Fenced, match="another instance"):
        late.check_txn("lake/a", 3)
    with pytest.raises(TxnMismatch, match="no txn"):
        ledger.check_txn("lake/a", None)


def test_without_an_intent_there_is_no_open_batch(store):
    run(reopened(store), ("orders", 0, 0, 1))
    with pytest.raises(NotFound):
        store.get("intents/000000000002")
    assert reopened(store).open_batch() is None


@pytest.mark.parametrize("recorded", [1, 2])
def test_no_ledger_is_rebuilt_beside_an_instance_that_records_batches(store, recorded):
    """It took the ledger for lost, or for set back, and tables have the batch that the other instance is writing."""
    other = reopened(store)
    for batch in range(1, recorded):
        run(other, ("orders", 0, batch, batch + 1))
    ledger = reopened(store)
    run(other, ("orders", 0, recorded, recorded + 1))
    other.begin(intent(recorded + 1, ("orders", 0, recorded + 1, recorded + 2)))
    ledger.assume(recorded + 1, {("orders", 0): recorded + 2})
    with pytest.raises(Fenced, match=f"another instance has recorded batch {recorded}"):
        ledger.rebuild("the ledger was lost")
    other.record(other.open_batch(), (), THEN)
    assert [row["note"] for row in reopened(store).rows(9)] == [""] * (recorded + 1)
