"""Views of pipelines from their state alone, for a console in another process than theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from headrace.errors import HeadraceError
from headrace.plan.accounting import COUNTERS, Counts
from headrace.serve.console.state import StoredPipeline
from headrace.serve.monitor import Monitor
from headrace.serve.pipeline_view import (
    BatchActivity,
    LagView,
    PartitionLag,
    PipelineState,
    PipelineView,
    RateSample,
    StateReason,
    TableActivity,
)
from headrace.serve.redaction import Redaction
from headrace.source.base import open_source
from headrace.spec import Spec

_INTERVAL = 5.0  # seconds between two looks at a state
_BATCHES = 50


class StateWatch(Monitor):
    """A monitor without events: it reads ledgers, leases and lags, each pipeline in a thread of its own."""

    def __init__(self, specs: Iterable[Spec], redaction: Redaction) -> None:
        super().__init__(specs)
        self._redaction = redaction
        self._views = {view.name: view for view in super().pipelines()}
        self._is_over = threading.Event()

    def start(self) -> None:
        """Start reading."""
        for view in self.pipelines():
            thread = threading.Thread(target=self._follow, args=(view.spec,), name=f"state of {view.name}", daemon=True)
            thread.start()

    def stop(self) -> None:
        """Stop reading; a thread that waits for a broker or a store ends with the process."""
        self._is_over.set()

    def pipelines(self) -> tuple[PipelineView, ...]:
        """All pipelines, by name."""
        return tuple(self._views[name] for name in sorted(self._views))

    def pipeline(self, name: str) -> PipelineView:
        """One pipeline; KeyError if it is not watched."""
        return self._views[name]

    def _follow(self, spec: Spec) -> None:
        samples: tuple[RateSample, ...] = ()
        while not self._is_over.is_set():
            view = self.read(spec, super().pipeline(spec.pipeline), samples)
            samples = view.samples
            self._views = {**self._views, spec.pipeline: view}
            self._is_over.wait(_INTERVAL)

    def read(self, spec: Spec, empty: PipelineView, samples: Sequence[RateSample] = ()) -> PipelineView:
        """The view of a pipeline now; `empty`: one without activity."""
        now = datetime.now(UTC)
        try:
            return _view(StoredPipeline(spec), empty, samples, now)
        except HeadraceError as error:
            reason = StateReason(error.name, self._redaction.text(error.message), self._redaction.text(error.hint))
            return replace(empty, state=PipelineState.FAILED, since=now, reason=reason)


def _view(stored: StoredPipeline, empty: PipelineView, samples: Sequence[RateSample], now: datetime) -> PipelineView:
    ledger, holder = stored.ledger(), stored.holder()
    rows = [row for row in ledger.rows(_BATCHES) if row["kind"] != "decision"]
    lag = _lag(stored.spec, ledger.position(), now)
    reason = StateReason(None, "no process holds its lease")
    if holder is not None:
        reason = StateReason(None, f"runs on {holder['host']} as process {holder['pid']}; figures are from its state")
    finished = rows[-1]["finished"] if rows else None
    rate = _rate(rows, now) if holder is not None else None
    sample = RateSample(now, rate, lag.records)
    return replace(
        empty,
        state=PipelineState.STOPPED if holder is None else PipelineState.RUNNING,
        since=datetime.fromtimestamp(float(str(holder["since"])), UTC) if holder else finished or empty.since,
        reason=reason,
        batch=ledger.batch or None,
        committed=finished,
        counts=sum((_counts(row) for row in rows), Counts()),
        batches=len(rows),
        records_per_second=rate,
        lag=lag,
        tables=_tables(rows),
        last_batches=tuple(_activity(row) for row in rows),
        samples=(*samples, sample)[-180:],
    )


def _counts(row: Mapping[str, Any]) -> Counts:
    return Counts(**{name: row[name] for name in COUNTERS})


def _activity(row: Mapping[str, Any]) -> BatchActivity:
    seconds = (row["finished"] - row["started"]).total_seconds()
    return BatchActivity(
        row["batch"], row["finished"], row["read"], row["dead"], len(row["tables"] or ()), round(seconds, 3), {}
    )


def _tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, TableActivity]:
    tables: dict[str, TableActivity] = {}
    for row in rows:
        for each in row["tables"] or ():
            before = tables.get(each["path"], TableActivity(0, row["finished"]))
            tables[each["path"]] = TableActivity(
                each["version"],
                row["finished"],
                before.commits + 1,
                before.rows + (each["rows"] or 0),
                before.files + (each["files"] or 0),
                before.bytes + (each["bytes"] or 0),
            )
    return tables


def _rate(rows: Sequence[Mapping[str, Any]], now: datetime) -> float | None:
    """Records per second of the last minute, from the batches that have ended in it."""
    recent = [row for row in rows if (now - row["finished"]).total_seconds() < 60]
    if not recent:
        return None
    seconds: float = (recent[-1]["finished"] - recent[0]["started"]).total_seconds()
    return round(sum(int(row["read"]) for row in recent) / max(seconds, 0.001), 1)


def _lag(spec: Spec, position: Mapping[tuple[str, int], int], now: datetime) -> LagView:
    """The lag as the source answers it; unknown if it does not."""
    try:
        source = open_source(spec)
    except HeadraceError:
        return LagView(checked=now)
    try:
        lag = source.lag(dict(position))
        partitions = {
            (each["topic"], each["partition"]): PartitionLag(
                each["position"], each["end"], each["lag"], each["lag_seconds"]
            )
            for each in lag.partitions(position)
        }
        reason = "open_transaction" if lag.open_transaction else None
        return LagView(lag.records, lag.seconds, reason, now, partitions)
    except HeadraceError:
        return LagView(checked=now)
    finally:
        source.close()
