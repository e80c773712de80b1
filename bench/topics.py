"""Topics of a local broker, filled when a part first uses them, and a registry for their schemas."""

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
HEADERS = [(name, b"00f067aa0ba902b7") for name in ("trace", "span", "tenant", "origin", "version")]


class Topics:
    """Topics of the broker, named after their content."""

    def __init__(self, bootstrap: str, registry: Callable[[], RegistryServer], folder: Path) -> None:
        self.bootstrap = bootstrap
        self.registry = registry
        self._events = Events(folder / "events.jsonl")
        self._filled: set[str] = set()

    def filled(self, kind: str, count: int, partitions: int = 4, copy: int = 1) -> str:
        """Topic with `count` records of a kind; another topic for each copy."""
        name = re.sub("[^A-Za-z0-9]+", "_", kind) + f"-{count}-{partitions}-{copy}"
        if name not in self._filled:
            self.empty(name, partitions)
            self._fill(name, kind, count, partitions)
            self._filled.add(name)
        return name

    def empty(self, name: str, partitions: int = 4) -> str:
        """Topic without records."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def values(self, kind: str, count: int) -> list[bytes]:
        """Values of records of a kind."""
        return list(KINDS[kind].records(self._events.first(count)))

    def flow(self, topic: str, per_second: int, ended: threading.Event) -> None:
        """Send records at a constant rate, in steps of ten milliseconds, until `ended` is set."""
        producer = self._producer(linger=0)
        values = list(self._events.first(10_000))
        start, sent = time.monotonic(), 0
        while not ended.wait(0.01):
            while sent < (time.monotonic() - start) * per_second:
                producer.produce(topic, values[sent % len(values)], partition=sent % 4, headers=HEADERS[:1])
                sent += 1
            producer.poll(0)
        producer.flush(30)

    def _fill(self, topic: str, kind: str, count: int, partitions: int) -> None:
        producer, record_kind = self._producer(linger=20), KINDS[kind]
        id = self._registered(topic, record_kind.encoding) if record_kind.encoding else 0
        headers = HEADERS[: record_kind.headers] or None
        for number, value in enumerate(record_kind.records(self._events.first(count), id)):
            key = b"%012d" % number if record_kind.keyed else None
            while True:
                try:
                    producer.produce(topic, value, key, partition=number % partitions, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1000 == 0:
                producer.poll(0)
        if unsent := producer.flush(120):
            raise TimeoutError(f"{unsent} records could not be sent to {topic}.")

    def _registered(self, topic: str, encoding: Encoding) -> int:
        return self.registry().register(f"{topic}-value", encoding.schema, encoding.kind)

    def _producer(self, linger: int) -> Producer:
        settings = {"enable.idempotence": True, "linger.ms": linger, "queue.buffering.max.messages": 200_000}
        return Producer({"bootstrap.servers": self.bootstrap, **settings, **QUIET})


@contextmanager
def broker_topics(folder: Path) -> Iterator[Topics]:
    """Start a broker, and a registry when it is first used, for the duration of a run."""
    with ExitStack() as servers:
        broker = servers.enter_context(Broker.start(folder / "kafka", jvm=["-Xmx512m"]))
        registry = cache(lambda: servers.enter_context(registry_server(folder / "registry")))
        yield Topics(broker.bootstrap, registry, folder)
