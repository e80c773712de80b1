"""What a run tells of itself: each batch as an event, and all of them added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.delta.receipt import Receipt
from headrace.plan.accounting import Counts
from headrace.write.intent import Intent

Report = Callable[[dict[str, Any]], None]


def batch_event(intent: Intent, receipts: Sequence[Receipt]) -> dict[str, Any]:
    """A finished batch as an event."""
    took = (datetime.now(UTC) - intent.started).total_seconds()
    return {
        "event": "batch",
        "pipeline": intent.pipeline,
        "batch": intent.batch,
        **intent.counts.counters(),
        "tables": {each.path: {"version": each.version, "rows": each.rows} for each in receipts},
        "runs": intent.runs,
        "seconds": round(took, 3),
    }


@dataclass
class Summary:
    """What a run did, added up over its batches."""

    pipeline: str
    batches: int = 0
    counts: Counts = field(default_factory=Counts)
    tables: dict[str, int] = field(default_factory=dict)  # rows by table
    recovered: int = 0
    json_text: dict[str, dict[str, str]] = field(default_factory=dict)  # why a column is text, by table and column
    drained: bool | None = None  # whether a drain came to its end; None where none was asked for
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    reading: timedelta = timedelta()  # from the start of the first batch to the end of the last
    _first: datetime | None = None

    def keep_as_text(self, table: str, columns: Mapping[str, str]) -> None:
        """Columns of a table that can only be JSON text, and why."""
        if columns:
            self.json_text.setdefault(table, {}).update(columns)

    @property
    def seconds(self) -> float:
        """How long the run takes, until now."""
        return round((datetime.now(UTC) - self.began).total_seconds(), 1)

    @property
    def rate(self) -> int:
        """Records per second from the start of the first batch to the end of the last."""
        return round(self.counts.read / max(self.reading.total_seconds(), 0.001)) if self.counts.read else 0

    def add(self, intent: Intent, receipts: Sequence[Receipt]) -> None:
        """One more finished batch."""
        self.batches += 1
        self._first = self._first or max(intent.started, self.began)  # a batch that is recovered began before the run
        self.reading = datetime.now(UTC) - self._first
        self.counts = self.counts + intent.counts
        for receipt in receipts:
            self.tables[receipt.path] = self.tables.get(receipt.path, 0) + receipt.rows
