"""The last check before staging: rows become exactly the table's columns, or letters."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import duck
from headrace.decode import Rejects
from headrace.reasons import Reason
from headrace.shape import Shape, same_type
from headrace.tables.schema import SOURCE, type_name


def fit(rows: pa.Table, envelopes: pa.Table, shape: Shape) -> tuple[pa.Table, pa.Int64Array | None, Rejects]:
    """Rows with the table's schema, the positions kept (None: all), and why the others were not."""
    columns: list[pa.ChunkedArray | pa.Array] = []
    rejects = Rejects([], [], [])
    for item in shape.table:
        column = _column(rows, envelopes, item, rejects)
        columns.append(column)
        _check_null(column, item, rejects)
        if item.name in shape.partition_by:
            _check_partition(column, item, rejects)
    table = pa.Table.from_arrays(
        [_as(column, item.type) for column, item in zip(columns, shape.table, strict=True)], schema=shape.table
    )
    if not rejects.index:
        return table, None, rejects
    rejects = _first_of_each(rejects)
    keep = _kept(len(table), rejects.index)
    return table.take(keep), keep, rejects


def _column(rows: pa.Table, envelopes: pa.Table, item: pa.Field, rejects: Rejects) -> pa.ChunkedArray | pa.Array:
    if item.name == SOURCE.name and item.name not in rows.column_names and same_type(item.type, SOURCE.type):
        return source_of(envelopes)
    if item.name not in rows.column_names:
        return pa.nulls(len(rows), item.type)
    column = rows.column(item.name)
    if same_type(column.type, item.type):
        return column
    return _converted(column, item, rejects)


def source_of(envelopes: pa.Table) -> pa.StructArray:
    """The `_source` column: where each row came from."""
    parts = [envelopes.column(name).combine_chunks() for name in ("topic", "partition", "offset", "timestamp")]
    return pa.StructArray.from_arrays([_flat(part) for part in parts], fields=list(SOURCE.type))


def _flat(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _converted(column: pa.ChunkedArray, item: pa.Field, rejects: Rejects) -> pa.Array:
    """A number in another number's type; what does not come back unchanged does not fit."""
    kind = _sql(item.type)
    there = f"TRY_CAST(v AS {kind})"
    back = f"TRY_CAST({there} AS {_sql(column.type)})"
    answer = duck.query(
        f"SELECT {there} AS w, v IS NULL OR {back} IS NOT DISTINCT FROM v AS ok FROM t",  # noqa: S608
        t=pa.table({"v": column}),
    )
    bad = pc.indices_nonzero(pc.invert(pc.fill_null(answer.column("ok"), False))).to_pylist()
    for position in bad:
        rejects.index.append(position)
        rejects.reason.append(Reason.OVERFLOW)
        rejects.detail.append(f"{item.name}: {column[position].as_py()!s:.80} does not fit {type_name(item.type)}")
    return _flat(answer.column("w")).cast(item.type)


def _sql(kind: pa.DataType) -> str:
    names = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INTEGER", "long": "BIGINT"}
    name = type_name(kind)
    return names.get(name, name.upper())


def _check_null(column: pa.ChunkedArray | pa.Array, item: pa.Field, rejects: Rejects) -> None:
    if item.nullable or column.null_count == 0:
        return
    for position in pc.indices_nonzero(column.is_null()).to_pylist():
        rejects.index.append(position)
        rejects.reason.append(Reason.MISSING)
        rejects.detail.append(f"{item.name}: required, and there is no value")


def _check_partition(column: pa.ChunkedArray | pa.Array, item: pa.Field, rejects: Rejects) -> None:
    if not pa.types.is_string(item.type):
        return
    # Readers disagree whether an empty partition value is '' or NULL, so none is ever written.
    for position in pc.indices_nonzero(pc.fill_null(pc.equal(column, ""), False)).to_pylist():
        rejects.index.append(position)
        rejects.reason.append(Reason.BAD_PARTITION)
        rejects.detail.append(f"{item.name}: a partition column cannot hold an empty text")


def _as(column: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    return column if column.type == kind else column.cast(kind)


def _first_of_each(rejects: Rejects) -> Rejects:
    """One letter a record: the first misfit, in column order, speaks."""
    seen: dict[int, tuple[Reason, str]] = {}
    for position, reason, detail in zip(rejects.index, rejects.reason, rejects.detail, strict=True):
        seen.setdefault(position, (reason, detail))
    order = sorted(seen)
    return Rejects(order, [seen[each][0] for each in order], [seen[each][1] for each in order])


def _kept(length: int, gone: list[int]) -> pa.Int64Array:
    return pa.array(np.delete(np.arange(length), gone), pa.int64())
