"""Records into a table by their key: one that is there is replaced, one that is not is added."""

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
from headrace.table.records import Records, fit_records, partition_of
from headrace.table.rewrite import commit_parameters, within
from headrace.write.duckdb_merge import Staged, UpsertMerge
from headrace.write.intent import MergeRules
from headrace.write.merge_sql import DUCKDB, MergeSql

_LAST = 2**31 - 1  # as the partition of a change: it comes after every record of a topic


@dataclass(frozen=True, slots=True)
class Upserted:
    """What an upsert did."""

    version: int
    inserted: int
    updated: int


@dataclass(frozen=True, slots=True)
class UpsertRequest:
    """An upsert as it was asked for."""

    records: Records
    key: tuple[str, ...]
    sequence_by: str | None = None
    partition: str | None = None
    deduplicate: bool = True

    @property
    def merging(self) -> MergeRules:
        """The same in the words of a merge."""
        return MergeRules(self.key, self.sequence_by)


@dataclass(frozen=True, slots=True)
class UpsertChanges:
    """The records as changes of one table: rows in its columns, and beside each what a merge must know."""

    rows: pa.Table
    notes: pa.Array
    partition: Partition

    @classmethod
    def of(cls, wanted: UpsertRequest, state: TableState) -> UpsertChanges:
        """Whatever cannot be merged is refused: keys that are no columns, NULL, or there twice."""
        _check(wanted, state)
        partition = partition_of(wanted.partition, state.schema, state.partition_by)
        rows = fit_records(wanted.records, state.schema, state.partition_by, partition)
        for name in (*wanted.key, *filter(None, [wanted.sequence_by])):
            _refuse_null(rows[name], name)
        if not wanted.deduplicate:
            _refuse_doubles(rows, wanted.key)
        return cls(rows, _notes(len(rows)), partition)

    def with_notes(self) -> pa.Table:
        """The rows, each with what a merge must know of it."""
        return self.rows.append_column(CHANGE, self.notes)


def _check(wanted: UpsertRequest, state: TableState) -> None:
    if not wanted.key:
        raise UsageError("An upsert needs a key.", hint="Name the columns that tell rows apart.")
    check_change_names(state.schema)
    check_keys(state.schema, "key", wanted.key, "sequence_by", wanted.sequence_by)


def _refuse_null(column: pa.ChunkedArray, name: str) -> None:
    if column.null_count:
        at = pc.index(pc.is_null(column), True).as_py()
        raise SchemaMismatch(
            f"Record {at} has no {name}: what has no key cannot be found again.",
            expected=f"{name} in every record",
            actual="NULL",
        )


def _refuse_doubles(rows: pa.Table, key: tuple[str, ...]) -> None:
    counted = rows.select(list(key)).group_by(list(key)).aggregate([([], "count_all")])
    if len(counted) < len(rows):
        double = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).to_pylist()[0]
        said = ", ".join(f"{name} = {double[name]}" for name in key)
        raise UsageError(
            f"{double['count_all']} records have the key {said}.",
            hint="Leave all but one out; or let the last one count (deduplicate).",
        )


def _notes(count: int) -> pa.Array:
    """Puts that come after whatever a pipeline has put; among themselves, in their order."""
    said = {"op": pa.scalar(PUT), "partition": pa.scalar(_LAST, pa.int32())}
    columns = [
        pa.array(range(count), item.type)
        if item.name == "offset"
        else pa.repeat(said[item.name].cast(item.type), count)
        if item.name in said
        else pa.nulls(count, item.type)
        for item in CHANGE.type
    ]
    return pa.StructArray.from_arrays(columns, fields=list(CHANGE.type))


class Upsert(UpsertMerge):
    """An upsert by our own hands."""

    def __init__(self, store: Store, wanted: UpsertRequest, state: TableState) -> None:
        said = commit_parameters(
            matched="update", notMatched="insert", key=list(wanted.key), sequence=wanted.sequence_by
        )
        changes = UpsertChanges.of(wanted, state)
        self._partition = changes.partition
        sql = MergeSql(wanted.merging, state.schema.names, DUCKDB, deletes=False)
        super().__init__(store, state, sql, Staged(changes.with_notes(), None, datetime.now(UTC)), said)

    def candidates(self, stands: Sequence[File]) -> Iterator[File]:
        """Only files of the partition that is meant."""
        return super().candidates(within(stands, self._partition, self._state))
