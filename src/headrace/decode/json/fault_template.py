"""Templates of rejected texts: what the exact path says of one text, and where other texts of its pattern differ.

A producer with a fault repeats it: `{"id":"x1","ok":true}`, `{"id":"x2","ok":true}`, … Everything but the values is
constant in a template, so the checks of the exact path are compiled once, in its order, and those that depend on keys
only are answered once, by the exact path itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.decode.base import DecodeLimits
from headrace.decode.json.exact import ExactReader
from headrace.decode.json.scalar_text import JsonKind, quoted_texts
from headrace.decode.json.template import Path, Template, TemplateValue
from headrace.decode.payload import PayloadColumn, PayloadNode, PayloadSchema
from headrace.decode.scalars import UnfitValue
from headrace.errors import ContractViolation
from headrace.reasons import Reason

_SPACE = re.compile(rb"[ \t\r\n]*")
_KEY = re.compile(rb'"([^"\\\x00-\x1f]+)":')
_SCALAR = rb'(?:"[^"\\\x00-\x1f]*"|(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=[\s,}\]]))'
_VALUE = re.compile(_SCALAR + rb"|\[\s*(?:" + _SCALAR + rb"(?:\s*,\s*" + _SCALAR + rb")*)?\s*\]")
_BY_KEYS = frozenset({Reason.DUPLICATE_KEY, Reason.BAD_NAME})  # reasons that depend on the keys of a text only

# How values that no column reads are read, to see that they are JSON.
_UNREAD = {
    "text": PayloadNode("leaf", pa.string()),
    "number": PayloadNode("leaf", pa.float64()),
    "boolean": PayloadNode("leaf", pa.bool_()),
}


@dataclass(frozen=True, slots=True)
class FaultCheck:
    """A check of the exact path: of a value (`nth`), of an object in place of a value, or of a missing value."""

    path: Path
    node: PayloadNode
    nth: int | None = None
    kind: JsonKind | None = None  # None: the value is missing

    @property
    def takes(self) -> bool:
        """Whether the node takes values of this kind at all."""
        return self.kind is not None and (self.node.kind == "json" or self.kind == _taken(self.node))


@dataclass(frozen=True, slots=True, eq=False)
class FaultTemplate:
    """A pattern, and what the exact path says of texts that match it."""

    pattern: Template
    checks: tuple[FaultCheck, ...] = ()  # in the order of the exact path
    constant: UnfitValue | None = None  # of all texts: before the checks if its reason depends on keys, else after them
    depth: int = 0  # of the object in which the text is broken: the last value runs to the end of the text

    @property
    def constant_first(self) -> bool:
        """Whether the checks do not matter."""
        return self.constant is not None and self.constant.reason in _BY_KEYS


class _Untraceable(Exception):
    """The text does not fit a template."""


def trace_fault(layout: PayloadSchema, exact: ExactReader, text: bytes, limits: DecodeLimits) -> FaultTemplate | None:
    """The template of a text that the exact path rejects; None if it has none, or the text is valid."""
    try:
        exact.read(text.decode())
    except ContractViolation:
        return None
    except UnfitValue as unfit:
        tracer = _Tracer(layout, text, limits)
        try:
            tracer.trace()
        except _Untraceable:
            return tracer.broken() if unfit.reason in (Reason.MALFORMED, Reason.TRAILING_DATA) else None
        if unfit.reason in _BY_KEYS:
            return FaultTemplate(tracer.pattern(), constant=unfit)
        return _checked(layout, exact, tracer)
    return None


def _checked(layout: PayloadSchema, exact: ExactReader, tracer: _Tracer) -> FaultTemplate | None:
    try:
        new_fields = exact.parse_text(tracer.text.decode())[1]
        checks = tuple(check for column in layout.columns for check in tracer.checks(column))
    except (UnfitValue, _Untraceable):
        return None
    try:
        exact.answer(new_fields)
    except ContractViolation:
        return None
    except UnfitValue as unfit:
        return FaultTemplate(tracer.pattern(), checks, unfit)
    return FaultTemplate(tracer.pattern(), checks)


def _taken(node: PayloadNode) -> JsonKind:
    """The kind of JSON values that a node other than `json` takes."""
    if node.kind in ("object", "map"):
        return "object"
    if node.kind == "list":
        return "array"
    if pa.types.is_boolean(node.type):
        return "boolean"
    return "text" if quoted_texts(node) else "number"


@dataclass
class _Tracer:
    """Reads one text strictly, whatever its keys; everything except values becomes part of the pattern."""

    layout: PayloadSchema
    text: bytes
    limits: DecodeLimits
    at: int = 0
    keys: int = 0
    depth: int = 0  # of the last key
    after_key: int = 0  # position after the colon of the last key
    values: list[TemplateValue] = field(default_factory=list)
    kinds: list[JsonKind] = field(default_factory=list)
    objects: set[Path] = field(default_factory=set)

    def trace(self) -> None:
        self._space()
        self._object(self.layout.root, ())
        self._space()
        if self.at != len(self.text) or not self.values or self.text.count(b'":') != self.keys:
            raise _Untraceable

    def pattern(self) -> Template:
        return Template(self.text, tuple(self.values), frozenset(self.objects), self.keys, ())

    def broken(self) -> FaultTemplate | None:
        """The template of a text that is malformed or goes on after its end: all after the last key is one value."""
        start = self.after_key
        before = [value for value in self.values if value.key < self.keys - 1]
        tail = TemplateValue((), _UNREAD["number"], self.keys - 1, start, len(self.text))
        if not self.keys or start == len(self.text):
            return None
        pattern = Template(self.text, (*before, tail), frozenset(), self.keys, ())
        return FaultTemplate(pattern, depth=self.depth)

    def checks(self, column: PayloadColumn) -> Iterator[FaultCheck]:
        """The checks of a column, in the order of the exact path."""
        places = {value.path: nth for nth, value in enumerate(self.values)}
        for depth in range(1, len(column.path)):
            parent = column.path[:depth]
            if parent in places:
                yield FaultCheck(parent, PayloadNode("object"), places[parent], self.kinds[places[parent]])
                # A null has no columns inside.
                yield from _missing(column.node, column.path)
                return
        yield from self._inner_checks(column.node, column.path, places)

    def _inner_checks(self, node: PayloadNode, path: Path, places: dict[Path, int]) -> Iterator[FaultCheck]:
        if (node.kind == "leaf" and pa.types.is_null(node.type)) or (node.kind == "map" and path in self.objects):
            raise _Untraceable
        if path in places:
            nth = places[path]
            if node.kind == "list" and self.kinds[nth] == "array" and node.children["*"].kind != "leaf":
                raise _Untraceable
            yield FaultCheck(path, node, nth, self.kinds[nth])
        elif path not in self.objects:
            yield from _missing(node, path)
        elif node.kind != "object":
            yield FaultCheck(path, node, None, "object")
        else:
            for key, child in node.children.items():
                yield from self._inner_checks(child, (*path, key), places)

    def _space(self) -> None:
        self._take(_SPACE)

    def _take(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        if (match := pattern.match(self.text, self.at)) is None:
            raise _Untraceable
        self.at = match.end()
        return match

    def _next(self) -> bytes:
        self._space()
        self.at += 1
        return self.text[self.at - 1 : self.at]

    def _object(self, node: PayloadNode | None, path: Path) -> None:
        if self._next() != b"{" or len(path) + 2 >= self.limits.depth:
            raise _Untraceable
        self.objects.add(path)
        mark = b","
        while mark == b",":
            self._space()
            key = self._take(_KEY)[1].decode()
            self.keys, self.depth, self.after_key = self.keys + 1, len(path) + 1, self.at
            self._space()
            self._value(node.children.get(key) if node and node.kind == "object" else None, (*path, key))
            mark = self._next()
        if mark != b"}":
            raise _Untraceable

    def _value(self, node: PayloadNode | None, path: Path) -> None:
        start, first = self.at, self.text[self.at : self.at + 1]
        if first == b"{":
            self._object(node, path)
            return
        word = self._take(_VALUE)[0]
        kind = _kind(word, node)
        self.kinds.append(kind)
        self.values.append(TemplateValue(path, _read_as(node, kind, word), self.keys - 1, start, self.at))


def _missing(node: PayloadNode, path: Path) -> Iterator[FaultCheck]:
    if node.default is None and not node.nullable:
        yield FaultCheck(path, node)


def _kind(word: bytes, node: PayloadNode | None) -> JsonKind:
    """The kind of a value; a null stands for what its column takes."""
    if word != b"null":
        return {b'"': "text", b"[": "array", b"t": "boolean", b"f": "boolean"}.get(word[:1], "number")  # type: ignore[return-value]
    if node is None or node.kind not in ("leaf", "list"):
        return "text"
    return _taken(node)


def _read_as(node: PayloadNode | None, kind: JsonKind, word: bytes) -> PayloadNode:
    """The node that reads a value: its column's, or one that takes any value of its kind."""
    element = node.children["*"] if node is not None and node.kind == "list" else node
    if node is not None and element is not None and element.kind == "leaf" and _taken(node) == kind:
        return node
    if kind != "array":
        return _UNREAD[kind]
    first = word[1:].lstrip()[:1]
    unread = _UNREAD["text" if first in (b'"', b"]") else "boolean" if first in (b"t", b"f") else "number"]
    return PayloadNode("list", pa.list_(pa.field("element", unread.type)), children={"*": unread})
