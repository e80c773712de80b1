"""SQL expressions: parsed by DuckDB, checked against the allow-list, and generated again from the tree.

The text of a spec never becomes part of a statement. It is parsed to a tree, every node is checked, names are bound to
columns, and SQL is generated from the tree.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.engine.duck import PLAIN_DIGITS
from headrace.errors import did_you_mean
from headrace.spec.units import regex_error
from headrace.transform.sql import allow_list
from headrace.transform.sql.parser import (
    ExpressionNotAllowed,
    Node,
    called,
    fragment,
    is_clock,
    is_lambda,
    is_parameter,
    parameter_names,
    parse_sql,
    references,
    sql_children,
    write,
)

DEEPEST_LAMBDA = 2

RECORD_NAMES = ("_topic", "_partition", "_offset", "_timestamp", "_timestamp_type", "_key", "_headers")

ROW = "_row_"  # the relation that bound columns belong to

Bind = Callable[[str], str | None]


def check_sql(text: str, columns: Iterable[str] | None = None) -> tuple[str, ...]:
    """Errors of an expression; empty if it is valid. Without columns, any name may be a column."""
    try:
        tree = parse_sql(text)
    except ExpressionNotAllowed as refused:
        return (refused.message,)
    problems = dict.fromkeys(_problems(tree))
    if columns is not None:
        problems.update(dict.fromkeys(_unknown(tree, columns)))
    return tuple(problems)


def columns_in(text: str) -> frozenset[str]:
    """The names that an expression reads, as written, without the names of the clock."""
    return frozenset(node["column_names"][0] for node in references(parse_sql(text)) if not is_clock(node))


def bind_parameters(text: str, bind: Bind, now: str) -> str:
    """The expression as SQL, with each name replaced by the result of `bind` (None: NULL) and the clock by `now`.

    `bind` takes the first part of a dotted name and returns a column of the relation ROW.
    """
    tree = parse_sql(text)
    if problems := tuple(_problems(tree)):
        raise ExpressionNotAllowed(problems[0])
    return write(_bound(tree, bind, now, frozenset()))


def _bound(node: Node, bind: Bind, now: str, scope: frozenset[str]) -> Node:
    if is_clock(node) and not is_parameter(node, scope):
        kind = allow_list.CLOCK[called(node)]
        return fragment(f"{ROW}.{now}" if kind == "TIMESTAMPTZ" else f"CAST({ROW}.{now} AS DATE)")
    if node["class"] == "COLUMN_REF":
        return node if is_parameter(node, scope) else _column(node, bind)
    if node["class"] == "LAMBDA":
        if node["syntax_type"] == "SINGLE_ARROW":
            node = _json_extract(node)
        else:
            scope |= parameter_names(node)
            return {**node, "expr": _bound(node["expr"], bind, now, scope)}
    return _folded(_read_right({key: _within(value, bind, now, scope) for key, value in node.items()}))


def _read_right(node: Node) -> Node:
    """A cast to decimal of the digits of a text or number: DuckDB casts exponents and doubles incorrectly."""
    if node["class"] != "CAST" or node["type_expr"]["type_name"].lower() not in ("dec", "decimal", "numeric"):
        return node
    child = node["child"]
    if _is_null(child):
        return node
    if _is_json(child):
        child = _call("json_extract_string(1, '$')", child)
    return {**node, "child": _call(f"{PLAIN_DIGITS}(1)", child)}


def _is_json(node: Node) -> bool:
    if node["class"] == "CAST":
        return bool(node["type_expr"]["type_name"].lower() == "json")
    return bool(node["class"] == "FUNCTION" and node["function_name"].lower() == "json_extract")


def _folded(node: Node) -> Node:
    """NULL for expressions that can only be NULL, as DuckDB would guess a type (`NULL + 1` an INTEGER)."""
    if node["class"] == "FUNCTION" and node["function_name"].lower() in allow_list.NULL_IN_NULL_OUT:
        parts = [argument["expression"] for argument in node["arguments"]]
    elif node["class"] == "OPERATOR" and node["type"] in ("ARRAY_EXTRACT", "ARRAY_SLICE", "STRUCT_EXTRACT"):
        parts = node["children"][:1]
    else:
        parts = []
    return fragment("NULL") if any(map(_is_null, parts)) else node


def _is_null(node: Node) -> bool:
    return bool(node.get("literal", {}).get("kind") == "NULL_LITERAL")


def _within(value: Any, bind: Bind, now: str, scope: frozenset[str]) -> Any:
    if isinstance(value, list):
        return [_within(item, bind, now, scope) for item in value]
    if not isinstance(value, dict):
        return value
    if "class" in value:
        return _bound(value, bind, now, scope)
    return {key: _within(item, bind, now, scope) for key, item in value.items()}


def _column(node: Node, bind: Bind) -> Node:
    name, *path = node["column_names"]
    column = bind(name)
    return fragment("NULL") if column is None else {**node, "column_names": [ROW, column, *path]}


def _json_extract(node: Node) -> Node:
    """`a -> b` is a lambda to DuckDB's parser; a function call is unambiguous."""
    return _call("json_extract(1, 2)", node["lhs"], node["expr"])


def _call(text: str, *arguments: Node) -> Node:
    """A function call with these as its first arguments."""
    call = fragment(text)
    for place, argument in zip(call["arguments"], arguments, strict=False):
        place["expression"] = argument
    return call


def _unknown(tree: Node, columns: Iterable[str]) -> Iterator[str]:
    names = {name.lower(): name for name in (*columns, *RECORD_NAMES)}
    for node in references(tree):
        name = node["column_names"][0]
        if name.lower() not in names and not is_clock(node):
            yield f"unknown column '{name}'{_suggestion(name.lower(), names)}"


def _suggestion(name: str, names: Iterable[str]) -> str:
    return did_you_mean(*difflib.get_close_matches(name, tuple(names), n=1, cutoff=0.75))


def _problems(tree: Node) -> Iterator[str]:
    yield from _node_problems(tree, 0)
    if _growth(tree) > allow_list.GROWTH:
        yield f"replacements can make a text more than {allow_list.GROWTH} times longer"


def _growth(node: Node) -> int:
    """Maximum ratio of output to input length of a text."""
    inner = max(map(_growth, sql_children(node)), default=1)
    name = node.get("function_name", "").lower()
    if name not in ("replace", "regexp_replace") or len(node["arguments"]) < 3:
        return inner
    sought, inserted = (_text(argument["expression"]) for argument in node["arguments"][1:3])
    # A pattern may match the empty text at every position; a replaced text is at least as long as the search text.
    factor = len(inserted) + 1 if name == "regexp_replace" and inserted else -(-len(inserted) // max(1, len(sought)))
    return inner * max(1, factor)


def _text(node: Node) -> str:
    return str(node["literal"]["text"]) if node["class"] == "CONSTANT" else ""


def _node_problems(node: Node, lambdas: int) -> Iterator[str]:
    kind = node["class"]
    if kind not in allow_list.CLASSES:
        yield f"{allow_list.REFUSED.get(kind, kind.lower())} is not allowed"
        return
    if kind == "LAMBDA":
        yield from _lambda_problems(node, lambdas)
        return
    if rule := _RULES.get(kind):
        yield from rule(node)
    for child in sql_children(node):
        yield from _node_problems(child, lambdas)


def _lambda_problems(node: Node, lambdas: int) -> Iterator[str]:
    if is_lambda(node):
        if lambdas == DEEPEST_LAMBDA:
            yield f"lambdas are nested deeper than {DEEPEST_LAMBDA}"
        if ROW in parameter_names(node):
            yield f"the name {ROW} is reserved and not allowed as a lambda parameter"
        yield from _node_problems(node["expr"], lambdas + 1)
        return
    # `a -> 'b' ->> 'c'` is `a -> ('b' ->> 'c')` to DuckDB, which is never intended.
    right = node["expr"]
    if right["class"] == "LAMBDA" or (right["class"] == "FUNCTION" and right["is_operator"]):
        yield "the right operand of -> must be a single path or key: use parentheses, (a -> 'b') ->> 'c'"
    for child in (node["lhs"], right):
        yield from _node_problems(child, lambdas)


def _function_problems(node: Node) -> Iterator[str]:
    name = node["function_name"].lower()
    if node["schema"] or node["catalog"]:
        yield f"'{'.'.join(node['qualified_name']['path'])}' is a qualified function: write {name}(…)"
    elif node["is_operator"]:
        if name not in allow_list.SYMBOLS:
            yield f"the operator {name} is not allowed"
    elif name not in allow_list.NAMES:
        why = allow_list.WHY.get(name)
        yield f"the function {name} is not allowed" + (f": {why}" if why else _suggestion(name, allow_list.NAMES))
    if node["filter"] or node["distinct"] or node["order_bys"]["orders"] or node["export_state"]:
        yield f"{name}: DISTINCT, FILTER and ORDER BY are not allowed"
    yield from _argument_problems(name, node)


def _argument_problems(name: str, node: Node) -> Iterator[str]:
    arguments = [argument["expression"] for argument in node["arguments"]]
    place = allow_list.BOUNDED.get(name)
    if place is not None and not (len(arguments) > place and _is_width(arguments[place])):
        yield f"{name}: the length must be a number from 0 to {allow_list.WIDEST}, not an expression"
    place = allow_list.INSERTED.get(name)
    if place is not None and len(arguments) > place and arguments[place]["class"] != "CONSTANT":
        yield f"{name}: the replacement must be a literal, not an expression"
    if name.startswith("regexp_") and name != "regexp_escape" and len(arguments) > 1:
        yield from _pattern_problems(name, arguments[1])
    if name in ("list_transform", "list_apply", "list_filter"):
        for argument in arguments:
            if argument["class"] == "LAMBDA" and not is_lambda(argument):
                yield f"{name}: write the lambda as 'lambda x: …', not 'x -> …'"


def _pattern_problems(name: str, pattern: Node) -> Iterator[str]:
    if pattern["class"] == "CONSTANT" and (error := regex_error(_text(pattern), python=False)):
        yield f"{name}: {error}"


def _is_width(node: Node) -> bool:
    literal = node.get("literal", {})
    return literal.get("kind") == "INTEGER" and 0 <= int(literal["text"]) <= allow_list.WIDEST


def _operator_problems(node: Node) -> Iterator[str]:
    if node["type"] not in allow_list.OPERATORS:
        yield f"{allow_list.REFUSED.get(node['type'], node['type'].lower())} is not allowed"


def _type_problems(node: Node) -> Iterator[str]:
    name = node["type_name"].lower()
    if node["schema"] or node["catalog"] or name not in allow_list.TYPES:
        yield f"the type {name} is not allowed"


_RULES: dict[str, Callable[[Node], Iterator[str]]] = {
    "FUNCTION": _function_problems,
    "OPERATOR": _operator_problems,
    "TYPE": _type_problems,
}
