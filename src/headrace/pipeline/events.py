"""Events of a run, and its summary."""

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
    """The event of a finished batch."""
    seconds = (datetime.now(UTC) - intent.started).total_seconds()
    return {
        "event": "batch",
        "pipeline": intent.pipeline,
        "batch": intent.batch,
        **intent.counts.counters(),
        "tables": {each.path: {"version": each.version, "rows": each.rows} for each in receipts},
        "runs": intent.runs,
        "seconds": round(seconds, 3),
    }


@dataclass
class Summary:
    """Totals of a run over its batches."""

    pipeline: str
    batches: int = 0
    counts: Counts = field(default_factory=Counts)
    tables: dict[str, int] = field(default_factory=dict)  # rows by table
    recovered: int = 0
    json_text: dict[str, dict[str, str]] = field(default_factory=dict)  # reasons, by table and column
    drained: bool | None = None  # whether a drain was completed; None without one
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    reading: timedelta = timedelta()  # from the start of the first batch to the end of the last
    _first: datetime | None = None

    def add_json_text(self, table: str, columns: Mapping[str, str]) -> None:
        """Add columns of a table that are stored as JSON text, with the reason."""
        if columns:
            self.json_text.setdefault(table, {}).update(columns)

    @property
    def seconds(self) -> float:
        """Duration of the run until now."""
        return round((datetime.now(UTC) - self.began).total_seconds(), 1)

    @property
    def rate(self) -> int:
        """Records per second from the start of the first batch to the end of the last."""
        return round(self.counts.read / max(self.reading.total_seconds(), 0.001)) if self.counts.read else 0

    def add(self, intent: Intent, receipts: Sequence[Receipt]) -> None:
        """Add a finished batch."""
        self.batches += 1
        self._first = self._first or max(intent.started, self.began)  # a recovered batch started before the run
        self.reading = datetime.now(UTC) - self._first
        self.counts = self.counts + intent.counts
        for receipt in receipts:
            self.tables[receipt.path] = self.tables.get(receipt.path, 0) + receipt.rows
