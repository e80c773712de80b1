"""Schema changes as ALTER TABLE statements, for tables that only Spark may write.

A change that requires a table feature is refused if the table does not have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from headrace.delta.features import lacks_ntz
from headrace.delta.properties import property_text
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import TableState
from headrace.errors import UsageError
from headrace.spec.types import parse_type, type_name
from headrace.storage.store import Store
from headrace.table.schema_changes import (
    AddedColumn,
    SchemaChange,
    check_column_exists,
    columns_to_add,
    describe_widening,
    feature_required,
)
from headrace.table.spark_rows import spark_string
from headrace.write.merge_sql import quote_identifier

_WIDENING, _MAPPING = "delta.enableTypeWidening", "delta.columnMapping.mode"


def statements(store: Store, state: TableState, change: SchemaChange) -> list[str]:
    """The ALTER TABLE clauses of a change, each a commit of its own. All are checked before the first one runs."""
    return list(_statements(store, state, change))


def _statements(store: Store, state: TableState, change: SchemaChange) -> Iterator[str]:
    added = columns_to_add(store, state, change)
    _check_whole(state, change)
    if _lacks_ntz(state, change, added):
        yield "SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    if added:
        columns = (f"{'.'.join(map(quote_identifier, new.path))} {type_name(new.item.type)}" for new in added)
        yield f"ADD COLUMNS ({', '.join(columns)})"
    for name, kind in (change.widen or {}).items():
        widening = describe_widening(store, state, name, kind)
        if state.properties.get(_WIDENING, "").lower() != "true":
            raise feature_required(store, "widen", widening)
        yield f"ALTER COLUMN {quote_identifier(name)} TYPE {type_name(parse_type(kind))}"
    for name, text in (change.comment or {}).items():
        yield f"ALTER COLUMN {quote_identifier(name)} COMMENT {spark_string(text or '')}"
    for old, new in (change.rename or {}).items():
        _check_mapping(store, state, "rename", old)
        yield f"RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}"
    for name in change.drop:
        _check_mapping(store, state, "drop", name)
        yield f"DROP COLUMN {quote_identifier(name)}"


def _lacks_ntz(state: TableState, change: SchemaChange, added: Iterable[AddedColumn]) -> bool:
    """Whether new types need the feature for timestamps without zone, which Spark does not enable by itself."""
    kinds = [*(new.item.type for new in added), *map(parse_type, (change.widen or {}).values())]
    return lacks_ntz(to_delta(pa.schema([pa.field("new", kind) for kind in kinds])), state.protocol)


def _check_whole(state: TableState, change: SchemaChange) -> None:
    """Refuse target schemas that ADD COLUMNS cannot express: columns in between, and new fields of structs."""
    exists = [item.name in state.schema.names for item in change.target or ()]
    if exists != sorted(exists, reverse=True):
        raise UsageError(
            "Spark, which must change this table, appends new columns at the end.", hint="Specify them last."
        )
    for item in change.target or ():
        unwidened = item.name in state.schema.names and item.name not in (change.widen or {})
        if unwidened and item.type != state.schema.field(item.name).type:
            raise UsageError(
                f"Cannot add fields to the struct {item.name} by a whole schema.",
                hint=f"Add each field by its path: `{item.name}.field`.",
            )


def _check_mapping(store: Store, state: TableState, verb: str, name: str) -> None:
    check_column_exists(state, verb, name)
    if state.properties.get(_MAPPING, "none").lower() not in ("name", "id"):
        raise feature_required(store, verb, f"column {name}")
    if verb == "drop" and name in state.partition_by:
        raise UsageError(f"Cannot drop column '{name}': the table is partitioned by it.")


def properties(values: Mapping[str, str | None]) -> Iterator[str]:
    """The ALTER TABLE clauses that set and unset properties."""
    texts = {name: property_text(value) for name, value in values.items() if value is not None}
    pairs = [f"{spark_string(name)} = {spark_string(text)}" for name, text in texts.items()]
    unset = [spark_string(name) for name, value in values.items() if value is None]
    if pairs:
        yield f"SET TBLPROPERTIES ({', '.join(pairs)})"
    if unset:
        yield f"UNSET TBLPROPERTIES IF EXISTS ({', '.join(unset)})"
