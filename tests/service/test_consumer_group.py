"""Offsets of a consumer group on a real broker: those of the ledger, and never a reason for a batch to wait."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions

from headrace.dev.kafka import Broker, free_ports
from headrace.ledger.ledger import Ledger
from headrace.source.base import open_source
from headrace.source.kafka import KafkaSource
from headrace.spec import Spec
from headrace.storage.store import Store
from headrace.validate.online import online
from services.kafka import QUIET, admin, produce
from services.threads import drain, ids, numbered, one_table
from services.wait import eventually


@pytest.fixture
def group() -> str:
    return f"lag-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.source.kafka_group._RETRY_SECONDS", 0.1)
    monkeypatch.setattr("headrace.source.kafka_group._TIMEOUT", 2.0)


def spec_of(brokers: str, topic: str, group: str, lake: Path) -> Spec:
    return one_table(
        "unused:1", topic, lake / "t", source={"kafka": {"brokers": brokers, "topics": [topic], "group": group}}
    )


@contextmanager
def kafka_source(spec: Spec) -> Iterator[KafkaSource]:
    source = open_source(spec)
    assert isinstance(source, KafkaSource)
    try:
        yield source
    finally:
        source.close()


def committed(broker: Broker, group: str) -> dict[tuple[str, int], int]:
    """The offsets of a group, as kafka-consumer-groups shows them."""
    client = admin(broker.bootstrap)
    future = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    return {(at.topic, at.partition): at.offset for at in future.result(20).topic_partitions}


@pytest.mark.usefixtures("spark")
def test_the_group_has_the_offsets_of_the_ledger(kafka: Broker, topic: str, group: str, lake: Path) -> None:
    spec = spec_of(kafka.bootstrap, topic, group, lake)
    for before, total in ((0, 30), (30, 50)):
        produce(kafka.bootstrap, topic, numbered(before, total - before))
        drain(spec)
        assert committed(kafka, group) == Ledger.open(Store(spec.state_uri), spec.pipeline).position()
        assert sum(committed(kafka, group).values()) == total
    assert ids(lake / "t") == list(range(50))


def test_offsets_are_never_read(kafka: Broker, topic: str, group: str, lake: Path) -> None:
    produce(kafka.bootstrap, topic, numbered(0, 10), 0)
    with kafka_source(spec_of(kafka.bootstrap, topic, group, lake)) as source:
        source.committed({(topic, 0): 7, (topic, 1): 0})
        eventually(lambda: committed(kafka, group) == {(topic, 0): 7, (topic, 1): 0}, say="offsets are committed")
        assert source.start(source.bounds()) == {(topic, 0): 0, (topic, 1): 0}
        assert source.notices() == []


def test_a_broker_that_is_down_delays_nothing(group: str, lake: Path) -> None:
    brokers = f"127.0.0.1:{next(iter(free_ports()))}"
    with kafka_source(spec_of(brokers, "t", group, lake)) as source:
        started = time.monotonic()
        for offset in range(100):
            source.committed({("t", 0): offset})
        assert time.monotonic() - started < 0.5
        (warning,) = eventually(source.notices, say="the failure is reported")
        assert f"consumer group '{group}'" in warning["text"]
        source.committed({("t", 0): 200})
        closed = time.monotonic()
    assert time.monotonic() - closed < 8
    assert source.notices() == [], "the same reason is reported once"


def test_a_group_with_active_members_is_named(kafka: Broker, topic: str, group: str, lake: Path) -> None:
    spec = spec_of(kafka.bootstrap, topic, group, lake)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, **QUIET})
    try:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.1) or consumer.assignment(), say="the consumer is a member of the group")
        (found,) = [each for each in online(spec) if each.key == "source.kafka.group"]
        assert "1 active member" in found.message
        with kafka_source(spec) as source:
            source.committed({(topic, 0): 3})
            (warning,) = eventually(source.notices, say="the failure is reported")
            assert "active members" in warning["text"]
            assert committed(kafka, group) == {}
            consumer.close()
            eventually(lambda: committed(kafka, group) == {(topic, 0): 3}, say="offsets are committed")
    finally:
        consumer.close()
    assert not [each for each in online(spec) if each.key == "source.kafka.group"]
