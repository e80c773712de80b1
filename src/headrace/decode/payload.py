"""The layout a payload schema asks of a value: its columns, and every key that is known, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from headrace.delta.schema import JSON_TEXT
from headrace.errors import UsageError

UNIT, PATH, DEFAULT, SKIP = b"headrace.unit", b"headrace.path", b"headrace.default", b"headrace.skip"
RESCUE = b"headrace.rescue"  # the column that keeps what does not fit: `field` new fields alone, `type` wrong values
ELEMENTS = b"headrace.elements"  # beside RESCUE, on the column with a text for each element: the list they are of
EXPLODED = b"headrace.exploded"  # on the list that is exploded: fields beside it are not the table's
KEEPS = b"headrace.keeps"  # on a column: whether its wrong values are kept there, whatever is done with others
MERGES = b"headrace.merges"  # the envelope's word on what to do is done: the table merges
PLACE = b"headrace.place"  # a path from the very top, where the row itself lies deeper down
MESSAGE = b"headrace.message"  # on the last field of a payload: the whole message as JSON text, for expressions
RECORD = b"headrace.record"  # on a column of exploded rows: the record that each is a part of, kept once

# On fields of a payload that are no columns out of the record.
NOTES = frozenset({SKIP, RESCUE, MERGES, PLACE, MESSAGE})

Kind = Literal["object", "list", "map", "leaf", "json", "skip"]


@dataclass(frozen=True, slots=True)
class PayloadNode:
    """One place in a value: what must stand there, and the known places below it."""

    kind: Kind
    type: pa.DataType = pa.null()  # noqa: RUF009 - null: a mere way to columns deeper down, or a skipped value
    nullable: bool = True
    unit: str = ""
    default: str | None = None  # JSON text
    children: dict[str, PayloadNode] = field(default_factory=dict)  # an object's by key; list and map: one, under "*"
    open: bool = False  # an object whose other keys are not the table's: they are no new fields to rescue

    @property
    def inner(self) -> list[str]:
        """The keys below which there is more to know."""
        return [key for key, child in self.children.items() if child.children]


@dataclass(frozen=True, slots=True)
class PayloadColumn:
    """A column and the way to its value."""

    name: str
    path: tuple[str, ...]
    node: PayloadNode
    field: pa.Field
    rescued: bool = False  # a value that does not fit is kept beside the row, and NULL here


@dataclass(frozen=True, slots=True)
class PayloadSchema:
    """A payload schema, compiled once for both ways of decoding."""

    schema: pa.Schema  # of the rows: without skipped columns
    columns: tuple[PayloadColumn, ...]
    root: PayloadNode
    overlaps: bool  # two columns read the same place, or one reads what another reads a part of
    own: pa.Schema  # the payload without the columns that an envelope brings
    way: tuple[str, ...] = ()  # from the top of a value to its row
    message: pa.Field | None = None  # asks for the whole message, beside the columns
    rescue: str = ""  # what a column after the others keeps: nothing (there is none), `field` or `type`
    elements: Elements | None = None  # the list whose elements are rescued one by one
    exploded: bool = False  # unknown keys of open objects are not new fields: they are neither rejected nor an error

    def with_message(self, rows: pa.Table, texts: Callable[[], pa.Array]) -> pa.Table:
        """The rows with their messages as JSON text, if the payload asks for them."""
        if self.message is None:
            return rows
        return pa.Table.from_arrays([*rows.columns, texts()], schema=rows.schema.append(self.message))

    def is_beside(self, path: tuple[str, ...]) -> bool:
        """Whether an unknown field is beside the list that is exploded, and so not the table's."""
        node = self.root
        for key in path[:-1]:
            if not node.open or key not in node.children:
                return False
            node = node.children[key]
        return node.open

    def bare(self) -> PayloadSchema:
        """The columns alone: without what is kept beside them, and without the message."""
        own = pa.schema([column.field for column in self.columns])
        return replace(self, schema=own, message=None, rescue="", elements=None)


@dataclass(frozen=True, slots=True)
class Elements:
    """A list that will be exploded; each element is fitted as if it were a record with nothing else in it.

    The elements of `{"items": [{"sku": 1}, {"sku": 2}]}` are read as `{"items": {"sku": 1}}` and so on: `layout` has
    the columns of one element, each behind the path of the list, and what is rescued of it.
    """

    column: PayloadColumn
    layout: PayloadSchema


def payload_schema_of(
    payload: pa.Schema, way: tuple[str, ...] = (), known: Iterable[tuple[str, ...]] = ()
) -> PayloadSchema:
    """Compile a payload schema whose row lies at `way`; UsageError when its names or paths contradict each other."""
    beside = [item for item in payload if RESCUE in (item.metadata or {})]
    rescue = beside[0].metadata[RESCUE].decode() if beside else ""
    exploded = next((item.metadata[ELEMENTS].decode() for item in beside if ELEMENTS in item.metadata), None)
    only_list = any(EXPLODED in (item.metadata or {}) for item in payload)
    root = PayloadNode("object", nullable=False, open=only_list or exploded is not None)
    for place in known:
        _insert(root, place, PayloadNode("skip"))
    columns: list[PayloadColumn] = []
    overlaps = False
    message: pa.Field | None = None
    for item in payload:
        if MESSAGE in (item.metadata or {}):
            message = item
        if item in beside or item is message:
            continue
        skipped = (item.metadata or {}).get(SKIP) == b"true"
        node, path = PayloadNode("skip") if skipped else node_of(item), _path(item, way)
        overlaps = _insert(root, path, node) or overlaps
        if node.kind != "skip":
            rescued = bool(beside) and item.name != exploded and _is_rescued(item, rescue)
            columns.append(PayloadColumn(item.name, path, node, item, rescued))
    _refuse_twins(root, "")
    own = pa.schema([item for item in payload if not {PLACE, MESSAGE} & (item.metadata or {}).keys()], payload.metadata)
    schema = pa.schema([*(column.field for column in columns), *beside])
    elements = next((_elements(column, beside[0]) for column in columns if column.name == exploded), None)
    return PayloadSchema(schema, tuple(columns), root, overlaps, own, way, message, rescue, elements, only_list)


def _elements(column: PayloadColumn, rescue: pa.Field) -> Elements:
    element = column.field.type.value_field
    if pa.types.is_struct(element.type):
        return Elements(column, payload_schema_of(pa.schema([*element.type, rescue]), column.path))
    alone = column.field.with_type(element.type).with_nullable(element.nullable)
    return Elements(column, payload_schema_of(pa.schema([alone, rescue]), column.path[:-1]))


def walk_nodes(node: PayloadNode, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], PayloadNode]]:
    """Every known place below a node, parents first; `*` stands for a list's elements and a map's values."""
    for key, child in node.children.items():
        yield (*path, key), child
        yield from walk_nodes(child, (*path, key))


def with_skipped(layout: PayloadSchema, paths: Iterable[tuple[str, ...]]) -> PayloadSchema:
    """The layout with more places known but not read; parents come before what is below them."""
    root = layout.root
    for path in paths:
        root = _grafted(root, path)
    return replace(layout, root=root)


def _grafted(node: PayloadNode, path: tuple[str, ...]) -> PayloadNode:
    key, *rest = path
    child = node.children.get(key, PayloadNode("skip"))
    return replace(node, children={**node.children, key: _grafted(child, tuple(rest)) if rest else child})


def rescues(payload: pa.Schema) -> frozenset[str]:
    """The fields whose wrong values are kept beside the row."""
    kept = [item.metadata[RESCUE].decode() for item in payload if RESCUE in (item.metadata or {})]
    lists = {item.metadata[ELEMENTS].decode() for item in payload if ELEMENTS in (item.metadata or {})}
    return frozenset(item.name for item in payload if kept and (item.name in lists or _is_rescued(item, kept[0])))


def _is_rescued(item: pa.Field, rescue: str) -> bool:
    own = (item.metadata or {}).get(KEEPS)
    return bool(item.nullable and (rescue == "type" if own is None else own == b"true"))


def _path(item: pa.Field, way: tuple[str, ...]) -> tuple[str, ...]:
    metadata = item.metadata or {}
    if PLACE in metadata:
        return tuple(metadata[PLACE].decode().split("."))
    return (*way, *(metadata[PATH].decode().split(".") if PATH in metadata else (item.name,)))


def node_of(item: pa.Field) -> PayloadNode:
    """What a field asks of the value in its place."""
    metadata = item.metadata or {}
    unit = metadata.get(UNIT, b"").decode()
    default = metadata[DEFAULT].decode() if DEFAULT in metadata else None
    if metadata.get(JSON_TEXT) == b"true":
        return PayloadNode("json", item.type, item.nullable, default=default)
    kind, children = _below(item.type, unit)
    return PayloadNode(kind, item.type, item.nullable, unit, default, children)


def _below(kind: pa.DataType, unit: str) -> tuple[Kind, dict[str, PayloadNode]]:
    if pa.types.is_struct(kind):
        return "object", {item.name: node_of(item) for item in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "list", {"*": _element(kind.value_field, unit)}
    if pa.types.is_map(kind):
        return "map", {"*": _element(kind.item_field, unit)}
    return "leaf", {}


def _element(item: pa.Field, unit: str) -> PayloadNode:
    # Delta keeps no metadata on an array's elements: the column's unit is theirs too.
    kind, children = _below(item.type, unit)
    return PayloadNode(kind, item.type, item.nullable, unit, None, children)


def _insert(root: PayloadNode, path: tuple[str, ...], node: PayloadNode) -> bool:
    """Put a column's node at its path; True when the place is already taken."""
    here = root
    for key in path[:-1]:
        here = here.children.setdefault(key, PayloadNode("object", open=root.open))
        if here.kind != "object" or not pa.types.is_null(here.type):
            return True
    taken = path[-1] in here.children
    # Where two readers meet, nothing below counts as new: one of them keeps it.
    here.children[path[-1]] = PayloadNode("skip") if taken else node
    return taken


def _refuse_twins(node: PayloadNode, where: str) -> None:
    seen: dict[str, str] = {}
    for key, child in node.children.items():
        if (twin := seen.setdefault(key.lower(), key)) != key:
            raise UsageError(f"The columns '{where}{twin}' and '{where}{key}' differ only in case.")
        _refuse_twins(child, f"{where}{key}.")
