"""One batch, start to end, and the loop around it. There is one way to resume, used at every start: the ledger."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeVar

from headrace import faults, retry
from headrace.decode.inference import Structure
from headrace.decode.inference import merge_inferred as merge_structures
from headrace.delta.log import EPOCH
from headrace.delta.receipt import Receipt
from headrace.delta.staged_file import StagedFile
from headrace.errors import Fenced, HeadraceError, StopRequested, TableChanged, TableFeature, TransientError
from headrace.ledger.ledger import Ledger
from headrace.ledger.replays import Replays
from headrace.ledger.replays import writer as replays_writer
from headrace.pipeline import inference_minimum, overwrite, task
from headrace.pipeline.circuit_breaker import CircuitBreaker
from headrace.pipeline.context import Maintenance, PipelineContext, Recovery, StagedTable
from headrace.pipeline.deduplicate import Deduplication
from headrace.pipeline.events import Report, Summary, batch_event
from headrace.pipeline.lease import Lease
from headrace.pipeline.manifest import Manifest, merge_manifests
from headrace.pipeline.streaming_query import StreamingBatches
from headrace.pipeline.tables import STAGING, PipelineTables
from headrace.pipeline.verify_source import ordered_by_offset, readable_ranges, same_topics, still_there, verify_source
from headrace.plan.accounting import Counts
from headrace.plan.inferred_columns import InferredColumns
from headrace.runtime import session
from headrace.source.base import Offsets, Source, lag_event, open_source
from headrace.source.ranges import Range, last_offsets, one_per_partition
from headrace.spec import Spec
from headrace.spec.reader import parse_intent_spec
from headrace.spec.route_id import RouteId
from headrace.stage.partitions import check_partition_count
from headrace.stage.stager import delete_staged
from headrace.storage.store import Profile, Store
from headrace.version import VERSION
from headrace.write import retention
from headrace.write.intent import Intent, IntentKind, TableIntent, staged_for
from headrace.write.tombstones import DAY, TOMBSTONES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


T = TypeVar("T")
_COMMITS_AT_ONCE = 8
_TELL_EVERY = 2.0  # seconds
_LOOK_EVERY = 1.0  # seconds, while no topic matches


class Pipeline:
    """A spec at work under its lease."""

    unit = "batch"

    def __init__(
        self,
        spec: Spec,
        spark: Callable[[], SparkSession],
        *,
        recovery: Recovery,
        maintenance: Maintenance | None = None,
        until: str | None = None,
        report: Report = lambda event: None,
        stop: threading.Event | None = None,
    ) -> None:
        self.spec = spec
        self.writer = spec.pipeline  # whose marks the commits carry
        self.recovery, self.maintenance = recovery, maintenance
        self.until = until
        self.report = report
        self.stop = stop or threading.Event()
        self.profile = Profile(**spec.storage_profile())
        self.state = Store(spec.state_uri, self.profile)
        self.summary = Summary(spec.pipeline, drained=None if until is None else False)
        self.source: Source = open_source(spec)
        self.position: Offsets = {}
        self.topics: dict[str, str] = {}
        self.repartitioned = False  # whether the source has other partitions now than the query reads
        self.lag_seconds: float | None = math.inf  # at the last check; None where the source reports none
        self.gives_up = False  # whether a person gives up what cannot be read again of an open batch
        self.given_up: list[str] = []  # what that was, in words
        self._breaker = CircuitBreaker(spec.circuit_breaker)
        self._unchecked = frozenset(spec.branch_specs())  # whose names were not yet held against records in this run
        self._told = time.monotonic()
        self._purged: date | None = None
        self._retention_time = EPOCH
        self._start_spark = spark
        self._policy = retry.Retry(
            spec.retry.unreachable.initial_interval.total_seconds(),
            spec.retry.unreachable.max_interval.total_seconds(),
            spec.retry.refused,
            spec.retry.conflict,
        )

    def take_lease(self, wait: bool = False) -> Lease:
        """One writer per pipeline: LeaseHeld when somebody else is at it."""
        ttl, renew = self.spec.lease.ttl.total_seconds(), self.spec.lease.renew.total_seconds()
        take = partial(Lease.take, self.state, ttl=ttl, renew=renew, wait=wait, stop=self.stop)
        self.lease = self._retrying(take)
        return self.lease

    def run(self) -> Summary:
        """Until the end asked for, or a request to stop; what passes by itself is waited out."""
        try:
            self._retrying(self._attempt)
        except StopRequested:
            pass
        finally:
            self.source.close()
        return self.summary

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

    def _attempt(self) -> None:
        """From the ledger on: finish what was begun, refill what was restored, look at the source, stream."""
        self.open_ledger()
        self.recovery.rebuild_ledger(self.context)
        self.finish_open_batch()
        self.refill_tables()
        self.keep_retention()
        overwrite.begin(self.spec, self.ledger, self.source)
        self.verify_source()
        self.tables.open()
        inference_minimum.wait(self)
        while self._stream():
            self.verify_source()
        if not self.stop.is_set():
            overwrite.end(self.spec, self.ledger)
        if self.until is not None and not self.stop.is_set():
            self.summary.drained = True
            self.maintain(at_end=True)

    def verify_source(self) -> None:
        """The partitions to read and where each goes on."""
        self.topics, self.position = verify_source(self.source, self.ledger, ordered_by_offset(self.spec))
        self.repartitioned = False

    def _stream(self) -> bool:
        """One streaming query to its end; True when the source must be looked at again for another one."""
        if self.stop.is_set() or (self.until is not None and not self._waits()):
            return False
        if self.position:
            return StreamingBatches(self).run()
        self.stop.wait(_LOOK_EVERY)  # no topic matches yet
        self.lease.check()
        self.on_tick()
        return True

    def _waits(self) -> bool:
        """Whether records wait to be read; where none do, a drain is done without Spark."""
        bounds = self.source.bounds()
        return any(found.latest > self.position.get(each, found.latest) for each, found in bounds.items())

    @property
    def spark(self) -> SparkSession:
        """The session, started when it is first needed."""
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
        """Where the pipeline stands."""
        self.ledger = Ledger.open(self.state, self.writer)
        self.open_tables()
        return self.ledger

    def open_tables(self) -> PipelineTables:
        """The tables, with nothing learned of them yet."""
        self.tables = PipelineTables(self.spec, self.profile, self.ledger, self._spark_table, self.writer)
        self._doubles = Deduplication(self.tables)
        return self.tables

    def finish_open_batch(self, anew: bool = False) -> None:
        """Before anything else is begun, what was begun is booked; `anew` when its tables are others now."""
        if (begun := self.ledger.open_batch()) is not None:
            self._finish(begun, anew)

    def refill_tables(self) -> None:
        """Write again the rows that a RESTORE removed."""
        self.recovery.refill_tables(self.context)
        self.open_tables()  # a refill lets only its own table take rows

    # ---- dead letters that are old ----

    def keep_retention(self) -> None:
        """Once a day, drop the dead letters that are older than the spec keeps them, and deletes that count no more."""
        clock = datetime.now(UTC)
        if self._purged == clock.date():
            return
        self._purged, self._retention_time = clock.date(), self.ledger.proved_time(clock)
        self.tables.follow_logs()
        self._sweep_staging()
        for folder in self.state.child(TOMBSTONES).folders():
            retention.purge_days(self.state.child(f"{TOMBSTONES}/{folder}"), self._retention_time.date(), DAY)
        age = self.spec.dead_letters.retention
        purge = self.purge(retention.retention_day(age, self._retention_time)) if age is not None else None
        if purge is not None and purge.files:
            self.report({"event": "purge", "pipeline": self.spec.pipeline, "text": f"purged {purge}"})

    def _sweep_staging(self) -> None:
        """Delete what batches left that died before they were decided: between two of ours nothing is at work there."""
        begun = self.ledger.open_batch(), Replays.open(self.state, replays_writer(self.spec.pipeline)).open_batch()
        kept = staged_for(each for each in begun if each is not None)
        with suppress(HeadraceError):
            left = [item.path for item in self.state.list(STAGING)]
            self.state.delete([path for path in left if f"{self.state.uri}/{path}" not in kept])

    def purge(self, before: date) -> retention.Purge:
        """Drop the dead letters of the days before, once the ledger tells it; an open replay plan still needs them."""
        store = Store(self.spec.dead_letters_uri, self.profile)
        purge = retention.purge_preview(store, before)
        replays = Replays.open(self.state, replays_writer(self.spec.pipeline))
        if not purge.files or replays.open_batch() is not None:
            return retention.Purge(before)
        self.ledger.decide(f"purged {purge}", {})
        return retention.purge_days(store, before)

    def _spark_table(self, store: Store) -> Any:
        from headrace.write.leased_writer import LeasedWriter

        tombstones, limit = self.state.child(TOMBSTONES), self.spec.limits.merge_bytes
        return LeasedWriter(lambda: self.spark, store, self.writer, tombstones, limit)

    # ---- one batch ----

    def one_batch(self, frame: DataFrame, ranges: tuple[Range, ...]) -> None:
        """read → decode → transform → route → stage (one Spark job), then commit, then book."""
        self.keep_retention()
        batch, started = self.ledger.batch + 1, datetime.now(UTC)
        faults.reach(faults.Point.BEFORE_STAGING, batch=batch)
        if (tasks := task.tasks_for(ranges, self.mean_bytes())) < len(ranges):
            frame = frame.coalesce(tasks)
        manifests, runs = self.discover_and_stage(frame, batch, started)
        self._check_names(manifests)
        faults.reach(faults.Point.AFTER_STAGING, batch=batch)
        self._same_topics(ranges)
        intent = self.intend(batch, ranges, manifests, started, runs)
        intent = self.execute(intent)
        self._breaker.note(intent.counts, datetime.now(UTC))

    def _check_names(self, manifests: Sequence[Manifest]) -> None:
        """In the first batch of a run, stop at names that nothing has: the spec would filter or blank every record."""
        reports = [(route_id, names) for each in manifests for route_id, names in each.unknown.items()]
        try:
            self.tables.check_names(reports)
        except HeadraceError:
            self.discard(merge_manifests(manifests)[0])
            raise
        self._unchecked -= {route_id.branch for route_id, _ in reports}

    def discover_and_stage(self, frame: DataFrame, batch: int, now: datetime) -> tuple[list[Manifest], int]:
        """Stage; when tasks met fields or tables nobody knew, answer them and, unless they were right, stage again."""
        self.tables.begin_batch(batch)
        manifests, runs = self.stage(frame, batch, now), 1
        while not self._answered(manifests, batch):
            manifests, runs = self.stage(frame, batch, now), runs + 1
        return manifests, runs

    def _answered(self, manifests: Sequence[Manifest], batch: int) -> bool:
        """Whether what was staged stands; a table that the spec declares whole is staged before anyone has met it."""
        assumed = {name for each in manifests for name in each.assumed}
        discovered = _discovered(manifests)
        stands = False
        try:
            if discovered or assumed:
                self._report_columns(self.tables.add_discovered({name: {} for name in assumed} | discovered, batch))
            stands = not discovered and self.tables.are_declared(assumed)
        finally:
            if not stands:
                self.discard(merge_manifests(manifests)[0])
        return stands

    def _report_columns(self, inferred: Iterable[InferredColumns]) -> None:
        """Report the columns that tables get because records have them."""
        for columns in inferred:
            self.summary.keep_as_text(columns.table, columns.json_text)
            self.report(columns.event(self.spec.pipeline))

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Delete what was staged and will not be committed."""
        delete_staged(files, lambda uri: Store(uri, self.profile))

    def stage_for_table(self, uri: str, ranges: Sequence[Range], batch: int, started: datetime) -> StagedTable:
        """Read ranges again and stage them; tables other than `uri` skip the records, which they have already."""
        tables = self.open_tables()
        tables.open()
        tables.write_only_to(uri, last_offsets(ranges))
        frames = [self.source.read(self.spark, part) for part in one_per_partition(ranges)]
        frame = reduce(lambda one, two: one.union(two), frames)
        manifests, runs = self.discover_and_stage(frame, batch, started)
        layouts = {layout.path: layout for layout in tables.layouts(batch).values()}
        return StagedTable(manifests, runs, layouts.get(uri))

    def stage(self, frame: DataFrame, batch: int, now: datetime) -> list[Manifest]:
        """Run the plan over the batch in Spark's tasks; only manifests come back."""
        run = partial(task.run_task, self.order(batch), batch, now)
        rows = session.map_in_arrow(frame, run, "manifest string").collect()
        manifests = [Manifest.from_json(row.manifest) for row in rows]
        task.raise_task_error(manifests)
        return manifests

    def order(self, batch: int) -> bytes:
        """What tasks must know of the batch."""
        tables = self.tables
        layouts, letters = tables.layouts(batch), tables.dead_letter_layout()
        return task.TaskInput(self.spec, tables.schemas, layouts, letters, self.profile, self._unchecked).to_bytes()

    def intend(
        self, batch: int, ranges: tuple[Range, ...], manifests: Sequence[Manifest], started: datetime, runs: int
    ) -> Intent:
        """The whole decision of the batch, to be made durable before any of it is visible."""
        files, counts, old = self._doubles.leave_out(*merge_manifests(manifests), batch, started)
        self.discard(old)
        check_partition_count(files, self.spec.limits.partition_values)
        tables = self.tables.intents(files, batch)
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
            self._idle_ranges(ranges),
            retention_time=self._retention_time,
            resumed=self.ledger.resumed,
        )

    def _idle_ranges(self, ranges: Iterable[Range]) -> tuple[Range, ...]:
        """Where the partitions stand that the batch does not read: its commits tell it, should the ledger be lost."""
        read = {(each.topic, each.partition) for each in ranges}
        topics = {**self.ledger.known.topics, **self.topics}
        stand = {**self.ledger.position(), **self.position}
        return tuple(Range(*at, to, to, topics.get(at[0], "")) for at, to in sorted(stand.items()) if at not in read)

    def execute(self, intent: Intent) -> Intent:
        """Write the intent to the state, then commit its tables and record it in the ledger."""
        self.lease.check()
        self.ledger.begin(intent)
        return self.settle(intent)

    def settle(self, intent: Intent) -> Intent:
        """Commit every table, then the dead letters, then book; also how an open batch is finished.

        Answers the intent that was carried out, which is a later plan where a table had appeared meanwhile.
        """
        intent, receipts = self._committed(intent)
        faults.reach(faults.Point.BEFORE_LEDGER_WRITE, batch=intent.batch)
        tables = self.tables.known_tables()
        if intent.kind is IntentKind.REFILL:
            tables |= {each.path: replace(tables[each.path], refill=-1) for each in intent.tables}
        tables |= overwrite.with_overwritten(tables, self.ledger.known.full_refresh.number, intent)
        self.ledger.known.remember(tables=tables)
        self.ledger.record(intent, receipts, datetime.now(UTC))
        faults.reach(faults.Point.AFTER_LEDGER_WRITE, batch=intent.batch)
        self._clear_staging(intent)
        self.summary.add(intent, receipts)
        self.position |= {(each.topic, each.partition): each.until for each in intent.ranges}
        self._tell(intent, receipts)
        return intent

    def _tell(self, intent: Intent, receipts: Sequence[Receipt]) -> None:
        self.report(batch_event(intent, receipts))

    def _clear_staging(self, intent: Intent) -> None:
        """Files that Spark copied into its table have done their work; what fails here only takes up space."""
        for table in intent.tables:
            copied = [item for item in table.files if item.table != table.path]
            with suppress(HeadraceError):
                for item in copied:
                    Store(item.table, self.profile).delete([item.path])

    def _committed(self, intent: Intent) -> tuple[Intent, list[Receipt]]:
        """Commit the batch; planned again where one of its tables was created by another writer meanwhile."""
        while True:
            try:
                return intent, self._commit(intent)
            except (TableChanged, TableFeature):
                if not self.tables.commits.needs_new_plan(intent):
                    raise
                intent = self._plan_again(intent)

    def _commit(self, intent: Intent) -> list[Receipt]:
        data = [table for table in intent.tables if not table.dead_letters]
        rest = [table for table in intent.tables if table.dead_letters]
        first = [table for table in data[:1] if table.merging is None]  # a merge is long: no other waits for it
        receipts = [self._commit_one(table, intent) for table in first]
        if first and data[1:]:
            faults.reach(faults.Point.AFTER_FIRST_TABLE, batch=intent.batch)
        receipts += self._commit_beside(data[len(first) :], intent, several=not first and len(data) > 1)
        if rest:
            faults.reach(faults.Point.BEFORE_DEAD_LETTERS, batch=intent.batch)
        return receipts + [self._commit_one(table, intent) for table in rest]

    def _commit_beside(self, tables: Sequence[TableIntent], intent: Intent, several: bool) -> list[Receipt]:
        """Commit tables side by side; once one has failed, those that have not begun are left to the recovery."""
        failed = threading.Event()

        def one(table: TableIntent) -> list[Receipt]:
            if failed.is_set():
                return []
            try:
                receipt = self._commit_one(table, intent)
                if several:
                    faults.reach(faults.Point.AFTER_FIRST_TABLE, batch=intent.batch)
            except BaseException:
                failed.set()
                raise
            return [receipt]

        with ThreadPoolExecutor(_COMMITS_AT_ONCE) as pool:
            return [receipt for receipts in pool.map(one, tables) for receipt in receipts]

    def _commit_one(self, table: TableIntent, intent: Intent) -> Receipt:
        self.lease.check()
        receipt = self._retrying(lambda: self.tables.commits.commit(table, intent))
        if receipt.skipped and self.tables.commits.plan_of(table, intent) != table.plan:
            raise Fenced(
                f"{table.path} holds another plan of batch {intent.batch} than the one at hand: another driver has "
                "planned it again.",
                hint="Start the pipeline again: it goes on with the plan that the tables hold.",
            )
        return receipt

    def _same_topics(self, ranges: Sequence[Range]) -> None:
        """What was just read must come from the topics we knew, not from ones made anew meanwhile."""
        same_topics(self.source, {each.topic: each.topic_id for each in ranges})

    # ---- recovery ----

    def _finish(self, begun: Intent, anew: bool) -> None:
        """A batch that was decided but not booked: commit the same files wherever its mark is missing."""
        self.report({"event": "recover", "pipeline": self.spec.pipeline, self.unit: begun.batch})
        for table in begun.tables:
            self._retrying(partial(self.tables.commits.restore_txn, table, begun, anew))
        if begun.kind is not IntentKind.DECISION and (anew or self.missing(begun) or self._superseded(begun)):
            begun = self._plan_again(begun)
        self.settle(begun)
        self.summary.recovered += 1
        self.open_tables()

    def missing(self, begun: Intent) -> list[str]:
        """Staged files that somebody deleted before they were committed."""
        return [
            f"{item.table}/{item.path}"
            for table in begun.tables
            if not self.tables.commits.contains(table, begun)
            for item in table.files
            if not Store(item.table, self.profile).exists(item.path)
        ]

    def _superseded(self, begun: Intent) -> bool:
        """Whether a table holds the batch by another plan than the newest one."""
        return any(
            self.tables.commits.contains(table, begun) and self.tables.commits.plan_of(table, begun) != table.plan
            for table in begun.tables
        )

    def _plan_again(self, begun: Intent) -> Intent:
        """A later plan of the same batch, durable before any of it is committed.

        Its ranges and its spec are the same. What a table holds already stays as it was planned for that table.
        """
        plan = begun.plan + 1
        held = {
            table.path: self._held(table, begun) for table in begun.tables if self.tables.commits.contains(table, begun)
        }
        made = self.again(begun, tuple(held.values()))
        self.discard(item for table in made.tables if table.path in held for item in table.files)
        left = tuple(replace(table, plan=plan) for table in made.tables if table.path not in held)
        tables = sorted((*held.values(), *left), key=lambda table: (table.dead_letters, table.path))
        intent = replace(made, tables=tuple(tables), plan=plan)
        self.lease.check()
        self.ledger.revise(intent)
        said = f"{self.unit} {intent.batch} is planned again: its files were gone, or did not fit a table any more"
        self.report({"event": "replan", "pipeline": self.spec.pipeline, self.unit: intent.batch, "text": said})
        self.open_tables().open()
        return intent

    def _held(self, table: TableIntent, begun: Intent) -> TableIntent:
        """The part of the batch that a table holds, as it was planned."""
        plan = self.tables.commits.plan_of(table, begun)
        intent = begun if plan == table.plan else self.ledger.planned(begun.batch, plan)
        parts = intent.tables if intent is not None else ()
        return next((part for part in parts if part.path == table.path), table)

    def again(self, begun: Intent, held: Sequence[TableIntent] = ()) -> Intent:
        """Read exactly the batch's ranges once more, with the spec that began it; `held`: what tables hold of it."""
        if begun.kind is IntentKind.REINGEST:
            return replace(begun, tables=(), counts=Counts())  # the table's log tells what is lost still: ask again
        ranges = self._readable(begun)
        spec, spark = parse_intent_spec(begun.spec, self.spec.base), lambda: self.spark
        old = Pipeline(spec, spark, recovery=self.recovery, report=self.report, stop=self.stop)
        old.lease, old.ledger = self.lease, self.ledger
        tables = old.open_tables()
        if begun.kind is IntentKind.REFILL and self.ledger.known.tables[begun.tables[0].path].refill < 0:
            return replace(begun, tables=(), counts=Counts())  # the table is another one now: nothing is owed to it
        if begun.kind is IntentKind.REFILL:
            return self.recovery.plan_refill(old.context, begun)
        if begun.ranges and not ranges:
            return replace(begun, tables=(), counts=Counts())  # all that is left of it is what tables hold
        tables.open()
        tables.keep_planned(held)
        frame = old.source.read(self.spark, ranges)
        manifests, runs = old.discover_and_stage(frame, begun.batch, begun.started)
        intent = old.intend(begun.batch, begun.ranges, manifests, begun.started, runs)
        return replace(intent, idle_ranges=begun.idle_ranges)

    def _readable(self, begun: Intent) -> tuple[Range, ...]:
        """The ranges of a batch that is read again; without those that are gone, where a person gives them up."""
        if not self.gives_up:
            self._same_topics(begun.ranges)
            still_there(self.source, begun.ranges)
            return begun.ranges
        ranges = readable_ranges(self.source, begun.ranges)
        lost = sum(each.until - each.start for each in begun.ranges) - sum(each.until - each.start for each in ranges)
        if lost:
            self.given_up.append(f"batch {begun.batch}: {lost} offsets that are gone are given up")
        return ranges

    # ---- what people see ----

    def mean_bytes(self) -> float:
        """The running mean of a record's size; a guess before the first batch."""
        counts = self.summary.counts
        return counts.value_bytes / counts.read if counts.read else 1000.0

    def on_tick(self) -> None:
        """Called several times a second while the stream runs; now and then it tells how far behind we are."""
        if time.monotonic() - self._told < _TELL_EVERY:
            return
        self._told = time.monotonic()
        try:
            lag = self.source.lag(self.position)
            self.lag_seconds, told = lag.seconds, lag.event()
            self.repartitioned = lag.partitions != self.position.keys()
        except TransientError:
            self.lag_seconds, told = math.inf, lag_event()
        self.report({"event": "progress", "pipeline": self.spec.pipeline, **told})


def _discovered(manifests: Sequence[Manifest]) -> dict[RouteId, Structure]:
    discovered: dict[RouteId, Structure] = {}
    for manifest in manifests:
        for route_id, structure in manifest.discovered.items():
            known = discovered.get(route_id)
            discovered[route_id] = structure if known is None else merge_structures(known, structure)
    return discovered
