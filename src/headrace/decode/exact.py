"""The exact way: one JSON value at a time, by the letter; it defines what the fast way must equal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.decode.contract import Limits, NewField
from headrace.decode.layout import Column, Layout, Node, walk
from headrace.decode.leaves import Unfit, leaf_reader, seen
from headrace.decode.structure import name_fits
from headrace.errors import ContractBroken, UsageError
from headrace.reasons import Reason

_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_BOM = "\ufeff"
_DIGITS = 4_000  # beyond this an integer's value no longer matters, only that it fits nowhere
_BEYOND: int = 10**_DIGITS


class Real(float):
    """A number with a fraction or an exponent, and the text it was written as."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Real:
        made = super().__new__(cls, text)
        made.text = text
        return made


class Span(str):
    """The original text of a value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A value that fits: one item per column, and the names of its new fields."""

    values: tuple[Any, ...]
    strangers: tuple[str, ...] = ()


def _integer(text: str) -> int:
    if len(text) < _DIGITS:
        return int(text)
    return -_BEYOND if text[0] == "-" else _BEYOND


def _no_constant(name: str) -> Any:
    raise Unfit(Reason.MALFORMED, f"{name} is not JSON")


class Parser:
    """Strict JSON: nothing beyond RFC 8259, no key twice, within the limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._twice: str | None = None
        self._widest = 0
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_float=Real, parse_int=_integer, parse_constant=_no_constant
        )

    @staticmethod
    def text(raw: bytes) -> str:
        """The value's text, without a byte-order mark."""
        try:
            return raw.decode().removeprefix(_BOM)
        except UnicodeDecodeError as error:
            raise Unfit(Reason.ENCODING, f"byte {error.start} is not valid UTF-8") from None

    def parse(self, text: str) -> dict[str, Any]:
        """The object a text holds; Unfit says why there is none."""
        self._twice, self._widest = None, 0
        self._refuse_depth(text)
        value = self._whole(text)
        if self._twice is not None:
            raise Unfit(Reason.DUPLICATE_KEY, f"the key {seen(self._twice)} appears twice in one object")
        if self._widest > self._limits.keys:
            raise Unfit(Reason.TOO_WIDE, f"an object has {self._widest} keys, the limit is {self._limits.keys}")
        if _SURROGATE.search(text):
            _refuse_lone_surrogates(value)
        if not isinstance(value, dict):
            raise Unfit(Reason.NOT_AN_OBJECT, f"the value is {seen(value)}")
        return value

    def scan(self, text: str, at: int) -> tuple[Any, int]:
        """The value that begins at a position, and the position after it."""
        found: tuple[Any, int] = self._decoder.raw_decode(text, at)
        return found

    def _whole(self, text: str) -> Any:
        try:
            value, end = self.scan(text, space(text, 0))
        except json.JSONDecodeError as error:
            raise Unfit(Reason.MALFORMED, f"{error.msg} at character {error.pos}") from None
        if space(text, end) != len(text):
            raise Unfit(Reason.TRAILING_DATA, f"the value ends at character {end} of {len(text)}")
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs) and self._twice is None:
            keys = [key for key, _ in pairs]
            self._twice = next(key for key in keys if keys.count(key) > 1) if len(keys) < 1000 else "…"
        self._widest = max(self._widest, len(pairs))
        return made

    def _refuse_depth(self, text: str) -> None:
        limit = self._limits.depth
        if text.count("{") + text.count("[") < limit:
            return
        depth = 0
        for found in _BRACKETS.finditer(text):
            if found[0] in "{[":
                depth += 1
            elif found[0] in "}]":
                depth -= 1
            if depth >= limit:
                raise Unfit(Reason.TOO_DEEP, f"nested {limit} deep or deeper at character {found.start()}")


def space(text: str, at: int) -> int:
    """The first position from `at` on that is not white space."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unfit(Reason.ENCODING, "an escape is half of a surrogate pair") from None


class Exact:
    """Reads single values into rows of a layout."""

    def __init__(self, layout: Layout, new_field: NewField, limits: Limits) -> None:
        self.parser = Parser(limits)
        self._layout = layout
        self._new_field = new_field
        self._columns = [(column, _reader(column.node)) for column in layout.columns]
        self._column_names = {column.name.lower() for column in layout.columns}
        self._defaults = {column.name: default_of(column) for column in layout.columns}
        self._cut = _holds_text(layout.root) or layout.overlaps

    def read(self, raw: bytes) -> Row:
        """The row of one value; Unfit when it has none, ContractBroken when a new field stops the pipeline."""
        text = self.parser.text(raw)
        value = self.parser.parse(text)
        strangers: list[str] = []
        self._meet(self._layout.root, value, "", strangers)
        row = tuple(self._column(column, read, value, text) for column, read in self._columns)
        if strangers and self._new_field == "reject":
            raise Unfit(Reason.NEW_FIELD, f"{strangers[0]}: the contract knows no such field")
        if strangers and self._new_field == "stop":
            raise ContractBroken(f"A record brings the new field '{strangers[0]}', and new_field is stop.")
        return Row(row, tuple(strangers))

    def _column(self, column: Column, read: Callable[[Any, str], Any], value: dict[str, Any], text: str) -> Any:
        if self._cut and _holds_text(column.node):
            root = _way_to(column) if self._layout.overlaps else self._layout.root
            value, _ = self._spans(root, text, space(text, 0))
        found = _dig(value, column.path)
        if found is _ABSENT:
            found_default = self._defaults[column.name]
            if found_default is not _ABSENT:
                return found_default
            found = None
        return _fitted(column.node, read, found, ".".join(column.path))

    def _meet(self, node: Node, value: Any, where: str, strangers: list[str]) -> None:
        """Note the fields nobody knows, at every depth; refuse names that cannot stand beside the known ones."""
        if node.kind == "object" and isinstance(value, dict):
            self._meet_keys(node, value, where, strangers)
            for key, child in node.children.items():
                if child.children and key in value:
                    self._meet(child, value[key], f"{where}{key}.", strangers)
        elif node.kind == "list" and isinstance(value, list):
            for item in value:
                self._meet(node.children["*"], item, where, strangers)
        elif node.kind == "map" and isinstance(value, dict):
            for item in value.values():
                self._meet(node.children["*"], item, where, strangers)

    def _meet_keys(self, node: Node, value: Mapping[str, Any], where: str, strangers: list[str]) -> None:
        if value.keys() <= node.children.keys():
            return
        if len({key.lower() for key in value}) != len(value):
            raise Unfit(Reason.DUPLICATE_KEY, f"{where or 'the object '}has keys that differ only in case")
        for key in value:
            if key not in node.children:
                self.refuse_name(node, key, where)
                if where + key not in strangers:
                    strangers.append(where + key)

    def refuse_name(self, node: Node, key: str, where: str) -> None:
        """Unfit when a new key is a known one in other case, or could never be the column it asks to be."""
        known = {name.lower() for name in node.children}
        if node is self._layout.root and self._new_field == "evolve":
            known |= self._column_names
        if key.lower() in known:
            raise Unfit(Reason.BAD_NAME, f"{where}{key[:300]}: differs from a known field only in case")
        if self._new_field == "evolve" and not name_fits(key):
            raise Unfit(Reason.BAD_NAME, f"{where}{seen(key)} cannot be a column's name")

    def _spans(self, node: Node | None, text: str, at: int) -> tuple[Any, int]:
        """Read a valid value again, keeping the original text where a column wants it."""
        if node is not None and node.kind == "json":
            value, end = self.parser.scan(text, at)
            return (None if value is None else Span(text[at:end])), end
        if node is not None and _holds_text(node):
            if text[at] == "{" and node.kind in ("object", "map"):
                return self._span_members(node, text, at)
            if text[at] == "[" and node.kind == "list":
                return self._span_elements(node, text, at)
        return self.parser.scan(text, at)

    def _span_members(self, node: Node, text: str, at: int) -> tuple[dict[str, Any], int]:
        made: dict[str, Any] = {}
        at = space(text, at + 1)
        while text[at] != "}":
            key, at = self.parser.scan(text, at)
            at = space(text, space(text, at) + 1)
            child = node.children.get("*" if node.kind == "map" else key)
            made[key], at = self._spans(child, text, at)
            at = _past_comma(text, at)
        return made, at + 1

    def _span_elements(self, node: Node, text: str, at: int) -> tuple[list[Any], int]:
        made: list[Any] = []
        at = space(text, at + 1)
        while text[at] != "]":
            item, at = self._spans(node.children["*"], text, at)
            made.append(item)
            at = _past_comma(text, at)
        return made, at + 1


_ABSENT: Any = object()


def default_of(column: Column) -> Any:
    """A column's default as a value; the marker for none where it has none."""
    node = column.node
    if node.default is None:
        return _ABSENT
    if node.kind == "json":
        return node.default
    try:
        return _fitted(node, _reader(node), Parser(Limits()).scan(node.default, 0)[0], column.name)
    except (Unfit, ValueError) as error:
        raise UsageError(f"The default of column '{column.name}' does not fit it: {error}") from None


def has_default(column: Column) -> bool:
    """Whether an absent field takes a default."""
    return column.node.default is not None


def _past_comma(text: str, at: int) -> int:
    at = space(text, at)
    return space(text, at + 1) if text[at] == "," else at


def _holds_text(node: Node) -> bool:
    return node.kind == "json" or any(child.kind == "json" for _, child in walk(node))


def _way_to(column: Column) -> Node:
    node = column.node
    for key in reversed(column.path):
        node = Node("object", children={key: node})
    return node


def _dig(value: Any, path: tuple[str, ...]) -> Any:
    for depth, key in enumerate(path):
        if value is None or value is _ABSENT:
            return _ABSENT
        if not isinstance(value, dict):
            raise Unfit(Reason.TYPE, f"{'.'.join(path[:depth])}: expected an object, saw {seen(value)}")
        value = value.get(key, _ABSENT)
    return value


def _fitted(node: Node, read: Callable[[Any, str], Any], value: Any, where: str) -> Any:
    if value is not None:
        return read(value, where)
    if not node.nullable:
        raise Unfit(Reason.MISSING, f"{where}: required, and absent or null")
    return None


def _reader(node: Node) -> Callable[[Any, str], Any]:
    """How a value that is not null becomes the node's type."""
    if node.kind == "json":
        return lambda value, where: str(value)
    if node.kind == "object":
        return _object_reader(node)
    if node.kind == "list":
        return _list_reader(node)
    if node.kind == "map":
        return _map_reader(node)
    return leaf_reader(node)


def _object_reader(node: Node) -> Callable[[Any, str], Any]:
    children = [(key, child, _reader(child)) for key, child in node.children.items()]
    defaults = {key: default_of(Column(key, (key,), child, None)) for key, child in node.children.items()}

    def read(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Unfit(Reason.TYPE, f"{where}: expected an object, saw {seen(value)}")
        made = {}
        for key, child, inner in children:
            found = value.get(key, defaults[key])
            if key not in value and found is not _ABSENT:
                made[key] = found
            else:
                made[key] = _fitted(child, inner, None if found is _ABSENT else found, f"{where}.{key}")
        return made

    return read


def _list_reader(node: Node) -> Callable[[Any, str], Any]:
    element = node.children["*"]
    inner = _reader(element)

    def read(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise Unfit(Reason.TYPE, f"{where}: expected an array, saw {seen(value)}")
        return [_fitted(element, inner, item, f"{where}[{at}]") for at, item in enumerate(value)]

    return read


def _map_reader(node: Node) -> Callable[[Any, str], Any]:
    element = node.children["*"]
    inner = _reader(element)

    def read(value: Any, where: str) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise Unfit(Reason.TYPE, f"{where}: expected an object, saw {seen(value)}")
        return [(key, _fitted(element, inner, item, f"{where}.{key}")) for key, item in value.items()]

    return read
