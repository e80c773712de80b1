"""The source `kafka`: Spark's connector reads records, librdkafka's admin client reads topics and offsets.

With Kerberos, Kafka's Java client reads topics and offsets, too (`source/kafka_java.py`).
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from headrace.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    HeadraceError,
    PermissionDenied,
    SourceTopicGone,
    UsageError,
)
from headrace.source.base import Bounds, Lag, Offsets, OpenTransaction, Partition, ends_of, select_record_columns
from headrace.source.kafka_group import GroupOffsets
from headrace.source.kafka_java import JavaClients
from headrace.source.kafka_token import Tokens
from headrace.source.ranges import Range, one_per_partition
from headrace.source.record_frame import RecordFrame
from headrace.spec import Spec
from headrace.spec.sasl import KERBEROS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_TIMEOUT = 15.0  # seconds
_POLL_SECONDS = 0.25
_DOWN = 1.0  # seconds without any broker before an error: an idle connection that was closed is reopened at once
_AUTHENTICATION = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
# TLS 1.3: a broker verifies the client certificate after the handshake and rejects it by closing the connection.
_ALERT = re.compile(r"SSL alert number (?:40|4[2-9]|116)\b")
_PERMISSION = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_CONNECTION = {KafkaError._TRANSPORT, KafkaError._RESOLVE}
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}

# Spark requests the offsets from the broker after every poll, so polls are large; but its heap has the last poll and
# the next fetch of every partition, so they are limited. At the end of a partition it waits for the previous fetch.
CONSUMER = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "kafka.fetch.max.wait.ms": "20",
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    "kafka.receive.buffer.bytes": str(1024 * 1024),
    "kafkaConsumer.pollTimeoutMs": "30000",
    "fetchOffset.numRetries": "2",
    "failOnDataLoss": "true",
    "includeHeaders": "true",
}


def topic_gone(topic: str, brokers: str, similar: str = ".") -> SourceTopicGone:
    """Error for a topic that the broker does not have; `similar` ends the sentence."""
    return SourceTopicGone(
        f"The topic '{topic}' does not exist at {brokers}{similar}",
        hint="Create the topic, or remove it from the spec; no offset was reset.",
        topic=topic,
    )


class KafkaSource:
    """The topics of a spec on a Kafka cluster; assigns partitions without a consumer group."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.kafka = spec.kafka
        self._key = spec.source.kafka_key
        sasl = self.kafka.sasl
        self._tokens = Tokens(sasl, self.kafka.brokers) if sasl is not None and sasl.has_tokens else None
        self._java = JavaClients(self._java_settings) if sasl is not None and sasl.mechanism == KERBEROS else None
        self._refused = threading.Event()
        self._refusal = ""
        self._down: float | None = None  # since when no broker accepts a connection
        self._cause = ""
        self._admin: Any = None
        self._consumers: dict[str, Any] = {}  # by isolation
        self._offsets_of_group = GroupOffsets(self.kafka.group, self._group_client) if self.kafka.group else None
        # Spark keeps the consumers of a group id between batches. Partitions are assigned, so there is no group.
        self._reader_group = f"headrace-{spec.pipeline}-{uuid.uuid4().hex[:8]}"

    # ---- topics and offsets ----

    def topics(self) -> dict[str, str]:
        """Topic ids by name; SourceTopicGone for a topic that does not exist."""
        return {name: str(self._result(future, name).topic_id) for name, future in self._described().items()}

    def bounds(self) -> dict[Partition, Bounds]:
        """Earliest and latest (for read_committed: last stable) offset of every partition."""
        return self._bounds(self._partitions())

    def latest(self, partitions: Sequence[Partition]) -> Offsets:
        """Latest (for read_committed: last stable) offsets of these partitions."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()))

    def _bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds]:
        futures = [  # both requests are sent before the first response
            self._offset_futures(dict.fromkeys(partitions, spec))
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        ]
        earliest, latest = map(self._offset_results, futures)
        return {partition: Bounds(earliest[partition], latest[partition]) for partition in partitions}

    def start(self, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """Start offsets from `source.kafka.start`."""
        start = self.kafka.start
        if isinstance(start, str):
            return {each: part.latest if start == "latest" else part.earliest for each, part in bounds.items()}
        if start.timestamp is not None:
            return self._offsets_at(start.timestamp, bounds)
        return self._explicit(start.offsets_by_topic(self._names()), bounds)

    def _offsets_at(self, timestamp: datetime, bounds: Mapping[Partition, Bounds]) -> Offsets:
        milliseconds = int(timestamp.timestamp() * 1000)
        offsets = self._offsets(dict.fromkeys(bounds, OffsetSpec.for_timestamp(milliseconds)))
        return {each: bounds[each].latest if offset < 0 else offset for each, offset in offsets.items()}

    def _explicit(self, offsets: Mapping[str, Mapping[int, int]], bounds: Mapping[Partition, Bounds]) -> Offsets:
        for topic, partitions in offsets.items():
            for partition, offset in partitions.items():
                if (topic, partition) not in bounds:
                    raise UsageError(f"start.offsets: the partition {topic}/{partition} does not exist.")
                earliest, latest = bounds[topic, partition].earliest, bounds[topic, partition].latest
                if not earliest <= offset <= latest:
                    raise UsageError(
                        f"start.offsets: {topic}/{partition} has no offset {offset}; "
                        f"the broker has {earliest} to {latest}.",
                        hint="Set source.kafka.start.offsets to an offset in that range.",
                    )
        return {
            (topic, partition): offsets.get(topic, {}).get(partition, part.earliest)
            for (topic, partition), part in bounds.items()
        }

    def _names(self) -> list[str]:
        if self.kafka.topics:
            return list(self.kafka.topics)
        pattern = re.compile(self.kafka.pattern or "")
        return [name for name in self._listed() if pattern.search(name)]

    def _listed(self) -> list[str]:
        """Every topic except Kafka's internal ones."""
        # `list_topics` reports a refused connection only after its timeout; this request reports it at once.
        self._result(self._request(lambda admin: admin.describe_cluster(request_timeout=_TIMEOUT)), "")
        names = self._request(lambda admin: admin.list_topics(timeout=_TIMEOUT)).topics
        return sorted(name for name in names if not name.startswith("__"))

    def _partitions(self) -> list[Partition]:
        return [
            (name, partition)
            for name, future in sorted(self._described().items())
            for partition in sorted(part.id for part in self._result(future, name).partitions)
        ]

    def _described(self) -> dict[str, Any]:
        names = TopicCollection(self._names())
        return self._request(lambda admin: admin.describe_topics(names, request_timeout=_TIMEOUT))

    def _offsets(self, specs: Mapping[Partition, Any], isolation: str = "") -> Offsets:
        return self._offset_results(self._offset_futures(specs, isolation))

    def _offset_futures(self, specs: Mapping[Partition, Any], isolation: str = "") -> dict[Partition, Any]:
        """Send a request for offsets."""
        if not specs:
            return {}
        level = IsolationLevel.READ_COMMITTED
        if (isolation or self.kafka.isolation) == "read_uncommitted":
            level = IsolationLevel.READ_UNCOMMITTED
        query = {TopicPartition(topic, partition): spec for (topic, partition), spec in specs.items()}
        futures = self._request(
            lambda admin: admin.list_offsets(query, isolation_level=level, request_timeout=_TIMEOUT)
        )
        return {(at.topic, at.partition): future for at, future in futures.items()}

    def _offset_results(self, futures: Mapping[Partition, Any]) -> Offsets:
        return {each: self._result(future, each[0]).offset for each, future in futures.items()}

    # ---- requests and errors ----

    def _request(self, call: Callable[[Any], T]) -> T:
        if self._admin is not None:
            self._admin.poll(0)
        self._down, self._cause = None, ""  # of an earlier request
        if self._tokens is not None:
            self._tokens.current()  # for its error, which librdkafka would replace by its own
            if self._tokens.has_expired():
                self._admin = None  # it asks for a new token only after a while
                self._refused.clear()
        try:
            client = self._client()
            return call(client) if self._java is None else self._java.call(lambda: call(client))
        except KafkaException as error:
            raise self._error(error.args[0], "") from None

    def _result(self, future: Any, topic: str) -> Any:
        """Wait for a response; failed authentication is reported by a callback, long before the timeout."""
        deadline = time.monotonic() + _TIMEOUT + 5
        while time.monotonic() < deadline:
            try:
                return future.result(timeout=_POLL_SECONDS)
            except KafkaException as error:
                raise self._error(error.args[0], topic) from None
            except TimeoutError:
                self._raise_if_refused()
                if self._down is not None and time.monotonic() - self._down > _DOWN:
                    break
        raise self._unreachable(self._cause)

    def _unreachable(self, cause: str) -> BrokerUnreachable:
        hint = f"Check {self._key}.brokers and {self._key}.sasl.service_name." if self._java is not None else ""
        reason = cause.rstrip(".")
        return BrokerUnreachable(
            f"The broker at {self.kafka.bootstrap} does not respond{reason and f': {reason}'}.", hint=hint
        )

    def _raise_if_refused(self) -> None:
        """Raise AuthenticationFailed after an error callback, which only a poll delivers; the client is closed."""
        if self._admin is not None:
            self._admin.poll(0)
        if not self._refused.is_set():
            return
        self._refused.clear()
        self._admin = None
        if self._tokens is not None:
            self._tokens.discard()
        raise AuthenticationFailed(
            f"The broker at {self.kafka.bootstrap} rejects the credentials: {self._refusal}.",
            hint=f"Check {self._key}.tls and {self._key}.sasl.",
        )

    def _client(self) -> Any:
        """The admin client of librdkafka or Java."""
        if self._java is not None:
            if self._java.has_ended():
                self._admin = None
                self._consumers.clear()
            self._admin = self._admin or self._java.admin()
        elif self._admin is None:
            self._admin = AdminClient({**self.client_settings(), "error_cb": self._on_error}, logger=silent_logger())
        return self._admin

    def _group_client(self) -> Any:
        """An admin client for the thread that commits the offsets of the group."""
        if self._java is not None:
            return self._client()  # of Java: for all threads
        return AdminClient({**self.client_settings(), "error_cb": lambda _: None})

    def _on_error(self, error: KafkaError) -> None:
        if self._tokens is not None and error.str().startswith("Failed to acquire SASL"):
            return  # the next request names the cause
        if error.code() in _AUTHENTICATION or _ALERT.search(error.str()):
            self._refusal = error.str().rstrip(".")
            self._refused.set()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = self._down or time.monotonic()
        elif error.code() in _CONNECTION:
            self._cause = _connection_failure(error.str())

    def _error(self, error: KafkaError, topic: str) -> HeadraceError:
        self._on_error(error)
        self._raise_if_refused()
        code, where = error.code(), self.kafka.bootstrap
        if code in _PERMISSION:
            return PermissionDenied(
                f"The broker at {where} denies access to {topic or 'the cluster'}: {error.str()}.",
                hint="Grant READ and DESCRIBE on the topic, and READ on source.kafka.group if it is set.",
            )
        if code in _GONE:
            return topic_gone(topic, where, self._similar(topic))
        return self._unreachable(self._cause or error.str())

    def _similar(self, topic: str) -> str:
        """A suggestion of topics with similar names; a full stop if there are none."""
        try:
            close = get_close_matches(topic, self._listed(), n=3, cutoff=0.7)
        except HeadraceError:
            return "."
        return f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else "."

    def client_settings(self) -> dict[str, Any]:
        """Settings of a client of librdkafka: the connection, with secrets resolved."""
        return {
            "bootstrap.servers": self.kafka.bootstrap,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 0,
            **self.kafka.librdkafka_security(),
            **({"oauth_cb": self._tokens.callback} if self._tokens is not None else {}),
        }

    def _java_settings(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.kafka.bootstrap,
            "reconnect.backoff.max.ms": "1000",
            **self.kafka.java_security(),
        }

    # ---- records ----

    def committed(self, position: Offsets) -> None:
        """Commit the offsets of `source.kafka.group`, in the background; they are never read."""
        if self._offsets_of_group is not None:
            self._offsets_of_group.commit(position)

    def notices(self) -> list[dict[str, Any]]:
        """Why the offsets of the group could not be committed."""
        texts = [] if self._offsets_of_group is None else self._offsets_of_group.warnings()
        return [{"event": "warning", "text": text} for text in texts]

    def group_members(self, group: str | None = None) -> int:
        """Number of active members of a consumer group; of `source.kafka.group` by default."""
        group = group or self.kafka.group
        if group is None:
            return 0
        futures = self._request(lambda admin: admin.describe_consumer_groups([group], request_timeout=_TIMEOUT))
        return len(self._result(futures[group], f"the consumer group '{group}'").members)

    def group_offsets(self, group: str) -> Offsets:
        """The committed offsets of a consumer group for the topics of the spec."""
        if self._java is not None:
            raise UsageError(
                "The offsets of a consumer group cannot be read with GSSAPI.",
                hint="Read them with `kafka-consumer-groups.sh --describe`, and use `--from offsets:{…}`.",
            )
        places = [TopicPartition(*each) for each in self._partitions()]
        request = [ConsumerGroupTopicPartitions(group, places)]
        futures = self._request(
            lambda admin: admin.list_consumer_group_offsets(request, require_stable=True, request_timeout=_TIMEOUT)
        )
        committed = self._result(futures[group], f"the consumer group '{group}'").topic_partitions
        return {(each.topic, each.partition): each.offset for each in committed if each.offset >= 0}

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> RecordFrame:
        """Exactly these ranges, read by Spark's connector."""
        frames = [self._frame(spark, part) for part in one_per_partition(ranges)]
        return RecordFrame(reduce(lambda one, two: one.union(two), frames))

    def _frame(self, spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        starts = {(part.topic, part.partition): part.start for part in ranges}
        ends = {(part.topic, part.partition): part.until for part in ranges}
        reader = spark.read.format("kafka").options(**self._spark(), assign=_assignment(starts))
        reader = reader.options(startingOffsets=_offsets_json(starts), endingOffsets=_offsets_json(ends))
        return select_record_columns(reader.load())

    def _spark(self) -> dict[str, str]:
        return {
            **CONSUMER,
            "kafka.bootstrap.servers": self.kafka.bootstrap,
            "kafka.isolation.level": self.kafka.isolation,
            "kafka.group.id": self._reader_group_id(),
            **{f"kafka.{key}": value for key, value in self.kafka.java_security().items()},
            **{f"kafka.{key}": str(value) for key, value in self.kafka.settings.items()},
        }

    def _reader_group_id(self) -> str:
        """Group id of Spark's consumers; another one, and thus new consumers, for a new token in a file."""
        version = self.kafka.sasl.token_version() if self.kafka.sasl is not None else ""
        return f"{self._reader_group}-{version}" if version else self._reader_group

    def tail(self, count: int, where: str = "end") -> Any:
        """The last `count` records of each topic, or the first, or the first since a timestamp."""
        from headrace.source.sample import read_sample

        bounds = self.bounds()
        if where == "end":
            start = {each: max(part.earliest, part.latest - count) for each, part in bounds.items()}
        elif where == "start":
            start = {each: part.earliest for each, part in bounds.items()}
        else:
            start = self._offsets_at(datetime.fromisoformat(where), bounds)
        consumer = self._consumer("preview")
        try:
            return read_sample(consumer, start, {each: part.latest for each, part in bounds.items()}, count, where)
        finally:
            consumer.close()

    def lag(self, position: Offsets) -> Lag:
        """Unread records, the age of the oldest, and an open transaction that delays further ones."""
        partitions = self._partitions()
        ends = self._high_watermarks(partitions)  # first: records written in between are not of a transaction
        bounds = self._bounds(partitions)
        waiting = {
            each: max(position.get(each, part.earliest), part.earliest)
            for each, part in bounds.items()
            if part.latest > position.get(each, part.earliest)
        }
        records = sum(bounds[each].latest - offset for each, offset in waiting.items())
        ages = self._ages(waiting, self.kafka.isolation) if waiting else {}
        seconds = max(ages.values(), default=None) if waiting else 0.0
        stable = {each: part.latest for each, part in bounds.items() if ends.get(each, 0) > part.latest}
        delayed = sum(ends[each] - offset for each, offset in stable.items())
        transaction = self._open_transaction(stable, delayed) if stable else None
        return Lag(records, seconds, ends_of(bounds), transaction, ages)

    def _high_watermarks(self, partitions: Sequence[Partition]) -> Offsets:
        if self.kafka.isolation == "read_uncommitted":
            return {}
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()), "read_uncommitted")

    def _open_transaction(self, stable: Offsets, records: int) -> OpenTransaction:
        """Describe the oldest open transaction, whose first record is at the last stable offset."""
        age = max(self._ages(stable, "read_uncommitted").values(), default=None)
        return OpenTransaction(records, datetime.now(UTC) - timedelta(seconds=age) if age is not None else None)

    def _ages(self, offsets: Offsets, isolation: str) -> dict[Partition, float]:
        from headrace.source.sample import record_ages

        if isolation not in self._consumers:
            self._consumers[isolation] = self._consumer("lag", isolation)
        return record_ages(self._consumers[isolation], offsets)

    def _consumer(self, purpose: str, isolation: str = "") -> Any:
        """A consumer for assigned partitions that commits no offsets."""
        if self._java is not None:
            return self._java.consumer(isolation or self.kafka.isolation)
        settings = {
            "group.id": f"headrace-{purpose}-{self.spec.pipeline}",
            "enable.auto.commit": False,
            "isolation.level": isolation or self.kafka.isolation,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 1024,
            "fetch.wait.max.ms": 20,  # the wait for the end of a partition, after the records of a transaction
        }
        return Consumer({**self.client_settings(), **settings}, logger=silent_logger())

    def close(self) -> None:
        """Close the clients."""
        self._admin = None
        if self._offsets_of_group is not None:
            self._offsets_of_group.close()
        while self._consumers:
            self._consumers.popitem()[1].close()
        if self._java is not None:
            self._java.close()


def _connection_failure(text: str) -> str:
    """librdkafka's message on a failed connection, without its names of brokers and states."""
    cause = re.search(r"((?:Connect to|Failed to resolve) .*?)(?: \(after .*)?$", text)
    return (cause[1] if cause else text).rstrip(".")


def _assignment(partitions: Iterable[Partition]) -> str:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return json.dumps(topics)


def _offsets_json(position: Offsets) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in position.items():
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics)


def silent_logger() -> Any:
    """A logger for librdkafka, whose errors are reported by exceptions."""
    import logging

    logger = logging.getLogger("headrace.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
