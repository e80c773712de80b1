"""Convert records (dictionaries, Arrow, data frames) to the columns of a table.

Values are never coerced: a string is not a number, a number not a string, and a value that would lose a digit is
refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from itertools import islice
from math import isinf
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.nested import map_items, struct_field
from headrace.delta.partition_keys import Partition
from headrace.delta.partition_values import parse_partition_value
from headrace.delta.schema import KEPT, RECORD_SCHEMA, storable_type
from headrace.delta.snapshot import TableState
from headrace.engine import decimals
from headrace.errors import PartitionNotFound, SchemaMismatch, UsageError
from headrace.plan.conform import fit
from headrace.plan.route_schema import RouteSchema
from headrace.spec.types import type_name
from headrace.spec.units import moment
from headrace.stage.parquet import read_parquet
from headrace.stage.partitions import partition_name, partition_text_of

Records = Any  # dictionaries, an Arrow table, batch or reader, a pandas, polars or Spark DataFrame
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], ...], ...] = (  # a cast to the first type is exact or fails
    _TEXT,
    _BYTES,
    (pa.types.is_integer,),
    (pa.types.is_floating, pa.types.is_integer),
    (pa.types.is_decimal, pa.types.is_integer),
    (pa.types.is_date,),
    (pa.types.is_timestamp,),
)


def fit_records(
    records: Records, schema: pa.Schema, partition_by: tuple[str, ...], partition: Partition = ()
) -> pa.Table:
    """Convert records to rows of the table; SchemaMismatch names the first column and value that does not fit."""
    partition_values = dict(partition)
    rows = as_table(records, schema)
    _refuse_unknown_columns(rows.column_names, schema)
    columns = {name: _exact_cast(rows[name], schema.field(name)) for name in rows.column_names}
    for item in schema:
        if item.name in partition_values:
            columns[item.name] = _partition_column(columns.get(item.name), item, partition_values[item.name], len(rows))
        elif item.name in KEPT and item.name not in columns and item.nullable:
            columns[item.name] = pa.nulls(len(rows), item.type)  # metadata of source records, which these are not
    nobody = pa.table([pa.nulls(len(rows), item.type) for item in RECORD_SCHEMA], schema=RECORD_SCHEMA)
    fitted, _, rejects = fit(pa.table(columns), nobody, RouteSchema("", schema, schema, partition_by))
    if len(rejects):
        raise SchemaMismatch(
            f"Record {rejects.index[0]} does not fit the table: {rejects.detail[0]}.",
            expected=_describe(schema),
            actual=_describe(rows.schema),
        )
    return fitted


def rows_for(state: TableState, records: Records, partition: str | None) -> pa.Table:
    """Convert records to rows of a table in this state, all in one partition if there is one."""
    by = state.partition_by
    return fit_records(records, state.schema, by, partition_of(partition, state.schema, by))


def scalars(values: Mapping[str, Any], schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Convert single values to the types of their columns."""
    row = _from_dictionaries([values], schema) if values else {}
    return {name: row[name][0] for name in values}


def partition_of(text: str | None, schema: pa.Schema, partition_by: tuple[str, ...]) -> Partition:
    """Parse `a=x/b=y`, which may name only the first partition columns; PartitionNotFound for other columns.

    The text is escaped as the folders of a table are: `%2F` is a `/` in a value, and the folder of NULL means NULL.
    """
    if text is None:
        return ()
    try:
        pairs = tuple(partition_name(text))
    except ValueError:
        pairs = ()
    if not pairs or tuple(name for name, _ in pairs) != partition_by[: len(pairs)]:
        syntax = "/".join(f"{name}=…" for name in partition_by)
        hint = f"Specify {syntax}, with / in a value as %2F and % as %25." if syntax else "It has no partitions."
        raise PartitionNotFound(f"Invalid partition: '{text}'.", partition=text, hint=hint)
    return tuple((name, _partition_text(value, schema.field(name), text)) for name, value in pairs)


def _partition_text(value: str | None, item: pa.Field, partition: str) -> str | None:
    try:
        return None if value is None else partition_text_of(item.name, value, item.type)
    except ValueError as error:
        reason = str(error).splitlines()[0][:200]
        raise PartitionNotFound(
            f"Invalid partition: '{partition}': '{value}' does not fit {item.name} ({type_name(item.type)}): {reason}.",
            partition=partition,
        ) from None


def _partition_column(column: Any, item: pa.Field, value: str | None, length: int) -> Any:
    """A column with the value of the partition in all rows; records that contain the column must have that value."""
    values = pa.repeat(parse_partition_value(value, item.type), length)
    if column is not None and pa.chunked_array([values]) != pa.chunked_array(column):
        raise SchemaMismatch(
            f"Not all records have {item.name} = '{value}', as the partition requires.",
            expected=f"{item.name}={value}",
            actual="other values",
        )
    return values


def as_table(records: Records, schema: pa.Schema) -> pa.Table:
    """Convert records to Arrow; dictionaries to the types of the schema."""
    rows = materialize(records)
    return rows if isinstance(rows, pa.Table) else _from_dictionaries(rows, schema)


def materialize(records: Records) -> pa.Table | list[Mapping[str, Any]]:
    """Make records readable more than once: a generator or reader is not, and a Spark plan may return other rows.

    A write reads them again after each conflict. Records in memory are not copied.
    """
    rows = _in_memory(records)
    if isinstance(rows, pa.Table):
        _refuse_duplicate_columns(rows.column_names)
        return rows
    for number, record in enumerate(rows):
        if not isinstance(record, Mapping):
            raise UsageError(
                f"Record {number} is not a dictionary: {record!r:.80}.", hint="Pass records as dictionaries."
            )
    return rows


def _in_memory(records: Records) -> pa.Table | list[Mapping[str, Any]]:
    if isinstance(records, pa.Table | list):
        return records
    if isinstance(records, pa.RecordBatch):
        return pa.Table.from_batches([records])
    if type(records).__module__.partition(".")[0] == "pandas":
        return _from_pandas(records)
    if hasattr(records, "toArrow"):  # Spark, whose Arrow stream has no timestamps
        return records.toArrow()
    if hasattr(records, "__arrow_c_stream__"):  # polars, DuckDB, readers
        return _arrow(lambda: pa.table(records), records)
    if isinstance(records, Mapping | str | bytes) or not isinstance(records, Iterable):
        raise _not_records(records)
    return list(records)


def _from_pandas(frame: Any) -> pa.Table:
    """Convert a pandas frame; a named index becomes a column."""
    if not hasattr(frame, "columns"):
        raise _not_records(frame)
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    columns = frame.reset_index(level=named) if named else frame
    return _arrow(lambda: pa.Table.from_pandas(columns, preserve_index=False), frame)


def _arrow(read: Callable[[], pa.Table], records: Records) -> pa.Table:
    try:
        return read()
    except (ValueError, TypeError) as error:  # errors of Arrow are subclasses
        raise SchemaMismatch(
            f"Cannot convert the {type(records).__name__} to Arrow: {'; '.join(map(str, error.args))[:300]}.",
            expected="columns of one type each, with unique names",
            actual="other columns",
        ) from None


def _not_records(value: Any) -> UsageError:
    return UsageError(
        f"Records cannot be a {type(value).__name__}.",
        hint="Pass a list of dictionaries, or a table of Arrow, pandas, polars or Spark.",
    )


def _refuse_duplicate_columns(names: list[str]) -> None:
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise SchemaMismatch(
            f"The records have the column '{duplicate}' more than once.",
            expected="unique",
            actual=", ".join(names),
        )


def from_json(data: bytes, schema: pa.Schema | None, name: str) -> list[dict[str, Any]]:
    """Parse JSON lines. Numbers keep all digits for columns that store them; without a schema they are doubles."""
    fractions = {item.name: item.type for item in schema or () if _has_fractions(item.type)}
    records = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            fraction = _double if schema is None else _decimal
            record = json.loads(
                line, parse_float=fraction, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys
            )
        except OverflowError as error:
            raise UsageError(f"{name}, line {number}: {error}.") from None
        except ValueError as error:
            raise UsageError(f"{name}, line {number}: invalid JSON: {error}.") from None
        if not isinstance(record, dict):
            raise UsageError(
                f"{name}, line {number}: not a JSON object.", hint="Specify one JSON object per line, or Parquet."
            )
        try:
            records.append({key: _fractions(value, fractions.get(key)) for key, value in record.items()})
        except OverflowError as error:
            raise UsageError(f"{name}, line {number}: {error}.") from None
    return records


def _double(number: str | Decimal) -> float:
    value = float(number)
    if isinf(value):
        raise OverflowError(f"{number!s:.80} does not fit double")
    return value


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # the exponent is larger than that of any Decimal
        raise OverflowError(f"{text:.80} does not fit any type") from None


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key '{next(name for name in names if names.count(name) > 1)}'")
    return record


def _has_fractions(kind: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return bool(pa.types.is_floating(kind) or any(map(_has_fractions, inner)))


def _fractions(value: Any, kind: pa.DataType | None) -> Any:
    """Convert decimals to doubles where the column has doubles, at any depth; other numbers keep their digits."""
    if isinstance(value, Decimal):
        return _double(value) if kind is not None and pa.types.is_floating(kind) else value
    if kind is None or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [_fractions(item, kind.value_type) for item in value] if pa.types.is_list(kind) else value
    if pa.types.is_map(kind):
        return {key: _fractions(item, kind.item_type) for key, item in value.items()}
    kinds = {item.name: item.type for item in kind} if pa.types.is_struct(kind) else {}
    return {key: _fractions(item, kinds.get(key)) for key, item in value.items()}


def from_parquet(data: bytes, name: str) -> pa.Table:
    """Read records from a Parquet file."""
    try:
        return read_parquet(data)
    except pa.ArrowException as error:
        raise UsageError(f"{name} is not a complete Parquet file: {str(error).splitlines()[0]}") from None


def _from_dictionaries(records: list[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    names = list(dict.fromkeys(name for record in records for name in record))
    _refuse_unknown_columns(names, schema)
    columns = {}
    for name in names or schema.names[:1]:  # records without fields are rows of NULL
        item = schema.field(name)
        values = [_value(record.get(name), item.type, name) for record in records]
        try:
            columns[name] = pa.array(values, item.type)
        except (pa.ArrowException, OverflowError) as error:
            raise _misfit(item, values, str(error)) from None
    return pa.table(columns)


def _misfit(item: pa.Field, values: list[Any], reason: str) -> SchemaMismatch:
    kinds = sorted({type(value).__name__ for value in values if value is not None})
    return SchemaMismatch(
        f"A value does not fit column {item.name} ({type_name(item.type)}): {reason.splitlines()[0][:200]}.",
        expected=type_name(item.type),
        actual=", ".join(islice(kinds, 5)),
    )


def _value(value: Any, kind: pa.DataType, path: str) -> Any:
    """Convert a Python value for Arrow. Only timestamps and dates may be strings (RFC 3339), as in JSON."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = {item.name: item for item in kind}
        if not isinstance(value, Mapping) or not value.keys() <= fields.keys():
            raise _wrong_type(value, kind, path)
        return {name: _value(inner, fields[name].type, f"{path}.{name}") for name, inner in value.items()}
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(key, _value(inner, kind.item_type, f"{path}.{key}")) for key, inner in pairs]
    if pa.types.is_list(kind):
        if isinstance(value, str | bytes | Mapping):
            raise _wrong_type(value, kind, path)
        return [_value(inner, kind.value_type, f"{path}[]") for inner in value]
    return _scalar(value, kind, path)


def _scalar(value: Any, kind: pa.DataType, path: str) -> Any:
    if isinstance(value, str) and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return _time(value, kind, path)
    classes: Any = next((allowed for is_kind, allowed in _PYTHON if is_kind(kind)), (object,))
    if isinstance(value, bool) != pa.types.is_boolean(kind) or not isinstance(value, classes):
        raise _wrong_type(value, kind, path)
    if pa.types.is_decimal(kind):
        return _digits(value, kind, path)
    if pa.types.is_float32(kind):
        return _single(value, kind, path)
    if pa.types.is_date(kind) and isinstance(value, datetime):  # Arrow would drop its time of day
        raise _wrong_type(value, kind, path)
    if pa.types.is_timestamp(kind) and (value.tzinfo is None) == (kind.tz is not None):
        raise _wrong_type(value, kind, path)
    return str(value) if isinstance(value, UUID) else value


def _digits(value: int | Decimal, kind: pa.DataType, path: str) -> Decimal:
    """Convert a number to a decimal. Arrow does not detect all numbers that do not fit."""
    number = Decimal(value)
    exact = decimals.exact_decimals(str(number), kind)
    if exact is None:
        raise _out_of_range(number, kind, path)
    return exact


def _single(value: float, kind: pa.DataType, path: str) -> float:
    """Check that a number fits a float; Arrow converts larger ones to infinity."""
    try:
        if not isinstance(value, int):
            struct.pack("<f", value)
    except OverflowError:
        raise _out_of_range(value, kind, path) from None
    return value


_PYTHON: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (pa.types.is_boolean, (bool,)),
    (pa.types.is_integer, (int,)),
    (pa.types.is_floating, (int, float)),
    (pa.types.is_decimal, (int, Decimal)),
    (pa.types.is_string, (str, UUID)),
    (pa.types.is_binary, (bytes, bytearray, memoryview)),
    (pa.types.is_timestamp, (datetime,)),
    (pa.types.is_date, (date,)),
)


def _time(text: str, kind: pa.DataType, path: str) -> date:
    try:
        if pa.types.is_date(kind):
            return date.fromisoformat(text)
        timestamp = moment(text) if kind.tz else datetime.fromisoformat(text)
    except ValueError:
        raise _wrong_type(text, kind, path) from None
    if (timestamp.tzinfo is None) == (kind.tz is not None):
        raise _wrong_type(text, kind, path)
    return timestamp


def _wrong_type(value: Any, kind: pa.DataType, path: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{path}: {value!r:.80} is not of type {type_name(kind)}.",
        expected=type_name(kind),
        actual=type(value).__name__,
    )


def _out_of_range(value: Any, kind: pa.DataType, path: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{path}: {value!s:.80} does not fit {type_name(kind)}.", expected=type_name(kind), actual=type(value).__name__
    )


def _exact_cast(column: pa.ChunkedArray, item: pa.Field) -> pa.ChunkedArray:
    """Cast an Arrow column to the type of the table; SchemaMismatch if a value would change."""
    if not _related(column.type, item.type):
        raise SchemaMismatch(
            f"Column {item.name} is {type_name(item.type)} in the table, but {column.type} in the records.",
            expected=type_name(item.type),
            actual=str(column.type),
        )
    if column.type == item.type:
        return column
    values = decode_dictionary(column)
    for chunk in values.chunks:
        _refuse_changes(chunk, item.type, item.name)
    try:
        if pa.types.is_decimal(item.type) and pa.types.is_integer(values.type):
            return pa.chunked_array([decimals.from_integers(chunk, item.type) for chunk in values.chunks], item.type)
        return values.cast(item.type)
    except pa.ArrowException as error:
        raise _misfit(item, [], str(error)) from None


def _refuse_changes(values: pa.Array, kind: pa.DataType, path: str) -> None:
    """SchemaMismatch if a cast of Arrow would change a value without an error, at any depth."""
    if values.type == kind or pa.types.is_null(values.type):
        return
    if pa.types.is_struct(kind):
        for item in values.type:
            _refuse_changes(struct_field(values, item.name), kind.field(item.name).type, f"{path}.{item.name}")
    elif pa.types.is_list(kind):
        _refuse_changes(values.flatten(), kind.value_type, f"{path}[]")
    elif pa.types.is_map(kind):
        _refuse_changes(map_items(values)[0], kind.item_type, f"{path}.*")
    elif (exact := _exact_numbers(values, kind)) is not None and exact.null_count > values.null_count:
        lost = pc.and_(exact.is_null(), values.is_valid())
        raise _out_of_range(values.filter(lost)[0].as_py(), kind, path)


def _exact_numbers(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Numbers in another type, NULL for those that do not fit; None if the cast of Arrow detects them itself."""
    if pa.types.is_decimal(kind) and pa.types.is_integer(values.type):
        return decimals.from_integers(values, kind)
    if pa.types.is_decimal(kind):
        return decimals.rescaled(values, kind)
    if pa.types.is_floating(values.type) and pa.types.is_float32(kind):
        singles = values.cast(kind, safe=False)
        return pc.if_else(pc.and_(pc.is_inf(singles), pc.invert(pc.is_inf(values))), pa.scalar(None, kind), singles)
    return None


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode a dictionary-encoded column; a cast of Arrow cannot decode string views."""
    if not pa.types.is_dictionary(column.type):
        return column
    kind = storable_type(column.type)
    return pa.chunked_array([chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks], kind)


def _related(one: pa.DataType, two: pa.DataType) -> bool:
    """Whether values of one type are values of the other, except those for which the cast of Arrow fails."""
    if one == two or pa.types.is_null(one):
        return True
    if pa.types.is_dictionary(one):
        return _related(one.value_type, two)
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(two):
        return (one.tz is None) == (two.tz is None)
    if pa.types.is_struct(one) and pa.types.is_struct(two):
        inner = {item.name: item.type for item in two}
        return all(item.name in inner and _related(item.type, inner[item.name]) for item in one)
    if _is_list(one) and pa.types.is_list(two):
        return _related(one.value_type, two.value_type)
    if pa.types.is_map(one) and pa.types.is_map(two):
        return _related(one.key_type, two.key_type) and _related(one.item_type, two.item_type)
    return any(any(kind(one) for kind in family) and family[0](two) for family in _FAMILIES)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _refuse_unknown_columns(names: Iterable[str], schema: pa.Schema) -> None:
    if unknown := [name for name in names if name not in schema.names]:
        raise SchemaMismatch(
            f"The table has no column '{unknown[0]}'.",
            expected=_describe(schema),
            actual=", ".join(names),
            hint="Add it with `update_schema`, or omit it from the records.",
        )


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{item.name} {item.type}" for item in schema)
