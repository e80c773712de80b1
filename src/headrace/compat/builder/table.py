"""Tables and connectors of the builder API."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

import pyarrow as pa

from headrace.compat.builder.config import IGNORED, DeltaConfig, DeltaSchema
from headrace.compat.builder.operations import (
    BulkInsertOperation,
    BulkInsertResult,
    DeleteOperation,
    DeleteResult,
    OperationMetrics,
    OptimizeResult,
    QueryResult,
    RestoreResult,
    TableHistory,
    TableMetadata,
    TableStatistics,
    TableVersion,
    TimeTravelQueryOperation,
    UpsertOperation,
    UpsertResult,
    VacuumResult,
)
from headrace.compat.builder.placement import add_partition_fields, add_partition_values, records_to_arrow
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import TableState
from headrace.errors import OperationDisabled, UsageError
from headrace.table import EnabledFeature, Table
from headrace.table.ownership import existing_table
from headrace.table.query import Query
from headrace.table.records import rows_for
from headrace.table.schema_changes import schema_of
from headrace.table.upsert import UpsertChanges, UpsertRequest


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """Query builder; immutable."""

    query: Query

    def filter(self, condition: str) -> Self:
        """Keep rows that match an SQL condition; several are combined with AND."""
        return replace(self, query=self.query.where(condition))

    def select(self, fields: str | Iterable[str]) -> Self:
        """Select columns."""
        names = (fields,) if isinstance(fields, str) else fields
        return replace(self, query=self.query.select(*names))

    def order_by(self, *columns: str) -> Self:
        """Sort by columns; `name desc` sorts in descending order."""
        return replace(self, query=self.query.order_by(*columns))

    def limit(self, rows: int) -> Self:
        """Return at most this number of rows."""
        return replace(self, query=self.query.limit(rows))

    def execute(self) -> QueryResult:
        """Run the query."""
        return QueryResult(self.query.records())


class DeltaTable:
    """A table. If it does not exist, the first write creates it from its records."""

    def __init__(self, config: DeltaConfig) -> None:
        self.config = config
        self._table = _table(config, None)
        for name in config.ignored:
            message = f"{name} applies to the pipeline of a deltalake.toml, not to this table: {IGNORED[name]}."
            warnings.warn(message, UserWarning, stacklevel=3)  # at the caller of the connector

    @property
    def name(self) -> str:
        """Display name; default: the name of its folder."""
        return self.config.table_name or self._table.path.rpartition("/")[2]

    def upsert(self, operation: UpsertOperation) -> UpsertResult:
        """Replace the rows that have the key of a record, and insert the other records."""
        self._check_enabled("upsert")
        rows = self._prepare(operation.records, partial(self._check_upsert, operation))
        result = self._table.upsert(
            rows, operation.merge_key, partition=operation.partition_path, deduplicate=operation.deduplication
        )
        return UpsertResult(result.version, result.inserted, result.updated)

    def delete(self, operation: DeleteOperation) -> DeleteResult:
        """Delete rows, or hide them from queries."""
        self._check_enabled("delete")
        result = self._table.delete(operation.condition, operation.partition_path, operation.hard_delete)
        return DeleteResult(result.version, result.rows)

    def bulk_insert(self, operation: BulkInsertOperation) -> BulkInsertResult:
        """Insert records."""
        self._check_enabled("bulk_insert")
        path = operation.partition_path
        rows = self._prepare(operation.records, lambda rows, state: rows_for(state, rows, path))
        result = self._table.bulk_insert(rows, path)
        return BulkInsertResult(result.version, result.rows)

    def query(self) -> QueryBuilder:
        """Start a query."""
        return QueryBuilder(self._table.query())

    def time_travel_query(self, operation: TimeTravelQueryOperation) -> QueryResult:
        """Query an older version."""
        query = self._table.query().at(operation.version, operation.timestamp).select(*operation.select_fields)
        return QueryResult((query.where(operation.filter) if operation.filter else query).records())

    def update_schema(self, schema: DeltaSchema) -> TableMetadata:
        """Add new fields, and widen existing ones if the table has the feature; other columns stay as they are."""
        if not self._table.exists():
            _table(self.config, schema)
            return self.get_metadata()
        current, fields = self._table.schema(), {item.name: item for item in schema_of(schema.columns())}
        existing = [_with_old_nullability(item, fields.pop(item.name, item)) for item in current]
        target = pa.schema([*existing, *fields.values()])
        if target != current:
            self._table.update_schema(target)
        return self.get_metadata()

    def enable_feature(self, name: str, dry_run: bool = False) -> EnabledFeature:
        """Enable `columnMapping` (rename and drop columns) or `typeWidening` (widen columns). Cannot be undone."""
        return self._table.enable_feature(name, dry_run=dry_run)

    def rename_columns(self, names: Mapping[str, str]) -> TableMetadata:
        """Rename columns, old name to new name; FeatureRequired without `columnMapping`."""
        self._table.update_schema(rename=names)
        return self.get_metadata()

    def drop_columns(self, names: str | Iterable[str]) -> TableMetadata:
        """Drop columns; FeatureRequired without `columnMapping`."""
        self._table.update_schema(drop=names)
        return self.get_metadata()

    def get_metadata(self) -> TableMetadata:
        """Metadata of the newest version."""
        info = self._table.metadata()
        return TableMetadata(self.name, info.version, info.schema, info.partition_by, info.properties)

    def get_history(self) -> TableHistory:
        """Versions, newest first."""
        return TableHistory(
            [
                TableVersion(entry.version, entry.rows_after, entry.timestamp, entry.operation, entry.user)
                for entry in self._table.history()
            ]
        )

    def get_statistics(self) -> TableStatistics:
        """Size of the table."""
        stats = self._table.statistics()
        return TableStatistics(stats.bytes, stats.files, stats.partitions, stats.rows)

    def get_operation_metrics(self) -> OperationMetrics:
        """Mean duration of operations since the table was opened."""
        latencies = self._table.operation_metrics().since_open
        means = (latencies[name].mean if name in latencies else None for name in ("upsert", "query", "optimize"))
        return OperationMetrics(*means)

    def optimize(self, z_order: str | Iterable[str] = ()) -> OptimizeResult:
        """Compact files below `min_file_size`, and split those above `file_size_max`."""
        self._check_enabled("optimize")
        config = self.config
        result = self._table.optimize(
            target_size=config.file_size_target,
            z_order=z_order,
            min_file_size=config.min_file_size,
            max_file_size=config.file_size_max,
        )
        return OptimizeResult(result.version, result.files_removed, result.z_order)

    def vacuum(self, retention_hours: int | None = None) -> VacuumResult:
        """Delete files that no version of the last hours uses."""
        self._check_enabled("vacuum")
        hours = self.config.retention_hours if retention_hours is None else retention_hours
        return VacuumResult(len(self._table.vacuum(timedelta(hours=hours)).files))

    def restore(self, version: int | None = None, timestamp: str | datetime | None = None) -> RestoreResult:
        """Restore the rows of an older version as a new version."""
        result = self._table.restore(version, timestamp)
        return RestoreResult(result.version, result.to, result.next)

    def _check_enabled(self, operation: str) -> None:
        if not getattr(self.config, f"{operation}_enabled"):
            raise OperationDisabled(
                f"{operation} is disabled for {self._table.path}.", hint=f"Set {operation}_enabled to true."
            )

    def _prepare(self, records: Any, check: Callable[[pa.Table, TableState], object]) -> pa.Table:
        """Add partition columns to records. New columns are added to the table if the records pass the check."""
        config = self.config
        if not self._table.exists():
            rows = add_partition_values(records_to_arrow(records, pa.schema([]), grows=True), config.partitions)
            return rows if config.allow_nullable else _required(rows)
        state = existing_table(self._table._store)
        rows = add_partition_values(records_to_arrow(records, state.schema, config.grows), config.partitions)
        new = pa.schema([item.with_nullable(True) for item in rows.schema if item.name not in state.schema.names])
        if config.grows and len(new):
            check(rows, _with_columns(state, schema_of(new)))
            self._table.update_schema(add=new)
        return rows

    def _check_upsert(self, operation: UpsertOperation, rows: pa.Table, state: TableState) -> None:
        """Raise the error that the upsert would raise."""
        key, path = operation.merge_key, operation.partition_path
        self._table._owners().check_changeable("upsert")
        UpsertChanges.of(
            UpsertRequest(rows, (key,) if isinstance(key, str) else key, None, path, operation.deduplication), state
        )


def _with_columns(state: TableState, new: pa.Schema) -> TableState:
    """The state of a table as if it had these columns."""
    return replace(state, metadata=replace(state.metadata, schema_json=to_delta(pa.schema([*state.schema, *new]))))


def _with_old_nullability(old: pa.Field, new: pa.Field) -> pa.Field:
    """A field that is not declared as required keeps its nullability."""
    return new if not new.nullable else new.with_nullable(old.nullable)


def _required(rows: pa.Table) -> pa.Table:
    """Rows with NOT NULL columns."""
    return pa.Table.from_arrays(rows.columns, schema=pa.schema([item.with_nullable(False) for item in rows.schema]))


def _table(config: DeltaConfig, schema: DeltaSchema | None) -> Table:
    """Open the table of a configuration; without a schema, its first records create it."""
    if not config.table_path:
        raise UsageError("The configuration has no table_path.", hint="Set it with `with_table_path`.")
    columns = add_partition_fields(schema_of(schema.columns()), config.partitions) if schema else None
    return Table.get_or_create(config.table_path, columns, config.columns, config.properties, config.storage)


class DeltaLakeConnector:
    """Opens, creates, lists and drops tables."""

    def __init__(self, config: DeltaConfig) -> None:
        self.config = config

    def get_or_create_table(self, schema: DeltaSchema | None = None) -> DeltaTable:
        """Open the table; created now with a schema, else by its first write."""
        if schema is not None:
            _table(self.config, schema)
        return DeltaTable(self.config)

    def get_table(self) -> DeltaTable:
        """Open an existing table; TableNotFound if it does not exist."""
        table = DeltaTable(self.config)
        table.get_metadata()
        return table

    def list_tables(self) -> list[str]:
        """URIs of the tables in the parent folder of this table."""
        return Table.list_tables(_table(self.config, None).path.rpartition("/")[0], self.config.storage)

    def delete_table(self) -> None:
        """Delete the table with all its files."""
        table = DeltaTable(self.config)
        table._check_enabled("delete")
        table._table.drop()
