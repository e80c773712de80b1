"""Upsert records by key: replace the rows that have the key of a record, and insert the other records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.actions import File
from headrace.delta.partition_keys import Partition
from headrace.delta.snapshot import TableState
from headrace.errors import SchemaMismatch, UsageError
from headrace.stage.change_schema import CHANGE, PUT, check_change_names, check_keys
from headrace.storage.store import Store
from headrace.table.delete_update import files_in_partition, operation_parameters
from headrace.table.records import Records, fit_records, partition_of
from headrace.write.duckdb_merge import ChangeRows, UpsertMerge
from headrace.write.intent import MergeRules
from headrace.write.merge_sql import DUCKDB, MergeSql

_LAST_PARTITION = 2**31 - 1  # the position of these changes is after every record of a topic


@dataclass(frozen=True, slots=True)
class Upserted:
    """Result of an upsert."""

    version: int
    inserted: int
    updated: int


@dataclass(frozen=True, slots=True)
class UpsertRequest:
    """Arguments of an upsert."""

    records: Records
    key: tuple[str, ...]
    sequence_by: str | None = None
    partition: str | None = None
    deduplicate: bool = True

    @property
    def rules(self) -> MergeRules:
        """Rules of the merge."""
        return MergeRules(self.key, self.sequence_by)


@dataclass(frozen=True, slots=True)
class UpsertChanges:
    """The records as changes of a table: rows in its columns, each with its position as a record of a topic has one."""

    rows: pa.Table
    positions: pa.Array
    partition: Partition

    @classmethod
    def of(cls, request: UpsertRequest, state: TableState) -> UpsertChanges:
        """Check the records; an error for keys that are unknown, NULL, or duplicate without `deduplicate`."""
        if not request.key:
            raise UsageError("An upsert requires a key.", hint="Specify the columns that identify a row.")
        check_change_names(state.schema)
        check_keys(state.schema, "key", request.key, "sequence_by", request.sequence_by)
        partition = partition_of(request.partition, state.schema, state.partition_by)
        rows = fit_records(request.records, state.schema, state.partition_by, partition)
        for name in (*request.key, *filter(None, [request.sequence_by])):
            _refuse_null(rows[name], name)
        if not request.deduplicate:
            _refuse_duplicates(rows, request.key)
        return cls(rows, _positions(len(rows)), partition)

    def with_positions(self) -> pa.Table:
        """The rows with the column that a merge orders them by."""
        return self.rows.append_column(CHANGE, self.positions)


def _refuse_null(column: pa.ChunkedArray, name: str) -> None:
    if column.null_count:
        number = pc.index(pc.is_null(column), True).as_py()
        raise SchemaMismatch(
            f"Record {number} has no value for {name}, which is required for an upsert.",
            expected=f"{name} in every record",
            actual="NULL",
        )


def _refuse_duplicates(rows: pa.Table, key: tuple[str, ...]) -> None:
    counts = rows.select(list(key)).group_by(list(key)).aggregate([([], "count_all")])
    if len(counts) < len(rows):
        duplicate = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).to_pylist()[0]
        values = ", ".join(f"{name} = {duplicate[name]}" for name in key)
        raise UsageError(
            f"{duplicate['count_all']} records have the key {values}.",
            hint="Pass one record per key; or set `deduplicate` to keep the last one.",
        )


def _positions(count: int) -> pa.Array:
    """Positions after those of all records of a pipeline, in the order of the records."""
    values = {"op": pa.scalar(PUT), "partition": pa.scalar(_LAST_PARTITION, pa.int32())}
    columns = [
        pa.array(range(count), item.type)
        if item.name == "offset"
        else pa.repeat(values[item.name].cast(item.type), count)
        if item.name in values
        else pa.nulls(count, item.type)
        for item in CHANGE.type
    ]
    return pa.StructArray.from_arrays(columns, fields=list(CHANGE.type))


class Upsert(UpsertMerge):
    """An upsert in this process."""

    def __init__(self, store: Store, request: UpsertRequest, state: TableState) -> None:
        parameters = operation_parameters(
            matched="update", notMatched="insert", key=list(request.key), sequence=request.sequence_by
        )
        changes = UpsertChanges.of(request, state)
        self._partition = changes.partition
        sql = MergeSql(request.rules, state.schema.names, DUCKDB, deletes=False)
        super().__init__(store, state, sql, ChangeRows(changes.with_positions(), None, datetime.now(UTC)), parameters)

    def candidates(self, files: Sequence[File]) -> Iterator[File]:
        """Files that may contain one of the keys, in the partition of the request."""
        return super().candidates(files_in_partition(files, self._partition, self._state))
