"""Resume after an error that needs a decision by the user; each decision is recorded in the ledger."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum

from headrace.delta.features import WriterKind, append_blocker, writer_of
from headrace.delta.log_errors import unreached
from headrace.delta.snapshot import TableState, load_state
from headrace.delta.txn import batch_txn
from headrace.errors import SourceReplaced, TableRestored
from headrace.ledger.known_tables import KnownTable
from headrace.ledger.ledger import Ledger
from headrace.ledger.undone_batches import KEEP
from headrace.pipeline.context import PipelineContext
from headrace.pipeline.events import Report
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.spark_session import SharedSession
from headrace.pipeline.table_entry import batch_in_table, last_seen_version, restores_of, staged_for_schema
from headrace.pipeline.verify_source import added_partitions, ordered_by_offset
from headrace.recovery.rebuild_ledger import rebuild, reset_tombstones
from headrace.recovery.refill_restored_table import undone_by_restores
from headrace.recovery.startup import StartupRecovery
from headrace.source.base import GapSource, Source
from headrace.source.ranges import Range
from headrace.spec import Spec
from headrace.storage.store import Store
from headrace.write.intent import Intent, IntentKind, TableIntent


class Decision(StrEnum):
    """Options of `headrace resume`."""

    GAP = "accept-gap"
    REPLACED_TOPIC = "accept-replaced-topic"
    ADDED_PARTITIONS = "accept-added-partitions"
    NEW_TABLE = "accept-new-table"
    LOST_LEDGER = "accept-lost-ledger"
    RESTORED_TABLE = "table-restored=keep"
    REFILLED_TABLE = "table-restored=refill"


def decide(
    spec: Spec,
    decisions: list[Decision],
    report: Report = lambda event: None,
    stop: threading.Event | None = None,
) -> list[str]:
    """Take the lease, finish an open batch and record the decisions; returns a message per change."""
    with _leased(spec, report, stop) as pipeline:
        messages = _apply(pipeline, decisions)
    return messages or [f"{spec.pipeline}: nothing to accept; nothing was changed"]


@contextmanager
def open_context(spec: Spec, stop: threading.Event | None = None) -> Iterator[PipelineContext]:
    """A pipeline under its lease, with its ledger, and without a batch."""
    with _leased(spec, lambda event: None, stop) as pipeline:
        pipeline.open_ledger()
        yield pipeline.context


@contextmanager
def _leased(spec: Spec, report: Report, stop: threading.Event | None) -> Iterator[Pipeline]:
    shared = SharedSession([spec])
    pipeline = Pipeline(spec, shared.get, recovery=StartupRecovery(), report=report, stop=stop)
    try:
        with pipeline.take_lease():
            yield pipeline
    finally:
        pipeline.source.close()
        shared.close()


def _apply(pipeline: Pipeline, decisions: list[Decision]) -> list[str]:
    ledger = pipeline.open_ledger()
    kept = _keep_restored(pipeline.context) if Decision.RESTORED_TABLE in decisions else []
    # May read a batch again, also for restored tables.
    rebuilt = rebuild(pipeline.context, Decision.LOST_LEDGER in decisions)
    rebuilt += reset_tombstones(pipeline.context) if Decision.LOST_LEDGER in decisions else []
    messages = _accept_tables(pipeline.context) if Decision.NEW_TABLE in decisions else []
    tables_changed = bool(messages)  # files staged for a table that was replaced do not fit the new one
    messages += kept
    if Decision.REFILLED_TABLE in decisions:
        messages += _schedule_refills(pipeline.context)
    if Decision.GAP in decisions and isinstance(pipeline.source, GapSource):
        messages += pipeline.source.accept_gaps(ledger.position())
    pipeline.accepts_gaps = not {Decision.GAP, Decision.REPLACED_TOPIC}.isdisjoint(decisions)
    pipeline.finish_open_batch(tables_changed)
    messages += pipeline.accepted_gaps
    if messages:
        ledger.decide("; ".join(messages), {})
    pipeline.refill_tables()
    if Decision.REPLACED_TOPIC in decisions:
        messages += _accept_replaced_topics(pipeline.spec, pipeline.source, ledger)
    if Decision.ADDED_PARTITIONS in decisions:
        messages += _accept_partitions(pipeline.source, ledger)
    if Decision.GAP in decisions:
        messages += _accept_gaps(pipeline.source, ledger)
    return rebuilt + messages


def _accept_gaps(source: Source, ledger: Ledger) -> list[str]:
    bounds, ids = source.bounds(), source.topics()
    position = ledger.position()
    moved, ranges = {}, []
    for partition, offset in position.items():
        if partition not in bounds or bounds[partition].earliest <= offset <= bounds[partition].latest:
            continue
        moved[partition] = min(max(offset, bounds[partition].earliest), bounds[partition].latest)
        if moved[partition] > offset:
            ranges.append(Range(*partition, offset, moved[partition], ids[partition[0]]))
    if not moved:
        return []
    ledger.decide("gap accepted", moved, ranges)
    return [
        f"{topic}/{number}: continues at offset {offset}, was {position[topic, number]}"
        for (topic, number), offset in moved.items()
    ]


def _accept_partitions(source: Source, ledger: Ledger) -> list[str]:
    added = added_partitions(source.bounds(), ledger)
    if not added:
        return []
    names = [f"{topic}/{partition}" for topic, partition in added]
    ledger.decide(f"added partitions accepted: {', '.join(names)}", dict.fromkeys(added, 0))
    return [f"{name}: is read from its first record" for name in names]


def _accept_replaced_topics(spec: Spec, source: Source, ledger: Ledger) -> list[str]:
    ids, bounds = source.topics(), source.bounds()
    replaced = {name for name, topic_id in ids.items() if ledger.known.topics.get(name, topic_id) != topic_id}
    if not replaced:
        return []
    check_order(spec, replaced)
    partitions = {partition for partition in (*ledger.position(), *bounds) if partition[0] in replaced}
    # At 0 where the new topic lacks a partition: should it be added, no record is missed.
    starts = {partition: bounds[partition].earliest if partition in bounds else 0 for partition in partitions}
    ranges = [Range(*partition, offset, offset, ids[partition[0]]) for partition, offset in sorted(starts.items())]
    ledger.decide(f"replaced topic accepted: {', '.join(sorted(replaced))}", {}, ranges)
    return [f"{name}: the new topic is read from its first record" for name in sorted(replaced)]


def check_order(spec: Spec, replaced: Collection[str]) -> None:
    """Raise SourceReplaced where changes are ordered by offset: those of a new topic would all be older."""
    if ordered_by_offset(spec):
        raise SourceReplaced(
            f"Changes are ordered by offset, and {', '.join(sorted(replaced))} was recreated: all its changes would "
            "be older than those in the table.",
            hint="Order changes by a column (merge.sequence_by), or write to a new table; then run this again.",
            topic=min(replaced),
        )


def _accept_tables(context: PipelineContext) -> list[str]:
    """Accept the tables as they are now: the known ones and those of the open batch."""
    intent = context.ledger.open_batch()
    staged = {table.path: table for table in intent.tables} if intent else {}
    messages = []
    for uri, table in {**dict.fromkeys(staged), **context.ledger.known.tables}.items():
        store = context.store(uri)
        state = load_state(store, [batch_txn(context.writer)])
        if table is not None and (message := _accept_table(context, uri, table, state)):
            messages.append(message)
        elif intent and uri in staged and state and not _can_finish(store, staged[uri], intent, state):
            messages.append(f"{uri}: batch {intent.batch} continues with the table as it is now")
    return messages


def _accept_table(context: PipelineContext, uri: str, known: KnownTable, state: TableState | None) -> str:
    """Accept the changes to a known table; empty if there are none."""
    if state is None:
        context.ledger.known.forget(uri)
        return f"{uri}: was deleted; a new table is created and filled from here on"
    blocker = append_blocker(state)
    kind = writer_of(state)
    if state.table_id != known.id:
        context.ledger.known.store(tables={uri: KnownTable(state.table_id, kind)})
        return f"{uri}: continues with the table that exists now"
    if known.writer == WriterKind.DIRECT and blocker:
        context.ledger.known.store(tables={uri: replace(known, writer=kind)})
        return f"{uri}: is written by Spark from now on, because {blocker}"
    if context.writer in known.writers and batch_txn(context.writer) not in state.txns:
        others = tuple(writer for writer in known.writers if writer != context.writer)
        context.ledger.known.store(tables={uri: replace(known, writers=others)})
        return f"{uri}: continues without the txn of '{context.writer}', which is missing"
    return ""


def _can_finish(store: Store, table: TableIntent, intent: Intent, state: TableState) -> bool:
    """Whether the open batch can be finished in a table without a decision."""
    if state.txns.get(batch_txn(intent.pipeline), 0) >= intent.batch:
        return True
    if not table.create and state.table_id != table.table_id:
        return False
    return staged_for_schema(table, state) and batch_in_table(store, table, intent, state) is not None


def _keep_restored(context: PipelineContext) -> list[str]:
    """Keep restored tables as they are, also those with a refill that was decided and is not possible."""
    restored = _restored_tables(context, keep=True)
    for uri, known in dict(context.ledger.known.tables).items():
        if uri in restored or known.refill >= 0:
            version = restored.setdefault(uri, known.restored)
            context.ledger.accept_version(uri)
            kept = replace(known, restored=version, scanned=min(known.scanned, version), refill=-1)
            context.ledger.known.store(tables={uri: kept})
    return [
        f"{uri}: restored in version {version}; continues from there, without the undone rows"
        for uri, version in restored.items()
    ]


def _schedule_refills(context: PipelineContext) -> list[str]:
    """Record the refills of restored tables, once the source is known to have their records."""
    messages = []
    intent = context.ledger.open_batch()
    open_refill = intent.tables[0].path if intent and intent.tables and intent.kind is IntentKind.REFILL else None
    for uri, version in _restored_tables(context).items():
        if uri == open_refill:
            raise TableRestored(
                f"{uri} was restored in version {version}, during its refill.",
                hint=f"{KEEP}; rows of the running refill are written again.",
            )
        known = context.ledger.known.tables[uri]
        oldest = known.refill if known.refill >= 0 else version
        rows = undone_by_restores(context, uri, version, oldest).rows
        context.ledger.known.store(tables={uri: replace(known, restored=version, refill=oldest if rows else -1)})
        messages.append(f"{uri}: restored in version {version}; {rows} undone rows are read again")
    return messages


def _restored_tables(context: PipelineContext, *, keep: bool = False) -> dict[str, int]:
    """Tables with a RESTORE that was not decided yet, by its version.

    `keep`: also tables that may have been restored or were replaced by an older copy, by their current version.
    """
    versions = {}
    for uri, known in context.ledger.known.tables.items():
        store = context.store(uri)
        state = load_state(store)
        if state is None or state.table_id != known.id:
            continue
        if state.version < last_seen_version(known, context.ledger, uri):
            if keep:
                versions[uri] = state.version
            continue
        restores = restores_of(store, state, known, context.spec.pipeline)
        if restores.newest is not None:
            versions[uri] = restores.newest
        elif not restores.reached and not keep:
            raise unreached(uri, known.scanned)
        elif not restores.reached:
            versions[uri] = state.version
    return versions
