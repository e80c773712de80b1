"""A restored table gets back what was undone: its records are read again, and only that table is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from headrace.delta.txn import batch_txn
from headrace.errors import SourceGap, TableRestored
from headrace.ledger.undone_batches import KEEP, UndoneRows, undone_rows
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range
from headrace.storage.store import Store
from headrace.write.intent import Intent, IntentKind, TableIntent

if TYPE_CHECKING:
    from headrace.pipeline.pipeline import Pipeline


def refill_all(pipeline: Pipeline) -> None:
    """Give every table what it is owed, a batch each."""
    for uri, known in dict(pipeline.ledger.known.tables).items():
        if known.refill >= 0:
            intent = refilled(pipeline, uri, pipeline.ledger.batch + 1, datetime.now(UTC))
            pipeline.lease.check()
            pipeline.ledger.begin(intent)
            pipeline.settle(intent)
            pipeline.open_tables()


def what_is_owed(pipeline: Pipeline, uri: str, newest: int, oldest: int) -> UndoneRows:
    """What RESTOREs of these versions undid, once it is sure that it can be read again."""
    ledger, spec = pipeline.ledger, pipeline.spec
    store, mark = Store(uri, pipeline.profile), batch_txn(spec.pipeline)
    found = undone_rows(store, newest, oldest, mark, spec.digest, ledger.rows_from)
    _check_source(pipeline, uri, found)
    return found


def refilled(pipeline: Pipeline, uri: str, batch: int, started: datetime) -> Intent:
    """The whole decision of a refill: the table's files alone, and no range, since no partition moves."""
    known = pipeline.ledger.known.tables[uri]
    found = what_is_owed(pipeline, uri, known.restored, known.refill)
    pipeline.open_tables().open()
    reread = tuple(each for piece in found.pieces for each in piece)
    pipeline.tables.hold_others(uri, floors_of(reread))
    frames = [pipeline.source.read(pipeline.spark, piece) for piece in found.pieces]
    frame = reduce(lambda one, two: one.union(two), frames)
    manifests, runs = pipeline.discover_and_stage(frame, batch, started)
    intent = pipeline.intend(batch, (), manifests, started, runs)
    mine = tuple(table for table in intent.tables if table.path == uri)
    pipeline.discard(item for table in intent.tables if table.path != uri for item in table.files)
    if _rows(mine) != found.rows:
        pipeline.discard(item for table in mine for item in table.files)
        raise TableRestored(
            f"{uri}: its undone records, read again, make {_rows(mine)} rows; {found.rows} were undone.",
            hint=f"Was the topic compacted, or the table changed? {KEEP}.",
        )
    return replace(intent, tables=mine, counts=_counts(intent.counts, mine), reread=reread, kind=IntentKind.REFILL)


def _counts(counts: Counts, mine: tuple[TableIntent, ...]) -> Counts:
    """What the other tables and the dead letters have already is skipped."""
    letters = any(table.dead_letters for table in mine)
    routed, dead = (0, min(_rows(mine), counts.dead)) if letters else (min(_rows(mine), counts.routed), 0)
    skipped = counts.read - routed - dead - counts.filtered
    return replace(counts, routed=routed, dead=dead, skipped=skipped, reasons=counts.reasons if letters else {})


def _rows(tables: tuple[TableIntent, ...]) -> int:
    return sum(item.rows for table in tables for item in table.files)


def floors_of(ranges: Iterable[Range]) -> dict[tuple[str, int], int]:
    """The last offset of each partition in these ranges: up to there, other tables have what is theirs."""
    floors: dict[tuple[str, int], int] = {}
    for each in ranges:
        at = (each.topic, each.partition)
        floors[at] = max(floors.get(at, -1), each.until - 1)
    return floors


def _check_source(pipeline: Pipeline, uri: str, found: UndoneRows) -> None:
    bounds, topics = pipeline.source.bounds(), pipeline.source.topics()
    for each in (each for piece in found.pieces for each in piece):
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
