"""When a batch starts, and how many records it reads of each partition."""

from __future__ import annotations

from headrace.source.base import Offsets
from headrace.spec import Spec
from headrace.spec.model import TopicSpec
from headrace.spec.running import FlushSpec

FIRST_RECORDS = 25_000  # of a run: the first commit is early, and new columns are inferred from few records
BATCH_SECONDS = 7.0  # of reading and staging, for a batch that does not read all
_SHORTEST_WAIT, _LONGEST_WAIT, _IDLE_WAIT = 0.1, 0.5, 1.0  # seconds between two requests for the latest offsets
_GROWTH = 8  # a first batch, without compiled code and open connections, says little about the rate


class BatchSize:
    """Records of the next batch, by the rate of the last one."""

    def __init__(self, spec: Spec) -> None:
        self._limit = spec.limits.batch_rows
        if spec.source.rate is not None:
            self._limit = max(1, min(self._limit, int(spec.source.rate * spec.flush.every.total_seconds())))
        self.records = min(FIRST_RECORDS, self._limit)
        self._least = 1
        self._slow = (0, 0.0)  # the last slow batch: records and rate

    def measured(self, records: int, seconds: float) -> None:
        """Adapt the size after a batch of `records`, which took `seconds` to read and stage."""
        is_slow = seconds > 2 * BATCH_SECONDS
        if records < self.records and not is_slow:
            return  # all that there was: no reason for another size
        rate = records / max(seconds, 0.001)
        if is_slow:
            self._keep_above_fixed_cost(records, rate)
        fitting = int(rate * BATCH_SECONDS)
        if fitting > self.records or is_slow:
            self.records = max(self._least, min(self._limit, self.records * _GROWTH, fitting))

    def _keep_above_fixed_cost(self, records: int, rate: float) -> None:
        """Return to the size of the last slow batch if fewer records take nearly as long, as with 200 tables.

        Their files cost the same for 100 records as for 10,000: ever smaller batches would only be read ever slower.
        """
        before, rate_before = self._slow
        if records < before and rate < rate_before / 2:
            self._least = max(self._least, before)
        self._slow = records, rate


class Triggers:
    """When the next batch of a continuous run starts, and which partitions it reads.

    Topics with equal `flush` are due together. A batch reads the topics that are due, and leaves the others waiting.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec, self._rate = spec, spec.source.rate
        flushes = {spec.flush, *(map(self._flush_of, spec.topics))}
        self._triggers = {flush: Trigger(flush, self._rate) for flush in flushes}
        self._by_topic: dict[str, FlushSpec] = {}

    def wait(self, now: float) -> float:
        """Seconds until the next request for the latest offsets."""
        return min(trigger.wait(now) for trigger in self._triggers.values())

    def start(self, waiting: Offsets, mean_bytes: float, now: float) -> Offsets:
        """The unread records of the topics that are due, whose next batch starts now; empty if none are."""
        unread: dict[FlushSpec, Offsets] = {flush: {} for flush in self._triggers}
        for (topic, partition), records in waiting.items():
            if topic not in self._by_topic:
                self._by_topic[topic] = self._flush_of(self._spec.entry_of(topic))
            unread[self._by_topic[topic]][topic, partition] = records
        due: Offsets = {}
        for flush, trigger in self._triggers.items():
            if trigger.is_due(sum(unread[flush].values()), mean_bytes, now):
                trigger.started(now)
                due |= unread[flush]
        return due

    def _flush_of(self, entry: TopicSpec | None) -> FlushSpec:
        """Triggers of the topics of an entry; a maximum rate is that of all topics together."""
        return self._spec.flush if self._rate is not None else self._spec.flush_of(entry)


class Trigger:
    """When the next batch starts: as `flush` tells, or with a maximum rate at regular intervals."""

    def __init__(self, flush: FlushSpec, rate: float | None) -> None:
        self._flush, self._has_rate = flush, rate is not None
        self._every = flush.every.total_seconds()
        self._started = float("-inf")

    def wait(self, now: float) -> float:
        """Seconds until the next request for the latest offsets: at the time of the next batch, if that is soon."""
        due = self._started + self._every - now
        if self._has_rate:
            return due if due > 0 else self._every
        if due > 0:
            return min(_LONGEST_WAIT, due)
        return max(_SHORTEST_WAIT, min(_IDLE_WAIT, self._every / 5))  # nothing was waiting

    def is_due(self, waiting: int, mean_bytes: float, now: float) -> bool:
        """Whether enough records are waiting, or the last batch started long enough ago."""
        if not waiting:
            return False
        if now - self._started >= self._every:
            return True
        return not self._has_rate and (waiting >= self._flush.rows or waiting * mean_bytes >= self._flush.bytes)

    def started(self, now: float) -> None:
        """Note the start of a batch."""
        self._started = now


def waiting_records(position: Offsets, latest: Offsets) -> Offsets:
    """Number of unread records of each partition that has some."""
    return {each: latest[each] - offset for each, offset in position.items() if latest.get(each, 0) > offset}


def ends_of_batch(position: Offsets, waiting: Offsets, records: int) -> Offsets:
    """End offsets of a batch of at most `records`; partitions share them by what they have waiting.

    For example, 100 records of {a: 900, b: 100} waiting are 90 of `a` and 10 of `b`.
    """
    total = sum(waiting.values())
    if total <= records:
        return {each: position[each] + count for each, count in waiting.items()}
    shares = {each: count * records // total for each, count in waiting.items()}
    rest = records - sum(shares.values())  # fewer than there are partitions
    for each in sorted(waiting, key=lambda each: (shares[each] - waiting[each], each))[:rest]:
        shares[each] += 1
    return {each: position[each] + share for each, share in shares.items() if share}
