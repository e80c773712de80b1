"""Read a few records of a topic without Spark and without a consumer group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import BrokerUnreachable

_TIMEOUT = 10.0  # seconds without a record
_POLL_SECONDS = 0.1
_MAX_PARTITIONS = 16  # that are read for the age of the oldest record


def read_sample(
    consumer: Consumer, start: Mapping[tuple[str, int], int], end: Mapping[tuple[str, int], int], count: int, where: str
) -> pa.Table:
    """Up to `count` records of each topic between `start` and `end`: the newest, or the oldest."""
    waiting = {partition for partition in start if start[partition] < end[partition]}
    consumer.assign([TopicPartition(topic, partition, start[(topic, partition)]) for topic, partition in waiting])
    sample: list[dict[str, Any]] = []
    last_received = time.monotonic()
    while waiting:
        records = _received(consumer)
        if records:
            last_received = time.monotonic()
        elif time.monotonic() - last_received > _TIMEOUT:
            partitions = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(waiting)[:5])
            raise BrokerUnreachable(f"The broker returned no record of {partitions} within {_TIMEOUT:.0f} s.")
        for record in records:
            _add(record, sample, waiting, end)
    return pa.Table.from_pylist(_limited(sample, count, where), RECORD_SCHEMA)


def _received(consumer: Consumer) -> list[Any]:
    """Records that have arrived, after a wait for the first one; `consume` alone would wait for the last one."""
    first = consumer.poll(_POLL_SECONDS)
    return [] if first is None else [first, *consumer.consume(1000, timeout=0)]


def record_ages(
    consumer: Consumer, waiting: Mapping[tuple[str, int], int], timeout: float = 1.0
) -> dict[tuple[str, int], float]:
    """Age in seconds of the record at each of these positions, where the broker returns it in time."""
    some = sorted(waiting.items())[:_MAX_PARTITIONS]
    consumer.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in some])
    ages: dict[tuple[str, int], float] = {}
    deadline = time.monotonic() + timeout
    try:
        while len(ages) < len(some) and time.monotonic() < deadline:
            for record in consumer.consume(len(some), timeout=0.1):
                if record.error() is None and record.timestamp()[0] != TIMESTAMP_NOT_AVAILABLE:
                    age = time.time() - record.timestamp()[1] / 1000
                    ages.setdefault((record.topic(), record.partition()), max(0.0, age))
    finally:
        consumer.unassign()
    return {partition: round(age, 3) for partition, age in ages.items()}


def _add(
    record: Any, sample: list[dict[str, Any]], waiting: set[tuple[str, int]], end: Mapping[tuple[str, int], int]
) -> None:
    partition = (record.topic(), record.partition())
    if (error := record.error()) is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        waiting.discard(partition)
        return
    if record.offset() < end[partition]:
        sample.append(_row(record))
    if record.offset() >= end[partition] - 1:
        waiting.discard(partition)


def _row(record: Any) -> dict[str, Any]:
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


def _limited(sample: list[dict[str, Any]], count: int, where: str) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for item in sorted(sample, key=_order):
        topics.setdefault(item["topic"], []).append(item)
    pick = slice(-count, None) if where == "end" else slice(None, count)
    return [item for items in topics.values() for item in items[pick]]


def _order(item: dict[str, Any]) -> tuple[str, datetime, int, int]:
    return item["topic"], item["timestamp"] or datetime.min.replace(tzinfo=UTC), item["partition"], item["offset"]
