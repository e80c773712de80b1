"""Create and drop tables."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.delta.actions import MetadataAction, Protocol
from headrace.delta.evolution import check_fits
from headrace.delta.log import LOG
from headrace.delta.log_writer import LogWriter
from headrace.delta.properties import check_properties
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import TableState
from headrace.errors import DirectCommitBlocked, FeatureRequired, SchemaMismatch, TableChanged, UsageError
from headrace.stage.partitions import check_partitioning
from headrace.storage.base import ObjectMeta
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners
from headrace.table.records import Records, materialize
from headrace.table.schema_changes import Columns, describe_schema, feature_hint, property_texts, schema_of

CheckRecords = Callable[[Records, TableState], object]  # raises an error for rows that the table would reject


def create(store: Store, columns: Columns, partition_by: Iterable[str], properties: Mapping[str, str]) -> bool:
    """Create an empty table; False if it exists. An existing table must have these columns and this partitioning."""
    started = time.monotonic()
    schema, by = schema_of(columns), tuple(partition_by)
    if not len(schema):
        raise UsageError(
            "A table requires at least one column.",
            hint="Specify columns, or omit the schema to infer it from the first insert.",
        )
    check_partitioning(schema, by)
    check_properties(properties)
    log_writer = LogWriter.open(store)
    table_id = str(uuid.uuid4())
    try:
        receipt = log_writer.create(
            to_delta(schema), by, property_texts(properties), table_id, (), {}, {}, began=started
        )
    except DirectCommitBlocked as blocked:
        raise FeatureRequired(
            blocked.message,
            hint=feature_hint(properties, "Create the table without it")
            or "Omit it; or create the table with Spark, and write it with Spark only.",
        ) from None
    if receipt is None:
        _check_same(store, schema, by, log_writer.current_state())
    return receipt is not None


def _check_same(store: Store, schema: pa.Schema, by: tuple[str, ...], state: TableState) -> None:
    expected, actual = describe_schema(schema, by), describe_schema(state.schema, state.partition_by)
    try:
        check_fits(to_delta(schema), state)
    except TableChanged as difference:
        raise SchemaMismatch(
            f"{store.uri} already exists. {difference.message}", expected=expected, actual=actual
        ) from None
    if by != state.partition_by:
        raise SchemaMismatch(
            f"{store.uri} already exists, partitioned by {list(state.partition_by)}, not {list(by)}.",
            expected=expected,
            actual=actual,
        )


@dataclass(frozen=True, slots=True)
class FirstWrite:
    """Settings of a table that its first records create."""

    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def create(self, store: Store, records: Records, partition: str | None, check: CheckRecords) -> Records:
        """Create the table if its first records pass the check; returns them without columns that are all NULL."""
        rows = materialize(records)
        schema = schema_of(_typed(rows.schema)) if isinstance(rows, pa.Table) else columns_of_records(rows)
        if not len(schema):
            raise UsageError(
                "Cannot infer the columns of the table: no record has a value.",
                hint="Specify a schema, or insert records with values.",
            )
        only_in_path = [name for name in self.partition_by if partition is not None and name not in schema.names]
        table_schema = pa.schema([*schema, *(pa.field(name, pa.string()) for name in only_in_path)])
        check_partitioning(table_schema, self.partition_by)
        rows = _select(rows, schema.names)
        check(rows, TableState(0, MetadataAction("", to_delta(table_schema), self.partition_by, {}), Protocol()))
        create(store, table_schema, self.partition_by, self.properties)
        return rows


def _select(rows: pa.Table | list[Mapping[str, Any]], names: list[str]) -> Records:
    if isinstance(rows, pa.Table):
        return rows.select(names)
    return [{name: value for name, value in record.items() if name in names} for record in rows]


def columns_of_records(records: Iterable[Mapping[str, Any]], nullable: bool = True) -> pa.Schema:
    """Infer the columns of dictionaries. A field that is NULL in all of them gets no column."""
    rows = list(records)
    names = dict.fromkeys(name for row in rows for name in row)
    if invalid := [name for name in names if not isinstance(name, str)]:
        raise UsageError(f"Invalid column name: {invalid[0]!r}.", hint="Column names are strings.")
    try:  # Column by column: `pa.Table.from_pylist` takes the fields of the first record only.
        schema = pa.schema([pa.field(name, pa.array([row.get(name) for row in rows]).type) for name in names])
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaMismatch(
            f"The records have different types for one field: {str(error).splitlines()[0]}",
            expected="one type per field",
            actual="several types",
        ) from None
    return schema_of(pa.schema([item.with_nullable(nullable) for item in _typed(schema)]))


def _typed(schema: pa.Schema) -> pa.Schema:
    """The columns that have a type: one without any value has none."""
    return pa.schema([item for item in schema if not pa.types.is_null(item.type)])


def drop(store: Store, owners: TableOwners) -> int:
    """Delete all files of the table and its log, whoever writes it; returns the number of files."""
    with owners.exclusive("drop"):
        files = list(store.list())
        check_not_nested(store, files)
        store.delete(log_last(item.path for item in files))
    return len(files)


def check_not_nested(store: Store, files: Iterable[ObjectMeta]) -> None:
    """UsageError if the folder of a table contains another table, or the state of a pipeline."""
    paths = [item.path for item in files]
    nested = [path.partition(f"/{LOG}/")[0] for path in paths if f"/{LOG}/" in path]
    nested = nested or [path for path in paths if path.startswith("_headrace/")]
    if nested:
        raise UsageError(
            f"The directory of {store.uri} contains more than this table: {min(nested)}.",
            hint="Move it to another directory first.",
        )


def log_last(paths: Iterable[str]) -> list[str]:
    """Order of deletion. With the log last, an interrupted drop leaves a table that can be dropped again."""
    return sorted(paths, key=lambda path: path.startswith(f"{LOG}/"))
