"""Lost rows are put back: read again through the plan that wrote them, as a batch that moves no partition.

Of the rows that come out, those are kept that may have been in a lost file and whose record has no row left in the
table. What a batch is, this is too: decided once, committed with a mark, booked; so that to die anywhere in it, and to
ask for it again, loses and doubles nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
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
from headrace.recovery.reingest_plan import Reingest, SourceFacts
from headrace.stage.stager import FileLayout, delete_staged
from headrace.write.intent import Intent, IntentKind, TableIntent

if TYPE_CHECKING:
    from headrace.ledger.ledger import Ledger
    from headrace.pipeline.context import PipelineContext
    from headrace.source.base import Source


def facts_of(source: Source, ledger: Ledger) -> SourceFacts:
    """Ask the source and the ledger."""
    return SourceFacts(source.topics(), ledger.known.topics, ledger.known.since, source.bounds())


def reingest_intent(
    context: PipelineContext, uri: str, wanted: Reingest, found: FileOrigins, batch: int, started: datetime
) -> Intent:
    """Plan a reingest: the missing rows as staged files of one table and no range, since no partition moves."""
    again = context.batches.stage_for_table(uri, wanted.ranges, batch, started)
    staged, counts = merge_manifests(again.manifests)
    delete_staged((file for file in staged if file.table != uri), context.store)
    files, records = [file for file in staged if file.table == uri], 0
    if files and again.layout is not None:
        store = context.store(uri)
        there = active_files(store, newest_version(store) or 0).values()
        try:
            files, rest, records = absent(store, again.layout, files, found.gone, there, batch)
        except TableDamaged:
            delete_staged(files, context.store)
            raise
        delete_staged(rest, context.store)
    intent = context.batches.intend(batch, (), [Manifest(tuple(files), counts)], started, again.runs)
    try:
        if files and again.layout is not None:
            _check_rows(again.layout, intent.tables, found.gone)
    except TableDamaged:
        delete_staged((file for table in intent.tables for file in table.files), context.store)
        raise
    records -= sum(intent.counts.duplicates.values())
    counts = Counts(counts.read, routed=records, skipped=counts.read - records, value_bytes=counts.value_bytes)
    return replace(intent, counts=counts, reread=wanted.ranges, reingested=wanted.files, kind=IntentKind.REINGEST)


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
