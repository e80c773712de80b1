"""A table whose files were taken away or spoiled: what is missing, what is unreadable, and which records that costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from headrace.delta.actions import File
from headrace.delta.features import metadata_only_blocker
from headrace.delta.log_writer import LogWriter
from headrace.delta.rows import file_damage, filesystem
from headrace.delta.snapshot import active_files
from headrace.errors import StorageUnreachable
from headrace.ledger.known_tables import KnownTables
from headrace.ledger.ledger import Ledger
from headrace.recovery.file_origins import OriginCommit, file_origins
from headrace.recovery.reingest_plan import Reingest
from headrace.source.ranges import Range
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners, WritingPipeline

_AT_ONCE = 8  # files looked into at the same time


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that readers of the table will miss or stumble over."""

    path: str
    why: str
    rows: int | None  # that it held, as far as the log tells


@dataclass(frozen=True, slots=True)
class Lost:
    """What one commit had brought and is no longer there, and where its records came from."""

    version: int
    pipeline: str | None  # None where it was no pipeline's commit
    batch: int | None
    ranges: tuple[Range, ...]  # of the whole batch: the lost rows are of some records in them
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was found, and the version that took it out of the log (None: nothing was changed)."""

    missing: tuple[Damage, ...]  # gone from the store; taken out of the log, unless it was a dry run
    unreadable: tuple[Damage, ...]  # truncated or no Parquet; named only
    vectors: tuple[Damage, ...]  # files whose deletion vector is gone; named only
    lost: tuple[Lost, ...]  # where the missing rows came from
    untold: tuple[str, ...]  # missing files that no commit of the log tells any more
    version: int | None = None
    reingest: Reingest | None = None  # what is read again of all that is lost, where that was asked for

    @property
    def rows(self) -> int | None:
        """Rows of the missing files; None where one of them does not tell."""
        told = [each.rows for each in self.missing]
        known = [rows for rows in told if rows is not None]
        return sum(known) if len(known) == len(told) else None

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.missing or self.unreadable or self.vectors)


def repair(store: Store, writers: TableOwners, *, dry_run: bool = False, deep: bool = False) -> Repaired:
    """Find what is missing or unreadable, and take what is missing out of the log in one commit.

    `deep` reads every file to its end; without it footers are read, and sizes compared. Where Spark writes the table,
    every pipeline that does must rest meanwhile.
    """
    alone = not dry_run and not writers.is_direct
    with writers.resting("repair") if alone else nullcontext():
        return _repaired(store, writers, dry_run, deep)


def _repaired(store: Store, writers: TableOwners, dry_run: bool, deep: bool) -> Repaired:
    state = writers.state
    stands = [file for file in active_files(store, state.version).values() if not file.elsewhere]
    there = {item.path: item.size for item in store.list()}
    missing = [file for file in stands if file.path not in there]
    known, found = {each.name: each for each in writers.pipelines}, file_origins(store, state, missing, through=True)
    told = Repaired(
        tuple(Damage(file.path, "gone from the store", file.rows) for file in missing),
        tuple(_unreadable(store, [file for file in stands if file.path in there], there, deep)),
        tuple(_without_vector(stands, there)),
        tuple(_lost(each, known) for each in found.brought),
        found.untold,
    )
    if dry_run or not missing:
        return told
    version = LogWriter.open(store, objection=metadata_only_blocker).forget(
        missing, {"operation": "repair", "files": len(missing)}
    )
    return replace(told, version=version)


def _unreadable(store: Store, there: list[File], sizes: Mapping[str, int], deep: bool) -> Iterator[Damage]:
    system = filesystem(store)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-repair") as pool:
        told = pool.map(lambda file: _complaint(store, system, file, sizes[file.path], deep), there)
        yield from (Damage(file.path, why, file.rows) for file, why in zip(there, told, strict=True) if why)


def _complaint(store: Store, system: FileSystem, file: File, size: int, deep: bool) -> str | None:
    """What is wrong with a file, in words; None when nothing is."""
    if size != file.size:
        return f"it has {size:,} bytes, its commit says {file.size:,}"
    try:
        parquet = pq.ParquetFile(file.path, filesystem=system)
        rows = sum(len(batch) for batch in parquet.iter_batches()) if deep else parquet.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        return _damage(store, file, error)
    if file.held is not None and rows != file.held:
        return f"it holds {rows:,} rows, its commit says {file.held:,}"
    return None


def _damage(store: Store, file: File, error: Exception) -> str:
    """What its own bytes tell: a store that fails is no damage of a file."""
    if (found := file_damage(store, file)) is None:
        raise StorageUnreachable(f"{store.uri}: {file.path}: {error}") from error
    return f"it is no whole Parquet file: {found.why}" if found.certain else f"it cannot be read: {found.why}"


def _without_vector(stands: Iterable[File], there: Mapping[str, int]) -> Iterator[Damage]:
    for file in stands:
        if file.vector is not None and file.vector.path is not None and file.vector.path not in there:
            yield Damage(file.path, f"its deletion vector {file.vector.path} is gone", file.rows)


def _lost(each: OriginCommit, known: Mapping[str, WritingPipeline]) -> Lost:
    pipeline = known.get(each.pipeline or "")
    paths = tuple(file.path for file in each.files)
    return Lost(each.version, each.pipeline, each.batch, tuple(_ranges(each, pipeline)), paths)


def _ranges(each: OriginCommit, pipeline: WritingPipeline | None) -> Iterator[Range]:
    """The ranges of a batch: as its commit tells them, else as the ledger does."""
    state = pipeline.state if pipeline else None
    ids = KnownTables.load(state).topics if state else {}
    if each.ranges is not None:
        yield from (replace(item, topic_id=ids.get(item.topic, "")) for item in each.ranges)
    elif state is not None and pipeline is not None and not each.replayed:
        for row in Ledger.open(state, pipeline.name).rows_from(each.batch or 0):
            if row["batch"] == each.batch:
                yield from (_booked(item) for item in row["ranges"])


def _booked(raw: Mapping[str, Any]) -> Range:
    return Range(raw["topic"], raw["partition"], raw["from"], raw["until"], raw["topic_id"])
