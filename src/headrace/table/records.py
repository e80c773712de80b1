"""Records as people have them (dictionaries, Arrow, data frames) in exactly the columns of a table, or a refusal.

Nothing is guessed: a text is no number, a number no text, and what would lose a digit is refused.
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
from headrace.delta.schema import ENVELOPE, KEPT, held_as
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
_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], ...], ...] = (  # within one, a cast changes no value or fails
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
    """The records as rows of the table; SchemaMismatch names the first column and value that does not fit."""
    given = dict(partition)
    rows = as_table(records, schema)
    _refuse_strangers(rows.column_names, schema)
    columns = {name: _same(rows[name], schema.field(name)) for name in rows.column_names}
    for item in schema:
        if item.name in given:
            columns[item.name] = _placed(columns.get(item.name), item, given[item.name], len(rows))
        elif item.name in KEPT and item.name not in columns and item.nullable:
            columns[item.name] = pa.nulls(len(rows), item.type)  # no record of a source: nothing to say there
    nobody = pa.table([pa.nulls(len(rows), item.type) for item in ENVELOPE], schema=ENVELOPE)
    made, _, rejects = fit(pa.table(columns), nobody, RouteSchema("", schema, schema, partition_by))
    if rejects.index:
        raise SchemaMismatch(
            f"Record {rejects.index[0]} does not fit the table: {rejects.detail[0]}.",
            expected=_spelled(schema),
            actual=_spelled(rows.schema),
        )
    return made


def rows_for(state: TableState, records: Records, partition: str | None) -> pa.Table:
    """The records as rows of a table as it is, all of them in the partition that is given."""
    by = state.partition_by
    return fit_records(records, state.schema, by, partition_of(partition, state.schema, by))


def scalars(values: Mapping[str, Any], schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Single values in the types of their columns."""
    row = _from_dictionaries([values], schema) if values else {}
    return {name: row[name][0] for name in values}


def partition_of(text: str | None, schema: pa.Schema, partition_by: tuple[str, ...]) -> Partition:
    """`a=x/b=y` as a partition of the table, or the first of its columns; PartitionNotFound where it names others.

    It is written as its folders are: `%2F` is a `/` inside a value, and the folder of NULL means NULL.
    """
    if text is None:
        return ()
    try:
        pairs = tuple(partition_name(text))
    except ValueError:
        pairs = ()
    if not pairs or tuple(name for name, _ in pairs) != partition_by[: len(pairs)]:
        written = "/".join(f"{name}=…" for name in partition_by)
        advice = f"It is written as {written}, a / inside a value as %2F, a % as %25." if written else "It has none."
        raise PartitionNotFound(f"'{text}' names no partition of the table.", partition=text, hint=advice)
    return tuple((name, _spelled_value(value, schema.field(name), text)) for name, value in pairs)


def _spelled_value(value: str | None, item: pa.Field, partition: str) -> str | None:
    try:
        return None if value is None else partition_text_of(item.name, value, item.type)
    except ValueError as error:
        kind = type_name(item.type)
        raise PartitionNotFound(
            f"'{partition}': '{value}' is no {kind} that {item.name} can have: {str(error).splitlines()[0][:200]}.",
            partition=partition,
        ) from None


def _placed(column: Any, item: pa.Field, value: str | None, length: int) -> Any:
    """A partition column: of the value given for all rows, which those that say one must have."""
    wanted = pa.repeat(parse_partition_value(value, item.type), length)
    if column is not None and pa.chunked_array([wanted]) != pa.chunked_array(column):
        raise SchemaMismatch(
            f"Not all records have {item.name} = '{value}', the partition they are for.",
            expected=f"{item.name}={value}",
            actual="other values",
        )
    return wanted


def as_table(records: Records, schema: pa.Schema) -> pa.Table:
    """The records as Arrow; dictionaries in the types of the schema."""
    held = at_hand(records)
    return held if isinstance(held, pa.Table) else _from_dictionaries(held, schema)


def at_hand(records: Records) -> pa.Table | list[Mapping[str, Any]]:
    """The records so that they can be read again, which a generator, a reader or a Spark plan cannot, or not alike.

    A write that others come before reads them once more. What is in memory already is not copied.
    """
    held = _held(records)
    if isinstance(held, pa.Table):
        _refuse_doubles(held.column_names)
    else:
        _refuse_others(held)
    return held


def _held(records: Records) -> pa.Table | list[Mapping[str, Any]]:
    if isinstance(records, pa.Table | list):
        return records
    if isinstance(records, pa.RecordBatch):
        return pa.Table.from_batches([records])
    if type(records).__module__.partition(".")[0] == "pandas":
        return _from_pandas(records)
    if hasattr(records, "toArrow"):  # Spark, whose stream knows no timestamps
        return records.toArrow()
    if hasattr(records, "__arrow_c_stream__"):  # polars, DuckDB, readers
        return _arrow(lambda: pa.table(records), records)
    if isinstance(records, Mapping | str | bytes) or not isinstance(records, Iterable):
        raise _no_records(records)
    return list(records)


def _from_pandas(frame: Any) -> pa.Table:
    """A pandas frame; an index that has a name is a column of it."""
    if not hasattr(frame, "columns"):
        raise _no_records(frame)
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    whole = frame.reset_index(level=named) if named else frame
    return _arrow(lambda: pa.Table.from_pandas(whole, preserve_index=False), frame)


def _arrow(read: Callable[[], pa.Table], records: Records) -> pa.Table:
    try:
        return read()
    except (ValueError, TypeError) as error:  # Arrow's own are among them
        raise SchemaMismatch(
            f"The {type(records).__name__} is no table of columns: {'; '.join(map(str, error.args))[:300]}.",
            expected="columns of one type each, with names of their own",
            actual="others",
        ) from None


def _no_records(given: Any) -> UsageError:
    return UsageError(
        f"Records cannot be a {type(given).__name__}.",
        hint="Give a list of dictionaries, Arrow, pandas, polars or Spark.",
    )


def _refuse_doubles(names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaMismatch(
            f"The records have the column '{twice}' more than once.", expected="unique names", actual=", ".join(names)
        )


def _refuse_others(records: list[Any]) -> None:
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise UsageError(
                f"Record {number} is no dictionary: {record!r:.80}.", hint="Give each as names with their values."
            )


def from_json(data: bytes, schema: pa.Schema | None, name: str) -> list[dict[str, Any]]:
    """Records out of JSON lines; numbers keep their digits where the column does, and without columns are doubles."""
    fractions = {item.name: item.type for item in schema or () if _has_fractions(item.type)}
    records = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            fraction = _double if schema is None else _decimal
            record = json.loads(line, parse_float=fraction, parse_constant=_refused, object_pairs_hook=_object)
        except OverflowError as error:
            raise UsageError(f"{name}, line {number}: {error}.") from None
        except ValueError as error:
            raise UsageError(f"{name}, line {number}, is no JSON: {error}.") from None
        if not isinstance(record, dict):
            raise UsageError(f"{name}, line {number}, is no record.", hint="Give one JSON object a line, or Parquet.")
        try:
            records.append({key: _fractions(value, fractions.get(key)) for key, value in record.items()})
        except OverflowError as error:
            raise UsageError(f"{name}, line {number}: {error}.") from None
    return records


def _double(number: str | Decimal) -> float:
    made = float(number)
    if isinf(made):
        raise OverflowError(f"{number!s:.80} does not fit double")
    return made


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond those that Python has
        raise OverflowError(f"{text:.80} fits no type") from None


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key '{next(name for name in names if names.count(name) > 1)}' is there twice")
    return found


def _has_fractions(kind: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return bool(pa.types.is_floating(kind) or any(map(_has_fractions, inner)))


def _fractions(value: Any, kind: pa.DataType | None) -> Any:
    """A value of JSON with doubles where its column has them, at any depth; other numbers keep their digits."""
    if isinstance(value, Decimal):
        return _double(value) if kind is not None and pa.types.is_floating(kind) else value
    if kind is None or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [_fractions(each, kind.value_type) for each in value] if pa.types.is_list(kind) else value
    if pa.types.is_map(kind):
        return {key: _fractions(each, kind.item_type) for key, each in value.items()}
    kinds = {item.name: item.type for item in kind} if pa.types.is_struct(kind) else {}
    return {key: _fractions(each, kinds.get(key)) for key, each in value.items()}


def from_parquet(data: bytes, name: str) -> pa.Table:
    """Records out of a Parquet file."""
    try:
        return read_parquet(data)
    except pa.ArrowException as error:
        raise UsageError(f"{name} is no whole Parquet file: {str(error).splitlines()[0]}") from None


def _from_dictionaries(records: list[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    names = list(dict.fromkeys(name for record in records for name in record))
    _refuse_strangers(names, schema)
    columns = {}
    for name in names or schema.names[:1]:  # records without any field are rows, too
        item = schema.field(name)
        values = [_value(record.get(name), item.type, name) for record in records]
        try:
            columns[name] = pa.array(values, item.type)
        except (pa.ArrowException, OverflowError) as error:
            raise _misfit(item, values, str(error)) from None
    return pa.table(columns)


def _misfit(item: pa.Field, values: list[Any], said: str) -> SchemaMismatch:
    kinds = sorted({type(value).__name__ for value in values if value is not None})
    return SchemaMismatch(
        f"Column {item.name} is {type_name(item.type)}, and a value does not fit it: {said.splitlines()[0][:200]}.",
        expected=type_name(item.type),
        actual=", ".join(islice(kinds, 5)),
    )


def _value(value: Any, kind: pa.DataType, path: str) -> Any:
    """A Python value as Arrow takes it: times may be RFC 3339 text, as in JSON; nothing else is converted."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = {item.name: item for item in kind}
        if not isinstance(value, Mapping) or not value.keys() <= fields.keys():
            raise _wrong(value, kind, path)
        return {name: _value(inner, fields[name].type, f"{path}.{name}") for name, inner in value.items()}
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(key, _value(inner, kind.item_type, f"{path}.{key}")) for key, inner in pairs]
    if pa.types.is_list(kind):
        if isinstance(value, str | bytes | Mapping):
            raise _wrong(value, kind, path)
        return [_value(inner, kind.value_type, f"{path}[]") for inner in value]
    return _scalar(value, kind, path)


def _scalar(value: Any, kind: pa.DataType, path: str) -> Any:
    if isinstance(value, str) and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return _time(value, kind, path)
    fits: Any = next((allowed for is_kind, allowed in _PYTHON if is_kind(kind)), (object,))
    if isinstance(value, bool) != pa.types.is_boolean(kind) or not isinstance(value, fits):
        raise _wrong(value, kind, path)
    if pa.types.is_decimal(kind):
        return _digits(value, kind, path)
    if pa.types.is_float32(kind):
        return _single(value, kind, path)
    if pa.types.is_date(kind) and isinstance(value, datetime):  # Arrow would take its day and drop the rest
        raise _wrong(value, kind, path)
    if pa.types.is_timestamp(kind) and (value.tzinfo is None) == (kind.tz is not None):
        raise _wrong(value, kind, path)
    return str(value) if isinstance(value, UUID) else value


def _digits(value: int | Decimal, kind: pa.DataType, path: str) -> Decimal:
    """A number as a decimal: Arrow does not see every one that it cannot hold."""
    number = Decimal(value)
    exact = decimals.exact_decimals(str(number), kind)
    if exact is None:
        raise _beyond(number, kind, path)
    return exact


def _single(value: float, kind: pa.DataType, path: str) -> float:
    """A number that a float can hold; Arrow makes an infinity of others."""
    try:
        if not isinstance(value, int):
            struct.pack("<f", value)
    except OverflowError:
        raise _beyond(value, kind, path) from None
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
        found = moment(text) if kind.tz else datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(text, kind, path) from None
    if (found.tzinfo is None) == (kind.tz is not None):
        raise _wrong(text, kind, path)
    return found


def _wrong(value: Any, kind: pa.DataType, path: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{path}: {value!r:.80} is no {type_name(kind)}.", expected=type_name(kind), actual=type(value).__name__
    )


def _beyond(value: Any, kind: pa.DataType, path: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{path}: {value!s:.80} does not fit {type_name(kind)}.", expected=type_name(kind), actual=type(value).__name__
    )


def _same(column: pa.ChunkedArray, item: pa.Field) -> pa.ChunkedArray:
    """An Arrow column in the table's type, where that changes no value."""
    if not _related(column.type, item.type):
        raise SchemaMismatch(
            f"Column {item.name} is {type_name(item.type)} in the table, and {column.type} in the records.",
            expected=type_name(item.type),
            actual=str(column.type),
        )
    if column.type == item.type:
        return column
    values = decode_record_file(column)
    for each in values.chunks:
        _refuse_changes(each, item.type, item.name)
    try:
        if pa.types.is_decimal(item.type) and pa.types.is_integer(values.type):
            return pa.chunked_array([decimals.from_integers(each, item.type) for each in values.chunks], item.type)
        return values.cast(item.type)
    except pa.ArrowException as error:
        raise _misfit(item, [], str(error)) from None


def _refuse_changes(values: pa.Array, kind: pa.DataType, path: str) -> None:
    """SchemaMismatch where Arrow's cast would change a value and not say so, at any depth."""
    have = values.type
    if have == kind or pa.types.is_null(have):
        return
    if pa.types.is_struct(kind):
        for item in have:
            _refuse_changes(struct_field(values, item.name), kind.field(item.name).type, f"{path}.{item.name}")
    elif pa.types.is_list(kind):
        _refuse_changes(values.flatten(), kind.value_type, f"{path}[]")
    elif pa.types.is_map(kind):
        _refuse_changes(map_items(values)[0], kind.item_type, f"{path}.*")
    elif (kept := _unchanged(values, kind)) is not None and kept.null_count > values.null_count:
        lost = pc.and_(kept.is_null(), values.is_valid())
        raise _beyond(values.filter(lost)[0].as_py(), kind, path)


def _unchanged(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Numbers in another type, NULL where one does not fit; None where Arrow tells itself."""
    if pa.types.is_decimal(kind) and pa.types.is_integer(values.type):
        return decimals.from_integers(values, kind)
    if pa.types.is_decimal(kind):
        return decimals.rescaled(values, kind)
    if pa.types.is_floating(values.type) and pa.types.is_float32(kind):
        made = values.cast(kind, safe=False)
        return pc.if_else(pc.and_(pc.is_inf(made), pc.invert(pc.is_inf(values))), pa.scalar(None, kind), made)
    return None


def decode_record_file(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories as their values; Arrow itself does not take them where they are views of texts."""
    if not pa.types.is_dictionary(column.type):
        return column
    kind = held_as(column.type)
    return pa.chunked_array([each.dictionary.cast(kind).take(each.indices) for each in column.chunks], kind)


def _related(one: pa.DataType, two: pa.DataType) -> bool:
    """Whether a value of one type is a value of the other, too, or Arrow's cast says that it is none."""
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


def _refuse_strangers(names: Iterable[str], schema: pa.Schema) -> None:
    if strangers := [name for name in names if name not in schema.names]:
        raise SchemaMismatch(
            f"The table has no column '{strangers[0]}'.",
            expected=_spelled(schema),
            actual=", ".join(names),
            hint="Add it with `update_schema`, or leave it out.",
        )


def _spelled(schema: pa.Schema) -> str:
    return ", ".join(f"{item.name} {item.type}" for item in schema)
