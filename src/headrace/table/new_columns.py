"""New columns of a table, and new fields inside its structs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa

from headrace.delta.snapshot import TableState
from headrace.errors import SchemaMismatch, UsageError
from headrace.spec.types import check_field_names, type_name
from headrace.storage.store import Store


@dataclass(frozen=True, slots=True)
class Added:
    """A new column, or a new field inside a struct."""

    path: tuple[str, ...]
    item: pa.Field

    @property
    def name(self) -> str:
        """The way to it."""
        return ".".join(self.path)


def adding(store: Store, state: TableState, given: pa.Schema) -> list[Added]:
    """Where each new column goes; refused where one is there already or cannot be NULL."""
    if twice := [name for name in given.names if name.lower() in map(str.lower, state.schema.names)]:
        raise SchemaMismatch(
            f"{store.uri} has a column '{twice[0]}' already.",
            expected=type_name(given.field(twice[0]).type),
            actual=", ".join(state.schema.names),
        )
    if required := [item for item in given if not item.nullable]:
        raise SchemaMismatch(
            f"{store.uri}: column {required[0].name} cannot be added as NOT NULL: old rows have no value for it.",
            expected=type_name(required[0].type),
            actual=describe_column(required[0]),
            hint="Add it without NOT NULL (no `!`), and fill it with `update`.",
        )
    added = [_added(item, state.schema) for item in given]
    check_field_names(add_columns(state.schema, added))
    return added


def describe_column(item: pa.Field) -> str:
    """A column in words."""
    return f"{item.name} {item.type}{'' if item.nullable else ' NOT NULL'}"


def _added(item: pa.Field, there: Iterable[pa.Field]) -> Added:
    """Where a column goes: `s.b` is a field of the struct `s`, where there is one."""
    head, dot, rest = item.name.partition(".")
    parent = next((each for each in there if dot and each.name == head), None)
    if parent is None or not pa.types.is_nested(parent.type):
        return Added((item.name,), item)
    if not pa.types.is_struct(parent.type):
        raise UsageError(
            f"'{item.name}': {head} is {type_name(parent.type)}, whose fields have no path.",
            hint="Give a whole schema.",
        )
    inner = _added(item.with_name(rest), parent.type)
    return Added((head, *inner.path), inner.item)


def add_columns(schema: pa.Schema, added: Iterable[Added]) -> pa.Schema:
    """A schema with new columns."""
    return pa.schema(reduce(lambda fields, each: _with(fields, each.path, each.item), added, list(schema)))


def _with(fields: list[pa.Field], path: tuple[str, ...], item: pa.Field) -> list[pa.Field]:
    head, *rest = path
    if not rest:
        return [*fields, item]
    return [
        each.with_type(pa.struct(_with(list(each.type), tuple(rest), item))) if each.name == head else each
        for each in fields
    ]
