"""What is staged for a table that merges: changes, each a row's columns and what is to happen at its key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.errors import UsageError
from headrace.tables.schema import SOURCE

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


def check_merging(schema: pa.Schema, keys: Sequence[str], sequence: str | None, columns: Sequence[str]) -> None:
    """UsageError unless rows of this schema can be told apart and ordered by these columns."""
    for name, what in (
        *((key, "merge.keys") for key in keys),
        *([(sequence, "merge.sequence_by")] if sequence else ()),
    ):
        if name not in schema.names:
            raise UsageError(f"{what} names '{name}', which is not a column: there are {', '.join(schema.names)}.")
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or (pa.types.is_floating(kind) and what == "merge.keys"):
            raise UsageError(
                f"{what} names '{name}', which is {kind}: such values are not equal or ordered for every reader.",
                next="Use text, whole numbers, decimals, dates or timestamps.",
            )
    if absent := [name for name in columns if name not in schema.names]:
        raise UsageError(f"merge.update.columns names '{absent[0]}', which is not a column.")
    if SOURCE.name not in schema.names and (sequence is None or columns):
        raise UsageError(
            f"the table has no column {SOURCE.name}, which tells the older of two changes.",
            next="Give the table that column, or order changes by a column of theirs: merge.sequence_by.",
        )
