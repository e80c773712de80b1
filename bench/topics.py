"""Topics on a real broker of our own, filled when a part first asks for them, and a registry for their schemas."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.encodings import Encoding
from bench.records import KINDS, Events
from headrace.dev.kafka import Broker
from services.registry import RegistryServer, registry_server

QUIET = {"log_level": 0}
HEADERS = [("trace", b"00f067aa0ba902b7")]


class Topics:
    """What the broker holds; a topic is named after what is in it."""

    def __init__(self, bootstrap: str, registry: Callable[[], RegistryServer], folder: Path) -> None:
        self.bootstrap = bootstrap
        self.registry = registry
        self._events = Events(folder / "events.jsonl")
        self._have: set[str] = set()

    def filled(self, kind: str, count: int, partitions: int = 4) -> str:
        """A topic with so many records of a kind."""
        name = re.sub("[^a-z0-9]+", "_", kind) + f"-{count}-{partitions}"
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
        values = list(self._events.first(10_000))
        began, sent = time.monotonic(), 0
        while not ended.wait(0.01):
            while sent < (time.monotonic() - began) * per_second:
                producer.produce(topic, values[sent % len(values)], partition=sent % 4, headers=HEADERS)
                sent += 1
            producer.poll(0)
        producer.flush(30)

    def _fill(self, topic: str, kind: str, count: int, partitions: int) -> None:
        producer, made = self._producer(linger=20), KINDS[kind]
        id = self._registered(topic, made.encoding) if made.encoding else 0
        for number, value in enumerate(made.records(self._events.first(count), id)):
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

    def _registered(self, topic: str, encoding: Encoding) -> int:
        return self.registry().register(f"{topic}-value", encoding.schema, encoding.kind)

    def _producer(self, linger: int) -> Producer:
        settings = {"enable.idempotence": True, "linger.ms": linger, "queue.buffering.max.messages": 200_000}
        return Producer({"bootstrap.servers": self.bootstrap, **settings, **QUIET})


@contextmanager
def broker_topics(folder: Path) -> Iterator[Topics]:
    """A broker, and a registry for who asks, for the time of a run."""
    with ExitStack() as servers:
        broker = servers.enter_context(Broker.start(folder / "kafka", jvm=["-Xmx512m"]))
        registry = cache(lambda: servers.enter_context(registry_server(folder / "registry")))
        yield Topics(broker.bootstrap, registry, folder)
