"""How long the phases of a batch take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds of each phase of a batch: stage, check, intent, commit, ledger."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measured(self, phase: str) -> Iterator[None]:
        """Add the duration of the block to a phase."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - started

    def rounded(self) -> dict[str, float]:
        """Seconds by phase, in milliseconds precision."""
        return {phase: round(seconds, 3) for phase, seconds in self.seconds.items()}
