"""Templates: the pattern of one JSON text, i.e. the bytes between its values, and the column of each value.

`{"id":1,"name":"ab"}` has the pattern `{"id":` · `,"name":` · `}` with the values `1` and `"ab"`. A text with the same
bytes between its values has the same keys, and needs no parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.decode.base import DecodeLimits
from headrace.decode.byte_scan import Mask, Numbers, Offsets
from headrace.decode.json.scalar_text import quoted_texts
from headrace.decode.payload import PayloadNode, PayloadSchema

Path = tuple[str, ...]

_SPACE = re.compile(rb"[ \t\r\n]*")
_KEY = re.compile(rb'"([^"\\\x00-\x1f]+)":')
# Possessive: without backtracking, a text of 16 MB takes no memory.
_TEXT = re.compile(rb'"[^"\\\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*+)*+"')
_LIST = re.compile(rb"\[[ \t\r\n]*([^\[\]{}\\]*)\]")
_WORD = re.compile(rb"[^\s{}\[\]:,\"]+")
_QUOTE, _OPEN, _CLOSE = b'"[]'
_ANY = PayloadNode("json", pa.string())
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class TemplateValue:
    """A place where texts differ: a leaf, a list of leaves, or (node `json`) any JSON that no column reads into."""

    path: Path
    node: PayloadNode
    key: int  # the ordinal of its key
    start: int
    end: int

    @property
    def ends(self) -> tuple[int, int]:
        """First and last byte unless the value is null; 0 if the type has none of its own."""
        if self.node.kind == "list":
            return _OPEN, _CLOSE
        return (_QUOTE, _QUOTE) if self.node.kind == "leaf" and quoted_texts(self.node) else (0, 0)


@dataclass(frozen=True, slots=True)
class KeptText:
    """Which values are rescued as text instead of being rejected."""

    fields: bool = False  # new fields
    columns: frozenset[Path] = frozenset()  # values of another type in nullable columns


NOTHING = KeptText()


@dataclass(frozen=True)
class Template:
    """The pattern of a text."""

    text: bytes
    values: tuple[TemplateValue, ...]
    objects: frozenset[Path]
    keys: int
    new_fields: tuple[str, ...]  # new fields that are ignored, dotted
    free: tuple[int, int] | None = None  # the first value with keys inside: ordinal of its key, number of keys inside
    misfits: tuple[int, ...] = ()  # values of another type than their column
    news: tuple[int, ...] = ()  # values of new fields that are rescued

    @cached_property
    def between(self) -> tuple[bytes, ...]:
        """Text before, between and after the values."""
        starts = [*(value.start for value in self.values), len(self.text)]
        ends = [0, *(value.end for value in self.values)]
        return tuple(self.text[end:start] for end, start in zip(ends, starts, strict=True))

    @cached_property
    def comma(self) -> str:
        """Separator between list elements, as the producer writes it."""
        spaced = b'": ' in self.between[0] and not any(part.startswith(b',"') for part in self.between)
        return ", " if spaced else ","

    @property
    def least_keys(self) -> int:
        """Number of keys that a text must have to match."""
        return self.keys - (self.free[1] if self.free else 0)

    @cached_property
    def ordinals(self) -> tuple[Numbers, Mask]:
        """The key of each value, counted from the first one, or (negative) from the end: behind the free value."""
        front = np.array([value.key for value in self.values])
        behind = front > (self.free[0] if self.free else self.keys)
        return np.where(behind, front - self.keys, front), behind

    @cached_property
    def sizes(self) -> Offsets:
        """Number of bytes before, between and after the values."""
        return np.array([len(part) for part in self.between], np.int32)

    @cached_property
    def gaps(self) -> Offsets:
        """Bytes from the quote that ends a value's key to the value."""
        return np.array([value.start - self.text.rindex(b'":', 0, value.start) for value in self.values], np.int32)

    @cached_property
    def ends(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """First and last bytes of values, 0 if the type has none of its own."""
        return np.array([value.ends for value in self.values], np.uint8).T


def trace_template(
    layout: PayloadSchema, text: bytes, limits: DecodeLimits, ignore: bool, keep: KeptText = NOTHING
) -> Template | None:
    """The template of a text; None if its keys or values do not fit a template, or a required value is missing."""
    tracer = _Tracer(text, limits, ignore or keep.fields, keep)
    try:
        tracer.trace(layout.root)
    except _Untraceable:
        return None
    values, objects = tuple(tracer.values), frozenset(tracer.objects)
    lacks = _lacks(layout, objects | {value.path for value in values})
    if any(lacks):
        return None
    new_fields, misfits, news = tuple(tracer.new_fields), tuple(tracer.misfits), tuple(tracer.news)
    return Template(text, values, objects, tracer.keys, new_fields, tracer.free, misfits, news)


class _Untraceable(Exception):
    """The text does not fit a template."""


@dataclass
class _Tracer:
    """Reads one text strictly; everything except values becomes part of the pattern, so it must be valid JSON."""

    text: bytes
    limits: DecodeLimits
    ignore: bool  # new fields may be there
    keep: KeptText = NOTHING
    at: int = 0
    keys: int = 0
    values: list[TemplateValue] = field(default_factory=list)
    objects: set[Path] = field(default_factory=set)
    new_fields: list[str] = field(default_factory=list)
    misfits: list[int] = field(default_factory=list)
    news: list[int] = field(default_factory=list)
    free: tuple[int, int] | None = None

    def trace(self, root: PayloadNode) -> None:
        self._space()
        self._object(root, ())
        self._space()
        if self.at != len(self.text) or not self.values or self.keys > self.limits.keys:
            raise _Untraceable
        if self.text.count(b'":') != self.keys:
            raise _Untraceable

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
        """Read an object with columns, or (without a node) one that no column reads."""
        if self._next() != b"{" or len(path) + 2 >= self.limits.depth:
            raise _Untraceable
        if node is not None:
            self.objects.add(path)
        seen: set[str] = set()
        mark = b","
        while mark == b",":
            self._space()
            key = self._take(_KEY)[1].decode()
            self.keys += 1
            self._space()
            self._member(node, key, path, seen)
            mark = self._next()
        if mark != b"}":
            raise _Untraceable

    def _member(self, node: PayloadNode | None, key: str, path: Path, seen: set[str]) -> None:
        # Keys that become columns must not differ only in case.
        same = key if node is None else key.lower()
        if same in seen:
            raise _Untraceable
        seen.add(same)
        if node is None:
            self._unread((*path, key))
        elif (child := node.children.get(key)) is None:
            if not self.ignore or same in {name.lower() for name in node.children}:
                raise _Untraceable
            self._new_field((*path, key), node)
        elif child.kind == "skip":
            self._unread((*path, key))
        else:
            self._value(child, (*path, key))

    def _new_field(self, path: Path, node: PayloadNode) -> None:
        if not self.keep.fields or node.open:
            self.new_fields.append(".".join(path))
        elif self._here() == b"{":
            raise _Untraceable  # its text is more than one value
        else:
            self.news.append(len(self.values))
        self._unread(path)

    def _value(self, node: PayloadNode, path: Path) -> None:
        if node.kind == "object" and self._here() == b"{":
            self._object(node, path)
            return
        element = node.children["*"] if node.kind == "list" else node
        if node.kind == "json" or (element.kind == "object" and element is not node and self._here() == b"["):
            self._json(node, path)
            return
        if element.kind != "leaf":
            self._null(node)
            return
        start, key = self.at, self.keys - 1
        if path in self.keep.columns and _misfits(node, self._here()):
            node = _unread_leaf(self._here())
            self.misfits.append(len(self.values))
        self._take({b'"': _TEXT, b"[": _LIST}.get(self._here(), _WORD))
        self.values.append(TemplateValue(path, node, key, start, self.at))

    def _null(self, node: PayloadNode) -> None:
        """Read a null: part of the pattern if it means the same as no value."""
        optional = node.nullable and node.default is None and not pa.types.is_null(node.type)
        if not optional or self._take(_WORD)[0] != b"null":
            raise _Untraceable

    def _json(self, node: PayloadNode, path: Path) -> None:
        """Read a value of any type. A text may have other keys inside; only in the first such value, more or less."""
        start, key = self.at, self.keys - 1
        rest = self.text[start:].decode()
        try:
            _, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            raise _Untraceable from None
        self.at += len(rest[:end].encode())
        inside = self.text.count(b'":', start, self.at)
        self.keys += inside
        self.free = self.free or (key, inside)
        self.values.append(TemplateValue(path, node, key, start, self.at))

    def _unread(self, path: Path) -> None:
        """Read a value that no column reads: it must be JSON of the same type."""
        if self._here() == b"{":
            self._object(None, path)
        elif self._here() == b"[" and not _LIST.match(self.text, self.at):
            self._json(_ANY, path)
        else:
            self._value(self._guessed(), path)

    def _guessed(self) -> PayloadNode:
        if self._here() != b"[":
            return _unread_leaf(self._here())
        listed = _LIST.match(self.text, self.at)
        element = _unread_leaf(listed[1][:1] if listed else b"")
        return PayloadNode("list", pa.list_(pa.field("element", element.type)), children={"*": element})

    def _here(self) -> bytes:
        return self.text[self.at : self.at + 1]


def template_text(path: Path) -> str:
    """A dotted path; keys that could be misread are quoted."""
    return ".".join(json.dumps(key) if not key or set('."') & set(key) else key for key in path)


def _unread_leaf(first: bytes) -> PayloadNode:
    if first in (b"t", b"f"):
        return PayloadNode("leaf", pa.bool_())
    return PayloadNode("leaf", pa.float64() if first and first in b"-0123456789" else pa.string())


def _misfits(node: PayloadNode, first: bytes) -> bool:
    """Whether a value with this first byte certainly has another type than its column."""
    number = pa.types.is_integer(node.type) or pa.types.is_floating(node.type)
    if first == b'"':
        return bool(number or pa.types.is_boolean(node.type))
    if first in (b"t", b"f"):
        return bool(number or pa.types.is_string(node.type))
    digits = bool(first) and first in b"-0123456789"
    return digits and bool(pa.types.is_boolean(node.type) or pa.types.is_string(node.type))


def _lacks(layout: PayloadSchema, there: frozenset[Path]) -> Iterator[bool]:
    """Whether a required value is missing, or a default would be needed."""
    for column in layout.columns:
        if column.path in there:
            yield from _lacks_below(column.node, column.path, there)
        else:
            yield not column.node.nullable and column.node.default is None


def _lacks_below(node: PayloadNode, path: Path, there: frozenset[Path]) -> Iterator[bool]:
    for key, child in node.children.items() if node.kind == "object" else ():
        if (*path, key) in there:
            yield from _lacks_below(child, (*path, key), there)
        else:
            yield not child.nullable or child.default is not None
