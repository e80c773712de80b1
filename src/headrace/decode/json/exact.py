"""The exact path: one JSON value at a time. It defines the result that the fast paths must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.decode.base import DecodeLimits, NewField, new_field_stop
from headrace.decode.inference import name_fits
from headrace.decode.json.strict import BOM, Cutter, Parser, holds_text
from headrace.decode.payload import PayloadColumn, PayloadNode, PayloadSchema
from headrace.decode.scalars import UnfitValue, describe, leaf_reader
from headrace.errors import UsageError
from headrace.reasons import Reason

Reader = Callable[[Any], Any]  # of a value that is not null

ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Row:
    """A valid value: one item per column, and the names of its new fields."""

    values: tuple[Any, ...]
    new_fields: tuple[str, ...] = ()


class ExactReader:
    """Reads single values to rows of a layout."""

    def __init__(self, layout: PayloadSchema, new_field: NewField, limits: DecodeLimits) -> None:
        self.parser = Parser(limits)
        self._root = layout.root
        self._new_field = new_field
        self._passes_open = layout.exploded and new_field in ("reject", "stop")
        self._column_names = {column.name.lower() for column in layout.columns}
        self._names: dict[int, set[str]] = {}  # by node id, valid as long as the layout
        self._inner: dict[int, list[tuple[str, PayloadNode]]] = {}
        self._columns = [_column_reader(column) for column in layout.columns]
        # Columns with JSON text read the original text.
        texts = [at for at, column in enumerate(layout.columns) if holds_text(column.node)]
        shared = Cutter(self.parser, layout.root)
        self._cutters = {
            at: Cutter(self.parser, _way_to(layout.columns[at])) if layout.overlaps else shared for at in texts
        }

    def read(self, text: str) -> Row:
        """The row of one value; raises UnfitValue, or ContractViolation if a new field stops the pipeline."""
        text = text.removeprefix(BOM)
        value, new_fields = self.parse_text(text)
        if self._cutters:
            row = tuple([read(value_at) for read, value_at in self.readers(text, value)])
        else:
            row = tuple([read(value) for read in self._columns])
        self.answer(new_fields)
        return Row(row, new_fields)

    def parse_record(self, raw: bytes) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """A value as text and as an object, and the names of its new fields."""
        text = self.parser.text(raw)
        return text, *self.parse_text(text)

    def parse_text(self, text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The object of a text, and the names of its new fields."""
        value = self.parser.parse(text)
        new_fields: dict[str, None] = {}
        self._collect_new(self._root, value, "", new_fields)
        return value, tuple(new_fields)

    def readers(self, text: str, value: dict[str, Any]) -> list[tuple[Reader, Any]]:
        """Each column's reader and its input."""
        cuts = {cutter: cutter.cut(text) for cutter in set(self._cutters.values())}
        return [
            (read, cuts[self._cutters[at]] if at in self._cutters else value) for at, read in enumerate(self._columns)
        ]

    def answer(self, new_fields: tuple[str, ...]) -> None:
        """Apply the contract for new fields."""
        if new_fields and self._new_field == "reject":
            raise UnfitValue(Reason.NEW_FIELD, f"{new_fields[0]}: unknown field, and the contract is new_field: reject")
        if new_fields and self._new_field == "stop":
            raise new_field_stop(new_fields[0])

    def _collect_new(self, node: PayloadNode, value: Any, where: str, new_fields: dict[str, None]) -> None:
        """Collect new fields at every depth; reject names that cannot be columns."""
        if node.kind == "list" and isinstance(value, list):
            self._collect_from_elements(node.children["*"], value, where, new_fields)
        elif node.kind == "map" and isinstance(value, dict):
            self._collect_from_elements(node.children["*"], value.values(), where, new_fields)
        elif node.kind == "object" and isinstance(value, dict):
            if not value.keys() <= node.children.keys():
                self._collect_new_keys(node, value, where, new_fields)
            for key, child in self._inner_nodes(node):
                if key in value:
                    self._collect_new(child, value[key], f"{where}{key}.", new_fields)

    def _collect_from_elements(
        self, element: PayloadNode, values: Iterable[Any], where: str, new_fields: dict[str, None]
    ) -> None:
        if element.kind in ("object", "list", "map"):
            for value in values:
                self._collect_new(element, value, where, new_fields)

    def _collect_new_keys(
        self, node: PayloadNode, value: Mapping[str, Any], where: str, new_fields: dict[str, None]
    ) -> None:
        if len({key.lower() for key in value}) != len(value):
            raise UnfitValue(Reason.DUPLICATE_KEY, f"{where or 'the object '}has keys that differ only in case")
        for key in value:
            if key not in node.children and self.is_new_field(node, key, where):
                new_fields[where + key] = None

    def is_new_field(self, node: PayloadNode, key: str, where: str) -> bool:
        """Whether an unknown key is a new field of the table.

        UnfitValue if it differs from a known key only in case, or cannot be the name of a column.
        """
        if key.lower() in self._lower_names(node):
            raise UnfitValue(Reason.BAD_NAME, f"{where}{key[:300]}: differs from a known field only in case")
        if self._new_field == "evolve" and not name_fits(key):
            raise UnfitValue(Reason.BAD_NAME, f"{where}{describe(key)} cannot be a column's name")
        return not (node.open and self._passes_open)

    def _inner_nodes(self, node: PayloadNode) -> list[tuple[str, PayloadNode]]:
        """The keys that have known keys below, and their nodes; cached, as an object may have thousands of others."""
        if (inner := self._inner.get(id(node))) is None:
            inner = self._inner[id(node)] = [(key, child) for key, child in node.children.items() if child.children]
        return inner

    def _lower_names(self, node: PayloadNode) -> set[str]:
        """Names of a node in lower case; cached, as a record may have thousands of keys."""
        if id(node) not in self._names:
            beside = self._column_names if node is self._root and self._new_field == "evolve" else set()
            self._names[id(node)] = {name.lower() for name in node.children} | beside
        return self._names[id(node)]


def default_of(column: PayloadColumn) -> Any:
    """A column's default as a value of its type; ABSENT if it has none."""
    return inner_default(column.node, column.name)


def inner_default(node: PayloadNode, name: str) -> Any:
    """A node's default as a value of its type; ABSENT if it has none."""
    if node.default is None or node.kind == "json":
        return ABSENT if node.default is None else node.default
    try:
        return _fitted(node, reader_of(node), Parser(DecodeLimits()).value(node.default))
    except UnfitValue as unfit:
        raise UsageError(f"The default of column '{name}' does not fit it: {unfit.detail}.") from None


def _way_to(column: PayloadColumn) -> PayloadNode:
    node = column.node
    for key in reversed(column.path):
        node = PayloadNode("object", children={key: node})
    return node


def _column_reader(column: PayloadColumn) -> Callable[[dict[str, Any]], Any]:
    read, default = reader_of(column.node), default_of(column)
    *parents, last = column.path

    def of(value: dict[str, Any]) -> Any:
        member = (_object_at(value, parents) if parents else value).get(last, ABSENT)
        if member is ABSENT and default is not ABSENT:
            return default
        try:
            return _fitted(column.node, read, None if member is ABSENT else member)
        except UnfitValue as unfit:
            raise unfit.within(".".join(column.path)) from None

    return of


def _object_at(value: Any, path: Sequence[str]) -> dict[str, Any]:
    """The object at a path; an empty one if the path ends before."""
    for depth, key in enumerate(path, 1):
        value = value.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise _not("an object", value).within(".".join(path[:depth]))
    inner: dict[str, Any] = value
    return inner


def _not(expected: str, value: object) -> UnfitValue:
    return UnfitValue(Reason.TYPE, f"expected {expected}, saw {describe(value)}")


def _fitted(node: PayloadNode, read: Reader, value: Any) -> Any:
    if value is not None:
        return read(value)
    if not node.nullable:
        raise missing_value()
    return None


def missing_value() -> UnfitValue:
    """The error of a required value that is absent or null."""
    return UnfitValue(Reason.MISSING, "required, and absent or null")


def reader_of(node: PayloadNode) -> Reader:
    """Make the reader of non-null values of the node's type."""
    if node.kind == "json":
        return str
    if node.kind == "object":
        return _object_reader(node)
    if node.kind == "list":
        return _list_reader(node.children["*"])
    if node.kind == "map":
        return _map_reader(node.children["*"])
    return leaf_reader(node)


def _object_reader(node: PayloadNode) -> Reader:
    children = [(key, child, reader_of(child), inner_default(child, key)) for key, child in node.children.items()]

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _not("an object", value)
        struct = {}
        for key, child, inner, default in children:
            member = value.get(key, ABSENT)
            if member is ABSENT and default is not ABSENT:
                struct[key] = default
                continue
            try:
                struct[key] = _fitted(child, inner, None if member is ABSENT else member)
            except UnfitValue as unfit:
                raise unfit.within(f".{key}") from None
        return struct

    return read


def _list_reader(element: PayloadNode) -> Reader:
    inner = reader_of(element)

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _not("an array", value)
        elements: list[Any] = []
        try:
            for item in value:
                elements.append(_fitted(element, inner, item))
        except UnfitValue as unfit:
            raise unfit.within(f"[{len(elements)}]") from None
        return elements

    return read


def _map_reader(element: PayloadNode) -> Reader:
    inner = reader_of(element)

    def read(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _not("an object", value)
        entries: list[tuple[str, Any]] = []
        for key, item in value.items():
            try:
                entries.append((key, _fitted(element, inner, item)))
            except UnfitValue as unfit:
                raise unfit.within(f".{key}") from None
        return entries

    return read
