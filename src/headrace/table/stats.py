"""What a table is: its metadata, and the statistics of the files it stands on."""

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
    """A table at its newest version, without its files."""

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
    writer: str  # "direct": staged files, put if absent; "merge": by its pipeline's merges; "spark": by Spark alone
    pipelines: Mapping[str, int]  # those that write to it, and the last batch of each


@dataclass(frozen=True, slots=True)
class Statistics:
    """The files of one version, summed up."""

    version: int
    bytes: int
    files: int
    partitions: int
    rows: int | None  # None where a file does not tell
    small_files: int
    deletion_vectors: int
    deleted_rows: int  # by those vectors

    @property
    def small_share(self) -> float:
        """The share of files that are small, from 0 to 1."""
        return self.small_files / self.files if self.files else 0.0


def metadata(store: Store, writers: TableOwners) -> TableInfo:
    """The newest version's."""
    state = writers.state
    said, protocol = state.metadata, state.protocol
    created = None if said.created is None else datetime.fromtimestamp(said.created / 1000, UTC)
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
        said.name,
        said.description,
        writers.writer.value,
        {each.name: each.batch for each in writers.pipelines},
    )


def statistics(store: Store, version: int, small: int = SMALL) -> Statistics:
    """Sums over the files of a version; no data file is opened."""
    try:
        table = open_version(store, version)
    except TableFeature:  # the log tells its files all the same
        return sum_files(store, version, small, lambda values: tuple(sorted(values.items())))
    if "deletionVectors" in (table.protocol().reader_features or ()):
        columns, by = from_delta(table.schema().to_json()), table.metadata().partition_columns
        return sum_files(store, version, small, PartitionKeys.of(columns, by))
    found = pa.table(table.get_add_actions(flatten=True))
    sizes, rows = found["size_bytes"], found["num_records"]
    by = [f"partition.{name}" for name in table.metadata().partition_columns]
    return Statistics(
        version,
        pc.sum(sizes).as_py() or 0,
        len(found),
        len(found.group_by(by).aggregate([])) if by else min(len(found), 1),
        None if rows.null_count else pc.sum(rows).as_py() or 0,
        pc.sum(pc.less(sizes, small)).as_py() or 0,
        0,
        0,
    )


def sum_files(
    store: Store, version: int, small: int, key: Callable[[Mapping[str, str | None]], Partition]
) -> Statistics:
    """The same by our own reading of the log, for tables that delta-rs reads in part or not at all."""
    stands = active_files(store, version).values()
    vectors = [file.vector.rows for file in stands if file.vector is not None]
    rows = [file.rows for file in stands if file.rows is not None]
    return Statistics(
        version,
        sum(file.size for file in stands),
        len(stands),
        len({key(file.partition) for file in stands}),
        sum(rows) if len(rows) == len(stands) else None,
        sum(file.size < small for file in stands),
        len(vectors),
        sum(vectors),
    )


def list_tables(base: str, storage: Profile | None = None) -> list[str]:
    """The URIs of the Delta tables below a folder; what Headrace keeps for itself is left out."""
    return sorted(_tables(Store(base, storage), "", frozenset()))


def _tables(store: Store, folder: str, above: frozenset[str]) -> Iterator[str]:
    here = str(Path(store.root, folder).resolve()) if store.local else folder
    if here in above:  # a link to a folder that it is in
        return
    inner = store.folders(folder)
    names = {path.rpartition("/")[2] for path in inner}
    if LOG in names:
        table = store.child(folder) if folder else store
        yield from [table.uri] if newest_version(table) is not None else []  # what was dropped may leave its folders
        return
    for path in inner:
        if not path.rpartition("/")[2].startswith(("_", ".")):
            yield from _tables(store, path, above | {here})
