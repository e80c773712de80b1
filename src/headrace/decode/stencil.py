"""The quickest way: texts that a producer wrote to one pattern are read with that pattern, without a parser.

A stencil is traced from one text: the bytes between its values. Another text fits when it is those very bytes around
values that are, by their own bytes, what JSON writes and the columns take. Then nothing about it is left open: it is
the pattern, its keys are the pattern's, and its values were read from where they stand. What fits no stencil is none
the worse for it, and goes the next way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.contract import Limits
from headrace.decode.exact import default_of
from headrace.decode.layout import Column, Layout, Node
from headrace.decode.lexical import leaf, quoted
from headrace.decode.scan import Bytes, Mask, Numbers, Offsets, bools, owners

Path = tuple[str, ...]

_KEPT = 8  # stencils of one decoder
_SAMPLES = 2  # texts traced in one batch
_SHARE = 16  # one text in so many must fit none before another is traced
_PAUSE = 63  # batches at most, after one in which nothing fitted
_SPACE = re.compile(rb"[ \t\r\n]*")
_KEY = re.compile(rb'"([^"\\\x00-\x1f]+)":')
_TEXT = re.compile(rb'"[^"\\\x00-\x1f]*"')
_LIST = re.compile(rb"\[[^\[\]{}\\]*\]")
_WORD = re.compile(rb"[^\s{}\[\]:,\"]+")
_QUOTE, _OPEN, _CLOSE, _NULL = b'"[]n'


@dataclass(frozen=True, slots=True)
class _Value:
    """A place where texts differ: a leaf, or a list of them."""

    path: Path
    node: Node
    key: int  # the ordinal of its key
    start: int
    end: int

    @property
    def leaf(self) -> Node:
        return self.node.children["*"] if self.node.kind == "list" else self.node

    @property
    def ends(self) -> tuple[int, int]:
        """The bytes it begins and ends with unless it is null; 0 where it has none of its own."""
        if self.node.kind == "list":
            return _OPEN, _CLOSE
        return (_QUOTE, _QUOTE) if quoted(self.node) else (0, 0)


@dataclass(frozen=True)
class Fitting:
    """The texts that fit, by position, and their columns."""

    index: Numbers
    columns: list[pa.Array]


@dataclass(frozen=True)
class Stencil:
    """The pattern of one text, for one layout."""

    layout: Layout
    text: bytes
    values: tuple[_Value, ...]
    objects: frozenset[Path]
    keys: int

    @cached_property
    def between(self) -> tuple[bytes, ...]:
        """What stands before, between and after the values."""
        starts = [*(value.start for value in self.values), len(self.text)]
        ends = [0, *(value.end for value in self.values)]
        return tuple(self.text[end:start] for end, start in zip(ends, starts, strict=True))

    @cached_property
    def comma(self) -> str:
        """What its writer puts between the elements of a list."""
        spaced = b'": ' in self.between[0] and not any(part.startswith(b',"') for part in self.between)
        return ", " if spaced else ","

    @cached_property
    def _sizes(self) -> Offsets:
        return np.array([len(part) for part in self.between], np.int32)

    @cached_property
    def _gaps(self) -> Offsets:
        """From the quote that ends a value's key to the value."""
        return np.array([value.start - self.text.rindex(b'":', 0, value.start) for value in self.values], np.int32)

    @cached_property
    def _ends(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes that values begin and end with, 0 where they have none of their own."""
        return np.array([value.ends for value in self.values], np.uint8).T

    def fit(self, texts: _Texts, index: Numbers) -> Fitting | None:
        """The texts among these that it fits."""
        spans, index = self._spans(texts, index)
        if not len(index):
            return None
        good = np.ones(len(index), bool)
        spans, nulls = self._within(spans, good)
        columns = {value.path: self._read(nth, spans, nulls, good) for nth, value in enumerate(self.values)}
        made = [_column(column, self.objects, columns, len(index)) for column in self.layout.columns]
        if good.all():
            return Fitting(index, made)
        return Fitting(index[good], [column.filter(pa.array(good)) for column in made])

    def _spans(self, texts: _Texts, index: Numbers) -> tuple[_Spans, Numbers]:
        """Where the values of each text stand, and the texts that are the pattern all around them."""
        keys = texts.keys_of(index, self.keys)[:, [value.key for value in self.values]]
        starts, begin, end = keys + self._gaps, texts.bytes.starts[:-1][index], texts.bytes.starts[1:][index]
        ends = np.empty_like(starts)
        ends[:, :-1] = starts[:, 1:] - self._sizes[1:-1]
        ends[:, -1] = end - self._sizes[-1]
        fits = (starts[:, 0] - self._sizes[0] == begin) & (ends > starts).all(axis=1)
        spans = _Spans(texts.bytes.content, begin, starts, ends, end)
        if not fits.all():
            spans, index = spans.at(fits), index[fits]
        if not len(index):
            return spans, index
        same = spans.between() == np.frombuffer(b"".join(self.between), np.uint8)
        if not same.all():
            fits = same.all(axis=1)
            spans, index = spans.at(fits), index[fits]
        return spans, index

    def _within(self, spans: _Spans, good: Mask) -> tuple[_Spans, Mask | None]:
        """The values without their quotes and brackets, and where they are null."""
        opens, closes = self._ends
        first, last = spans.content.take(spans.starts), spans.content.take(spans.ends - 1)
        inset = (opens > 0).astype(np.int32)
        starts, ends = spans.starts + inset, spans.ends - inset
        fits = ((first == opens) & (last == closes) & (ends >= starts)) | (opens == 0)
        ends = np.maximum(starts, ends)
        nulls = first == _NULL
        if not nulls.any():
            good &= fits.all(axis=1)
            return replace(spans, starts=starts, ends=ends), None
        good &= (fits | nulls).all(axis=1)
        for nth in np.flatnonzero(nulls.any(axis=0)).tolist():
            good &= ~nulls[:, nth] | (spans.is_null(nth) & self.values[nth].node.nullable)
        return replace(spans, starts=starts, ends=np.where(nulls, starts, ends)), nulls

    def _read(self, nth: int, spans: _Spans, nulls: Mask | None, good: Mask) -> pa.Array:
        """A value's column; what it cannot vouch for is taken out of the good."""
        value, texts = self.values[nth], spans.texts(nth)
        if nulls is not None and nulls[:, nth].any():
            texts = pc.if_else(pa.array(nulls[:, nth]), pa.scalar(None, pa.string()), texts)
        if value.node.kind == "list":
            return _list(value, texts, self.comma, good)
        column, vouched = leaf(value.node, texts)
        if vouched is not None:
            good &= vouched
        return column


@dataclass(frozen=True, slots=True)
class _Spans:
    """Where the values of some texts stand in the bytes of all."""

    content: np.ndarray
    begin: Offsets
    starts: Offsets  # texts by values
    ends: Offsets
    end: Offsets

    def at(self, mask: Mask) -> _Spans:
        return _Spans(self.content, self.begin[mask], self.starts[mask], self.ends[mask], self.end[mask])

    def is_null(self, nth: int) -> Mask:
        """Where a value is the word null."""
        return bools(pc.equal(self.texts(nth), "null"))

    def texts(self, nth: int) -> pa.StringArray:
        """One value of each text."""
        return _cut(self.content, self.starts[:, nth], self.ends[:, nth])

    def between(self) -> np.ndarray:
        """The bytes around the values, one row a text; they are as many in each."""
        starts, ends = np.column_stack([self.begin, self.ends]), np.column_stack([self.starts, self.end])
        return Bytes(_cut(self.content, starts.ravel(), ends.ravel())).content.reshape(len(self.begin), -1)


def _cut(content: np.ndarray, starts: Offsets, ends: Offsets) -> pa.StringArray:
    """Pieces of the content that follow one another: every second part of what their bounds divide it into."""
    if not len(starts):
        return pa.array([], pa.string())
    bounds = np.empty((len(starts), 2), np.int32)
    bounds[:, 0], bounds[:, 1] = starts, ends
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    pieces = pa.Array.from_buffers(pa.string(), bounds.size - 1, buffers)
    return pieces.take(_seconds(len(starts)))


@lru_cache(maxsize=32)
def _seconds(count: int) -> pa.Int32Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def _list(value: _Value, texts: pa.StringArray, comma: str, good: Mask) -> pa.Array:
    """A column of lists out of what stands between their brackets."""
    text = Bytes(texts)
    quotes = quoted(value.leaf)
    if quotes:
        filled = text.sizes > 0
        good &= ~filled | ((text.byte(0) == _QUOTE) & (text.byte(-1) == _QUOTE) & (text.sizes > 1))
        texts = _cut_ends(texts, text, filled)
    divided = pc.split_pattern(texts, f'"{comma}"' if quotes else comma)
    sizes = np.where(text.sizes > 0, np.diff(divided.offsets.to_numpy()), 0)
    elements = divided.flatten()
    owner = owners(divided)
    if (empty := text.sizes == 0).any():
        kept = ~empty[owner]
        elements, owner = elements.filter(pa.array(kept)), owner[kept]
    made, vouched = leaf(value.leaf, elements)
    if vouched is not None:
        good[owner[~vouched]] = False
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    gaps = texts.is_null() if texts.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), made, type=value.node.type, mask=gaps)


def _cut_ends(texts: pa.StringArray, text: Bytes, filled: Mask) -> pa.StringArray:
    starts = text.starts[:-1] + filled
    cut = _cut(text.content, starts, np.maximum(starts, text.starts[1:] - filled))
    return cut if not texts.null_count else pc.if_else(texts.is_null(), pa.scalar(None, pa.string()), cut)


def _column(column: Column, objects: frozenset[Path], read: dict[Path, pa.Array], count: int) -> pa.Array:
    if column.path in read or column.path in objects:
        return _built(column.node, column.path, objects, read, count)
    if column.node.default is not None:
        return pa.repeat(pa.array([default_of(column)], column.node.type)[0], count)
    return pa.nulls(count, column.node.type)


def _built(node: Node, path: Path, objects: frozenset[Path], read: dict[Path, pa.Array], count: int) -> pa.Array:
    if path in read:
        return read[path]
    if path not in objects:
        return pa.nulls(count, node.type)
    parts = [_built(child, (*path, key), objects, read, count) for key, child in node.children.items()]
    return pa.StructArray.from_arrays(parts, fields=list(node.type))


# ---- tracing ----


class _Untraceable(Exception):
    """The text has something that no stencil can hold."""


@dataclass
class _Tracer:
    """Walks one text by the letter; all that is not a value becomes part of the pattern, so it must be right."""

    text: bytes
    limits: Limits
    at: int = 0
    keys: int = 0
    values: list[_Value] = field(default_factory=list)
    objects: set[Path] = field(default_factory=set)

    def trace(self, root: Node) -> None:
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
        if (found := pattern.match(self.text, self.at)) is None:
            raise _Untraceable
        self.at = found.end()
        return found

    def _next(self) -> bytes:
        self._space()
        self.at += 1
        return self.text[self.at - 1 : self.at]

    def _object(self, node: Node, path: Path) -> None:
        if self._next() != b"{" or len(path) + 2 >= self.limits.depth:
            raise _Untraceable
        self.objects.add(path)
        seen: set[str] = set()
        mark = b","
        while mark == b",":
            self._space()
            key = self._take(_KEY)[1].decode()
            child = node.children.get(key)
            if child is None or key in seen:
                raise _Untraceable
            seen.add(key)
            self.keys += 1
            self._space()
            self._value(child, (*path, key))
            mark = self._next()
        if mark != b"}":
            raise _Untraceable

    def _value(self, node: Node, path: Path) -> None:
        if node.kind == "object" and self.text[self.at : self.at + 1] == b"{":
            self._object(node, path)
            return
        element = node.children["*"] if node.kind == "list" else node
        if element.kind != "leaf":
            raise _Untraceable
        start, key = self.at, self.keys - 1
        self._take({_QUOTE: _TEXT, _OPEN: _LIST}.get(self.text[start] if start < len(self.text) else 0, _WORD))
        self.values.append(_Value(path, node, key, start, self.at))


def trace(layout: Layout, text: bytes, limits: Limits) -> Stencil | None:
    """The stencil of a text; None for one with keys or values that none can hold."""
    tracer = _Tracer(text, limits)
    try:
        tracer.trace(layout.root)
    except _Untraceable:
        return None
    made = Stencil(layout, text, tuple(tracer.values), frozenset(tracer.objects), tracer.keys)
    return None if any(_lacks(made, layout)) else made


def _lacks(stencil: Stencil, layout: Layout) -> Iterator[bool]:
    """Whether something that must be there is not, or would have to be made up."""
    there = stencil.objects | {value.path for value in stencil.values}
    for column in layout.columns:
        if column.path in there:
            yield from _lacks_below(column.node, column.path, there)
        else:
            yield not column.node.nullable and column.node.default is None


def _lacks_below(node: Node, path: Path, there: frozenset[Path] | set[Path]) -> Iterator[bool]:
    for key, child in node.children.items() if node.kind == "object" else ():
        if (*path, key) in there:
            yield from _lacks_below(child, (*path, key), there)
        else:
            yield not child.nullable or child.default is not None


# ---- many texts, several stencils ----


class _Texts:
    """A column of texts and where their keys end."""

    def __init__(self, texts: pa.StringArray) -> None:
        self.bytes = Bytes(texts)
        self._keys = self.bytes.keys()
        self._first = np.searchsorted(self._keys, self.bytes.starts)
        self.counts = np.diff(self._first)

    def keys_of(self, index: Numbers, count: int) -> np.ndarray:
        """The ends of the keys of these texts, which have so many each."""
        if len(index) * count == len(self._keys):
            return self._keys.reshape(-1, count)
        found: np.ndarray = self._keys[self._first[index][:, None] + np.arange(count)]
        return found

    def text(self, at: int) -> bytes:
        begin, end = self.bytes.starts[at], self.bytes.starts[at + 1]
        return self.bytes.content[begin:end].tobytes()


class Stencils:
    """The stencils that a decoder's texts have shown, the last useful one first."""

    def __init__(self, layout: Layout, limits: Limits) -> None:
        self._layout = layout
        self._limits = limits
        self._known: list[Stencil] = []
        self._pause = self._idle = 0

    def fit(self, texts: pa.StringArray) -> list[Fitting]:
        """What fits a stencil, known or traced here; where nothing does, fewer and fewer batches are looked at."""
        if self._idle:
            self._idle -= 1
            return []
        given = _Texts(texts)
        left = np.ones(len(texts), bool)
        found = [self._try(stencil, given, left) for stencil in tuple(self._known)]
        for _ in range(_SAMPLES):
            remain = np.flatnonzero(left)
            if not len(remain) or len(remain) * _SHARE < len(texts):
                break
            if sample := trace(self._layout, given.text(int(remain[0])), self._limits):
                found.append(self._try(sample, given, left))
            left[remain[0]] = False  # looked at: the next sample is another
        fitting = [each for each in found if each is not None]
        self._pause = 0 if fitting or not len(texts) else min(_PAUSE, 2 * self._pause + 1)
        self._idle = self._pause
        return fitting

    def _try(self, stencil: Stencil, texts: _Texts, left: Mask) -> Fitting | None:
        index = np.flatnonzero(left & (texts.counts == stencil.keys))
        fitting = stencil.fit(texts, index) if len(index) else None
        if fitting is None or not len(fitting.index):
            return None
        left[fitting.index] = False
        self._known = [stencil, *(other for other in self._known if other is not stencil)][:_KEPT]
        return fitting
