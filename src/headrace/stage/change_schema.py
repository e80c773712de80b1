"""The columns of staged changes for upserts and SCD2: the columns of the row, and the operation on its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.delta.schema import KEPT, SOURCE, reserved
from headrace.errors import UsageError
from headrace.spec.types import type_name

if TYPE_CHECKING:
    from headrace.spec.merge import MergeSpec

PUT, DELETE, TRUNCATE = "put", "delete", "truncate"  # operations; a file's statistics tell which it may contain

CHANGE = pa.field(
    "_headrace",
    pa.struct(
        [pa.field("op", pa.string()), *SOURCE.type, pa.field("row", pa.int64())]
    ),  # row: its number in the record
)


def staged_schema(schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """The columns of staged changes, all nullable: the change and the keys first, so that they have statistics."""
    first = [schema.field(name) for name in keys]
    rest = [item for item in schema if item.name not in keys]
    return pa.schema([CHANGE, *(item.with_nullable(True) for item in (*first, *rest))])


def with_scd2_columns(schema: pa.Schema, payload: pa.Schema, merge: MergeSpec | None) -> pa.Schema:
    """Add the SCD2 columns to the columns of a table; UsageError if records have a field of that name."""
    if merge is None or merge.scd2 is None or merge.sequence_by not in schema.names:
        return schema
    kind = schema.field(merge.sequence_by).type
    named = {item.name.lower(): item.name for item in payload}
    if clash := [name for name in merge.scd2.columns if name.lower() in named]:
        raise UsageError(
            f"records have a field '{named[clash[0].lower()]}', which is an SCD2 column of the table.",
            hint="Choose another name for the SCD2 column (merge.scd2), or rename the field in a transform.",
        )
    types = zip(merge.scd2.columns, (kind, kind, pa.bool_()), strict=True)
    scd2 = {name: pa.field(name, type_) for name, type_ in types}
    columns = [scd2.get(item.name, item) for item in schema]
    new = [item for name, item in scd2.items() if name not in schema.names]
    end = next((index for index, item in enumerate(columns) if item.name in KEPT), len(columns))
    return pa.schema([*columns[:end], *new, *columns[end:]])


def check_change_names(schema: pa.Schema) -> None:
    """UsageError if the table has a column with a name that merges reserve."""
    if clash := [name for name in schema.names if reserved(name) and name not in KEPT]:
        raise UsageError(
            f"the table has a column '{clash[0]}'; this name is reserved for merges.",
            hint="Rename the column, or merge into another table.",
        )


def check_keys(schema: pa.Schema, keyed: str, keys: Sequence[str], ordered: str, sequence: str | None) -> None:
    """UsageError unless keys and sequence are comparable columns; `keyed` and `ordered` are their spec keys."""
    for name, what in (*((key, keyed) for key in keys), *([(sequence, ordered)] if sequence else ())):
        if name not in schema.names:
            raise UsageError(f"{what}: unknown column '{name}'. Columns: {', '.join(schema.names)}.")
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or (pa.types.is_floating(kind) and what == keyed):
            raise UsageError(
                f"{what}: column '{name}' is {kind}; readers compare such values differently.",
                hint="Use strings, integers, decimals, dates or timestamps.",
            )


def check_merging(
    schema: pa.Schema, keys: Sequence[str], sequence: str | None, columns: Sequence[str], track: Sequence[str] = ()
) -> None:
    """UsageError unless the columns of a merge exist and can be compared."""
    check_change_names(schema)
    check_keys(schema, "merge.keys", keys, "merge.sequence_by", sequence)
    for what, named in (("merge.update.columns", columns), ("merge.scd2.track", track)):
        if absent := [name for name in named if name not in schema.names]:
            raise UsageError(f"{what}: unknown column '{absent[0]}'.")
    if maps := [name for name in track if "map<" in type_name(schema.field(name).type)]:
        raise UsageError(f"merge.scd2.track: column '{maps[0]}' contains a map; Spark cannot compare maps.")
    if SOURCE.name not in schema.names and (sequence is None or columns):
        raise UsageError(
            f"the table has no column {SOURCE.name}, which orders changes.",
            hint="Add that column to the table, or set merge.sequence_by to a column that orders changes.",
        )
