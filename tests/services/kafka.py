"""Topics and records on a real broker, by a client that is not ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

QUIET = {"log_level": 0}


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as an independent consumer saw it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def admin(bootstrap: str, **settings: Any) -> AdminClient:
    """An admin client that says nothing on the console."""
    return AdminClient({"bootstrap.servers": bootstrap, **QUIET, **settings})


def make_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> str:
    """Make a topic and wait until every partition has a leader."""
    from services.wait import eventually

    client = admin(bootstrap)
    new = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    client.create_topics([new])[name].result(20)
    eventually(lambda: _leaders(client, name) == partitions, say=f"{name} has {partitions} partitions with a leader")
    return name


def make_topics(bootstrap: str, names: Sequence[str]) -> None:
    """Make topics of one partition, all at once, and wait until each has a leader."""
    from services.wait import eventually

    client = admin(bootstrap)
    for done in client.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        done.result(60)
    eventually(lambda: all(_leaders(client, name) == 1 for name in names), 60, "all topics have a leader")


def drop_topic(bootstrap: str, name: str) -> None:
    """Delete a topic and wait until the broker no longer names it."""
    from services.wait import eventually

    client = admin(bootstrap)
    client.delete_topics([name])[name].result(20)
    eventually(lambda: name not in client.list_topics(timeout=5).topics, say=f"{name} is gone")


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Let a topic have this many partitions, and wait until it has."""
    from services.wait import eventually

    client = admin(bootstrap)
    client.create_partitions([NewPartitions(topic, total)])[topic].result(20)
    eventually(lambda: _leaders(client, topic) == total, say=f"{topic} has {total} partitions with a leader")


def delete_before(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    """Let the broker delete records, as its retention does."""
    from services.wait import eventually

    client = admin(bootstrap)
    for done in client.delete_records([TopicPartition(topic, partition, offset)]).values():
        done.result(20)
    eventually(lambda: ends(bootstrap, topic)[partition][0] == offset, say="the records are deleted")


def produce(bootstrap: str, topic: str, values: Iterable[Any], partition: int | None = None, **settings: Any) -> int:
    """Send values (bytes, None, or mappings of `produce` arguments) and wait until the broker has them all."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **QUIET, **settings}
    )
    where = {} if partition is None else {"partition": partition}
    sent = 0
    for value in values:
        record = value if isinstance(value, Mapping) else {"value": value}
        while True:
            try:
                producer.produce(topic, **where, **record)
                break
            except BufferError:
                producer.poll(0.1)
        sent += 1
    left = producer.flush(60)
    assert left == 0, f"{left} of {sent} records were not acknowledged within 60 s"
    return sent


def produce_all(bootstrap: str, values: Mapping[str, Iterable[bytes]]) -> None:
    """Send the values of several topics with one client, and wait until the broker has them all."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    for topic, own in values.items():
        for value in own:
            producer.produce(topic, value)
    left = producer.flush(60)
    assert left == 0, f"{left} records were not acknowledged within 60 s"


def ends(bootstrap: str, topic: str, **settings: Any) -> dict[int, tuple[int, int]]:
    """First and next offset of each partition."""
    consumer = _consumer(bootstrap, settings)
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20) for p in partitions}
    finally:
        consumer.close()


def read_all(bootstrap: str, topics: Sequence[str], **settings: Any) -> list[Seen]:
    """Every record a read_committed consumer is shown, up to the ends at the call."""
    consumer = _consumer(bootstrap, settings)
    try:
        open_ends = {
            (topic, p): consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20)
            for topic in topics
            for p in consumer.list_topics(topic, timeout=20).topics[topic].partitions
        }
        wanted = {at for at, (low, high) in open_ends.items() if high > low}
        consumer.assign([TopicPartition(topic, p, open_ends[topic, p][0]) for topic, p in sorted(wanted)])
        return _drain(consumer, {at: open_ends[at][1] for at in wanted})
    finally:
        consumer.close()


def _drain(consumer: Consumer, until: dict[tuple[str, int], int]) -> list[Seen]:
    """Read until every position has reached its end; positions also pass over markers and holes."""
    seen: list[Seen] = []
    while until:
        seen += [_seen(record) for record in consumer.consume(10_000, timeout=0.5) if record.error() is None]
        for at in consumer.position([TopicPartition(topic, p) for topic, p in until]):
            if at.offset >= until[at.topic, at.partition]:
                del until[at.topic, at.partition]
    return seen


def _seen(record: Any) -> Seen:
    return Seen(
        record.topic(),
        record.partition(),
        record.offset(),
        record.timestamp()[1],
        record.key(),
        record.value(),
        tuple(record.headers() or ()),
    )


def _consumer(bootstrap: str, settings: Mapping[str, Any]) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "independent",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            **QUIET,
            **settings,
        }
    )


def _leaders(client: AdminClient, topic: str) -> int:
    known = client.list_topics(timeout=5).topics.get(topic)
    return sum(p.leader >= 0 for p in known.partitions.values()) if known else 0
