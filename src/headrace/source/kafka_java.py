"""Kafka's Java clients with the methods of librdkafka's that the source uses: librdkafka is built without Kerberos."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from headrace.errors import AuthenticationFailed, BrokerUnreachable, HeadraceError

if TYPE_CHECKING:
    from headrace.runtime.java_gateway import JavaGateway

T = TypeVar("T")

_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_IO = ("java.io.IOException", "java.nio.channels.UnresolvedAddressException")
_LOGIN = "javax.security.auth.login.LoginException"
_LOGIN_TEXTS = {
    "Unable to obtain password from user": "the keytab does not exist, cannot be read, or has no key of the principal",
    "Unable to obtain Principal Name for authentication": "there are no tickets",
}
_CHECK_LOGIN = "Check principal and keytab of source.kafka.sasl with `kinit -kt KEYTAB PRINCIPAL`; see krb5.conf."
_CHECK_REALM = "Check the addresses of the realm in krb5.conf."
_REQUEST_MS = 10_000
_TIMESTAMP_TYPES = {"CREATE_TIME": TIMESTAMP_CREATE_TIME, "LOG_APPEND_TIME": TIMESTAMP_LOG_APPEND_TIME}
_TOO_LATE = 7  # Kafka's REQUEST_TIMED_OUT


class JavaClients:
    """Clients in a JVM of their own, which is started when it is first needed, and again if it has ended."""

    def __init__(self, settings: Callable[[], Mapping[str, str]]) -> None:
        """`settings`: of Kafka's Java clients, with the brokers."""
        self._settings = settings
        self._gateway: JavaGateway | None = None
        self._lock = threading.Lock()

    def admin(self) -> JavaAdmin:
        """An admin client; KafkaException if the login fails."""
        jvm = self._jvm()
        own = {"default.api.timeout.ms": str(_REQUEST_MS), "request.timeout.ms": str(_REQUEST_MS // 2)}
        settings = _java_map(jvm, {**self._settings(), **own})
        with java_errors(jvm):
            return JavaAdmin(jvm, jvm.org.apache.kafka.clients.admin.AdminClient.create(settings))

    def consumer(self, isolation: str) -> JavaConsumer:
        """A consumer for assigned partitions that commits no offsets."""
        jvm = self._jvm()
        own = {
            "enable.auto.commit": "false",
            "auto.offset.reset": "latest",
            "isolation.level": isolation,
            "fetch.max.wait.ms": "20",
            "max.poll.records": "100",  # each is some calls into Java
            "default.api.timeout.ms": str(_REQUEST_MS),
            "key.deserializer": _BYTES,
            "value.deserializer": _BYTES,
        }
        settings = _java_map(jvm, {**self._settings(), **own})
        with java_errors(jvm):
            return JavaConsumer(jvm, jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings))

    def _jvm(self) -> Any:
        from headrace.runtime.java_gateway import JavaGateway

        with self._lock:
            if self.has_ended():
                self.close()
            self._gateway = self._gateway or JavaGateway.start()
            return self._gateway.jvm

    def call(self, request: Callable[[], T]) -> T:
        """The result of a request, with its errors as those of librdkafka."""
        with java_errors(self._jvm()):
            return request()

    def has_ended(self) -> bool:
        """Whether the JVM, and with it all clients, has ended."""
        return self._gateway is not None and self._gateway.has_ended()

    def close(self) -> None:
        """End the JVM."""
        if self._gateway is not None:
            self._gateway.close()
            self._gateway = None


@dataclass(frozen=True)
class JavaFuture:
    """A response that Java waits for."""

    jvm: Any
    future: Any
    convert: Callable[[Any], Any]

    def result(self, timeout: float) -> Any:
        """The response; TimeoutError if it is not there in time, KafkaException for an error of the broker."""
        with java_errors(self.jvm):
            milliseconds = self.jvm.java.util.concurrent.TimeUnit.MILLISECONDS
            return self.convert(self.future.get(int(timeout * 1000), milliseconds))


class JavaAdmin:
    """The methods of `confluent_kafka.admin.AdminClient` that the source uses."""

    def __init__(self, jvm: Any, admin: Any) -> None:
        self._jvm, self._admin = jvm, admin
        self._package = jvm.org.apache.kafka.clients.admin
        self._places: dict[tuple[str, int], Any] = {}  # topic partitions in Java

    def poll(self, timeout: float) -> None:
        """Nothing: errors are those of responses."""

    def describe_cluster(self, request_timeout: float) -> JavaFuture:
        """Whether the cluster responds."""
        return self._future(self._admin.describeCluster().clusterId(), str)

    def list_topics(self, timeout: float) -> Any:
        """An object with the names of topics."""
        names = self._future(self._admin.listTopics().names(), set).result(timeout)
        return SimpleNamespace(topics=dict.fromkeys(names))

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, JavaFuture]:
        """Id and partitions of each topic."""
        names = _java_list(self._jvm, topics.topic_names)
        futures = self._admin.describeTopics(names).topicNameValues()
        return {name: self._future(futures[name], _description) for name in topics.topic_names}

    def list_offsets(
        self, query: Mapping[TopicPartition, OffsetSpec], isolation_level: IsolationLevel, request_timeout: float
    ) -> dict[TopicPartition, JavaFuture]:
        """Offsets by time, or the first and last ones."""
        specs = self._jvm.java.util.HashMap()
        for place, spec in query.items():
            specs.put(self._place(place), self._offset_spec(spec))
        level = self._jvm.org.apache.kafka.common.IsolationLevel
        chosen = level.READ_COMMITTED if isolation_level == IsolationLevel.READ_COMMITTED else level.READ_UNCOMMITTED
        response = self._admin.listOffsets(specs, self._package.ListOffsetsOptions(chosen))
        return {place: self._future(response.partitionResult(self._place(place)), _offset) for place in query}

    def describe_consumer_groups(self, groups: Sequence[str], request_timeout: float) -> dict[str, JavaFuture]:
        """Members of groups."""
        futures = self._admin.describeConsumerGroups(_java_list(self._jvm, groups)).describedGroups()
        return {group: self._future(futures[group], _members) for group in groups}

    def alter_consumer_group_offsets(
        self, request: Sequence[ConsumerGroupTopicPartitions], request_timeout: float
    ) -> dict[str, JavaFuture]:
        """Commit the offsets of groups."""
        return {each.group_id: self._committed(each) for each in request}

    def _committed(self, request: ConsumerGroupTopicPartitions) -> JavaFuture:
        offsets = self._jvm.java.util.HashMap()
        metadata = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata
        for place in request.topic_partitions:
            offsets.put(self._place(place), metadata(place.offset))
        future = self._admin.alterConsumerGroupOffsets(request.group_id, offsets).all()
        return self._future(future, lambda _: request)  # `all` fails with the error of any partition

    def _offset_spec(self, spec: OffsetSpec) -> Any:
        if spec is OffsetSpec.earliest():
            return self._package.OffsetSpec.earliest()
        if spec is OffsetSpec.latest():
            return self._package.OffsetSpec.latest()
        return self._package.OffsetSpec.forTimestamp(spec._value)

    def _place(self, place: TopicPartition) -> Any:
        key = (place.topic, place.partition)
        if key not in self._places:
            self._places[key] = self._jvm.org.apache.kafka.common.TopicPartition(*key)
        return self._places[key]

    def _future(self, future: Any, convert: Callable[[Any], Any]) -> JavaFuture:
        return JavaFuture(self._jvm, future, convert)


def _description(description: Any) -> Any:
    partitions = [SimpleNamespace(id=part.partition()) for part in description.partitions()]
    return SimpleNamespace(topic_id=description.topicId().toString(), partitions=partitions)


def _offset(info: Any) -> Any:
    return SimpleNamespace(offset=info.offset())


def _members(description: Any) -> Any:
    return SimpleNamespace(members=list(description.members()))


@dataclass
class JavaMessage:
    """A record, or the end of a partition, with the methods of `confluent_kafka.Message`."""

    place: tuple[str, int]
    record: Any = None  # None: the end of the partition

    def error(self) -> KafkaError | None:
        """The end of the partition."""
        return KafkaError(KafkaError._PARTITION_EOF) if self.record is None else None

    def topic(self) -> str:
        """Topic."""
        return self.place[0]

    def partition(self) -> int:
        """Partition."""
        return self.place[1]

    def offset(self) -> int:
        """Offset."""
        return int(self.record.offset())

    def timestamp(self) -> tuple[int, int]:
        """Type and milliseconds."""
        kind = _TIMESTAMP_TYPES.get(self.record.timestampType().name(), TIMESTAMP_NOT_AVAILABLE)
        return kind, int(self.record.timestamp())

    def key(self) -> bytes | None:
        """Key."""
        return _bytes(self.record.key())

    def value(self) -> bytes | None:
        """Value."""
        return _bytes(self.record.value())

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Headers."""
        return [(header.key(), _bytes(header.value())) for header in self.record.headers().toArray()]


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


@dataclass
class JavaConsumer:
    """The methods of `confluent_kafka.Consumer` that the source uses."""

    jvm: Any
    consumer: Any
    _ends: dict[tuple[str, int], tuple[Any, int]] = field(default_factory=dict)  # of partitions that have not ended
    _received: list[JavaMessage] = field(default_factory=list)

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions from their offsets."""
        self._received.clear()
        with java_errors(self.jvm):
            new = self.jvm.org.apache.kafka.common.TopicPartition
            starts = {(each.topic, each.partition): (new(each.topic, each.partition), each.offset) for each in places}
            assigned = _java_list(self.jvm, [place for place, _ in starts.values()])
            self.consumer.assign(assigned)
            for place, offset in starts.values():
                self.consumer.seek(place, offset)
            ends = self.consumer.endOffsets(assigned)
            self._ends = {each: (place, int(ends[place])) for each, (place, _) in starts.items()}

    def unassign(self) -> None:
        """Read nothing."""
        self._ends.clear()
        self._received.clear()
        with java_errors(self.jvm):
            self.consumer.unsubscribe()

    def poll(self, timeout: float) -> JavaMessage | None:
        """The next message; None if there is none in time."""
        return next(iter(self.consume(1, timeout)), None)

    def consume(self, count: int, timeout: float) -> list[JavaMessage]:
        """Up to so many messages that are there within the time."""
        deadline = time.monotonic() + timeout
        while len(self._received) < count:
            remaining = max(0.0, deadline - time.monotonic())
            self._fetch(remaining)
            if not remaining:
                break
        messages, self._received = self._received[:count], self._received[count:]
        return messages

    def _fetch(self, seconds: float) -> None:
        with java_errors(self.jvm):
            records = self.consumer.poll(self.jvm.java.time.Duration.ofMillis(int(seconds * 1000)))
            for record in _iterate(records.iterator()):
                self._received.append(JavaMessage((record.topic(), record.partition()), record))
            for each, (place, end) in list(self._ends.items()):
                if self.consumer.position(place) >= end:
                    del self._ends[each]
                    self._received.append(JavaMessage(each))

    def close(self) -> None:
        """Close the connections."""
        with suppress(KafkaException), java_errors(self.jvm):
            self.consumer.close()


@contextmanager
def java_errors(jvm: Any) -> Iterator[None]:
    """Raise errors of Java as those of librdkafka."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception
        if _is(jvm, cause, "java.util.concurrent.TimeoutException"):
            raise TimeoutError from None
        raise _error(jvm, cause) from None
    except (Py4JError, OSError):
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the JVM of Kafka's client has ended")) from None


def _error(jvm: Any, exception: Any) -> KafkaException | HeadraceError:
    """The error of the deepest exception that has one. A failed Kerberos login is not an error of the broker."""
    chain = list(_causes(exception))
    text = _text(chain[-1])
    if any(_is(jvm, each, _LOGIN) for each in chain):
        if any(_is(jvm, each, kind) for each in chain for kind in _IO):
            return BrokerUnreachable(f"The KDC does not respond to the Kerberos login: {text}.", hint=_CHECK_REALM)
        return AuthenticationFailed(f"The Kerberos login failed: {_LOGIN_TEXTS.get(text, text)}.", hint=_CHECK_LOGIN)
    return KafkaException(_broker_error(jvm, chain, text))


def _broker_error(jvm: Any, chain: Sequence[Any], text: str) -> KafkaError:
    errors = jvm.org.apache.kafka.common.protocol.Errors
    for each in reversed(chain):
        code = int(errors.forException(each).code())
        if code == _TOO_LATE:
            return KafkaError(KafkaError._TRANSPORT, _text(each))
        if code > 0:
            return KafkaError(code, _text(each))
    return KafkaError(KafkaError._TRANSPORT, text)


def _causes(exception: Any) -> Iterable[Any]:
    while exception is not None:
        yield exception
        exception = exception.getCause()


def _text(exception: Any) -> str:
    return str(exception.getMessage() or exception.getClass().getSimpleName()).strip().rstrip(".")


def _is(jvm: Any, exception: Any, name: str) -> bool:
    return bool(jvm.java.lang.Class.forName(name).isInstance(exception))


def _iterate(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()


def _java_map(jvm: Any, values: Mapping[str, str]) -> Any:
    java = jvm.java.util.HashMap()
    for key, value in values.items():
        java.put(key, value)
    return java


def _java_list(jvm: Any, values: Iterable[Any]) -> Any:
    java = jvm.java.util.ArrayList()
    for value in values:
        java.add(value)
    return java
