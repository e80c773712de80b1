"""The public Table: one Delta table, opened by its place; each operation is one call into a file of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.delta.log import newest_version
from headrace.errors import UsageError
from headrace.spec.units import duration
from headrace.storage.store import Profile, Store
from headrace.table import change_feed, history, repair, schema_changes, stats, vacuum
from headrace.table import restore as upkeep
from headrace.table.change_feed import Changes
from headrace.table.column_operations import ColumnOperations
from headrace.table.delete_update import Condition, Deleted, Updated, Values
from headrace.table.file_operations import FileOperations
from headrace.table.first_write import Check, FirstWrite
from headrace.table.history import HistoryEntry, OperationLatencies, Watch
from headrace.table.insert import Inserted
from headrace.table.optimize import Optimized
from headrace.table.ownership import TableOwners, existing_table
from headrace.table.query import Query
from headrace.table.records import Records, at_hand, rows_for
from headrace.table.repair import Repaired
from headrace.table.restore import Restored
from headrace.table.row_operations import RowOperations
from headrace.table.schema_changes import Columns, SchemaChange
from headrace.table.stats import Statistics, TableInfo
from headrace.table.upsert import UpsertChanges as Puts
from headrace.table.upsert import Upserted, UpsertRequest
from headrace.table.vacuum import RETAIN, Vacuumed
from headrace.table.versions import Moment, resolve_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spec import Spec

Storage = Profile | Mapping[str, Any] | None


class Table:
    """A Delta table at a place; nothing is read before something is asked."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage: Storage = None,
        *,
        states: Mapping[str, str] | None = None,
        direct_commit: bool = False,
        spark: SparkSession | None = None,
    ) -> None:
        """`storage` says how to reach an object store, as `storage.s3` of a spec does; without it the environment.

        `states` are the state folders of pipelines that write the table, where they are not beside it. `direct_commit`
        says that Spark will never write to the table again, although it did last. `spark` is a session with Delta to
        use for what only Spark may change; without it one is started where it is needed, and ended.
        """
        self._store = Store(os.fspath(path), profile(storage))
        self._states, self._direct_commit, self._spark = dict(states or {}), direct_commit, spark
        self._undescribed: FirstWrite | None = None
        self._watch = Watch()

    @classmethod
    def get_or_create(
        cls,
        path: str | os.PathLike[str],
        schema: Columns | None = None,
        partition_by: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        storage: Storage = None,
    ) -> Table:
        """The table there, which must have these columns; made, with one commit and no rows, where there is none.

        Without a schema it is made by the first records that are inserted or upserted, with the columns they show.
        """
        table = cls(path, storage)
        if schema is None:
            table._undescribed = FirstWrite(_names(partition_by), dict(properties or {}))
            return table
        with table._watch("create"):
            schema_changes.create(table._store, schema, _names(partition_by), properties or {})
        return table

    @staticmethod
    def list_tables(base: str | os.PathLike[str], storage: Storage = None) -> list[str]:
        """The places of all Delta tables below a folder; the state of pipelines is left out."""
        return stats.list_tables(os.fspath(base), profile(storage))

    def __repr__(self) -> str:
        return f"Table({self.path!r})"

    @property
    def path(self) -> str:
        """Where it is."""
        return self._store.uri

    def exists(self) -> bool:
        """Whether there is a table."""
        return newest_version(self._store) is not None

    # ---- what it is ----

    def metadata(self) -> TableInfo:
        """Version, columns, partitioning, properties, features, and who writes it."""
        with self._watch("metadata"):
            return stats.metadata(self._store, self._writers())

    def statistics(self) -> Statistics:
        """Bytes, files, partitions, rows, small files and deletion vectors, from the log alone."""
        with self._watch("statistics"):
            return stats.statistics(self._store, resolve_version(self._store))

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """What was done to it, newest first, as far back as its log tells."""
        with self._watch("history"):
            return history.history(self._store, resolve_version(self._store), limit)

    def operation_metrics(self) -> OperationLatencies:
        """Latencies by operation: of this object since it was opened, and what commits tell of themselves."""
        there = newest_version(self._store)
        return self._watch.metrics([] if there is None else history.history(self._store, there))

    # ---- its rows ----

    def query(self) -> Query:
        """A question about its rows: `.where()`, `.select()`, `.order_by()`, `.limit()`, `.at()`, then taken."""
        return Query(store=self._store, watch=self._watch)

    def changes(self, start: int | Moment, until: int | Moment | None = None) -> Changes:
        """Rows that came and went from one version, or moment, to another, both included; to the newest without one."""
        return change_feed.changes(self._store, start, until, watch=self._watch)

    def bulk_insert(self, records: Records, partition: str | None = None) -> Inserted:
        """Add records in one commit: dictionaries, Arrow, any data frame; `partition="a=x/b=y"` places them all."""
        with self._watch("bulk_insert"):
            first = self._first(records, partition, lambda rows, state: rows_for(state, rows, partition))
            return self._files().bulk_insert(first, partition)

    def upsert(
        self,
        records: Records,
        key: str | Iterable[str],
        sequence_by: str | None = None,
        partition: str | None = None,
        deduplicate: bool = True,
    ) -> Upserted:
        """Put records in place of the rows with their key, and add those whose key no row has, in one commit.

        Of several records with one key the last counts: by `sequence_by` where it is given, which an older record than
        the row loses by, too. `partition="a=x/b=y"` says that all of them, and their rows, are in there.
        """
        with self._watch("upsert"):
            wanted = UpsertRequest(records, tuple(dict.fromkeys(_names(key))), sequence_by, partition, deduplicate)
            first = self._first(records, partition, lambda rows, state: Puts.of(replace(wanted, records=rows), state))
            return self._rows().upsert(replace(wanted, records=first))

    def delete(self, where: str, partition: str | None = None, hard: bool = True) -> Deleted:
        """Delete the rows for which an SQL expression is true; not `hard`: hide them from queries."""
        with self._watch("delete"):
            return self._rows().delete(Condition(where, partition), hard)

    def update(self, where: str, set: Values, partition: str | None = None) -> Updated:
        """Set columns of the rows for which an SQL expression is true; a text is an expression, too."""
        with self._watch("update"):
            return self._rows().update(Condition(where, partition, dict(set)))

    # ---- its upkeep ----

    def optimize(
        self, where: str | None = None, target_size: int | None = None, z_order: str | Iterable[str] = ()
    ) -> Optimized:
        """Fewer, larger files; with `z_order` rows that are near in these columns are near in the files, too."""
        with self._watch("optimize"):
            return self._files().optimize(where, target_size, _names(z_order))

    def vacuum(self, retain: timedelta | str = RETAIN, *, dry_run: bool = False, force: bool = False) -> Vacuumed:
        """Delete files that no version of the last `retain` needs; shorter than the table's own needs `force`."""
        with self._watch("vacuum"):
            return vacuum.vacuum(self._store, self._writers(), _duration(retain), dry_run=dry_run, force=force)

    def checkpoint(self) -> int:
        """Write a log checkpoint, so that readers open few files of the log; of which version."""
        with self._watch("checkpoint"):
            return upkeep.checkpoint_table(self._store, self._writers())

    def repair(
        self, *, dry_run: bool = False, deep: bool = False, reingest: Spec | str | os.PathLike[str] | None = None
    ) -> Repaired:
        """Take files that are gone out of the log, name the unreadable ones, and tell which records that costs.

        `reingest`: the spec that wrote them. What the table has lost, now or by an earlier repair, is read again
        through it, as far as the source still holds it, and put back.
        """
        with self._watch("repair"):
            if reingest is None:
                return repair.repair(self._store, self._writers(), dry_run=dry_run, deep=deep)
            from headrace.table.reingest import reingested

            return reingested(self._store, self._writers, reingest, dry_run=dry_run, deep=deep, spark=self._spark)

    def restore(self, version: int | None = None, timestamp: Moment | None = None) -> Restored:
        """Hold the rows of an older version again, as a new version; says what pipelines will ask then."""
        with self._watch("restore"):
            return self._files().restore(version, timestamp)

    # ---- what it looks like ----

    def set_properties(self, properties: Mapping[str, str | None]) -> TableInfo:
        """Set table properties; None takes one away."""
        with self._watch("set_properties"):
            self._columns().set_properties(properties)
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
        """Make its columns these; or add columns and comments. To widen, rename or drop needs a table feature.

        `add={"s.b": "int"}` adds a field inside the struct `s`; a comment that is None is taken away.
        """
        change = SchemaChange(add, comment, widen, rename, _names(drop))
        if schema is not None and change != SchemaChange():
            raise UsageError("A whole schema and single changes are both given.", hint="Give one of them.")
        with self._watch("update_schema"):
            self._columns().update(change if schema is None else schema_changes.schema_of(schema))
        return self.metadata()

    def drop(self) -> int:
        """Delete the table with all its files and its history; how many files that were. There is no way back."""
        with self._watch("drop"):
            return schema_changes.drop(self._store, self._writers())

    def resolve(self, version: int | None = None, timestamp: Moment | None = None) -> int:
        """The number of a version: of the newest one committed by a moment, or of the newest at all."""
        return resolve_version(self._store, version, timestamp)

    def schema(self) -> pa.Schema:
        """Its columns now."""
        return existing_table(self._store).schema

    def _first(self, records: Records, partition: str | None, check: Check) -> Records:
        """The records, to be read as often as it takes; those that come first make the table, where nobody has."""
        held = at_hand(records)
        if self._undescribed is None or self.exists():
            return held
        return self._undescribed.made(self._store, held, partition, check)

    def _columns(self) -> ColumnOperations:
        return ColumnOperations(self._store, self._writers(), self._spark)

    def _files(self) -> FileOperations:
        return FileOperations(self._store, self._writers(), self._spark)

    def _rows(self) -> RowOperations:
        return RowOperations(self._store, self._writers(), self._spark)

    def _writers(self) -> TableOwners:
        return TableOwners(self._store, self._states, self._direct_commit)


def profile(storage: Storage) -> Profile:
    """How to reach a store: a profile, or the keys of `storage.s3`."""
    if storage is None or isinstance(storage, Profile):
        return storage or Profile()
    try:
        return Profile(**storage)
    except TypeError:
        known = ", ".join(Profile.__dataclass_fields__)
        raise UsageError(f"storage: {', '.join(storage)} are not all known keys.", hint=f"Known: {known}.") from None


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Names of columns; a text is one of them."""
    return (given,) if isinstance(given, str) else tuple(given)


def _duration(given: timedelta | str) -> timedelta:
    try:
        found = duration(given)
    except ValueError as wanted:
        raise UsageError(f"'{given}' is no duration.", hint=f"Give {wanted}.") from None
    if found < timedelta():
        raise UsageError(f"'{given}' is in the future.", hint="Give a duration from 0s.")
    return found
