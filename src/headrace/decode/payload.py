"""Payload schemas, compiled: the columns, and a tree of all known keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from headrace.decode.payload_field import PayloadField, Rescue, payload_field, payload_fields
from headrace.errors import UsageError
from headrace.spec.table import Coerce

Kind = Literal["object", "list", "map", "leaf", "json", "skip"]


@dataclass(frozen=True, slots=True)
class PayloadNode:
    """A node of the tree: the expected value, and the known keys below it."""

    kind: Kind
    type: pa.DataType = pa.null()  # noqa: RUF009 - null: a mere way to columns deeper down, or a skipped value
    nullable: bool = True
    unit: str = ""
    default: str | None = None  # JSON text
    children: dict[str, PayloadNode] = field(default_factory=dict)  # of an object by key; of a list or map under "*"
    open: bool = False  # unknown keys of the object are not new fields of the table
    coerce: str = ""  # a leaf that takes other values, too: `text`, or the unit of a time that is a number or text


_SKIPPED = PayloadNode("skip")


@dataclass(frozen=True, slots=True)
class PayloadColumn:
    """A column and the path of its value."""

    name: str
    path: tuple[str, ...]
    node: PayloadNode
    field: pa.Field
    rescued: bool = False  # a value that does not fit is rescued, and the column is NULL


@dataclass(frozen=True, slots=True)
class PayloadSchema:
    """A payload schema, compiled once for the fast and the exact path."""

    schema: pa.Schema  # schema of the rows, without skipped columns
    columns: tuple[PayloadColumn, ...]
    root: PayloadNode
    overlaps: bool  # two columns read the same value, or one reads a part of another's
    own: pa.Schema  # the payload without the envelope's columns
    row_path: tuple[str, ...] = ()  # path of the row in a value
    message: pa.Field | None = None  # the field of the whole message
    rescue: Rescue = ""  # what the column of rescued values has; empty: there is none
    elements: Elements | None = None  # the list whose elements are rescued one by one
    exploded: bool = False  # unknown keys of open objects are ignored under any contract

    def with_message(self, rows: pa.Table, texts: Callable[[], pa.Array]) -> pa.Table:
        """The rows with their messages as JSON text, if the payload has a field for it."""
        if self.message is None:
            return rows
        return pa.Table.from_arrays([*rows.columns, texts()], schema=rows.schema.append(self.message))

    def is_beside(self, path: tuple[str, ...]) -> bool:
        """Whether an unknown field is beside the list that is exploded, so that it is not a new field of the table.

        `path` ends at the field, or at the list or map that has it inside.
        """
        node = self.root
        for key in path:
            if not node.open:
                return False
            node = node.children.get(key, _SKIPPED)
            if node.kind == "skip":
                return True
        return False

    def bare(self) -> PayloadSchema:
        """Only the columns, without rescued values and without the message."""
        own = pa.schema([column.field for column in self.columns])
        return replace(self, schema=own, message=None, rescue="", elements=None)


@dataclass(frozen=True, slots=True)
class Elements:
    """A list that is exploded; each element is decoded as a record of its own.

    The elements of `{"items": [{"sku": 1}, {"sku": 2}]}` are read as `{"items": {"sku": 1}}` and so on: `layout` has
    the columns of an element, each with the path of the list, and the column of its rescued values.
    """

    column: PayloadColumn
    layout: PayloadSchema


def payload_schema_of(
    payload: pa.Schema, row_path: tuple[str, ...] = (), known: Iterable[tuple[str, ...]] = ()
) -> PayloadSchema:
    """Compile a payload schema whose row is at `row_path`; raises UsageError if names or paths conflict."""
    fields = payload_fields(payload)
    beside = [item for item in fields if item.rescue]
    rescue: Rescue = beside[0].rescue if beside else ""
    exploded = next((item.elements_of for item in beside if item.elements_of), None)
    only_list = any(item.exploded for item in fields)
    root = PayloadNode("object", nullable=False, open=only_list or exploded is not None)
    for place in known:
        _insert(root, place, PayloadNode("skip"))
    columns: list[PayloadColumn] = []
    overlaps = False
    message = next((item.to_arrow() for item in fields if item.message), None)
    for item in fields:
        if item.rescue or item.message:
            continue
        node, path = PayloadNode("skip") if item.skipped else node_of(item.to_arrow()), _path(item, row_path)
        overlaps = _insert(root, path, node) or overlaps
        if node.kind != "skip":
            rescued = bool(beside) and item.name != exploded and _is_rescued(item, rescue)
            columns.append(PayloadColumn(item.name, path, node, item.to_arrow(), rescued))
    _refuse_twins(root, "")
    own = [item.to_arrow() for item in fields if not (item.absolute_path or item.message)]
    schema = pa.schema([*(column.field for column in columns), *(item.to_arrow() for item in beside)])
    elements = next((_elements(column, beside[0]) for column in columns if column.name == exploded), None)
    own_schema = pa.schema(own, payload.metadata)
    return PayloadSchema(
        schema, tuple(columns), root, overlaps, own_schema, row_path, message, rescue, elements, only_list
    )


def _elements(column: PayloadColumn, rescue: PayloadField) -> Elements:
    element, texts = column.field.type.value_field, rescue.to_arrow()
    if pa.types.is_struct(element.type):
        return Elements(column, payload_schema_of(pa.schema([*element.type, texts]), column.path))
    alone = column.field.with_type(element.type).with_nullable(element.nullable)
    return Elements(column, payload_schema_of(pa.schema([alone, texts]), column.path[:-1]))


def walk_nodes(node: PayloadNode, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], PayloadNode]]:
    """All known paths below a node, parents first; `*` is a list's element or a map's value."""
    for key, child in node.children.items():
        yield (*path, key), child
        yield from walk_nodes(child, (*path, key))


def with_skipped(layout: PayloadSchema, paths: Iterable[tuple[str, ...]]) -> PayloadSchema:
    """The layout with more known paths that are not read; parents come first."""
    root = layout.root
    for path in paths:
        root = _grafted(root, path)
    return replace(layout, root=root)


def _grafted(node: PayloadNode, path: tuple[str, ...]) -> PayloadNode:
    key, *rest = path
    child = node.children.get(key, PayloadNode("skip"))
    return replace(node, children={**node.children, key: _grafted(child, tuple(rest)) if rest else child})


def rescues(payload: pa.Schema) -> frozenset[str]:
    """The fields whose wrong values are rescued."""
    fields = payload_fields(payload)
    kept = [item.rescue for item in fields if item.rescue]
    lists = {item.elements_of for item in fields if item.elements_of}
    return frozenset(item.name for item in fields if kept and (item.name in lists or _is_rescued(item, kept[0])))


def _is_rescued(item: PayloadField, rescue: Rescue) -> bool:
    return item.nullable and (rescue == "type" if item.rescued is None else item.rescued)


def _path(item: PayloadField, row_path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item.absolute_path.split(".")) if item.absolute_path else (*row_path, *item.keys)


def node_of(item: pa.Field) -> PayloadNode:
    """The node of a field."""
    spec = payload_field(item)
    if spec.json_text:
        return PayloadNode("json", item.type, item.nullable, default=spec.default)
    kind, children = _below(item.type, spec.unit)
    node = PayloadNode(kind, item.type, item.nullable, spec.unit, spec.default, children)
    return node if spec.coerce is None else _coerced(node, spec.coerce)


def _coerced(node: PayloadNode, coerce: Coerce) -> PayloadNode:
    """The node with its leaves coerced, except those that are read in another way."""
    if node.children:
        return replace(node, children={key: _coerced(child, coerce) for key, child in node.children.items()})
    if node.kind != "leaf" or node.unit:
        return node
    text, moment = pa.types.is_string(node.type), pa.types.is_timestamp(node.type) and node.type.tz is not None
    how = "text" if text and coerce.string else coerce.timestamp if moment and coerce.timestamp else ""
    return replace(node, coerce=how)


def _below(kind: pa.DataType, unit: str) -> tuple[Kind, dict[str, PayloadNode]]:
    if pa.types.is_struct(kind):
        return "object", {item.name: node_of(item) for item in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "list", {"*": _element(kind.value_field, unit)}
    if pa.types.is_map(kind):
        return "map", {"*": _element(kind.item_field, unit)}
    return "leaf", {}


def _element(item: pa.Field, unit: str) -> PayloadNode:
    # Delta has no metadata on an array's elements: they have the column's unit.
    kind, children = _below(item.type, unit)
    return PayloadNode(kind, item.type, item.nullable, unit, None, children)


def _insert(root: PayloadNode, path: tuple[str, ...], node: PayloadNode) -> bool:
    """Put a column's node at its path; True if there is one already."""
    here = root
    for key in path[:-1]:
        here = here.children.setdefault(key, PayloadNode("object", open=root.open))
        if here.kind != "object" or not pa.types.is_null(here.type):
            return True
    exists = path[-1] in here.children
    # If two columns read the same value, nothing inside of it is a new field.
    here.children[path[-1]] = PayloadNode("skip") if exists else node
    return exists


def _refuse_twins(node: PayloadNode, where: str) -> None:
    seen: dict[str, str] = {}
    for key, child in node.children.items():
        if (twin := seen.setdefault(key.lower(), key)) != key:
            raise UsageError(f"The columns '{where}{twin}' and '{where}{key}' differ only in case.")
        _refuse_twins(child, f"{where}{key}.")
