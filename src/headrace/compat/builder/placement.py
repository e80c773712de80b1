"""Convert records to Arrow, and add derived partition columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.compat.builder.config import TIME
from headrace.delta.schema import storable_field, storable_type
from headrace.spec.partition import PartitionBy
from headrace.spec.types import TIMESTAMP
from headrace.stage.derived_partitions import check_origin, derive, derived_field
from headrace.table.create_drop import columns_of_records
from headrace.table.records import Records, as_table, decode_dictionary, materialize

Partitions = Iterable[str | PartitionBy]
_TIMES = pa.schema([pa.field(TIME, TIMESTAMP)])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # stands for any string when only the type matters


def records_to_arrow(records: Records, table_schema: pa.Schema, grows: bool) -> pa.Table:
    """Convert records to Arrow: dictionaries to the types of the table, strings in `timestamp` to timestamps.

    New fields get the type of their values, and no column if all are NULL. They are refused unless the table grows.
    """
    rows = materialize(records)
    if isinstance(rows, pa.Table):
        names = [item.name for item in rows.schema if item.name in table_schema.names or item.type != pa.null()]
        return _parse_timestamps(rows.select(names), table_schema)
    if not grows:
        return as_table(rows, table_schema)
    schema = pa.schema([*table_schema, *columns_of_records(_new_fields(record, table_schema) for record in rows)])
    known = [{name: value for name, value in record.items() if name in schema.names} for record in rows]
    return as_table(known, schema)


def _new_fields(record: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    fields = {name: value for name, value in record.items() if name not in schema.names}
    return {**fields, TIME: _EPOCH} if isinstance(fields.get(TIME), str) else fields


def _parse_timestamps(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Parse strings in the column `timestamp`, as is done for dictionaries."""
    if TIME not in rows.column_names or (TIME in schema.names and schema.field(TIME).type != TIMESTAMP):
        return rows
    if pa.types.is_null(rows[TIME].type) or storable_type(rows[TIME].type) != pa.string():
        return rows
    times = as_table([{TIME: text} for text in rows[TIME].to_pylist()], _TIMES)
    return _with(rows, _TIMES.field(0), times[TIME])


def add_partition_fields(schema: pa.Schema, partitions: Partitions) -> pa.Schema:
    """Add derived partition columns to a schema."""
    for by in partitions:
        if isinstance(by, PartitionBy) and by.column not in schema.names:
            check_origin(by, schema)
            schema = schema.append(derived_field(by))
    return schema


def add_partition_values(rows: pa.Table, partitions: Partitions) -> pa.Table:
    """Add derived partition columns to rows; a value that a row has already is kept."""
    for by in partitions:
        if isinstance(by, PartitionBy) and by.origin in rows.column_names:
            rows = _with_partition(rows, by)
    return rows


def _with_partition(rows: pa.Table, by: PartitionBy) -> pa.Table:
    item = rows.schema.field(by.column) if by.column in rows.column_names else derived_field(by)
    column = rows[by.column] if by.column in rows.column_names else pa.nulls(len(rows), item.type)
    if not column.null_count or pa.types.is_null(rows[by.origin].type):
        return _with(rows, item, column)
    origin = storable_field(rows.schema.field(by.origin))
    check_origin(by, pa.schema([origin]))
    values = derive(by, decode_dictionary(rows[by.origin]).cast(origin.type, safe=False))
    return _with(rows, item, pc.coalesce(column, values.cast(item.type)))


def _with(rows: pa.Table, item: pa.Field, column: Any) -> pa.Table:
    index = rows.schema.get_field_index(item.name)
    return rows.append_column(item, column) if index < 0 else rows.set_column(index, item, column)
