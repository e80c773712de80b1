"""How often and how long we try again, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import SystemRandom
from threading import Event
from typing import Protocol, TypeVar

from headrace.errors import (
    AuthenticationFailed,
    Conflict,
    HeadraceError,
    PermissionDenied,
    StopRequested,
    TransientError,
)

T = TypeVar("T")
_random = SystemRandom().random
_A_GOOD_WHILE = 300.0  # seconds; no refusal takes that long
OnWait = Callable[[str, float, HeadraceError], None]


class Waker(Protocol):
    """What we wait on: an Event that a request to stop sets."""

    def wait(self, timeout: float) -> bool:
        """True when it was set before the time was over."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The policy: what cannot be reached is tried for ever, what is refused only a few times."""

    first: float = 1.0
    longest: float = 60.0
    refused: int = 3
    conflict: int = 5

    def tries(self, error: HeadraceError) -> float:
        """How many tries an error of this kind is worth in all."""
        if isinstance(error, TransientError):
            return float("inf")
        if isinstance(error, PermissionDenied | AuthenticationFailed):
            return self.refused
        return self.conflict if isinstance(error, Conflict) else 1

    def waits(self, jitter: Callable[[], float] = _random) -> Iterator[float]:
        """Seconds before each next try: doubling, each shortened by up to a half so that instances spread."""
        wait = self.first
        while True:
            yield wait * (1 - jitter() / 2)
            wait = min(wait * 2, self.longest)


def call(
    attempt: Callable[[], T],
    policy: Retry | None = None,
    *,
    stop: Waker | None = None,
    on_wait: OnWait | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """The answer of `attempt`, tried again as the policy says; `stop` wakes a wait and ends it with StopRequested."""
    policy, stop = policy or Retry(), stop or Event()
    failed: dict[type[HeadraceError], int] = {}
    waits = policy.waits()
    while True:
        began = clock()
        try:
            return attempt()
        except HeadraceError as error:
            if clock() - began > max(policy.longest, _A_GOOD_WHILE):  # new trouble, not the old one
                failed, waits = {}, policy.waits()
            wait = next(waits)
            failed[type(error)] = failed.get(type(error), 0) + 1
            if failed[type(error)] >= policy.tries(error):
                raise
            if on_wait is not None:
                on_wait(error.name, wait, error)
            if stop.wait(wait):
                raise StopRequested(f"Asked to stop while waiting to try again: {error.message}") from error
