"""Compile JMESPath to SQL where the result is provably the same.

Each expression becomes a vector: SQL for the value, its type, and conditions for the value to be certain. With a column
p1_ for `name`, the expression `name || 'none'` is `CASE WHEN coalesce(p1_ <> '', false) THEN p1_ ELSE 'none' END`,
because the empty text is false in JMESPath. An uncertain value (an error, a number near the limits, a value of another
type than its column) is computed by the interpreter, record by record. So the SQL must never raise, and a condition
must never be true for a wrong value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.engine.duck import literal
from headrace.transform.jmespath.dialect import LONGEST_RESULT, Node
from headrace.transform.jmespath.vector import (
    BOOLEAN,
    DOUBLE,
    EXACT,
    LONG,
    NULL,
    SURE_WHOLE,
    TEXT,
    Loose,
    MessageColumnRef,
    NotInSql,
    PathStep,
    SqlVector,
    cast,
    equal,
    exists,
    faithful,
    iso8601_sql,
    json_kind_of,
    json_type_for,
    meets_map,
    message_path,
    ordered,
    path_of,
    same_kind,
    truth,
    whole_literal,
)


@dataclass
class Compiler:
    """Compiles expressions over columns; paths that are read from the message itself are collected in `places`."""

    columns: Sequence[MessageColumnRef]
    open: bool  # whether a path without a column is empty in every record
    skipped: frozenset[str] = frozenset()  # keys of records that have no column
    now: str = "now"
    places: dict[str, int] = field(default_factory=dict)  # JSON paths that are read from the message
    parts: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # fields of columns, read by themselves

    def compile(self, tree: Node, kind: pa.DataType, *, free: bool) -> SqlVector:
        """Compile an expression, to `kind` if only that determines the type; `free`: any type. Raises NotInSql."""
        path = path_of(tree)
        if path and (direct := self._direct(path)) and (free or direct.kind == kind):
            return direct
        vector = self._value(tree)
        return self._as(vector, json_type_for(kind)) if isinstance(vector, Loose) else vector

    def _direct(self, path: tuple[PathStep, ...]) -> SqlVector | None:
        """A column, or a part of it, unchanged: its type may differ from the message's."""
        for column in self.columns:
            if path[: len(column.path)] == column.path:
                vector = self._below(column.sql, column.type, path[len(column.path) :])
                return SqlVector(*vector) if vector and column.unchanged and not pa.types.is_null(vector[1]) else None
        return None

    def _value(self, node: Node) -> SqlVector | Loose:
        if (path := path_of(node)) is not None:
            return self._place(path)
        if handler := _HANDLERS.get(node["type"]):
            return handler(self, node)
        raise NotInSql(node["type"])

    def _vector(self, node: Node, kind: pa.DataType) -> SqlVector:
        """A value of one type; a value of another type is uncertain, or raises NotInSql."""
        vector = self._as(self._value(node), kind)
        if vector.kind != kind:
            raise NotInSql(f"{vector.kind} where {kind} is wanted")
        return vector

    def _number(self, node: Node) -> SqlVector:
        vector = self._value(node)
        vector = self._as(vector, DOUBLE) if isinstance(vector, Loose) else vector
        if vector.kind not in (LONG, DOUBLE):
            raise NotInSql("no number")
        return vector

    # ---- paths ----

    def _place(self, path: tuple[PathStep, ...]) -> SqlVector | Loose:
        if not path:
            raise NotInSql("the whole message")
        for column in self.columns:
            if path[: len(column.path)] == column.path:
                return self._inside(column, path[len(column.path) :], path)
        if any(column.path[: len(path)] == path for column in self.columns):
            raise NotInSql("an object that columns know in parts")
        return self._unknown(path)

    def _unknown(self, path: tuple[PathStep, ...]) -> SqlVector | Loose:
        if self.open and path[0] not in self.skipped:
            return SqlVector("NULL", NULL)
        return self._cut(path)

    def _cut(self, path: tuple[PathStep, ...]) -> Loose:
        where = message_path(path)
        nth = self.places.setdefault(where, len(self.places) + 1)
        return Loose(f"cuts[{nth}]")

    def _inside(
        self, column: MessageColumnRef, rest: tuple[PathStep, ...], path: tuple[PathStep, ...]
    ) -> SqlVector | Loose:
        vector = self._below(column.sql, column.type, rest)
        if not column.unchanged or vector is None:
            empty = column.unchanged and self.open and not meets_map(column.type, rest)
            return SqlVector("NULL", NULL) if empty else self._cut(path)
        return self._plain(*vector) or self._cut(path)

    def _below(self, sql: str, kind: pa.DataType, rest: tuple[PathStep, ...]) -> tuple[str, pa.DataType] | None:
        """A path inside a column; NULL if the type does not have it, None if the message must be read.

        Fields of objects are read as columns of their own, so that DuckDB does not read the whole object.
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

    def _plain(self, sql: str, kind: pa.DataType) -> SqlVector | None:
        """A column's value, if it equals the message's."""
        if pa.types.is_null(kind):
            return SqlVector("NULL", NULL)
        if pa.types.is_integer(kind):
            return SqlVector(f"CAST({sql} AS BIGINT)", LONG)
        if kind in (BOOLEAN, DOUBLE, TEXT):
            return SqlVector(sql, kind)
        if pa.types.is_list(kind) and faithful(kind):
            return SqlVector(sql, kind)
        return None

    def _as(self, vector: SqlVector | Loose, kind: pa.DataType) -> SqlVector:
        """The JSON at a path as a value of one type, uncertain if it has another type."""
        if isinstance(vector, SqlVector):
            return vector
        seen = f"json_type({vector.sql})"
        if kind == TEXT:
            return SqlVector(f"({vector.sql} ->> '$')", TEXT, (f"coalesce({seen} IN ('VARCHAR', 'NULL'), true)",))
        if kind == BOOLEAN:
            return SqlVector(cast(vector.sql, "BOOLEAN"), BOOLEAN, (f"coalesce({seen} IN ('BOOLEAN', 'NULL'), true)",))
        if kind == LONG:
            value = cast(vector.sql, "BIGINT")
            good = f"coalesce({seen} = 'NULL' OR ({seen} IN ('BIGINT', 'UBIGINT') AND {value} IS NOT NULL), true)"
            return SqlVector(value, LONG, (good,))
        if kind == DOUBLE:
            good = f"coalesce({seen} IN ('DOUBLE', 'BIGINT', 'UBIGINT', 'NULL'), true)"
            return SqlVector(cast(vector.sql, "DOUBLE"), DOUBLE, (good,))
        raise NotInSql(f"JSON as {kind}")

    # ---- nodes ----

    def _literal(self, node: Node) -> SqlVector:
        value = node["value"]
        if value is None:
            return SqlVector("NULL", NULL)
        if isinstance(value, bool):
            return SqlVector("true" if value else "false", BOOLEAN)
        if isinstance(value, int) and abs(value) <= SURE_WHOLE:
            return SqlVector(f"CAST({value} AS BIGINT)", LONG)
        if isinstance(value, float):
            return SqlVector(f"CAST('{value!r}' AS DOUBLE)", DOUBLE)
        if isinstance(value, str) and "\0" not in value:
            return SqlVector(literal(value), TEXT)
        raise NotInSql("a literal")

    def _alike(self, nodes: Iterable[Node]) -> list[SqlVector]:
        """Values of one common type; values read from the message take the type of the others."""
        vectors = [self._value(node) for node in nodes]
        kinds = {vector.kind for vector in vectors if isinstance(vector, SqlVector)} - {NULL}
        if kinds == {LONG, DOUBLE}:
            kinds = {DOUBLE}
        if len(kinds) > 1 or (not kinds and any(isinstance(vector, Loose) for vector in vectors)):
            raise NotInSql("values of several types")
        kind = next(iter(kinds), NULL)
        return [same_kind(self._as(vector, kind), kind) for vector in vectors]

    def _comparator(self, node: Node) -> SqlVector:
        left, right = (self._value(child) for child in node["children"])
        if isinstance(left, Loose) and isinstance(right, Loose):
            raise NotInSql("two places of no known type")
        one = self._as(left, right.kind if isinstance(right, SqlVector) else NULL)
        two = self._as(right, one.kind)
        if node["value"] in ("eq", "ne"):
            vector = equal(one, two)
            return vector if node["value"] == "eq" else replace(vector, sql=f"NOT {vector.sql}")
        return ordered(node["value"], one, two)

    def _or(self, node: Node) -> SqlVector:
        left, right = self._alike(node["children"])
        chosen = f"CASE WHEN {truth(left)} THEN {left.sql} ELSE {right.sql} END"
        return SqlVector(chosen, json_kind_of(left, right), (*left.sure, *right.sure))

    def _and(self, node: Node) -> SqlVector:
        left, right = self._alike(node["children"])
        chosen = f"CASE WHEN {truth(left)} THEN {right.sql} ELSE {left.sql} END"
        return SqlVector(chosen, json_kind_of(left, right), (*left.sure, *right.sure))

    def _not(self, node: Node) -> SqlVector:
        vector = self._value(node["children"][0])
        if isinstance(vector, Loose):
            raise NotInSql("a place of no known type")
        return SqlVector(f"(NOT {truth(vector)})", BOOLEAN, vector.sure)

    def _call(self, node: Node) -> SqlVector:
        if function := _FUNCTIONS.get(node["value"]):
            return function(self, node["children"])
        raise NotInSql(node["value"])

    # ---- functions ----

    def _substr(self, arguments: list[Node]) -> SqlVector:
        text = self._vector(arguments[0], TEXT)
        skip, take = (whole_literal(each) for each in arguments[1:])
        return SqlVector(f"substr({text.sql}, {skip + 1}, {take})", TEXT, (*text.sure, exists(text)))

    def _micros(self, arguments: list[Node], factor: int) -> tuple[str, tuple[str, ...]]:
        """An epoch in microseconds, certain within the years 1677 to 2262."""
        number = self._number(arguments[0])
        limit = min(EXACT, 9_223_372_036_000_000 // factor)
        whole = number.sql if number.kind == LONG else f"TRY_CAST(trunc({number.sql}) AS BIGINT)"
        near = f"coalesce({number.sql} BETWEEN -{limit} AND {limit}, false)"
        return f"({whole} * {factor})", (*number.sure, near)

    def _iso8601(self, factor: int) -> Callable[[list[Node]], SqlVector]:
        def compile_call(arguments: list[Node]) -> SqlVector:
            micros, sure = self._micros(arguments, factor)
            return SqlVector(iso8601_sql(f"CASE WHEN {' AND '.join(sure)} THEN {micros} END", factor), TEXT, sure)

        return compile_call

    def _nanos(self, arguments: list[Node]) -> SqlVector:
        number = self._number(arguments[0])
        near = f"coalesce({number.sql} BETWEEN 0 AND 9000000000000000000, false)"
        sure = (*number.sure, near)
        whole = f"CAST(trunc(CAST({number.sql} AS DOUBLE)) AS BIGINT) // 1000"
        return SqlVector(iso8601_sql(f"CASE WHEN {' AND '.join(sure)} THEN {whole} END", 1), TEXT, sure)

    def _micro(self, arguments: list[Node]) -> SqlVector:
        micros, sure = self._micros(arguments, 1000)
        return SqlVector(f"CASE WHEN {' AND '.join(sure)} THEN {micros} END", LONG, sure)

    def _seconds_now(self, _: list[Node]) -> SqlVector:
        return SqlVector(self.now, LONG)

    def _to_string(self, arguments: list[Node]) -> SqlVector:
        vector = self._as(self._value(arguments[0]), TEXT)
        if vector.kind == LONG:
            vector = replace(vector, sql=f"CAST({vector.sql} AS VARCHAR)")
        elif vector.kind == BOOLEAN:
            vector = replace(vector, sql=f"CASE WHEN {vector.sql} THEN 'true' WHEN NOT {vector.sql} THEN 'false' END")
        elif vector.kind not in (TEXT, NULL):
            raise NotInSql("its text")
        return SqlVector(f"coalesce({vector.sql}, 'null')", TEXT, vector.sure)

    def _to_number(self, arguments: list[Node]) -> SqlVector:
        vector = self._value(arguments[0])
        if isinstance(vector, SqlVector) and vector.kind in (LONG, DOUBLE):
            return vector
        text = self._vector(arguments[0], TEXT)
        pattern = r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?"
        good = f"({text.sql} IS NULL OR regexp_full_match({text.sql}, '{pattern}'))"
        return SqlVector(f"TRY_CAST({text.sql} AS DOUBLE)", DOUBLE, (*text.sure, good))

    def _length(self, arguments: list[Node]) -> SqlVector:
        vector = self._as(self._value(arguments[0]), TEXT)
        if vector.kind == TEXT:
            return SqlVector(f"length({vector.sql})", LONG, (*vector.sure, exists(vector)))
        if pa.types.is_list(vector.kind):
            return SqlVector(f"len({vector.sql})", LONG, (*vector.sure, exists(vector)))
        raise NotInSql("its length")

    def _contains(self, arguments: list[Node]) -> SqlVector:
        hay = self._as(self._value(arguments[0]), TEXT)
        needle = self._vector(arguments[1], TEXT)
        sure = (*hay.sure, *needle.sure, exists(hay), exists(needle))
        if hay.kind == TEXT:
            return SqlVector(f"contains({hay.sql}, {needle.sql})", BOOLEAN, sure)
        if pa.types.is_list(hay.kind) and hay.kind.value_type == TEXT:
            return SqlVector(f"list_contains({hay.sql}, {needle.sql})", BOOLEAN, sure)
        raise NotInSql("what it contains")

    def _texts(self, sql: str) -> Callable[[list[Node]], SqlVector]:
        def compile_call(arguments: list[Node]) -> SqlVector:
            one, two = (self._vector(each, TEXT) for each in arguments)
            return SqlVector(f"{sql}({one.sql}, {two.sql})", BOOLEAN, (*one.sure, *two.sure, exists(one), exists(two)))

        return compile_call

    def _join(self, arguments: list[Node]) -> SqlVector:
        glue, parts = self._vector(arguments[0], TEXT), self._value(arguments[1])
        if isinstance(parts, Loose) or not (pa.types.is_list(parts.kind) and parts.kind.value_type == TEXT):
            raise NotInSql("join")
        whole = f"coalesce(list_count({parts.sql}) = len({parts.sql}), false)"
        whole += f" AND coalesce(length({glue.sql}) * len({parts.sql}) <= {LONGEST_RESULT}, false)"
        joined = f"CASE WHEN {whole} THEN coalesce(array_to_string({parts.sql}, {glue.sql}), '') END"
        return SqlVector(joined, TEXT, (*glue.sure, *parts.sure, exists(glue), whole))

    def _not_null(self, arguments: list[Node]) -> SqlVector:
        vectors = self._alike(arguments)
        sure = tuple(test for vector in vectors for test in vector.sure)
        return SqlVector(f"coalesce({', '.join(vector.sql for vector in vectors)})", json_kind_of(*vectors), sure)

    def _type(self, arguments: list[Node]) -> SqlVector:
        vector = self._value(arguments[0])
        if isinstance(vector, Loose):
            raise NotInSql("a place of no known type")
        names = {TEXT: "string", LONG: "number", DOUBLE: "number", BOOLEAN: "boolean", NULL: "null"}
        name = names.get(vector.kind, "array")
        return SqlVector(f"CASE WHEN {vector.sql} IS NULL THEN 'null' ELSE '{name}' END", TEXT, vector.sure)

    def _rounded(self, sql: str) -> Callable[[list[Node]], SqlVector]:
        def compile_call(arguments: list[Node]) -> SqlVector:
            number = self._number(arguments[0])
            return SqlVector(f"{sql}(CAST({number.sql} AS DOUBLE))", DOUBLE, (*number.sure, exists(number)))

        return compile_call


_HANDLERS: dict[str, Callable[[Compiler, Node], SqlVector]] = {
    "literal": Compiler._literal,
    "comparator": Compiler._comparator,
    "or_expression": Compiler._or,
    "and_expression": Compiler._and,
    "not_expression": Compiler._not,
    "function_expression": Compiler._call,
}
_FUNCTIONS: dict[str, Callable[[Compiler, list[Any]], SqlVector]] = {
    "substr": Compiler._substr,
    "epoch_seconds_to_iso8601": lambda self, arguments: self._iso8601(1_000_000)(arguments),
    "epoch_millis_to_iso8601": lambda self, arguments: self._iso8601(1_000)(arguments),
    "epoch_micros_to_iso8601": lambda self, arguments: self._iso8601(1)(arguments),
    "epoch_nanos_to_iso8601": Compiler._nanos,
    "epoch_millis_to_micro": Compiler._micro,
    "now_epoch_seconds": Compiler._seconds_now,
    "to_string": Compiler._to_string,
    "to_number": Compiler._to_number,
    "length": Compiler._length,
    "contains": Compiler._contains,
    "starts_with": lambda self, arguments: self._texts("starts_with")(arguments),
    "ends_with": lambda self, arguments: self._texts("ends_with")(arguments),
    "join": Compiler._join,
    "not_null": Compiler._not_null,
    "type": Compiler._type,
    "abs": lambda self, arguments: self._rounded("abs")(arguments),
    "ceil": lambda self, arguments: self._rounded("ceil")(arguments),
    "floor": lambda self, arguments: self._rounded("floor")(arguments),
}
