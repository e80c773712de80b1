"""Find missing and unreadable files of a table, remove missing ones from the log, and report the lost records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from headrace.delta.actions import File
from headrace.delta.features import metadata_only_blocker
from headrace.delta.rows import file_damage, filesystem
from headrace.delta.snapshot import active_files
from headrace.errors import StorageUnreachable
from headrace.ledger.known_tables import KnownTables
from headrace.ledger.ledger import Ledger
from headrace.recovery.file_origins import OriginCommit, file_origins
from headrace.recovery.reingest_plan import Reingest
from headrace.source.ranges import Range
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners, WritingPipeline, open_log

_THREADS = 8  # files that are read in parallel


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that readers of the table cannot read."""

    path: str
    why: str
    rows: int | None  # of the file; None if the log does not say


@dataclass(frozen=True, slots=True)
class Lost:
    """Lost files of one commit, and the source of their records."""

    version: int
    pipeline: str | None  # None for a commit of another writer
    batch: int | None
    ranges: tuple[Range, ...]  # of the whole batch; the lost rows are from some of its records
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repaired:
    """Result of a repair."""

    missing: tuple[Damage, ...]  # not in the store; removed from the log unless it was a dry run
    unreadable: tuple[Damage, ...]  # truncated or not Parquet; only reported
    vectors: tuple[Damage, ...]  # files whose deletion vector is missing; only reported
    lost: tuple[Lost, ...]  # commits that added the missing files
    unknown_origin: tuple[str, ...]  # missing files whose commit is no longer in the log
    version: int | None = None  # that removed the missing files; None if nothing was committed
    reingest: Reingest | None = None  # with the `reingest` option

    @property
    def rows(self) -> int | None:
        """Rows of the missing files; None if the log does not say it for each."""
        counts = [damage.rows for damage in self.missing if damage.rows is not None]
        return sum(counts) if len(counts) == len(self.missing) else None

    @property
    def intact(self) -> bool:
        """Whether there is no damage."""
        return not (self.missing or self.unreadable or self.vectors)


def repair(store: Store, owners: TableOwners, *, dry_run: bool = False, deep: bool = False) -> Repaired:
    """Find missing and unreadable files, and remove the missing ones from the log in one commit.

    `deep` reads every file to its end; otherwise footers are read and sizes compared. For a table that Spark writes,
    the pipelines that write it must be stopped.
    """
    with nullcontext() if dry_run or owners.is_direct else owners.exclusive("repair"):
        state = owners.state
        files = [file for file in active_files(store, state.version).values() if not file.elsewhere]
        sizes = {item.path: item.size for item in store.list()}
        missing = [file for file in files if file.path not in sizes]
        origins = file_origins(store, state, missing, through_changes=True)
        pipelines = {pipeline.name: pipeline for pipeline in owners.pipelines}
        result = Repaired(
            tuple(Damage(file.path, "missing from the store", file.rows) for file in missing),
            tuple(_unreadable(store, [file for file in files if file.path in sizes], sizes, deep)),
            tuple(_without_vector(files, sizes)),
            tuple(_lost(commit, pipelines) for commit in origins.commits),
            origins.unknown_origin,
        )
        if dry_run or not missing:
            return result
        log_writer = open_log(store, state, metadata_only_blocker)
        version = log_writer.remove_missing(missing, {"operation": "repair", "files": len(missing)})
    return replace(result, version=version)


def _unreadable(store: Store, files: list[File], sizes: Mapping[str, int], deep: bool) -> Iterator[Damage]:
    system = filesystem(store)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-repair") as pool:
        reasons = pool.map(lambda file: _read_error(store, system, file, sizes[file.path], deep), files)
        yield from (Damage(file.path, why, file.rows) for file, why in zip(files, reasons, strict=True) if why)


def _read_error(store: Store, system: FileSystem, file: File, size: int, deep: bool) -> str | None:
    """Why a file cannot be read; None if it can."""
    if size != file.size:
        return f"it has {size:,} bytes, but its commit says {file.size:,}"
    try:
        parquet = pq.ParquetFile(file.path, filesystem=system)
        rows = sum(len(batch) for batch in parquet.iter_batches()) if deep else parquet.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        return _damage(store, file, error)
    if file.num_records is not None and rows != file.num_records:
        return f"it has {rows:,} rows, but its commit says {file.num_records:,}"
    return None


def _damage(store: Store, file: File, error: Exception) -> str:
    """Damage in the bytes of the file; StorageUnreachable if the store failed instead."""
    if (damage := file_damage(store, file)) is None:
        raise StorageUnreachable(f"{store.uri}: {file.path}: {error}") from error
    return (
        f"it is not a complete Parquet file: {damage.reason}"
        if damage.certain
        else f"it cannot be read: {damage.reason}"
    )


def _without_vector(files: Iterable[File], sizes: Mapping[str, int]) -> Iterator[Damage]:
    for file in files:
        if file.vector is not None and file.vector.path is not None and file.vector.path not in sizes:
            yield Damage(file.path, f"its deletion vector {file.vector.path} is missing", file.rows)


def _lost(commit: OriginCommit, pipelines: Mapping[str, WritingPipeline]) -> Lost:
    ranges = tuple(_ranges(commit, pipelines.get(commit.pipeline or "")))
    return Lost(commit.version, commit.pipeline, commit.batch, ranges, tuple(file.path for file in commit.files))


def _ranges(commit: OriginCommit, pipeline: WritingPipeline | None) -> Iterator[Range]:
    """The ranges of a batch: from its commit, else from the ledger."""
    state = pipeline.state if pipeline else None
    ids = KnownTables.load(state).topics if state else {}
    if commit.ranges is not None:
        yield from (replace(item, topic_id=ids.get(item.topic, "")) for item in commit.ranges)
    elif state is not None and pipeline is not None and not commit.replayed:
        for row in Ledger.open(state, pipeline.name).rows_from(commit.batch or 0):
            if row["batch"] == commit.batch:
                for raw in row["ranges"]:
                    yield Range(raw["topic"], raw["partition"], raw["from"], raw["until"], raw["topic_id"])
