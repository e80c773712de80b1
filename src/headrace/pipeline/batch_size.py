"""When a batch starts, and how many records it reads of each partition."""

from __future__ import annotations

from headrace.source.base import Offsets
from headrace.spec import Spec

FIRST_RECORDS = 25_000  # of a run: the first commit is early, and new columns are inferred from few records
BATCH_SECONDS = 7.0  # of reading and staging, for a batch that does not read all
_GROWTH = 8  # a first batch, without compiled code and open connections, says little about the rate


class BatchSize:
    """Records of the next batch, by the rate of the last one."""

    def __init__(self, spec: Spec) -> None:
        self._limit = spec.limits.batch_rows
        if spec.source.rate is not None:
            self._limit = max(1, min(self._limit, int(spec.source.rate * spec.flush.every.total_seconds())))
        self.records = min(FIRST_RECORDS, self._limit)

    def measured(self, records: int, seconds: float) -> None:
        """Adapt the size after a batch of `records`, which took `seconds` to read and stage."""
        is_slow = seconds > 2 * BATCH_SECONDS
        if records < self.records and not is_slow:
            return  # all that there was: no reason for another size
        fitting = int(records / max(seconds, 0.001) * BATCH_SECONDS)
        if fitting > self.records or is_slow:
            self.records = max(1, min(self._limit, self.records * _GROWTH, fitting))


class Trigger:
    """When the next batch of a continuous run starts: `flush` of the spec, or `source.rate`."""

    def __init__(self, spec: Spec) -> None:
        self._flush, self._has_rate = spec.flush, spec.source.rate is not None
        self._every = spec.flush.every.total_seconds()
        self._started = float("-inf")

    def wait(self, now: float) -> float:
        """Seconds until the next request for the latest offsets: no later than the time of the next batch."""
        interval = self._every if self._has_rate else max(0.05, min(0.5, self._every / 10))
        due = self._started + self._every - now
        return min(interval, due) if due > 0 else interval

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
