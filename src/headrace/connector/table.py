"""The table itself, and the way to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pyarrow as pa

from headrace.connector.config import DeltaConfig, DeltaSchema
from headrace.connector.operations import (
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
from headrace.errors import OperationDisabled, SchemaMismatch
from headrace.spec.partition import PartitionBy
from headrace.spec.units import moment
from headrace.table import Table
from headrace.table.alter import Columns
from headrace.table.first import shown
from headrace.table.query import Query
from headrace.tables.derive import derive

Record = Mapping[str, Any]
_TIME = "timestamp"  # the column that `date` and `hour` come from
_DERIVED: dict[str, Callable[[datetime], object]] = {"date": lambda at: at.date(), "hour": lambda at: at.hour}


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """A question about rows, put together step by step."""

    asked: Query

    def filter(self, condition: str) -> Self:
        """Only rows for which this SQL expression is true; several must all be."""
        return replace(self, asked=self.asked.where(condition))

    def select(self, fields: Iterable[str]) -> Self:
        """Only these columns."""
        return replace(self, asked=self.asked.select(*fields))

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
        self._table = Table(config.table_path, config.storage)

    @property
    def name(self) -> str:
        """What people call it; by default its folder's name."""
        return self.config.table_name or self._table.path.rpartition("/")[2]

    def upsert(self, operation: UpsertOperation) -> UpsertResult:
        """Put records in place of the rows with their key, and add the others."""
        self._enabled("upsert")
        records = self._ready(operation.records)
        done = self._table.upsert(
            records, operation.merge_key, partition=operation.partition_path, deduplicate=operation.deduplication
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
        done = self._table.bulk_insert(self._ready(operation.records), operation.partition_path)
        return BulkInsertResult(done.version, done.rows)

    def query(self) -> QueryBuilder:
        """A question about its rows."""
        return QueryBuilder(self._table.query())

    def time_travel_query(self, operation: TimeTravelQueryOperation) -> QueryResult:
        """Rows as they were."""
        asked = self._table.query().at(operation.version, operation.timestamp).select(*operation.select_fields)
        return QueryResult((asked.where(operation.filter) if operation.filter else asked).records())

    def update_schema(self, schema: DeltaSchema) -> TableMetadata:
        """Add the fields that the table lacks."""
        there = set(self._table.schema().names)
        new = {name: kind for name, kind in schema.columns().items() if name not in there}
        if new:
            self._table.update_schema(add=new)
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

    def optimize(self, z_order: Iterable[str] = ()) -> OptimizeResult:
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
                f"{operation} is switched off for {self._table.path}.", next=f"Set {operation}_enabled to true."
            )

    # ---- its first write, and new fields ----

    def _ready(self, records: Any) -> Any:
        """The records with their partition columns, for a table that has their columns."""
        if not isinstance(records, list | tuple):
            return records
        whole = self._bucketed([self._placed(record) for record in records])
        if not self._table.exists():
            self._create(_columns(whole, self.config.allow_nullable))
        elif self.config.auto_evolution and self.config.merge_schema and not self.config.strict_mode:
            there = set(self._table.schema().names)
            if new := [{name: value for name, value in each.items() if name not in there} for each in whole]:
                self._grow(_columns(new, nullable=True))
        return whole

    def _create(self, columns: Columns) -> None:
        self._table = Table.get_or_create(
            self.config.table_path, columns, self.config.columns, self.config.properties, self.config.storage
        )

    def _grow(self, columns: pa.Schema) -> None:
        if len(columns):
            self._table.update_schema(add=columns)

    def _placed(self, record: Record) -> dict[str, Any]:
        made = dict(record)
        for name in self.config.partition_by:
            if name in _DERIVED and name not in made and made.get(_TIME) is not None:
                made[name] = _DERIVED[name](_moment(made[_TIME]))
        return made

    def _bucketed(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """With the buckets that a pipeline would put them in."""
        for name in self.config.partition_by if self.config.partition_strategy == "hash" else ():
            by = PartitionBy(hash=name, buckets=self.config.partition_buckets)
            found = derive(by, pa.array([record.get(name) for record in records])).to_pylist()
            records = [{by.column: bucket, **record} for record, bucket in zip(records, found, strict=True)]
        return records


def _moment(value: str | datetime) -> datetime:
    try:
        return moment(value).astimezone(UTC)
    except ValueError:
        raise SchemaMismatch(
            f"{_TIME} is {value!r}, which tells no date.", expected="a time with its zone", actual=str(value)
        ) from None


def _columns(records: list[dict[str, Any]], nullable: bool) -> pa.Schema:
    """The columns that records show; texts in `timestamp` are times."""
    return shown([_timed(record) for record in records], nullable)


def _timed(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, _TIME: _moment(record[_TIME])} if isinstance(record.get(_TIME), str) else record


class DeltaLakeConnector:
    """The way to one table."""

    def __init__(self, config: DeltaConfig) -> None:
        self.config = config

    def get_or_create_table(self, schema: DeltaSchema | None = None) -> DeltaTable:
        """The table; made now where a schema is given, else at its first write."""
        table = DeltaTable(self.config)
        if schema is not None:
            table._create(schema.columns())
        return table

    def get_table(self) -> DeltaTable:
        """The table that is there; TableNotFound where there is none."""
        table = DeltaTable(self.config)
        table.get_metadata()
        return table

    def list_tables(self) -> list[str]:
        """The places of the tables in the folder that this one is in."""
        path = Table(self.config.table_path, self.config.storage).path
        return Table.list_tables(path.rpartition("/")[0], self.config.storage)

    def delete_table(self) -> None:
        """Drop the table with all its files."""
        Table(self.config.table_path, self.config.storage).drop()
