"""Change the columns and properties of a table with direct commits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.delta.actions import MetadataAction
from headrace.delta.evolution import merge_schemas
from headrace.delta.features import FEATURE_PROPERTIES, append_blocker, is_enabled
from headrace.delta.properties import check_properties, property_text
from headrace.delta.schema import from_delta, storable_field, to_delta
from headrace.delta.snapshot import TableState
from headrace.delta.type_widening import widens
from headrace.errors import FeatureRequired, SchemaMismatch, TableChanged, UsageError
from headrace.spec.types import check_field_names, parse_type, type_name
from headrace.storage.store import Store
from headrace.table.ownership import open_log

# A schema, or column names with their types as in a spec; `!` for NOT NULL: {"id": "long!", "name": "string"}.
Columns: TypeAlias = "pa.Schema | Mapping[str, str]"

# Table features that some changes require, and their effect on readers.
_FEATURES = {
    "widen": ("typeWidening", "readers based on delta-rs cannot read such tables"),
    "rename": ("columnMapping", "column names in files differ from those of the table, and many readers read NULL"),
    "drop": ("columnMapping", "column names in files differ from those of the table, and many readers read NULL"),
}


def schema_of(columns: Columns) -> pa.Schema:
    """Convert columns to the types of Headrace; UsageError for an unknown type or a duplicate name."""
    if isinstance(columns, pa.Schema):
        schema = from_delta(to_delta(pa.schema([storable_field(item) for item in columns])))
    else:
        schema = pa.schema([_field(name, text) for name, text in columns.items()])
    check_field_names(schema)
    return schema


def _field(name: str, text: str) -> pa.Field:
    kind, required, _ = text.strip().partition("!")
    return pa.field(name, parse_type(kind), nullable=not required)


def describe_schema(schema: pa.Schema, by: tuple[str, ...]) -> str:
    """Columns, types and partition columns, for messages."""
    return ", ".join(f"{item.name} {type_name(item.type)}" for item in schema) + f"; by {list(by)}"


def describe_column(item: pa.Field) -> str:
    """Name, type and nullability of a column, for messages."""
    return f"{item.name} {item.type}{'' if item.nullable else ' NOT NULL'}"


# ---- properties ----


def set_properties(store: Store, state: TableState, properties: Mapping[str, str | None]) -> TableState:
    """Set table properties; None unsets one. FeatureRequired if only Spark could write the table afterwards."""
    values = {name: value for name, value in properties.items() if value is not None}
    check_properties(values)
    merged = property_texts({**state.properties, **properties})
    if blocker := append_blocker(replace(state, metadata=replace(state.metadata, properties=merged))):
        raise FeatureRequired(
            f"{store.uri}: with these properties only Spark could write to the table: {blocker}.",
            hint=feature_hint(values, "Omit the property")
            or "Omit the property; or write to the table with Spark only.",
        )

    def change(metadata: MetadataAction) -> MetadataAction:
        return replace(metadata, properties=property_texts({**metadata.properties, **properties}))

    operation = "SET TBLPROPERTIES" if values else "UNSET TBLPROPERTIES"
    parameters = {"properties": json.dumps(property_texts(values))}
    return open_log(store, state).alter(change, lambda _: (operation, parameters), {})


def feature_hint(properties: Mapping[str, str], first: str) -> str:
    """What to do `first` before the command that enables the feature of properties; empty if it has none for them."""
    features = [name for name in FEATURE_PROPERTIES if is_enabled(name, property_texts(properties))]
    return f"{first}, then run `headrace table enable-feature PATH {features[0]}`." if features else ""


def property_texts(properties: Mapping[str, object]) -> dict[str, str]:
    """Property values as Delta stores them; None values are left out."""
    return {name: property_text(value) for name, value in properties.items() if value is not None}


# ---- columns ----


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Changes of a table's columns."""

    add: Mapping[str, str] | pa.Schema | None = None
    comment: Mapping[str, str | None] | None = None  # None removes a comment
    widen: Mapping[str, str] | None = None
    rename: Mapping[str, str] | None = None
    drop: Iterable[str] = ()
    target: pa.Schema | None = None  # the target schema, if the caller specified one


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A new column, or a new field of a struct."""

    path: tuple[str, ...]
    item: pa.Field

    @property
    def name(self) -> str:
        """Column path: `s.b`."""
        return ".".join(self.path)


def change_to(state: TableState, schema: pa.Schema) -> SchemaChange:
    """Compute the change from a table's columns to a schema: columns that the schema lacks are dropped."""
    current, target = state.schema, schema_of(schema)
    _check_order_and_nullability(current, target)
    added = pa.schema([item for item in target if item.name not in current.names])
    comments = {item.name: text for item in target if (text := _comment(item)) is not None}
    widened = {
        item.name: type_name(item.type)
        for item in target
        if item.name in current.names and not _only_adds_fields(current.field(item.name), item)
    }
    dropped = [name for name in current.names if name not in target.names]
    return SchemaChange(added, comments, widened, drop=dropped, target=target)


def _check_order_and_nullability(current: pa.Schema, target: pa.Schema) -> None:
    before = [name for name in current.names if name in target.names]
    after = [name for name in target.names if name in current.names]
    if before != after:
        raise SchemaMismatch(
            f"Cannot change the order of columns: {', '.join(before)}.",
            expected=", ".join(before),
            actual=", ".join(after),
        )
    for name in before:
        old, new = current.field(name), target.field(name)
        # Two structs of the same type name that still differ: one of their fields has another nullability.
        field_differs = type_name(old.type) == type_name(new.type) and old.type != new.type
        if old.nullable != new.nullable or field_differs:
            constraint = "NOT NULL" if new.nullable else "nullable"
            subject = f"a field of column {name}" if field_differs else f"column {name}, which is {constraint}"
            raise SchemaMismatch(
                f"Cannot change the nullability of {subject}.",
                expected=describe_column(old),
                actual=describe_column(new),
                hint="Specify it as it is in the table (`!` for NOT NULL).",
            )


def _only_adds_fields(old: pa.Field, new: pa.Field) -> bool:
    """Whether two columns differ only by new fields of structs."""
    try:
        merged = merge_schemas(to_delta(pa.schema([old])), to_delta(pa.schema([new])))
    except TableChanged:
        return False
    return bool(from_delta(merged).field(0).type == new.type)


def _comment(item: pa.Field) -> str | None:
    text = (item.metadata or {}).get(b"comment")
    return None if text is None else text.decode()


def update_schema(store: Store, state: TableState, change: SchemaChange) -> TableState:
    """Add columns and comments in one commit; FeatureRequired for a change that requires a table feature."""
    _refuse_features(store, state, change)
    added, comments = columns_to_add(store, state, change), dict(change.comment or {})

    def changed(metadata: MetadataAction) -> MetadataAction:
        target = change.target or add_columns(from_delta(metadata.schema_json), added)
        check_field_names(target)
        merged = (
            merge_schemas(metadata.schema_json, to_delta(target)) if added or change.target else metadata.schema_json
        )
        return replace(metadata, schema_json=_set_comments(merged, comments))

    operation = "CHANGE COLUMN" if comments and not added else "ADD COLUMNS"
    names = [f"{column.name} {type_name(column.item.type)}" for column in added] or sorted(comments)
    parameters = {"columns": json.dumps(names)}
    try:
        return open_log(store, state).alter(changed, lambda _: (operation, parameters), {}, schema=state.schema_json)
    except TableChanged as refused:
        raise SchemaMismatch(
            refused.message, expected=describe_schema(state.schema, state.partition_by), actual=parameters["columns"]
        ) from None


def columns_to_add(store: Store, state: TableState, change: SchemaChange) -> list[AddedColumn]:
    """The new columns with their paths.

    SchemaMismatch for a column that exists or is NOT NULL, UsageError for a comment on an unknown column.
    """
    new = schema_of(change.add) if change.add is not None else pa.schema([])
    if unknown := [name for name in change.comment or () if name not in (*state.schema.names, *new.names)]:
        raise UsageError(f"Cannot comment on column '{unknown[0]}': it does not exist.", hint=_column_names(state))
    if existing := [name for name in new.names if name.lower() in map(str.lower, state.schema.names)]:
        raise SchemaMismatch(
            f"{store.uri} already has a column '{existing[0]}'.",
            expected=type_name(new.field(existing[0]).type),
            actual=", ".join(state.schema.names),
        )
    if required := [item for item in new if not item.nullable]:
        raise SchemaMismatch(
            f"{store.uri}: column {required[0].name} cannot be added as NOT NULL: existing rows have no value for it.",
            expected=type_name(required[0].type),
            actual=describe_column(required[0]),
            hint="Add it without NOT NULL (no `!`), and set it with `update`.",
        )
    added = [_added_column(item, state.schema) for item in new]
    check_field_names(add_columns(state.schema, added))
    return added


def _added_column(item: pa.Field, siblings: Iterable[pa.Field]) -> AddedColumn:
    """Resolve the path of a new column: `s.b` is a field of the struct `s` if there is one, else a name with a dot."""
    head, dot, rest = item.name.partition(".")
    parent = next((sibling for sibling in siblings if dot and sibling.name == head), None)
    if parent is None or not pa.types.is_nested(parent.type):
        return AddedColumn((item.name,), item)
    if not pa.types.is_struct(parent.type):
        raise UsageError(
            f"Cannot add '{item.name}': {head} is {type_name(parent.type)}, not a struct.",
            hint="Specify the whole schema.",
        )
    inner = _added_column(item.with_name(rest), parent.type)
    return AddedColumn((head, *inner.path), inner.item)


def add_columns(schema: pa.Schema, added: Iterable[AddedColumn]) -> pa.Schema:
    """Add columns and fields of structs to a schema."""
    return pa.schema(reduce(lambda fields, column: _with_field(fields, column.path, column.item), added, list(schema)))


def _with_field(fields: list[pa.Field], path: tuple[str, ...], item: pa.Field) -> list[pa.Field]:
    head, *rest = path
    if not rest:
        return [*fields, item]
    return [
        sibling.with_type(pa.struct(_with_field(list(sibling.type), tuple(rest), item)))
        if sibling.name == head
        else sibling
        for sibling in fields
    ]


def _set_comments(schema_json: str, comments: Mapping[str, str | None]) -> str:
    if not comments:
        return schema_json
    schema: dict[str, Any] = json.loads(schema_json)
    for item in schema["fields"]:
        if item["name"] in comments:
            metadata = {**item["metadata"], "comment": comments[item["name"]]}
            item["metadata"] = {key: value for key, value in metadata.items() if (key, value) != ("comment", None)}
    return json.dumps(schema, ensure_ascii=False)


def _refuse_features(store: Store, state: TableState, change: SchemaChange) -> None:
    for name, kind in (change.widen or {}).items():
        raise feature_required(store, "widen", describe_widening(store, state, name, kind))
    for verb, names in (("rename", list(change.rename or ())), ("drop", list(change.drop))):
        for name in names:
            check_column_exists(state, verb, name)
            raise feature_required(store, verb, f"column {name}")


def check_column_exists(state: TableState, verb: str, name: str) -> None:
    """UsageError for an unknown column."""
    if name not in state.schema.names:
        raise UsageError(f"Cannot {verb} column '{name}': it does not exist.", hint=_column_names(state))


def _column_names(state: TableState) -> str:
    return f"Columns: {', '.join(state.schema.names)}."


def describe_widening(store: Store, state: TableState, name: str, kind: str) -> str:
    """Old and new type of a column, for messages; SchemaMismatch if the new type cannot store all values of the old."""
    check_column_exists(state, "widen", name)
    old, new = state.schema.field(name).type, parse_type(kind)
    if widens(old, new):
        return f"column {name} from {type_name(old)} to {type_name(new)}"
    raise SchemaMismatch(
        f"{store.uri}: cannot widen column {name} from {type_name(old)} to {type_name(new)}: not every value would "
        "stay the same.",
        expected=type_name(old),
        actual=type_name(new),
    )


def feature_required(store: Store, verb: str, subject: str) -> FeatureRequired:
    """The error for a change that requires a table feature."""
    feature, effect = _FEATURES[verb]
    return FeatureRequired(
        f"{store.uri}: cannot {verb} {subject} without the table feature {feature}, which the table does not have. "
        f"With it, {effect}.",
        hint=f"Run `headrace table enable-feature PATH {feature}`, or call `enable_feature`; both show the clients "
        "that can use the table afterwards. Then run this again; or create a new table.",
        feature=feature,
    )
