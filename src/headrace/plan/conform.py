"""Conform rows to the columns of the table, or reject them; last check before staging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Rejects
from headrace.delta.schema import METADATA, SOURCE
from headrace.engine import duck
from headrace.plan.danube_metadata import metadata_of
from headrace.plan.route_schema import RouteSchema
from headrace.reasons import Reason
from headrace.spec.partition import PartitionBy
from headrace.spec.types import same_type, type_name
from headrace.stage.derived_partitions import RECORD_TIME, derive
from headrace.stage.partitions import beyond_store, unstorable
from headrace.transform.sql.column_defaults import default_value
from headrace.transform.sql.constraints import violations


def fit(rows: pa.Table, records: pa.Table, schema: RouteSchema) -> tuple[pa.Table, pa.Int64Array | None, Rejects]:
    """Rows in the schema of the table, their positions (None: all), and rejects."""
    columns: list[pa.ChunkedArray | pa.Array] = []
    rejects = Rejects()
    derived = {by.column: by for by in schema.derived}
    for item in schema.table:
        if item.name in derived:
            column = derive(derived[item.name], _origin(rows, records, schema, derived[item.name]))
        else:
            column = _column(rows, records, item, schema, rejects)
        columns.append(column)
        _check_nulls(column, item, rejects)
        if item.name in schema.partition_by:
            _check_partition(column, item, rejects)
    _check_path(dict(zip(schema.table.names, columns, strict=True)), schema, rejects)
    if not columns:
        rejects.add_all(range(len(records)), Reason.MISSING, "no columns known yet")
    keep = None
    if len(rejects):
        rejects = rejects.firsts().in_order()  # one dead letter per record: the first error in column order
        keep = _kept(len(records), rejects.columns.index)
        columns = [column.take(keep) for column in columns]
    fitted = [_as(column, item) for column, item in zip(columns, schema.table, strict=True)]
    table = pa.Table.from_arrays(fitted, schema=schema.table)
    return _constrained(table, records, schema, keep, rejects) if schema.constraints else (table, keep, rejects)


def broken(table: pa.Table, records: pa.Table, schema: RouteSchema, at: np.ndarray) -> Rejects:
    """Rejects of rows that violate a constraint of the table; `at` has their positions."""
    rejects = Rejects()
    for detail, rows in violations(schema.constraints, table, records):
        rejects.add_all(at[rows], Reason.CONSTRAINT, detail)
    return rejects.firsts().in_order()


def _constrained(
    table: pa.Table, records: pa.Table, schema: RouteSchema, keep: pa.Int64Array | None, rejects: Rejects
) -> tuple[pa.Table, pa.Int64Array | None, Rejects]:
    """Remove rows that violate a constraint of the table."""
    at = np.arange(len(table)) if keep is None else keep.to_numpy()
    violating = broken(table, records if keep is None else records.take(keep), schema, at)
    if not len(violating):
        return table, keep, rejects
    good = ~np.isin(at, violating.columns.index)
    return table.filter(pa.array(good)), pa.array(at[good], pa.int64()), rejects.and_then(violating).in_order()


def _column(
    rows: pa.Table, records: pa.Table, item: pa.Field, schema: RouteSchema, rejects: Rejects
) -> pa.ChunkedArray | pa.Array:
    absent = rows.schema.get_field_index(item.name) < 0  # column_names would be quadratic in the number of columns
    if item.name == SOURCE.name and absent and same_type(item.type, SOURCE.type):
        return source_of(records)
    if item.name == METADATA.name and same_type(item.type, METADATA.type):
        return metadata_of(records, from_danube=schema.from_danube)
    if absent:
        default = default_value(item)
        return pa.nulls(len(records), item.type) if default is None else pa.repeat(default, len(records))
    column = rows.column(item.name)
    if same_type(column.type, item.type):
        return column
    return _converted(column, item, rejects)


def _origin(rows: pa.Table, records: pa.Table, schema: RouteSchema, by: PartitionBy) -> pa.ChunkedArray | pa.Array:
    """Source column of a derived partition column; its own rejects are reported elsewhere."""
    if by.origin == RECORD_TIME and by.origin not in schema.table.names:
        return records["timestamp"]
    return _column(rows, records, schema.table.field(by.origin), schema, Rejects())


def source_of(records: pa.Table) -> pa.StructArray:
    """`_source` column: position of the record of each row."""
    parts = [_flat(records.column(name)) for name in ("topic", "partition", "offset", "timestamp")]
    return pa.StructArray.from_arrays(parts, fields=list(SOURCE.type))


def _flat(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()


def _converted(column: pa.ChunkedArray, item: pa.Field, rejects: Rejects) -> pa.Array:
    """Convert numbers; values that do not survive the round trip are rejected."""
    kind = _sql(item.type)
    there = f"TRY_CAST(v AS {kind})"
    back = f"TRY_CAST({there} AS {_sql(column.type)})"
    answer = duck.query(
        f"SELECT {there} AS w, v IS NULL OR {back} IS NOT DISTINCT FROM v AS ok FROM t",  # noqa: S608
        t=pa.table({"v": column}),
    )
    bad = pc.indices_nonzero(pc.invert(pc.fill_null(answer.column("ok"), False))).to_pylist()
    for position in bad:
        detail = f"{item.name}: {column[position].as_py()!s:.80} does not fit {type_name(item.type)}"
        rejects.add(position, Reason.OVERFLOW, detail)
    return _flat(answer.column("w")).cast(item.type)


def _sql(kind: pa.DataType) -> str:
    names = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INTEGER", "long": "BIGINT"}
    name = type_name(kind)
    return names.get(name, name.upper())


def _check_nulls(column: pa.ChunkedArray | pa.Array, item: pa.Field, rejects: Rejects) -> None:
    if not _requires(item):
        return
    for name, positions in _holes(_flat(column), item, np.arange(len(column)), item.name):
        rejects.add_all(positions, Reason.MISSING, f"{name}: required value is missing")


def _requires(item: pa.Field) -> bool:
    """Whether the field, or a nested one, is required."""
    return not item.nullable or any(_requires(inner) for inner in _inner(item.type))


def _inner(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.item_field]
    if pa.types.is_list(kind):
        return [kind.value_field]
    return list(kind) if pa.types.is_struct(kind) else []


def _holes(values: pa.Array, item: pa.Field, rows: np.ndarray, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Rows in which a required value is NULL, at any depth; fields of NULL structs are not checked."""
    if values.null_count:
        valid = values.is_valid()
        mask = valid.to_numpy(zero_copy_only=False)
        if not item.nullable:
            yield name, rows[~mask]
        values, rows = values.filter(valid), rows[mask]
    kind = item.type
    if pa.types.is_struct(kind):
        for at, inner in enumerate(kind):
            if _requires(inner):
                yield from _holes(values.field(at), inner, rows, f"{name}.{inner.name}")
    elif (pa.types.is_list(kind) or pa.types.is_map(kind)) and _requires(_inner(kind)[0]):
        offsets = values.offsets.to_numpy()
        elements = values.items if pa.types.is_map(kind) else values.values
        within = elements.slice(offsets[0], offsets[-1] - offsets[0])
        yield from _holes(within, _inner(kind)[0], np.repeat(rows, np.diff(offsets)), f"{name}[]")


def _check_partition(column: pa.ChunkedArray | pa.Array, item: pa.Field, rejects: Rejects) -> None:
    at = pc.indices_nonzero(unstorable(item.name, column)).to_numpy()
    rejects.add_all(at, Reason.BAD_PARTITION, f"{item.name}: readers cannot represent this partition value")


def _check_path(columns: Mapping[str, pa.ChunkedArray | pa.Array], schema: RouteSchema, rejects: Rejects) -> None:
    beyond = beyond_store(columns, schema.partition_by, schema.uri) if schema.partition_by else None
    if beyond is not None:
        at = pc.indices_nonzero(beyond).to_numpy()
        names = ", ".join(schema.partition_by)
        rejects.add_all(at, Reason.BAD_PARTITION, f"{names}: partition path is too long for the storage")


def _as(column: pa.ChunkedArray | pa.Array, item: pa.Field) -> pa.ChunkedArray | pa.Array:
    if column.type == item.type and not any(_requires(inner) for inner in _inner(item.type)):
        return column
    values = _flat(column)
    return _solid(values.take(pa.array(np.arange(len(values)))) if values.offset else values, item)


def _solid(values: pa.Array, item: pa.Field) -> pa.Array:
    """Cast values; required fields inside NULL structs get default values, because Parquet cannot store NULL there."""
    kind, gaps = item.type, values.is_null() if item.nullable and values.null_count else None
    if pa.types.is_struct(kind):
        parts = [_solid(values.field(at), inner) for at, inner in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=gaps)
    if pa.types.is_map(kind):
        items = _solid(values.items, kind.item_field)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, type=kind, mask=gaps)
    if pa.types.is_list(kind):
        elements = _solid(values.values, kind.value_field)
        return pa.ListArray.from_arrays(values.offsets, elements, type=kind, mask=gaps)
    values = values if values.type == kind else values.cast(kind)
    return values if item.nullable or not values.null_count else values.fill_null(_empty(kind))


def _empty(kind: pa.DataType) -> pa.Scalar:
    """Default value that Arrow uses inside a NULL struct."""
    return pa.array([None], pa.struct([pa.field("value", kind, nullable=False)])).field(0)[0]


def _kept(length: int, rejected: np.ndarray) -> pa.Int64Array:
    return pa.array(np.delete(np.arange(length), rejected), pa.int64())
