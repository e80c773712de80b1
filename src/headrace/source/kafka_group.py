"""Offsets of a consumer group, written for tools that show its lag; the position of a pipeline is in its ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

Offsets = Mapping[tuple[str, int], int]  # the next offset to read, by topic and partition

_TIMEOUT = 10.0  # seconds for a request
_RETRY_SECONDS = 5.0
_CLOSE_SECONDS = 3.0
_ACTIVE = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.NON_EMPTY_GROUP,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
}


class GroupOffsets:
    """The offsets of one group, committed by a thread of its own: no batch waits for them or fails with them."""

    def __init__(self, group: str, new_client: Callable[[], Any]) -> None:
        """`new_client`: an admin client, which is created when it is first needed."""
        self.group = group
        self._new_client = new_client
        self._changed = threading.Condition()
        self._offsets: Offsets | None = None  # to be committed
        self._is_closing = False
        self._warnings: list[str] = []
        self._warned = ""
        self._thread: threading.Thread | None = None

    def commit(self, offsets: Offsets) -> None:
        """Commit these offsets soon; earlier ones that are still waiting are skipped."""
        with self._changed:
            self._offsets = dict(offsets)
            if self._thread is None:
                self._is_closing = False
                self._thread = threading.Thread(target=self._work, name=f"offsets of {self.group}", daemon=True)
                self._thread.start()
            self._changed.notify()

    def warnings(self) -> list[str]:
        """Why offsets could not be committed; each reason once, until a commit succeeds."""
        with self._changed:
            texts, self._warnings = self._warnings, []
        return texts

    def close(self) -> None:
        """Commit what is waiting, if that takes no more than a few seconds."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._is_closing = True
            self._changed.notify()
        if thread is not None:
            thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        client: Any = None
        while (offsets := self._next()) is not None:
            try:
                client = client or self._new_client()
                self._commit(client, offsets)
            except Exception as error:  # whatever it is, the batches go on
                client = None
                self._failed(offsets, error)
            else:
                self._warned = ""

    def _next(self) -> Offsets | None:
        """The offsets to commit; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._offsets is not None or self._is_closing)
            offsets, self._offsets = self._offsets, None
            return offsets

    def _commit(self, client: Any, offsets: Offsets) -> None:
        """Raise an error unless the broker has all of them."""
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]
        if not places:
            return
        request = [ConsumerGroupTopicPartitions(self.group, places)]
        for future in client.alter_consumer_group_offsets(request, request_timeout=_TIMEOUT).values():
            for place in future.result(_TIMEOUT + 5).topic_partitions:
                if place.error is not None:
                    raise KafkaException(place.error)

    def _failed(self, offsets: Offsets, error: Exception) -> None:
        """Report the reason, and wait for newer offsets or the next attempt."""
        reason = _reason(error)
        with self._changed:
            if reason != self._warned:
                self._warnings.append(f"The offsets of the consumer group '{self.group}' are not committed: {reason}.")
                self._warned = reason
            self._changed.wait_for(lambda: self._is_closing, _RETRY_SECONDS)
            if self._offsets is None and not self._is_closing:
                self._offsets = offsets


def _reason(error: Exception) -> str:
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else None
    if isinstance(cause, KafkaError) and cause.code() in _ACTIVE:
        return "the group has active members; use a name that no consumer uses"
    text = cause.str() if isinstance(cause, KafkaError) else str(error)
    return text.rstrip(".") or type(error).__name__
