"""A look at a few records of a topic without Spark and without joining a group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import BrokerUnreachable

_DEADLINE = 10.0  # seconds without a record
_PATIENCE = 0.1  # seconds that a call waits for as many as it asked for
_ENOUGH = 16  # partitions looked at for the age of the oldest record


def peek(
    consumer: Consumer, begin: Mapping[tuple[str, int], int], end: Mapping[tuple[str, int], int], count: int, where: str
) -> pa.Table:
    """Up to `count` envelopes of each topic between `begin` and `end`: the newest, or the oldest."""
    waiting = {each for each in begin if begin[each] < end[each]}
    consumer.assign([TopicPartition(topic, partition, begin[(topic, partition)]) for topic, partition in waiting])
    found: list[dict[str, Any]] = []
    heard = time.monotonic()
    while waiting:
        records = consumer.consume(1000, timeout=_PATIENCE)
        if records:
            heard = time.monotonic()
        elif time.monotonic() - heard > _DEADLINE:
            raise BrokerUnreachable(f"The broker gave no record of {_named(waiting)} within {_DEADLINE:.0f} s.")
        for record in records:
            _take(record, found, waiting, end)
    return pa.Table.from_pylist(_chosen(found, count, where), RECORD_SCHEMA)


def oldest(consumer: Consumer, waiting: Mapping[tuple[str, int], int], patience: float = 1.0) -> float | None:
    """The age in seconds of the oldest record at these positions; None when the broker does not show one in time."""
    some = sorted(waiting.items())[:_ENOUGH]
    consumer.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in some])
    ages: dict[tuple[str, int], float] = {}
    ends = time.monotonic() + patience
    try:
        while len(ages) < len(some) and time.monotonic() < ends:
            for record in consumer.consume(len(some), timeout=0.1):
                if record.error() is None and record.timestamp()[0] != TIMESTAMP_NOT_AVAILABLE:
                    age = time.time() - record.timestamp()[1] / 1000
                    ages.setdefault((record.topic(), record.partition()), max(0.0, age))
    finally:
        consumer.unassign()
    return round(max(ages.values()), 3) if ages else None


def _take(
    record: Any, found: list[dict[str, Any]], waiting: set[tuple[str, int]], end: Mapping[tuple[str, int], int]
) -> None:
    partition = (record.topic(), record.partition())
    if (error := record.error()) is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        waiting.discard(partition)
        return
    if record.offset() < end[partition]:
        found.append(envelope(record))
    if record.offset() >= end[partition] - 1:
        waiting.discard(partition)


def envelope(record: Any) -> dict[str, Any]:
    """A librdkafka record as an envelope."""
    kind, stamp = record.timestamp()
    return {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else datetime.fromtimestamp(stamp / 1000, UTC),
        "timestamp_type": kind - 1,
        "key": record.key(),
        "value": record.value(),
        "headers": [{"key": name, "value": value} for name, value in record.headers() or []] or None,
    }


def _chosen(found: list[dict[str, Any]], count: int, where: str) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for item in sorted(found, key=_when):
        topics.setdefault(item["topic"], []).append(item)
    pick = slice(-count, None) if where == "end" else slice(None, count)
    return [item for items in topics.values() for item in items[pick]]


def _when(item: dict[str, Any]) -> tuple[str, datetime, int, int]:
    return item["topic"], item["timestamp"] or datetime.min.replace(tzinfo=UTC), item["partition"], item["offset"]


def _named(partitions: set[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in sorted(partitions)[:5])
