"""A pipeline: one batch from start to end, and the loop around it. Every start resumes from the ledger."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace import faults, retry
from headrace.decode.inference import Structure
from headrace.decode.inference import merge_inferred as merge_structures
from headrace.decode.schema_paths import read_schema_files
from headrace.delta.log import EPOCH
from headrace.delta.receipt import Receipt
from headrace.delta.staged_file import StagedFile
from headrace.errors import (
    BrokerUnreachable,
    Fenced,
    HeadraceError,
    StopRequested,
    TableChanged,
    TableFeature,
    TransientError,
)
from headrace.ledger.ledger import Ledger
from headrace.pipeline import cleanup, inference_minimum, overwrite, takeover, task
from headrace.pipeline.batch_loop import BatchLoop
from headrace.pipeline.catalog import CatalogTables
from headrace.pipeline.circuit_breaker import CircuitBreaker
from headrace.pipeline.commit_order import commit_tables
from headrace.pipeline.context import HotStore, Maintenance, PipelineContext, Recovery, StagedTable
from headrace.pipeline.control import PauseRequest, State
from headrace.pipeline.deduplicate import Deduplication
from headrace.pipeline.events import Report, Summary, batch_event
from headrace.pipeline.manifest import Manifest, merge_manifests
from headrace.pipeline.object_stores import object_stores
from headrace.pipeline.phases import Phases
from headrace.pipeline.progress import Progress
from headrace.pipeline.tables import PipelineTables
from headrace.pipeline.verify_source import ordered_by_offset, readable_ranges, same_topics, still_there, verify_source
from headrace.plan.accounting import Counts
from headrace.plan.inferred_columns import InferredColumns
from headrace.runtime import session
from headrace.source.base import NoticeSource, Offsets, Source, lag_event, open_source
from headrace.source.ranges import Range, last_offsets
from headrace.source.record_frame import RecordFrame
from headrace.source.spool.receiver import ReceivingSource
from headrace.spec import Spec
from headrace.spec.reader import parse_intent_spec
from headrace.spec.route_id import RouteId
from headrace.stage.partitions import check_partition_count
from headrace.stage.stager import delete_staged
from headrace.storage.lease import Lease
from headrace.storage.store import Profile, Store
from headrace.version import VERSION
from headrace.write.intent import Intent, IntentKind, TableIntent
from headrace.write.tombstones import TOMBSTONES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")
_LAG_INTERVAL, _PROGRESS_INTERVAL = 2.0, 1.0  # seconds
_TOPIC_INTERVAL = 1.0  # seconds between checks while no topic matches


class Pipeline:
    """A running spec, under its lease."""

    unit = "batch"

    def __init__(
        self,
        spec: Spec,
        spark: Callable[[], SparkSession],
        *,
        recovery: Recovery,
        maintenance: Maintenance | None = None,
        hot_store: HotStore | None = None,
        until: str | None = None,
        report: Report = lambda event: None,
        stop: threading.Event | None = None,
        pause: PauseRequest | None = None,
        on_state: Callable[[State], None] = lambda state: None,
        summary: Summary | None = None,
        prepare_spark: Callable[[int | None], None] = lambda records: None,
    ) -> None:
        """`summary`: of the runs before in this process, which this one continues."""
        self.spec = spec
        self.writer = spec.pipeline  # the name in the txns of the commits
        self.recovery, self.maintenance, self.hot_store = recovery, maintenance, hot_store
        self.until = until
        self.report = report
        self.stop = stop or threading.Event()
        self.pause, self.on_state = pause or PauseRequest(), on_state
        self.profile = Profile(**spec.storage_profile())
        self.state = Store(spec.state_uri, self.profile)
        self.summary = summary or Summary(spec.pipeline, drained=None if until is None else False)
        self.source: Source = open_source(spec)
        self.position: Offsets = {}
        self.topics: dict[str, str] = {}
        self.repartitioned = False  # whether the source has other partitions now than are read
        self.staging_seconds = 0.0  # of the last batch: reading, decoding and staging
        self.lag_seconds: float | None = math.inf  # at the last check; None where the source reports none
        self.accepts_gaps = False  # whether records of an open batch that the source no longer has are skipped
        self.accepted_gaps: list[str] = []  # descriptions of skipped records
        self._breaker = CircuitBreaker(spec.circuit_breaker)
        self.catalog = CatalogTables(spec, report)
        self._unchecked = frozenset(spec.branch_specs())  # branches whose column names were not checked in this run
        self.progress = Progress()
        self._reported = self._lag_read = time.monotonic()
        self._lag = lag_event()
        self.phases = Phases()  # of the current batch
        self._cleaned: date | None = None  # the day of the last cleanup
        self._retention_time = EPOCH
        self._start_spark, self._prepare_spark = spark, prepare_spark
        self._policy = retry.Retry(
            spec.retry.unreachable.initial_interval.total_seconds(),
            spec.retry.unreachable.max_interval.total_seconds(),
            spec.retry.access_denied,
            spec.retry.conflict,
        )

    def take_lease(self, wait: bool = False) -> Lease:
        """Acquire the lease of the pipeline; LeaseHeld when another instance has it."""
        ttl, renew = self.spec.lease.ttl.total_seconds(), self.spec.lease.renew.total_seconds()
        for _, _, store in object_stores(self.spec):
            if self.spec.storage.create_bucket:
                self._retrying(store.create_bucket)
            self._retrying(store.verify_conditional_puts)
        take = partial(Lease.take, self.state, ttl=ttl, renew=renew, wait=wait, stop=self.stop)
        self.lease = self._retrying(take)
        return self.lease

    def run(self) -> Summary:
        """Run until the requested end or a request to stop; transient errors are retried."""
        try:
            self._retrying(self._attempt)
        except StopRequested:
            pass
        finally:
            self.source.close()
            self._report_notices()
            if self.hot_store is not None:
                self.hot_store.close()
        return self.summary

    def _report_notices(self) -> None:
        """Report what the source has observed."""
        if isinstance(self.source, NoticeSource):
            for notice in self.source.notices():
                self.report({"pipeline": self.spec.pipeline, **notice})

    def _retrying(self, attempt: Callable[[], T]) -> T:
        return retry.call(attempt, self._policy, stop=self.stop, on_wait=self._waiting)

    def _waiting(self, name: str, seconds: float, error: Exception) -> None:
        self.report(
            {
                "event": "retry",
                "pipeline": self.spec.pipeline,
                "error": name,
                "seconds": round(seconds, 1),
                "message": str(error),
            }
        )
        if isinstance(error, BrokerUnreachable) and self._lag != lag_event():
            self._lag, self.lag_seconds = lag_event(), math.inf  # no batch loop reads it while the broker is down
            self.report({"event": "progress", "pipeline": self.spec.pipeline, **self._lag, **self.progress.event()})

    def _attempt(self) -> None:
        """Resume from the ledger: finish the open batch, refill restored tables, verify the source, stream."""
        self.progress = Progress()  # an earlier attempt may have failed within a batch
        self._receive()
        self.open_ledger()
        self.recovery.rebuild_ledger(self.context)
        self.finish_open_batch()
        self.refill_tables()
        self._follow_in_hot_store()
        self._clean_up_daily()
        overwrite.begin(self.spec, self.ledger, self.source)
        takeover.take_over(self.context)
        self.verify_source()
        records = None if self.until is None else self._waiting_records()
        if records != 0:
            self._prepare_spark(records)  # in the background, while the tables are opened
        self.tables.open()
        inference_minimum.wait(self)
        while self._stream():
            self.verify_source()
        if not self.stop.is_set():
            overwrite.end(self.spec, self.ledger)
        if self.until is not None and not self.stop.is_set():
            self.summary.drained = True
            self.maintain(at_end=True)
            if self.hot_store is not None:
                self.hot_store.finish(self.stop)

    def _follow_in_hot_store(self) -> None:
        """Let the hot store follow the tables of all batches so far."""
        if self.hot_store is not None:
            self.hot_store.follow(self.ledger.known.tables)

    def _receive(self) -> None:
        """Open the spool of a source that has one; a continuous run accepts records from now on."""
        if isinstance(self.source, ReceivingSource):
            self.source.receive(self._received, accept=self.until is None)

    def _received(self, event: dict[str, Any]) -> None:
        """Report an event of the receiver."""
        self.report({"event": event["event"], "pipeline": self.spec.pipeline, **event})

    def verify_source(self) -> None:
        """Determine the partitions to read and the next offset of each."""
        self.topics, self.position = verify_source(self.source, self.ledger, ordered_by_offset(self.spec))
        self.source.committed(self.position)
        self.repartitioned = False

    def _stream(self) -> bool:
        """Run batches; True when the source must be verified again before further ones."""
        if self.stop.is_set() or (self.until is not None and not self._waiting_records()):
            return False
        if self.position:
            return BatchLoop(self).run()
        self.on_state(State.RUNNING)
        self.stop.wait(_TOPIC_INTERVAL)
        self.lease.check()
        self.on_tick()
        return True

    def _waiting_records(self) -> int:
        """Number of records to read; a drain without any does not start Spark."""
        bounds = self.source.bounds()
        return sum(
            max(0, each.latest - self.position.get(partition, each.latest)) for partition, each in bounds.items()
        )

    @property
    def spark(self) -> SparkSession:
        """The Spark session, started when it is first needed."""
        return self._start_spark()

    @property
    def context(self) -> PipelineContext:
        """The pipeline as recovery and maintenance see it."""
        return PipelineContext(
            self.spec,
            self.writer,
            self.state,
            self.source,
            self.ledger,
            self.tables,
            self.lease,
            self.report,
            self.stop,
            lambda: self.spark,
            self.lag_seconds,
            self,
        )

    def maintain(self, at_end: bool = False) -> None:
        """Run table maintenance that is due; at the end of a bounded run, all of it."""
        if self.maintenance is not None:
            self.maintenance(self.context, at_end)

    def open_ledger(self) -> Ledger:
        """Open the ledger and, with it, the tables."""
        self.ledger = Ledger.open(self.state, self.writer)
        self.open_tables()
        return self.ledger

    def open_tables(self) -> PipelineTables:
        """The tables, without fields of earlier batches."""
        self.tables = PipelineTables(self.spec, self.profile, self.ledger, self._spark_table, self.writer)
        self._deduplication = Deduplication(self.tables)
        return self.tables

    def finish_open_batch(self, tables_replaced: bool = False) -> None:
        """Finish the batch that has an intent and no row in the ledger, before another one begins."""
        if (intent := self.ledger.open_batch()) is not None:
            self._finish(intent, tables_replaced)

    def refill_tables(self) -> None:
        """Write again the rows that a RESTORE removed."""
        self.recovery.refill_tables(self.context)
        self.open_tables()  # a refill lets only its own table take rows

    def _clean_up_daily(self) -> None:
        """Once a day, delete what has expired."""
        clock = datetime.now(UTC)
        if self._cleaned != clock.date():
            self._cleaned, self._retention_time = clock.date(), self.ledger.proved_time(clock)
            cleanup.clean_up(self.context, self._retention_time)

    def _spark_table(self, store: Store) -> Any:
        from headrace.write.leased_writer import LeasedWriter

        tombstones, limit = self.state.child(TOMBSTONES), self.spec.limits.merge_bytes
        return LeasedWriter(lambda: self.spark, store, self.writer, tombstones, limit)

    # ---- one batch ----

    def one_batch(self, records: RecordFrame, ranges: tuple[Range, ...]) -> None:
        """read → decode → transform → route → stage (one Spark job), then commit, then record in the ledger."""
        self._clean_up_daily()
        if self.hot_store is not None:
            self.hot_store.wait(self.stop)
        batch, started = self.ledger.batch + 1, datetime.now(UTC)
        self.phases = Phases()
        faults.reach(faults.Point.BEFORE_STAGING, batch=batch)
        if (tasks := task.tasks_for(ranges, self.mean_bytes())) < len(ranges):
            records = records.coalesce(tasks)
        with self.phases.measured("stage"):
            manifests, runs = self.discover_and_stage(records, batch, started)
        self.staging_seconds = self.phases.seconds["stage"]
        self._check_names(manifests)
        faults.reach(faults.Point.AFTER_STAGING, batch=batch)
        with self.phases.measured("check"):
            self._same_topics(ranges)
        with self.phases.measured("intent"):
            intent = self.intend(batch, ranges, manifests, started, runs)
        intent = self.execute(intent)
        self._breaker.add(intent.counts, datetime.now(UTC))

    def _check_names(self, manifests: Sequence[Manifest]) -> None:
        """In the first batch of a run, stop at unknown column names: every record would be filtered or NULL."""
        reports = [(route_id, names) for each in manifests for route_id, names in each.unknown.items()]
        try:
            self.tables.check_names(reports)
        except HeadraceError:
            self.discard(merge_manifests(manifests)[0])
            raise
        self._unchecked -= {route_id.branch for route_id, _ in reports}

    def discover_and_stage(self, records: Any, batch: int, now: datetime) -> tuple[list[Manifest], int]:
        """Stage the batch; again where tasks discovered new fields or routes. `records`: the input of `stage`."""
        self.tables.begin_batch(batch)
        manifests, runs = self.stage(records, batch, now), 1
        while not self._is_valid(manifests, batch):
            manifests, runs = self.stage(records, batch, now), runs + 1
        return manifests, runs

    def _is_valid(self, manifests: Sequence[Manifest], batch: int) -> bool:
        """Whether the staged files are valid; tables that the spec declares completely are staged when first seen."""
        assumed = {name for each in manifests for name in each.assumed}
        discovered = _discovered(manifests)
        valid = False
        try:
            if discovered or assumed:
                self._report_columns(self.tables.add_discovered({name: {} for name in assumed} | discovered, batch))
            valid = not discovered and self.tables.are_declared(assumed)
        finally:
            if not valid:
                self.discard(merge_manifests(manifests)[0])
        return valid

    def _report_columns(self, inferred: Iterable[InferredColumns]) -> None:
        """Report the columns that tables get from records."""
        for columns in inferred:
            self.summary.add_json_text(columns.table, columns.json_text)
            self.report(columns.event(self.spec.pipeline))

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Delete staged files that will not be committed."""
        delete_staged(files, lambda uri: Store(uri, self.profile))

    def stage_for_table(self, uri: str, ranges: Sequence[Range], batch: int, started: datetime) -> StagedTable:
        """Read ranges again and stage them; tables other than `uri` skip the records, which they have already."""
        tables = self.open_tables()
        tables.open()
        tables.write_only_to(uri, last_offsets(ranges))
        manifests, runs = self.discover_and_stage(self.source.read(self.spark, ranges), batch, started)
        layouts = {layout.path: layout for layout in tables.layouts(batch).values()}
        return StagedTable(manifests, runs, layouts.get(uri))

    def stage(self, records: RecordFrame, batch: int, now: datetime) -> list[Manifest]:
        """Run the plan over the batch in Spark tasks, which return manifests only."""
        run = partial(task.run_task, task.versions(), self.task_input(batch), batch, now)
        rows = session.map_in_arrow(records.frame, records.in_task(run), {"manifest": "string"}).collect()
        manifests = [Manifest.from_json(row.manifest) for row in rows]
        task.raise_task_error(manifests)
        return manifests

    def task_input(self, batch: int) -> bytes:
        """The input of the batch's tasks."""
        tables = self.tables
        layouts, dead_letter_layout = tables.layouts(batch), tables.dead_letter_layout()
        files = read_schema_files(self.spec)
        return task.TaskInput(
            self.spec, tables.schemas, layouts, dead_letter_layout, self.profile, self._unchecked, files
        ).to_bytes()

    def intend(
        self, batch: int, ranges: tuple[Range, ...], manifests: Sequence[Manifest], started: datetime, runs: int
    ) -> Intent:
        """The intent of a batch, to be written before any of it is visible."""
        files, counts, old = self._deduplication.drop_duplicates(*merge_manifests(manifests), batch, started)
        self.discard(old)
        check_partition_count(files, self.spec.limits.partition_values)
        idle_ranges = self._idle_ranges(ranges)
        tables = self.tables.intents(files, batch, (*idle_ranges, *ranges))
        return Intent(
            self.writer,
            batch,
            ranges,
            tables,
            counts,
            started,
            self.lease.token,
            self.spec.text,
            self.spec.digest,
            VERSION,
            runs,
            idle_ranges,
            retention_time=self._retention_time,
            resumed=self.ledger.resumed,
        )

    def _idle_ranges(self, ranges: Iterable[Range]) -> tuple[Range, ...]:
        """Positions of the partitions that the batch does not read: commits have them in case the ledger is lost."""
        read = {(each.topic, each.partition) for each in ranges}
        topics = {**self.ledger.known.topics, **self.topics}
        position = sorted({**self.ledger.position(), **self.position}.items())
        return tuple(Range(*at, to, to, topics.get(at[0], "")) for at, to in position if at not in read)

    def execute(self, intent: Intent) -> Intent:
        """Write the intent to the state, then commit its tables and record it in the ledger."""
        with self.phases.measured("intent"):
            self.lease.check()
            self.ledger.begin(intent)
        return self.settle(intent)

    def settle(self, intent: Intent) -> Intent:
        """Commit the tables, then the dead letters, then record the batch in the ledger; also for an open batch.

        Returns the intent that was committed: a later attempt where another writer has created a table meanwhile.
        """
        with self.phases.measured("commit"):
            intent, receipts = self._committed(intent)
        faults.reach(faults.Point.BEFORE_LEDGER_WRITE, batch=intent.batch)
        tables = self.tables.known_tables()
        if intent.kind is IntentKind.REFILL:
            tables |= {each.path: replace(tables[each.path], refill=-1) for each in intent.tables}
        tables |= overwrite.with_overwritten(tables, self.ledger.known.full_refresh.number, intent)
        with self.phases.measured("ledger"):
            self.ledger.known.store(tables=tables)
            self.ledger.record(intent, receipts, datetime.now(UTC))
        faults.reach(faults.Point.AFTER_LEDGER_WRITE, batch=intent.batch)
        self._follow_in_hot_store()
        self._clear_staging(intent)
        self.summary.add(intent, receipts)
        self.position |= {(each.topic, each.partition): each.until for each in intent.ranges}
        self.source.committed(self.position)
        self._report_batch(intent, receipts)
        if self.catalog.is_used:
            self.catalog.register(self.spark, [store for store, _, _ in self.tables.written()])
        return intent

    def _report_batch(self, intent: Intent, receipts: Sequence[Receipt]) -> None:
        self.report(batch_event(intent, receipts, self.phases))

    def _clear_staging(self, intent: Intent) -> None:
        """Delete staged files that a writer has copied into its table; a failure only leaves files behind."""
        for table in intent.tables:
            copied = [item for item in table.files if item.table != table.path]
            with suppress(HeadraceError):
                for item in copied:
                    Store(item.table, self.profile).delete([item.path])

    def _committed(self, intent: Intent) -> tuple[Intent, list[Receipt]]:
        """Commit the batch; stage it again where another writer has created one of its tables meanwhile."""
        while True:
            try:
                return intent, commit_tables(intent, partial(self._commit_one, intent))
            except (TableChanged, TableFeature):
                if not self.tables.commits.needs_restage(intent):
                    raise
                intent = self._next_attempt(intent)

    def _commit_one(self, intent: Intent, table: TableIntent) -> Receipt:
        self.lease.check()
        receipt = self._retrying(lambda: self.tables.commits.commit(table, intent))
        if receipt.skipped and self.tables.commits.attempt_of(table, intent) != table.attempt:
            raise Fenced(
                f"{table.path} has batch {intent.batch} of another attempt: another instance has staged it again.",
                hint="Restart the pipeline: it continues with the attempt in the tables.",
            )
        return receipt

    def _same_topics(self, ranges: Sequence[Range]) -> None:
        """SourceReplaced when a topic was created again while the batch was read."""
        same_topics(self.source, {each.topic: each.topic_id for each in ranges})

    # ---- recovery ----

    def _finish(self, intent: Intent, tables_replaced: bool) -> None:
        """Finish an open batch: commit the same files wherever the txn is missing, or stage it again."""
        self.report({"event": "recover", "pipeline": self.spec.pipeline, self.unit: intent.batch})
        self.phases = Phases()
        for table in intent.tables:
            self._retrying(partial(self.tables.commits.restore_txn, table, intent, tables_replaced))
        if intent.kind is not IntentKind.DECISION and (
            tables_replaced
            or self.missing(intent)
            or self._is_superseded(intent)
            or self.tables.commits.is_overtaken(intent)
        ):
            intent = self._next_attempt(intent)
        self.settle(intent)
        self.summary.recovered += 1
        self.open_tables()

    def missing(self, intent: Intent) -> list[str]:
        """Staged files that were deleted before they were committed."""
        return [
            f"{file.table}/{file.path}"
            for table in intent.tables
            if not self.tables.commits.contains(table, intent)
            for file in table.files
            if not Store(file.table, self.profile).exists(file.path)
        ]

    def _is_superseded(self, intent: Intent) -> bool:
        """Whether a table has the batch of another attempt than the newest one."""
        commits = self.tables.commits
        tables = [table for table in intent.tables if commits.contains(table, intent)]
        return any(commits.attempt_of(table, intent) != table.attempt for table in tables)

    def _next_attempt(self, intent: Intent) -> Intent:
        """Write a later attempt of the same batch, with the same ranges and spec, before any of it is committed.

        The parts that tables already have stay as they were staged.
        """
        tables = [table for table in intent.tables if self.tables.commits.contains(table, intent)]
        committed = {table.path: self._committed_part(table, intent) for table in tables}
        restaged, attempt = self.restage(intent, tuple(committed.values())), intent.attempt + 1
        self.discard(file for table in restaged.tables if table.path in committed for file in table.files)
        staged = [replace(table, attempt=attempt) for table in restaged.tables if table.path not in committed]
        parts = sorted((*committed.values(), *staged), key=lambda table: (table.dead_letters, table.path))
        restaged = replace(restaged, tables=tuple(parts), attempt=attempt)
        self.lease.check()
        self.ledger.revise(restaged)
        text = f"{self.unit} {restaged.batch} is staged again: staged files are missing, or no longer fit a table"
        self.report({"event": "restage", "pipeline": self.spec.pipeline, self.unit: restaged.batch, "text": text})
        self.open_tables().open()
        return restaged

    def _committed_part(self, table: TableIntent, intent: Intent) -> TableIntent:
        """The part of the batch that a table already has, as it was staged."""
        attempt = self.tables.commits.attempt_of(table, intent)
        staged = intent if attempt == table.attempt else self.ledger.attempt(intent.batch, attempt)
        parts = staged.tables if staged is not None else ()
        return next((part for part in parts if part.path == table.path), table)

    def restage(self, intent: Intent, committed_tables: Sequence[TableIntent] = ()) -> Intent:
        """Read the ranges of a batch again with its own spec and stage them; committed tables keep their parts."""
        if intent.kind is IntentKind.REINGEST:
            return replace(intent, tables=(), counts=Counts())  # the log tells which rows are missing: run it again
        ranges = self._readable(intent)
        spec, spark = parse_intent_spec(intent.spec, self.spec.base), lambda: self.spark
        old = Pipeline(spec, spark, recovery=self.recovery, report=self.report, stop=self.stop)
        old.lease, old.ledger = self.lease, self.ledger
        tables = old.open_tables()
        if intent.kind is IntentKind.REFILL and self.ledger.known.tables[intent.tables[0].path].refill < 0:
            return replace(intent, tables=(), counts=Counts())  # the table was replaced: it is owed nothing
        if intent.kind is IntentKind.REFILL:
            return self.recovery.plan_refill(old.context, intent)
        if intent.ranges and not ranges:
            return replace(intent, tables=(), counts=Counts())  # only the parts that tables already have remain
        tables.open()
        tables.keep_planned(committed_tables)
        records = old.source.read(self.spark, ranges)
        manifests, runs = old.discover_and_stage(records, intent.batch, intent.started)
        restaged = old.intend(intent.batch, intent.ranges, manifests, intent.started, runs)
        return replace(restaged, idle_ranges=intent.idle_ranges)

    def _readable(self, intent: Intent) -> tuple[Range, ...]:
        """The ranges of a batch to read again; without gaps that were accepted."""
        if not self.accepts_gaps:
            self._same_topics(intent.ranges)
            still_there(self.source, intent.ranges)
            return intent.ranges
        ranges = readable_ranges(self.source, intent.ranges)
        lost = sum(each.until - each.start for each in intent.ranges) - sum(each.until - each.start for each in ranges)
        if lost:
            self.accepted_gaps.append(f"batch {intent.batch}: {lost} offsets that the source no longer has are skipped")
        return ranges

    # ---- progress ----

    def mean_bytes(self) -> float:
        """Mean size of a record in this run, in bytes; 1,000 before the first batch."""
        counts = self.summary.counts
        return counts.value_bytes / counts.read if counts.read else 1000.0

    def on_tick(self, records_read: Callable[[], int] = lambda: 0) -> None:
        """Report the progress every second, the lag every two; called several times a second while batches run.

        `records_read`: how many records the tasks of the current batch have read.
        """
        now = time.monotonic()
        if now - self._reported < _PROGRESS_INTERVAL:
            return
        self._reported = now
        self._report_notices()
        if now - self._lag_read >= _LAG_INTERVAL:
            self._lag_read, self._lag = now, self._read_lag()
        elif not self.progress.is_reading:
            return
        read = records_read() if self.progress.is_reading else 0
        self.report({"event": "progress", "pipeline": self.spec.pipeline, **self._lag, **self.progress.event(read)})

    def _read_lag(self) -> dict[str, Any]:
        try:
            lag = self.source.lag(self.position)
        except TransientError:
            self.lag_seconds = math.inf
            return lag_event()
        self.lag_seconds = lag.seconds
        self.repartitioned = lag.ends.keys() != self.position.keys()
        partitions = lag.partitions(self.position)
        self.report({"event": "partitions", "pipeline": self.spec.pipeline, "partitions": partitions})
        return lag.event()


def _discovered(manifests: Sequence[Manifest]) -> dict[RouteId, Structure]:
    discovered: dict[RouteId, Structure] = {}
    for manifest in manifests:
        for route_id, structure in manifest.discovered.items():
            known = discovered.get(route_id)
            discovered[route_id] = structure if known is None else merge_structures(known, structure)
    return discovered
