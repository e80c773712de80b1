"""Operations on a table, put together with `with_…`, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class UpsertOperation:
    """Records by their key."""

    records: Any = ()
    merge_key: str | tuple[str, ...] = ()
    partition_path: str | None = None
    deduplication: bool = True

    def with_records(self, records: Any) -> Self:
        """What is to be in the table."""
        return replace(self, records=records)

    def with_merge_key(self, key: str | Iterable[str]) -> Self:
        """The column that tells rows apart, or several."""
        return replace(self, merge_key=key if isinstance(key, str) else tuple(key))

    def with_partition_path(self, path: str) -> Self:
        """Where all of them are: `a=x/b=y`."""
        return replace(self, partition_path=path)

    def with_deduplication(self, enabled: bool) -> Self:
        """Whether of records with one key the last counts; else they are refused."""
        return replace(self, deduplication=enabled)


@dataclass(frozen=True, slots=True)
class DeleteOperation:
    """Rows for which a condition is true."""

    condition: str = ""
    partition_path: str | None = None
    hard_delete: bool = True

    def with_condition(self, condition: str) -> Self:
        """An SQL expression."""
        return replace(self, condition=condition)

    def with_partition_path(self, path: str) -> Self:
        """Only in there: `a=x/b=y`."""
        return replace(self, partition_path=path)

    def with_hard_delete(self, enabled: bool) -> Self:
        """For good; else they are hidden."""
        return replace(self, hard_delete=enabled)


@dataclass(frozen=True, slots=True)
class BulkInsertOperation:
    """Records that are new."""

    records: Any = ()
    partition_path: str | None = None

    def with_records(self, records: Any) -> Self:
        """What is added."""
        return replace(self, records=records)

    def with_partition_path(self, path: str) -> Self:
        """Where all of them belong: `a=x/b=y`."""
        return replace(self, partition_path=path)


@dataclass(frozen=True, slots=True)
class TimeTravelQueryOperation:
    """Rows as they were."""

    version: int | None = None
    timestamp: str | datetime | None = None
    filter: str | None = None
    select_fields: tuple[str, ...] = ()

    def with_version(self, version: int) -> Self:
        """In the version of this number."""
        return replace(self, version=version)

    def with_timestamp(self, timestamp: str | datetime) -> Self:
        """At this moment."""
        return replace(self, timestamp=timestamp)

    def with_filter(self, filter: str) -> Self:
        """Only those for which this SQL expression is true."""
        return replace(self, filter=filter)

    def with_select_fields(self, fields: str | Iterable[str]) -> Self:
        """Only these columns."""
        return replace(self, select_fields=(fields,) if isinstance(fields, str) else tuple(fields))


@dataclass(frozen=True, slots=True)
class UpsertResult:
    """What an upsert did."""

    version: int
    inserted_count: int
    updated_count: int

    @property
    def upserted_count(self) -> int:
        """Both."""
        return self.inserted_count + self.updated_count


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """What a delete did."""

    version: int
    deleted_count: int


@dataclass(frozen=True, slots=True)
class BulkInsertResult:
    """What an insert did."""

    version: int
    inserted_count: int


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows."""

    records: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """What a table is."""

    name: str
    version: int
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table; `num_records` is None where its files do not tell."""

    version: int
    num_records: int | None
    timestamp: datetime | None
    operation: str
    user: str | None


@dataclass(frozen=True, slots=True)
class TableHistory:
    """What was done to a table, newest first."""

    versions: list[TableVersion]


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """How large a table is."""

    total_size: int
    file_count: int
    partition_count: int
    record_count: int | None


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """What a compaction did."""

    version: int
    files_optimized: int
    z_order_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """What a vacuum did."""

    files_deleted: int


@dataclass(frozen=True, slots=True)
class OperationMetrics:
    """Seconds that operations took since the table was opened, on average; None where there was none."""

    upsert_latency: float | None
    query_latency: float | None
    optimize_latency: float | None
