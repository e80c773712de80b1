"""Decisions that only a person can take after a named stop; each is booked, so that the ledger tells it for ever."""

from __future__ import annotations

import threading
from collections.abc import Collection
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
from headrace.pipeline.table_entry import batch_in_table, restores_of, staged_for_schema, was_at
from headrace.pipeline.verify_source import added_partitions, ordered_by_offset
from headrace.recovery.rebuild_ledger import deletes_anew, rebuild
from headrace.recovery.refill_restored_table import what_is_owed
from headrace.recovery.startup import StartupRecovery
from headrace.source.base import Source
from headrace.source.ranges import Range
from headrace.spec import Spec
from headrace.storage.store import Store
from headrace.write.intent import Intent, IntentKind, TableIntent


class Decision(StrEnum):
    """What can be accepted."""

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
    """Take the lease, finish an open batch, book the decisions; answers what was done, in words."""
    shared = SharedSession([spec])
    pipeline = Pipeline(spec, shared.get, recovery=StartupRecovery(), report=report, stop=stop)
    try:
        with pipeline.take_lease():
            said = _decided(pipeline, decisions)
    finally:
        pipeline.source.close()
        shared.close()
    return said or [f"{spec.pipeline}: nothing of that kind had happened; nothing was changed"]


def _decided(pipeline: Pipeline, decisions: list[Decision]) -> list[str]:
    ledger = pipeline.open_ledger()
    kept = _kept_tables(pipeline.context) if Decision.RESTORED_TABLE in decisions else []
    rebuilt = rebuild(
        pipeline.context, Decision.LOST_LEDGER in decisions
    )  # may read a batch again, for restored tables too
    rebuilt += deletes_anew(pipeline.context) if Decision.LOST_LEDGER in decisions else []
    said = _new_tables(pipeline.context) if Decision.NEW_TABLE in decisions else []
    anew = bool(said)  # files staged for a table that is no more fit no other
    said += kept
    if Decision.REFILLED_TABLE in decisions:
        said += _owed_tables(pipeline.context)
    pipeline.gives_up = not {Decision.GAP, Decision.REPLACED_TOPIC}.isdisjoint(decisions)
    pipeline.finish_open_batch(anew)
    said += pipeline.given_up
    if said:
        ledger.decide("; ".join(said), {})
    pipeline.refill_tables()
    if Decision.REPLACED_TOPIC in decisions:
        said += _replaced_topics(pipeline.spec, pipeline.source, ledger)
    if Decision.ADDED_PARTITIONS in decisions:
        said += _added_partitions(pipeline.source, ledger)
    if Decision.GAP in decisions:
        said += _gaps(pipeline.source, ledger)
    return rebuilt + said


def _gaps(source: Source, ledger: Ledger) -> list[str]:
    bounds, ids = source.bounds(), source.topics()
    position = ledger.position()
    moved, ranges = {}, []
    for each, offset in position.items():
        if each in bounds and not bounds[each].earliest <= offset <= bounds[each].latest:
            moved[each] = min(max(offset, bounds[each].earliest), bounds[each].latest)
            if moved[each] > offset:
                ranges.append(Range(*each, offset, moved[each], ids[each[0]]))
    if not moved:
        return []
    ledger.decide("gap accepted", moved, ranges)
    return [f"{topic}/{part}: goes on at {at}, was at {position[topic, part]}" for (topic, part), at in moved.items()]


def _added_partitions(source: Source, ledger: Ledger) -> list[str]:
    added = added_partitions(source.bounds(), ledger)
    if not added:
        return []
    named = [f"{topic}/{partition}" for topic, partition in added]
    ledger.decide(f"added partitions accepted: {', '.join(named)}", dict.fromkeys(added, 0))
    return [f"{name}: is read from its first record" for name in named]


def _replaced_topics(spec: Spec, source: Source, ledger: Ledger) -> list[str]:
    ids, bounds = source.topics(), source.bounds()
    replaced = {name for name, topic_id in ids.items() if ledger.known.topics.get(name, topic_id) != topic_id}
    if not replaced:
        return []
    check_order(spec, replaced)
    partitions = {each for each in (*ledger.position(), *bounds) if each[0] in replaced}
    begin = {each: bounds[each].earliest if each in bounds else 0 for each in partitions}  # at 0: nothing is missed
    ranges = [Range(*each, at, at, ids[each[0]]) for each, at in sorted(begin.items())]
    ledger.decide(f"replaced topic accepted: {', '.join(sorted(replaced))}", {}, ranges)
    return [f"{name}: the new topic is read from its first record" for name in sorted(replaced)]


def check_order(spec: Spec, replaced: Collection[str]) -> None:
    """SourceReplaced where offsets that begin anew would be older than all that a table has: its changes were lost."""
    if ordered_by_offset(spec):
        raise SourceReplaced(
            f"Changes are ordered by offset, and {', '.join(sorted(replaced))} begins anew: none of its changes would "
            "be newer than what the table has.",
            hint="Order changes by a column (merge.sequence_by), or write to a new table; then run this again.",
            topic=min(replaced),
        )


def _new_tables(context: PipelineContext) -> list[str]:
    """Take the tables as they are now, those that are known and those that the open batch is for."""
    begun = context.ledger.open_batch()
    staged = {table.path: table for table in begun.tables} if begun else {}
    known = {**dict.fromkeys(staged), **context.ledger.known.tables}
    said = []
    for uri, table in known.items():
        store = context.store(uri)
        state = load_state(store, [batch_txn(context.writer)])
        if table is not None and (text := _accepted(context, uri, table, state)):
            said.append(text)
        elif (
            begun is not None and uri in staged and state is not None and not _goes_in(store, staged[uri], begun, state)
        ):
            said.append(f"{uri}: batch {begun.batch} goes on with the table as it is now")
    return said


def _accepted(context: PipelineContext, uri: str, known: KnownTable, state: TableState | None) -> str:
    """What has become of a known table, in words; nothing where it is as it was."""
    if state is None:
        context.ledger.known.forget(uri)
        return f"{uri}: is gone; a new table will be made and filled from here on"
    objection = append_blocker(state)
    kind = writer_of(state)
    if state.table_id != known.id:
        context.ledger.known.remember(tables={uri: KnownTable(state.table_id, kind)})
        return f"{uri}: goes on with the table that is there now"
    if known.writer == WriterKind.DIRECT and objection:
        context.ledger.known.remember(tables={uri: replace(known, writer=kind)})
        return f"{uri}: is written by Spark from now on, because {objection}"
    if context.writer in known.writers and batch_txn(context.writer) not in state.txns:
        others = tuple(each for each in known.writers if each != context.writer)
        context.ledger.known.remember(tables={uri: replace(known, writers=others)})
        return f"{uri}: goes on without the txn of '{context.writer}', which is gone"
    return ""


def _goes_in(store: Store, table: TableIntent, begun: Intent, state: TableState) -> bool:
    """Whether the open batch can be finished in a table without a person's word."""
    mark = batch_txn(begun.pipeline)
    if state.txns.get(mark, 0) >= begun.batch:
        return True
    if not table.create and state.table_id != table.table_id:
        return False
    return staged_for_schema(table, state) and batch_in_table(store, table, begun, state) is not None


def _kept_tables(context: PipelineContext) -> list[str]:
    """Go on with restored tables as they are; also with one whose refill was decided and cannot be done."""
    restored = _restored(context, keep=True)
    for uri, known in dict(context.ledger.known.tables).items():
        if uri in restored or known.refill >= 0:
            version = restored.setdefault(uri, known.restored)
            context.ledger.accept_version(uri)
            kept = replace(known, restored=version, scanned=min(known.scanned, version), refill=-1)
            context.ledger.known.remember(tables={uri: kept})
    return [
        f"{uri}: restored in version {version}; goes on from there, what was undone stays undone"
        for uri, version in restored.items()
    ]


def _owed_tables(context: PipelineContext) -> list[str]:
    """Write down what restored tables are owed, once it is sure that it can be read again."""
    said = []
    begun = context.ledger.open_batch()
    under_way = begun.tables[0].path if begun and begun.tables and begun.kind is IntentKind.REFILL else None
    for uri, version in _restored(context).items():
        if uri == under_way:
            raise TableRestored(
                f"{uri} was restored in version {version}, while it was being refilled.",
                hint=f"{KEEP}; those of the refill that is under way come back.",
            )
        known = context.ledger.known.tables[uri]
        oldest = known.refill if known.refill >= 0 else version
        rows = what_is_owed(context, uri, version, oldest).rows
        context.ledger.known.remember(tables={uri: replace(known, restored=version, refill=oldest if rows else -1)})
        said.append(f"{uri}: restored in version {version}; {rows} rows that were undone are read again for it")
    return said


def _restored(context: PipelineContext, *, keep: bool = False) -> dict[str, int]:
    """The tables with a RESTORE that nobody has answered yet, and its version.

    `keep`: also those that may have been restored, or were replaced by an older copy, with the version they have now.
    """
    found = {}
    for uri, known in context.ledger.known.tables.items():
        store = context.store(uri)
        state = load_state(store)
        if state is None or state.table_id != known.id:
            continue
        if state.version < was_at(known, context.ledger, uri):
            if keep:
                found[uri] = state.version
            continue
        restores = restores_of(store, state, known, context.spec.pipeline)
        if restores.newest is not None:
            found[uri] = restores.newest
        elif not restores.reached and not keep:
            raise unreached(uri, known.scanned)
        elif not restores.reached:
            found[uri] = state.version
    return found
