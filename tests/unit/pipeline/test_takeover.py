"""Tables of kafka-delta-ingest: detected, taken over without loss or duplicates, and given back."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import SourceGap, SourceRewound, SourceTopicGone, TakeoverRequired, TxnMismatch
from headrace.faults import Abandoned, Point, armed, disarm
from headrace.ledger.known_tables import KnownTables
from headrace.storage.store import Store
from services.in_process_pipeline import Harness
from services.kafka_delta_ingest import APP, KEPT, Ingest, commit, ids, one_table, send, set_options


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    disarm()


@pytest.fixture
def undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A table with five of eight records, by kafka-delta-ingest."""
    harness = one_table(tmp_path, monkeypatch)
    send(harness, 8)
    Ingest(harness).run(5)
    return harness


@pytest.fixture
def kept(undecided: Harness) -> Harness:
    """The same, whose txns are kept current."""
    set_options(undecided, txn=KEPT)
    return undecided


# ---- detection ----


def test_a_table_of_kafka_delta_ingest_stops_a_new_pipeline(undecided: Harness) -> None:
    with pytest.raises(TakeoverRequired, match="web-0 = 4") as stop:
        undecided.run()
    assert "headrace takeover SPEC --from kafka-delta-ingest:web" in stop.value.hint
    assert "ignore: [web]" in stop.value.hint
    assert ids(undecided) == [0, 1, 2, 3, 4]


def test_txns_that_are_ignored_do_not_stop_it(undecided: Harness) -> None:
    set_options(undecided, txn={"ignore": [APP]})
    undecided.run()
    assert Counter(ids(undecided)) == Counter([*range(8), *range(5)])


def test_another_app_id_than_that_of_the_table_stops_it(undecided: Harness) -> None:
    """It may be misspelled; and it may be new on purpose."""
    set_options(undecided, txn={"kafka-delta-ingest": "wbe"})
    with pytest.raises(TakeoverRequired, match="web-0 = 4"):
        undecided.run()
    set_options(undecided, txn={"kafka-delta-ingest": "web_2", "ignore": ["*"]})
    undecided.run()
    assert Counter(ids(undecided)) == Counter([*range(8), *range(5)])


def test_app_ids_of_other_topics_in_the_same_table(kept: Harness) -> None:
    commit(Ingest(kept).uri, pa.table({"id": [100]}), {"shop-0": 50})
    kept.run()
    assert ids(kept) == [*range(8), 100]


OTHERS = (
    "4e70b851-3d8c-4547-9bb6-5e422e329d30",  # a query id of Spark
    "11111111-1111-1111-1111-111111111111",
    "11111111-1111-1111-1111-000000000000",
    "headrace:other-0",
    "headrace:other:orders-0",
    "nightly",
    "nightly-",
    "-0",
    "web-00",
    "web-7",  # the topic has one partition
    "web-1x",
    "web-999999999999",
)


def test_txns_of_other_writers_do_not_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = one_table(tmp_path, monkeypatch)
    send(harness, 3)
    commit(tmp_path / "lake/orders", pa.table({"id": [100]}), dict.fromkeys(OTHERS, 1))
    harness.run()
    assert ids(harness) == [0, 1, 2, 100]


def test_a_table_among_routed_ones_stops_a_new_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although no record is routed to it yet."""
    harness = Harness(tmp_path)
    harness.serve(monkeypatch)
    harness.send([{"kind": "a", "id": 0}])
    commit(tmp_path / "lake/b", pa.table({"id": [1]}), {"web-0": 5})
    with pytest.raises(TakeoverRequired, match="lake/b has txns"):
        harness.run()
    assert harness.rows("lake/a") == []


def test_a_new_table_in_place_of_one_that_was_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has none of the records that the old one had."""
    harness = Harness(tmp_path, {"table": {"path": f"{tmp_path}/lake/{{route}}", "txn": KEPT}})
    harness.serve(monkeypatch)
    harness.send({"kind": "ab"[number % 2], "id": number} for number in range(10))
    for name, last in (("a", 0), ("b", 7)):
        commit(tmp_path / "lake" / name, pa.table({"kind": [name], "id": [99]}), {"web-0": last})
    harness.options["limits"] = {"batch_rows": 2}
    with armed(Point.BEFORE_LEDGER_WRITE, "abandon", batch=2), pytest.raises(Abandoned):
        harness.run()
    known = KnownTables.load(Store(harness.spec.state_uri))
    known.forget(str(tmp_path / "lake/b"))
    shutil.rmtree(tmp_path / "lake/b")
    harness.run()
    assert ids(harness, "b") == [5, 7, 9]


def test_a_table_that_appears_later_stops_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(tmp_path)
    harness.serve(monkeypatch)
    harness.send([{"kind": "a", "id": 0}])
    harness.run()
    harness.send([{"kind": "b", "id": 1}])
    Ingest(harness, "b").run()
    with pytest.raises(TakeoverRequired, match="lake/b has txns"):
        harness.run()
    harness.options["table"] = {"path": f"{tmp_path}/lake/{{route}}", "txn": {"ignore": [APP]}}
    harness.run()
    assert ids(harness, "a") == [0]


# ---- takeover by the spec ----


def test_a_new_pipeline_continues_after_the_txns(kept: Harness) -> None:
    kept.run()
    assert ids(kept) == list(range(8))
    assert Ingest(kept).txns() == {0: 7}
    [event] = [event for event in kept.events if event["event"] == "takeover"]
    assert event["offsets"] == [{"topic": "orders", "partition": 0, "offset": 5}]


def test_every_commit_keeps_the_txns_current(kept: Harness) -> None:
    for last in (7, 10, 13):
        kept.run()
        assert Ingest(kept).txns() == {0: last}
        send(kept, 3)


def test_kafka_delta_ingest_can_continue_and_be_taken_over_again(kept: Harness) -> None:
    for _ in range(3):
        kept.run()
        send(kept, 4)
        Ingest(kept).run()
        send(kept, 2)
    kept.run()
    assert ids(kept) == list(range(len(kept.sent)))


def test_the_records_that_it_wrote_meanwhile_may_be_gone(kept: Harness) -> None:
    kept.run()
    send(kept, 4)
    Ingest(kept).run()
    send(kept, 1)
    kept.earliest = 12  # 8 to 11 were written by kafka-delta-ingest
    kept.run()
    assert ids(kept) == list(range(13))


def test_records_that_the_broker_has_deleted_are_a_gap(kept: Harness) -> None:
    kept.earliest = 6
    with pytest.raises(SourceGap, match="offsets 5 to 5") as stop:
        kept.run()
    assert "headrace resume SPEC --accept-gap" in stop.value.hint


def test_a_partition_without_txn_starts_as_the_spec_says(kept: Harness) -> None:
    kept.partitions = 3
    kept.run()
    state = Store(kept.spec.state_uri)
    assert KnownTables.load(state).start == {("orders", 0): 5, ("orders", 1): 0, ("orders", 2): 0}
    assert Ingest(kept).txns(3) == {0: 7}  # none for partitions that were not read


def test_txns_of_a_partition_that_does_not_exist(kept: Harness) -> None:
    commit(Ingest(kept).uri, pa.table({"id": [100]}), {"web-3": 5})
    with pytest.raises(SourceTopicGone, match="orders/3"):
        kept.run()


def test_a_start_that_an_earlier_run_has_recorded_is_replaced(undecided: Harness) -> None:
    """A run that stopped with TakeoverRequired must not let the next one lose records without an error."""
    with pytest.raises(TakeoverRequired):
        undecided.run()
    set_options(undecided, txn=KEPT)
    undecided.earliest = 6
    with pytest.raises(SourceGap):
        undecided.run()


@pytest.mark.parametrize(
    "point",
    [
        Point.BEFORE_STAGING,
        Point.AFTER_STAGING,
        Point.AFTER_COMMIT,
        Point.BEFORE_LEDGER_WRITE,
        Point.AFTER_LEDGER_WRITE,
    ],
)
def test_a_crash_neither_loses_nor_repeats_records(kept: Harness, point: Point) -> None:
    for last in (7, 10):
        with armed(point, "abandon"), pytest.raises(Abandoned):
            kept.run()
        kept.run()
        assert ids(kept) == list(range(last + 1))
        assert Ingest(kept).txns() == {0: last}
        send(kept, 3)


def test_kafka_delta_ingest_that_still_runs_stops_the_pipeline(kept: Harness) -> None:
    with armed(Point.AFTER_STAGING, lambda: Ingest(kept).run(7)), pytest.raises(TxnMismatch, match="web-0") as stop:
        kept.run()
    assert "Stop kafka-delta-ingest, then run again" in stop.value.hint
    assert ids(kept) == list(range(7))
    kept.run()
    assert ids(kept) == list(range(8))
    assert Ingest(kept).txns() == {0: 7}


def test_it_may_write_the_batch_while_the_pipeline_is_down(kept: Harness) -> None:
    with armed(Point.AFTER_STAGING, "abandon"), pytest.raises(Abandoned):
        kept.run()
    Ingest(kept).run()
    send(kept, 1)
    kept.run()
    assert ids(kept) == list(range(9))


def test_the_option_can_be_removed_while_a_batch_is_open(kept: Harness) -> None:
    with armed(Point.AFTER_STAGING, "abandon"), pytest.raises(Abandoned):
        kept.run()
    set_options(kept, txn={})
    kept.run()
    assert ids(kept) == list(range(8))


def test_the_option_can_be_removed(kept: Harness) -> None:
    """The txns that the pipeline has set are not taken for those of a program that still runs."""
    kept.run()
    set_options(kept, txn={})
    for _ in range(2):
        send(kept, 2)
        kept.run()
    assert ids(kept) == list(range(12))
    assert Ingest(kept).txns() == {0: 7}


# ---- several tables ----


def test_a_table_that_kafka_delta_ingest_creates_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have fewer records than the others: those that it lacks are read."""
    harness = Harness(tmp_path, {"table": {"path": f"{tmp_path}/lake/{{route}}", "txn": KEPT, "source": False}})
    harness.serve(monkeypatch)
    harness.send([{"kind": "a", "id": 0}])
    harness.run()
    harness.send({"kind": "ab"[number % 2], "id": number} for number in range(1, 10))
    commit(tmp_path / "lake/a", pa.table({"kind": ["a"] * 4, "id": [2, 4, 6, 8]}), {"web-0": 9})
    commit(tmp_path / "lake/b", pa.table({"kind": ["b"] * 2, "id": [1, 3]}), {"web-0": 4})
    harness.run()
    assert (ids(harness, "a"), ids(harness, "b")) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])


def test_tables_with_different_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading starts at the lowest offset; the other tables skip what they have, also when a table is refilled."""
    harness = Harness(tmp_path, {"table": {"path": f"{tmp_path}/lake/{{route}}", "txn": KEPT}})
    harness.serve(monkeypatch)
    harness.send({"kind": "ab"[number % 2], "id": number} for number in range(20))
    for name, until in (("a", 6), ("b", 15)):
        rows = pa.table({"kind": [name] * 20, "id": range(20)}).slice(0, until)
        mine = rows.filter(pa.array([number % 2 == "ab".index(name) for number in range(until)]))
        commit(tmp_path / "lake" / name, mine, {"web-0": until - 1})
    harness.run()
    assert ids(harness, "a") == list(range(0, 20, 2))
    assert ids(harness, "b") == list(range(1, 20, 2))
    assert (Ingest(harness, "a").txns(), Ingest(harness, "b").txns()) == ({0: 19}, {0: 19})


def test_a_txn_is_never_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that ends before the last offset of a table leaves its txn as it is."""
    table = {"path": f"{tmp_path}/lake/{{route}}", "txn": KEPT}
    harness = Harness(tmp_path, {"table": table, "limits": {"batch_rows": 2}})
    harness.serve(monkeypatch)
    harness.send({"kind": "ab"[number % 2], "id": number} for number in range(6))
    for name, last in (("a", 0), ("b", 4)):
        commit(tmp_path / "lake" / name, pa.table({"kind": [name], "id": [99]}), {"web-0": last})
    harness.run()
    log = sorted((tmp_path / "lake/b/_delta_log").glob("*.json"))
    actions = [json.loads(line) for file in log for line in file.read_text().splitlines()]
    assert [each["txn"]["version"] for each in actions if each.get("txn", {}).get("appId") == "web-0"] == [4, 5]
    assert (ids(harness, "a"), ids(harness, "b")) == ([2, 4, 99], [5, 99])


def test_txns_beyond_the_end_of_the_topic(kept: Harness) -> None:
    """New records at these offsets must not be taken for written ones."""
    kept.sent = kept.sent[:4]
    with pytest.raises(SourceRewound, match="web-0 = 4") as stop:
        kept.run()
    assert "{kafka-delta-ingest: web_2, ignore: [web]}" in stop.value.hint
    set_options(kept, txn={"kafka-delta-ingest": "web_2", "ignore": ["web"]})
    kept.run()
    assert Ingest(kept, app_id="web_2").txns() == {0: 3}
