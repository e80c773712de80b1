"""Full refresh: pipelines that read the source from its start in each run, and overwrite their tables.

A full refresh starts with a decision in the ledger that sets every partition back to its start, and ends with its
drain. A run that finds one open continues it. Batch numbers go on, so that txns distinguish full refreshes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headrace.delta.log import newest_version
from headrace.delta.snapshot import all_txns
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_number_of, pipeline_of
from headrace.errors import UsageError
from headrace.ledger.known_tables import FullRefresh, KnownTable
from headrace.ledger.ledger import Ledger
from headrace.ledger.replays import Replays, writer
from headrace.source.base import Source
from headrace.spec import Spec, TableSpec
from headrace.stage.partitions import partition_folder
from headrace.storage.store import Profile, Store
from headrace.write.intent import ALL, Intent


def check_bounded(spec: Spec, until: str | None) -> None:
    """UsageError where a pipeline that overwrites would have no end."""
    if spec.table.overwrites and until is None:
        raise UsageError(
            f"{spec.pipeline} overwrites its tables, so each run must be bounded.",
            hint="Run it with --until latest, or use another table.mode to run continuously.",
        )


def begin(spec: Spec, ledger: Ledger, source: Source) -> None:
    """Set the source back to its start, unless a full refresh is open."""
    if not spec.table.overwrites or ledger.known.full_refresh.open:
        return
    if Replays.open(Store(spec.state_uri, Profile(**spec.storage_profile())), writer(spec.pipeline)).open_batch():
        raise UsageError(
            f"{spec.pipeline}: a replay of dead letters is not finished. Its rows would be written after a full "
            "refresh that reads their records again.",
            hint="Run `headrace dead-letters replay SPEC` first.",
        )
    number = ledger.known.full_refresh.number + 1
    ledger.decide(f"full refresh {number}", source.start(source.bounds()))
    ledger.known.store_full_refresh(FullRefresh(number, open=True))


def end(spec: Spec, ledger: Ledger) -> None:
    """Close the full refresh after its drain; the next run starts another one."""
    current = ledger.known.full_refresh
    if spec.table.overwrites and current.open:
        ledger.known.store_full_refresh(replace(current, open=False))


def replaced(rules: TableSpec, known: KnownTable | None, number: int, files: Iterable[StagedFile]) -> tuple[str, ...]:
    """The partitions that the files overwrite: those that this full refresh has not overwritten yet."""
    if not rules.overwrites:
        return ()
    done = known.overwritten if known is not None and known.full_refresh == number else ()
    folders = {ALL} if rules.mode == "overwrite" else {partition_folder(file.partition) for file in files}
    return tuple(sorted(folders - set(done)))


def stale_dead_letters(spec: Spec, known: KnownTable | None, number: int, store: Store) -> tuple[str, ...]:
    """Dead letters of earlier full refreshes, whose records are read again; none where other pipelines have some."""
    done = known.overwritten if known is not None and known.full_refresh == number else ()
    if not spec.table.overwrites or ALL in done:
        return ()
    version = newest_version(store)
    txns = all_txns(store, version) if version is not None else {}
    others = {pipeline_of(name) for name in txns if batch_number_of({name: 0})} - {spec.pipeline}
    return () if others else (ALL,)


def with_overwritten(tables: Mapping[str, KnownTable], number: int, intent: Intent) -> dict[str, KnownTable]:
    """The tables of a committed batch, with the partitions that it has overwritten."""
    overwritten = {}
    for table in (table for table in intent.tables if table.replaces):
        known = tables[table.path]
        before = known.overwritten if known.full_refresh == number else ()
        overwritten[table.path] = replace(
            known, full_refresh=number, overwritten=tuple(sorted({*before, *table.replaces}))
        )
    return overwritten
