"""Defects that writers of this kind are known to have, each shown to be absent, by number."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import faults
from headrace.dev.kafka import Broker
from headrace.errors import ContractViolation
from headrace.faults import Abandoned, Point
from headrace.serve.runner import run_all
from services.audit import DEAD, Audit, Lake, Verdict, by_kind
from services.kafka import Seen, admin, make_topic
from services.pipelines import Shop, eventful
from services.wait import eventually


@pytest.fixture
def shop(spark: Any, kafka: Broker, topic: str, tmp_path: Path) -> Shop:
    """A shop on local disk with nothing sent yet."""
    return Shop(kafka.bootstrap, topic, str(tmp_path / "lake"), tmp_path)


@dataclass(frozen=True)
class Story:
    """A pipeline that died when one table of three had its second batch, and what was there before and after."""

    shop: Shop
    booked: list[dict[str, Any]]  # the ledger at the death
    marks: dict[str, int]  # the newest batch of each table at the death
    audits: list[Audit]  # one at each booking, the last one at the end


@pytest.fixture(scope="module")
def story(spark: Any, kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Told once for all the tests that only read it."""
    folder = tmp_path_factory.mktemp("story")
    shop = eventful(Shop(kafka.bootstrap, make_topic(kafka.bootstrap, folder.name, 2), str(folder / "lake"), folder))
    audits: list[Audit] = []
    shop.on_event = lambda event: audits.append(shop.audit(drained=False)) if event["event"] == "batch" else None
    with faults.armed(Point.AFTER_FIRST_TABLE, "abandon", batch=2), pytest.raises(Abandoned):
        shop.run()
    lake = Lake(shop.spec)
    booked, marks = lake.ledger(), {name: _mark(lake, path) for name, path in lake.tables().items()}
    shop.send(20, kinds=("beta", "delta"))
    shop.run()
    return Story(shop, booked, marks, [*audits, shop.audit()])


def _mark(lake: Lake, path: str) -> int:
    marks = [each["txn"] for actions in lake.log(path) for each in actions if "txn" in each]
    return max(mark["version"] for mark in marks if mark["appId"] == "headrace:shop")


def test_01_nothing_is_acknowledged_before_it_is_written(story: Story) -> None:
    """At the death the ledger ends before the open batch, and no consumer group moved on at the broker."""
    assert [row["batch"] for row in story.booked] == [1]
    groups = admin(story.shop.bootstrap).list_consumer_groups(request_timeout=20).result(20).valid
    assert not [group for group in groups if "shop" in group.group_id]


def test_02_a_batch_that_failed_is_not_done(shop: Shop) -> None:
    """A contract that stops the pipeline leaves the position where it was; with another one the batch is read anew."""
    table = {"path": f"{shop.lake}/{{route}}", "columns": [{"name": "id", "type": "bigint"}]}
    shop.options |= {"transform": [], "table": {**table, "contract": {"wrong_type": "stop"}}}
    shop.send_values([b'{"kind": "alpha", "id": 1}', b'{"kind": "alpha", "id": "one"}', b'{"kind": "alpha", "id": 2}'])
    with pytest.raises(ContractViolation):
        shop.run()
    assert not Lake(shop.spec).ledger()
    shop.options["table"] = table
    shop.run()

    def judge(record: Seen) -> Verdict:
        verdict = by_kind(record)
        return Verdict("alpha", {"id": verdict.row["id"]}) if verdict.row["id"] != "one" else Verdict(DEAD)

    assert shop.audit(judge).rows == {"alpha": 2}


def test_03_offsets_are_never_ahead_of_the_data(story: Story) -> None:
    """Each time a batch was booked, all that the ledger spanned was already there for any reader."""
    assert [found.records for found in story.audits] == [60, 120, 140, 140]


def test_04_several_tables_of_one_topic_have_no_duplicates_after_a_restart(story: Story) -> None:
    assert set(story.audits[-1].rows) == {"alpha", "beta", "gamma", "delta"}
    assert sum(story.audits[-1].rows.values()) == sum(row["routed"] for row in story.audits[-1].batches)


def test_05_one_bad_row_neither_kills_nor_drops_its_batch(story: Story) -> None:
    for row in story.audits[-1].batches:
        assert row["dead"] > 0
        assert row["routed"] > row["dead"]


def test_06_a_batch_is_flushed_without_newer_records(shop: Shop) -> None:
    """Three records and then silence: they are in the table after `flush.every`, far below `flush.rows`."""
    stop = threading.Event()
    with shop.elsewhere():
        running = threading.Thread(
            target=run_all, args=([shop.spec],), kwargs={"stop": stop, "report": shop.events.append}
        )
        running.start()
        try:
            for count in (3, 6):
                shop.send_values([b'{"kind": "alpha", "id": 1}'] * 3)
                eventually(lambda count=count: _read(shop) == count, 60, lambda: f"{shop.events}")
        finally:
            stop.set()
            running.join(60)
    assert shop.audit().rows == {"alpha": 6}


def _read(shop: Shop) -> int:
    return sum(event["read"] for event in shop.events if event["event"] == "batch")


def test_07_dead_letters_are_neither_lost_nor_repeated(story: Story) -> None:
    """Their table did not have the batch at the death; after the restart each letter is there once, byte for byte."""
    found = story.audits[-1]
    assert found.dead_letters == sum(row["dead"] for row in found.batches) > sum(row["dead"] for row in story.booked)


def test_08_null_is_no_text(shop: Shop) -> None:
    sent = [
        b'{"kind": "alpha", "text": null}',
        b'{"kind": "alpha", "text": "null"}',
        b'{"kind": "alpha"}',
        b'{"kind": "alpha", "text": "None"}',
        b'{"kind": null, "text": "x"}',
        b"null",
        None,
    ]
    shop.send_values(sent)
    shop.run()
    lake = Lake(shop.spec)
    assert set(lake.tables()) == {"alpha"}
    rows = sorted(lake.rows(f"{shop.lake}/alpha"), key=lambda row: row["_source"]["offset"])
    assert [row["text"] for row in rows] == [None, "null", None, "None"]
    assert [row["value"] for row in sorted(lake.dead_letters(), key=lambda row: row["offset"])] == sent[4:]


def test_09_a_request_to_stop_finishes_the_batch_under_way(shop: Shop) -> None:
    """Asked in the middle of the first batch: it is booked, the second one is left for the next start."""
    stop = threading.Event()
    with shop.elsewhere(), faults.armed(Point.AFTER_STAGING, stop.set):
        outcome = run_all([eventful(shop).spec], until="latest", stop=stop)[0]
    assert outcome.error is None
    assert shop.audit(drained=False).records == 60
    shop.run()
    assert shop.audit().records == 120


def test_10_a_new_field_does_not_stop_the_writer(story: Story) -> None:
    """It becomes a column; rows from before have none, rows of later batches go on with it."""
    rows = Lake(story.shop.spec).rows(f"{story.shop.lake}/alpha")
    assert {row["note"] for row in rows} == {None, "new"}


def test_11_nothing_is_skipped_after_the_checkpoint_is_lost(shop: Shop) -> None:
    """Spark counts its batches from 0 again, below the tables' marks; the ledger's numbers go on."""
    for _ in range(2):
        shop.send(30)
        assert shop.run().counts.read == 30
    assert [row["batch"] for row in shop.audit().batches] == [1, 2]


def test_12_a_batch_that_reached_some_tables_reaches_all_of_them_once(story: Story) -> None:
    assert story.marks == {"alpha": 2, "beta": 1}
    held = {table["path"].rpartition("/")[2]: table["rows"] for table in story.audits[-1].batches[1]["tables"]}
    assert set(held) == {"alpha", "beta", "gamma", "dead_letters"}
