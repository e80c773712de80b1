"""CHECK constraints and invariants of a Delta table: rows that violate one are found before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headrace.delta.schema import from_delta
from headrace.delta.snapshot import TableState
from headrace.errors import TableFeature, UsageError
from headrace.spec import TableSpec
from headrace.transform.sql.expression import check_sql, columns_in
from headrace.transform.sql.parser import ExpressionNotAllowed
from headrace.transform.sql.spark_sql import translated
from headrace.transform.steps import Transform, WhereStep

_CHECK = "delta.constraints."
_INVARIANTS = b"delta.invariants"
_LENGTH = b"__CHAR_VARCHAR_TYPE_STRING"  # field metadata: the CHAR or VARCHAR type
GENERATED = b"delta.generationExpression"
_NO_CLOCK = datetime.min.replace(tzinfo=UTC)  # no constraint reads the time


@dataclass(frozen=True)
class Constraint:
    """A condition that must be true for every row; NULL violates it, unlike in an expectation."""

    name: str
    text: str  # condition as in the table
    sql: str
    columns: tuple[tuple[str, str], ...]  # the table's columns, and what they are called in the SQL

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def constraints_of(uri: str, state: TableState | None, rules: TableSpec) -> tuple[Constraint, ...]:
    """The constraints of a table.

    TableFeature if a constraint can neither be evaluated here nor is given in the spec: one row could then stop the
    pipeline for good.
    """
    if state is None or not ((stated := dict(_stated(state))) or _LENGTH.decode() in state.schema_json):
        return ()
    declared = tuple((name, rules.constraints[name]) for name in stated if name in rules.constraints)
    partial = rules.merges is not None and rules.merges.update is not None
    try:
        return _compiled(tuple(stated.items()), state.schema_json, declared, partial, rules.scd2_columns)
    except _Unknown as unknown:
        text = stated.get(unknown.name, "char or varchar")
        raise TableFeature(
            f"{uri}: the constraint {unknown.name} ({text}) cannot be evaluated: {unknown.why}.",
            hint="Write the same condition as an expression of Headrace in table.constraints, or drop the constraint.",
        ) from None


def names_of(state: TableState) -> list[str]:
    """The constraints that a table has."""
    return [name for name, _ in _stated(state)]


def violations(
    constraints: Iterable[Constraint], rows: pa.Table, envelopes: pa.Table
) -> Iterator[tuple[str, np.ndarray]]:
    """The message of each violated constraint, and the positions of its rows."""
    for each in constraints:
        table = pa.Table.from_arrays([rows[name] for name, _ in each.columns], [name for _, name in each.columns])
        table = table if each.columns else rows.select(rows.column_names[:1])
        seen = _where(each.sql).apply(table, envelopes, _NO_CLOCK)
        failed = seen.rejects.columns.index
        yield str(each), np.sort(np.concatenate([seen.filtered.to_numpy(), failed]))


@lru_cache(maxsize=256)
def _where(sql: str) -> Transform:
    return Transform([WhereStep(sql)])


class _Unknown(Exception):
    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why


def _stated(state: TableState) -> Iterator[tuple[str, str]]:
    """Names and conditions in Spark SQL."""
    for key, text in sorted(state.properties.items()):
        if key.lower().startswith(_CHECK):
            yield key[len(_CHECK) :], text
    for item in state.schema if _INVARIANTS.decode() in state.schema_json else ():
        if invariant := (item.metadata or {}).get(_INVARIANTS):
            yield f"{item.name}.invariant", str(json.loads(invariant)["expression"]["expression"])


@lru_cache(maxsize=256)
def _compiled(
    stated: tuple[tuple[str, str], ...],
    schema_json: str,
    declared: tuple[tuple[str, str], ...],
    partial: bool,
    history: tuple[str, ...],
) -> tuple[Constraint, ...]:
    schema, own = from_delta(schema_json), dict(declared)
    generated = {item.name: item.metadata[GENERATED].decode() for item in schema if GENERATED in (item.metadata or {})}
    columns = pa.schema([item for item in schema if item.name not in generated])
    constraints = [
        _declared(name, text, own[name], columns)
        if name in own
        else _read(name, text, columns, generated, partial, history)
        for name, text in stated
    ]
    return (*constraints, *(_length(item) for item in columns if _LENGTH in (item.metadata or {})))


def _length(item: pa.Field) -> Constraint:
    """The maximum number of characters of a text column."""
    kind = item.metadata[_LENGTH].decode()
    most = re.fullmatch(r"(?:var)?char\((\d+)\)", kind)
    if most is None:
        raise _Unknown(f"{item.name}.length", f"length limits of nested fields are not supported ({kind})")
    return Constraint(f"{item.name}.length", kind, f"c0 IS NULL OR length(c0) <= {most[1]}", ((item.name, "c0"),))


def _read(
    name: str, text: str, columns: pa.Schema, generated: Mapping[str, str], partial: bool, history: tuple[str, ...]
) -> Constraint:
    if partial:
        raise _Unknown(name, "with merge.update, a change has only some columns of a row")
    try:
        translation = translated(text, columns, generated)
        if translation.type != pa.bool_():
            raise ExpressionNotAllowed("a result that is not a boolean")
    except ExpressionNotAllowed as refused:
        raise _Unknown(name, f"unsupported: {refused.message.removesuffix(' in it').removesuffix(',')}") from None
    if scd2_columns := sorted({*translation.columns} & {*history}):
        raise _Unknown(name, f"it reads {scd2_columns[0]}, which only a merge sets")
    return Constraint(
        name, text, translation.sql, tuple((column, f"c{nth}") for nth, column in enumerate(translation.columns))
    )


def _declared(name: str, text: str, sql: str, columns: pa.Schema) -> Constraint:
    """A constraint as the spec has it."""
    if errors := check_sql(sql, columns.names):
        raise _Unknown(name, f"table.constraints.{name}: {errors[0]}")
    names = {column.lower(): column for column in columns.names}
    read = sorted({names[each.lower()] for each in columns_in(sql) if each.lower() in names})
    try:
        _where(sql).output(pa.schema([columns.field(each) for each in read] or list(columns)[:1]))
    except UsageError as error:
        raise _Unknown(name, f"table.constraints.{name}: {error.message}") from None
    return Constraint(name, text, sql, tuple((each, each) for each in read))
