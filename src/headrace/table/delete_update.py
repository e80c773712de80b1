"""Delete or update the rows that match a condition, with direct commits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.actions import File
from headrace.delta.partition_keys import Partition, PartitionKeys
from headrace.delta.scan import Relation, scan_files
from headrace.delta.snapshot import TableState
from headrace.errors import SchemaMismatch, UsageError
from headrace.spec.types import TIMESTAMP, type_name
from headrace.storage.store import Store
from headrace.table.query import DELETED, RowsInMemory
from headrace.table.records import fit_records, partition_of, scalars
from headrace.transform.sql.expression import columns_in
from headrace.write.row_edit import EditedRows, EditResult, RowEdit

DELETED_AT = "_deleted_at"
SOFT_DELETE = pa.schema([pa.field(DELETED, pa.bool_()), pa.field(DELETED_AT, TIMESTAMP)])
_NUMBER = "_number_"

# New values by column: a string is an SQL expression, any other value is used as it is.
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deleted:
    """Result of a delete."""

    version: int
    rows: int
    hard: bool = True


@dataclass(frozen=True, slots=True)
class Updated:
    """Result of an update."""

    version: int
    rows: int


@dataclass(frozen=True, slots=True)
class Condition:
    """Rows to update, or to delete if there are no `values`."""

    where: str
    partition: str | None = None
    values: Values | None = None
    soft: bool = False

    def __post_init__(self) -> None:
        if not self.where or not self.where.strip():
            raise UsageError("A condition is required.", hint="Use `true` to match all rows.")
        if self.values is not None and not self.values:
            raise UsageError("An update requires columns to set.", hint="Specify columns with their new values.")

    @property
    def predicates(self) -> tuple[str, ...]:
        """SQL conditions that a row must match. A second soft delete skips rows that are deleted already."""
        return (self.where, f"{DELETED} is not true") if self.soft else (self.where,)

    def soft_delete(self) -> Condition:
        """An update that hides the same rows."""
        return replace(self, values={DELETED: True, DELETED_AT: datetime.now(UTC)}, soft=True)


def missing_soft_delete_columns(state: TableState) -> pa.Schema:
    """The columns that a table lacks for soft deletes; SchemaMismatch if one exists with another type."""
    for item in SOFT_DELETE:
        if item.name in state.schema.names and state.schema.field(item.name).type != item.type:
            actual = type_name(state.schema.field(item.name).type)
            raise SchemaMismatch(
                f"Cannot use column {item.name} for soft deletes: its type is {actual}.",
                expected=type_name(item.type),
                actual=actual,
            )
    return pa.schema([item for item in SOFT_DELETE if item.name not in state.schema.names])


class ConditionEdit(RowEdit):
    """A delete or update in this process."""

    def __init__(self, store: Store, condition: Condition, state: TableState) -> None:
        self._store, self._condition, self._state = store, condition, state
        self._partition: Partition = partition_of(condition.partition, state.schema, state.partition_by)
        self.operation = "DELETE" if condition.values is None else "UPDATE"
        self.parameters = operation_parameters(
            predicate=[condition.where], partition=condition.partition, set=sorted(condition.values or ())
        )
        check_values(condition.values or {}, state.schema)

    def candidates(self, files: Sequence[File]) -> Iterator[File]:
        """Files with matching rows. Most others are skipped by their partition and their bounds."""
        filtered = frozenset().union(*map(columns_in, self._condition.predicates))
        schema, by = self._state.schema, self._state.partition_by
        self._matches(Relation(schema, schema.empty_table())).count()  # an invalid condition fails without files, too
        for file in files_in_partition(files, self._partition, self._state):
            if self._matches(scan_files(self._store, [file], schema, by, filtered)).count():
                yield file

    def edited(self, file: File, start: int, rows: pa.Table) -> EditedRows | None:
        """Delete or update the matching rows."""
        numbered = rows.append_column(_NUMBER, pa.array(range(len(rows)), pa.int64()))
        numbers = self._matches(Relation(numbered.schema, numbered)).select(_NUMBER).arrow()[_NUMBER]
        if not len(numbers):
            return None
        stays = np.ones(len(rows), dtype=bool)
        stays[numbers.to_numpy()] = False
        kept, matches, values = rows.filter(pa.array(stays)), rows.take(numbers), self._condition.values
        if values is None:
            return EditedRows(kept, deleted=matches)
        return EditedRows(kept, before=matches, after=set_values(self._store, matches, values, self._state))

    def _matches(self, rows: Relation) -> RowsInMemory:
        return RowsInMemory(store=self._store, rows=rows, predicates=self._condition.predicates)

    def counts(self, result: EditResult) -> dict[str, int]:
        """Metrics of Spark's DELETE and UPDATE."""
        if self._condition.values is None:
            return {"numDeletedRows": result.deleted, "numCopiedRows": result.copied}
        return {"numUpdatedRows": result.updated, "numCopiedRows": result.copied}


def check_values(values: Values, schema: pa.Schema) -> None:
    """UsageError for a column that the table does not have."""
    if unknown := [name for name in values if name not in schema.names]:
        raise UsageError(
            f"Cannot set column '{unknown[0]}': it does not exist.", hint=f"Columns: {', '.join(schema.names)}."
        )


def set_values(store: Store, rows: pa.Table, values: Values, state: TableState) -> pa.Table:
    """Set columns of rows. The values must fit their columns, as those of inserted records must."""
    expressions = {name: text for name, text in values.items() if isinstance(text, str)}
    literals = scalars({name: value for name, value in values.items() if name not in expressions}, state.schema)
    columns: dict[str, Any] = {name: pa.repeat(value, len(rows)) for name, value in literals.items()}
    if expressions:
        results = RowsInMemory(store=store, rows=Relation(rows.schema, rows)).select(**expressions).arrow()
        columns |= {name: _check_finite(results[name], text) for name, text in expressions.items()}
    fields = pa.schema([item for item in state.schema if item.name in values])
    fitted = fit_records(pa.table(columns), fields, tuple(name for name in state.partition_by if name in values))
    return pa.table([fitted[name] if name in values else rows[name] for name in rows.column_names], schema=rows.schema)


def _check_finite(column: pa.ChunkedArray, expression: str) -> pa.ChunkedArray:
    """Refuse infinity and NaN as the result of an expression, as in a spec."""
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
        raise SchemaMismatch(
            f"{expression} is not a finite number for every row.", expected="finite numbers", actual="infinity or NaN"
        )
    return column


def files_in_partition(files: Iterable[File], partition: Partition, state: TableState) -> list[File]:
    """The files of a partition, which may name only the first partition columns; all files for an empty one."""
    key = PartitionKeys.of(state.schema, [name for name, _ in partition])
    return [file for file in files if key(file.partition) == partition]


def operation_parameters(**parameters: object) -> dict[str, str]:
    """operationParameters of a commit: strings, others as JSON; empty ones are left out."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items() if value}
