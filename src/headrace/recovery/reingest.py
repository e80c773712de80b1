"""Lost rows are put back: read again through the plan that wrote them, as a batch that moves no partition.

Of the rows that come out, those are kept that may have been in a lost file and whose record has no row left in the
table. What a batch is, this is too: decided once, committed with a mark, booked; so that to die anywhere in it, and to
ask for it again, loses and doubles nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from headrace.delta.actions import File
from headrace.delta.log import newest_version
from headrace.delta.partition_keys import Partition, PartitionKeys
from headrace.delta.snapshot import active_files
from headrace.errors import TableDamaged
from headrace.pipeline.manifest import Manifest, merge_manifests
from headrace.plan.accounting import Counts
from headrace.recovery.file_origins import FileOrigins
from headrace.recovery.missing_rows import absent
from headrace.recovery.refill_restored_table import floors_of
from headrace.recovery.reingest_plan import Reingest, SourceFacts
from headrace.source.ranges import Range
from headrace.stage.stager import FileLayout
from headrace.storage.store import Store
from headrace.write.intent import Intent, IntentKind, TableIntent

if TYPE_CHECKING:
    from headrace.pipeline.pipeline import Pipeline


def facts_of(pipeline: Pipeline) -> SourceFacts:
    """Ask the source and the ledger."""
    known = pipeline.ledger.known
    return SourceFacts(pipeline.source.topics(), known.topics, known.since, pipeline.source.bounds())


def reingest_intent(
    pipeline: Pipeline, uri: str, wanted: Reingest, found: FileOrigins, batch: int, started: datetime
) -> Intent:
    """The whole decision: the lost rows as staged files of one table, and no range, since no partition moves."""
    tables = pipeline.open_tables()
    tables.open()
    tables.hold_others(uri, floors_of(wanted.ranges))
    frames = [pipeline.source.read(pipeline.spark, piece) for piece in pieces(wanted.ranges)]
    frame = reduce(lambda one, two: one.union(two), frames)
    manifests, runs = pipeline.discover_and_stage(frame, batch, started)
    staged, counts = merge_manifests(manifests)
    pipeline.discard(item for item in staged if item.table != uri)
    store, layouts = Store(uri, pipeline.profile), {each.path: each for each in tables.layouts(batch).values()}
    mine, records = [item for item in staged if item.table == uri], 0
    if mine:
        there = active_files(store, newest_version(store) or 0).values()
        try:
            mine, left, records = absent(store, layouts[uri], mine, found.gone, there, batch)
        except TableDamaged:
            pipeline.discard(mine)
            raise
        pipeline.discard(left)
    intent = pipeline.intend(batch, (), [Manifest(tuple(mine), counts)], started, runs)
    try:
        if mine:
            _check_rows(layouts[uri], intent.tables, found.gone)
    except TableDamaged:
        pipeline.discard(item for table in intent.tables for item in table.files)
        raise
    records -= sum(intent.counts.duplicates.values())
    told = Counts(counts.read, routed=records, skipped=counts.read - records, value_bytes=counts.value_bytes)
    return replace(intent, counts=told, reread=wanted.ranges, reingested=wanted.files, kind=IntentKind.REINGEST)


def pieces(ranges: Iterable[Range]) -> Iterator[tuple[Range, ...]]:
    """The ranges, each time at most one of a partition: no more can be read at once."""
    left = list(ranges)
    while left:
        first = {(each.topic, each.partition): each for each in reversed(left)}
        yield tuple(sorted(first.values()))
        left = [each for each in left if each not in first.values()]


def _check_rows(layout: FileLayout, tables: Iterable[TableIntent], gone: Iterable[File]) -> None:
    """More rows than were lost are none of the lost files': somebody took them out of the table on purpose."""
    key = PartitionKeys.of(layout.schema, layout.partition_by)
    made, lost, unsure = Counter[Partition](), Counter[Partition](), set[Partition]()
    for item in (item for table in tables for item in table.files):
        made[key(dict(item.partition))] += item.rows
    for file in gone:
        lost[(at := key(file.partition))] += file.rows or 0
        unsure |= {at} if file.rows is None else set()
    for at, rows in made.items():
        if rows > lost[at] and at not in unsure:
            raise TableDamaged(
                f"{layout.path}: the lost files held {lost[at]:,} rows, and {rows:,} rows of their records are not in "
                "the table: others were deleted since, and which of them cannot be told.",
                hint="Nothing was put back; the lost files are out of the log.",
            )
