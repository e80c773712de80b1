"""The requests that producers may repeat: their retries are acknowledged again, and stored once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from headrace.errors import SequenceReused
from headrace.source.spool.block import Request

RequestKey = tuple[str, str, str]  # topic, producer, sequence


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """Where the records of a request are."""

    first: int
    count: int
    fingerprint: int
    time: int  # milliseconds since 1970


class RequestWindow:
    """Requests of the last time, at most a number of them; older ones are forgotten."""

    def __init__(self, max_requests: int, max_age_ms: int) -> None:
        self._requests: OrderedDict[RequestKey, StoredRequest] = OrderedDict()
        self._max_requests, self._max_age = max_requests, max_age_ms

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, topic: str, request: Request, time: int) -> None:
        """Add a stored request and forget the oldest ones beyond the limits."""
        key = (topic, request.producer, request.sequence)
        self._requests[key] = StoredRequest(request.first, request.count, request.fingerprint, time)
        self._requests.move_to_end(key)
        self._forget(time)

    def find(self, key: RequestKey, fingerprint: int, now: int) -> StoredRequest | None:
        """The request with this key; SequenceReused if it had other content."""
        stored = self._requests.get(key)
        if stored is None or stored.time < now - self._max_age:
            return None
        check_fingerprint(key, stored.fingerprint, fingerprint)
        return stored

    def _forget(self, now: int) -> None:
        requests = self._requests
        while len(requests) > self._max_requests or (
            requests and next(iter(requests.values())).time < now - self._max_age
        ):
            requests.popitem(last=False)


def check_fingerprint(key: RequestKey, stored: int, fingerprint: int) -> None:
    """SequenceReused if both fingerprints are known and differ."""
    if stored and fingerprint and stored != fingerprint:
        topic, producer, sequence = key
        named = f"'{sequence}' of producer '{producer}'" if producer else f"'{sequence}'"
        raise SequenceReused(
            f"Another request to {topic} has used {named} with other content.",
            hint="Send a new sequence or idempotency key with new records.",
        )
