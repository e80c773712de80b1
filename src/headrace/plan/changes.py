"""Convert rows to changes of a merged table: put, delete or truncate by key; or reject them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Rejects
from headrace.delta.schema import SOURCE
from headrace.errors import UsageError
from headrace.plan.conform import broken, fit, source_of
from headrace.plan.record_keys import keys_before, keys_of_rows
from headrace.plan.route_schema import RouteSchema, column_mismatch
from headrace.reasons import Reason
from headrace.spec.decode import Format
from headrace.spec.merge import MergeSpec
from headrace.stage.change_schema import CHANGE, DELETE, PUT, TRUNCATE, staged_schema
from headrace.transform.sql.expression import RECORD_NAMES
from headrace.transform.steps import Transform, WhereStep

Fitted = tuple[pa.Table, pa.Int64Array, Rejects]


def fit_changes(rows: pa.Table, records: pa.Table, schema: RouteSchema, merge: MergeSpec, now: datetime) -> Fitted:
    """Changes in the columns of staged files, their positions, and rejects.

    A record that changes the key of a row becomes two changes: a delete of the old key and a put of the new one.
    """
    file_schema = staged_schema(schema.table, merge.keys)
    ops, rejects = _operations(rows, records, schema, merge, now)
    loose = replace(schema, table=pa.schema(list(file_schema)[1:]), constraints=())
    table, keep, misfits = fit(rows, records, loose)
    at = np.arange(len(records)) if keep is None else keep.to_numpy()
    rejects = rejects.and_then(misfits).and_then(_holes(table, at, ops, schema, merge))
    rejects = rejects.and_then(_broken(table, records, at, ops, rejects, schema))
    good = ~np.isin(at, rejects.columns.index)
    table, at = table.filter(pa.array(good)), at[good]
    changes = _with_change(table, records.take(pa.array(at)), ops[at], np.arange(len(at)))
    moves, moved_from = _moved(rows, records, changes, at, schema, merge)
    if len(moves):
        changes, at = pa.concat_tables([changes, moves]), np.concatenate([at, moved_from])
    return changes, pa.array(at, pa.int64()), rejects


def deletes_by_key(
    records: pa.Table, schema: RouteSchema, merge: MergeSpec, how: Format
) -> tuple[pa.Table, pa.Int64Array, Rejects]:
    """Deletes by record key; records whose key cannot be decoded are rejected."""
    file_schema = staged_schema(schema.table, merge.keys)
    keys, index, rejects = keys_of_rows(records["key"], schema, merge, how)
    return _only_keys(keys, records.take(index), file_schema, np.arange(len(index))), index, rejects


# ---- operations ----


def _operations(
    rows: pa.Table, records: pa.Table, schema: RouteSchema, merge: MergeSpec, now: datetime
) -> tuple[np.ndarray, Rejects]:
    ops, rejects = np.full(len(records), PUT, object), Rejects()
    for text, op in ((merge.deletes, DELETE), (merge.truncates, TRUNCATE)):
        if text is not None:
            at, failed = _holding(text, rows, records, now, schema)
            ops[at] = op
            rejects = rejects.and_then(failed)
    return ops, rejects.and_then(_truncates(ops)) if merge.scd2 else rejects


def _truncates(ops: np.ndarray) -> Rejects:
    """Reject truncates for SCD2: they have no sequence value."""
    rejects = Rejects()
    detail = "a truncate, which mode: scd2 does not support"
    rejects.add_all(np.flatnonzero(ops == TRUNCATE), Reason.UNKNOWN_OPERATION, detail)
    return rejects


def _holding(
    text: str, rows: pa.Table, records: pa.Table, now: datetime, schema: RouteSchema
) -> tuple[np.ndarray, Rejects]:
    """Rows for which a predicate is true, and rejects where it fails; missing columns are NULL."""
    check = _compiled(text)
    inputs = {name.lower() for name in check.inputs()}
    available = {name.lower() for name in (*rows.column_names, *RECORD_NAMES)}
    columns = rows.select([name for name in rows.column_names if name.lower() in inputs] or rows.column_names[:1])
    for name in check.inputs():
        if name.lower() not in available:
            columns = columns.append_column(name, pa.nulls(len(rows)))
    try:
        result = check.apply(columns, records, now)
    except UsageError as error:
        raise column_mismatch(f"{schema.uri}, merge", error) from None
    return result.index.to_numpy(), result.rejects


@lru_cache(maxsize=256)
def _compiled(text: str) -> Transform:
    return Transform([WhereStep(text)])


# ---- checks ----


def _holes(table: pa.Table, at: np.ndarray, ops: np.ndarray, schema: RouteSchema, merge: MergeSpec) -> Rejects:
    """Reject NULL keys and sequence values, and NULLs in required columns of puts."""
    rejects, ops = Rejects(), ops[at]
    keyed, puts = ops != TRUNCATE, ops == PUT
    for name in merge.keys:
        rejects.add_all(at[keyed & _nulls(table, name)], Reason.NO_KEY, f"{name}: key is NULL")
    if merge.sequence_by is not None:
        at_fault = keyed & _nulls(table, merge.sequence_by)
        rejects.add_all(at[at_fault], Reason.MISSING, f"{merge.sequence_by}: sequence column is NULL")
    for item in schema.table:
        if not item.nullable:
            rejects.add_all(
                at[puts & _nulls(table, item.name)], Reason.MISSING, f"{item.name}: required value is missing"
            )
    return rejects


def _broken(
    table: pa.Table, records: pa.Table, at: np.ndarray, ops: np.ndarray, rejects: Rejects, schema: RouteSchema
) -> Rejects:
    """Puts that violate a constraint of the table."""
    if not schema.constraints:
        return Rejects()
    puts = np.flatnonzero((ops[at] == PUT) & ~np.isin(at, rejects.columns.index))
    return broken(table.take(pa.array(puts)), records.take(pa.array(at[puts])), schema, at[puts])


def _nulls(table: pa.Table, name: str) -> np.ndarray:
    mask: np.ndarray = pc.is_null(table[name]).to_numpy()
    return mask


def _with_change(table: pa.Table, records: pa.Table, ops: np.ndarray, rows: np.ndarray) -> pa.Table:
    """Prepend the change column: operation, record position and row number."""
    position = source_of(records)
    parts = [pa.array(ops, pa.string()), *position.flatten(), pa.array(rows, pa.int64())]
    return table.add_column(0, CHANGE, pa.StructArray.from_arrays(parts, fields=list(CHANGE.type)))


def _only_keys(keys: pa.Table, records: pa.Table, file_schema: pa.Schema, rows: np.ndarray) -> pa.Table:
    """Deletes with keys, and optionally a sequence value; other columns are NULL."""
    schema = pa.schema(list(file_schema)[1:])
    columns = [
        keys[item.name].cast(item.type) if item.name in keys.column_names else _silent(item, records) for item in schema
    ]
    table = pa.Table.from_arrays(columns, schema=schema)
    return _with_change(table, records, np.full(len(records), DELETE, object), rows)


def _silent(item: pa.Field, records: pa.Table) -> pa.Array:
    return source_of(records) if item.name == SOURCE.name else pa.nulls(len(records), item.type)


def _moved(
    rows: pa.Table, records: pa.Table, changes: pa.Table, at: np.ndarray, schema: RouteSchema, merge: MergeSpec
) -> tuple[pa.Table, np.ndarray]:
    """Deletes of old keys, for change events that changed the key of a row."""
    none = changes.slice(0, 0), np.array([], np.int64)
    if "_before" not in merge.aside or "_before" not in rows.column_names or not schema.origins:
        return none
    before = rows["_before"].take(pa.array(at)).combine_chunks()
    puts = pc.equal(pc.struct_field(changes[CHANGE.name], "op"), PUT).combine_chunks()
    moved = np.flatnonzero(pc.and_(puts, before.is_valid()).to_numpy(zero_copy_only=False))
    if not len(moved):
        return none
    old, index = keys_before(before.take(pa.array(moved)), schema, merge)
    moved = moved[index.to_numpy()]
    new = changes.select(list(merge.keys)).take(pa.array(moved))
    changed = np.logical_or.reduce([_differ(old[name], new[name]) for name in merge.keys])
    moved = moved[changed]
    old_keys, origins = old.filter(pa.array(changed)), at[moved]
    if merge.sequence_by:  # of the change itself, so that late changes are ordered correctly
        old_keys = old_keys.append_column(merge.sequence_by, changes[merge.sequence_by].take(pa.array(moved)))
    return _only_keys(old_keys, records.take(pa.array(origins)), changes.schema, moved), origins


def _differ(first: pa.ChunkedArray, second: pa.ChunkedArray) -> np.ndarray:
    mask: np.ndarray = pc.not_equal(first.cast(second.type), second).to_numpy()
    return mask
