"""Reingest lost rows: read their records again with the plan that wrote them, as a batch that moves no partition.

Of the staged rows, those are kept that may have been in a lost file and that the table lacks. It has an intent, txns
and a ledger row like any batch; so a crash, or a second request, loses and duplicates nothing.
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
from headrace.recovery.missing_rows import missing_rows
from headrace.recovery.reingest_plan import Reingest, SourceFacts
from headrace.stage.layout import FileLayout
from headrace.stage.stager import delete_staged
from headrace.write.intent import Intent, IntentKind, TableIntent

if TYPE_CHECKING:
    from headrace.ledger.ledger import Ledger
    from headrace.pipeline.context import PipelineContext
    from headrace.source.base import Source


def facts_of(source: Source, ledger: Ledger) -> SourceFacts:
    """Query the source and the ledger."""
    return SourceFacts(source.topics(), ledger.known.topics, ledger.known.since, source.bounds())


def build_reingest_intent(
    context: PipelineContext, uri: str, reingest: Reingest, origins: FileOrigins, batch: int, started: datetime
) -> Intent:
    """Plan a reingest: the missing rows as staged files of one table and no range, since no partition moves."""
    staged = context.batches.stage_for_table(uri, reingest.ranges, batch, started)
    all_files, counts = merge_manifests(staged.manifests)
    delete_staged((file for file in all_files if file.table != uri), context.store)
    files, records = [file for file in all_files if file.table == uri], 0
    if files and staged.layout is not None:
        store = context.store(uri)
        active = active_files(store, newest_version(store) or 0).values()
        try:
            files, rest, records = missing_rows(store, staged.layout, files, origins.lost, active, batch)
        except TableDamaged:
            delete_staged(files, context.store)
            raise
        delete_staged(rest, context.store)
    intent = context.batches.intend(batch, (), [Manifest(tuple(files), counts)], started, staged.runs)
    try:
        if files and staged.layout is not None:
            _check_rows(staged.layout, intent.tables, origins.lost)
    except TableDamaged:
        delete_staged((file for table in intent.tables for file in table.files), context.store)
        raise
    records -= sum(intent.counts.duplicates.values())
    counts = Counts(counts.read, routed=records, skipped=counts.read - records, value_bytes=counts.value_bytes)
    return replace(intent, counts=counts, reread=reingest.ranges, reingested=reingest.files, kind=IntentKind.REINGEST)


def _check_rows(layout: FileLayout, tables: Iterable[TableIntent], lost_files: Iterable[File]) -> None:
    """Raise TableDamaged for more rows than the lost files had: others were deleted on purpose."""
    key = PartitionKeys.of(layout.schema, layout.partition_by)
    staged, lost, without_statistics = Counter[Partition](), Counter[Partition](), set[Partition]()
    for file in (file for table in tables for file in table.files):
        staged[key(dict(file.partition))] += file.rows
    for gone in lost_files:
        lost[(partition := key(gone.partition))] += gone.rows or 0
        without_statistics |= {partition} if gone.rows is None else set()
    for partition, rows in staged.items():
        if rows > lost[partition] and partition not in without_statistics:
            raise TableDamaged(
                f"{layout.path}: the lost files had {lost[partition]:,} rows, and {rows:,} rows of their records are "
                "not in the table. Other rows were deleted since, and cannot be distinguished from the lost ones.",
                hint="No row was restored; the lost files are removed from the log.",
            )
