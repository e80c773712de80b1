"""Where partitions are read from that were never read: decided once, durably, by what the broker holds then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.dev.kafka import Broker
from headrace.errors import SourceGap, SourceReplaced, UsageError
from headrace.ledger.ledger import Ledger
from headrace.pipeline.verify_source import verify_source
from headrace.recovery.resume import Decision, decide
from headrace.source.base import Offsets, open_source
from headrace.spec import Spec
from headrace.storage.store import Store
from services.kafka import add_partitions, delete_before, drop_topic, make_topic, produce
from services.threads import numbered, one_table

NewTopic = Callable[..., str]


def position(spec: Spec) -> Offsets:
    """What a process that starts now decides to read from; it ends before its first batch."""
    source = open_source(spec)
    try:
        return verify_source(source, Ledger.open(Store(spec.state_uri), spec.pipeline))[1]
    finally:
        source.close()


def matching(kafka: Broker, pattern: str, lake: Path, start: Any) -> Spec:
    source = {"kafka": {"brokers": kafka.bootstrap, "pattern": f"^{pattern}", "start": start}}
    return one_table(kafka.bootstrap, [], lake / "t", source=source)


def reading(kafka: Broker, topic: str, lake: Path, start: Any) -> Spec:
    source = {"kafka": {"brokers": kafka.bootstrap, "topics": [topic], "start": start}}
    return one_table(kafka.bootstrap, [], lake / "t", source=source)


def test_records_of_an_added_partition_that_are_deleted_are_a_gap(
    kafka: Broker, new_topic: NewTopic, lake: Path
) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 3), 0)
    spec = reading(kafka, topic, lake, "earliest")
    assert position(spec) == {(topic, 0): 0}
    add_partitions(kafka.bootstrap, topic, 2)
    produce(kafka.bootstrap, topic, numbered(3, 5), 1)
    delete_before(kafka.bootstrap, topic, 1, 3)
    for _ in range(2):
        with pytest.raises(SourceGap, match=rf"{topic}/1: the broker no longer has offsets 0 to 2 .*--accept-gap"):
            position(spec)
    assert decide(spec, [Decision.GAP]) == [f"{topic}/1: continues at offset 3, was 0"]
    assert position(spec) == {(topic, 0): 0, (topic, 1): 3}


@pytest.mark.parametrize("records", [0, 4])
def test_start_counts_only_for_what_is_there_at_the_first_start(kafka: Broker, lake: Path, records: int) -> None:
    prefix = f"later-{records}-{lake.parent.name}-"
    first = make_topic(kafka.bootstrap, f"{prefix}a")
    produce(kafka.bootstrap, first, numbered(0, records))
    spec = matching(kafka, prefix, lake, "latest")
    assert position(spec) == {(first, 0): records}
    second = make_topic(kafka.bootstrap, f"{prefix}b")
    for topic in (first, second):
        produce(kafka.bootstrap, topic, numbered(10, 5))
    assert position(spec) == {(first, 0): records, (second, 0): 0}


def test_a_first_start_without_any_topic_is_a_first_start(kafka: Broker, lake: Path) -> None:
    prefix = f"none-{lake.parent.name}-"
    spec = matching(kafka, prefix, lake, "latest")
    assert position(spec) == {}
    topic = make_topic(kafka.bootstrap, f"{prefix}a")
    produce(kafka.bootstrap, topic, numbered(0, 5))
    assert position(spec) == {(topic, 0): 0}


def test_records_deleted_between_the_first_start_and_the_first_batch_are_a_gap(
    kafka: Broker, new_topic: NewTopic, lake: Path
) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 5))
    spec = reading(kafka, topic, lake, "earliest")
    assert position(spec) == {(topic, 0): 0}
    delete_before(kafka.bootstrap, topic, 0, 2)
    with pytest.raises(SourceGap, match=rf"{topic}/0: the broker no longer has offsets 0 to 1 "):
        position(spec)


def test_a_recreated_topic_before_its_first_batch_is_not_read_from_the_old_ones_offsets(
    kafka: Broker, new_topic: NewTopic, lake: Path
) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 5))
    spec = reading(kafka, topic, lake, "latest")
    assert position(spec) == {(topic, 0): 5}
    drop_topic(kafka.bootstrap, topic)
    make_topic(kafka.bootstrap, topic)
    produce(kafka.bootstrap, topic, numbered(0, 9))
    with pytest.raises(SourceReplaced, match="--accept-replaced-topic"):
        position(spec)
    decide(spec, [Decision.REPLACED_TOPIC])
    assert position(spec) == {(topic, 0): 0}


def test_offsets_that_the_broker_does_not_hold_are_refused_before_anything_is_decided(
    kafka: Broker, new_topic: NewTopic, lake: Path
) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 5))
    with pytest.raises(UsageError, match=rf"{topic}/0 has no offset 12; the broker has 0 to 5"):
        position(reading(kafka, topic, lake, {"offsets": {"0": 12}}))
    assert position(reading(kafka, topic, lake, {"offsets": {"0": 2}})) == {(topic, 0): 2}


def test_a_time_is_resolved_once(kafka: Broker, new_topic: NewTopic, lake: Path) -> None:
    topic, day = new_topic(1, retention_ms="-1"), 1_738_281_600_000  # 2025-01-31
    values = [{"value": value, "timestamp": day + 1000 * at} for at, value in enumerate(numbered(0, 6))]
    produce(kafka.bootstrap, topic, values)
    assert position(reading(kafka, topic, lake, {"timestamp": "2025-01-31T00:00:02Z"})) == {(topic, 0): 2}
    assert position(reading(kafka, topic, lake, {"timestamp": "2025-01-31T00:00:04Z"})) == {(topic, 0): 2}
