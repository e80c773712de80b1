"""Random columns and rows, and how four formats write them by libraries that are not ours."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto
from hypothesis import strategies as st

from headrace.spec.types import type_name

ID = 0xDEADBEEF  # of the one schema of MessagePack
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MOMENT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
INTEGERS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
PLAIN = [*INTEGERS, pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.binary(), MOMENT]
LEAVES: Mapping[str, list[pa.DataType]] = {
    "json": [*PLAIN, pa.date32(), LOCAL],
    "avro": [*PLAIN, pa.date32(), LOCAL],
    "msgpack": [*PLAIN, pa.date32(), LOCAL],
    "protobuf": PLAIN,
}
DECIMALS = {"json", "avro"}
NAMES = {"json": ["Größe", "a.b", "select", "1st", "x`y", "👍"], "msgpack": ["Größe", "select", "1st"]}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

Columns = dict[str, pa.DataType]
Row = dict[str, Any]


@st.composite
def columns(draw: Any, format: str, *, plain: bool = False) -> Columns:
    """A few columns, each of a type that the format has; `plain`: and of which it also writes the name."""
    leaves = st.sampled_from(PLAIN) if plain else _leaves(format)
    kinds = draw(st.lists(_kinds(format, leaves, 2), min_size=1, max_size=6))
    odd = NAMES.get(format, [])
    return {odd[at] if at < len(odd) and draw(st.booleans()) else f"f{at}": kind for at, kind in enumerate(kinds)}


def _leaves(format: str) -> st.SearchStrategy[pa.DataType]:
    plain = st.sampled_from(LEAVES[format])
    if format not in DECIMALS:
        return plain
    return plain | st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))


def _kinds(
    format: str, leaves: st.SearchStrategy[pa.DataType], depth: int, element: bool = False
) -> st.SearchStrategy[pa.DataType]:
    """Types; Protobuf has no lists or maps as elements."""
    if not depth:
        return leaves
    fields = st.lists(_kinds(format, leaves, depth - 1), min_size=1, max_size=3)
    nested = [fields.map(lambda kinds: pa.struct([(f"g{at}", kind) for at, kind in enumerate(kinds)]))]
    if not (element and format == "protobuf"):
        inner = _kinds(format, leaves, depth - 1, True)
        nested.append(inner.map(lambda kind: pa.list_(pa.field("element", kind))))
        nested.append(inner.map(lambda kind: pa.map_(pa.string(), kind)))
    return st.one_of(leaves, leaves, *nested)


def rows(columns: Columns, format: str) -> st.SearchStrategy[Row]:
    """Rows of these columns, with NULLs wherever the format can say them."""
    return st.fixed_dictionaries({name: _values(kind, format) for name, kind in columns.items()})


def _values(kind: pa.DataType, format: str, element: bool = False) -> st.SearchStrategy[Any]:
    made = _some(kind, format)
    never = format == "protobuf" and (element or pa.types.is_list(kind) or pa.types.is_map(kind))
    return made if never else st.one_of(made, made, made, st.none())


def _some(kind: pa.DataType, format: str) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({item.name: _values(item.type, format) for item in kind})
    if pa.types.is_list(kind):
        return st.lists(_values(kind.value_type, format, True), max_size=3)
    if pa.types.is_map(kind):
        found = st.dictionaries(TEXT, _values(kind.item_type, format, True), max_size=3)
        return found.map(lambda items: sorted(items.items(), key=lambda pair: pair[0]))
    if kind in INTEGERS:
        limit = 1 << INTEGERS[kind]
        return st.one_of(st.integers(-limit, limit - 1), st.sampled_from([0, -limit, limit - 1]))
    if pa.types.is_decimal(kind):
        limit = 10**kind.precision - 1
        return st.integers(-limit, limit).map(lambda n: Decimal(n).scaleb(-kind.scale, Context(prec=50)))
    if pa.types.is_floating(kind):
        finite = format == "json"
        return st.floats(width=kind.bit_width, allow_nan=not finite, allow_infinity=not finite)
    return _OTHERS[kind]


_OTHERS: Mapping[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.string(): TEXT,
    pa.binary(): st.binary(max_size=12),
    pa.date32(): st.dates(),
    MOMENT: st.datetimes(timezones=st.just(UTC)),
    LOCAL: st.datetimes(),
}


def told(kind: pa.DataType, value: Any) -> Any:
    """A value in words that are the same whichever reader brings it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {item.name: told(item.type, value[item.name]) for item in kind}
    if pa.types.is_list(kind):
        return [told(kind.value_type, item) for item in value]
    if pa.types.is_map(kind):
        return sorted((key, repr(told(kind.item_type, item))) for key, item in _pairs(value))
    if pa.types.is_timestamp(kind):
        return (value.astimezone(UTC) if kind.tz else value).replace(tzinfo=None).isoformat()
    return str(value) if pa.types.is_decimal(kind) else repr(value)


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a map, which readers hand out in three ways."""
    for each in value.items() if isinstance(value, dict) else value:
        yield (each["key"], each["value"]) if isinstance(each, dict) else each


# ---- the writers: each gives what `decode` must say, and the values ----

Written = tuple[dict[str, Any], list[bytes]]


def as_json(columns: Columns, given: list[Row], folder: Path) -> Written:
    """Objects; half of the NULLs are left out."""
    return {"json": {}}, [_json_row(columns, row, bool(at % 2)).encode() for at, row in enumerate(given)]


def _json_row(columns: Columns, row: Row, sparse: bool) -> str:
    names = [name for name in columns if not (sparse and row[name] is None)]
    return "{" + ", ".join(f"{json.dumps(name)}: {_json(columns[name], row[name])}" for name in names) + "}"


def _json(kind: pa.DataType, value: Any) -> str:
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        return _json_row({item.name: item.type for item in kind}, value, False)
    if pa.types.is_list(kind):
        return "[" + ",".join(_json(kind.value_type, item) for item in value) + "]"
    if pa.types.is_map(kind):
        return "{" + ",".join(f"{json.dumps(key)}:{_json(kind.item_type, item)}" for key, item in value) + "}"
    if pa.types.is_binary(kind):
        return json.dumps(base64.b64encode(value).decode())
    if pa.types.is_temporal(kind):
        return json.dumps(value.isoformat())
    return f"{value:f}" if pa.types.is_decimal(kind) else json.dumps(value, ensure_ascii=False)


def as_msgpack(columns: Columns, given: list[Row], folder: Path) -> Written:
    """Maps and arrays by turns; dates and local times as text."""
    fields = [{"name": name, "type": type_name(_sent(kind))} for name, kind in columns.items()]
    (folder / "layout.json").write_text(json.dumps({"id": ID, "name": "t", "fields": fields}))
    made = []
    for at, row in enumerate(given):
        cells = {name: _packed(kind, row[name]) for name, kind in columns.items()}
        made.append(struct.pack(">I", ID) + msgpack.packb(cells if at % 2 else list(cells.values())))
    return {"msgpack": {"schemas": "layout.json"}}, made


def _sent(kind: pa.DataType) -> pa.DataType:
    """The type that MessagePack has for it."""
    if pa.types.is_struct(kind):
        return pa.struct([(item.name, _sent(item.type)) for item in kind])
    if pa.types.is_list(kind):
        return pa.list_(_sent(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _sent(kind.item_type))
    return pa.string() if kind in (pa.date32(), LOCAL) else kind


def _packed(kind: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {item.name: _packed(item.type, value[item.name]) for item in kind}
    if pa.types.is_list(kind):
        return [_packed(kind.value_type, item) for item in value]
    if pa.types.is_map(kind):
        return {key: _packed(kind.item_type, item) for key, item in value}
    if kind == MOMENT:
        seconds, micros = divmod((value - EPOCH) // MICROSECOND, 1_000_000)
        return msgpack.Timestamp(seconds, micros * 1000)
    return value.isoformat() if pa.types.is_temporal(kind) else value


def as_avro(columns: Columns, given: list[Row], folder: Path) -> Written:
    """Records of one schema, in which everything may be null."""
    kind = pa.struct(list(columns.items()))
    schema = _avro_schema(kind, count())
    (folder / "rows.avsc").write_text(json.dumps(schema))
    parsed, made = fastavro.parse_schema(schema), []
    for row in given:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, _avro(kind, row))
        made.append(out.getvalue())
    return {"avro": {"schema": "rows.avsc"}}, made


_AVRO: Mapping[pa.DataType, Any] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), "int"),
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    MOMENT: {"type": "long", "logicalType": "timestamp-micros"},
    LOCAL: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def _avro_schema(kind: pa.DataType, numbers: Iterator[int]) -> Any:
    if pa.types.is_struct(kind):
        name = f"R{next(numbers)}"
        fields = [{"name": item.name, "type": ["null", _avro_schema(item.type, numbers)]} for item in kind]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _avro_schema(kind.value_type, numbers)]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _avro_schema(kind.item_type, numbers)]}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return _AVRO[kind]


def _avro(kind: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {item.name: _avro(item.type, value[item.name]) for item in kind}
    if pa.types.is_list(kind):
        return [_avro(kind.value_type, item) for item in value]
    if pa.types.is_map(kind):
        return {key: _avro(kind.item_type, item) for key, item in value}
    if pa.types.is_timestamp(kind):
        return (value.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
    return value


def as_protobuf(columns: Columns, given: list[Row], folder: Path) -> Written:
    """Messages of proto3, in which every single field is optional."""
    kind = pa.struct(list(columns.items()))
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    _describe(file.message_type.add(name="M"), kind)
    time = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(time)
    (folder / "rows.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[time, file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(time)
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.M"))
    values = [_filled(made(), kind, row).SerializeToString() for row in given]
    return {"protobuf": {"descriptor": "rows.desc", "message": "t.M", "allow_empty": True}}, values


_PROTO: Mapping[pa.DataType, int] = {
    pa.int8(): Proto.TYPE_SINT32,
    pa.int16(): Proto.TYPE_INT32,
    pa.int32(): Proto.TYPE_SFIXED32,
    pa.int64(): Proto.TYPE_INT64,
    pa.bool_(): Proto.TYPE_BOOL,
    pa.float32(): Proto.TYPE_FLOAT,
    pa.float64(): Proto.TYPE_DOUBLE,
    pa.string(): Proto.TYPE_STRING,
    pa.binary(): Proto.TYPE_BYTES,
}


def _describe(message: Any, kind: pa.DataType) -> None:
    for number, item in enumerate(kind, 1):
        field = message.field.add(name=item.name, number=number, label=Proto.LABEL_OPTIONAL)
        if pa.types.is_list(item.type):
            field.label = Proto.LABEL_REPEATED
            _typed(message, field, item.type.value_type)
        elif pa.types.is_map(item.type):
            entry = message.nested_type.add(name=f"{item.name.capitalize()}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=Proto.LABEL_OPTIONAL, type=Proto.TYPE_STRING)
            _typed(message, entry.field.add(name="value", number=2, label=Proto.LABEL_OPTIONAL), item.type.item_type)
            field.label, field.type, field.type_name = Proto.LABEL_REPEATED, Proto.TYPE_MESSAGE, entry.name
        else:
            _typed(message, field, item.type)
    for field in message.field:  # as the compiler does it: after all real ones
        if field.label == Proto.LABEL_OPTIONAL and field.type != Proto.TYPE_MESSAGE:
            field.oneof_index, field.proto3_optional = len(message.oneof_decl), True
            message.oneof_decl.add(name=f"_{field.name}")


def _typed(message: Any, field: Any, kind: pa.DataType) -> None:
    if kind in _PROTO:
        field.type = _PROTO[kind]
        return
    field.type = Proto.TYPE_MESSAGE
    if kind == MOMENT:
        field.type_name = ".google.protobuf.Timestamp"
        return
    inner = message.nested_type.add(name=f"N{len(message.nested_type)}")
    _describe(inner, kind)
    field.type_name = inner.name


def _filled(message: Any, kind: pa.DataType, row: Row) -> Any:
    for item in kind:
        value = row[item.name]
        if value is None:
            continue
        if pa.types.is_list(item.type):
            for each in value:
                _append(getattr(message, item.name), item.type.value_type, each)
        elif pa.types.is_map(item.type):
            for key, each in value:
                _put(getattr(message, item.name), key, item.type.item_type, each)
        elif item.type in _PROTO:
            setattr(message, item.name, value)
        else:
            getattr(message, item.name).SetInParent()
            _into(getattr(message, item.name), item.type, value)
    return message


def _append(repeated: Any, kind: pa.DataType, value: Any) -> None:
    if kind in _PROTO:
        repeated.append(value)
    else:
        _into(repeated.add(), kind, value)


def _put(target: Any, key: str, kind: pa.DataType, value: Any) -> None:
    if kind in _PROTO:
        target[key] = value
    else:
        _into(target[key], kind, value)


def _into(message: Any, kind: pa.DataType, value: Any) -> None:
    """A time, or a message within one."""
    if kind == MOMENT:
        message.seconds, micros = divmod((value - EPOCH) // MICROSECOND, 1_000_000)
        message.nanos = micros * 1000
    else:
        _filled(message, kind, value)


WRITERS: Mapping[str, Callable[[Columns, list[Row], Path], Written]] = {
    "json": as_json,
    "avro": as_avro,
    "protobuf": as_protobuf,
    "msgpack": as_msgpack,
}
