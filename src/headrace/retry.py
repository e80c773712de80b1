"""Retries with backoff."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import SystemRandom
from threading import Event
from typing import Protocol, TypeVar

from headrace.errors import (
    AuthenticationFailed,
    CommitConflict,
    EndpointInvalid,
    HeadraceError,
    PermissionDenied,
    StopRequested,
    TransientError,
)

T = TypeVar("T")
_random = SystemRandom().random
_NEW_ERROR_AFTER = 300.0  # seconds; an attempt that ran longer had got past the earlier error
OnWait = Callable[[str, float, HeadraceError], None]


class StopEvent(Protocol):
    """An event that a request to stop sets, such as `threading.Event`."""

    def wait(self, timeout: float) -> bool:
        """Wait until set, at most `timeout` seconds; true when set."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy: transient errors are retried without limit, denied access a few times. Intervals in seconds."""

    initial_interval: float = 1.0
    max_interval: float = 60.0
    access_denied: int = 3
    conflict: int = 5

    def max_attempts(self, error: HeadraceError) -> float:
        """Maximum number of attempts for a kind of error."""
        if isinstance(error, TransientError):
            return float("inf")
        if isinstance(error, PermissionDenied | AuthenticationFailed | EndpointInvalid):
            return self.access_denied
        return self.conflict if isinstance(error, CommitConflict) else 1

    def intervals(self, jitter: Callable[[], float] = _random) -> Iterator[float]:
        """Seconds before each retry: doubling, with up to half subtracted at random so that instances spread."""
        interval = self.initial_interval
        while True:
            yield interval * (1 - jitter() / 2)
            interval = min(interval * 2, self.max_interval)


def call(
    attempt: Callable[[], T],
    policy: Retry | None = None,
    *,
    stop: StopEvent | None = None,
    on_wait: OnWait | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Call `attempt` until it succeeds or the policy ends; `stop` interrupts a wait with StopRequested."""
    policy, stop = policy or Retry(), stop or Event()
    failures: dict[type[HeadraceError], int] = {}
    intervals = policy.intervals()
    while True:
        started = clock()
        try:
            return attempt()
        except HeadraceError as error:
            if clock() - started > max(policy.max_interval, _NEW_ERROR_AFTER):
                failures, intervals = {}, policy.intervals()
            interval = next(intervals)
            failures[type(error)] = failures.get(type(error), 0) + 1
            if failures[type(error)] >= policy.max_attempts(error):
                raise
            if on_wait is not None:
                on_wait(error.name, interval, error)
            if stop.wait(interval):
                raise StopRequested(f"Stopped while waiting to retry: {error.message}") from error
