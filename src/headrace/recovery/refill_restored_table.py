"""Refill a restored table: read the undone records again and write that table alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.delta.txn import batch_txn
from headrace.errors import SourceGap, TableRestored
from headrace.ledger.undone_batches import KEEP, UndoneRows, undone_rows
from headrace.plan.accounting import Counts
from headrace.stage.stager import delete_staged
from headrace.write.intent import Intent, IntentKind, TableIntent

if TYPE_CHECKING:
    from headrace.pipeline.context import PipelineContext


def refill_all(context: PipelineContext) -> None:
    """Refill every restored table, in a batch each."""
    for uri, known in dict(context.ledger.known.tables).items():
        if known.refill >= 0:
            context.batches.execute(plan_refill(context, uri, context.ledger.batch + 1, datetime.now(UTC)))


def undone_by_restores(context: PipelineContext, uri: str, newest: int, oldest: int) -> UndoneRows:
    """Rows undone by the RESTOREs of these versions; SourceGap if their records cannot be read again."""
    txn, digest = batch_txn(context.spec.pipeline), context.spec.digest
    undone = undone_rows(context.store(uri), newest, oldest, txn, digest, context.ledger.rows_from)
    _check_source(context, uri, undone)
    return undone


def plan_refill(context: PipelineContext, uri: str, batch: int, started: datetime) -> Intent:
    """Plan a refill: files of one table and no offset range, since no partition moves."""
    known = context.ledger.known.tables[uri]
    undone = undone_by_restores(context, uri, known.restored, known.refill)
    staged = context.batches.stage_for_table(uri, undone.ranges, batch, started)
    intent = context.batches.intend(batch, (), staged.manifests, started, staged.runs)
    tables = tuple(table for table in intent.tables if table.path == uri)
    delete_staged((file for table in intent.tables if table.path != uri for file in table.files), context.store)
    if _rows(tables) != undone.rows:
        delete_staged((file for table in tables for file in table.files), context.store)
        raise TableRestored(
            f"{uri}: {undone.rows} rows were undone; their records now produce {_rows(tables)} rows.",
            hint=f"The topic was compacted, or the table was changed. {KEEP}.",
        )
    counts = _counts(intent.counts, tables)
    return replace(intent, tables=tables, counts=counts, reread=undone.ranges, kind=IntentKind.REFILL)


def _counts(counts: Counts, tables: tuple[TableIntent, ...]) -> Counts:
    """Count records that the other tables and the dead letters have already as skipped."""
    rows, has_dead_letters = _rows(tables), any(table.dead_letters for table in tables)
    routed, dead = (0, min(rows, counts.dead)) if has_dead_letters else (min(rows, counts.routed), 0)
    skipped = counts.read - routed - dead - counts.filtered
    return replace(
        counts, routed=routed, dead=dead, skipped=skipped, reasons=counts.reasons if has_dead_letters else {}
    )


def _rows(tables: tuple[TableIntent, ...]) -> int:
    return sum(item.rows for table in tables for item in table.files)


def _check_source(context: PipelineContext, uri: str, undone: UndoneRows) -> None:
    bounds, topics = context.source.bounds(), context.source.topics()
    for part in undone.ranges:
        partition = (part.topic, part.partition)
        if topics.get(part.topic) != part.topic_id or partition not in bounds:
            cause = "the topic was recreated"
        elif part.start < bounds[partition].earliest:
            cause = f"the earliest offset of the broker is {bounds[partition].earliest}"
        else:
            continue
        raise SourceGap(
            f"{uri} cannot be refilled: offsets {part.start} to {part.until - 1} of {part.topic}/{part.partition} are "
            f"needed, and {cause}.",
            hint=f"{KEEP}.",
            topic=part.topic,
            partition=part.partition,
            wanted=part.start,
        )
