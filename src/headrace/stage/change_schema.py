"""What is staged for a table that merges: changes, each a row's columns and what is to happen at its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.delta.schema import KEPT, SOURCE, reserved
from headrace.errors import UsageError
from headrace.spec.types import type_name

if TYPE_CHECKING:
    from headrace.spec.merge import MergeSpec

PUT, DELETE, TRUNCATE = "put", "delete", "truncate"  # in this order a file's statistics tell which it holds

CHANGE = pa.field(
    "_headrace",
    pa.struct([pa.field("op", pa.string()), *SOURCE.type, pa.field("row", pa.int64())]),  # row: its place in the record
)


def staged(schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """The columns of staged files: the change and the keys first, so that statistics speak of them; all may be NULL."""
    first = [schema.field(name) for name in keys]
    rest = [item for item in schema if item.name not in keys]
    return pa.schema([CHANGE, *(item.with_nullable(True) for item in (*first, *rest))])


def with_history(schema: pa.Schema, brought: pa.Schema, merge: MergeSpec | None) -> pa.Schema:
    """The table's columns with those that say when a row was so, which no record may bring."""
    if merge is None or merge.scd2 is None or merge.sequence_by not in schema.names:
        return schema
    kind = schema.field(merge.sequence_by).type
    named = {item.name.lower(): item.name for item in brought}
    if clash := [name for name in merge.scd2.columns if name.lower() in named]:
        raise UsageError(
            f"records bring '{named[clash[0].lower()]}', which is a column of the table's history.",
            hint="Name the history's column otherwise (merge.scd2), or rename the records' field in a transform.",
        )
    kinds = zip(merge.scd2.columns, (kind, kind, pa.bool_()), strict=True)
    made = {name: pa.field(name, each) for name, each in kinds}
    kept = [made.get(item.name, item) for item in schema]
    new = [item for name, item in made.items() if name not in schema.names]
    at = next((index for index, item in enumerate(kept) if item.name in KEPT), len(kept))
    return pa.schema([*kept[:at], *new, *kept[at:]])


def check_change_names(schema: pa.Schema) -> None:
    """UsageError for a table with a column under a name that a merge has for itself."""
    if ours := [name for name in schema.names if reserved(name) and name not in KEPT]:
        raise UsageError(
            f"the table has a column '{ours[0]}': a merge has columns of such names itself.",
            hint="Rename the column, or merge into another table.",
        )


def check_keys(schema: pa.Schema, keyed: str, keys: Sequence[str], ordered: str, sequence: str | None) -> None:
    """UsageError unless these are columns whose values can be told apart and ordered; `keyed`, `ordered` name them."""
    for name, what in (*((key, keyed) for key in keys), *([(sequence, ordered)] if sequence else ())):
        if name not in schema.names:
            raise UsageError(f"{what} names '{name}', which is not a column: there are {', '.join(schema.names)}.")
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or (pa.types.is_floating(kind) and what == keyed):
            raise UsageError(
                f"{what} names '{name}', which is {kind}: such values are not equal or ordered for every reader.",
                hint="Use text, whole numbers, decimals, dates or timestamps.",
            )


def check_merging(
    schema: pa.Schema, keys: Sequence[str], sequence: str | None, columns: Sequence[str], track: Sequence[str] = ()
) -> None:
    """UsageError unless rows of this schema can be told apart and ordered by these columns."""
    check_change_names(schema)
    check_keys(schema, "merge.keys", keys, "merge.sequence_by", sequence)
    for what, named in (("merge.update.columns", columns), ("merge.scd2.track", track)):
        if absent := [name for name in named if name not in schema.names]:
            raise UsageError(f"{what} names '{absent[0]}', which is not a column.")
    if maps := [name for name in track if "map<" in type_name(schema.field(name).type)]:
        raise UsageError(f"merge.scd2.track names '{maps[0]}', which has a map: Spark does not compare those.")
    if SOURCE.name not in schema.names and (sequence is None or columns):
        raise UsageError(
            f"the table has no column {SOURCE.name}, which tells the older of two changes.",
            hint="Give the table that column, or order changes by a column of theirs: merge.sequence_by.",
        )
