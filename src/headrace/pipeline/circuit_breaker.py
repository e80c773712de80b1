"""The breaker: stops a pipeline when too many of its records are rejected, with everything read so far booked."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.errors import TooManyRejected
from headrace.plan.accounting import Counts

if TYPE_CHECKING:
    from headrace.spec.running import CircuitBreakerSpec as Rule


class CircuitBreaker:
    """The batches of the last while, added up; of this run only, so that the next one may go on."""

    def __init__(self, rule: Rule | None) -> None:
        self._rule = rule
        self._batches: deque[tuple[datetime, Counts]] = deque()

    def note(self, counts: Counts, at: datetime) -> None:
        """One more batch is booked; TooManyRejected when with it the ratio is beyond the rule's."""
        if self._rule is None:
            return
        self._batches.append((at, counts))
        while at - self._batches[0][0] > self._rule.window:
            self._batches.popleft()
        read = sum(each.read for _, each in self._batches)
        dead = sum(each.dead for _, each in self._batches)
        if read >= self._rule.min_records and dead > self._rule.max_reject_ratio * read:
            raise TooManyRejected(
                f"{dead:,} of the last {read:,} records are dead letters: {dead / read:.1%}, more than the breaker's "
                f"{self._rule.max_reject_ratio:.1%}. All of them are booked.",
                hint="Look at the dead letters. `headrace run SPEC` goes on behind them, with a new window.",
            )
