"""What was done to a table: one entry a version, newest first, and how long operations took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.delta.actions import Commit, File
from headrace.delta.log import LogWalk
from headrace.errors import HeadraceError
from headrace.storage.store import Store
from headrace.table.stats import statistics as statistics_of

_NAMES = ("userName", "userId", "engineInfo", "clientVersion")  # who did it, the most telling first
_WRITTEN = (  # the most telling first, by the names of Spark and of delta-rs
    ("numTargetRowsInserted", "numTargetRowsUpdated"),
    ("num_target_rows_inserted", "num_target_rows_updated"),
    ("numUpdatedRows",),
    ("num_updated_rows",),
    ("numOutputRows",),
    ("num_added_rows",),
)
_DELETED = ("numDeletedRows", "num_deleted_rows")
_TOOK = ("executionTimeMs", "execution_time_ms")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One version of a table."""

    version: int
    timestamp: datetime | None
    operation: str
    user: str | None  # a person where the commit names one, else the program
    rows_written: int | None
    rows_after: int | None  # None where a file does not tell how many it holds
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    account: Mapping[str, Any]  # Headrace's own: pipeline, batch, ranges, counts; empty for others' commits


def history(store: Store, version: int, limit: int | None = None) -> list[HistoryEntry]:
    """The versions up to this one, newest first, as far back as the log tells."""
    commits = list(LogWalk(store, version, -1 if limit is None else max(-1, version - limit)))
    after = _rows_after(commits, _rows_now(store, version))
    return [_entry(commit, rows) for commit, rows in zip(commits, after, strict=True)]


def _rows_now(store: Store, version: int) -> int | None:
    try:
        return statistics_of(store, version).rows
    except HeadraceError:  # a table that only Spark reads still has a history
        return None


def _rows_after(commits: Iterable[Commit], now: int | None) -> Iterator[int | None]:
    """Back from what the table holds now: each version had what its successor did not change."""
    commits = list(commits)
    held = {file.key: file.rows for commit in commits for file in commit.added}
    for commit in commits:
        yield now
        change = _change(commit, held)
        now = None if now is None or change is None else now - change


def _change(commit: Commit, held: Mapping[tuple[str, str], int | None]) -> int | None:
    """How many rows a commit brought, less what it took away; None where its files do not tell."""
    brought = [file.rows for file in commit.added if file.changes_data]
    taken = [_rows(file, held) for file in commit.removed if file.changes_data]
    told = [rows for rows in (*brought, *taken) if rows is not None]
    return sum(told[: len(brought)]) - sum(told[len(brought) :]) if len(told) == len(brought) + len(taken) else None


def _rows(file: File, held: Mapping[tuple[str, str], int | None]) -> int | None:
    return file.rows if file.held is not None else held.get(file.key)


def _entry(commit: Commit, rows_after: int | None) -> HistoryEntry:
    info = commit.info
    metrics = dict(info.get("operationMetrics") or {})
    at = datetime.fromtimestamp(commit.timestamp / 1000, UTC) if commit.timestamp else None
    return HistoryEntry(
        commit.version,
        at,
        commit.operation,
        next((str(info[name]) for name in _NAMES if info.get(name)), None),
        _written(commit, metrics),
        rows_after,
        dict(info.get("operationParameters") or {}),
        metrics,
        dict(commit.account),
    )


def _written(commit: Commit, metrics: Mapping[str, Any]) -> int | None:
    """Rows that are new or other than before; those that a rewrite only carried over are not among them."""
    for names in _WRITTEN:
        if told := [int(metrics[name]) for name in names if metrics.get(name) is not None]:
            return sum(told)
    if any(metrics.get(name) is not None for name in _DELETED):
        return 0
    added = [file.held for file in commit.added if file.changes_data]
    known = [rows for rows in added if rows is not None]
    return sum(known) if len(known) == len(added) else None


@dataclass(frozen=True, slots=True)
class Latency:
    """How long an operation took, in seconds."""

    count: int
    last: float
    mean: float
    longest: float

    @classmethod
    def of(cls, seconds: list[float]) -> Latency:
        """Of at least one."""
        return cls(len(seconds), seconds[-1], statistics.fmean(seconds), max(seconds))


@dataclass(frozen=True, slots=True)
class OperationLatencies:
    """Latencies by operation: of this very object since it was opened, and as commits tell their own."""

    since_open: Mapping[str, Latency]
    history: Mapping[str, Latency]


@dataclass
class Watch:
    """Takes the time of operations."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def __call__(self, operation: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds.setdefault(operation, []).append(time.perf_counter() - began)

    def metrics(self, entries: Iterable[HistoryEntry]) -> OperationLatencies:
        """Since the table was opened, and of these versions, given newest first."""
        told: dict[str, list[float]] = {}
        for entry in reversed(list(entries)):
            if took := next((entry.metrics[name] for name in _TOOK if entry.metrics.get(name) is not None), None):
                told.setdefault(entry.operation, []).append(float(took) / 1000)
        return OperationLatencies(_latencies(self.seconds), _latencies(told))


def _latencies(seconds: Mapping[str, list[float]]) -> dict[str, Latency]:
    return {operation: Latency.of(each) for operation, each in sorted(seconds.items())}
