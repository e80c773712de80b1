"""Conversion of schemas between Delta's JSON and Arrow; schemas and columns that Headrace defines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.errors import TableFeature, UsageError
from headrace.spec.types import _DECIMAL, _DELTA_NAMES, _PRIMITIVES, TIMESTAMP, TIMESTAMP_NTZ, is_list

_RAW = "\0"  # prefix of field metadata that is JSON, not text, so that it is written back unchanged


def storable_type(kind: pa.DataType) -> pa.DataType:
    """The column type that can store all values of an Arrow type; UsageError if there is none."""
    if pa.types.is_dictionary(kind):
        return storable_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz else TIMESTAMP_NTZ
    if pa.types.is_struct(kind):
        return pa.struct([storable_field(item) for item in kind])
    if pa.types.is_map(kind):
        return pa.map_(storable_type(kind.key_type), storable_field(kind.item_field))
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", storable_type(kind.value_type), kind.value_field.nullable))
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    for is_kind, stored in _STORED_TYPES:
        if is_kind(kind):
            return stored
    if kind in _DELTA_NAMES:
        return kind
    raise UsageError(f"Unsupported type: {kind}.", hint=f"Use {', '.join(_PRIMITIVES)} or decimal(p,s).")


def storable_field(item: pa.Field) -> pa.Field:
    """The column that can store a field, without the field metadata of Parquet, Arrow and Polars."""
    metadata = {key: value for key, value in (item.metadata or {}).items() if not key.startswith(_FOREIGN)}
    try:
        return item.with_type(storable_type(item.type)).with_metadata(metadata or None)
    except UsageError as error:
        raise UsageError(f"Column {item.name}: {error.message}", hint=error.hint) from None


_DIGITS = 38  # of a decimal
_FOREIGN = (b"PARQUET:", b"ARROW:", b"_PL_")
_STORED_TYPES: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date64, pa.date32()),
)


def to_delta(schema: pa.Schema) -> str:
    """Delta's schemaString for a pyarrow schema."""
    return json.dumps({"type": "struct", "fields": [_field_to_delta(item) for item in schema]}, ensure_ascii=False)


def _field_to_delta(item: pa.Field) -> dict[str, Any]:
    metadata = {key.decode(): _plain(value.decode()) for key, value in (item.metadata or {}).items()}
    return {"name": item.name, "type": _type_to_delta(item.type), "nullable": item.nullable, "metadata": metadata}


def _plain(value: str) -> Any:
    return json.loads(value[1:]) if value.startswith(_RAW) else value


def _type_to_delta(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field_to_delta(item) for item in kind]}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type_to_delta(kind.key_type),
            "valueType": _type_to_delta(kind.item_type),
            "valueContainsNull": kind.item_field.nullable,
        }
    if is_list(kind):
        contains_null = kind.value_field.nullable
        return {"type": "array", "elementType": _type_to_delta(kind.value_type), "containsNull": contains_null}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _DELTA_NAMES[kind]


def from_delta(text: str) -> pa.Schema:
    """A pyarrow schema out of Delta's schemaString; TableFeature for a type we do not know."""
    return pa.schema([_field_from_delta(item) for item in json.loads(text)["fields"]])


def _field_from_delta(raw: dict[str, Any]) -> pa.Field:
    metadata = {
        key: value if isinstance(value, str) else _RAW + json.dumps(value) for key, value in raw["metadata"].items()
    }
    return pa.field(raw["name"], _type_from_delta(raw["type"]), raw["nullable"], metadata or None)


def _type_from_delta(raw: Any) -> pa.DataType:
    if isinstance(raw, str):
        if match := _DECIMAL.fullmatch(raw):
            return pa.decimal128(int(match[1]), int(match[2] or 0))
        if raw in _PRIMITIVES:
            return _PRIMITIVES[raw]
        raise TableFeature(f"A column has type '{raw}', which Headrace cannot write.")
    if raw["type"] == "struct":
        return pa.struct([_field_from_delta(item) for item in raw["fields"]])
    if raw["type"] == "array":
        return pa.list_(pa.field("element", _type_from_delta(raw["elementType"]), raw["containsNull"]))
    return pa.map_(
        _type_from_delta(raw["keyType"]),
        pa.field("value", _type_from_delta(raw["valueType"]), raw["valueContainsNull"]),
    )


SOURCE = pa.field(
    "_source",
    pa.struct(
        [
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", TIMESTAMP),
        ]
    ),
)

RESCUED = pa.field("_rescued", pa.string())  # values that do not fit their column, or have none
METADATA = pa.field("_danube_metadata", pa.string(), nullable=False)
KEPT = (SOURCE.name, RESCUED.name, METADATA.name)  # columns that Headrace fills
_RESERVED = frozenset({"_headrace", "_change_type", "_commit_version", "_commit_timestamp", *KEPT})


def reserved(name: str) -> bool:
    """Whether a column name is reserved for Headrace or Delta."""
    return name.lower() in _RESERVED or name.lower().startswith("_headrace_")


HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

RECORD_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestamp_type", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)

DEAD_LETTERS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("table", pa.string()),
        pa.field("step", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("schema_id", pa.int64()),
        pa.field("pipeline", pa.string()),
        pa.field("spec", pa.string()),
        pa.field("rejected_at", TIMESTAMP),
        pa.field("date", pa.date32()),
    ]
)
