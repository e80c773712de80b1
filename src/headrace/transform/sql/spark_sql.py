"""Translate conditions of a Delta table from Spark SQL; only those that have the same result in DuckDB.

The text is split into Spark's tokens, written with DuckDB's, parsed by DuckDB and generated with explicit types:
`id > 0 AND "x" < s` becomes `(CAST("c0" AS BIGINT) > CAST(0 AS BIGINT)) AND ('x' < "c1")`. Expressions that may differ
between the engines (regular expressions, division, decimal arithmetic, …) are ExpressionNotAllowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.engine.duck import literal, quote
from headrace.spec.types import TIMESTAMP, TIMESTAMP_NTZ, type_name
from headrace.transform.sql.parser import ExpressionNotAllowed, Node, parse_sql
from headrace.transform.sql.result_types import sql_type

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<quoted>`(?:[^`]|``)*`)
    | (?P<text>'[^'\\]*'(?!')|"[^"\\]*"(?!"))
    | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)(?P<suffix>[A-Za-z_]\w*)?
    | (?P<word>[A-Za-z_]\w*)
    | (?P<symbol><=>|==|<>|!=|>=|<=|[=<>(),.+*%]|-(?!-))
    )""",
    re.VERBOSE,
)
_SYMBOLS = {"<=>": "IS NOT DISTINCT FROM", "==": "=", "!=": "<>"}
_KEYWORDS = frozenset(["and", "or", "not", "in", "is", "null", "true", "false", "between", "like"]) | {
    *("case", "when", "then", "else", "end", "cast", "as")
}
_TYPES = frozenset(["date", "timestamp", "bigint", "int", "integer", "smallint", "tinyint"])
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)?)?")
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_WIDE = pa.decimal128(38, 18)  # any decimal with up to 20 digits before and 18 after the point
_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}


@dataclass(frozen=True)
class Translated:
    """An expression over columns `c0`, `c1`, …, and the columns that they are."""

    sql: str
    type: pa.DataType
    columns: tuple[str, ...]


@dataclass(frozen=True)
class _Part:
    """SQL with its type; a literal also has its text or digits, as Spark types it by its context."""

    sql: str
    type: pa.DataType
    text: str | None = None
    digits: str | None = None

    def cast(self, kind: pa.DataType) -> str:
        return self.sql if self.type == kind else f"CAST({self.sql} AS {_sql(kind)})"


def translated(text: str, columns: pa.Schema, generated: Mapping[str, str] | None = None) -> Translated:
    """Translate a Spark expression over these columns; raises ExpressionNotAllowed if the result may differ.

    `generated`: expressions of generated columns.
    """
    translation = _Translation(columns, generated or {})
    part = translation.part(parse_sql(_spelled(text)))
    return Translated(part.sql, part.type, tuple(translation.read))


def _spelled(text: str) -> str:
    """Spark's tokens in DuckDB's syntax."""
    tokens = list(_tokens(text))
    following = [*(token for token, _ in tokens[1:]), ""]
    return " ".join(_token(kind, token, after) for (token, kind), after in zip(tokens, following, strict=True))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, text = 0, text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or (match["suffix"] or "").upper() not in ("", "L"):
            raise ExpressionNotAllowed(f"{text[at : at + 20]!r} in it")
        kind = next(name for name in ("quoted", "text", "number", "word", "symbol") if match[name] is not None)
        yield match[kind], kind
        at = match.end()


def _token(kind: str, token: str, after: str) -> str:
    if kind == "quoted":
        return quote(token[1:-1].replace("``", "`"))
    if kind == "text":
        return literal(token[1:-1])
    if kind == "symbol":
        return _SYMBOLS.get(token, token)
    if kind == "number" or token.lower() in _KEYWORDS or after == "(":
        return token
    if after[:1] in ("'", '"') or token.lower() in _TYPES:
        if token.lower() not in _TYPES:
            raise ExpressionNotAllowed(f"the literal {token} {after} in it")
        return token
    return quote(token)


def _sql(kind: pa.DataType) -> str:
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise ExpressionNotAllowed(f"a value of type {type_name(kind)} in it")
    return sql_type(kind)


@dataclass
class _Translation:
    """The translation of one expression."""

    columns: pa.Schema
    generated: Mapping[str, str]
    read: dict[str, str] = field(default_factory=dict)  # SQL names of columns
    within: tuple[str, ...] = ()  # generated columns being expanded

    def part(self, node: Node) -> _Part:
        """Translate a node and its children."""
        write = _NODES.get(node["class"])
        if write is None:
            raise ExpressionNotAllowed(f"{node['class'].lower()} in it")
        return write(self, node)

    def column(self, node: Node) -> _Part:
        name, *path = node["column_names"]
        item = _field_named(self.columns, name)
        if item is None:
            return self._generated(name, path)
        if {b"__COLLATIONS", b"__CHAR_VARCHAR_TYPE_STRING"} & (item.metadata or {}).keys():
            raise ExpressionNotAllowed(f"the column {name}, which has a collation or a fixed length,")
        here = self.read.setdefault(item.name, f"c{len(self.read)}")
        kind = item.type
        for key in path:
            inner = _field_named(kind, key) if pa.types.is_struct(kind) else None
            if inner is None:
                raise ExpressionNotAllowed(f"the field {name}.{key}, which the table does not have,")
            here, kind = f"{here}.{quote(inner.name)}", inner.type
        return _Part(here, kind)

    def _generated(self, name: str, path: Sequence[str]) -> _Part:
        names = {key.lower(): key for key in self.generated}
        if name.lower() not in names or path or name.lower() in self.within:
            raise ExpressionNotAllowed(f"the column {name}, which no row has,")
        inner = _Translation(self.columns, self.generated, self.read, (*self.within, name.lower()))
        part = inner.part(parse_sql(_spelled(self.generated[names[name.lower()]])))
        return _Part(f"({part.sql})", part.type)

    def constant(self, node: Node) -> _Part:
        kind, text = node["literal"]["kind"], str(node["literal"].get("text", ""))
        if kind == "NULL_LITERAL":
            return _Part("NULL", pa.null())
        if kind == "BOOLEAN":
            return _Part(text, pa.bool_())
        if kind == "STRING":
            return _Part(literal(text), pa.string(), text)
        if kind == "INTEGER":
            return _integer(text)
        if kind == "NUMERIC":
            return _number(text)
        raise ExpressionNotAllowed(f"{text} in it")

    def comparison(self, node: Node) -> _Part:
        if node["type"] not in _COMPARISONS:
            raise ExpressionNotAllowed(f"{node['type'].lower()} in it")
        left, right = self.alike([self.part(node["left"]), self.part(node["right"])])
        return _Part(f"({left} {_COMPARISONS[node['type']]} {right})", pa.bool_())

    def between(self, node: Node) -> _Part:
        parts = [self.part(node[key]) for key in ("input", "lower", "upper")]
        (low_side, low), (high_side, high) = self.alike([parts[0], parts[1]]), self.alike([parts[0], parts[2]])
        return _Part(f"({low_side} >= {low} AND {high_side} <= {high})", pa.bool_())

    def conjunction(self, node: Node) -> _Part:
        word = " AND " if node["type"] == "CONJUNCTION_AND" else " OR "
        return _Part(f"({word.join(self.truths(node['children']))})", pa.bool_())

    def truths(self, nodes: Iterable[Node]) -> list[str]:
        parts = [self.part(each) for each in nodes]
        if wrong := [part.type for part in parts if part.type not in (pa.bool_(), pa.null())]:
            raise ExpressionNotAllowed(f"a {type_name(wrong[0])} used as a boolean")
        return [part.sql for part in parts]

    def operator(self, node: Node) -> _Part:
        kind, nodes = node["type"], node["children"]
        if kind == "OPERATOR_NOT":
            return _Part(f"(NOT {self.truths(nodes)[0]})", pa.bool_())
        if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            return _Part(f"({self.part(nodes[0]).sql} {kind[9:].replace('_', ' ')})", pa.bool_())
        if kind == "COMPARE_IN":
            first, *others = self.alike([self.part(each) for each in nodes])
            return _Part(f"({first} IN ({', '.join(others)}))", pa.bool_())
        if kind == "OPERATOR_COALESCE":
            return self.either("coalesce({})", nodes)
        raise ExpressionNotAllowed(f"{kind.lower()} in it")

    def either(self, form: str, nodes: Iterable[Node]) -> _Part:
        """One of several values of a common type."""
        parts = [self.part(each) for each in nodes]
        kind = _common(parts)
        return _Part(form.format(", ".join(_as(part, kind) for part in parts)), kind)

    def case(self, node: Node) -> _Part:
        whens = self.truths(each["when_expr"] for each in node["case_checks"])
        values = [self.part(each["then_expr"]) for each in node["case_checks"]]
        last = self.part(node["else_expr"]) if node["else_expr"] else _Part("NULL", pa.null())
        kind = _common([*values, last])
        branches = " ".join(f"WHEN {when} THEN {_as(value, kind)}" for when, value in zip(whens, values, strict=True))
        return _Part(f"(CASE {branches} ELSE {_as(last, kind)} END)", kind)

    def cast(self, node: Node) -> _Part:
        target, part = node["type_expr"]["type_name"].lower(), self.part(node["child"])
        if node["try_cast"] or node["type_expr"].get("children"):
            raise ExpressionNotAllowed("a cast of this kind in it")
        if target == "date":
            return self.day([part])
        if target == "timestamp" and part.text is not None:
            return _Part(_as(part, TIMESTAMP), TIMESTAMP)
        types = {"bigint": pa.int64(), "int": pa.int32(), "integer": pa.int32(), "smallint": pa.int16()}.get(target)
        if types is not None and part.type in _INTEGERS:
            return _Part(f"CAST({part.sql} AS {_sql(types)})", types)
        raise ExpressionNotAllowed(f"a cast from {type_name(part.type)} to {target} in it")

    def day(self, parts: Sequence[_Part]) -> _Part:
        """The UTC date of a timestamp; a date is unchanged."""
        (part,) = parts
        if part.text is not None:
            return _Part(_as(part, pa.date32()), pa.date32())
        if part.type not in (pa.date32(), TIMESTAMP, TIMESTAMP_NTZ):
            raise ExpressionNotAllowed(f"the date of a {type_name(part.type)} in it")
        return _Part(f"CAST({part.sql} AS DATE)", pa.date32())

    def function(self, node: Node) -> _Part:
        name, arguments = node["function_name"].lower(), [each["expression"] for each in node["arguments"]]
        if name in ("~~", "!~~"):
            return self.like(name, arguments)
        if name in ("+", "-", "*", "%"):
            return self.arithmetic(name, [self.part(each) for each in arguments])
        if name in ("ifnull", "nvl"):
            return self.either("coalesce({})", arguments)
        if name in ("isnull", "isnotnull") and len(arguments) == 1:
            return _Part(f"({self.part(arguments[0]).sql} IS {'NOT ' * (name != 'isnull')}NULL)", pa.bool_())
        call = _CALLS.get(name)
        if call is None or len(arguments) != 1:
            raise ExpressionNotAllowed(f"the function {name} in it")
        return call(self, [self.part(arguments[0])])

    def like(self, name: str, arguments: Sequence[Node]) -> _Part:
        value, pattern = (self.part(each) for each in arguments)
        if value.type != pa.string() or pattern.text is None:
            raise ExpressionNotAllowed("a LIKE that is not between a text and a literal")
        return _Part(f"({value.sql} {'NOT ' * (name == '!~~')}LIKE {pattern.sql})", pa.bool_())

    def arithmetic(self, name: str, parts: Sequence[_Part]) -> _Part:
        kind = _common(parts)
        if kind not in (*_INTEGERS, pa.float64()):
            raise ExpressionNotAllowed(f"{name} with values of type {type_name(kind)} in it")
        if name == "%" and (kind not in _INTEGERS or not re.fullmatch(r"-?[1-9]\d*", parts[1].sql)):
            raise ExpressionNotAllowed("% by a value that is not an integer in it")
        values = [f"CAST({part.sql} AS {_sql(kind)})" for part in parts]
        return _Part(f"({name} {values[0]})" if len(values) == 1 else f"({f' {name} '.join(values)})", kind)

    def length(self, parts: Sequence[_Part]) -> _Part:
        if parts[0].type != pa.string():
            raise ExpressionNotAllowed(f"the length of a {type_name(parts[0].type)} in it")
        return _Part(f"CAST(length({parts[0].sql}) AS INTEGER)", pa.int32())

    def trimmed(self, parts: Sequence[_Part]) -> _Part:
        if parts[0].type != pa.string():
            raise ExpressionNotAllowed(f"trim of a {type_name(parts[0].type)} in it")
        return _Part(f"trim({parts[0].sql}, ' ')", pa.string())

    def alike(self, parts: Sequence[_Part]) -> list[str]:
        """Values in the common type in which Spark compares them."""
        kind = _common(parts)
        return [_as(part, kind) for part in parts]


def _field_of(name: str) -> Callable[[_Translation, Sequence[_Part]], _Part]:
    """A field of a date."""

    def call(translation: _Translation, parts: Sequence[_Part]) -> _Part:
        return _Part(f"CAST({name}({translation.day(parts).sql}) AS INTEGER)", pa.int32())

    return call


_NODES: Mapping[str, Callable[[_Translation, Node], _Part]] = {
    "COLUMN_REF": _Translation.column,
    "CONSTANT": _Translation.constant,
    "COMPARISON": _Translation.comparison,
    "BETWEEN": _Translation.between,
    "CONJUNCTION": _Translation.conjunction,
    "OPERATOR": _Translation.operator,
    "CASE": _Translation.case,
    "CAST": _Translation.cast,
    "FUNCTION": _Translation.function,
}
_CALLS: Mapping[str, Callable[[_Translation, Sequence[_Part]], _Part]] = {
    **dict.fromkeys(("length", "char_length", "character_length"), _Translation.length),
    **dict.fromkeys(("to_date", "date"), _Translation.day),
    **{name: _field_of(name) for name in ("year", "month", "day", "dayofmonth")},
    "trim": _Translation.trimmed,
}


def _field_named(fields: Any, name: str) -> pa.Field | None:
    return next((item for item in fields if item.name.lower() == name.lower()), None)


def _integer(text: str) -> _Part:
    value = int(text)
    for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
        if -(2**bits) <= value < 2**bits:
            return _Part(text, kind)
    raise ExpressionNotAllowed(f"the number {text} in it")


def _number(text: str) -> _Part:
    """A decimal literal; with an exponent a double, as in Spark."""
    if "e" in text.lower():
        return _Part(f"CAST({literal(text)} AS DOUBLE)", pa.float64())
    exponent = Decimal(text).as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) else 0
    digits = max(len(Decimal(text).as_tuple().digits), scale, 1)
    if digits > 38:
        raise ExpressionNotAllowed(f"the number {text} in it")
    kind = pa.decimal128(digits, scale)
    return _Part(f"CAST({literal(text)} AS {_sql(kind)})", kind, digits=text)


def _common(parts: Sequence[_Part]) -> pa.DataType:
    """The common type in Spark; raises ExpressionNotAllowed if texts would be cast."""
    kinds = {part.type for part in parts if not pa.types.is_null(part.type)}
    typed = {part.type for part in parts if not pa.types.is_null(part.type) and part.text is None}
    if not kinds:
        return pa.null()
    if len(typed) == 1 and (kind := next(iter(typed))) in (pa.date32(), TIMESTAMP, TIMESTAMP_NTZ):
        return kind  # literals beside it are dates and times
    if len(kinds) == 1 and not pa.types.is_floating(kind := next(iter(kinds))):
        _sql(kind)
        return kind
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) for kind in kinds):
        raise ExpressionNotAllowed(f"{' beside '.join(sorted(map(type_name, kinds)))} in it")
    if any(map(pa.types.is_floating, kinds)):
        if any(pa.types.is_decimal(part.type) and part.digits is None for part in parts):
            raise ExpressionNotAllowed("decimal beside double in it")  # the engines round it differently
        return pa.float64()
    if any(map(pa.types.is_decimal, kinds)):
        if any(pa.types.is_decimal(kind) and (kind.precision - kind.scale > 20 or kind.scale > 18) for kind in kinds):
            raise ExpressionNotAllowed("decimals of many digits in it")
        return _WIDE
    return max(kinds, key=_INTEGERS.index)


def _as(part: _Part, kind: pa.DataType) -> str:
    if pa.types.is_null(kind) or pa.types.is_null(part.type):
        return "NULL"
    if part.digits is not None and kind == pa.float64():
        return f"CAST({literal(part.digits)} AS DOUBLE)"
    if part.text is None or pa.types.is_string(kind):
        return part.cast(kind)
    return _time(part.text, kind)


def _time(text: str, kind: pa.DataType) -> str:
    """A literal beside a date or a time, in an unambiguous form."""
    try:
        if kind == pa.date32() and _DAY.fullmatch(text):
            return f"DATE {literal(date.fromisoformat(text).isoformat())}"
        if kind in (TIMESTAMP, TIMESTAMP_NTZ) and _MOMENT.fullmatch(text):
            moment = datetime.fromisoformat(text)
            if kind == TIMESTAMP:
                moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
                return f"TIMESTAMPTZ {literal(moment.isoformat(' '))}"
            if moment.tzinfo is None:
                return f"TIMESTAMP {literal(moment.isoformat(' '))}"
    except ValueError:
        pass
    raise ExpressionNotAllowed(f"'{text}' beside a {type_name(kind)} in it")
