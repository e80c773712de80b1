"""Upkeep at work: looks at the tables now and then, plans, and does one thing between two batches.

It commits by the pipeline's own log tails, or by its own Spark, without marks: what dies in the middle leaves files
that no commit names, or a compaction that is there; a batch never knows the difference. Nothing here stops a pipeline
but what would stop its next batch as well.
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
from headrace.errors import Conflict, HeadraceError, PermissionDenied, TableError, TransientError
from headrace.maintain import log_cleanup
from headrace.maintain.journal import Journal
from headrace.maintain.maintained_table import LogMaintainedTable, MaintainedTable, SparkMaintainedTable
from headrace.maintain.planner import Action, rewrites
from headrace.pipeline.context import PipelineContext
from headrace.spec.maintenance import MaintenanceSpec
from headrace.table.ownership import TableOwners
from headrace.table.vacuum import retention, unneeded
from headrace.write.append import AppendWriter
from headrace.write.spark_append import SparkAppendWriter
from headrace.write.tombstones import TOMBSTONES

_PASSES = (Conflict, TransientError, TableError, PermissionDenied)  # told, and tried again at a later look


class MaintenanceScheduler:
    """The upkeep of one pipeline; called between batches, never beside one."""

    def __init__(self, rules: MaintenanceSpec, clock: Callable[[], float] = time.time) -> None:
        self._rules, self._clock = rules, clock
        self._context: PipelineContext  # of the call
        self._tables: dict[str, MaintainedTable] = {}
        self._plan: deque[Action] = deque()
        self._looked = float("-inf")
        self._record: Journal | None = None

    def __call__(self, context: PipelineContext, at_end: bool = False) -> None:
        """Run one action that is due, unless the pipeline lags; at the end of a bounded run, all of them."""
        self._context = context
        if not at_end and not self._has_time():
            return
        if at_end or not 0 <= self._clock() - self._looked < self._rules.every.total_seconds():
            self._look()
        while self._plan and not self._context.stop.is_set():
            self._carry_out(self._plan.popleft())
            if not at_end:
                return

    def _has_time(self) -> bool:
        lag = self._context.lag_seconds
        return lag is None or lag <= self._rules.max_lag.total_seconds()

    # ---- looking ----

    def _look(self) -> None:
        """Plan anew, from what the tables are now."""
        self._looked = now = self._clock()
        proved = self._context.ledger.proved_time(datetime.fromtimestamp(now, UTC), self._rules.retention)
        found: list[Action] = []
        with self._told():
            for kept in self._kept():
                with self._told(kept.store.uri):
                    found += self._due(kept, now, proved)
            found += self._vacuum_due(now, proved)
        self._plan = deque(sorted(found, key=lambda action: not action.cold))

    def _kept(self) -> list[MaintainedTable]:
        """The pipeline's tables, its letters, its ledger, its tombstones; with what was seen of them before."""
        there = {each.store.uri: each.after(self._tables.get(each.store.uri)) for each in self._there()}
        self._tables = there
        return list(there.values())

    def _there(self) -> Iterator[MaintainedTable]:
        context = self._context
        for store, committer, rules in context.tables.written():
            if isinstance(committer, AppendWriter):
                yield LogMaintainedTable(committer.tail, rules)
            elif isinstance(committer, SparkAppendWriter):
                yield SparkMaintainedTable(committer, store, rules, context.spark(), self._notes().ordered_until)
        for tail in (context.ledger.tail, *self._tombstones()):
            if tail.state is not None:
                yield LogMaintainedTable(tail, None)

    def _tombstones(self) -> Iterator[LogWriter]:
        for folder in self._context.state.child(TOMBSTONES).folders():
            yield LogWriter.open(self._context.state.child(f"{TOMBSTONES}/{folder}"))

    def _due(self, kept: MaintainedTable, now: float, proved: datetime) -> Iterator[Action]:
        store, state = kept.store, kept.state
        if state.version != kept.seen:
            kept.picture.follow(state.version)
            kept.seen = state.version
            retain = max(self._rules.retention, interval_of(state, log_cleanup.RETENTION) or self._rules.retention)
            yield from kept.checkpoints_due()
            yield from log_cleanup.cleaning_due(store, retain, proved)
        yield from rewrites(store.uri, kept.picture.files, kept.wishes, self._rules, now, kept.in_order, kept.partition)

    def _vacuum_due(self, now: float, proved: datetime) -> Iterator[Action]:
        """Of one table at a look: all of its files are listed for it."""
        record = self._notes()
        for uri, kept in self._tables.items():
            if 0 <= now - record.vacuumed.get(uri, 0.0) < self._rules.vacuum_every.total_seconds():
                continue
            writers = TableOwners(kept.store, {self._context.spec.pipeline: self._context.state.uri})
            try:
                retain = max(self._rules.retention, retention(kept.state))
            except TableError:  # told; the other tables must not wait until somebody mends it
                record.looked(uri, now)
                raise
            found = unneeded(kept.store, writers, retain, proved)
            record.looked(uri, now)
            if found.files:
                why = "no version that is retained needs them"
                yield Action("vacuum", uri, why, len(found.files), found.bytes, paths=found.files)
            return

    # ---- doing ----

    def _carry_out(self, action: Action) -> None:
        self._context.lease.check()
        began = time.monotonic()
        with self._told(action.table, action):
            self._tell(action, "started")
            self._notes().begin(action, self._clock())
            result = self._done(action)
            self._notes().end(result, self._clock())
            self._tell(action, "done", {**result, "seconds": round(time.monotonic() - began, 3)})

    def _done(self, action: Action) -> Mapping[str, Any]:
        kept = self._tables[action.table]
        if action.bins:
            return self._rewritten(kept, action)
        if action.what == "checkpoint":
            log_cleanup.write_checkpoint(kept.store, kept.state)
            return {"version": kept.state.version}
        if action.what == "clean_log":
            # The next start follows the log from here to detect a RESTORE.
            self._context.tables.look()
            self._context.ledger.known.remember(tables=self._context.tables.tables())
        kept.store.delete(action.paths)
        if action.what == "vacuum":
            metrics = {"numDeletedFiles": str(action.files), "sizeOfDataDeleted": str(action.bytes)}
            return kept.note(metrics, self._said(action))
        return {}

    def _rewritten(self, kept: MaintainedTable, action: Action) -> Mapping[str, Any]:
        done = kept.rewrite(action, self._said(action))
        if action.what == "z_order" and isinstance(kept, SparkMaintainedTable):
            self._note_order(kept, action)
        return {"version": done.version, "files_added": done.files_added, "bytes_added": done.bytes_added}

    def _note_order(self, kept: MaintainedTable, action: Action) -> None:
        """Spark names its files itself, so it is noted until when those of a partition are in order."""
        kept.picture.follow(kept.state.version)
        kept.seen = kept.state.version
        until: dict[str, int] = {kept.partition(files[0]): 0 for files in action.bins}
        for file in kept.picture.files:
            if (key := kept.partition(file)) in until:
                until[key] = max(until[key], file.modified)
        self._notes().order(kept.store.uri, until)

    def _said(self, action: Action) -> dict[str, str]:
        operation = "vacuum" if action.what == "vacuum" else "optimize"
        return {"operation": operation, "by": self._context.spec.pipeline, "reason": action.why}

    # ---- telling ----

    def _notes(self) -> Journal:
        if self._record is None:
            self._record = Journal(self._context.state)
        return self._record

    @contextmanager
    def _told(self, table: str = "", action: Action | None = None) -> Iterator[None]:
        """What passes by itself is told, and the table looked at anew; the rest stops the pipeline as a batch would."""
        try:
            yield
        except _PASSES as error:
            self._tables.pop(table, None)
            self._plan = deque(each for each in self._plan if each.table != table)
            self._record = None
            self._tell(action or Action("look", table, "to plan", 0, 0), "failed", {"message": _seen(error)})

    def _tell(self, action: Action, stage: str, more: Mapping[str, Any] | None = None) -> None:
        said = {"event": "maintenance", "pipeline": self._context.spec.pipeline, "state": stage}
        self._context.report({**said, **action.told(), **(more or {})})


def _seen(error: HeadraceError) -> str:
    return f"{error.name}: {error.message}"
