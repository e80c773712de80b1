"""Danube brokers for tests: the stand-in everywhere, and the real one where its program is beside the checkout."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from danube.proto import DanubeApi_pb2 as api
from danube.proto import DanubeApi_pb2_grpc as stubs
from danube.proto import SchemaRegistry_pb2 as registry
from danube.proto import SchemaRegistry_pb2_grpc as registry_stubs

from services.danube_stand_in import StandIn
from services.wait import eventually

PROGRAM = Path(__file__).parents[3] / "shared" / "bin" / "danube-broker"
REAL, STAND_IN = "danube-broker", "stand-in"
BROKERS = [STAND_IN, *([REAL] if PROGRAM.exists() else [])]
_PORTS = (6650, 50051, 7650)  # fixed: one broker at a time on a machine
_LOCK = Path(tempfile.gettempdir()) / "headrace-tests-danube.lock"


@contextmanager
def broker(kind: str, folder: Path) -> Iterator[str]:
    """A broker of a kind; its URL."""
    if kind == STAND_IN:
        with StandIn() as stand_in:
            yield stand_in.url
    else:
        with real_broker(folder) as url:
            yield url


@contextmanager
def real_broker(folder: Path) -> Iterator[str]:
    """The real broker with an empty data folder, as a child process; its ports are locked against other tests."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        eventually(lambda: not any(map(_listens, _PORTS)), 60, "the ports of the broker are free")
        command = [str(PROGRAM), "--mode", "standalone", "--data-dir", str(folder / "danube")]
        with (folder / "danube.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "RUST_LOG": "warn"})
        try:
            eventually(lambda: _listens(_PORTS[0]), 60, lambda: (folder / "danube.log").read_text()[-2000:])
            yield f"http://127.0.0.1:{_PORTS[0]}"
        finally:
            process.kill()
            process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class TestProducer:
    """Creates a topic, or the partitions of one, and sends messages to it."""

    __test__ = False

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        partitions: int = 0,
        reliable: bool = True,
        name: str = "tests",
        subject: str = "",
        token: str = "",
        ca: bytes = b"",
    ) -> None:
        target = url.partition("://")[2]
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel = (
            grpc.secure_channel(target, grpc.ssl_channel_credentials(ca)) if ca else grpc.insecure_channel(target)
        )
        self._stub = stubs.ProducerServiceStub(self._channel)
        self.topics = [f"{topic}-part-{number}" for number in range(partitions)] or [topic]
        self.name, self.sent = name, 0
        self._ids = {each: self._create(each, reliable, subject) for each in self.topics}

    def _create(self, topic: str, reliable: bool, subject: str) -> int:
        request = api.ProducerRequest(
            request_id=1,
            producer_name=f"{self.name}-{topic.rpartition('/')[2]}",
            topic_name=topic,
            producer_access_mode=api.Shared,
            dispatch_strategy=api.Reliable if reliable else api.NonReliable,
            schema_ref=api.SchemaReference(subject=subject, use_latest=True) if subject else None,
        )
        return int(self._stub.CreateProducer(request, timeout=10, metadata=self._metadata).producer_id)

    def send(
        self,
        values: Iterable[bytes],
        *,
        partition: int | None = None,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        schema: tuple[int, int] | None = None,
        time_ms: int | None = None,
    ) -> None:
        """Send messages, in turns to the partitions or all to one."""
        for value in values:
            request = self._message(value, partition, attributes, key, time_ms)
            if schema is not None:
                request.schema_id, request.schema_version = schema
            self._stub.SendMessage(request, timeout=10, metadata=self._metadata)

    def start_sending(self, value: bytes) -> grpc.Future:
        """Send a message without waiting for the broker."""
        return self._stub.SendMessage.future(self._message(value), timeout=30, metadata=self._metadata)

    def _message(
        self,
        value: bytes,
        partition: int | None = None,
        attributes: Mapping[str, str] | None = None,
        key: str | None = None,
        time_ms: int | None = None,
    ) -> api.StreamMessage:
        topic = self.topics[(self.sent if partition is None else partition) % len(self.topics)]
        self.sent += 1
        return api.StreamMessage(
            request_id=self.sent + 1,
            msg_id=api.MsgID(producer_id=self._ids[topic], topic_name=topic),
            payload=value,
            publish_time=int(time.time() * 1000) if time_ms is None else time_ms,
            producer_name=self.name,
            attributes=attributes or {},
            routing_key=key,
        )

    def register(self, subject: str, kind: str, definition: bytes) -> tuple[int, int]:
        """Register a schema; its id and version."""
        request = registry.RegisterSchemaRequest(subject=subject, schema_type=kind, schema_definition=definition)
        found = registry_stubs.SchemaRegistryStub(self._channel).RegisterSchema(request, timeout=10)
        return found.schema_id, found.version

    def consume(self, subscription: str, consumer: str, kind: int = api.ConsumerRequest.Exclusive) -> Any:
        """A stream of another consumer of the first topic, already connected."""
        stub = stubs.ConsumerServiceStub(self._channel)
        request = api.ConsumerRequest(
            topic_name=self.topics[0], consumer_name=consumer, subscription=subscription, subscription_type=kind
        )
        found = stub.Subscribe(request, timeout=10)
        return stub.ReceiveMessages(api.ReceiveRequest(consumer_id=found.consumer_id))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def danube_source(url: str, *topics: str, **options: Any) -> dict[str, Any]:
    """The source of a spec."""
    return {"danube": {"url": url, "topics": list(topics), **options}}
