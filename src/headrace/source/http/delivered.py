"""Records that Kafka has confirmed, and the requests that clients may repeat."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.source.spool.window import RequestKey, check_fingerprint

_MAX_RECORDS = 1_000_000  # of all requests that are known: 12 bytes each


@dataclass(frozen=True, slots=True)
class Delivered:
    """Partition and offset of each record of a request; those that are too large for the topic have none."""

    partitions: array[int]
    offsets: array[int]
    too_large: Mapping[int, int] = field(default_factory=dict)  # bytes by position
    duplicate: bool = False  # delivered by an earlier request

    @property
    def stored(self) -> int:
        """Number of records that Kafka has."""
        return len(self.offsets) - len(self.too_large)

    def results(self) -> list[str]:
        """Where each record is, or that it is too large, as JSON."""
        results = [
            f'{{"partition":{partition},"offset":{offset}}}'
            for partition, offset in zip(self.partitions, self.offsets, strict=True)
        ]
        for position, size in self.too_large.items():
            results[position] = f'{{"error":"record_too_large","bytes":{size}}}'
        return results


@dataclass(frozen=True, slots=True)
class _Known:
    delivered: Delivered
    fingerprint: int
    time: float


class DeliveredRequests:
    """Requests of the last time, in memory, at most a number of them and of their records."""

    def __init__(self, max_requests: int, max_age: float, max_records: int = _MAX_RECORDS) -> None:
        self._requests: OrderedDict[RequestKey, _Known] = OrderedDict()
        self._max_requests, self._max_age, self._max_records = max_requests, max_age, max_records
        self._records = 0

    def add(self, key: RequestKey, fingerprint: int, delivered: Delivered, now: float) -> None:
        """Add a request and forget the oldest ones beyond the limits; `now` in seconds."""
        if (earlier := self._requests.pop(key, None)) is not None:
            self._records -= len(earlier.delivered.offsets)
        self._requests[key] = _Known(replace(delivered, duplicate=True), fingerprint, now)
        self._records += len(delivered.offsets)
        while len(self._requests) > self._max_requests or self._records > self._max_records or self._is_old(now):
            _, oldest = self._requests.popitem(last=False)
            self._records -= len(oldest.delivered.offsets)

    def find(self, key: RequestKey, fingerprint: int, now: float) -> Delivered | None:
        """What was delivered by a request with this key; SequenceReused if it had other content."""
        known = self._requests.get(key)
        if known is None or known.time < now - self._max_age:
            return None
        check_fingerprint(key, known.fingerprint, fingerprint)
        return known.delivered

    def _is_old(self, now: float) -> bool:
        return bool(self._requests) and next(iter(self._requests.values())).time < now - self._max_age
