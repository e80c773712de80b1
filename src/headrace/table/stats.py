"""Metadata and file statistics of tables, and lists of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.log import LOG, newest_version
from headrace.delta.partition_keys import Partition, PartitionKeys
from headrace.delta.schema import from_delta
from headrace.delta.snapshot import active_files
from headrace.errors import TableFeature
from headrace.storage.store import Profile, Store
from headrace.table.ownership import TableOwners
from headrace.table.versions import open_version

SMALL = 32 * 1024 * 1024  # bytes; files below it are worth compacting


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Metadata of the newest version."""

    path: str
    id: str
    version: int
    schema: pa.Schema
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    min_reader_version: int
    min_writer_version: int
    features: tuple[str, ...]
    created: datetime | None
    name: str | None
    description: str | None
    writer: str  # "direct": direct commits; "merge": merges of its pipeline; "spark": Spark only
    pipelines: Mapping[str, int]  # that write to it, with the last batch of each


@dataclass(frozen=True, slots=True)
class Statistics:
    """Totals over the files of one version."""

    version: int
    bytes: int
    files: int
    partitions: int
    rows: int | None  # None if a file has no row count
    small_files: int
    deletion_vectors: int
    deleted_rows: int  # by deletion vectors

    @property
    def small_share(self) -> float:
        """Share of small files, from 0 to 1."""
        return self.small_files / self.files if self.files else 0.0


def metadata(store: Store, owners: TableOwners) -> TableInfo:
    """Metadata of the newest version."""
    state = owners.state
    action, protocol = state.metadata, state.protocol
    created = None if action.created is None else datetime.fromtimestamp(action.created / 1000, UTC)
    return TableInfo(
        store.uri,
        state.table_id,
        state.version,
        state.schema,
        state.partition_by,
        dict(state.properties),
        protocol.min_reader,
        protocol.min_writer,
        tuple(sorted(protocol.reader_features | protocol.writer_features)),
        created,
        action.name,
        action.description,
        owners.writer.value,
        {pipeline.name: pipeline.batch for pipeline in owners.pipelines},
    )


def statistics(store: Store, version: int, small: int = SMALL) -> Statistics:
    """Totals over the files of a version; no data file is opened."""
    try:
        table = open_version(store, version)
    except TableFeature:  # delta-rs cannot open the table, but its log is readable
        return sum_files(store, version, small, lambda values: tuple(sorted(values.items())))
    if "deletionVectors" in (table.protocol().reader_features or ()):
        columns, by = from_delta(table.schema().to_json()), table.metadata().partition_columns
        return sum_files(store, version, small, PartitionKeys.of(columns, by))
    files = pa.table(table.get_add_actions(flatten=True))
    sizes, rows = files["size_bytes"], files["num_records"]
    by = [f"partition.{name}" for name in table.metadata().partition_columns]
    return Statistics(
        version,
        pc.sum(sizes).as_py() or 0,
        len(files),
        len(files.group_by(by).aggregate([])) if by else min(len(files), 1),
        None if rows.null_count else pc.sum(rows).as_py() or 0,
        pc.sum(pc.less(sizes, small)).as_py() or 0,
        0,
        0,
    )


def sum_files(
    store: Store, version: int, small: int, key: Callable[[Mapping[str, str | None]], Partition]
) -> Statistics:
    """The same from our own log reader, for tables that delta-rs does not fully support."""
    files = active_files(store, version).values()
    vectors = [file.vector.rows for file in files if file.vector is not None]
    rows = [file.rows for file in files if file.rows is not None]
    return Statistics(
        version,
        sum(file.size for file in files),
        len(files),
        len({key(file.partition) for file in files}),
        sum(rows) if len(rows) == len(files) else None,
        sum(file.size < small for file in files),
        len(vectors),
        sum(vectors),
    )


def list_tables(base: str, storage: Profile | None = None) -> list[str]:
    """URIs of the Delta tables below a folder, without the tables in the state of pipelines."""
    return sorted(_tables(Store(base, storage), "", frozenset()))


def _tables(store: Store, folder: str, parents: frozenset[str]) -> Iterator[str]:
    here = str(Path(store.root, folder).resolve()) if store.local else folder
    if here in parents:  # a symbolic link to one of its parents
        return
    children = store.folders(folder)
    if any(path.rpartition("/")[2] == LOG for path in children):
        table = store.child(folder) if folder else store
        if newest_version(table) is not None:  # a dropped table may leave empty folders
            yield table.uri
        return
    for path in children:
        if not path.rpartition("/")[2].startswith(("_", ".")):
            yield from _tables(store, path, parents | {here})
