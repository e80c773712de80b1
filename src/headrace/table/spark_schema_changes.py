"""What becomes of the columns of a table that Spark writes: the same wishes as ALTER TABLE statements.

What needs a table feature is done where the table has it, and refused with its name where it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.delta.properties import text_of
from headrace.delta.snapshot import TableState
from headrace.errors import UsageError
from headrace.spec.types import parse_type, type_name
from headrace.storage.store import Store
from headrace.table.new_columns import Added
from headrace.table.schema_changes import SchemaChange, added_by, check_known, needs, widening_of
from headrace.table.spark_rows import spark_sql_of
from headrace.write.spark_append import quote_identifier

_WIDENING, _MAPPING = "delta.enableTypeWidening", "delta.columnMapping.mode"


def statements(store: Store, state: TableState, change: SchemaChange) -> list[str]:
    """One after the other, each a commit of its own; all of them are looked at before the first is done."""
    return list(_statements(store, state, change))


def _statements(store: Store, state: TableState, change: SchemaChange) -> Iterator[str]:
    added = added_by(store, state, change)
    _refuse_nested(state, change)
    yield from [f"ADD COLUMNS ({', '.join(map(_spelled, added))})"] if added else []
    for name, kind in (change.widen or {}).items():
        wider = widening_of(store, state, name, kind)
        if state.properties.get(_WIDENING, "").lower() != "true":
            raise needs(store, "widen", wider)
        yield f"ALTER COLUMN {quote_identifier(name)} TYPE {type_name(parse_type(kind))}"
    for name, text in (change.comment or {}).items():
        yield f"ALTER COLUMN {quote_identifier(name)} COMMENT {spark_sql_of(text or '')}"
    for old, new in (change.rename or {}).items():
        _check_moves(store, state, "rename", old)
        yield f"RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}"
    for name in change.drop:
        _check_moves(store, state, "drop", name)
        yield f"DROP COLUMN {quote_identifier(name)}"


def _spelled(added: Added) -> str:
    return f"{'.'.join(map(quote_identifier, added.path))} {type_name(added.item.type)}"


def _refuse_nested(state: TableState, change: SchemaChange) -> None:
    """Spark adds a field inside a struct by its path, which a whole schema does not tell, and columns at the end."""
    new = [item.name in state.schema.names for item in change.whole or ()]
    if new != sorted(new, reverse=True):
        raise UsageError("Spark, which alone writes the table, adds columns behind the others.", hint="Put them there.")
    for item in change.whole or ():
        known = item.name in state.schema.names and item.name not in (change.widen or {})
        if known and item.type != state.schema.field(item.name).type:
            raise UsageError(
                f"Column {item.name} has fields that are to be added inside it.",
                hint=f"Add each by its path: `{item.name}.field`.",
            )


def _check_moves(store: Store, state: TableState, verb: str, name: str) -> None:
    check_known(state, verb, name)
    if state.properties.get(_MAPPING, "none").lower() not in ("name", "id"):
        raise needs(store, verb, f"column {name}")
    if verb == "drop" and name in state.partition_by:
        raise UsageError(f"The table is partitioned by '{name}', which cannot be dropped.")


def properties(values: Mapping[str, str | None]) -> Iterator[str]:
    """Properties that are set, and those that are taken away."""
    given = [
        f"{spark_sql_of(name)} = {spark_sql_of(text_of(value))}" for name, value in values.items() if value is not None
    ]
    gone = [spark_sql_of(name) for name, value in values.items() if value is None]
    yield from [f"SET TBLPROPERTIES ({', '.join(given)})"] if given else []
    yield from [f"UNSET TBLPROPERTIES IF EXISTS ({', '.join(gone)})"] if gone else []
