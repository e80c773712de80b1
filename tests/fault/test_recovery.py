"""What a restart may find other than it was: cut otherwise, decided by another spec, its files or its state gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from headrace.dev.kafka import Broker
from headrace.errors import SourceGap, TableRestored, TxnMismatch
from headrace.faults import Abandoned, Point, armed
from headrace.recovery.resume import Decision, decide
from services.audit import DEAD, Lake, Verdict, by_kind, contents
from services.kafka import Seen
from services.pipelines import Shop, eventful


@pytest.fixture
def shop(spark: Any, kafka: Broker, topic: str, tmp_path: Path) -> Shop:
    """A shop on local disk with nothing sent yet."""
    return Shop(kafka.bootstrap, topic, str(tmp_path / "lake"), tmp_path)


@pytest.mark.parametrize("point", [Point.AFTER_STAGING, Point.AFTER_FIRST_TABLE])
def test_a_batch_that_would_be_cut_otherwise(shop: Shop, point: Point) -> None:
    """The checkpoint is lost and batches are larger now: only one that was decided keeps its ranges."""
    eventful(shop).die(point, 2)
    shop.send(60, kinds=("alpha", "beta", "gamma"))
    shop.options["limits"] = {"batch_rows": 90}
    shop.run()
    found = shop.audit()
    second = 60 if point is Point.AFTER_FIRST_TABLE else 90
    assert [row["read"] for row in found.batches] == [60, second, 120 - second]


@pytest.mark.parametrize("staged", ["kept", "deleted"])
def test_a_batch_is_finished_by_the_spec_that_began_it(shop: Shop, staged: str) -> None:
    """Records that were dead under the old spec stay so, though they fit the new one; also when they are read again."""
    strict = {"path": f"{shop.lake}/{{route}}", "strict": True}
    shop.options |= {"table": strict, "limits": {"batch_rows": 60}, "flush": {"rows": 60}}
    shop.send(60)
    for extra in ({"note": "new"}, {}):
        shop.send(30, kinds=("alpha", "beta", "gamma"), **extra)
    shop.die(Point.AFTER_FIRST_TABLE, 2)
    if staged == "deleted":
        _delete_uncommitted(shop)
    shop.options["table"] = {"path": strict["path"]}
    shop.send(20, note="later")
    summary = shop.run()
    assert summary.recovered == 1

    def judge(record: Seen) -> Verdict:
        refused = b'"note": "new"' in record.value and b"gamma" not in record.value
        return Verdict(DEAD) if refused else by_kind(record)

    found = shop.audit(judge)
    assert len({row["spec"] for row in found.batches[:2]}) == 1
    assert found.batches[1]["spec"] != found.batches[2]["spec"]
    assert {row["note"] for row in Lake(shop.spec).rows(f"{shop.lake}/alpha")} == {None, "later"}


def _delete_uncommitted(shop: Shop) -> None:
    """What a careless cleaner does between the death and the restart."""
    done, *rest = shop.begun(2).tables
    assert rest
    assert all((Path(done.path) / item.path).exists() for item in done.files)
    for item in (item for table in rest for item in table.files):
        (Path(item.table) / item.path).unlink()


def test_a_recovery_that_reads_again_may_die_too(shop: Shop) -> None:
    eventful(shop).die(Point.AFTER_FIRST_TABLE, 2)
    _delete_uncommitted(shop)
    shop.die(Point.BEFORE_DEAD_LETTERS, 2)
    shop.die(Point.BEFORE_LEDGER_WRITE, 2)
    assert shop.run().recovered == 1
    shop.audit()


def test_a_state_that_is_older_than_the_tables_is_refused(shop: Shop, tmp_path: Path) -> None:
    """With the marks alone, a batch cut otherwise would be taken for one that is there, and skipped."""
    state, old, new = Path(shop.lake, "_headrace"), tmp_path / "old", tmp_path / "new"
    shop.send(40)
    shop.run()
    shutil.copytree(state, old)
    shop.send(20)
    shop.run()
    shutil.copytree(state, new)
    shutil.rmtree(state)
    shutil.copytree(old, state)
    shop.send(30)
    before = _versions(shop)
    with pytest.raises(TxnMismatch, match="lost or replaced"):
        shop.run()
    assert _versions(shop) == before
    shutil.rmtree(state)
    shutil.copytree(new, state)
    shop.run()
    assert shop.audit().records == 90


@pytest.mark.parametrize("point", [Point.AFTER_FIRST_TABLE, Point.BEFORE_LEDGER_WRITE])
@pytest.mark.parametrize("lost", [("ledger",), ("ledger", "intents"), ("ledger", "intents", "known_tables", "lease")])
def test_a_lost_ledger_is_written_again(shop: Shop, point: Point, lost: tuple[str, ...]) -> None:
    """Batch 2 is in half or all of its tables when the state goes; exactly once holds without a row of the ledger."""
    eventful(shop).die(point, 2)
    _lose(shop, *lost)
    shop.send(30, kinds=("alpha", "beta", "gamma"))
    before = _versions(shop)
    if "known_tables" in lost:
        with pytest.raises(TxnMismatch, match="--accept-lost-ledger"):
            shop.run()
        assert _versions(shop) == before
        (said,) = decide(shop.spec, [Decision.LOST_LEDGER], shop.events.append)
        assert "the ledger was lost" in said
    shop.run()
    assert len([event for event in shop.events if event["event"] == "rebuild"]) == 1
    found = contents(shop.bootstrap, [shop.topic], shop.spec)
    assert found.records == 150
    first, *rest = found.batches
    whole = lost != ("ledger",) and point is Point.BEFORE_LEDGER_WRITE
    assert first["batch"] == (2 if whole else 1)
    assert "the ledger was lost" in first["note"]
    assert [row["batch"] for row in rest] == list(range(first["batch"] + 1, first["batch"] + 1 + len(rest)))
    shop.send(10)
    assert shop.run().batches == 1


def test_a_half_batch_is_read_again_only_by_the_spec_that_wrote_it(shop: Shop) -> None:
    eventful(shop).die(Point.AFTER_FIRST_TABLE, 2)
    _lose(shop, "ledger", "intents")
    written = dict(shop.options)
    shop.options["table"] = {"path": f"{shop.lake}/{{route}}", "strict": True}
    before = _versions(shop)
    with pytest.raises(TxnMismatch, match="another spec"):
        shop.run()
    assert _versions(shop) == before
    shop.options = written
    shop.run()
    assert contents(shop.bootstrap, [shop.topic], shop.spec).records == 120


def test_a_half_batch_whose_records_are_gone_is_given_up_by_a_person_only(shop: Shop) -> None:
    eventful(shop).die(Point.AFTER_FIRST_TABLE, 2)
    _lose(shop, "ledger", "intents")
    _forget_records(shop, before=40)
    with pytest.raises(SourceGap, match="--accept-lost-ledger"):
        shop.run()
    (said,) = decide(shop.spec, [Decision.LOST_LEDGER])
    assert "continues after batch 2" in said
    assert shop.run().batches == 0
    shop.send(10)
    assert shop.run().counts.read == 10


def _forget_records(shop: Shop, before: int) -> None:
    """What retention does at the broker."""
    client = AdminClient({"bootstrap.servers": shop.bootstrap})
    at = [TopicPartition(shop.topic, partition, before) for partition in (0, 1)]
    for done in client.delete_records(at).values():
        done.result(30)


def _lose(shop: Shop, *folders: str) -> None:
    """The dead letters are data, and stay."""
    for folder in folders:
        shutil.rmtree(Path(shop.lake, "_headrace/shop", folder))


def _versions(shop: Shop) -> dict[str, int]:
    lake = Lake(shop.spec)
    return {name: len(lake.log(path)) for name, path in lake.tables().items()}


def test_dead_letters_are_made_though_tables_may_not_be(shop: Shop) -> None:
    """`create: never` is said of the tables; a batch that dies before the first letters is finished all the same."""
    shop.send_values(json.dumps({"id": n, "kind": "alpha"}).encode() for n in range(10))
    shop.run()
    shop.options["table"] = {"path": f"{shop.lake}/{{route}}", "create": "never"}
    shop.send_values([b'{"id": 10, "kind": "alpha"}', b"broken"])
    shop.die(Point.BEFORE_DEAD_LETTERS)
    assert shop.run().recovered == 1
    assert shop.audit().dead_letters == 1


# ---- tables that were restored ----


def _restored(shop: Shop, *, letters: bool = False) -> Path:
    """Two batches; then the second one's rows are taken out of a table again."""
    eventful(shop).run()
    path = Path(shop.spec.dead_letters_uri if letters else f"{shop.lake}/alpha")
    DeltaTable(path).restore(0)
    return path


@pytest.mark.parametrize("letters", [False, True])
def test_a_restored_table_alone_is_refilled(shop: Shop, letters: bool) -> None:
    path = _restored(shop, letters=letters)
    before = _versions(shop)
    assert "undone rows are read again" in decide(shop.spec, [Decision.REFILLED_TABLE])[0]
    found = contents(shop.bootstrap, [shop.topic], shop.spec)
    assert found.records == 120
    after = _versions(shop)
    assert {name for name in before if after[name] > before[name]} == (set() if letters else {"alpha"})
    refill = found.batches[-1]
    assert refill["note"] == f"refill of {path}"
    assert (refill["ranges"], refill["read"]) == ([], 60), "no partition moves"
    assert refill["skipped"] > 0
    assert refill["read"] == refill["routed"] + refill["dead"] + refill["filtered"] + refill["skipped"]
    shop.send(30, kinds=("alpha", "beta", "gamma"))
    shop.run()
    assert contents(shop.bootstrap, [shop.topic], shop.spec).records == 150
    nothing = f"{shop.spec.pipeline}: nothing to accept; nothing was changed"
    assert decide(shop.spec, [Decision.REFILLED_TABLE]) == [nothing]


@pytest.mark.parametrize("point", [Point.AFTER_COMMIT, Point.BEFORE_LEDGER_WRITE, Point.AFTER_LEDGER_WRITE])
def test_a_refill_that_dies_is_finished_by_the_next_start(shop: Shop, point: Point) -> None:
    _restored(shop)
    with armed(point, "abandon", batch=4), pytest.raises(Abandoned):
        decide(shop.spec, [Decision.REFILLED_TABLE])
    shop.run()
    assert contents(shop.bootstrap, [shop.topic], shop.spec).records == 120


def test_a_refill_that_died_before_it_began_is_still_owed(shop: Shop) -> None:
    """A batch is half done, its table restored; what is owed is known before anything else is finished."""
    eventful(shop).die(Point.BEFORE_DEAD_LETTERS, 2)
    DeltaTable(f"{shop.lake}/alpha").restore(0)
    with armed(Point.AFTER_LEDGER_WRITE, "abandon", batch=2), pytest.raises(Abandoned):
        decide(shop.spec, [Decision.REFILLED_TABLE])
    shop.run()
    found = contents(shop.bootstrap, [shop.topic], shop.spec)
    assert [row["note"] for row in found.batches if row["note"]] == [f"refill of {shop.lake}/alpha"]


def test_what_cannot_be_refilled_is_refused_and_may_be_kept(shop: Shop) -> None:
    _restored(shop)
    shop.send(10)
    with pytest.raises(TableRestored, match="--table-restored=refill"):
        shop.run()
    before, written = _versions(shop), dict(shop.options)
    shop.options["table"] = {"path": f"{shop.lake}/{{route}}", "strict": True}
    with pytest.raises(TableRestored, match="another spec"):
        decide(shop.spec, [Decision.REFILLED_TABLE])
    shop.options = written
    _forget_records(shop, before=40)
    with pytest.raises(SourceGap, match="--table-restored=keep"):
        decide(shop.spec, [Decision.REFILLED_TABLE])
    assert _versions(shop) == before
    assert "without the undone rows" in decide(shop.spec, [Decision.RESTORED_TABLE])[0]
    assert shop.run().counts.read == 10
