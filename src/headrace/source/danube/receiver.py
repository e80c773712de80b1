"""Receives the messages of a subscription: into the spool, then acknowledged."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc

from headrace.errors import BrokerUnreachable, HeadraceError, SourceTopicGone, SpoolFull, StopRequested, TransientError
from headrace.retry import Retry, call
from headrace.source.danube.client import BrokerSchema, DanubeClient, TopicConsumer
from headrace.source.danube.records import identity_of, record_of
from headrace.source.spool.receiver import Destination, ReceiverReport
from headrace.source.spool.writer import Incoming
from headrace.spec import Spec
from headrace.spec.danube_source import DanubeSpec, partition_number, source_topic

_GONE_SECONDS = 60.0  # a topic that was read may have no broker while it moves
_ACKS = 2_000  # acknowledgements without a response
_CLOSE_SECONDS = 5.0


class DanubeReceiver:
    """Consumers of all partitions of the topics of a spec, each with a thread of its own."""

    def __init__(self, spec: Spec, danube: DanubeSpec, *, poll_seconds: float = 5.0, patience: float = 5.0) -> None:
        self.spec, self.danube = spec, danube
        self.poll_seconds = poll_seconds  # between looks for partitions and closed consumers
        # Seconds without room in the spool before a stream ends. A broker delivers again after 30, which it counts.
        self.patience = patience
        self.client = DanubeClient(danube)
        self.consumer_name = f"headrace-{spec.pipeline}"  # a later process takes over from one that was killed
        self.policy = _policy(spec)
        self.stopping = threading.Event()
        self._failure: HeadraceError | None = None
        self.acknowledger = _Acknowledger()
        self._schemas: dict[tuple[int, int | None], BrokerSchema | None] = {}
        self._readers: dict[str, _PartitionReader] = {}
        self._thread = threading.Thread(target=self._run, name="headrace-danube", daemon=True)
        self._report: ReceiverReport = lambda event: None

    def start(self, spool: Destination, report: ReceiverReport) -> None:
        """Start to receive in the background."""
        self._report, self._spool = report, spool
        self.acknowledger.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop to receive; what the spool has accepted is still stored and acknowledged."""
        self.stopping.set()
        self.acknowledger.wait(_CLOSE_SECONDS)  # after the end of the stream they may be ignored
        for reader in self._readers.values():
            reader.end_stream()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        for reader in self._readers.values():
            reader.join(_CLOSE_SECONDS)
        self.acknowledger.stop()
        self.client.close()

    def failure(self) -> HeadraceError | None:
        """The error that has ended it, if one has."""
        return self._failure

    def connected(self) -> frozenset[str]:
        """Physical topics with an open stream."""
        return frozenset(name for name, reader in list(self._readers.items()) if reader.is_connected)

    def retried(self, attempt: Callable[[], None]) -> None:
        """Call until it succeeds; StopRequested when the receiver stops, any other error ends it."""
        call(attempt, self.policy, stop=self.stopping, on_wait=self.report_wait)

    def report_wait(self, name: str, seconds: float, error: HeadraceError) -> None:
        """Report that an error is retried after some seconds."""
        self._report(
            {
                "event": "retry",
                "pipeline": self.spec.pipeline,
                "error": name,
                "seconds": round(seconds, 3),
                "message": error.message,
            }
        )

    def report_listening(self, physical: str) -> None:
        """Report the first stream of a partition."""
        address = f"{self.danube.url}{physical}"
        self._report({"event": "listening", "pipeline": self.spec.pipeline, "address": address})

    def fail(self, error: HeadraceError) -> None:
        """End all consumers with an error."""
        self._failure = self._failure or error
        self.stopping.set()
        for reader in list(self._readers.values()):
            reader.end_stream()

    def schema_of(self, message: Any) -> BrokerSchema | None:
        """The registered schema of a message, looked up once per version."""
        if not self.danube.schema_registry or not message.HasField("schema_id"):
            return None
        version = message.schema_version if message.HasField("schema_version") else None
        key = (message.schema_id, version)
        if key not in self._schemas:
            self.retried(lambda: self._schemas.update({key: self.client.schema(*key)}))
        return self._schemas[key]

    def _run(self) -> None:
        """Find partitions, also later ones, and consumers that the broker has closed."""
        try:
            self.retried(self._start_readers)
            while not self.stopping.wait(self.poll_seconds):
                self.retried(self._start_readers)
                for reader in self._readers.values():
                    reader.check_health()
        except StopRequested:
            pass
        except HeadraceError as error:
            self.fail(error)

    def _start_readers(self) -> None:
        for topic in self.danube.topics:
            for physical in self._partitions(topic):
                if physical not in self._readers and not self.stopping.is_set():
                    self._readers[physical] = _PartitionReader(self, self._spool, topic, physical)
                    self._readers[physical].start()

    def _partitions(self, topic: str) -> list[str]:
        try:
            return self.client.partitions(topic)
        except SourceTopicGone:
            if any(reader.topic == topic for reader in self._readers.values()):
                return []  # its readers decide
            raise


class _PartitionReader:
    """The stream of one partition, opened again whenever it ends."""

    def __init__(self, receiver: DanubeReceiver, spool: Destination, topic: str, physical: str) -> None:
        self.topic, self._physical = topic, physical
        self._receiver, self._spool = receiver, spool
        self._source_topic = source_topic(topic)
        self._partition = None if physical == topic else partition_number(physical)
        self._consumer: TopicConsumer | None = None
        self._stream: Any = None
        self._opened = self._ended = time.monotonic()
        self._wanted_end = False  # the stream was ended here
        self._thread = threading.Thread(target=self._run, name=f"headrace-danube-{physical}", daemon=True)

    @property
    def is_connected(self) -> bool:
        """Whether the stream is open."""
        return self._stream is not None and not self._wanted_end

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout)

    def end_stream(self) -> None:
        """End the stream; the broker delivers what was not acknowledged again."""
        self._wanted_end = True
        if (stream := self._stream) is not None:
            stream.cancel()

    def check_health(self) -> None:
        """End a stream whose consumer the broker has closed, or whose broker no longer responds."""
        consumer, is_new = self._consumer, time.monotonic() - self._opened < self._receiver.poll_seconds
        if self._stream is None or consumer is None or is_new:
            return
        try:
            if not consumer.is_closed():
                return
        except HeadraceError:
            pass
        self.end_stream()

    def _run(self) -> None:
        receiver = self._receiver
        try:
            while not receiver.stopping.is_set():
                receiver.retried(self._receive)
        except StopRequested:
            pass
        except HeadraceError as error:
            receiver.fail(error)
        except Exception as error:
            receiver.fail(HeadraceError(f"{type(error).__name__}: {error}", hint="Report it as a bug in Headrace."))
        finally:
            self._stream = None

    def _receive(self) -> None:
        """Receive until the stream ends. An error after a message is reported here, and is not one more of a row."""
        received = 0
        try:
            stream, consumer = self._open()
            for message in stream:
                if self._receiver.stopping.is_set():
                    break  # it is delivered again
                self._store(consumer, message)
                received += 1
            if not self._wanted_end:
                raise BrokerUnreachable(f"The broker ended the stream of {self._physical}.")
        except (grpc.RpcError, TransientError) as error:
            if self._wanted_end or self._receiver.stopping.is_set():
                return
            failure = self._failure(error)
            if not received or not isinstance(failure, TransientError):
                raise failure from None
            self._pause(failure)
        finally:
            if (stream := self._stream) is not None:
                self._stream, self._ended = None, time.monotonic()
                stream.cancel()

    def _open(self) -> tuple[Any, TopicConsumer]:
        receiver, self._wanted_end = self._receiver, False
        try:
            subscription = receiver.danube.subscription_of(receiver.spec.pipeline, self.topic)
            consumer = TopicConsumer(receiver.client, self._physical, subscription, receiver.consumer_name)
            stream = consumer.subscribe(receiver.danube.subscription_type, receiver.danube.key_filters)
        except SourceTopicGone as gone:
            if self._consumer is not None and time.monotonic() - self._ended < _GONE_SECONDS:
                raise BrokerUnreachable(gone.message) from None
            raise
        if self._consumer is None:
            receiver.report_listening(self._physical)
        self._stream, self._consumer, self._opened = stream, consumer, time.monotonic()
        if receiver.stopping.is_set():
            stream.cancel()
        return stream, consumer

    def _failure(self, error: grpc.RpcError | TransientError) -> HeadraceError:
        return error if isinstance(error, HeadraceError) else self._receiver.client.error(error, self._physical)

    def _pause(self, failure: HeadraceError) -> None:
        seconds = self._receiver.policy.initial_interval
        self._receiver.report_wait(failure.name, seconds, failure)
        self._receiver.stopping.wait(seconds)

    def _store(self, consumer: TopicConsumer, message: Any) -> None:
        """Append a message to the spool; its acknowledgement follows when it is durable."""
        schema = self._receiver.schema_of(message)
        identity = identity_of(message)
        incoming = Incoming(
            self._source_topic, record_of(message, self._partition, schema), identity.producer, identity.sequence
        )
        self._receiver.acknowledger.begin()
        try:
            future = self._append(incoming)
        except BaseException:
            self._receiver.acknowledger.end()
            raise
        future.add_done_callback(partial(self._stored, consumer, message))

    def _append(self, incoming: Incoming) -> Future[Any]:
        """Wait for room. The stream is not read meanwhile, and ends before the broker counts failed deliveries."""
        began = time.monotonic()
        reported = False
        while True:
            try:
                return self._spool.append(incoming)
            except SpoolFull as full:
                if not reported:
                    self._receiver.report_wait(full.name, full.retry_after, full)
                    reported = True
                if time.monotonic() - began > self._receiver.patience and not self._wanted_end:
                    self.end_stream()
                if self._receiver.stopping.wait(min(full.retry_after, 0.25)):
                    raise StopRequested("Stopped while the spool is full.") from full

    def _stored(self, consumer: TopicConsumer, message: Any, future: Future[Any]) -> None:
        if (error := future.exception()) is None:
            self._receiver.acknowledger.put(consumer, message)
            return
        self._receiver.acknowledger.end()
        if self._spool.failure is not None:
            self._receiver.fail(self._spool.failure)
        else:
            failure = error if isinstance(error, HeadraceError) else HeadraceError(str(error))
            self._receiver.report_wait(type(error).__name__, 0.0, failure)
            self.end_stream()  # to receive it again


class _Acknowledger:
    """Sends acknowledgements. One that fails is sent again when the broker has delivered the message again."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[TopicConsumer, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-danube-ack", daemon=True)
        self._pending = 0  # messages that are being stored or acknowledged
        self._changed = threading.Condition()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self) -> None:
        """Count a message that is going to be stored and acknowledged."""
        with self._changed:
            self._pending += 1

    def end(self) -> None:
        """Count it as acknowledged, or as one that will be delivered again."""
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()

    def wait(self, within: float) -> None:
        """Wait until no message is being stored or acknowledged."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending, within)

    def put(self, consumer: TopicConsumer, message: Any) -> None:
        """Acknowledge a message soon."""
        self._queue.put((consumer, message))

    def stop(self) -> None:
        """Send what is waiting, then end."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        sent: deque[grpc.Future] = deque()
        while (item := self._queue.get()) is not None:
            consumer, message = item
            try:
                sent.append(consumer.acknowledge(message))
                sent[-1].add_done_callback(lambda _: self.end())
            except (grpc.RpcError, ValueError, HeadraceError):  # ValueError: the channel is closed
                self.end()
            while sent and (sent[0].done() or len(sent) > _ACKS):
                _finish(sent.popleft())
        for future in sent:
            _finish(future)


def _finish(future: grpc.Future) -> None:
    with suppress(grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError):
        future.result(timeout=_CLOSE_SECONDS)


def _policy(spec: Spec) -> Retry:
    unreachable = spec.retry.unreachable
    return Retry(
        unreachable.initial_interval.total_seconds(),
        unreachable.max_interval.total_seconds(),
        spec.retry.access_denied,
        spec.retry.conflict,
    )
