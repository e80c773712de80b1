"""Kafka as the destination of received records: a request is confirmed when all replicas in sync have its records."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.errors import (
    BrokerUnreachable,
    HeadraceError,
    PermissionDenied,
    QueueFull,
    SourceTopicGone,
    UsageError,
)
from headrace.source.http.delivered import Delivered, DeliveredRequests
from headrace.source.kafka import silent_logger, topic_gone
from headrace.source.spool.window import RequestKey, check_fingerprint
from headrace.source.spool.writer import Incoming, SpoolCounts, check_incoming, request_key

_BATCHES, _SINGLE = "batches", "single"  # the producers: of batches, and of batches with one record
_OVERHEAD = 200  # bytes of a record in the producer beside its value
_UNKNOWN_TOPIC_SECONDS = 3  # until a topic that the brokers do not have is an error
_CLOSE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_PROBE_SECONDS = 1.0
_MOST = 1_000_000_000  # bytes of a message, the maximum of librdkafka
_PERMISSION = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_DOWN = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._MSG_TIMED_OUT}
# The broker refuses a batch because of one record in it, which may be of another request.
_REFUSED = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD}


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    """Limits of a destination."""

    record_bytes: int  # of a value; keys and headers come in addition
    waiting_bytes: int = 64_000_000  # of records that are not confirmed yet
    max_requests: int = 100_000
    request_age: float = 3600.0  # seconds
    delivery_seconds: int = 10  # until a record that was not confirmed is an error


@dataclass(slots=True)
class _Request:
    """A request, some of whose records are not confirmed yet."""

    incoming: Incoming
    size: int
    partitions: array[int]
    offsets: array[int]
    missing: int
    errors: dict[int, KafkaError] = field(default_factory=dict)  # by position
    one_by_one: bool = False  # whether refused records were sent again, each in a batch of its own
    future: Future[Delivered] = field(default_factory=Future)


class KafkaDestination:
    """Sends records to topics that exist. All methods are thread-safe."""

    def __init__(
        self, brokers: str, settings: Mapping[str, Any], probe: Callable[[], object], limits: KafkaLimits
    ) -> None:
        """`settings`: the connection for librdkafka; `probe` raises the error while the brokers are not available."""
        self._brokers, self._settings, self._probe, self._limits = brokers, dict(settings), probe, limits
        self._known = DeliveredRequests(limits.max_requests, limits.request_age)
        self._lock = threading.Lock()
        self._pending: dict[RequestKey, _Request] = {}
        self._pending_bytes = self._pending_records = 0
        self._counts = SpoolCounts()
        self._closing = False
        self._failure: HeadraceError | None = None
        self._unavailable: HeadraceError | None = None
        self._suspected, self._closed = threading.Event(), threading.Event()
        self._ended: set[str] = set()  # producers with a fatal error
        self._producers = {_BATCHES: self._new_producer(_BATCHES)}
        if not self._look():
            self._suspected.set()
        self._threads = [
            threading.Thread(target=run, name=f"headrace-kafka-{run.__name__.strip('_')}", daemon=True)
            for run in (self._deliveries, self._probing)
        ]
        for thread in self._threads:
            thread.start()

    # ---- receivers ----

    def append(self, incoming: Incoming) -> Future[Delivered]:
        """Send the records; the future completes when all are confirmed, or refused as too large.

        QueueFull if too many records wait, SequenceReused if the sequence had other content, the error of the brokers
        while they are not available. After an error of the future, Kafka may have some of the records.
        """
        check_incoming(incoming)
        count = incoming.records.num_rows
        empty = array("i", bytes(4 * count)), array("q", bytes(8 * count))
        request = _Request(incoming, incoming.records.nbytes + _OVERHEAD * count, *empty, count)
        request.future.set_running_or_notify_cancel()
        with self._lock:
            self._check_open()
            if (earlier := self._earlier(request)) is not None:
                self._counts = replace(self._counts, duplicates=self._counts.duplicates + 1)
                return earlier
            self._check_available(request.size)
            self._pending_bytes += request.size
            self._pending_records += count
            if (key := request_key(incoming)) is not None:
                self._pending[key] = request
        self._produce(_BATCHES, request, range(count))
        return request.future

    def check_room(self) -> None:
        """Raise the error that `append` would raise now."""
        with self._lock:
            self._check_open()
            self._check_available(0)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise UsageError("The receiver is stopping.")

    def _check_available(self, size: int) -> None:
        if self._unavailable is not None:
            raise self._unavailable
        if self._pending_bytes and self._pending_bytes + size > self._limits.waiting_bytes:
            self._counts = replace(self._counts, full=self._counts.full + 1)
            raise QueueFull(
                f"{self._pending_bytes:,} bytes wait for the broker at {self._brokers}.",
                hint="Send the records again later.",
            )

    def _earlier(self, request: _Request) -> Future[Delivered] | None:
        """The result of the same request, if it was made before."""
        key, fingerprint = request_key(request.incoming), request.incoming.fingerprint
        if key is None:
            return None
        if (pending := self._pending.get(key)) is not None:
            check_fingerprint(key, pending.incoming.fingerprint, fingerprint)
            return _follow(pending.future)
        if (delivered := self._known.find(key, fingerprint, time.monotonic())) is None:
            return None
        future: Future[Delivered] = Future()
        future.set_running_or_notify_cancel()
        future.set_result(delivered)
        return future

    # ---- state ----

    @property
    def kind(self) -> str:
        """What receives the records."""
        return "kafka"

    @property
    def counts(self) -> SpoolCounts:
        """What was confirmed since the start."""
        return self._counts

    @property
    def failure(self) -> HeadraceError | None:
        """An error of the thread that confirms requests; not of brokers, which may become available again."""
        return self._failure

    @property
    def stored_bytes(self) -> int:
        """Bytes that wait for the broker."""
        return self._pending_bytes

    def stored_records(self) -> int:
        """Number of records that wait for the broker."""
        return self._pending_records

    def close(self) -> None:
        """Wait a few seconds for the records that are being sent, then close."""
        with self._lock:
            self._closing = True
        for producer in list(self._producers.values()):
            if producer.flush(_CLOSE_SECONDS):
                producer.purge()
                producer.flush(1)
        self._closed.set()
        self._suspected.set()
        for thread in self._threads:
            thread.join(1)  # a question to brokers that do not answer takes longer

    # ---- the producer ----

    def _new_producer(self, name: str) -> Any:
        settings = {
            "enable.idempotence": True,  # the retries of the producer do not duplicate records
            "acks": "all",
            "partitioner": "murmur2_random",  # as Java producers: records of a key are in one partition
            "allow.auto.create.topics": False,
            "message.timeout.ms": self._limits.delivery_seconds * 1000,
            "topic.metadata.propagation.max.ms": _UNKNOWN_TOPIC_SECONDS * 1000,
            "message.max.bytes": min(_MOST, max(1_000_000, self._limits.record_bytes + 1_000_000)),
            "queue.buffering.max.messages": 0,  # the limit is `waiting_bytes`
            "queue.buffering.max.kbytes": 2_097_151,
            "error_cb": partial(self._on_error, name),
            **({"batch.num.messages": 1} if name == _SINGLE else {}),
        }
        return Producer({**self._settings, **settings}, logger=silent_logger())

    def _produce(self, name: str, request: _Request, positions: Iterable[int]) -> None:
        producer = self._producers[name]
        columns = _columns(request.incoming.records)
        for at in positions:
            key, value, headers, timestamp = (column[at] for column in columns)
            confirm = partial(self._confirm, request, at)
            try:
                producer.produce(
                    request.incoming.topic, value, key, headers=headers, timestamp=timestamp, on_delivery=confirm
                )
            except KafkaException as error:
                confirm(error.args[0], None)
            except BufferError:
                confirm(KafkaError(KafkaError._QUEUE_FULL), None)

    def _confirm(self, request: _Request, at: int, error: KafkaError | None, message: Any) -> None:
        """The delivery report of a record."""
        with self._lock:
            if error is None:
                request.partitions[at], request.offsets[at] = message.partition(), message.offset()
            else:
                request.errors[at] = error
            request.missing -= 1
            if request.missing:
                return
        self._complete(request)

    def _complete(self, request: _Request) -> None:
        """All delivery reports of a request are there: confirm it, fail it, or send refused records again."""
        codes = {error.code() for error in request.errors.values()}
        if codes & _REFUSED and codes <= _REFUSED and not request.one_by_one:
            refused, request.errors, request.one_by_one = sorted(request.errors), {}, True
            request.missing = len(refused)
            if _SINGLE not in self._producers:
                self._producers[_SINGLE] = self._new_producer(_SINGLE)
            self._produce(_SINGLE, request, refused)
            return
        failed = [each for each in request.errors.values() if each.code() != KafkaError.MSG_SIZE_TOO_LARGE]
        if failed:
            error = min(failed, key=lambda each: each.code() in _REFUSED)  # what a client can send again comes first
            self._release(request)
            if error.code() in _DOWN:
                self._suspected.set()
            request.future.set_exception(self._error(error, request.incoming.topic))
            return
        values = request.incoming.records.column("value")
        too_large = {at: len(values[at].as_py()) for at in sorted(request.errors)}
        delivered = Delivered(request.partitions, request.offsets, too_large)
        self._release(request, delivered)
        request.future.set_result(delivered)

    def _release(self, request: _Request, delivered: Delivered | None = None) -> None:
        with self._lock:
            self._pending_bytes -= request.size
            self._pending_records -= request.incoming.records.num_rows
            if (key := request_key(request.incoming)) is not None:
                self._pending.pop(key, None)
            if delivered is None:
                return
            if key is not None:
                self._known.add(key, request.incoming.fingerprint, delivered, time.monotonic())
            counts = self._counts
            self._counts = replace(
                counts,
                records=counts.records + delivered.stored,
                bytes=counts.bytes + request.incoming.records.nbytes,
                requests=counts.requests + 1,
            )

    def _error(self, error: KafkaError, topic: str) -> HeadraceError:
        """The error of a request that was not confirmed."""
        code = error.code()
        if code in _PERMISSION:
            return PermissionDenied(
                f"The broker at {self._brokers} denies writing to {topic}: {error.str()}.",
                hint="Grant WRITE and DESCRIBE on the topic.",
            )
        if code in _GONE:
            return topic_gone(topic, self._brokers)
        if code in _REFUSED:
            return UsageError(
                f"The broker at {self._brokers} rejects a record for {topic}: {error.str()}.",
                hint="A compacted topic needs a key: send Headrace-Key.",
            )
        return BrokerUnreachable(f"The broker at {self._brokers} did not confirm the records: {error.str()}.")

    def _on_error(self, name: str, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._ended.add(name)
        self._suspected.set()

    # ---- threads ----

    def _deliveries(self) -> None:
        try:
            while not self._closed.is_set():
                self._poll()
        except Exception as error:
            self._failure = HeadraceError(
                f"{type(error).__name__}: {error}", hint="This is a bug in Headrace; report it."
            )

    def _poll(self) -> None:
        """Call the delivery reports; replace a producer after a fatal error, with which it takes no records."""
        for name, producer in list(self._producers.items()):
            producer.poll(_POLL_SECONDS if name == _BATCHES else 0)
        for name in list(self._ended):
            ended, self._producers[name] = self._producers[name], self._new_producer(name)
            self._ended.discard(name)
            ended.purge()
            ended.flush(1)

    def _probing(self) -> None:
        """After an error, ask the brokers until they answer; requests are refused meanwhile."""
        while not self._closed.is_set():
            self._suspected.wait()
            self._suspected.clear()
            while not self._closed.is_set() and not self._look():
                self._closed.wait(_PROBE_SECONDS)

    def _look(self) -> bool:
        """Whether the brokers are available now."""
        try:
            self._probe()
        except SourceTopicGone:  # its requests say so; other topics are there
            self._unavailable = None
        except HeadraceError as error:
            self._unavailable = error
            return False
        self._unavailable = None
        return True


def _columns(records: pa.RecordBatch) -> tuple[list[Any], ...]:
    """Keys, values, headers and timestamps in milliseconds, as the producer takes them."""
    headers = [[(each["key"], each["value"]) for each in row or ()] for row in records.column("headers").to_pylist()]
    micros = records.column("timestamp").cast(pa.int64()).to_pylist()
    keys, values = records.column("key").to_pylist(), records.column("value").to_pylist()
    return keys, values, headers, [each // 1000 for each in micros]


def _follow(first: Future[Delivered]) -> Future[Delivered]:
    """A future with the result of a request that is not confirmed yet, as a duplicate."""
    second: Future[Delivered] = Future()
    second.set_running_or_notify_cancel()

    def done(future: Future[Delivered]) -> None:
        if (error := future.exception()) is not None:
            second.set_exception(error)
        else:
            second.set_result(replace(future.result(), duplicate=True))

    first.add_done_callback(done)
    return second
