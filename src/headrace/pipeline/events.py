"""Events of a run, and its summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.delta.receipt import Receipt
from headrace.pipeline.phases import Phases
from headrace.plan.accounting import Counts
from headrace.write.intent import Intent

Report = Callable[[dict[str, Any]], None]


def to_all(*reports: Report) -> Report:
    """Report every event to each of these, in order."""

    def report(event: dict[str, Any]) -> None:
        for each in reports:
            each(event)

    return report


def batch_event(intent: Intent, receipts: Sequence[Receipt], phases: Phases) -> dict[str, Any]:
    """The event of a finished batch."""
    seconds = (datetime.now(UTC) - intent.started).total_seconds()
    return {
        "event": "batch",
        "pipeline": intent.pipeline,
        "batch": intent.batch,
        **intent.counts.counters(),
        "bytes": intent.counts.value_bytes,
        "tables": {each.path: _committed_part(each) for each in receipts},
        "runs": intent.runs,
        "phases": phases.rounded(),
        "seconds": round(seconds, 3),
    }


def _committed_part(receipt: Receipt) -> dict[str, Any]:
    """What a commit has added to its table."""
    part = {"version": receipt.version, "rows": receipt.rows, "files": receipt.files, "bytes": receipt.bytes}
    return part | ({"conflicts": receipt.conflicts} if receipt.conflicts else {})


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
