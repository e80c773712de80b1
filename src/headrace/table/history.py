"""Table history, one entry per version, and latencies of operations."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.delta.actions import Commit
from headrace.delta.log import LogWalk
from headrace.errors import HeadraceError
from headrace.storage.store import Store
from headrace.table.stats import statistics as statistics_of

# In order of preference; metrics with the names of Spark and of delta-rs.
_USER = ("userName", "userId", "engineInfo", "clientVersion")
_WRITTEN = (
    ("numTargetRowsInserted", "numTargetRowsUpdated"),
    ("num_target_rows_inserted", "num_target_rows_updated"),
    ("numUpdatedRows",),
    ("num_updated_rows",),
    ("numOutputRows",),
    ("num_added_rows",),
)
_DELETED = ("numDeletedRows", "num_deleted_rows")
_DURATION = ("executionTimeMs", "execution_time_ms")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One version of a table."""

    version: int
    timestamp: datetime | None
    operation: str
    user: str | None  # the user if the commit names one, else the engine
    rows_written: int | None
    rows_after: int | None  # None if a file has no row count
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    headrace: Mapping[str, Any]  # `commitInfo.headrace`: pipeline, batch, ranges, counts; empty for other writers


def history(store: Store, version: int, limit: int | None = None) -> list[HistoryEntry]:
    """The commits up to a version, newest first, as far back as the log goes."""
    commits = list(LogWalk(store, version, -1 if limit is None else max(-1, version - limit)))
    after = _rows_after(commits, _rows_now(store, version))
    return [_entry(commit, rows) for commit, rows in zip(commits, after, strict=True)]


def _rows_now(store: Store, version: int) -> int | None:
    try:
        return statistics_of(store, version).rows
    except HeadraceError:  # a table that only Spark reads still has a history
        return None


def _rows_after(commits: Iterable[Commit], now: int | None) -> Iterator[int | None]:
    """Row counts after each commit, computed backwards: the rows now, less the net change of every newer commit."""
    commits = list(commits)
    counts = {file.key: file.rows for commit in commits for file in commit.added}
    for commit in commits:
        yield now
        change = _net_change(commit, counts)
        now = None if now is None or change is None else now - change


def _net_change(commit: Commit, counts: Mapping[tuple[str, str], int | None]) -> int | None:
    """Rows added less rows removed; None if a file has no row count. `counts` are those of the `add` actions."""
    added = [file.rows for file in commit.added if file.changes_data]
    removed = [
        file.rows if file.num_records is not None else counts.get(file.key)
        for file in commit.removed
        if file.changes_data
    ]
    if None in added or None in removed:
        return None
    return sum(filter(None, added)) - sum(filter(None, removed))


def _entry(commit: Commit, rows_after: int | None) -> HistoryEntry:
    info = commit.info
    metrics = dict(info.get("operationMetrics") or {})
    timestamp = datetime.fromtimestamp(commit.timestamp / 1000, UTC) if commit.timestamp else None
    return HistoryEntry(
        commit.version,
        timestamp,
        commit.operation,
        next((str(info[name]) for name in _USER if info.get(name)), None),
        _written(commit, metrics),
        rows_after,
        dict(info.get("operationParameters") or {}),
        metrics,
        dict(commit.account),
    )


def _written(commit: Commit, metrics: Mapping[str, Any]) -> int | None:
    """Inserted and updated rows; rows that a rewrite only copies do not count."""
    for names in _WRITTEN:
        if counts := [int(metrics[name]) for name in names if metrics.get(name) is not None]:
            return sum(counts)
    if any(metrics.get(name) is not None for name in _DELETED):
        return 0
    added = [file.num_records for file in commit.added if file.changes_data]
    return None if None in added else sum(filter(None, added))


@dataclass(frozen=True, slots=True)
class Latency:
    """Duration of an operation in seconds."""

    count: int
    last: float
    mean: float
    longest: float

    @classmethod
    def of(cls, seconds: list[float]) -> Latency:
        """Summarize at least one duration."""
        return cls(len(seconds), seconds[-1], statistics.fmean(seconds), max(seconds))


@dataclass(frozen=True, slots=True)
class OperationLatencies:
    """Latencies by operation: of this object since it was opened, and those recorded in commits."""

    since_open: Mapping[str, Latency]
    history: Mapping[str, Latency]


@dataclass
class Watch:
    """Measures the duration of operations."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def __call__(self, operation: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds.setdefault(operation, []).append(time.perf_counter() - started)

    def metrics(self, entries: Iterable[HistoryEntry]) -> OperationLatencies:
        """Latencies since the table was opened, and of these entries, which are newest first."""
        durations: dict[str, list[float]] = {}
        for entry in reversed(list(entries)):
            if millis := next((entry.metrics[name] for name in _DURATION if entry.metrics.get(name) is not None), None):
                durations.setdefault(entry.operation, []).append(float(millis) / 1000)
        return OperationLatencies(_latencies(self.seconds), _latencies(durations))


def _latencies(seconds: Mapping[str, list[float]]) -> dict[str, Latency]:
    return {operation: Latency.of(values) for operation, values in sorted(seconds.items())}
