"""The monitor: observes the events of all pipelines of a process, for everything that shows or exports them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import HotStoreUnreachable
from headrace.plan.accounting import COUNTERS, Counts
from headrace.serve.pipeline_view import (
    BatchActivity,
    Distribution,
    HotTableActivity,
    LagView,
    MaintenanceActivity,
    PartitionLag,
    PipelineState,
    PipelineView,
    RateSample,
    StateReason,
    TableActivity,
    TableFiles,
)
from headrace.spec import Spec

_SAMPLE_INTERVAL, _SAMPLES = timedelta(seconds=5), 180  # 15 minutes
_RATE_WINDOW = timedelta(seconds=30)
_LAG_VALID = timedelta(seconds=30)  # it is read every two seconds; an older one is unknown
_LAST_BATCHES = 50
_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # bounds of durations
RECEIVED = ("records", "bytes", "requests", "duplicates", "full", "syncs", "spool_records", "spool_bytes")
_ACTIVE = (PipelineState.STARTING, PipelineState.RUNNING, PipelineState.RETRYING)
_READING_LAG = (*_ACTIVE, PipelineState.PAUSED)


def _now() -> datetime:
    return datetime.now(UTC)


class Monitor:
    """Takes every event of a run (`Report`) and keeps a view of each pipeline; all methods are thread-safe."""

    def __init__(
        self,
        specs: Iterable[Spec] = (),
        clock: Callable[[], datetime] = _now,
        on_add: Callable[[Spec], object] = lambda spec: None,
    ) -> None:
        """`on_add`: called with each spec before its first event."""
        self.started = clock()
        self._clock, self._on_add = clock, on_add
        self._pipelines: dict[str, _Pipeline] = {}
        self._changed = threading.Condition()
        self._changes = 0
        for spec in specs:
            self.add(spec)

    def add(self, spec: Spec) -> None:
        """Observe a pipeline; one that is observed already keeps its counts and gets the new spec."""
        self._on_add(spec)
        with self._changed:
            known = self._pipelines.setdefault(spec.pipeline, _Pipeline(spec, self._clock()))
            known.spec = spec
            self._notify()

    def remove(self, name: str) -> None:
        """Forget a pipeline."""
        with self._changed:
            self._pipelines.pop(name, None)
            self._notify()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take over an event; those of unknown pipelines or kinds change nothing."""
        handler = _HANDLERS.get(event["event"])
        with self._changed:
            pipeline = self._pipelines.get(event.get("pipeline", ""))
            if pipeline is not None and handler is not None:
                handler(pipeline, event, self._clock())
                self._notify()

    def pipelines(self) -> tuple[PipelineView, ...]:
        """All pipelines, by name."""
        with self._changed:
            return tuple(self._pipelines[name].view(self._clock()) for name in sorted(self._pipelines))

    def pipeline(self, name: str) -> PipelineView:
        """One pipeline; KeyError if it is not observed."""
        with self._changed:
            return self._pipelines[name].view(self._clock())

    def changes(self) -> int:
        """Number of changes so far, for `wait`."""
        with self._changed:
            return self._changes

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until there are more changes than `seen`, or for `timeout` seconds; returns the number of changes."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes > seen, timeout)
            return self._changes

    def _notify(self) -> None:
        self._changes += 1
        self._changed.notify_all()


class _Pipeline:
    """The state of a pipeline; used under the lock of the monitor."""

    def __init__(self, spec: Spec, now: datetime) -> None:
        self.spec = spec
        self._state, self._since = PipelineState.STARTING, now
        self._reason: StateReason | None = None
        self._retry_until = now
        self._batch: int | None = None
        self._committed: datetime | None = None
        self._counts, self._reading = Counts(), 0
        self._batches = self._recovered = 0
        self._starts = 1
        self._lag = LagView()
        self._retries: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._tables: dict[str, TableActivity] = {}
        self._last_batches: deque[BatchActivity] = deque(maxlen=_LAST_BATCHES)
        self._phases: Counter[str] = Counter()
        self._durations: dict[str, Distribution] = {}
        self._schema_changes = 0
        self._batch_seconds = Distribution.empty(*_SECONDS)
        self._batch_records = Distribution.empty(1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
        self._maintenance: dict[tuple[str, str], MaintenanceActivity] = {}
        self._table_files: dict[str, TableFiles] = {}
        self._received: dict[str, int] = {}
        self._hot_tables: dict[str, HotTableActivity] = {}
        self._hot_store_error: str | None = None
        self._fresh = now  # when the freshness target was met last
        self._samples: deque[RateSample] = deque(maxlen=_SAMPLES)
        self._read_counts: deque[tuple[datetime, int]] = deque([(now, 0)])  # records read until then, for the rate

    def view(self, now: datetime) -> PipelineView:
        """The pipeline now."""
        stale = self._lag.checked is None or now - self._lag.checked > _LAG_VALID
        return PipelineView(
            name=self.spec.pipeline,
            spec=self.spec,
            state=self._state,
            since=self._since,
            reason=self._reason,
            batch=self._batch,
            committed=self._committed,
            counts=self._counts,
            reading=self._reading,
            batches=self._batches,
            recovered=self._recovered,
            records_per_second=self._rate(now),
            lag=LagView(checked=self._lag.checked) if stale else self._lag,
            retries=dict(self._retries),
            errors=dict(self._errors),
            starts=self._starts,
            tables=dict(self._tables),
            last_batches=tuple(self._last_batches),
            samples=tuple(self._samples),
            phases=dict(self._phases),
            durations=dict(self._durations),
            schema_changes=self._schema_changes,
            batch_seconds=self._batch_seconds,
            batch_records=self._batch_records,
            maintenance=dict(self._maintenance),
            table_files=dict(self._table_files),
            received=dict(self._received),
            hot_tables=dict(self._hot_tables),
            hot_store_error=self._hot_store_error,
            is_fresh=self._is_fresh(now),
        )

    # ---- events ----

    def on_state(self, event: Mapping[str, Any], now: datetime) -> None:
        """A state that the supervisor sets."""
        state, text = PipelineState(event["state"]), event.get("reason")
        if state in (PipelineState.STOPPED, PipelineState.FAILED) and self._state is PipelineState.FAILED:
            return  # the error is the reason
        reason = None if text is None else StateReason(None, text)
        if state is PipelineState.RESTARTING and self._state is PipelineState.FAILED:
            reason = self._reason
        self._starts += state is PipelineState.RESTARTING
        self._enter(state, reason, now)

    def on_progress(self, event: Mapping[str, Any], now: datetime) -> None:
        """Lag, and progress of the current batch."""
        if self._state in _READING_LAG:
            known = event["lag"] is not None
            partitions = self._lag.partitions if known else {}
            self._lag = LagView(event["lag"], event["lag_seconds"], event["lag_reason"], now, partitions)
            self._reading = event["batch_read"] or 0
            if known and self._is_within_target():
                self._fresh = now
            if self._state is PipelineState.STARTING or self._has_recovered(event, now):
                self._enter(PipelineState.RUNNING, None, now)
        self._sample(now)

    def on_partitions(self, event: Mapping[str, Any], now: datetime) -> None:
        """Lag of each partition."""
        if self._state in _READING_LAG:
            partitions = {
                (each["topic"], each["partition"]): PartitionLag(
                    each["position"], each["end"], each["lag"], each["lag_seconds"]
                )
                for each in event["partitions"]
            }
            self._lag = replace(self._lag, partitions=partitions, checked=now)

    def on_batch(self, event: Mapping[str, Any], now: datetime) -> None:
        """A batch is recorded in the ledger."""
        counts = Counts(**{name: event[name] for name in COUNTERS}, value_bytes=event.get("bytes", 0))
        self._counts, self._reading = self._counts + counts, 0
        self._batch, self._committed = event["batch"], now
        self._batches += 1
        for path, table in event["tables"].items():
            self._tables[path] = _with_commit(self._tables.get(path), table, now)
        phases = event.get("phases", {})
        self._phases.update(phases)
        for phase, seconds in phases.items():
            self._durations[phase] = self._durations.get(phase, Distribution.empty(*_SECONDS)) + seconds
        self._batch_seconds += event["seconds"]
        self._batch_records += event["read"]
        self._last_batches.append(
            BatchActivity(
                event["batch"], now, event["read"], event["dead"], len(event["tables"]), event["seconds"], phases
            )
        )
        if self._state in _ACTIVE:
            self._enter(PipelineState.RUNNING, None, now)
        self._sample(now)

    def on_retry(self, event: Mapping[str, Any], now: datetime) -> None:
        """A transient error."""
        self._retries[event["error"]] += 1
        if event["error"] == HotStoreUnreachable.__name__:  # batches may continue
            self._fail_hot_store(event)
            return
        self._retry_until = now + timedelta(seconds=event["seconds"])
        if self._state in _ACTIVE:
            self._enter(PipelineState.RETRYING, StateReason(event["error"], event["message"]), now)

    def on_error(self, event: Mapping[str, Any], now: datetime) -> None:
        """The error that stops the pipeline."""
        self._errors[event["error"]] += 1
        self._enter(PipelineState.FAILED, StateReason(event["error"], event["message"], event["hint"]), now)

    def on_columns(self, event: Mapping[str, Any], now: datetime) -> None:
        """Columns were inferred from records, or added to a table."""
        self._schema_changes += 1

    def on_recover(self, event: Mapping[str, Any], now: datetime) -> None:
        """An unfinished batch is completed."""
        self._recovered += 1

    def on_received(self, event: Mapping[str, Any], now: datetime) -> None:
        """A receiver without a pipeline behind it runs."""
        self._received = {name: event[name] for name in RECEIVED}
        if self._state in _ACTIVE:
            self._enter(PipelineState.RUNNING, None, now)

    def on_maintenance(self, event: Mapping[str, Any], now: datetime) -> None:
        """A maintenance operation."""
        if event["state"] != "started":
            key = (event["operation"], event["state"])
            before = self._maintenance.get(key, MaintenanceActivity())
            self._maintenance[key] = MaintenanceActivity(
                before.count + 1,
                before.seconds + event.get("seconds", 0.0),
                before.files + (event["files"] or 0),
                before.bytes + (event["bytes"] or 0),
            )

    def on_table_files(self, event: Mapping[str, Any], now: datetime) -> None:
        """What maintenance has counted in a table."""
        known = self._table_files.get(event["table"], TableFiles())
        counts = {name: event[name] for name in TableFiles.__dataclass_fields__ if name in event}
        self._table_files[event["table"]] = replace(known, **counts)

    def on_hot_store(self, event: Mapping[str, Any], now: datetime) -> None:
        """The hot store has written commits, cannot, or has all of them again."""
        if event["state"] == "failed":
            self._fail_hot_store(event)
        elif event["state"] == "recovered":
            self._hot_store_error = None
            self._set_hot_store_lag(0, 0.0)
        elif event["state"] in ("applied", "loaded"):
            before = self._hot_tables.get(event["table"], HotTableActivity(0, None, None))
            self._hot_tables[event["table"]] = HotTableActivity(
                event["version"],
                event["lag_commits"],
                event["lag_seconds"],
                before.rows + event["rows"],
                before.removed + event["removed"],
                before.rejected + event["rejected"],
            )

    def _fail_hot_store(self, event: Mapping[str, Any]) -> None:
        """Note the error; until it is resolved, nobody knows how many commits are missing."""
        self._hot_store_error = f"{event['error']}: {event['message']}"
        self._set_hot_store_lag(None, None)

    def _set_hot_store_lag(self, commits: int | None, seconds: float | None) -> None:
        for path, table in self._hot_tables.items():
            self._hot_tables[path] = replace(table, lag_commits=commits, lag_seconds=seconds)

    # ---- state, rate, freshness ----

    def _enter(self, state: PipelineState, reason: StateReason | None, now: datetime) -> None:
        """Enter a state, or update the reason of the current one."""
        if state is not self._state:
            self._since = now
        if self._state is PipelineState.STARTING:
            self._read_counts = deque([(now, self._counts.read + self._reading)])  # the start is no part of the rate
        self._state, self._reason = state, reason
        if state not in _READING_LAG:
            self._lag, self._reading = LagView(), 0  # nobody reads the end of the topics now
            self._hot_store_error = None  # nor writes to the hot store
            self._set_hot_store_lag(None, None)

    def _has_recovered(self, event: Mapping[str, Any], now: datetime) -> bool:
        """Whether a retry has succeeded. Storage may be retried within a batch, while the lag is still reported."""
        if self._state is not PipelineState.RETRYING or event["lag"] is None or now < self._retry_until:
            return False
        waits_for_broker = self._reason is not None and self._reason.error == "BrokerUnreachable"
        return waits_for_broker or event["batch"] is None

    def _is_within_target(self) -> bool:
        """Whether no unread record is older than the target."""
        target, lag = self.spec.freshness, self._lag
        return (
            target is None
            or lag.records == 0
            or (lag.seconds is not None and lag.seconds <= target.target.total_seconds())
        )

    def _is_fresh(self, now: datetime) -> bool | None:
        """False once an unread record is older than the target, or once that has been unknown for as long."""
        if self.spec.freshness is None:
            return None
        is_old = self._lag.seconds is not None and not self._is_within_target()
        return not is_old and now - self._fresh <= self.spec.freshness.target

    def _sample(self, now: datetime) -> None:
        """Note the number of records, and rate and lag for the charts."""
        self._read_counts.append((now, self._counts.read + self._reading))
        while len(self._read_counts) > 2 and now - self._read_counts[1][0] >= _RATE_WINDOW:
            self._read_counts.popleft()
        if not self._samples or now - self._samples[-1].at >= _SAMPLE_INTERVAL:
            self._samples.append(RateSample(now, self._rate(now), self._lag.records))

    def _rate(self, now: datetime) -> float | None:
        """Records per second between the oldest and the newest count; None if nothing was reported for too long."""
        (start, first), (end, last) = self._read_counts[0], self._read_counts[-1]
        if now - end > _RATE_WINDOW or end <= start:
            return None
        return round(max(0, last - first) / (end - start).total_seconds(), 1)


def _with_commit(activity: TableActivity | None, table: Mapping[str, Any], now: datetime) -> TableActivity:
    """The activity of a table after one more commit."""
    before = activity or TableActivity(0, now)
    return TableActivity(
        table["version"],
        now,
        before.commits + 1,
        before.rows + table["rows"],
        before.files + table.get("files", 0),
        before.bytes + table.get("bytes", 0),
        before.conflicts + table.get("conflicts", 0),
    )


_HANDLERS: Mapping[str, Callable[[_Pipeline, Mapping[str, Any], datetime], None]] = {
    "state": _Pipeline.on_state,
    "progress": _Pipeline.on_progress,
    "partitions": _Pipeline.on_partitions,
    "batch": _Pipeline.on_batch,
    "retry": _Pipeline.on_retry,
    "error": _Pipeline.on_error,
    "columns": _Pipeline.on_columns,
    "recover": _Pipeline.on_recover,
    "received": _Pipeline.on_received,
    "table_files": _Pipeline.on_table_files,
    "maintenance": _Pipeline.on_maintenance,
    "hot_store": _Pipeline.on_hot_store,
}
