"""The table itself, and the way to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Self

import pyarrow as pa

from headrace.compat.builder.config import DeltaConfig, DeltaSchema
from headrace.compat.builder.operations import (
    BulkInsertOperation,
    BulkInsertResult,
    DeleteOperation,
    DeleteResult,
    OperationMetrics,
    OptimizeResult,
    QueryResult,
    TableHistory,
    TableMetadata,
    TableStatistics,
    TableVersion,
    TimeTravelQueryOperation,
    UpsertOperation,
    UpsertResult,
    VacuumResult,
)
from headrace.compat.builder.placement import arrow, describe_fields, place_records
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import TableState
from headrace.errors import OperationDisabled, UsageError
from headrace.table import Table
from headrace.table.ownership import existing_table
from headrace.table.query import Query
from headrace.table.records import fit_records, partition_of
from headrace.table.schema_changes import schema_of
from headrace.table.upsert import UpsertChanges, UpsertRequest


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """A question about rows, put together step by step."""

    asked: Query

    def filter(self, condition: str) -> Self:
        """Only rows for which this SQL expression is true; several must all be."""
        return replace(self, asked=self.asked.where(condition))

    def select(self, fields: str | Iterable[str]) -> Self:
        """Only these columns."""
        names = (fields,) if isinstance(fields, str) else fields
        return replace(self, asked=self.asked.select(*names))

    def order_by(self, *columns: str) -> Self:
        """In this order; `name desc` for the largest first."""
        return replace(self, asked=self.asked.order_by(*columns))

    def limit(self, rows: int) -> Self:
        """At most so many."""
        return replace(self, asked=self.asked.limit(rows))

    def execute(self) -> QueryResult:
        """The rows."""
        return QueryResult(self.asked.records())


class DeltaTable:
    """One table; made at the first write, from its records, where there is none."""

    def __init__(self, config: DeltaConfig) -> None:
        self.config = config
        self._table = _table(config, None)

    @property
    def name(self) -> str:
        """What people call it; by default its folder's name."""
        return self.config.table_name or self._table.path.rpartition("/")[2]

    def upsert(self, operation: UpsertOperation) -> UpsertResult:
        """Put records in place of the rows with their key, and add the others."""
        self._enabled("upsert")
        rows = self._ready(operation.records, partial(self._check_upsert, operation))
        done = self._table.upsert(
            rows, operation.merge_key, partition=operation.partition_path, deduplicate=operation.deduplication
        )
        return UpsertResult(done.version, done.inserted, done.updated)

    def delete(self, operation: DeleteOperation) -> DeleteResult:
        """Delete rows, or hide them."""
        self._enabled("delete")
        done = self._table.delete(operation.condition, operation.partition_path, operation.hard_delete)
        return DeleteResult(done.version, done.rows)

    def bulk_insert(self, operation: BulkInsertOperation) -> BulkInsertResult:
        """Add records."""
        self._enabled("bulk_insert")
        path = operation.partition_path
        done = self._table.bulk_insert(self._ready(operation.records, partial(_fitted, path)), path)
        return BulkInsertResult(done.version, done.rows)

    def query(self) -> QueryBuilder:
        """A question about its rows."""
        return QueryBuilder(self._table.query())

    def time_travel_query(self, operation: TimeTravelQueryOperation) -> QueryResult:
        """Rows as they were."""
        asked = self._table.query().at(operation.version, operation.timestamp).select(*operation.select_fields)
        return QueryResult((asked.where(operation.filter) if operation.filter else asked).records())

    def update_schema(self, schema: DeltaSchema) -> TableMetadata:
        """Add the fields that the table lacks; one that is there stays, or is widened where the table can do that."""
        if not self._table.exists():
            _table(self.config, schema)
            return self.get_metadata()
        there, wanted = self._table.schema(), {item.name: item for item in schema_of(schema.columns())}
        kept = [_kept(item, wanted.pop(item.name, item)) for item in there]
        whole = pa.schema([*kept, *wanted.values()])
        if whole != there:
            self._table.update_schema(whole)
        return self.get_metadata()

    def get_metadata(self) -> TableMetadata:
        """What it is."""
        found = self._table.metadata()
        return TableMetadata(self.name, found.version, found.schema, found.partition_by, found.properties)

    def get_history(self) -> TableHistory:
        """What was done to it."""
        return TableHistory(
            [
                TableVersion(each.version, each.rows_after, each.timestamp, each.operation, each.user)
                for each in self._table.history()
            ]
        )

    def get_statistics(self) -> TableStatistics:
        """How large it is."""
        found = self._table.statistics()
        return TableStatistics(found.bytes, found.files, found.partitions, found.rows)

    def get_operation_metrics(self) -> OperationMetrics:
        """How long operations took."""
        found = self._table.operation_metrics().since_open
        took = {name: found[name].mean if name in found else None for name in ("upsert", "query", "optimize")}
        return OperationMetrics(took["upsert"], took["query"], took["optimize"])

    def optimize(self, z_order: str | Iterable[str] = ()) -> OptimizeResult:
        """Fewer, larger files."""
        self._enabled("optimize")
        done = self._table.optimize(target_size=self.config.file_size_target, z_order=z_order)
        return OptimizeResult(done.version, done.files_removed, done.z_order)

    def vacuum(self, retention_hours: int | None = None) -> VacuumResult:
        """Delete files that no version of the last hours needs."""
        self._enabled("vacuum")
        hours = self.config.retention_hours if retention_hours is None else retention_hours
        return VacuumResult(len(self._table.vacuum(timedelta(hours=hours)).files))

    def _enabled(self, operation: str) -> None:
        if not getattr(self.config, f"{operation}_enabled"):
            raise OperationDisabled(
                f"{operation} is switched off for {self._table.path}.", hint=f"Set {operation}_enabled to true."
            )

    def _ready(self, records: Any, check: Callable[[pa.Table, TableState], object]) -> pa.Table:
        """The records with their partition columns; a table that grows has their columns then, if it takes them."""
        rules = self.config
        if not self._table.exists():
            rows = place_records(arrow(records, pa.schema([]), grows=True), rules.partitions)
            return rows if rules.allow_nullable else _required(rows)
        state = existing_table(self._table._store)
        rows = place_records(arrow(records, state.schema, rules.grows), rules.partitions)
        new = pa.schema([item.with_nullable(True) for item in rows.schema if item.name not in state.schema.names])
        if rules.grows and len(new):
            check(rows, _grown(state, schema_of(new)))
            self._table.update_schema(add=new)
        return rows

    def _check_upsert(self, operation: UpsertOperation, rows: pa.Table, state: TableState) -> None:
        """Whatever would refuse it."""
        key, path = operation.merge_key, operation.partition_path
        self._table._owners().check_changeable("upsert")
        UpsertChanges.of(
            UpsertRequest(rows, (key,) if isinstance(key, str) else key, None, path, operation.deduplication), state
        )


def _grown(state: TableState, new: pa.Schema) -> TableState:
    """A table as if it had some columns more."""
    return replace(state, metadata=replace(state.metadata, schema_json=to_delta(pa.schema([*state.schema, *new]))))


def _fitted(path: str | None, rows: pa.Table, state: TableState) -> pa.Table:
    return fit_records(rows, state.schema, state.partition_by, partition_of(path, state.schema, state.partition_by))


def _kept(item: pa.Field, wanted: pa.Field) -> pa.Field:
    """A column as it shall be: what is not said to be required is as it was."""
    return wanted if not wanted.nullable else wanted.with_nullable(item.nullable)


def _required(rows: pa.Table) -> pa.Table:
    """Rows of which no value may be NULL."""
    return pa.Table.from_arrays(rows.columns, schema=pa.schema([item.with_nullable(False) for item in rows.schema]))


def _table(config: DeltaConfig, schema: DeltaSchema | None) -> Table:
    """The table of a configuration; without a schema its first records make it, where there is none."""
    if not config.table_path:
        raise UsageError("The configuration has no table_path.", hint="Say where the table is: `with_table_path`.")
    columns = describe_fields(schema_of(schema.columns()), config.partitions) if schema else None
    return Table.get_or_create(config.table_path, columns, config.columns, config.properties, config.storage)


class DeltaLakeConnector:
    """The way to one table."""

    def __init__(self, config: DeltaConfig) -> None:
        self.config = config

    def get_or_create_table(self, schema: DeltaSchema | None = None) -> DeltaTable:
        """The table; made now where a schema is given, else at its first write."""
        if schema is not None:
            _table(self.config, schema)
        return DeltaTable(self.config)

    def get_table(self) -> DeltaTable:
        """The table that is there; TableNotFound where there is none."""
        table = DeltaTable(self.config)
        table.get_metadata()
        return table

    def list_tables(self) -> list[str]:
        """The places of the tables in the folder that this one is in."""
        return Table.list_tables(_table(self.config, None).path.rpartition("/")[0], self.config.storage)

    def delete_table(self) -> None:
        """Drop the table with all its files."""
        table = DeltaTable(self.config)
        table._enabled("delete")
        table._table.drop()
