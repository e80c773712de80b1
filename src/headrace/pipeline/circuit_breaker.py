"""Circuit breaker: stops a pipeline when too many records are dead letters, after its batch is recorded."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.errors import TooManyRejected
from headrace.plan.accounting import Counts

if TYPE_CHECKING:
    from headrace.spec.running import CircuitBreakerSpec as Rule


class CircuitBreaker:
    """Counts of recent batches of this run; the next run starts with an empty window."""

    def __init__(self, rule: Rule | None) -> None:
        self._rule = rule
        self._batches: deque[tuple[datetime, Counts]] = deque()

    def add(self, counts: Counts, at: datetime) -> None:
        """Add a recorded batch; TooManyRejected when the ratio of the window exceeds the limit."""
        if self._rule is None:
            return
        self._batches.append((at, counts))
        while at - self._batches[0][0] > self._rule.window:
            self._batches.popleft()
        read = sum(each.read for _, each in self._batches)
        dead = sum(each.dead for _, each in self._batches)
        if read >= self._rule.min_records and dead > self._rule.max_reject_ratio * read:
            raise TooManyRejected(
                f"{dead:,} of the last {read:,} records are dead letters: {dead / read:.1%}, more than "
                f"circuit_breaker.max_reject_ratio {self._rule.max_reject_ratio:.1%}. All of them are stored.",
                hint="Inspect the dead letters. `headrace run SPEC` continues after them, with a new window.",
            )
