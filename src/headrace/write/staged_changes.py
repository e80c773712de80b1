"""The changes of a batch for one table: staged files, tombstones of earlier batches, and the SQL that merges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import pyarrow as pa

from headrace.delta.actions import File, as_file
from headrace.delta.rows import ColumnReader, read_rows
from headrace.delta.schema import from_delta
from headrace.stage.change_schema import CHANGE, DELETE, TRUNCATE, staged_schema
from headrace.stage.parquet import read_parquet
from headrace.storage.store import Store
from headrace.write.intent import MergeRules, TableIntent
from headrace.write.merge_sql import SPARK, MergeDialect, MergeSql, Truncates
from headrace.write.scd2_sql import Scd2Sql
from headrace.write.tombstones import Tombstones, last_truncates, may_contain

MANY_ROWS = 1_000_000  # the keys of larger batches are not read in the driver


@dataclass(frozen=True)
class StagedChanges:
    """The input of a merge; both engines use it. `now` decides which tombstones have expired."""

    table: TableIntent
    rules: MergeRules
    tombstones: Tombstones
    now: datetime

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the table that changes fill."""
        return from_delta(self.table.schema)

    @cached_property
    def staged_schema(self) -> pa.Schema:
        """The columns of the staged files."""
        return staged_schema(self.schema, self.rules.keys)

    @cached_property
    def tombstone_files(self) -> list[File]:
        """The files of tombstones that have not expired."""
        return self.tombstones.files(self.now)

    @property
    def row_count(self) -> int:
        """The number of staged changes."""
        return sum(file.rows for file in self.table.files)

    @property
    def bytes(self) -> int:
        """The size of all files to read."""
        return sum(file.size for file in self.table.files) + sum(file.size for file in self.tombstone_files)

    def sql(self, dialect: MergeDialect, partitions: Mapping[str, Sequence[str]] | None = None) -> MergeSql:
        """The SQL of the merge; `partitions` are literals of all values of keys that are partition columns."""
        columns, files = self.schema.names, self.table.files
        if self.rules.scd2 is not None:
            return Scd2Sql(self.rules, columns, dialect, partitions=partitions or {})
        has_deletes = any(may_contain(file, DELETE) for file in files)
        # Ordering the changes of a key takes long only in Spark.
        distinct = dialect is SPARK and not self.rules.partial and self._has_distinct_keys()
        earlier = self.tombstones.truncates(self.tombstone_files, self.now)
        return MergeSql(
            self.rules, columns, dialect, self._truncates(), has_deletes, distinct, earlier, partitions or {}
        )

    def rows(self) -> pa.Table:
        """Read all changes."""
        return pa.concat_tables(
            read_rows(self._store(file.table), as_file(file), self.staged_schema, ()) for file in self.table.files
        )

    def key_rows(self, names: Sequence[str]) -> pa.Table:
        """Read some key columns of all changes."""
        readers = {uri: ColumnReader(self._store(uri), names) for uri in {file.table for file in self.table.files}}
        return pa.concat_tables(readers[file.table].of(as_file(file))[0].select(names) for file in self.table.files)

    def _has_distinct_keys(self) -> bool:
        """Whether no key has two changes; False for a large batch, which is not checked."""
        if self.row_count > MANY_ROWS:
            return False
        keys = self.key_rows(self.rules.keys).drop_null()  # a truncate has no key
        return bool(keys.group_by(list(self.rules.keys)).aggregate([]).num_rows == len(keys))

    def _truncates(self) -> Truncates:
        """The last truncate of each partition in this batch."""
        files = [file for file in self.table.files if may_contain(file, TRUNCATE)]
        contents = (self._store(file.table).get(file.path) for file in files)
        return last_truncates(read_parquet(content, [CHANGE.name])[CHANGE.name] for content in contents)

    def _store(self, uri: str) -> Store:
        return Store(uri, self.tombstones.store.profile)
