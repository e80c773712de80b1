"""Upkeep at work: looks at the tables now and then, plans, and does one thing between two batches.

It commits by the pipeline's own log tails, without marks: what dies in the middle leaves files that no commit names, or
a compaction that is there; a batch never knows the difference. Nothing here stops a pipeline but what would stop its
next batch as well.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.commit.tail import Tail
from headrace.commit.tombstones import TOMBSTONES
from headrace.errors import Conflict, HeadraceError, PermissionRefused, TableError, Transient
from headrace.maintain import logs
from headrace.maintain.picture import Picture
from headrace.maintain.plan import Action, Wishes, rewrites
from headrace.maintain.record import Record
from headrace.pipeline import Pipeline
from headrace.rebuild import folders
from headrace.spec.maintain import Maintain
from headrace.spec.table import TableSpec
from headrace.stage import Layout
from headrace.table.compact import ENOUGH, Rewriter
from headrace.table.insert import layout_of
from headrace.table.vacuum import interval, retention, unneeded
from headrace.table.writers import Writers
from headrace.tables.log import TableState

_PASSES = (Conflict, Transient, TableError, PermissionRefused)  # told, and tried again at a later look


@dataclass
class Kept:
    """One table in the pipeline's care."""

    tail: Tail
    layout: Layout
    wishes: Wishes
    picture: Picture
    seen: int = -1  # the version of the last look


def maintained(pipeline: Pipeline) -> Pipeline:
    """The pipeline, with upkeep where its spec asks for it."""
    if pipeline.spec.maintain is not None:
        pipeline.upkeep = Maintainer(pipeline, pipeline.spec.maintain)
    return pipeline


class Maintainer:
    """The upkeep of one pipeline; called between batches, never beside one."""

    def __init__(self, pipeline: Pipeline, rules: Maintain, clock: Callable[[], float] = time.time) -> None:
        self._pipeline, self._rules, self._clock = pipeline, rules, clock
        self._tables: dict[str, Kept] = {}
        self._plan: deque[Action] = deque()
        self._looked = float("-inf")
        self._record: Record | None = None

    def __call__(self, at_end: bool = False) -> None:
        """Do one thing, if one is due and the pipeline has time for it; at the end of a bounded run all of them."""
        if not at_end and not self._has_time():
            return
        if at_end or self._clock() - self._looked >= self._rules.every.total_seconds():
            self._look()
        while self._plan and not self._pipeline.stop.is_set():
            self._carry_out(self._plan.popleft())
            if not at_end:
                return

    def _has_time(self) -> bool:
        behind = self._pipeline.behind
        return behind is None or behind <= self._rules.pause_above.total_seconds()

    # ---- looking ----

    def _look(self) -> None:
        """Plan anew, from what the tables are now."""
        self._looked = now = self._clock()
        found: list[Action] = []
        with self._told():
            for kept in self._kept():
                with self._told(kept.tail.store.uri):
                    found += self._due(kept, now)
            found += self._vacuum_due(now)
        self._plan = deque(sorted(found, key=lambda action: not action.cold))

    def _kept(self) -> list[Kept]:
        """The tables that are appended to by their logs: the pipeline's, its letters, its ledger, its tombstones."""
        pipeline = self._pipeline
        there = [(committer.tail, rules) for committer, rules in pipeline.catalog.adopted()]
        there += [(tail, None) for tail in (pipeline.ledger.tail, *self._tombstones()) if tail.state is not None]
        self._tables = {tail.store.uri: self._taken(tail, rules) for tail, rules in there}
        return list(self._tables.values())

    def _tombstones(self) -> Iterator[Tail]:
        for folder in folders(self._pipeline.state.child(TOMBSTONES)):
            yield Tail.open(self._pipeline.state.child(f"{TOMBSTONES}/{folder}"))

    def _taken(self, tail: Tail, rules: TableSpec | None) -> Kept:
        layout = _layout(tail, rules)
        enough = (rules.min_file_size if rules else None) or int(ENOUGH * layout.target_file_bytes)
        wishes = Wishes(layout.target_file_bytes, enough, _order(tail.known(), rules))
        known = self._tables.get(tail.store.uri)
        if known is None or known.wishes != wishes:
            return Kept(tail, layout, wishes, Picture(tail.store, wishes.matters))
        return replace(known, tail=tail, layout=layout)

    def _due(self, kept: Kept, now: float) -> Iterator[Action]:
        store, state = kept.tail.store, kept.tail.known()
        if state.version != kept.seen:
            kept.picture.follow(state.version)
            kept.seen = state.version
            retain = max(self._rules.retain, interval(state, logs.RETENTION) or self._rules.retain)
            yield from logs.checkpoint_due(store, state)
            yield from logs.cleaning_due(store, retain, now)
        yield from rewrites(store.uri, kept.picture.files, kept.wishes, self._rules, now)

    def _vacuum_due(self, now: float) -> Iterator[Action]:
        """Of one table at a look: all of its files are listed for it."""
        record = self._notes()
        for uri, kept in self._tables.items():
            if now - record.vacuumed.get(uri, 0.0) < self._rules.vacuum.total_seconds():
                continue
            writers = Writers(kept.tail.store, {self._pipeline.spec.pipeline: self._pipeline.state.uri})
            retain = max(self._rules.retain, retention(kept.tail.known()))
            found = unneeded(kept.tail.store, writers, retain, now)
            record.looked(uri, now)
            if found.files:
                why = "no version that is retained needs them"
                yield Action("vacuum", uri, why, len(found.files), found.bytes, paths=found.files)
            return

    # ---- doing ----

    def _carry_out(self, action: Action) -> None:
        self._pipeline.lease.check()
        began = time.monotonic()
        with self._told(action.table, action):
            self._tell(action, "begun")
            self._notes().begin(action, self._clock())
            result = self._done(action)
            self._notes().end(result, self._clock())
            self._tell(action, "done", {**result, "seconds": round(time.monotonic() - began, 3)})

    def _done(self, action: Action) -> Mapping[str, Any]:
        kept = self._tables[action.table]
        if action.bins:
            return self._rewritten(kept, action)
        if action.what == "checkpoint":
            logs.checkpoint(kept.tail.store, kept.tail.known())
            return {"version": kept.tail.known().version}
        kept.tail.store.delete(action.paths)
        if action.what == "vacuum":
            metrics = {"numDeletedFiles": str(action.files), "sizeOfDataDeleted": str(action.bytes)}
            return {"version": kept.tail.note("VACUUM END", metrics, self._said(action))}
        return {}

    def _rewritten(self, kept: Kept, action: Action) -> Mapping[str, Any]:
        rewriter = Rewriter(kept.tail, kept.layout, kept.wishes.z_order if action.what == "z_order" else ())
        try:
            for files in action.bins:
                rewriter.add(files)
            done = rewriter.commit(kept.picture.version, {"targetSize": str(kept.wishes.target)}, self._said(action))
        except (Conflict, TableError):  # certainly not committed
            rewriter.abandon()
            raise
        return {"version": done.version, "files_added": done.files_added, "bytes_added": done.bytes_added}

    def _said(self, action: Action) -> dict[str, str]:
        operation = "vacuum" if action.what == "vacuum" else "optimize"
        return {"operation": operation, "by": self._pipeline.spec.pipeline, "why": action.why}

    # ---- telling ----

    def _notes(self) -> Record:
        if self._record is None:
            self._record = Record(self._pipeline.state)
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
            self._tell(action or Action("look", table, "to plan", 0, 0), "failed", {"seen": _seen(error)})

    def _tell(self, action: Action, stage: str, more: Mapping[str, Any] | None = None) -> None:
        said = {"event": "maintain", "pipeline": self._pipeline.spec.pipeline, "state": stage}
        self._pipeline.report({**said, **action.told(), **(more or {})})


def _seen(error: HeadraceError) -> str:
    return f"{error.name}: {error.seen}"


def _layout(tail: Tail, rules: TableSpec | None) -> Layout:
    """How the files of the table are: as the spec wants them, else as its properties do."""
    layout = layout_of(tail.known(), tail.store.uri)
    if rules is None:
        return layout
    return replace(layout, target_file_bytes=rules.target_file_size, compression=rules.compression)


def _order(state: TableState, rules: TableSpec | None) -> tuple[str, ...]:
    """The columns to order by, once the table has all of them."""
    columns = rules.z_order if rules is not None else ()
    fit = [
        name in state.schema.names
        and name not in state.partition_by
        and not pa.types.is_nested(state.schema.field(name).type)
        for name in columns
    ]
    return columns if all(fit) else ()
