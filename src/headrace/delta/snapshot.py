"""A table at one version: its state (metadata, protocol, txns) and its active files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headrace.delta.actions import Commit, File, MetadataAction, Protocol
from headrace.delta.log import commits_between, listed_versions, newest_version
from headrace.delta.schema import from_delta
from headrace.errors import StorageUnreachable, TableFeature, first_line
from headrace.storage.store import Store

FileKey = tuple[str, str]
MAX_COMMITS = 256  # to follow; after more of them the checkpoint is read


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one version, without its files."""

    version: int
    metadata: MetadataAction
    protocol: Protocol
    txns: Mapping[str, int] = field(default_factory=dict)  # the requested ones, and those of all commits since

    @property
    def table_id(self) -> str:
        """The table's id; a table created again at the same location has another one."""
        return self.metadata.table_id

    @property
    def schema_json(self) -> str:
        """Delta's schemaString."""
        return self.metadata.schema_json

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema; TableFeature for an unknown type."""
        return _schema(self.metadata.schema_json)

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns, in order."""
        return self.metadata.partition_by

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's configuration."""
        return self.metadata.properties


@lru_cache(maxsize=1024)
def _schema(schema_json: str) -> pa.Schema:
    return from_delta(schema_json)


def next_state(state: TableState, commit: Commit) -> TableState:
    """The state after one more commit."""
    return TableState(
        commit.version,
        commit.metadata or state.metadata,
        commit.protocol or state.protocol,
        {**state.txns, **commit.txns},
    )


def load_state(store: Store, txns: Iterable[str] = (), version: int | None = None) -> TableState | None:
    """Load the newest state with delta-rs; None if there is no table, TableFeature if delta-rs cannot read it.

    `version` is the newest version if the caller has listed the log already.
    """
    version = newest_version(store) if version is None else version
    return None if version is None else _state(open_at(store, version), txns)


def open_at(store: Store, version: int) -> DeltaTable:
    """Open a table with delta-rs at a version of a listing.

    Without a version, delta-rs lists the log itself. While other writers commit it may list a version but not the one
    before, and reports a gap.
    """
    try:
        options = store.delta_options
        with store.delta_environment():
            return DeltaTable(store.delta_uri, version, storage_options=options)
    except OSError as error:
        raise StorageUnreachable(f"{store.uri}: the log cannot be read: {first_line(error)}") from error
    except TableNotFoundError as error:
        raise StorageUnreachable(f"{store.uri}: version {version} disappeared while it was opened.") from error
    except DeltaError as error:
        raise TableFeature(f"{store.uri}: delta-rs cannot read this table: {first_line(error)}") from error


def _state(table: DeltaTable, txns: Iterable[str]) -> TableState:
    metadata, protocol = table.metadata(), table.protocol()
    versions = {name: table.transaction_version(name) for name in txns}
    return TableState(
        table.version(),
        MetadataAction(
            str(metadata.id),
            table.schema().to_json(),
            tuple(metadata.partition_columns),
            {key: value for key, value in metadata.configuration.items() if value is not None},
            metadata.created_time,
            metadata.name,
            metadata.description,
        ),
        Protocol(
            protocol.min_reader_version,
            protocol.min_writer_version,
            frozenset(protocol.reader_features or ()),
            frozenset(protocol.writer_features or ()),
        ),
        {name: version for name, version in versions.items() if version is not None},
    )


# ---- files and txns: the newest checkpoint, then the commits after it ----


def active_files(store: Store, version: int) -> dict[FileKey, File]:
    """The files of a version by their keys."""
    checkpoint, parts = _checkpoint(store, version)
    files: dict[FileKey, File] = {}
    for part in parts:
        files |= {file.key: file for file in map(File.of, _actions(store, part, "add"))}
    return _apply(files, _commits(store, checkpoint, version))


def _apply(files: dict[FileKey, File], commits: Iterable[Commit]) -> dict[FileKey, File]:
    for commit in commits:
        for file in commit.removed:
            files.pop(file.key, None)
        files |= {file.key: file for file in commit.added}
    return files


class ActiveFiles:
    """The files of a table, followed from version to version: only new commits are read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = -1
        self._files: dict[FileKey, File] = {}

    def at(self, version: int) -> list[File]:
        """The files of a version."""
        near = 0 <= self._version <= version < self._version + MAX_COMMITS
        commits = commits_between(self._store, self._version, version) if near else None
        if commits is None:
            self._files = active_files(self._store, version)
        else:
            self._files = _apply(self._files, commits)
        self._version = version
        return list(self._files.values())


def removed_paths(store: Store, version: int, since: int) -> set[str]:
    """The paths that the newest checkpoint up to a version lists as removed since a time in milliseconds."""
    _, parts = _checkpoint(store, version)
    actions = (action for part in parts for action in _actions(store, part, "remove"))
    files = (File.of(action) for action in actions if (action.get("deletionTimestamp") or 0) >= since)
    return {path for file in files for path in file.paths}


def all_txns(store: Store, version: int) -> dict[str, int]:
    """Every txn of a version, of any writer."""
    checkpoint, parts = _checkpoint(store, version)
    txns: dict[str, int] = {}
    for part in parts:
        txns |= {action["appId"]: action["version"] for action in _actions(store, part, "txn")}
    for commit in _commits(store, checkpoint, version):
        txns |= commit.txns
    return txns


def _checkpoint(store: Store, version: int) -> tuple[int, Sequence[str]]:
    """The newest checkpoint up to a version, and its files; (-1, none) if there is none and all commits exist."""
    versions, checkpoints = listed_versions(store)
    usable = [at for at in checkpoints if at <= version]
    if usable:
        return max(usable), checkpoints[max(usable)]
    if 0 not in versions:
        raise TableFeature(f"{store.uri}: its log has only checkpoints of a format that Spark alone reads.")
    return -1, ()


def _commits(store: Store, checkpoint: int, version: int) -> list[Commit]:
    commits = commits_between(store, checkpoint, version)
    if commits is None:
        raise StorageUnreachable(f"{store.uri}: the log lacks a version between {checkpoint + 1} and {version}.")
    return commits


def _actions(store: Store, part: str, kind: str) -> list[dict[str, Any]]:
    """The actions of one kind in a file of a checkpoint."""
    file = pq.ParquetFile(pa.BufferReader(store.get(part)))
    if kind not in file.schema_arrow.names:
        return []
    column = file.read(columns=[kind], use_threads=False)[kind]  # see `read_parquet`
    return [action for action in column.drop_null().to_pylist() if action]
