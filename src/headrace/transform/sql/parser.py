"""Parse expressions to a tree with DuckDB's parser, and generate SQL from a tree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import duckdb

from headrace.engine import duck
from headrace.errors import UsageError, first_line
from headrace.transform.sql import allow_list

LONGEST = 8 * 1024
DEEPEST = 128
MOST_QUOTED = 12  # maximum keywords that are tried in quotes if a text does not parse

_WORD = re.compile(rb"[A-Za-z_]+")
_CONNECTIVES = frozenset({"and", "or", "not", "is", "null", "in", "like", "ilike", "between", "true", "false"}) | {
    *("case", "when", "then", "else", "end", "as", "cast")
}

Node = dict[str, Any]


class ExpressionNotAllowed(UsageError):
    """The text is not a valid expression."""


@lru_cache(maxsize=1024)
def parse_sql(text: str) -> Node:
    """The tree of exactly one expression, which must not be changed; raises ExpressionNotAllowed."""
    if len(text.encode("utf-8", "replace")) > LONGEST:
        raise ExpressionNotAllowed(f"the expression is longer than {LONGEST} bytes")
    if "\0" in text:
        raise ExpressionNotAllowed("the expression has a NUL character")
    if not text.strip():
        raise ExpressionNotAllowed("the expression is empty")
    # The text must parse to the same tree with and without parentheses: `a) + (b`, `a;` and `a AS b` do not.
    try:
        bare, closed = _selected(f"SELECT {text}\n"), _selected(f"SELECT (\n{text}\n)")
    except ExpressionNotAllowed as refused:
        hint = _quoting(text) if "syntax" in refused.facts else ""
        raise ExpressionNotAllowed(refused.message + hint) from None
    if _depth(bare) > DEEPEST:
        raise ExpressionNotAllowed(f"the expression is nested deeper than {DEEPEST}")
    if write(bare) != write(closed):
        raise ExpressionNotAllowed("the text is not one expression")
    return bare


@lru_cache(maxsize=1024)
def _serialized(statement: str) -> str:
    try:
        result = duck.query(f"SELECT json_serialize_sql({duck.literal(statement)}) AS tree")
    except Exception as error:  # the text cannot be encoded (a lone surrogate)
        raise ExpressionNotAllowed(f"cannot parse the expression: {first_line(error)}") from error
    return str(result["tree"][0].as_py())


def _selected(statement: str) -> Node:
    try:
        tree = json.loads(_serialized(statement))
    except RecursionError:
        raise ExpressionNotAllowed(f"the expression is nested deeper than {DEEPEST}") from None
    if tree["error"]:
        raise _syntax(tree)
    if len(tree["statements"]) != 1:
        raise ExpressionNotAllowed("the text is more than one statement")
    return _only_expression(tree["statements"][0]["node"])


def _syntax(tree: Node) -> ExpressionNotAllowed:
    message = str(tree["error_message"])
    if message.startswith("Only SELECT"):
        return ExpressionNotAllowed("the text is more than one statement")
    if "depth" in message:
        return ExpressionNotAllowed(f"the expression is nested deeper than {DEEPEST}")
    return ExpressionNotAllowed(f"not an SQL expression: {message}", syntax=message)


def _quoting(text: str) -> str:
    """A hint with the keywords that would have to be quoted; mostly empty."""
    words = list(islice(_keywords(text), MOST_QUOTED))
    for chosen in [*([word] for word in words), [word for word in words if word[1].lower() not in _CONNECTIVES]]:
        if chosen and _reads(_quoted(text, chosen)):
            named = " and ".join(dict.fromkeys(f'"{word}"' for _, word in chosen))
            return f"; to use a column named like an SQL keyword, quote it: {named}"
    return ""


def _keywords(text: str) -> Iterator[tuple[int, str]]:
    """Each keyword of DuckDB in the text, and its byte position."""
    raw = text.encode()
    for at, kind in duckdb.tokenize(text):
        if kind == duckdb.token_type.keyword and (match := _WORD.match(raw, at)):
            yield at, match[0].decode()


def _quoted(text: str, words: Iterable[tuple[int, str]]) -> str:
    raw = text.encode()
    for at, word in sorted(words, reverse=True):
        raw = raw[:at] + b'"%s"' % word.encode() + raw[at + len(word) :]
    return raw.decode()


def _reads(text: str) -> bool:
    try:
        _selected(f"SELECT (\n{text}\n)")
    except ExpressionNotAllowed:
        return False
    return True


def _only_expression(select: Node) -> Node:
    """The only item of a SELECT without any other clause; raises ExpressionNotAllowed."""
    if select["type"] != "SELECT_NODE":
        raise ExpressionNotAllowed("the text is a query, not an expression")
    empty: Node = {
        "modifiers": [],
        "cte_map": {"map": []},
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
    }
    empty |= {"having": None, "sample": None, "qualify": None, "aggregate_handling": "STANDARD_HANDLING"}
    rest = {key: value for key, value in select.items() if key not in ("type", "select_list", "from_table")}
    if rest != empty or select["from_table"]["type"] != "EMPTY":
        raise ExpressionNotAllowed("the text is a query, not an expression")
    if len(select["select_list"]) != 1:
        raise ExpressionNotAllowed("the text is more than one expression")
    node: Node = select["select_list"][0]
    if node["alias"]:
        raise ExpressionNotAllowed(f"the alias '{node['alias']}' is not allowed; the key is the name of the column")
    return node


def write(node: Node) -> str:
    """Generate SQL from a tree."""
    select = json.loads(_serialized("SELECT 1"))
    select["statements"][0]["node"]["select_list"] = [node]
    return _deserialized(json.dumps(select)).removeprefix("SELECT ")


@lru_cache(maxsize=1024)
def _deserialized(tree: str) -> str:
    """The SQL text of a serialized statement."""
    return str(duck.query(f"SELECT json_deserialize_sql({duck.literal(tree)}) AS sql")["sql"][0].as_py())


def fragment(sql: str) -> Node:
    """The tree of a trusted SQL text."""
    return _selected(f"SELECT {sql}")


def sql_children(node: Any) -> Iterator[Node]:
    """The child expressions of a node."""
    for value in node.values() if isinstance(node, dict) else node:
        if isinstance(value, dict) and "class" in value:
            yield value
        elif isinstance(value, (dict, list)):
            yield from sql_children(value)


def _depth(node: Node) -> int:
    deepest, level = 0, [node]
    while level:
        deepest, level = deepest + 1, [child for each in level for child in sql_children(each)]
    return deepest


def called(node: Node) -> str:
    """The name of a function or column, normalised."""
    name = node["function_name"] if node["class"] == "FUNCTION" else node["column_names"][0]
    return str(name).lower()


def is_clock(node: Node) -> bool:
    """Whether a node reads the current time."""
    if node["class"] == "COLUMN_REF":
        return len(node["column_names"]) == 1 and called(node) in ("current_date", "current_timestamp")
    return bool(node["class"] == "FUNCTION" and called(node) in allow_list.CLOCK and not node["arguments"])


def is_parameter(node: Node, scope: frozenset[str]) -> bool:
    """Whether a node is a parameter of an enclosing lambda."""
    return node["class"] == "COLUMN_REF" and called(node) in scope


def is_lambda(node: Node) -> bool:
    """Whether a node is a lambda; `a -> b` has the same class and is not."""
    return bool(node["class"] == "LAMBDA" and node["syntax_type"] != "SINGLE_ARROW")


def parameter_names(node: Node) -> frozenset[str]:
    """The parameters of a lambda: `lambda x: …` or `lambda x, i: …`."""
    side = node["lhs"]
    named = [side] if side["class"] == "COLUMN_REF" else list(sql_children(side))
    return frozenset(called(each) for each in named)


def references(node: Node, scope: frozenset[str] = frozenset()) -> Iterator[Node]:
    """The columns that a tree reads, without lambda parameters."""
    if node["class"] == "COLUMN_REF":
        if not is_parameter(node, scope):
            yield node
        return
    if is_lambda(node):
        yield from references(node["expr"], scope | parameter_names(node))
        return
    for child in sql_children(node):
        yield from references(child, scope)
