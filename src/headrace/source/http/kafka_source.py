"""The source `http` with `kafka`: clients send records through a server to topics, which are read from Kafka."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.errors import TransientError
from headrace.source.base import Offsets, Partition
from headrace.source.http.kafka_destination import KafkaDestination, KafkaLimits
from headrace.source.kafka import KafkaSource
from headrace.source.spool.receiver import Receiver, ReceiverReport
from headrace.spec import Spec
from headrace.spec.http_source import HttpKafkaSpec


class HttpKafkaSource(KafkaSource):
    """Topics of Kafka that a receiver of this process, or others, write."""

    def __init__(self, spec: Spec, http_kafka: HttpKafkaSpec, new_receiver: Callable[[], Receiver]) -> None:
        super().__init__(spec)
        self._http_kafka, self._new_receiver = http_kafka, new_receiver
        self._destination: KafkaDestination | None = None
        self._receiver: Receiver | None = None

    # ---- receiving ----

    def receive(self, report: ReceiverReport, *, accept: bool) -> None:
        """With `accept`, start the receiver."""
        if not accept:
            return
        if self._destination is None:
            self._destination = self.open_destination()
        if self._receiver is None:
            receiver = self.new_receiver()
            receiver.start(self._destination, report)
            self._receiver = receiver

    def open_destination(self) -> KafkaDestination:
        """The producer; SourceTopicGone for a topic that does not exist, AuthenticationFailed, PermissionDenied."""
        probe = KafkaSource(self.spec)  # with a client of its own: it is called by another thread
        with suppress(TransientError):  # clients are told to send again until the brokers are available
            probe.topics()
        limits = KafkaLimits(
            record_bytes=self.spec.limits.record_bytes,
            max_requests=self._http_kafka.retry_requests,
            request_age=self._http_kafka.retry_window.total_seconds(),
        )
        return KafkaDestination(self.kafka.bootstrap, self.client_settings(), probe.topics, limits)

    def new_receiver(self) -> Receiver:
        """A server with the settings of the spec."""
        return self._new_receiver()

    def listed_topics(self) -> Sequence[str]:
        """The topics that clients may send to."""
        return self.kafka.topics or ()

    # ---- topics and offsets ----

    def latest(self, partitions: Sequence[Partition]) -> Offsets:
        """Latest offsets of these partitions; an error if the receiver has failed."""
        failures = [self._receiver.failure()] if self._receiver is not None else []
        failures += [self._destination.failure] if self._destination is not None else []
        for failure in failures:
            if failure is not None:
                raise failure
        return super().latest(partitions)

    def close(self) -> None:
        """Stop the receiver, send what it has accepted, and close the clients."""
        if self._receiver is not None:
            self._receiver.stop()
            self._receiver = None
        if self._destination is not None:
            self._destination.close()
            self._destination = None
        super().close()
