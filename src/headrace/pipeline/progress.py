"""Progress within a batch and within a drain: records read, rate, time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Progress:
    """Records that the current batch has read so far, at the rate of this batch and the one before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._batch: int | None = None
        self._records = 0  # of the current batch
        self._started = 0.0  # time of the start of the current batch
        self._left: int | None = None  # records of a drain from the current batch on
        self._last_records, self._last_seconds = 0, 0.0  # of the batch before

    def begin(self, batch: int, records: int, left: int | None) -> None:
        """Begin a batch; `left`: records to the end of the drain, this batch included (None: not a drain)."""
        self._batch, self._records, self._left, self._started = batch, records, left, self._clock()

    def end(self) -> None:
        """End the batch, which is committed."""
        self._last_records, self._last_seconds = self._records, self._clock() - self._started
        self._left = None if self._left is None else self._left - self._records
        self._batch, self._records = None, 0

    @property
    def is_reading(self) -> bool:
        """Whether a batch is in progress."""
        return self._batch is not None

    def event(self, read: int = 0) -> dict[str, Any]:
        """The progress with `read` records of the current batch; null for what is unknown."""
        read = min(read, self._records)
        seconds = self._last_seconds + (self._clock() - self._started if self.is_reading else 0.0)
        rate = (self._last_records + read) / seconds if seconds > 0 else 0.0
        left = None if self._left is None else self._left - read
        return {
            "batch": self._batch,
            "batch_records": self._records if self.is_reading else None,
            "batch_read": read if self.is_reading else None,
            "records_per_second": round(rate) if rate else None,
            "records_left": left,
            "seconds_left": round(left / rate, 1) if rate and left is not None else None,
        }
