"""Kafka: Spark's own connector for the records, librdkafka's admin client for everything around them."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import (
    Consumer,
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
from headrace.source.base import ENVELOPE_COLUMNS, Bounds, Lag, Offsets, OpenTransaction, Partition
from headrace.source.ranges import Range
from headrace.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_TIMEOUT = 15.0
_LISTEN = 0.25
_DOWN = 1.0  # seconds that all brokers are away before we say so: a connection that was idle is made again at once
_AUTHENTICATION = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
# TLS 1.3: a broker judges the client's certificate after the handshake, so its refusal comes as a broken connection.
_ALERT = re.compile(r"SSL alert number (?:40|4[2-9]|116)\b")
_PERMISSION = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_CONNECTION = {KafkaError._TRANSPORT, KafkaError._RESOLVE}
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}

# Spark asks the broker for its bounds after every poll, so polls are large; but it keeps the last poll and the next
# fetch of every partition in its heap, so not too large. At a partition's end it waits for the fetch before it.
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


class KafkaSource:
    """The topics of one spec on one cluster; assigns, never joins a group."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.kafka = spec.kafka
        self._refused = threading.Event()
        self._said = ""
        self._down: float | None = None  # since when no broker takes a connection
        self._cause = ""
        self._admin: AdminClient | None = None
        self._watchers: dict[str, Consumer] = {}  # by isolation

    # ---- the broker's own facts ----

    def topics(self) -> dict[str, str]:
        """Topic names with their ids; SourceTopicGone for a name the cluster does not have."""
        names = self._names()
        found = self._ask(lambda admin: admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT))
        return {name: str(self._answer(future, name).topic_id) for name, future in found.items()}

    def bounds(self) -> dict[Partition, Bounds]:
        """Earliest and latest (last stable, for read_committed) offset of every partition."""
        return self._bounds(self._partitions())

    def _bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds]:
        early = self._offsets({each: OffsetSpec.earliest() for each in partitions})
        late = self._offsets({each: OffsetSpec.latest() for each in partitions})
        return {each: Bounds(early[each], late[each]) for each in partitions}

    def start(self, bounds: Mapping[Partition, Bounds]) -> Offsets:
        """Where `start:` says to begin."""
        start = self.kafka.start
        if isinstance(start, str):
            return {each: found.latest if start == "latest" else found.earliest for each, found in bounds.items()}
        if start.timestamp is not None:
            return self._since(start.timestamp, bounds)
        return self._given(start.offsets_by_topic(self._names()), bounds)

    def _since(self, moment: datetime, bounds: Mapping[Partition, Bounds]) -> Offsets:
        milliseconds = int(moment.timestamp() * 1000)
        found = self._offsets({each: OffsetSpec.for_timestamp(milliseconds) for each in bounds})
        return {each: bounds[each].latest if offset < 0 else offset for each, offset in found.items()}

    def _given(self, given: Mapping[str, Mapping[int, int]], bounds: Mapping[Partition, Bounds]) -> Offsets:
        for topic, partitions in given.items():
            for partition in partitions:
                if (topic, partition) not in bounds:
                    raise UsageError(f"start.offsets names {topic}/{partition}, which the broker does not have.")
                found = bounds[topic, partition]
                if not found.earliest <= partitions[partition] <= found.latest:
                    raise UsageError(
                        f"start.offsets: {topic}/{partition} has no offset {partitions[partition]}; "
                        f"the broker holds {found.earliest} to {found.latest}.",
                        hint="Set source.kafka.start.offsets to an offset in that range.",
                    )
        return {
            (topic, partition): given.get(topic, {}).get(partition, found.earliest)
            for (topic, partition), found in bounds.items()
        }

    def _names(self) -> list[str]:
        if self.kafka.topics:
            return list(self.kafka.topics)
        pattern = re.compile(self.kafka.pattern or "")
        return [name for name in self._listed() if pattern.search(name)]

    def _listed(self) -> list[str]:
        """Every topic but Kafka's own."""
        # `list_topics` is deaf to a refused connection until its time is over; this question is not.
        self._answer(self._ask(lambda admin: admin.describe_cluster(request_timeout=_TIMEOUT)), "")
        listed = self._ask(lambda admin: admin.list_topics(timeout=_TIMEOUT)).topics
        return sorted(name for name in listed if not name.startswith("__"))

    def _partitions(self) -> list[Partition]:
        names = self._names()
        found = self._ask(lambda admin: admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT))
        return [
            (name, each.id)
            for name, future in sorted(found.items())
            for each in sorted(self._answer(future, name).partitions, key=lambda part: part.id)
        ]

    def _offsets(self, wanted: Mapping[Partition, Any], isolation: str = "") -> Offsets:
        if not wanted:
            return {}
        level = IsolationLevel.READ_COMMITTED
        if (isolation or self.kafka.isolation) == "read_uncommitted":
            level = IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(topic, partition): spec for (topic, partition), spec in wanted.items()}
        found = self._ask(lambda admin: admin.list_offsets(asked, isolation_level=level, request_timeout=_TIMEOUT))
        return {(each.topic, each.partition): self._answer(future, each.topic).offset for each, future in found.items()}

    # ---- asking, and what an answer means ----

    def _ask(self, question: Callable[[AdminClient], T]) -> T:
        if self._admin is not None:
            self._admin.poll(0)
        self._down, self._cause = None, ""  # what happened before this question
        try:
            return question(self._client())
        except KafkaException as error:
            raise self._named(error.args[0], "") from None

    def _answer(self, future: Any, topic: str) -> Any:
        """Wait for an answer; a refused identity is heard of beside it, long before the time is over."""
        deadline = time.monotonic() + _TIMEOUT + 5
        while time.monotonic() < deadline:
            try:
                return future.result(timeout=_LISTEN)
            except KafkaException as error:
                raise self._named(error.args[0], topic) from None
            except TimeoutError:
                self._raise_if_refused()
                if self._down is not None and time.monotonic() - self._down > _DOWN:
                    break
        raise self._unreachable(self._cause)

    def _unreachable(self, cause: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"The broker at {self.kafka.bootstrap} does not answer{cause and f': {cause}'}.")

    def _raise_if_refused(self) -> None:
        """Refusals come as events of the client, which only a poll delivers; a client that was refused is done with."""
        if self._admin is not None:
            self._admin.poll(0)
        if not self._refused.is_set():
            return
        self._refused.clear()
        self._admin = None
        raise AuthenticationFailed(
            f"The broker at {self.kafka.bootstrap} refuses our identity: {self._said}.",
            hint="Look at source.kafka.tls and source.kafka.sasl.",
        )

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({**self._librdkafka(), "error_cb": self._on_error}, logger=_silent())
        return self._admin

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in _AUTHENTICATION or _ALERT.search(error.str()):
            self._said = error.str().rstrip(".")
            self._refused.set()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = self._down or time.monotonic()
        elif error.code() in _CONNECTION:
            self._cause = _connection_failure(error.str())

    def _named(self, error: KafkaError, topic: str) -> HeadraceError:
        self._on_error(error)
        self._raise_if_refused()
        code, where = error.code(), self.kafka.bootstrap
        if code in _PERMISSION:
            return PermissionDenied(
                f"The broker at {where} refuses {topic or 'the request'}: {error.str()}.",
                hint="Grant READ and DESCRIBE on the topic.",
            )
        if code in _GONE:
            return SourceTopicGone(
                f"The topic '{topic}' does not exist at {where}{self._similar(topic)}",
                hint="Make it again, or take it out of the spec; nothing was reset.",
                topic=topic,
            )
        return self._unreachable(self._cause or error.str())

    def _similar(self, topic: str) -> str:
        """A question that names the topics which may be meant, if there are any."""
        try:
            close = get_close_matches(topic, self._listed(), n=3, cutoff=0.7)
        except HeadraceError:
            return "."
        return f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else "."

    def _librdkafka(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.kafka.bootstrap,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 0,
            **self.kafka.librdkafka_security(),
        }

    # ---- the records ----

    def stream(self, spark: SparkSession, position: Offsets, limits: Mapping[str, int | str]) -> DataFrame:
        """A streaming frame of envelopes from `position` on."""
        # Assigned, not subscribed: a partition that appears now is read once its start is decided (see `verify`).
        reader = spark.readStream.format("kafka").options(**self._spark(), assign=_assignment(position))
        reader = reader.options(startingOffsets=_offsets_json(position), **{key: str(limits[key]) for key in limits})
        return reader.load().selectExpr(*ENVELOPE_COLUMNS)

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        """A plain frame of exactly these ranges."""
        starts = {(each.topic, each.partition): each.start for each in ranges}
        ends = {(each.topic, each.partition): each.until for each in ranges}
        reader = spark.read.format("kafka").options(**self._spark(), assign=_assignment(starts))
        reader = reader.options(startingOffsets=_offsets_json(starts), endingOffsets=_offsets_json(ends))
        return reader.load().selectExpr(*ENVELOPE_COLUMNS)

    def ends(self, offset: str) -> Offsets:
        """The end offsets in Spark's own JSON for a Kafka source."""
        return {
            (topic, int(partition)): until
            for topic, partitions in json.loads(offset).items()
            for partition, until in partitions.items()
        }

    def _spark(self) -> dict[str, str]:
        return {
            **CONSUMER,
            "kafka.bootstrap.servers": self.kafka.bootstrap,
            "kafka.isolation.level": self.kafka.isolation,
            "groupIdPrefix": f"headrace-{self.spec.pipeline}",
            **{f"kafka.{key}": value for key, value in self.kafka.java_security().items()},
            **{f"kafka.{key}": str(value) for key, value in self.kafka.settings.items()},
        }

    def tail(self, count: int, where: str = "end") -> Any:
        """The last (or first, or since a time) `count` envelopes of each topic, by a consumer that joins no group."""
        from headrace.source.sample import peek

        bounds = self.bounds()
        if where == "end":
            begin = {each: max(found.earliest, found.latest - count) for each, found in bounds.items()}
        elif where == "start":
            begin = {each: found.earliest for each, found in bounds.items()}
        else:
            begin = self._since(datetime.fromisoformat(where), bounds)
        consumer = self._consumer("preview")
        try:
            return peek(consumer, begin, {each: found.latest for each, found in bounds.items()}, count, where)
        finally:
            consumer.close()

    def lag(self, position: Offsets) -> Lag:
        """Records that wait, the age of the oldest of them, and an open transaction that holds others up."""
        partitions = self._partitions()
        ends = self._high_watermarks(partitions)  # asked first: what was written since is no sign of a transaction
        bounds = self._bounds(partitions)
        waiting = {
            each: max(position.get(each, found.earliest), found.earliest)
            for each, found in bounds.items()
            if found.latest > position.get(each, found.earliest)
        }
        records = sum(bounds[each].latest - offset for each, offset in waiting.items())
        seconds = self._oldest(waiting, self.kafka.isolation) if waiting else 0.0
        held = {each: found.latest for each, found in bounds.items() if ends.get(each, 0) > found.latest}
        transaction = self._open_transaction(held, sum(ends[each] - at for each, at in held.items())) if held else None
        return Lag(records, seconds, frozenset(bounds), transaction)

    def _high_watermarks(self, partitions: Sequence[Partition]) -> Offsets:
        if self.kafka.isolation == "read_uncommitted":
            return {}
        return self._offsets({each: OffsetSpec.latest() for each in partitions}, "read_uncommitted")

    def _open_transaction(self, stable: Offsets, records: int) -> OpenTransaction:
        """The last stable offset is the first record of the oldest transaction that is open."""
        age = self._oldest(stable, "read_uncommitted")
        return OpenTransaction(records, datetime.now(UTC) - timedelta(seconds=age) if age is not None else None)

    def _oldest(self, at: Offsets, isolation: str) -> float | None:
        from headrace.source.sample import oldest

        if isolation not in self._watchers:
            self._watchers[isolation] = self._consumer("lag", isolation)
        return oldest(self._watchers[isolation], at)

    def _consumer(self, purpose: str, isolation: str = "") -> Consumer:
        """A consumer that is assigned its partitions and commits nothing."""
        settings = {
            "group.id": f"headrace-{purpose}-{self.spec.pipeline}",
            "enable.auto.commit": False,
            "isolation.level": isolation or self.kafka.isolation,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 1024,
        }
        return Consumer({**self._librdkafka(), **settings}, logger=_silent())

    def close(self) -> None:
        """Let the clients go."""
        self._admin = None
        while self._watchers:
            self._watchers.popitem()[1].close()


def _connection_failure(text: str) -> str:
    """What librdkafka says of a connection, without its names for brokers and states."""
    what = re.search(r"((?:Connect to|Failed to resolve) .*?)(?: \(after .*)?$", text)
    return (what[1] if what else text).rstrip(".")


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


def _silent() -> Any:
    import logging

    logger = logging.getLogger("headrace.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
