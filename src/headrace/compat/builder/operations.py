"""Operations on a table, built with `with_…` methods, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class UpsertOperation:
    """Upsert of records by key."""

    records: Any = ()
    merge_key: str | tuple[str, ...] = ()
    partition_path: str | None = None
    deduplication: bool = True

    def with_records(self, records: Any) -> Self:
        """Records to upsert."""
        return replace(self, records=records)

    def with_merge_key(self, key: str | Iterable[str]) -> Self:
        """Key columns, which identify a row."""
        return replace(self, merge_key=key if isinstance(key, str) else tuple(key))

    def with_partition_path(self, path: str) -> Self:
        """Partition of all records and their rows: `a=x/b=y`."""
        return replace(self, partition_path=path)

    def with_deduplication(self, enabled: bool) -> Self:
        """Keep the last of several records with the same key; otherwise they are refused."""
        return replace(self, deduplication=enabled)


@dataclass(frozen=True, slots=True)
class DeleteOperation:
    """Delete of the rows that match a condition."""

    condition: str = ""
    partition_path: str | None = None
    hard_delete: bool = True

    def with_condition(self, condition: str) -> Self:
        """SQL condition."""
        return replace(self, condition=condition)

    def with_partition_path(self, path: str) -> Self:
        """Partition to delete in: `a=x/b=y`."""
        return replace(self, partition_path=path)

    def with_hard_delete(self, enabled: bool) -> Self:
        """Delete rows; otherwise they are hidden from queries."""
        return replace(self, hard_delete=enabled)


@dataclass(frozen=True, slots=True)
class BulkInsertOperation:
    """Insert of records."""

    records: Any = ()
    partition_path: str | None = None

    def with_records(self, records: Any) -> Self:
        """Records to insert."""
        return replace(self, records=records)

    def with_partition_path(self, path: str) -> Self:
        """Partition of all records: `a=x/b=y`."""
        return replace(self, partition_path=path)


@dataclass(frozen=True, slots=True)
class TimeTravelQueryOperation:
    """Query of an older version."""

    version: int | None = None
    timestamp: str | datetime | None = None
    filter: str | None = None
    select_fields: tuple[str, ...] = ()

    def with_version(self, version: int) -> Self:
        """Version number to query."""
        return replace(self, version=version)

    def with_timestamp(self, timestamp: str | datetime) -> Self:
        """Timestamp to query: the newest version committed at or before it."""
        return replace(self, timestamp=timestamp)

    def with_filter(self, filter: str) -> Self:
        """SQL condition for rows."""
        return replace(self, filter=filter)

    def with_select_fields(self, fields: str | Iterable[str]) -> Self:
        """Columns to select."""
        return replace(self, select_fields=(fields,) if isinstance(fields, str) else tuple(fields))


@dataclass(frozen=True, slots=True)
class UpsertResult:
    """Result of an upsert."""

    version: int
    inserted_count: int
    updated_count: int

    @property
    def upserted_count(self) -> int:
        """Inserted and updated rows."""
        return self.inserted_count + self.updated_count


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Result of a delete."""

    version: int
    deleted_count: int


@dataclass(frozen=True, slots=True)
class BulkInsertResult:
    """Result of an insert."""

    version: int
    inserted_count: int


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of a query."""

    records: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """Metadata of a table."""

    name: str
    version: int
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table; `num_records` is None if a file has no row count."""

    version: int
    num_records: int | None
    timestamp: datetime | None
    operation: str
    user: str | None


@dataclass(frozen=True, slots=True)
class TableHistory:
    """Versions of a table, newest first."""

    versions: list[TableVersion]


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Size of a table."""

    total_size: int
    file_count: int
    partition_count: int
    record_count: int | None


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """Result of a compaction."""

    version: int
    files_optimized: int
    z_order_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """Result of a vacuum."""

    files_deleted: int


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of a restore; `next` says how to continue the pipelines that write the table, if there are any."""

    version: int  # the new version
    restored_version: int
    next: str


@dataclass(frozen=True, slots=True)
class OperationMetrics:
    """Mean duration of operations since the table was opened, in seconds; None if there was none."""

    upsert_latency: float | None
    query_latency: float | None
    optimize_latency: float | None
