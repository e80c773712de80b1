"""What brokers do to a pipeline: go away, come back, grow, lose records, are replaced; and what it answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.dev.kafka import Broker
from headrace.errors import SourceGap, SourceReplaced, SourceTopicGone
from headrace.recovery.resume import Decision, decide
from headrace.serve.status import pipeline_status
from headrace.source.kafka import KafkaSource
from headrace.spec.route_id import RouteId
from services.kafka import QUIET, add_partitions, delete_before, drop_topic, make_topic, produce
from services.threads import assert_each_once, drain, drain_all, ids, letters, numbered, one_table, opened, watched
from services.wait import eventually

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of our own, to be killed."""
    with Broker.start(tmp_path_factory.mktemp("mortal")) as broker:
        yield broker


def recreate(bootstrap: str, topic: str, partitions: int = 1) -> str:
    drop_topic(bootstrap, topic)
    return make_topic(bootstrap, topic, partitions)


def test_partitions_that_are_added_are_read_from_their_first_record(
    kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic = new_topic(2)
    produce(kafka.bootstrap, topic, numbered(0, 10))
    spec = one_table(kafka.bootstrap, topic, lake / "t")
    with watched(spec) as running:
        running.until_read(10)
        add_partitions(kafka.bootstrap, topic, 4)
        for partition in range(4):
            produce(kafka.bootstrap, topic, numbered(10 + partition * 5, 5), partition)
        running.until_read(30)
        assert running.stop() is None
    assert_each_once(spec)
    assert ids(lake / "t") == list(range(30))


def test_a_topic_that_is_deleted_stops_the_pipeline(kafka: Broker, new_topic: Callable[..., str], lake: Path) -> None:
    topic = new_topic(2)
    produce(kafka.bootstrap, topic, numbered(0, 10))
    spec = one_table(kafka.bootstrap, topic, lake / "t")
    with watched(spec) as running:
        running.until_read(10)
        drop_topic(kafka.bootstrap, topic)
        stopped = running.until_ended(90)
    assert isinstance(stopped, SourceTopicGone)
    assert topic in stopped.message
    with pytest.raises(SourceTopicGone, match=topic):
        drain(spec)
    assert ids(lake / "t") == list(range(10))


def test_a_topic_that_is_recreated_while_the_pipeline_runs_or_rests(
    kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    running_topic, resting_topic = new_topic(2), new_topic(2)
    specs = [
        one_table(kafka.bootstrap, running_topic, lake / "one", pipeline="one"),
        one_table(kafka.bootstrap, resting_topic, lake / "two", pipeline="two"),
    ]
    for topic in (running_topic, resting_topic):
        produce(kafka.bootstrap, topic, numbered(0, 10))
    assert drain_all(specs) == {"one": None, "two": None}
    with watched(specs[0]) as running:
        eventually(lambda: running.of("progress"), 40, "it runs")
        for topic in (running_topic, resting_topic):  # one partition fewer, and more records than before
            recreate(kafka.bootstrap, topic)
            produce(kafka.bootstrap, topic, numbered(100, 50))
        assert isinstance(running.until_ended(90), SourceReplaced | SourceTopicGone)
    stops = drain_all(specs)
    for spec in specs:
        stop = stops[spec.pipeline]
        assert isinstance(stop, SourceReplaced)
        assert "--accept-replaced-topic" in stop.hint
        assert ids(spec.uri_of(RouteId())) == list(range(10))
        assert "first record" in decide(spec, [Decision.REPLACED_TOPIC])[0]
    assert drain_all(specs) == {"one": None, "two": None}
    for spec in specs:
        assert ids(spec.uri_of(RouteId())) == [*range(10), *range(100, 150)]
        notes = [row["note"] for row in opened(f"{spec.state_uri}/ledger").to_pyarrow_table().to_pylist()]
        assert any("replaced topic accepted" in note for note in notes)


def test_records_that_are_gone_before_they_were_read_stop_the_pipeline(
    kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        produce(kafka.bootstrap, topic, numbered(partition * 100, 10), partition)
    spec = one_table(kafka.bootstrap, topic, lake / "t")
    drain(spec)
    produce(kafka.bootstrap, topic, numbered(110, 10), 1)
    delete_before(kafka.bootstrap, topic, 1, 15)
    for _ in range(2):
        gap = rf"{topic}/1: the broker no longer has offsets 10 to 14 .*--accept-gap"
        with pytest.raises(SourceGap, match=gap) as stop:
            drain(spec)
    assert (stop.value.facts["partition"], stop.value.facts["wanted"], stop.value.facts["earliest"]) == (1, 10, 15)
    assert decide(spec, [Decision.GAP]) == [f"{topic}/1: continues at offset 15, was 10"]
    drain(spec)
    assert ids(lake / "t") == [*range(10), *range(100, 110), *range(115, 120)]
    booked = opened(f"{spec.state_uri}/ledger").to_pyarrow_table().sort_by("batch").to_pylist()
    gap = next(row for row in booked if row["note"] == "gap accepted")
    assert [(each["partition"], each["from"], each["until"]) for each in gap["ranges"]] == [(1, 10, 15)]
    assert gap["read"] == 0


def test_records_that_go_while_the_pipeline_runs_stop_it(
    kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 10))
    spec = one_table(kafka.bootstrap, topic, lake / "t", flush={"every": "4s"})
    with watched(spec) as running:
        running.until_read(10)
        produce(kafka.bootstrap, topic, numbered(10, 10))
        delete_before(kafka.bootstrap, topic, 0, 15)
        stopped = running.until_ended(90)
    assert isinstance(stopped, SourceGap)
    assert f"{topic}/0: the broker no longer has offsets 10 to 14" in stopped.message
    assert ids(lake / "t") == list(range(10))


def transact(producer: Producer, topic: str, values: list[bytes]) -> None:
    """Send inside an open transaction, and be sure the broker has it."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **QUIET})
    producer.init_transactions(30)
    return producer


def test_transactions_are_taken_when_committed_and_never_when_aborted(
    kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic = new_topic(1)
    steady, hanging = transactional(kafka.bootstrap, f"{topic}-a"), transactional(kafka.bootstrap, f"{topic}-b")
    transact(steady, topic, numbered(0, 10))
    steady.commit_transaction(30)
    transact(steady, topic, numbered(100, 10))
    steady.abort_transaction(30)
    transact(hanging, topic, numbered(200, 5))
    transact(steady, topic, numbered(10, 10))
    steady.commit_transaction(30)  # committed, but behind the open one: nobody is shown it yet
    spec = one_table(kafka.bootstrap, topic, lake / "t")
    assert drain(spec).counts.read == 10
    assert ids(lake / "t") == list(range(10))
    for value in numbered(205, 5):
        hanging.produce(topic, value, partition=0)
    hanging.commit_transaction(30)
    assert drain(spec).counts.read == 20
    assert_each_once(spec)
    assert ids(lake / "t") == [*range(20), *range(200, 210)]
    assert letters(spec) == []


def test_large_records_pass_and_larger_ones_are_dead_letters_with_all_their_bytes(
    kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic = new_topic(1, max_message_bytes="6000000")
    large = {"message.max.bytes": 6_000_000}
    fits, too_big = (
        b'{"id": %d, "text": "%s"}' % (number, b"x" * size) for number, size in ((1, 4_900_000), (2, 5_000_000))
    )
    produce(kafka.bootstrap, topic, [fits, too_big, *numbered(3, 1)], 0, **large)
    spec = one_table(kafka.bootstrap, topic, lake / "t", limits={"record_bytes": 5_000_000})
    counts: Any = drain(spec).counts
    assert (counts.routed, counts.dead, counts.reasons) == (2, 1, {"too_big": 1})
    assert ids(lake / "t") == [1, 3]
    (letter,) = letters(spec)
    assert (letter["reason"], letter["value"]) == ("too_big", too_big)


def test_a_broker_that_is_down_at_the_start_and_goes_away_later(spark: Any, mortal: Broker, lake: Path) -> None:
    topic = make_topic(mortal.bootstrap, "mortal", 2)
    produce(mortal.bootstrap, topic, numbered(0, 20))
    spec = one_table(mortal.bootstrap, topic, lake / "t")
    mortal.kill()
    with watched(spec) as running:
        eventually(lambda: running.of("retry"), 40, "it waits for the broker")
        assert running.of("retry")[0]["error"] == "BrokerUnreachable"
        assert mortal.bootstrap in running.of("retry")[0]["message"]
        mortal.restart()
        back = time.monotonic()
        running.until_read(20, 30)
        assert time.monotonic() - back < 10

        mortal.kill()
        eventually(lambda: any(each["lag"] is None for each in running.of("progress")), 60, "its lag is unknown")
        mortal.restart()
        produce(mortal.bootstrap, topic, numbered(20, 20))
        running.until_read(40, 90)
        mortal.kill()  # a request to stop is answered although nobody else answers
        assert running.stop(within=30) is None
    mortal.restart()
    assert drain(spec).counts.read == 0
    assert_each_once(spec)


def test_deleted_records_of_a_partition_that_is_added_while_the_pipeline_runs_stop_it(
    kafka: Broker, new_topic: Callable[..., str], lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 5), 0)
    spec = one_table(kafka.bootstrap, topic, lake / "t")
    looks = threading.Event()
    bounds = KafkaSource._partitions
    # The partition is not looked at before some of its records are deleted.
    monkeypatch.setattr(
        KafkaSource, "_partitions", lambda self: [at for at in bounds(self) if at[1] == 0 or looks.is_set()]
    )
    with watched(spec) as running:
        running.until_read(5)
        add_partitions(kafka.bootstrap, topic, 2)
        produce(kafka.bootstrap, topic, numbered(5, 5), 1)
        delete_before(kafka.bootstrap, topic, 1, 2)
        looks.set()
        stopped = running.until_ended(90)
    assert isinstance(stopped, SourceGap)
    assert f"{topic}/1: the broker no longer has offsets 0 to 1 " in stopped.message
    decide(spec, [Decision.GAP])
    assert drain(spec).counts.read == 3
    assert ids(lake / "t") == [*range(5), *range(7, 10)]


@pytest.mark.parametrize("grows", ["partitions", "topics"])
def test_what_appears_between_the_check_of_the_source_and_the_first_batch_is_read(
    kafka: Broker, lake: Path, monkeypatch: pytest.MonkeyPatch, grows: str
) -> None:
    prefix = f"grows-{grows}-"
    topic = make_topic(kafka.bootstrap, f"{prefix}a")
    produce(kafka.bootstrap, topic, numbered(0, 5), 0)
    source = {"kafka": {"brokers": kafka.bootstrap, "pattern": f"^{prefix}"}}
    spec = one_table(kafka.bootstrap, [], lake / "t", source=source)
    latest = KafkaSource.latest

    def grow_first(self: KafkaSource, *arguments: Any) -> Any:
        monkeypatch.undo()
        if grows == "partitions":
            add_partitions(kafka.bootstrap, topic, 2)
            produce(kafka.bootstrap, topic, numbered(5, 5), 1)
        else:
            produce(kafka.bootstrap, make_topic(kafka.bootstrap, f"{prefix}b"), numbered(5, 5), 0)
        return latest(self, *arguments)

    monkeypatch.setattr(KafkaSource, "latest", grow_first)
    with watched(spec) as running:
        running.until_read(10)
        assert running.stop() is None
        assert running.of("retry") == []
    assert ids(lake / "t") == list(range(10))


def test_a_pattern_waits_for_its_first_topic_and_a_drain_without_one_is_done(kafka: Broker, lake: Path) -> None:
    source = {"kafka": {"brokers": kafka.bootstrap, "pattern": "^to-come-"}}
    spec = one_table(kafka.bootstrap, [], lake / "t", source=source)
    assert drain(spec).counts.read == 0
    with watched(spec) as running:
        eventually(lambda: running.of("progress"), 40, "it looks for topics")
        produce(kafka.bootstrap, make_topic(kafka.bootstrap, "to-come-a"), numbered(0, 3), 0)
        running.until_read(3)
        assert running.stop() is None
    assert ids(lake / "t") == [0, 1, 2]


def test_a_hanging_transaction_is_the_reason_of_a_lag(kafka: Broker, new_topic: Callable[..., str], lake: Path) -> None:
    topic = new_topic(1)
    steady, hanging = transactional(kafka.bootstrap, f"{topic}-a"), transactional(kafka.bootstrap, f"{topic}-b")
    transact(steady, topic, numbered(0, 3))
    steady.commit_transaction(30)
    spec = one_table(kafka.bootstrap, topic, lake / "t")
    before = datetime.now(UTC) - timedelta(seconds=1)
    with watched(spec) as running:
        running.until_read(3)
        eventually(
            lambda: [each["lag_reason"] for each in running.of("progress")][-1:] == [None], 30, "nothing holds it up"
        )
        transact(hanging, topic, numbered(3, 4))
        transact(steady, topic, numbered(7, 2))
        steady.commit_transaction(30)  # committed, and yet nobody is shown it
        records = 4 + 3  # with the marker of the commit, which the broker writes a moment later
        told = eventually(
            lambda: next(
                (each for each in running.of("progress") if (each["open_transaction"] or {}).get("records") == records),
                None,
            ),
            30,
            "it tells why",
        )
        assert (told["lag"], told["lag_reason"]) == (0, "open_transaction")
        assert before < datetime.fromisoformat(told["open_transaction"]["since"]) < datetime.now(UTC)
        shown = pipeline_status(spec)
        assert (shown["lag_reason"], shown["open_transaction"]["records"]) == ("open_transaction", 7)
        hanging.abort_transaction(30)
        running.until_read(5)
        eventually(lambda: running.of("progress")[-1]["lag_reason"] is None, 30, "nothing holds it up any more")
        assert running.stop() is None
    assert ids(lake / "t") == [0, 1, 2, 7, 8]
