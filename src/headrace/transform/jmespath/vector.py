"""Vectors of JMESPath: SQL with its type and its conditions, and operations on one or two of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.engine.duck import quote
from headrace.transform.jmespath.dialect import Node

BOOLEAN, LONG, DOUBLE, TEXT, NULL = pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.null()

SURE_WHOLE = 1 << 51  # whole numbers up to here are the same as doubles, and no two of them nearly equal
EXACT = 1 << 53  # whole numbers up to here are the same as doubles

PathStep = str | int  # part of a path: an object's key or an array's index


class NotInSql(Exception):
    """The expression is left to the interpreter."""


@dataclass(frozen=True, slots=True)
class SqlVector:
    """SQL for an expression's value, its type, and the conditions for the value to be right."""

    sql: str
    kind: pa.DataType
    sure: tuple[str, ...] = ()

    def when(self, *tests: str) -> SqlVector:
        """The same, with more conditions."""
        return replace(self, sure=(*self.sure, *tests))


@dataclass(frozen=True, slots=True)
class Loose:
    """A path in the message whose type only the record tells: SQL for its JSON."""

    sql: str


@dataclass(frozen=True, slots=True)
class MessageColumnRef:
    """A payload column, and its path in the message."""

    path: tuple[str, ...]
    sql: str
    type: pa.DataType
    unchanged: bool = True  # False: the value differs from the message's (a default, JSON text)


def meets_map(kind: pa.DataType, rest: tuple[PathStep, ...]) -> bool:
    """Whether a path leads into a map."""
    for step in rest:
        if pa.types.is_struct(kind) and isinstance(step, str) and (at := kind.get_field_index(step)) >= 0:
            kind = kind.field(at).type
        elif pa.types.is_list(kind) and isinstance(step, int):
            kind = kind.value_type
        else:
            break
    return bool(pa.types.is_map(kind))


def path_of(node: Node) -> tuple[PathStep, ...] | None:
    """The keys and indices of a path into the message; None if the expression is more than a path."""
    match node["type"]:
        case "current" | "identity":
            return ()
        case "field" | "index":
            return (node["value"],)
        case "subexpression" | "index_expression" | "pipe":
            parts = [path_of(child) for child in node["children"]]
            whole = [step for part in parts if part is not None for step in part]
            return None if None in parts else tuple(whole)
    return None


def faithful(kind: pa.DataType) -> bool:
    """Whether a column of this type has the message's values unchanged (a double may be a whole number)."""
    if pa.types.is_list(kind):
        return faithful(kind.value_type)
    return bool(kind in (BOOLEAN, TEXT) or pa.types.is_signed_integer(kind))


def message_path(path: tuple[PathStep, ...]) -> str:
    """The path in DuckDB's syntax; raises NotInSql."""
    if any(isinstance(step, str) and (not step or set('"*\\\0') & set(step)) for step in path):
        raise NotInSql("a key that is no part of a path")
    return "$" + "".join(_json_step(step) for step in path)


def _json_step(step: PathStep) -> str:
    if isinstance(step, str):
        return f".{quote(step)}"
    return f"[{step}]" if step >= 0 else f"[#{step}]"


def json_type_for(kind: pa.DataType) -> pa.DataType:
    """The type to read JSON as for a column of this type."""
    if pa.types.is_integer(kind):
        return LONG
    if pa.types.is_floating(kind):
        return DOUBLE
    if pa.types.is_boolean(kind):
        return BOOLEAN
    if pa.types.is_string(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return TEXT
    raise NotInSql(f"JSON as {kind}")


def cast(sql: str, kind: str) -> str:
    """Cast to another type, NULL if the value does not fit."""
    return f"TRY_CAST({sql} AS {kind})"


def exists(vector: SqlVector) -> str:
    """SQL for whether there is a value."""
    return f"{vector.sql} IS NOT NULL"


def same_kind(vector: SqlVector, kind: pa.DataType) -> SqlVector:
    """Numbers of different types become doubles."""
    if vector.kind == kind or vector.kind == NULL:
        return vector
    return replace(vector, sql=f"CAST({vector.sql} AS DOUBLE)", kind=kind).when(exact_vector(vector))


def json_kind_of(*vectors: SqlVector) -> pa.DataType:
    """The first type that is not NULL."""
    return next((each.kind for each in vectors if each.kind != NULL), NULL)


def exact_vector(vector: SqlVector) -> str:
    """Conditions for a whole number to be exact as a double."""
    return f"coalesce({vector.sql} BETWEEN -{EXACT} AND {EXACT}, true)"


def whole_literal(node: Node) -> int:
    """A whole number in the expression itself."""
    value = node["value"] if node["type"] == "literal" else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1 << 31:
        raise NotInSql("a number that is not written out")
    return max(0, int(value))


def truth(vector: SqlVector) -> str:
    """SQL for truth in JMESPath."""
    if vector.kind == TEXT:
        return f"coalesce({vector.sql} <> '', false)"
    if vector.kind == BOOLEAN:
        return f"coalesce({vector.sql}, false)"
    if pa.types.is_list(vector.kind):
        return f"coalesce(len({vector.sql}) > 0, false)"
    return f"({vector.sql} IS NOT NULL)"


def equal(one: SqlVector, two: SqlVector) -> SqlVector:
    """SQL for equality in JMESPath."""
    sure = (*one.sure, *two.sure)
    if NULL in (one.kind, two.kind):
        return SqlVector(f"({one.sql} IS NULL AND {two.sql} IS NULL)", BOOLEAN, sure)
    if {one.kind, two.kind} <= {LONG, DOUBLE}:
        near = (f"coalesce(abs({each.sql}) <= {SURE_WHOLE}, true)" for each in (one, two) if each.kind == LONG)
        left, right = (f"CAST({each.sql} AS DOUBLE)" for each in (one, two))
        # Doubles within an epsilon are equal: certain only if they are far from it.
        apart = f"coalesce({left} = {right} OR abs({left} - {right}) > 1e-9 * (abs({left}) + abs({right})), true)"
        tests = tuple(near) if one.kind == two.kind == LONG else (*near, apart)
        return SqlVector(f"({left} IS NOT DISTINCT FROM {right})", BOOLEAN, (*sure, *tests))
    if one.kind != two.kind:
        return SqlVector(f"({one.sql} IS NULL AND {two.sql} IS NULL)", BOOLEAN, sure)
    if one.kind not in (TEXT, BOOLEAN):
        raise NotInSql("lists side by side")
    return SqlVector(f"({one.sql} IS NOT DISTINCT FROM {two.sql})", BOOLEAN, sure)


_ORDERS = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}


def ordered(name: str, one: SqlVector, two: SqlVector) -> SqlVector:
    """SQL for the order of two numbers; other values have no order."""
    sure = (*one.sure, *two.sure)
    if not {one.kind, two.kind} <= {LONG, DOUBLE}:
        return SqlVector("NULL", NULL, sure)
    left, right = (f"CAST({each.sql} AS DOUBLE)" for each in (one, two))
    return SqlVector(f"({left} {_ORDERS[name]} {right})", BOOLEAN, sure)


def iso8601_sql(micros: str, factor: int) -> str:
    """SQL for a timestamp as text, with as many fractional digits as needed."""
    moment = f"make_timestamp({micros})"
    if factor == 1_000_000:
        return f"strftime({moment}, '%Y-%m-%dT%H:%M:%SZ')"
    fraction = f"(microsecond({moment}) % 1000000)"
    return (
        f"CASE WHEN {fraction} = 0 THEN strftime({moment}, '%Y-%m-%dT%H:%M:%SZ') "
        f"WHEN {fraction} % 1000 = 0 THEN strftime({moment}, '%Y-%m-%dT%H:%M:%S.%gZ') "
        f"ELSE strftime({moment}, '%Y-%m-%dT%H:%M:%S.%fZ') END"
    )
