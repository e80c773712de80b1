"""Rows for which a condition is true are deleted or get other values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.actions import File
from headrace.delta.partition_keys import Partition
from headrace.delta.scan import Relation, scan_files
from headrace.delta.snapshot import TableState
from headrace.errors import SchemaMismatch, UsageError
from headrace.spec.types import TIMESTAMP, type_name
from headrace.storage.store import Store
from headrace.table.query import DELETED, RowsInMemory
from headrace.table.records import fit_records, partition_of, scalars
from headrace.table.rewrite import commit_parameters, within
from headrace.transform.sql.expression import columns_in
from headrace.write.row_edit import EditedRows, EditResult, RowEdit

DELETED_AT = "_deleted_at"
SOFT = pa.schema([pa.field(DELETED, pa.bool_()), pa.field(DELETED_AT, TIMESTAMP)])
_AT = "_at_"

# What a column gets: a text is an SQL expression, anything else the value itself.
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a delete did."""

    version: int
    rows: int
    hard: bool = True


@dataclass(frozen=True, slots=True)
class Updated:
    """What an update did."""

    version: int
    rows: int


@dataclass(frozen=True, slots=True)
class Condition:
    """Which rows are meant; without `values` they are to be deleted."""

    where: str
    partition: str | None = None
    values: Values | None = None
    soft: bool = False

    def __post_init__(self) -> None:
        if not self.where or not self.where.strip():
            raise UsageError("Which rows?", hint="Give a condition; `true` means all of them.")
        if self.values is not None and not self.values:
            raise UsageError("Nothing is to be set.", hint="Name columns and what they shall be.")

    @property
    def predicates(self) -> tuple[str, ...]:
        """All that must be true of a row; what is softly deleted already stays as it is."""
        return (self.where, f"{DELETED} is not true") if self.soft else (self.where,)

    def softly(self) -> Condition:
        """The same rows, to be marked as deleted."""
        return replace(self, values={DELETED: True, DELETED_AT: datetime.now(UTC)}, soft=True)


def lacking(state: TableState) -> pa.Schema:
    """The columns that a table needs to delete softly and does not have; SchemaMismatch where one is something else."""
    for item in SOFT:
        if item.name in state.schema.names and state.schema.field(item.name).type != item.type:
            raise SchemaMismatch(
                f"The table's column {item.name} is {type_name(state.schema.field(item.name).type)}: "
                "it does not tell what is deleted.",
                expected=type_name(item.type),
                actual=type_name(state.schema.field(item.name).type),
            )
    return pa.schema([item for item in SOFT if item.name not in state.schema.names])


class ConditionEdit(RowEdit):
    """A delete or an update by our own hands."""

    def __init__(self, store: Store, wanted: Condition, state: TableState) -> None:
        self._store, self._wanted, self._state = store, wanted, state
        self._partition: Partition = partition_of(wanted.partition, state.schema, state.partition_by)
        self.operation = "DELETE" if wanted.values is None else "UPDATE"
        self.parameters = commit_parameters(
            predicate=[wanted.where], partition=wanted.partition, set=sorted(wanted.values or ())
        )
        check_values(wanted.values or {}, state.schema)

    def candidates(self, stands: Sequence[File]) -> Iterator[File]:
        """Files with such a row; most of the others are left out by their partition and their bounds."""
        asked = frozenset().union(*map(columns_in, self._wanted.predicates))
        schema, by = self._state.schema, self._state.partition_by
        self._meant(Relation(schema, schema.empty_table())).count()  # refuses what is no condition, where no file would
        for file in within(stands, self._partition, self._state):
            if self._meant(scan_files(self._store, [file], schema, by, asked)).count():
                yield file

    def edited(self, file: File, start: int, rows: pa.Table) -> EditedRows | None:
        """Those that are meant, and the others."""
        at = rows.append_column(_AT, pa.array(range(len(rows)), pa.int64()))
        found = self._meant(Relation(at.schema, at)).select(_AT).arrow()[_AT]
        if not len(found):
            return None
        stays = np.ones(len(rows), dtype=bool)
        stays[found.to_numpy()] = False
        kept, meant, values = rows.filter(pa.array(stays)), rows.take(found), self._wanted.values
        if values is None:
            return EditedRows(kept, deleted=meant)
        return EditedRows(kept, before=meant, after=changed(self._store, meant, values, self._state))

    def _meant(self, rows: Relation) -> RowsInMemory:
        return RowsInMemory(store=self._store, given=rows, predicates=self._wanted.predicates)

    def counts(self, done: EditResult) -> dict[str, int]:
        """As Spark's DELETE and UPDATE count."""
        told = {"numDeletedRows": done.deleted} if self._wanted.values is None else {"numUpdatedRows": done.updated}
        return {**told, "numCopiedRows": done.copied}


def check_values(values: Values, schema: pa.Schema) -> None:
    """UsageError for a column that there is not."""
    if strange := [name for name in values if name not in schema.names]:
        raise UsageError(f"There is no column '{strange[0]}' to set.", hint=f"The table has {', '.join(schema.names)}.")


def changed(store: Store, rows: pa.Table, values: Values, state: TableState) -> pa.Table:
    """The rows with other values, which must fit their columns as those of records must."""
    spelled = {name: text for name, text in values.items() if isinstance(text, str)}
    given = scalars({name: value for name, value in values.items() if name not in spelled}, state.schema)
    made: dict[str, Any] = {name: pa.repeat(value, len(rows)) for name, value in given.items()}
    if spelled:
        asked = RowsInMemory(store=store, given=Relation(rows.schema, rows)).select(**spelled).arrow()
        made |= {name: _finite(asked[name], spelled[name]) for name in spelled}
    fields = pa.schema([item for item in state.schema if item.name in values])
    fits = fit_records(pa.table(made), fields, tuple(name for name in state.partition_by if name in values))
    columns = [fits[name] if name in values else rows[name] for name in rows.column_names]
    return pa.table(columns, schema=rows.schema)


def _finite(column: pa.ChunkedArray, text: str) -> pa.ChunkedArray:
    """What an expression makes; as in a spec, it is refused where that is no number."""
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
        raise SchemaMismatch(f"{text} is not a finite number for every row.", expected="numbers", actual="inf or NaN")
    return column
