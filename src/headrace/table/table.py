"""The public Table API: one Delta table, opened by its path. Each operation is implemented in a module of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.delta.followed_log import FollowedLog
from headrace.delta.log import newest_version
from headrace.errors import UsageError
from headrace.spec.units import duration
from headrace.storage.store import Profile, Store
from headrace.table import change_feed, create_drop, history, repair, stats, vacuum
from headrace.table.change_feed import Changes
from headrace.table.create_drop import CheckRecords, FirstWrite
from headrace.table.delete_update import Condition, Deleted, Updated, Values
from headrace.table.enable_feature import EnabledFeature, check_feature, planned
from headrace.table.history import HistoryEntry, OperationLatencies, Watch
from headrace.table.insert import Inserted
from headrace.table.operations import TableOperations
from headrace.table.optimize import Optimized
from headrace.table.ownership import TableOwners, existing_table
from headrace.table.query import Query
from headrace.table.records import Records, materialize, rows_for
from headrace.table.repair import Repaired
from headrace.table.restore import Restored, write_checkpoint
from headrace.table.schema_changes import Columns, SchemaChange, schema_of
from headrace.table.stats import Statistics, TableInfo
from headrace.table.upsert import UpsertChanges, Upserted, UpsertRequest
from headrace.table.vacuum import RETAIN, Vacuumed
from headrace.table.versions import Moment, resolve_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spec import Spec

_Storage = Profile | Mapping[str, Any] | None


class Table:
    """A Delta table at a path. Opening it reads nothing."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage: _Storage = None,
        *,
        states: Mapping[str, str] | None = None,
        direct_commit: bool = False,
        spark: SparkSession | None = None,
    ) -> None:
        """Open a table.

        `storage`: access to an object store, with the keys of `storage` in a spec; default: the environment.
        `states`: state folders of pipelines that write the table, by pipeline name, if they are not next to it.
        `direct_commit`: Spark will never write to the table again, although it made the last commit.
        `spark`: a session with Delta Lake for tables that only Spark may change; default: a session per operation.
        """
        self._store = Store(os.fspath(path), profile(storage))
        self._states, self._direct_commit, self._spark = dict(states or {}), direct_commit, spark
        self._log = FollowedLog(self._store)
        self._first_write: FirstWrite | None = None
        self._watch = Watch()

    @classmethod
    def get_or_create(
        cls,
        path: str | os.PathLike[str],
        schema: Columns | None = None,
        partition_by: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        storage: _Storage = None,
    ) -> Table:
        """Open a table, and create it without rows if it does not exist. An existing table must have these columns.

        Without a schema, the first insert or upsert creates the table with the columns of its records.
        """
        table = cls(path, storage)
        if schema is None:
            table._first_write = FirstWrite(_names(partition_by), dict(properties or {}))
            return table
        with table._watch("create"):
            create_drop.create(table._store, schema, _names(partition_by), properties or {})
        return table

    @staticmethod
    def list_tables(base: str | os.PathLike[str], storage: _Storage = None) -> list[str]:
        """List the URIs of all Delta tables below a folder; the state of pipelines is left out."""
        return stats.list_tables(os.fspath(base), profile(storage))

    def __repr__(self) -> str:
        return f"Table({self.path!r})"

    @property
    def path(self) -> str:
        """URI of the table."""
        return self._store.uri

    def exists(self) -> bool:
        """Whether the table exists."""
        return newest_version(self._store) is not None

    # ---- metadata ----

    def metadata(self) -> TableInfo:
        """Version, columns, partitioning, properties, features and writers."""
        with self._watch("metadata"):
            return stats.metadata(self._store, self._owners())

    def statistics(self) -> Statistics:
        """Bytes, files, partitions, rows, small files and deletion vectors, from the log alone."""
        with self._watch("statistics"):
            return stats.statistics(self._store, resolve_version(self._store))

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """Commits, newest first, as far back as the log goes."""
        with self._watch("history"):
            return history.history(self._store, resolve_version(self._store), limit)

    def operation_metrics(self) -> OperationLatencies:
        """Latencies by operation: of this object since it was opened, and those recorded in the history."""
        version = newest_version(self._store)
        return self._watch.metrics([] if version is None else history.history(self._store, version))

    # ---- rows ----

    def query(self) -> Query:
        """Start a query; refine it with `.where()`, `.select()`, `.order_by()`, `.limit()` and `.at()`."""
        return Query(store=self._store, watch=self._watch)

    def changes(self, start: int | Moment, until: int | Moment | None = None) -> Changes:
        """Query the changed rows between two versions or timestamps, both included; default end: the newest version."""
        return change_feed.changes(self._store, start, until, watch=self._watch)

    def bulk_insert(self, records: Records, partition: str | None = None) -> Inserted:
        """Append records in one commit: dictionaries, Arrow or a data frame; `partition="a=x/b=y"` applies to all."""
        with self._watch("bulk_insert"):
            rows = self._first(records, partition, lambda rows, state: rows_for(state, rows, partition))
            return self._operations().bulk_insert(rows, partition)

    def upsert(
        self,
        records: Records,
        key: str | Iterable[str],
        sequence_by: str | None = None,
        partition: str | None = None,
        deduplicate: bool = True,
    ) -> Upserted:
        """Replace the rows that have the key of a record, and insert the other records, in one commit.

        The last of several records with the same key wins. `sequence_by` orders them by a column instead, and a record
        older than its row is skipped. `partition="a=x/b=y"`: all records and their rows are in this partition.
        """
        with self._watch("upsert"):
            request = UpsertRequest(records, tuple(dict.fromkeys(_names(key))), sequence_by, partition, deduplicate)
            rows = self._first(
                records, partition, lambda rows, state: UpsertChanges.of(replace(request, records=rows), state)
            )
            return self._operations().upsert(replace(request, records=rows))

    def delete(self, where: str, partition: str | None = None, hard: bool = True) -> Deleted:
        """Delete the rows that match an SQL condition; `hard=False` hides them from queries instead."""
        with self._watch("delete"):
            return self._operations().delete(Condition(where, partition), hard)

    def update(self, where: str, set: Values, partition: str | None = None) -> Updated:
        """Set columns of the rows that match an SQL condition; a string in `set` is an SQL expression."""
        with self._watch("update"):
            return self._operations().update(Condition(where, partition, dict(set)))

    # ---- maintenance ----

    def optimize(
        self,
        where: str | None = None,
        target_size: int | None = None,
        z_order: str | Iterable[str] = (),
        *,
        min_file_size: int | None = None,
        max_file_size: int | None = None,
    ) -> Optimized:
        """Compact small files, up to `target_size` bytes each; `z_order` clusters rows by these columns.

        Files below `min_file_size` (default: 75 % of the target size) are compacted. Files above `max_file_size` are
        split, unless Spark writes the table; by default, none are.
        """
        with self._watch("optimize"):
            return self._operations().optimize(where, target_size, _names(z_order), min_file_size, max_file_size)

    def vacuum(self, retain: timedelta | str = RETAIN, *, dry_run: bool = False, force: bool = False) -> Vacuumed:
        """Delete files that no version of the last `retain` uses. Below the table's retention, `force` is required."""
        with self._watch("vacuum"):
            return vacuum.vacuum(self._store, self._owners(), _duration(retain), dry_run=dry_run, force=force)

    def checkpoint(self) -> int:
        """Write a log checkpoint, so that readers open few log files; returns its version."""
        with self._watch("checkpoint"):
            return write_checkpoint(self._store, self._owners())

    def repair(
        self, *, dry_run: bool = False, deep: bool = False, reingest: Spec | str | os.PathLike[str] | None = None
    ) -> Repaired:
        """Remove missing files from the log, and report unreadable files and the source records of lost rows.

        `deep` reads every file to its end. `reingest` is the spec that wrote the lost rows: rows lost now or in earlier
        repairs are read from the source again, if it still has them, and inserted.
        """
        with self._watch("repair"):
            if reingest is None:
                return repair.repair(self._store, self._owners(), dry_run=dry_run, deep=deep)
            from headrace.table.reingest import repair_and_reingest

            return repair_and_reingest(
                self._store, self._owners, reingest, dry_run=dry_run, deep=deep, spark=self._spark
            )

    def restore(self, version: int | None = None, timestamp: Moment | None = None) -> Restored:
        """Restore the rows of an older version as a new version; the result says how to continue its pipelines."""
        with self._watch("restore"):
            return self._operations().restore(version, timestamp)

    # ---- schema and properties ----

    def set_properties(self, properties: Mapping[str, str | None]) -> TableInfo:
        """Set table properties; None unsets one."""
        with self._watch("set_properties"):
            self._operations().set_properties(properties)
        return self.metadata()

    def update_schema(
        self,
        schema: Columns | None = None,
        *,
        add: Columns | None = None,
        comment: Mapping[str, str | None] | None = None,
        widen: Mapping[str, str] | None = None,
        rename: Mapping[str, str] | None = None,
        drop: str | Iterable[str] = (),
    ) -> TableInfo:
        """Change the columns to `schema`, or apply single changes. Widen, rename and drop require a table feature.

        `add={"s.b": "int"}` adds a field to the struct `s`; a comment of None removes the comment.
        """
        change = SchemaChange(add, comment, widen, rename, _names(drop))
        if schema is not None and change != SchemaChange():
            raise UsageError("A schema and single changes are mutually exclusive.", hint="Specify one of them.")
        with self._watch("update_schema"):
            self._operations().update_schema(change if schema is None else schema_of(schema))
        return self.metadata()

    def enable_feature(self, feature: str, *, dry_run: bool = False) -> EnabledFeature:
        """Enable `columnMapping` (rename and drop columns) or `typeWidening` (widen columns). Cannot be undone.

        From then on, only Spark writes the table. The result says which clients can read and write it before and after.
        """
        check_feature(feature)
        with self._watch("enable_feature"):
            return (
                planned(self._store, self._owners(), feature) if dry_run else self._operations().enable_feature(feature)
            )

    def drop(self) -> int:
        """Delete the table with all its files and its history, and return the number of files. Cannot be undone."""
        with self._watch("drop"):
            return create_drop.drop(self._store, self._owners())

    def resolve(self, version: int | None = None, timestamp: Moment | None = None) -> int:
        """Resolve a version number: the newest version, or the newest one committed at or before a timestamp."""
        return resolve_version(self._store, version, timestamp)

    def schema(self) -> pa.Schema:
        """Current columns."""
        return existing_table(self._store).schema

    def _first(self, records: Records, partition: str | None, check: CheckRecords) -> Records:
        """Make records readable more than once, and create the table from them if it does not exist."""
        rows = materialize(records)
        if self._first_write is None or self.exists():
            return rows
        return self._first_write.create(self._store, rows, partition, check)

    def _operations(self) -> TableOperations:
        return TableOperations(self._store, self._owners(), self._spark)

    def _owners(self) -> TableOwners:
        return TableOwners(self._store, self._states, self._direct_commit, self._log)


def profile(storage: _Storage) -> Profile:
    """Convert the keys of `storage` in a spec to a storage profile."""
    if storage is None or isinstance(storage, Profile):
        return storage or Profile()
    kinds = ("s3", "azure", "gcs")
    if unknown := [name for name in storage if name not in kinds]:
        raise UsageError(f"storage: unknown key: {', '.join(unknown)}.", hint=f"Valid keys: {', '.join(kinds)}.")
    return Profile(**storage)


def _names(columns: str | Iterable[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _duration(text: timedelta | str) -> timedelta:
    try:
        age = duration(text)
    except ValueError as expected:
        raise UsageError(f"Invalid duration: '{text}'.", hint=f"Specify {expected}.") from None
    if age < timedelta():
        raise UsageError(f"Invalid duration: '{text}' is negative.", hint="Specify a duration of at least 0s.")
    return age
