"""A restored table gets back what was undone: its records are read again, and only that table is written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.delta.txn import batch_txn
from headrace.errors import SourceGap, TableRestored
from headrace.ledger.undone_batches import KEEP, UndoneRows, undone_rows
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range
from headrace.stage.stager import delete_staged
from headrace.write.intent import Intent, IntentKind, TableIntent

if TYPE_CHECKING:
    from headrace.pipeline.context import PipelineContext


def refill_all(context: PipelineContext) -> None:
    """Refill every restored table, in a batch each."""
    for uri, known in dict(context.ledger.known.tables).items():
        if known.refill >= 0:
            context.batches.execute(refilled(context, uri, context.ledger.batch + 1, datetime.now(UTC)))


def what_is_owed(context: PipelineContext, uri: str, newest: int, oldest: int) -> UndoneRows:
    """What RESTOREs of these versions undid, once it is sure that it can be read again."""
    ledger, spec = context.ledger, context.spec
    store, mark = context.store(uri), batch_txn(spec.pipeline)
    found = undone_rows(store, newest, oldest, mark, spec.digest, ledger.rows_from)
    _check_source(context, uri, found)
    return found


def refilled(context: PipelineContext, uri: str, batch: int, started: datetime) -> Intent:
    """Plan a refill: files of one table and no offset range, since no partition moves."""
    known = context.ledger.known.tables[uri]
    undone = what_is_owed(context, uri, known.restored, known.refill)
    staged = context.batches.stage_for_table(uri, undone.ranges, batch, started)
    intent = context.batches.intend(batch, (), staged.manifests, started, staged.runs)
    tables = tuple(table for table in intent.tables if table.path == uri)
    delete_staged((file for table in intent.tables if table.path != uri for file in table.files), context.store)
    if _rows(tables) != undone.rows:
        delete_staged((file for table in tables for file in table.files), context.store)
        raise TableRestored(
            f"{uri}: its undone records, read again, make {_rows(tables)} rows; {undone.rows} were undone.",
            hint=f"Was the topic compacted, or the table changed? {KEEP}.",
        )
    counts = _counts(intent.counts, tables)
    return replace(intent, tables=tables, counts=counts, reread=undone.ranges, kind=IntentKind.REFILL)


def _counts(counts: Counts, mine: tuple[TableIntent, ...]) -> Counts:
    """What the other tables and the dead letters have already is skipped."""
    letters = any(table.dead_letters for table in mine)
    routed, dead = (0, min(_rows(mine), counts.dead)) if letters else (min(_rows(mine), counts.routed), 0)
    skipped = counts.read - routed - dead - counts.filtered
    return replace(counts, routed=routed, dead=dead, skipped=skipped, reasons=counts.reasons if letters else {})


def _rows(tables: tuple[TableIntent, ...]) -> int:
    return sum(item.rows for table in tables for item in table.files)


def _check_source(context: PipelineContext, uri: str, found: UndoneRows) -> None:
    bounds, topics = context.source.bounds(), context.source.topics()
    for each in found.ranges:
        if topics.get(each.topic) != each.topic_id or (each.topic, each.partition) not in bounds:
            raise _gone(uri, each, "its topic is another one now")
        earliest = bounds[each.topic, each.partition].earliest
        if each.start < earliest:
            raise _gone(uri, each, f"the broker begins at {earliest}")


def _gone(uri: str, each: Range, why: str) -> SourceGap:
    return SourceGap(
        f"{uri} cannot be refilled: {each.topic}/{each.partition} was read from {each.start} to {each.until - 1}, "
        f"and {why}.",
        hint=f"{KEEP}.",
        topic=each.topic,
        partition=each.partition,
        wanted=each.start,
    )
