"""Topics on a real broker of our own, filled when a part first asks for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.records import KINDS, Events
from headrace.runtime.kafka import Broker

QUIET = {"log_level": 0}
HEADERS = [("trace", b"00f067aa0ba902b7")]


class Topics:
    """What the broker holds; a topic is named after what is in it."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self._events = Events(folder / "events.jsonl")
        self._have: set[str] = set()

    def filled(self, kind: str, count: int, partitions: int = 4) -> str:
        """A topic with so many records of a kind."""
        name = f"{kind}-{count}-{partitions}".replace(" ", "_")
        if name not in self._have:
            self.empty(name, partitions)
            self._fill(name, kind, count, partitions)
            self._have.add(name)
        return name

    def empty(self, name: str, partitions: int = 4) -> str:
        """A topic without records."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def flow(self, topic: str, per_second: int, ended: threading.Event) -> None:
        """Send records evenly, in steps of ten milliseconds, until it is ended."""
        producer = self._producer(linger=0)
        values = list(self._events.first(10_000, KINDS["plain"]))
        began, sent = time.monotonic(), 0
        while not ended.wait(0.01):
            while sent < (time.monotonic() - began) * per_second:
                producer.produce(topic, values[sent % len(values)], partition=sent % 4, headers=HEADERS)
                sent += 1
            producer.poll(0)
        producer.flush(30)

    def _fill(self, topic: str, kind: str, count: int, partitions: int) -> None:
        producer = self._producer(linger=20)
        for number, value in enumerate(self._events.first(count, KINDS[kind])):
            while True:
                try:
                    producer.produce(topic, value, partition=number % partitions, headers=HEADERS)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1000 == 0:
                producer.poll(0)
        if left := producer.flush(120):
            raise TimeoutError(f"{left} records of {topic} could not be sent.")

    def _producer(self, linger: int) -> Producer:
        settings = {"enable.idempotence": True, "linger.ms": linger, "queue.buffering.max.messages": 200_000}
        return Producer({"bootstrap.servers": self.bootstrap, **settings, **QUIET})


@contextmanager
def broker_topics(folder: Path) -> Iterator[Topics]:
    """A broker for the time of a run."""
    with Broker.start(folder / "kafka", jvm=["-Xmx512m"]) as broker:
        yield Topics(broker.bootstrap, folder)
