"""Infer the type of an expression's result before any record is read."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from headrace.decode.payload import rescues
from headrace.decode.payload_field import payload_fields
from headrace.transform.jmespath.compiler import Compiler
from headrace.transform.jmespath.dialect import Node
from headrace.transform.jmespath.vector import BOOLEAN, DOUBLE, LONG, NULL, TEXT

_CALLS = {
    **dict.fromkeys(("to_string", "join", "type", "substr"), TEXT),
    **dict.fromkeys(("length", "epoch_millis_to_micro", "now_epoch_seconds"), LONG),
    **dict.fromkeys(("contains", "starts_with", "ends_with"), BOOLEAN),
    **dict.fromkeys(("abs", "ceil", "floor", "sum", "avg", "to_number"), DOUBLE),
    "keys": pa.list_(pa.field("element", TEXT)),
}
_LISTS = ("projection", "filter_projection", "value_projection", "flatten", "slice")

Kind: TypeAlias = pa.DataType | None  # None: only a record can tell


def kind_of(tree: Node, payload: pa.Schema, compiler: Compiler) -> pa.DataType:
    """The result's type; text if only records can tell (other values are then JSON text)."""
    kind = _kind(tree, _root(payload, compiler))
    return TEXT if kind is None else kind


class _Object:
    """An object with the known keys of the columns."""

    def __init__(self, keys: dict[str, Kind | _Object], open_: bool) -> None:
        self.keys, self.open = keys, open_

    def get(self, key: str) -> Kind | _Object:
        """A key's type; null if no record has it."""
        return self.keys.get(key, NULL if self.open else None)


def _root(payload: pa.Schema, compiler: Compiler) -> _Object:
    root = _Object(dict.fromkeys(compiler.skipped), compiler.open)
    rescued = rescues(payload)  # rescued: a value may have any type
    for item in payload_fields(payload):
        if item.message or item.rescue:
            continue
        *parents, last = item.keys
        here = root
        for key in parents:
            inner = here.keys.setdefault(key, _Object({}, compiler.open))
            here = inner if isinstance(inner, _Object) else _Object({}, compiler.open)
        here.keys[last] = None if item.name in rescued or item.json_text else _message_type(item.type)
    return root


def _message_type(kind: pa.DataType) -> Kind:
    """The type of a column's values in the message."""
    if pa.types.is_integer(kind):
        return LONG
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return DOUBLE
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_binary(kind):
        return TEXT
    if pa.types.is_list(kind):
        return _list_of(_message_type(kind.value_type))
    if pa.types.is_struct(kind):
        inner = [(item.name, _message_type(item.type)) for item in kind]
        return None if any(inner_kind is None for _, inner_kind in inner) else pa.struct(inner)
    return None if pa.types.is_map(kind) else kind


def _list_of(kind: Kind | _Object) -> Kind:
    if kind is None or isinstance(kind, _Object):
        return None
    return NULL if pa.types.is_null(kind) else pa.list_(pa.field("element", kind))


def _kind(node: Node, scope: Kind | _Object) -> Kind:
    kind = _type_of(node, scope)
    return None if isinstance(kind, _Object) else kind


def _type_of(node: Node, scope: Kind | _Object) -> Kind | _Object:
    match node["type"]:
        case "current" | "identity":
            return scope
        case "field":
            return _field(scope, node["value"])
        case "index":
            return _element(scope)
        case "subexpression" | "index_expression" | "pipe":
            for child in node["children"]:
                scope = _type_of(child, scope)
            return scope
        case "literal":
            return _literal(node["value"])
        case "comparator" | "not_expression":
            return BOOLEAN
        case "or_expression" | "and_expression":
            return _either([_type_of(child, scope) for child in node["children"]])
        case "function_expression":
            return _call(node, scope)
        case "multi_select_dict":
            inner = [(child["value"], _kind(child["children"][0], scope)) for child in node["children"]]
            return None if any(kind in (None, NULL) for _, kind in inner) else pa.struct(inner)
        case kind if kind in _LISTS:
            return _many(node, scope)
    return None


def _field(scope: Kind | _Object, key: str) -> Kind | _Object:
    if isinstance(scope, _Object):
        return scope.get(key)
    if scope is None or not pa.types.is_struct(scope):
        return None if scope is None else NULL
    at = scope.get_field_index(key)
    return scope.field(at).type if at >= 0 else None


def _element(scope: Kind | _Object) -> Kind:
    if scope is None or isinstance(scope, _Object):
        return None
    return scope.value_type if pa.types.is_list(scope) else NULL


def _many(node: Node, scope: Kind | _Object) -> Kind:
    """The list type of a projection over a list; None for others."""
    if node["type"] == "slice":
        return _kind({"type": "current"}, scope)
    base = _type_of(node["children"][0], scope)
    if base is None or isinstance(base, _Object) or node["type"] == "value_projection":
        return None
    if pa.types.is_null(base):
        return NULL
    element = _element(base)
    if node["type"] == "flatten":
        return element if element is not None and pa.types.is_list(element) else base
    return _list_of(_type_of(node["children"][1], element))


def _call(node: Node, scope: Kind | _Object) -> Kind | _Object:
    name = node["value"]
    if name.endswith("_to_iso8601"):
        return TEXT
    if name in ("sort", "reverse", "sort_by"):
        return _type_of(node["children"][0], scope)
    if name in ("max", "min", "max_by", "min_by"):
        return _element(_type_of(node["children"][0], scope))
    if name == "not_null":
        return _either([_type_of(child, scope) for child in node["children"]])
    return _CALLS.get(name)


def _either(kinds: list[Kind | _Object]) -> Kind:
    typed = [kind for kind in kinds if isinstance(kind, _Object) or kind is None or not pa.types.is_null(kind)]
    if not typed:
        return NULL
    first = typed[0]
    if isinstance(first, _Object) or any(isinstance(kind, _Object) or kind != first for kind in typed):
        return None
    return first


def _literal(value: object) -> Kind:
    if isinstance(value, bool):
        return BOOLEAN
    kinds = {int: LONG, float: DOUBLE, str: TEXT, type(None): NULL}
    return kinds.get(type(value))
