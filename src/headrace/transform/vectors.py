"""JMESPath as SQL, where that is provably the same: each expression a value and the rows it is sure of.

What a vector is not sure of (a failure, a number near the limits, a value of another type than its column's) is left
to the interpreter, record by record. So no SQL here may raise, and none may be sure of more than it proves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.duck import literal, quote
from headrace.transform.dialect import LONGEST_RESULT, Node

BOOLEAN, LONG, DOUBLE, TEXT, NULL = pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.null()

SURE_WHOLE = 1 << 51  # whole numbers up to here are the same as doubles, and no two of them nearly equal
EXACT = 1 << 53  # whole numbers up to here are the same as doubles

Step = str | int  # of a path: an object's key or an array's index


class NotInSql(Exception):
    """The expression is left to the interpreter."""


@dataclass(frozen=True, slots=True)
class Vector:
    """SQL for an expression's value, its type, and what must be true for the value to be right."""

    sql: str
    kind: pa.DataType
    sure: tuple[str, ...] = ()

    def given(self, *tests: str) -> Vector:
        """The same, sure of less."""
        return replace(self, sure=(*self.sure, *tests))


@dataclass(frozen=True, slots=True)
class Loose:
    """A place in the message whose type only the record tells: SQL for its JSON."""

    sql: str


@dataclass(frozen=True, slots=True)
class Column:
    """A payload column, and the path in the message that it is read from."""

    path: tuple[str, ...]
    sql: str
    type: pa.DataType
    told: bool = True  # False: something else stands in it (a default, a text that was kept)


@dataclass
class Compiler:
    """Expressions over some columns; what they ask of the message itself is collected in `places`."""

    columns: Sequence[Column]
    open: bool  # whether a place that no column knows is empty in every record
    skipped: frozenset[str] = frozenset()  # keys that are known and read into no column
    now: str = "now"
    places: dict[str, int] = field(default_factory=dict)  # JSON paths that are cut out of the message
    parts: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # fields of columns, read by themselves

    def compile(self, tree: Node, wanted: pa.DataType, *, free: bool) -> Vector:
        """The expression, of the wanted type where only that tells; `free`: any type will do. NotInSql: ask records."""
        path = path_of(tree)
        if path and (direct := self._direct(path)) and (free or direct.kind == wanted):
            return direct
        made = self._value(tree)
        return self._as(made, _told(wanted)) if isinstance(made, Loose) else made

    def _direct(self, path: tuple[Step, ...]) -> Vector | None:
        """A column, or a part of one, as it is: to store it once more, its type need not be the message's."""
        for column in self.columns:
            if path[: len(column.path)] == column.path:
                found = self._below(column.sql, column.type, path[len(column.path) :])
                return Vector(*found) if found and column.told and not pa.types.is_null(found[1]) else None
        return None

    def _value(self, node: Node) -> Vector | Loose:
        if (path := path_of(node)) is not None:
            return self._place(path)
        if handler := _HANDLERS.get(node["type"]):
            return handler(self, node)
        raise NotInSql(node["type"])

    def _vector(self, node: Node, kind: pa.DataType) -> Vector:
        """A value that should be of one type; of another it is unsure, or nothing to compute with."""
        made = self._as(self._value(node), kind)
        if made.kind != kind:
            raise NotInSql(f"{made.kind} where {kind} is wanted")
        return made

    def _number(self, node: Node) -> Vector:
        made = self._value(node)
        made = self._as(made, DOUBLE) if isinstance(made, Loose) else made
        if made.kind not in (LONG, DOUBLE):
            raise NotInSql("no number")
        return made

    # ---- places ----

    def _place(self, path: tuple[Step, ...]) -> Vector | Loose:
        if not path:
            raise NotInSql("the whole message")
        for column in self.columns:
            if path[: len(column.path)] == column.path:
                return self._inside(column, path[len(column.path) :], path)
        if any(column.path[: len(path)] == path for column in self.columns):
            raise NotInSql("an object that columns know in parts")
        return self._unknown(path)

    def _unknown(self, path: tuple[Step, ...]) -> Vector | Loose:
        if self.open and path[0] not in self.skipped:
            return Vector("NULL", NULL)
        return self._cut(path)

    def _cut(self, path: tuple[Step, ...]) -> Loose:
        where = _json_path(path)
        nth = self.places.setdefault(where, len(self.places) + 1)
        return Loose(f"cuts[{nth}]")

    def _inside(self, column: Column, rest: tuple[Step, ...], path: tuple[Step, ...]) -> Vector | Loose:
        found = self._below(column.sql, column.type, rest)
        if not column.told or found is None:
            empty = column.told and self.open and not _meets_map(column.type, rest)
            return Vector("NULL", NULL) if empty else self._cut(path)
        return self._plain(*found) or self._cut(path)

    def _below(self, sql: str, kind: pa.DataType, rest: tuple[Step, ...]) -> tuple[str, pa.DataType] | None:
        """A place inside of a column; NULL where its type has none such, None where the message must be asked.

        The fields of objects are columns themselves: then DuckDB need not see the whole object.
        """
        whole, keys, nested = sql, list[str](), False
        for step in rest:
            if pa.types.is_struct(kind) and isinstance(step, str):
                if (at := kind.get_field_index(step)) < 0:
                    return None
                keys, kind = [*keys, step], kind.field(at).type
                sql = f"struct_extract({sql}, {literal(step)})" if nested else self._part(whole, tuple(keys))
            elif pa.types.is_list(kind) and isinstance(step, int):
                sql, kind = f"list_extract({sql}, {step + 1 if step >= 0 else step})", kind.value_type
                nested = True
            elif pa.types.is_map(kind):
                return None
            else:
                return "NULL", NULL
        return sql, kind

    def _part(self, column: str, keys: tuple[str, ...]) -> str:
        name = next(
            (name for name, part in self.parts.items() if part == (column, keys)), f"{column}{len(self.parts)}_"
        )
        self.parts[name] = (column, keys)
        return name

    def _plain(self, sql: str, kind: pa.DataType) -> Vector | None:
        """A column's value, if it is what the message says."""
        if pa.types.is_null(kind):
            return Vector("NULL", NULL)
        if pa.types.is_integer(kind):
            return Vector(f"CAST({sql} AS BIGINT)", LONG)
        if kind in (BOOLEAN, DOUBLE, TEXT):
            return Vector(sql, kind)
        if pa.types.is_list(kind) and faithful(kind):
            return Vector(sql, kind)
        return None

    def _as(self, made: Vector | Loose, kind: pa.DataType) -> Vector:
        """A place's JSON as a value of one type, unsure where it is of another."""
        if isinstance(made, Vector):
            return made
        seen = f"json_type({made.sql})"
        if kind == TEXT:
            return Vector(f"({made.sql} ->> '$')", TEXT, (f"coalesce({seen} IN ('VARCHAR', 'NULL'), true)",))
        if kind == BOOLEAN:
            return Vector(_cast(made.sql, "BOOLEAN"), BOOLEAN, (f"coalesce({seen} IN ('BOOLEAN', 'NULL'), true)",))
        if kind == LONG:
            value = _cast(made.sql, "BIGINT")
            good = f"coalesce({seen} = 'NULL' OR ({seen} IN ('BIGINT', 'UBIGINT') AND {value} IS NOT NULL), true)"
            return Vector(value, LONG, (good,))
        if kind == DOUBLE:
            good = f"coalesce({seen} IN ('DOUBLE', 'BIGINT', 'UBIGINT', 'NULL'), true)"
            return Vector(_cast(made.sql, "DOUBLE"), DOUBLE, (good,))
        raise NotInSql(f"JSON as {kind}")

    # ---- nodes ----

    def _literal(self, node: Node) -> Vector:
        value = node["value"]
        if value is None:
            return Vector("NULL", NULL)
        if isinstance(value, bool):
            return Vector("true" if value else "false", BOOLEAN)
        if isinstance(value, int) and abs(value) <= SURE_WHOLE:
            return Vector(f"CAST({value} AS BIGINT)", LONG)
        if isinstance(value, float):
            return Vector(f"CAST('{value!r}' AS DOUBLE)", DOUBLE)
        if isinstance(value, str) and "\0" not in value:
            return Vector(literal(value), TEXT)
        raise NotInSql("a literal")

    def _alike(self, nodes: Iterable[Node]) -> list[Vector]:
        """Values of one type; places take it from the others."""
        found = [self._value(node) for node in nodes]
        kinds = {made.kind for made in found if isinstance(made, Vector)} - {NULL}
        if kinds == {LONG, DOUBLE}:
            kinds = {DOUBLE}
        if len(kinds) > 1 or (not kinds and any(isinstance(made, Loose) for made in found)):
            raise NotInSql("values of several types")
        kind = next(iter(kinds), NULL)
        return [_same_kind(self._as(made, kind), kind) for made in found]

    def _comparator(self, node: Node) -> Vector:
        left, right = (self._value(child) for child in node["children"])
        if isinstance(left, Loose) and isinstance(right, Loose):
            raise NotInSql("two places of no known type")
        one = self._as(left, right.kind if isinstance(right, Vector) else NULL)
        two = self._as(right, one.kind)
        if node["value"] in ("eq", "ne"):
            made = _equal(one, two)
            return made if node["value"] == "eq" else replace(made, sql=f"NOT {made.sql}")
        return _ordered(node["value"], one, two)

    def _or(self, node: Node) -> Vector:
        left, right = self._alike(node["children"])
        chosen = f"CASE WHEN {_truth(left)} THEN {left.sql} ELSE {right.sql} END"
        return Vector(chosen, _kind_of(left, right), (*left.sure, *right.sure))

    def _and(self, node: Node) -> Vector:
        left, right = self._alike(node["children"])
        chosen = f"CASE WHEN {_truth(left)} THEN {right.sql} ELSE {left.sql} END"
        return Vector(chosen, _kind_of(left, right), (*left.sure, *right.sure))

    def _not(self, node: Node) -> Vector:
        made = self._value(node["children"][0])
        if isinstance(made, Loose):
            raise NotInSql("a place of no known type")
        return Vector(f"(NOT {_truth(made)})", BOOLEAN, made.sure)

    def _call(self, node: Node) -> Vector:
        if function := _FUNCTIONS.get(node["value"]):
            return function(self, node["children"])
        raise NotInSql(node["value"])

    # ---- functions ----

    def _substr(self, arguments: list[Node]) -> Vector:
        text = self._vector(arguments[0], TEXT)
        skip, take = (_whole_literal(each) for each in arguments[1:])
        return Vector(f"substr({text.sql}, {skip + 1}, {take})", TEXT, (*text.sure, _there(text)))

    def _micros(self, arguments: list[Node], factor: int) -> tuple[str, tuple[str, ...]]:
        """An epoch as microseconds, and where it surely is one of the years 1677 to 2262."""
        number = self._number(arguments[0])
        limit = min(EXACT, 9_223_372_036_000_000 // factor)
        whole = number.sql if number.kind == LONG else f"TRY_CAST(trunc({number.sql}) AS BIGINT)"
        near = f"coalesce({number.sql} BETWEEN -{limit} AND {limit}, false)"
        return f"({whole} * {factor})", (*number.sure, near)

    def _iso8601(self, factor: int) -> Callable[[list[Node]], Vector]:
        def made(arguments: list[Node]) -> Vector:
            micros, sure = self._micros(arguments, factor)
            return Vector(_iso8601(f"CASE WHEN {' AND '.join(sure)} THEN {micros} END", factor), TEXT, sure)

        return made

    def _nanos(self, arguments: list[Node]) -> Vector:
        number = self._number(arguments[0])
        near = f"coalesce({number.sql} BETWEEN 0 AND 9000000000000000000, false)"
        sure = (*number.sure, near)
        whole = f"CAST(trunc(CAST({number.sql} AS DOUBLE)) AS BIGINT) // 1000"
        return Vector(_iso8601(f"CASE WHEN {' AND '.join(sure)} THEN {whole} END", 1), TEXT, sure)

    def _micro(self, arguments: list[Node]) -> Vector:
        micros, sure = self._micros(arguments, 1000)
        return Vector(f"CASE WHEN {' AND '.join(sure)} THEN {micros} END", LONG, sure)

    def _seconds_now(self, _: list[Node]) -> Vector:
        return Vector(self.now, LONG)

    def _to_string(self, arguments: list[Node]) -> Vector:
        made = self._as(self._value(arguments[0]), TEXT)
        if made.kind == LONG:
            made = replace(made, sql=f"CAST({made.sql} AS VARCHAR)")
        elif made.kind == BOOLEAN:
            made = replace(made, sql=f"CASE WHEN {made.sql} THEN 'true' WHEN NOT {made.sql} THEN 'false' END")
        elif made.kind not in (TEXT, NULL):
            raise NotInSql("its text")
        return Vector(f"coalesce({made.sql}, 'null')", TEXT, made.sure)

    def _to_number(self, arguments: list[Node]) -> Vector:
        made = self._value(arguments[0])
        if isinstance(made, Vector) and made.kind in (LONG, DOUBLE):
            return made
        text = self._vector(arguments[0], TEXT)
        pattern = r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?"
        good = f"({text.sql} IS NULL OR regexp_full_match({text.sql}, '{pattern}'))"
        return Vector(f"TRY_CAST({text.sql} AS DOUBLE)", DOUBLE, (*text.sure, good))

    def _length(self, arguments: list[Node]) -> Vector:
        made = self._as(self._value(arguments[0]), TEXT)
        if made.kind == TEXT:
            return Vector(f"length({made.sql})", LONG, (*made.sure, _there(made)))
        if pa.types.is_list(made.kind):
            return Vector(f"len({made.sql})", LONG, (*made.sure, _there(made)))
        raise NotInSql("its length")

    def _contains(self, arguments: list[Node]) -> Vector:
        hay = self._as(self._value(arguments[0]), TEXT)
        needle = self._vector(arguments[1], TEXT)
        sure = (*hay.sure, *needle.sure, _there(hay), _there(needle))
        if hay.kind == TEXT:
            return Vector(f"contains({hay.sql}, {needle.sql})", BOOLEAN, sure)
        if pa.types.is_list(hay.kind) and hay.kind.value_type == TEXT:
            return Vector(f"list_contains({hay.sql}, {needle.sql})", BOOLEAN, sure)
        raise NotInSql("what it contains")

    def _texts(self, sql: str) -> Callable[[list[Node]], Vector]:
        def made(arguments: list[Node]) -> Vector:
            one, two = (self._vector(each, TEXT) for each in arguments)
            return Vector(f"{sql}({one.sql}, {two.sql})", BOOLEAN, (*one.sure, *two.sure, _there(one), _there(two)))

        return made

    def _join(self, arguments: list[Node]) -> Vector:
        glue, parts = self._vector(arguments[0], TEXT), self._value(arguments[1])
        if isinstance(parts, Loose) or not (pa.types.is_list(parts.kind) and parts.kind.value_type == TEXT):
            raise NotInSql("join")
        whole = f"coalesce(list_count({parts.sql}) = len({parts.sql}), false)"
        whole += f" AND coalesce(length({glue.sql}) * len({parts.sql}) <= {LONGEST_RESULT}, false)"
        joined = f"CASE WHEN {whole} THEN coalesce(array_to_string({parts.sql}, {glue.sql}), '') END"
        return Vector(joined, TEXT, (*glue.sure, *parts.sure, _there(glue), whole))

    def _not_null(self, arguments: list[Node]) -> Vector:
        found = self._alike(arguments)
        sure = tuple(test for made in found for test in made.sure)
        return Vector(f"coalesce({', '.join(made.sql for made in found)})", _kind_of(*found), sure)

    def _type(self, arguments: list[Node]) -> Vector:
        made = self._value(arguments[0])
        if isinstance(made, Loose):
            raise NotInSql("a place of no known type")
        names = {TEXT: "string", LONG: "number", DOUBLE: "number", BOOLEAN: "boolean", NULL: "null"}
        name = names.get(made.kind, "array")
        return Vector(f"CASE WHEN {made.sql} IS NULL THEN 'null' ELSE '{name}' END", TEXT, made.sure)

    def _rounded(self, sql: str) -> Callable[[list[Node]], Vector]:
        def made(arguments: list[Node]) -> Vector:
            number = self._number(arguments[0])
            return Vector(f"{sql}(CAST({number.sql} AS DOUBLE))", DOUBLE, (*number.sure, _there(number)))

        return made


def _meets_map(kind: pa.DataType, rest: tuple[Step, ...]) -> bool:
    for step in rest:
        if pa.types.is_struct(kind) and isinstance(step, str) and (at := kind.get_field_index(step)) >= 0:
            kind = kind.field(at).type
        elif pa.types.is_list(kind) and isinstance(step, int):
            kind = kind.value_type
        else:
            break
    return bool(pa.types.is_map(kind))


def path_of(node: Node) -> tuple[Step, ...] | None:
    """The keys and indices of a plain path into the message; None when the expression is more than that."""
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
    """Whether a column of this type holds the message's values as they are (a whole number in a double is not told)."""
    if pa.types.is_list(kind):
        return faithful(kind.value_type)
    return bool(kind in (BOOLEAN, TEXT) or pa.types.is_signed_integer(kind))


def _json_path(path: tuple[Step, ...]) -> str:
    if any(isinstance(step, str) and (not step or set('"*\\\0') & set(step)) for step in path):
        raise NotInSql("a key that is no part of a path")
    return "$" + "".join(_json_step(step) for step in path)


def _json_step(step: Step) -> str:
    if isinstance(step, str):
        return f".{quote(step)}"
    return f"[{step}]" if step >= 0 else f"[#{step}]"


def _told(wanted: pa.DataType) -> pa.DataType:
    """As what JSON is read to be stored as the wanted type."""
    if pa.types.is_integer(wanted):
        return LONG
    if pa.types.is_floating(wanted):
        return DOUBLE
    if pa.types.is_boolean(wanted):
        return BOOLEAN
    if pa.types.is_string(wanted) or pa.types.is_timestamp(wanted) or pa.types.is_date(wanted):
        return TEXT
    raise NotInSql(f"JSON as {wanted}")


def _cast(sql: str, kind: str) -> str:
    return f"TRY_CAST({sql} AS {kind})"


def _there(made: Vector) -> str:
    return f"{made.sql} IS NOT NULL"


def _same_kind(made: Vector, kind: pa.DataType) -> Vector:
    if made.kind == kind or made.kind == NULL:
        return made
    return replace(made, sql=f"CAST({made.sql} AS DOUBLE)", kind=kind).given(_exact(made))


def _kind_of(*made: Vector) -> pa.DataType:
    return next((each.kind for each in made if each.kind != NULL), NULL)


def _exact(made: Vector) -> str:
    return f"coalesce({made.sql} BETWEEN -{EXACT} AND {EXACT}, true)"


def _whole_literal(node: Node) -> int:
    value = node["value"] if node["type"] == "literal" else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1 << 31:
        raise NotInSql("a number that is not written out")
    return max(0, int(value))


def _truth(made: Vector) -> str:
    if made.kind == TEXT:
        return f"coalesce({made.sql} <> '', false)"
    if made.kind == BOOLEAN:
        return f"coalesce({made.sql}, false)"
    if pa.types.is_list(made.kind):
        return f"coalesce(len({made.sql}) > 0, false)"
    return f"({made.sql} IS NOT NULL)"


def _equal(one: Vector, two: Vector) -> Vector:
    sure = (*one.sure, *two.sure)
    if NULL in (one.kind, two.kind):
        return Vector(f"({one.sql} IS NULL AND {two.sql} IS NULL)", BOOLEAN, sure)
    if {one.kind, two.kind} <= {LONG, DOUBLE}:
        near = (f"coalesce(abs({each.sql}) <= {SURE_WHOLE}, true)" for each in (one, two) if each.kind == LONG)
        left, right = (f"CAST({each.sql} AS DOUBLE)" for each in (one, two))
        # Doubles that are nearly equal count as equal: sure only of those far from it.
        apart = f"coalesce({left} = {right} OR abs({left} - {right}) > 1e-9 * (abs({left}) + abs({right})), true)"
        tests = tuple(near) if one.kind == two.kind == LONG else (*near, apart)
        return Vector(f"({left} IS NOT DISTINCT FROM {right})", BOOLEAN, (*sure, *tests))
    if one.kind != two.kind:
        return Vector(f"({one.sql} IS NULL AND {two.sql} IS NULL)", BOOLEAN, sure)
    if one.kind not in (TEXT, BOOLEAN):
        raise NotInSql("lists side by side")
    return Vector(f"({one.sql} IS NOT DISTINCT FROM {two.sql})", BOOLEAN, sure)


_ORDERS = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}


def _ordered(name: str, one: Vector, two: Vector) -> Vector:
    sure = (*one.sure, *two.sure)
    if not {one.kind, two.kind} <= {LONG, DOUBLE}:
        return Vector("NULL", NULL, sure)
    left, right = (f"CAST({each.sql} AS DOUBLE)" for each in (one, two))
    return Vector(f"({left} {_ORDERS[name]} {right})", BOOLEAN, sure)


def _iso8601(micros: str, factor: int) -> str:
    moment = f"make_timestamp({micros})"
    if factor == 1_000_000:
        return f"strftime({moment}, '%Y-%m-%dT%H:%M:%SZ')"
    fraction = f"(microsecond({moment}) % 1000000)"
    return (
        f"CASE WHEN {fraction} = 0 THEN strftime({moment}, '%Y-%m-%dT%H:%M:%SZ') "
        f"WHEN {fraction} % 1000 = 0 THEN strftime({moment}, '%Y-%m-%dT%H:%M:%S.%gZ') "
        f"ELSE strftime({moment}, '%Y-%m-%dT%H:%M:%S.%fZ') END"
    )


_HANDLERS: dict[str, Callable[[Compiler, Node], Vector]] = {
    "literal": Compiler._literal,
    "comparator": Compiler._comparator,
    "or_expression": Compiler._or,
    "and_expression": Compiler._and,
    "not_expression": Compiler._not,
    "function_expression": Compiler._call,
}
_FUNCTIONS: dict[str, Callable[[Compiler, list[Any]], Vector]] = {
    "substr": Compiler._substr,
    "epoch_seconds_to_iso8601": lambda self, given: self._iso8601(1_000_000)(given),
    "epoch_millis_to_iso8601": lambda self, given: self._iso8601(1_000)(given),
    "epoch_micros_to_iso8601": lambda self, given: self._iso8601(1)(given),
    "epoch_nanos_to_iso8601": Compiler._nanos,
    "epoch_millis_to_micro": Compiler._micro,
    "now_epoch_seconds": Compiler._seconds_now,
    "to_string": Compiler._to_string,
    "to_number": Compiler._to_number,
    "length": Compiler._length,
    "contains": Compiler._contains,
    "starts_with": lambda self, given: self._texts("starts_with")(given),
    "ends_with": lambda self, given: self._texts("ends_with")(given),
    "join": Compiler._join,
    "not_null": Compiler._not_null,
    "type": Compiler._type,
    "abs": lambda self, given: self._rounded("abs")(given),
    "ceil": lambda self, given: self._rounded("ceil")(given),
    "floor": lambda self, given: self._rounded("floor")(given),
}
