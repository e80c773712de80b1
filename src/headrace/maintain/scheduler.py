"""Schedule maintenance: plan for all tables at intervals, run one action between two batches.

Maintenance commits through the log writers or the Spark session of the pipeline, without txns. An action that fails
half-way leaves files that no commit references, or a finished compaction; batches are not affected. Only errors that
would stop the next batch as well stop the pipeline.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from headrace.delta.log_writer import LogWriter
from headrace.delta.properties import interval_of
from headrace.delta.snapshot import open_at
from headrace.errors import CommitConflict, PermissionDenied, TableError, TransientError
from headrace.maintain import log_cleanup
from headrace.maintain.journal import Journal
from headrace.maintain.maintained_table import LogMaintainedTable, MaintainedTable, SparkMaintainedTable
from headrace.maintain.planner import Action, plan_rewrites
from headrace.pipeline.context import PipelineContext
from headrace.spec.maintenance import MaintenanceSpec
from headrace.table.ownership import TableOwners
from headrace.table.vacuum import retention, unused_files
from headrace.write.append import AppendWriter
from headrace.write.leased_writer import LeasedWriter
from headrace.write.tombstones import TOMBSTONES

_REPORTED = (CommitConflict, TransientError, TableError, PermissionDenied)  # and retried at a later plan


class MaintenanceScheduler:
    """Maintenance of the tables of one pipeline; called between batches, never during one."""

    def __init__(self, rules: MaintenanceSpec, clock: Callable[[], float] = time.time) -> None:
        self._rules, self._clock = rules, clock
        self._context: PipelineContext  # of the call
        self._tables: dict[str, MaintainedTable] = {}
        self._queue: deque[Action] = deque()
        self._planned_at = float("-inf")
        self._open_journal: Journal | None = None

    def __call__(self, context: PipelineContext, at_end: bool = False) -> None:
        """Run one action that is due, unless the pipeline lags; at the end of a bounded run, all of them."""
        self._context = context
        if not at_end and context.lag_seconds is not None and context.lag_seconds > self._rules.max_lag.total_seconds():
            return
        if at_end or not 0 <= self._clock() - self._planned_at < self._rules.every.total_seconds():
            self._plan()
        while self._queue and not context.stop.is_set():
            self._run(self._queue.popleft())
            if not at_end:
                return

    # ---- planning ----

    def _plan(self) -> None:
        """Plan the actions that are due for all tables."""
        self._planned_at = now = self._clock()
        proved = self._context.ledger.proved_time(datetime.fromtimestamp(now, UTC), self._rules.retention)
        actions: list[Action] = []
        with self._reporting():
            self._tables = {
                table.store.uri: table.resume(self._tables.get(table.store.uri)) for table in self._open_tables()
            }
            for table in list(self._tables.values()):
                with self._reporting(table.store.uri):
                    actions += self._due(table, now, proved)
            actions += self._vacuum_due(now, proved)
        self._queue = deque(sorted(actions, key=lambda action: not action.idle))

    def _open_tables(self) -> Iterator[MaintainedTable]:
        """The pipeline's tables, its dead letters, its ledger and its tombstones."""
        context = self._context
        for store, writer, rules in context.tables.written():
            if isinstance(writer, AppendWriter):
                yield LogMaintainedTable(writer.log_writer, rules)
            elif isinstance(writer, LeasedWriter):
                yield SparkMaintainedTable(writer, store, rules, context.spark(), self._journal.ordered_until)
        tombstones = context.state.child(TOMBSTONES)
        for log_writer in (
            context.ledger.log_writer,
            *(LogWriter.open(tombstones.child(folder)) for folder in tombstones.folders()),
        ):
            if log_writer.state is not None:
                yield LogMaintainedTable(log_writer, None)

    def _due(self, table: MaintainedTable, now: float, proved: datetime) -> Iterator[Action]:
        state = table.state
        if state.version != table.planned_version:
            self._follow(table)
            self._report_files(table)
            retain = max(self._rules.retention, interval_of(state, log_cleanup.RETENTION) or self._rules.retention)
            yield from table.checkpoints_due()
            yield from log_cleanup.cleanup_due(table.store, retain, proved)
        yield from plan_rewrites(
            table.store.uri,
            table.listing.files,
            table.targets,
            self._rules,
            now,
            table.is_ordered,
            table.partition_of,
        )

    def _follow(self, table: MaintainedTable) -> None:
        table.listing.follow(table.state.version)
        table.planned_version = table.state.version

    def _vacuum_due(self, now: float, proved: datetime) -> Iterator[Action]:
        """Plan a vacuum of one table at a time, since it lists all files of the table."""
        for uri, table in self._tables.items():
            if 0 <= now - self._journal.vacuumed.get(uri, 0.0) < self._rules.vacuum_every.total_seconds():
                continue
            owners = TableOwners(table.store, {self._context.spec.pipeline: self._context.state.uri})
            try:
                retain = max(self._rules.retention, retention(table.state))
            except TableError:  # reported; the other tables must not wait until the property is corrected
                self._journal.record_vacuum(uri, now)
                raise
            files = unused_files(table.store, owners, retain, proved)
            self._report_table(uri, {"unused_files": len(files.files), "unused_bytes": files.bytes})
            self._journal.record_vacuum(uri, now)
            if files.files:
                reason = "not needed by any retained version"
                yield Action("vacuum", uri, reason, len(files.files), files.bytes, paths=files.files)
            return

    # ---- running ----

    def _run(self, action: Action) -> None:
        self._context.lease.check()
        started = time.monotonic()
        with self._reporting(action.table, action):
            self._report(action, "started")
            self._journal.start(action, self._clock())
            result = self._result_of(action)
            self._journal.finish(result, self._clock())
            self._report(action, "done", {**result, "seconds": round(time.monotonic() - started, 3)})

    def _result_of(self, action: Action) -> Mapping[str, Any]:
        table = self._tables[action.table]
        operation = "vacuum" if action.operation == "vacuum" else "optimize"
        info = {"operation": operation, "by": self._context.spec.pipeline, "reason": action.reason}
        if action.bins:
            optimized = table.rewrite(action, info)
            if action.operation == "z_order" and isinstance(table, SparkMaintainedTable):
                self._record_order(table, action)
            return {
                "version": optimized.version,
                "files_added": optimized.files_added,
                "bytes_added": optimized.bytes_added,
            }
        if action.operation == "checkpoint":
            open_at(table.store, table.state.version).create_checkpoint()
            return {"version": table.state.version}
        if action.operation == "clean_log":
            # The next start looks for a RESTORE only in commits after those recorded here.
            self._context.tables.follow_logs()
            self._context.ledger.known.store(tables=self._context.tables.known_tables())
        table.store.delete(action.paths)
        if action.operation == "vacuum":
            metrics = {"numDeletedFiles": str(action.files), "sizeOfDataDeleted": str(action.bytes)}
            return table.record_vacuum(metrics, info)
        return {}

    def _record_order(self, table: MaintainedTable, action: Action) -> None:
        """Record in the journal which files are z-ordered; names of Spark's files do not tell."""
        self._follow(table)
        until: dict[str, int] = {table.partition_of(files[0]): 0 for files in action.bins}
        for file in table.listing.files:
            if (partition := table.partition_of(file)) in until:
                until[partition] = max(until[partition], file.modified)
        self._journal.record_order(table.store.uri, until)

    @property
    def _journal(self) -> Journal:
        if self._open_journal is None:
            self._open_journal = Journal(self._context.state)
        return self._open_journal

    # ---- reporting ----

    @contextmanager
    def _reporting(self, table: str = "", action: Action | None = None) -> Iterator[None]:
        """Report errors that do not stop the pipeline, and plan again for the table; raise the others."""
        try:
            yield
        except _REPORTED as error:
            self._tables.pop(table, None)
            self._queue = deque(queued for queued in self._queue if queued.table != table)
            self._open_journal = None
            message = f"{error.name}: {error.message}"
            self._report(action or Action("plan", table, "planning", 0, 0), "failed", {"message": message})

    def _report_files(self, table: MaintainedTable) -> None:
        """Report how many files of a table are small, for metrics."""
        sizes = [file.size for file in table.listing.files if file.size < table.targets.min_size]
        self._report_table(table.store.uri, {"small_files": len(sizes), "small_bytes": sum(sizes)})

    def _report_table(self, uri: str, counts: Mapping[str, int]) -> None:
        self._context.report({"event": "table_files", "pipeline": self._context.spec.pipeline, "table": uri, **counts})

    def _report(self, action: Action, state: str, result: Mapping[str, Any] | None = None) -> None:
        event = {"event": "maintenance", "pipeline": self._context.spec.pipeline, "state": state}
        self._context.report({**event, **action.to_dict(), **(result or {})})
