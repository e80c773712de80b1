"""Column mapping by name: every column and field keeps the name that it has in files while its own name changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.delta.partition_values import log_name
from headrace.spec.types import is_list

_ID, _PHYSICAL = "delta.columnMapping.id", "delta.columnMapping.physicalName"


def map_columns(schema_json: str) -> tuple[str, dict[str, str]]:
    """A schema whose columns are mapped to their present names, which its files have; and the properties for it."""
    schema: dict[str, Any] = json.loads(schema_json)
    fields = list(_fields(schema))
    for number, item in enumerate(fields, 1):
        item["metadata"] = {**(item.get("metadata") or {}), _ID: number, _PHYSICAL: item["name"]}
    properties = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(len(fields))}
    return json.dumps(schema, ensure_ascii=False), properties


def _fields(kind: Any) -> Iterator[dict[str, Any]]:
    """All fields of a type, at any depth."""
    if not isinstance(kind, dict):
        return
    for item in kind.get("fields", ()):
        yield item
        yield from _fields(item["type"])
    for inner in ("elementType", "keyType", "valueType"):
        yield from _fields(kind.get(inner))


def file_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a table with the names that they have in its files."""
    return pa.schema([_file_field(item) for item in schema])


def _file_field(item: pa.Field) -> pa.Field:
    return pa.field(log_name(item), _file_type(item.type), item.nullable)


def _file_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_file_field(item) for item in kind])
    if pa.types.is_map(kind):
        return pa.map_(_file_type(kind.key_type), kind.item_field.with_type(_file_type(kind.item_type)))
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(_file_type(kind.value_type)))
    return kind


def in_table_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the columns of `file_schema`, in those of the table."""
    columns = zip(rows.columns, schema, strict=True)
    return pa.table([_renamed(column, item.type) for column, item in columns], schema=schema)


def _renamed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    return pa.chunked_array([part.view(kind) for part in column.chunks], kind)
