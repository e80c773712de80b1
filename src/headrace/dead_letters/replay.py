"""Replay dead letters through the current spec, exactly once: a pipeline whose batches are replays."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

from headrace import faults
from headrace.dead_letters.evaluate import Evaluation, evaluate_in_parts
from headrace.dead_letters.reader import DeadLetters, Selection
from headrace.decode.inference import Structure
from headrace.decode.inference import merge_inferred as merge_structures
from headrace.delta.actions import as_file
from headrace.delta.receipt import Receipt
from headrace.delta.rows import read_rows
from headrace.delta.staged_file import StagedFile
from headrace.ledger.replays import OUTCOMES, Replays, without_duplicate_rows, writer
from headrace.pipeline.cleanup import purge_dead_letters
from headrace.pipeline.deduplicate import PLACE
from headrace.pipeline.events import Report, Summary
from headrace.pipeline.manifest import Manifest
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.spark_session import SharedSession
from headrace.plan.accounting import Counts
from headrace.plan.plan import Plan
from headrace.recovery.rebuild_ledger import rebuild
from headrace.recovery.startup import StartupRecovery
from headrace.source.ranges import Range
from headrace.spec import Spec
from headrace.spec.reader import parse_intent_spec
from headrace.spec.route_id import RouteId
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Store
from headrace.write.intent import Intent, IntentKind, ReplayInput, TableIntent
from headrace.write.retention import Purge


def replay(
    spec: Spec,
    selection: Selection | None = None,
    *,
    report: Report = lambda event: None,
    stop: threading.Event | None = None,
    wait: bool = False,
    shared: SharedSession | None = None,
) -> Summary:
    """Finish an open replay, then replay the selected dead letters; LeaseHeld while the pipeline runs.

    `shared`: a session for tables that need Spark, which stays open.
    """
    own = shared or SharedSession([spec])
    replaying = ReplayPipeline(spec, own.get, selection or Selection(), report=report, stop=stop)
    try:
        with replaying.take_lease(wait):
            return replaying.run()
    finally:
        replaying.source.close()
        if shared is None:
            own.close()


def purge(spec: Spec, before: date) -> Purge:
    """Delete the dead letters of the days before; an open batch or replay is finished first."""
    shared = SharedSession([spec])
    replaying = ReplayPipeline(spec, shared.get, Selection())
    pipeline = Pipeline(spec, shared.get, recovery=replaying.recovery)
    try:
        with replaying.take_lease() as lease:
            pipeline.lease = lease
            replaying.open_ledger()
            replaying.finish_open_batch()
            pipeline.open_ledger()
            rebuild(pipeline.context)
            pipeline.finish_open_batch()
            return purge_dead_letters(pipeline.context, before)
    finally:
        replaying.source.close()
        pipeline.source.close()
        shared.close()


class ReplayPipeline(Pipeline):
    """A pipeline that reads dead letters, commits under its own app id and records their outcomes."""

    unit = "replay"

    def __init__(
        self,
        spec: Spec,
        spark: Callable[[], Any],
        selection: Selection,
        *,
        report: Report = lambda event: None,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(spec, spark, recovery=StartupRecovery(), report=report, stop=stop)
        self.writer = writer(spec.pipeline)
        self.selection = selection
        self.dead_letters = DeadLetters(spec)
        self._version: int | None = None
        self._outcomes: tuple[StagedFile, ...] = ()
        self._planned: float = math.inf

    def open_ledger(self) -> Replays:
        """Open the replays and their outcomes."""
        self.ledger = ledger = Replays.open(self.state, self.writer)
        self.open_tables()
        return ledger

    def _attempt(self) -> None:
        """Finish the open replay, then run one; after a retry, the open replay was that one."""
        self.open_ledger()
        self.finish_open_batch()
        if self.ledger.batch < self._planned:
            self.tables.open()
            self.one_plan()

    def one_plan(self) -> None:
        """Evaluate and stage in this process; then write the intent, commit and record the outcomes."""
        self._version = self.dead_letters.version()
        number, started = self.ledger.batch + 1, datetime.now(UTC)
        faults.reach(faults.Point.BEFORE_STAGING, batch=number)
        if self._version is None:
            return
        manifests, runs = self.discover_and_stage(None, number, started)
        if not sum(each.counts.read for each in manifests):
            return
        faults.reach(faults.Point.AFTER_STAGING, batch=number)
        intent = self.intend(number, (), manifests, started, runs)
        self._planned = number
        self.execute(intent)

    def stage(self, records: Any, batch: int, now: datetime) -> list[Manifest]:
        """Evaluate the dead letters page by page; stage rows, outcomes and new dead letters."""
        limits = self.spec.limits
        stager = Stager(
            lambda uri: Store(uri, self.profile),
            f"replay-{batch:08d}",
            open_writers=limits.open_writers,
            partition_values=limits.partition_values,
        )
        try:
            return [self._staged(stager, batch, now)]
        except BaseException:
            stager.abandon()
            raise

    def _staged(self, stager: Stager, batch: int, now: datetime) -> Manifest:
        plan = Plan(self.spec, self.tables.schemas, now=lambda: now)
        layouts, dead_letter_layout = self.tables.layouts(batch), self.tables.dead_letter_layout()
        outcomes = self._outcome_layout()
        counts, discovered = Counts(), dict[RouteId, Structure]()
        pages = self.dead_letters.pages(self.selection, self._version)
        for part in (part for page in pages for part in evaluate_in_parts(plan, page, batch, now)):
            discovered = _with_discovered(discovered, part)
            if discovered:
                continue  # staged in the next run, once tables have the new fields
            counts = counts + part.counts
            for route, rows in part.tables.items():
                stager.add(layouts[route], rows)
            stager.add(dead_letter_layout, part.dead_letters)
            stager.add(outcomes, part.outcomes)
            faults.reach(faults.Point.DURING_STAGING)
        if discovered:
            stager.abandon()
            return Manifest(counts=counts, discovered=discovered)
        files = stager.finish()
        self._outcomes = tuple(item for item in files if item.table == outcomes.path)
        return Manifest(tuple(item for item in files if item.table != outcomes.path), counts)

    def intend(
        self, batch: int, ranges: tuple[Range, ...], manifests: Sequence[Manifest], started: datetime, runs: int
    ) -> Intent:
        """Build the intent: the files of every table, and the outcome of every dead letter."""
        assert self._version is not None  # noqa: S101
        selection, since = self.selection, self.selection.since
        intent = super().intend(batch, ranges, manifests, started, runs)
        if any(map(len, self._deduplication.places.values())):
            self._outcomes = self._without_duplicates(batch)
        replayed = ReplayInput(
            self._version, selection.reasons, selection.tables, since.isoformat() if since else "", self._outcomes
        )
        return replace(intent, replay=replayed, kind=IntentKind.REPLAY)

    def _without_duplicates(self, batch: int) -> tuple[StagedFile, ...]:
        """Stage the outcomes again: a dead letter whose row the table has already is not replayed."""
        store, layout = self.state.child(Replays.folder), self._outcome_layout()
        stager = Stager(lambda uri: Store(uri, self.profile), f"replay-{batch:08d}-once")
        duplicates = {
            uri: Counter(zip(*(places[name].to_pylist() for name in PLACE), strict=True))
            for uri, places in self._deduplication.places.items()
        }
        try:
            for item in self._outcomes:
                stager.add(layout, without_duplicate_rows(read_rows(store, as_file(item), OUTCOMES, ()), duplicates))
            staged = stager.finish()
        except BaseException:
            stager.abandon()
            raise
        self.discard(self._outcomes)
        return staged

    def _outcome_layout(self) -> FileLayout:
        return FileLayout(self.state.child(Replays.folder).uri, OUTCOMES)

    def missing(self, intent: Intent) -> list[str]:
        """Staged files, those of outcomes included, that were deleted before they were committed."""
        files = intent.replay.files if intent.replay else ()
        gone = [f"{each.table}/{each.path}" for each in files if not Store(each.table, self.profile).exists(each.path)]
        return super().missing(intent) + gone

    def restage(self, intent: Intent, committed_tables: Sequence[TableIntent] = ()) -> Intent:
        """Evaluate the dead letters of a replay again with its own spec; committed tables keep their parts."""
        replayed = intent.replay
        assert replayed is not None  # noqa: S101
        since = datetime.fromisoformat(replayed.since) if replayed.since else None
        selection = Selection(replayed.reasons, replayed.tables, since)
        spec = parse_intent_spec(intent.spec, self.spec.base)
        old = ReplayPipeline(spec, lambda: self.spark, selection, report=self.report, stop=self.stop)
        old.lease, old.ledger, old._version = self.lease, self.ledger, replayed.version
        tables = old.open_tables()
        tables.open()
        tables.keep_planned(committed_tables)
        manifests, runs = old.discover_and_stage(None, intent.batch, intent.started)
        return old.intend(intent.batch, (), manifests, intent.started, runs)

    def _report_batch(self, intent: Intent, receipts: Sequence[Receipt]) -> None:
        self.report(_replay_event(self.spec.pipeline, intent, receipts))


def _with_discovered(discovered: dict[RouteId, Structure], part: Evaluation) -> dict[RouteId, Structure]:
    merged = dict(discovered)
    for route, structure in part.discovered.items():
        merged[route] = merge_structures(merged[route], structure) if route in merged else structure
    return merged


def replay_counters(counts: Counts) -> dict[str, Any]:
    """The account of a replay, by the names of its outcomes."""
    return {
        "dead_letters": counts.read,
        "replayed": counts.routed,
        "still_dead": counts.dead,
        "filtered": counts.filtered,
        "reasons": dict(counts.reasons),
    }


def _replay_event(pipeline: str, intent: Intent, receipts: Sequence[Receipt]) -> dict[str, Any]:
    return {
        "event": "replay",
        "pipeline": pipeline,
        "replay": intent.batch,
        **replay_counters(intent.counts),
        "tables": {each.path: {"version": each.version, "rows": each.rows} for each in receipts},
        "runs": intent.runs,
    }
