"""Follow the commits of one Delta table into its hot table.

A step applies one commit, or several small ones, in one transaction with the new position. What a commit adds with
`dataChange` is inserted, what it removes is deleted, so compactions change nothing, and deletes, updates and restores
arrive like appends. Where a commit cannot be applied exactly, the table is loaded again from the newest version:

- there is no position yet, or the Delta table was created again under its path,
- the log was cleaned up, or files were vacuumed, before the hot store had read them,
- removed rows cannot be identified by their position (`HotTable.remove`),
- a row that PostgreSQL cannot store has stopped the pipeline, and a later commit has removed rows: perhaps this one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from headrace import faults
from headrace.delta.actions import Commit, File
from headrace.delta.deletion_vectors import kept_mask
from headrace.delta.followed_log import FollowedLog
from headrace.delta.log import commits_between, proved_time
from headrace.delta.rows import all_rows, row_chunks
from headrace.delta.schema import SOURCE
from headrace.delta.snapshot import TableState, active_files
from headrace.errors import (
    HotStoreTableInvalid,
    HotStoreUnreachable,
    HotStoreValueRejected,
    StopRequested,
    TableDamaged,
)
from headrace.hot_store.hot_table import HotTable, InsertedRows
from headrace.hot_store.positions import TablePosition
from headrace.hot_store.postgres import Connection, named_errors
from headrace.spec.hot_store import PostgresSpec
from headrace.storage.store import Store

_MAX_COMMITS = 64  # of a transaction
_MAX_ROWS = 200_000  # after which a transaction ends with the current commit
_EXPIRED_ROWS = 10_000  # deleted in one transaction by `retention`
_MAPPING = "delta.columnMapping.mode"


class _NotExact(Exception):
    """A commit cannot be applied to the hot table as it is: load the table again."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a transaction has changed."""

    version: int
    rows: int
    removed: int
    rejected: int
    loaded: bool
    lag_commits: int
    lag_seconds: float
    seconds: float


class TableFollower:
    """One Delta table and its hot table."""

    def __init__(self, spec: PostgresSpec, pipeline: str, store: Store, name: str, stop: threading.Event) -> None:
        self._spec, self._pipeline, self.store, self.name = spec, pipeline, store, name
        self._log, self._stop = FollowedLog(store), stop
        self._connection: Connection | None = None
        self._table: HotTable
        self._position: TablePosition | None = None
        self._is_open = False

    def step(self, connection: Connection) -> Step | None:
        """Apply the next commits; None if PostgreSQL has all of them."""
        state = self._log.newest()
        if state is None:
            return None
        began = time.monotonic()
        try:
            with named_errors(self._spec):
                position = self._opened(connection)
                if position is None or position.table_id != state.table_id or position.version > state.version:
                    return self._load(state, position, began)
                if position.version == state.version:
                    return None
                until = min(state.version, position.version + _MAX_COMMITS)
                commits = commits_between(self.store, position.version, until)
                if commits is None:
                    return self._load(state, position, began)
                try:
                    return self._apply(state, position, commits, began)
                except HotStoreValueRejected:
                    if not self._removed_since(commits, state):
                        raise
                except (_NotExact, TableDamaged):
                    pass
                self._table.forget()
                return self._load(state, position, began)
        except BaseException:
            self._is_open = False  # the transaction may have been committed: the position in PostgreSQL decides
            raise

    def _opened(self, connection: Connection) -> TablePosition | None:
        """The position; None if there is none, or the hot table was dropped."""
        if not self._is_open or connection is not self._connection:
            self._connection = connection
            self._table = HotTable(connection, self._spec, self.name, self._pipeline, self.store.uri)
            with connection.transaction():
                position = self._locked()
            self._position = position if self._table.exists() else None
            self._is_open = True
        return self._position

    def _locked(self) -> TablePosition | None:
        assert self._connection is not None  # noqa: S101
        return TablePosition.locked(self._connection, self._spec, self._pipeline, self.store.uri)

    # ---- commits ----

    def _apply(self, state: TableState, position: TablePosition, commits: Sequence[Commit], began: float) -> Step:
        group = _group(commits)
        removed, inserted = 0, InsertedRows(0, 0, 0)
        with self._transaction(state, position) as table:
            for commit in group:
                removed += self._remove(table, commit, state)
                for rows in self._added(commit, state):
                    table.stage(commit.version, rows)
            faults.reach(faults.HotStorePoint.STAGED, batch=group[-1].version)
            inserted = table.insert()
            if inserted.conflicts:
                raise _NotExact
            faults.reach(faults.HotStorePoint.INSERTED, batch=group[-1].version)
            self._move(state, group[-1].version, group[-1].timestamp)
        following = commits[len(group)] if len(group) < len(commits) else None
        waits_since = (following or group[-1]).timestamp / 1000
        lag = state.version - group[-1].version
        return Step(
            group[-1].version,
            inserted.rows,
            removed,
            inserted.rejected,
            False,
            lag,
            max(0.0, time.time() - waits_since) if lag else 0.0,
            time.monotonic() - began,
        )

    def _removed_since(self, commits: Sequence[Commit], state: TableState) -> bool:
        """Whether the newest version lacks rows that these commits have added."""
        newest = active_files(self.store, state.version)
        added = [file for commit in commits for file in commit.added if file.changes_data]
        return any(file.key not in newest for file in added)

    def _remove(self, table: HotTable, commit: Commit, state: TableState) -> int:
        """Delete the rows that a commit removes from the Delta table."""
        after = {file.path: file for file in commit.added}
        files = [(file, after.get(file.path)) for file in commit.removed if file.changes_data]
        if not files:
            return 0
        source = pa.schema([state.schema.field(SOURCE.name)])
        removed = table.remove(rows for file, other in files for rows in self._changed(file, other, source, state))
        if removed is None:
            raise _NotExact
        return removed

    def _added(self, commit: Commit, state: TableState) -> Iterator[pa.Table]:
        """The rows that a commit adds to the Delta table."""
        before = {file.path: file for file in commit.removed}
        for file in commit.added:
            if file.changes_data:
                yield from self._changed(file, before.get(file.path), state.schema, state)

    def _changed(self, file: File, other: File | None, schema: pa.Schema, state: TableState) -> Iterator[pa.Table]:
        """The rows of a file that are not in `other`, the same file with another deletion vector."""
        if other is None:
            yield from self._chunks(file, schema, state)
            return
        rows = all_rows(self.store, file, schema, state.partition_by)
        mask = kept_mask(self.store, file.vector, len(rows)) & ~kept_mask(self.store, other.vector, len(rows))
        yield rows.filter(pa.array(mask))

    def _chunks(self, file: File, schema: pa.Schema, state: TableState) -> Iterator[pa.Table]:
        for rows in row_chunks(self.store, file, schema, state.partition_by):
            if self._stop.is_set():
                raise StopRequested("Stopped; the next run continues at the position of the hot store.")
            yield rows

    # ---- the whole table ----

    def _load(self, state: TableState, position: TablePosition | None, began: float) -> Step:
        """Replace the content of the hot table by the newest version; readers see it when it is complete."""
        files = active_files(self.store, state.version)
        rows = rejected = 0
        with self._transaction(state, position) as table:
            if self._locked() is None and not table.is_empty():
                raise HotStoreTableInvalid(
                    f"{self._spec.address}: {self._spec.schema_name}.{self.name} has rows, and headrace_positions does "
                    f"not tell which rows of {self.store.uri} they are.",
                    hint="TRUNCATE the table, or set another name with `table` or `schema` of hot_store.postgres.",
                    table=self.store.uri,
                )
            removed = table.clear()
            for file in files.values():
                for chunk in self._chunks(file, state.schema, state):
                    table.stage(state.version, chunk)
                    inserted = table.insert(load=True)
                    table.clear_staged()
                    rows, rejected = rows + inserted.rows, rejected + inserted.rejected
            faults.reach(faults.HotStorePoint.INSERTED, batch=state.version)
            self._move(state, state.version, None)
        return Step(state.version, rows, removed, rejected, True, 0, 0.0, time.monotonic() - began)

    # ---- transactions ----

    @contextmanager
    def _transaction(self, state: TableState, position: TablePosition | None) -> Iterator[HotTable]:
        """A transaction at this position, with the columns of the Delta table."""
        assert self._connection is not None  # noqa: S101
        if state.properties.get(_MAPPING, "none") != "none":
            raise HotStoreTableInvalid(
                f"{self.store.uri} has column mapping, with which files have other column names than the table.",
                hint="Write the table without `delta.columnMapping.mode`, or remove the hot store.",
                table=self.store.uri,
            )
        try:
            with self._connection.transaction():
                if self._locked() != position and position is not None:
                    raise HotStoreUnreachable(f"{self.store.uri}: another process has moved the position.")
                self._table.prepare(state.schema)
                self._table.begin()
                yield self._table
            faults.reach(faults.HotStorePoint.AFTER_COMMIT, batch=state.version)
        except BaseException:
            self._table.forget()
            raise

    def _move(self, state: TableState, version: int, timestamp: int | None) -> None:
        """Write the new position."""
        assert self._connection is not None  # noqa: S101
        at = None if not timestamp else datetime.fromtimestamp(timestamp / 1000, UTC)
        self._position = TablePosition(state.table_id, version)
        self._position.store(self._connection, self._spec, self._pipeline, self.store.uri, self.name, at)
        faults.reach(faults.HotStorePoint.BEFORE_COMMIT, batch=version)

    # ---- retention ----

    def expire(self, connection: Connection, now: datetime) -> int:
        """Delete rows that are older than `retention`, by the time that the Delta log proves, up to a limit."""
        state, retention = self._log.newest(), self._spec.retention
        if state is None or retention is None:
            return 0
        with named_errors(self._spec):
            if self._opened(connection) is None:
                return 0
            cutoff = proved_time(self.store, now, retention, state.version) - retention
            return self._table.delete_before(cutoff, _EXPIRED_ROWS)


def _group(commits: Sequence[Commit]) -> Sequence[Commit]:
    """The first commits, for one transaction: up to one that removes rows, which has a transaction of its own."""
    rows = 0
    for number, commit in enumerate(commits):
        if any(file.changes_data for file in commit.removed):
            return commits[: max(1, number)]
        rows += sum(file.num_records or 0 for file in commit.added if file.changes_data)
        if rows >= _MAX_ROWS:
            return commits[: number + 1]
    return commits
