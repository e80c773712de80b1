"""Records in the columns that a table has or gets: as Arrow, with the partition columns that are made from others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.compat.builder.config import TIME
from headrace.delta.schema import held_as, held_field
from headrace.spec.partition import PartitionBy
from headrace.spec.types import TIMESTAMP
from headrace.stage.derived_partitions import check_origin, derive, derived_field
from headrace.table.create_drop import columns_of_records
from headrace.table.records import Records, as_table, decode_dictionary, materialize

Partitions = Iterable[str | PartitionBy]
_TIMES = pa.schema([pa.field(TIME, TIMESTAMP)])
_A_TIME = datetime(1970, 1, 1, tzinfo=UTC)  # stands for any text where only its type counts


def arrow(records: Records, there: pa.Schema, grows: bool) -> pa.Table:
    """Records as Arrow: those that are dictionaries in a table's types, texts in `timestamp` as times.

    Fields that the table lacks are of the types they show, and none where all are NULL; refused unless it grows.
    """
    held = materialize(records)
    if isinstance(held, pa.Table):
        return _timed(_told(held, there), there)
    new = columns_of_records(_unknown(record, there) for record in held) if grows else ()
    schema = pa.schema([*there, *new])
    return as_table([_known(record, schema) for record in held] if grows else held, schema)


def _unknown(record: Mapping[str, Any], there: pa.Schema) -> dict[str, Any]:
    found = {name: value for name, value in record.items() if name not in there.names}
    return {**found, TIME: _A_TIME} if isinstance(found.get(TIME), str) else found


def _known(record: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name in schema.names}


def _told(rows: pa.Table, there: pa.Schema) -> pa.Table:
    return rows.select(
        [item.name for item in rows.schema if item.name in there.names or not pa.types.is_null(item.type)]
    )


def _timed(rows: pa.Table, there: pa.Schema) -> pa.Table:
    """Texts in a table's `timestamp` as times, as those in dictionaries are."""
    if TIME not in rows.column_names or (TIME in there.names and there.field(TIME).type != TIMESTAMP):
        return rows
    if pa.types.is_null(rows[TIME].type) or held_as(rows[TIME].type) != pa.string():
        return rows
    times = as_table([{TIME: text} for text in rows[TIME].to_pylist()], _TIMES)
    return _with(rows, _TIMES.field(0), times[TIME])


def describe_fields(schema: pa.Schema, partitions: Partitions) -> pa.Schema:
    """Columns with the partition columns that are made from them."""
    for by in partitions:
        if isinstance(by, PartitionBy) and by.column not in schema.names:
            check_origin(by, schema)
            schema = schema.append(derived_field(by))
    return schema


def place_records(rows: pa.Table, partitions: Partitions) -> pa.Table:
    """Rows with the partition columns that are made from others, where they do not say them themselves."""
    for by in partitions:
        if isinstance(by, PartitionBy) and by.origin in rows.column_names:
            rows = _made(rows, by)
    return rows


def _made(rows: pa.Table, by: PartitionBy) -> pa.Table:
    item = rows.schema.field(by.column) if by.column in rows.column_names else derived_field(by)
    said = rows[by.column] if by.column in rows.column_names else pa.nulls(len(rows), item.type)
    if not said.null_count or pa.types.is_null(rows[by.origin].type):
        return _with(rows, item, said)
    origin = held_field(rows.schema.field(by.origin))
    check_origin(by, pa.schema([origin]))
    values = derive(by, decode_dictionary(rows[by.origin]).cast(origin.type, safe=False))
    return _with(rows, item, pc.coalesce(said, values.cast(item.type)))


def _with(rows: pa.Table, item: pa.Field, column: Any) -> pa.Table:
    at = rows.schema.get_field_index(item.name)
    return rows.append_column(item, column) if at < 0 else rows.set_column(at, item, column)
