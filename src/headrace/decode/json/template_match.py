"""The fastest path: texts that match a template are read without a parser.

A text matches if it has the same bytes around its values as the template, and the values are, by their own bytes, valid
JSON of their columns' types. The end quotes of all keys are found at once; with the template of `{"id":1,"name":"ab"}`,
the first value starts one byte after the quote that ends `"id"`, and ends where `,"name":` starts. Texts that match no
template take the next path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import DecodeLimits
from headrace.decode.byte_scan import Mask, Numbers, Offsets, TextBytes, bools, cut
from headrace.decode.json.exact import default_of
from headrace.decode.json.member_reader import JsonChecker
from headrace.decode.json.scalar_text import leaf, list_of_leaves
from headrace.decode.json.template import (
    NOTHING,
    KeptText,
    Path,
    Template,
    TemplateValue,
    template_text,
    trace_template,
)
from headrace.decode.payload import PayloadColumn, PayloadNode, PayloadSchema

_KEPT = 8  # templates of one decoder
_SAMPLES = 2  # texts traced in one batch
_SHARE = 16  # one text in so many must match none before another is traced
_VAIN = 2  # failed matches per text, on average
_PAUSE = 63  # maximum number of batches passed over after one without matches
_NULL = ord("n")


@dataclass(frozen=True)
class TemplateMatch:
    """The texts that match, by position, and their columns."""

    index: Numbers
    columns: list[pa.Array]
    new_fields: tuple[str, ...]  # ignored new fields that each text has
    kept: pa.StringArray | None = None  # rescued values of each text


@dataclass(frozen=True, eq=False)
class TemplateMatcher:
    """Matches many texts with one template, for one layout."""

    layout: PayloadSchema
    pattern: Template
    parts: NestedValues

    def may_fit(self, keys: Numbers) -> Mask:
        """Which texts match by the number of their keys."""
        mask: Mask = keys >= self.pattern.least_keys if self.pattern.free else keys == self.pattern.keys
        return mask

    def fit(self, texts: KeyedTexts, index: Numbers) -> TemplateMatch | None:
        """The texts that match."""
        spans, index = value_spans(self.pattern, texts, index)
        if not len(index):
            return None
        good = np.ones(len(index), bool)
        whole = spans
        spans, nulls = self._within(spans, good)
        columns = {value.path: self._read(nth, spans, nulls, good) for nth, value in enumerate(self.pattern.values)}
        columns |= {self.pattern.values[nth].path: None for nth in self.pattern.misfits}
        rows = [_column(column, self.pattern.objects, columns, len(index)) for column in self.layout.columns]
        kept = self._kept(whole, nulls, good)
        if good.all():
            return TemplateMatch(index, rows, self.pattern.new_fields, kept)
        if not good.any():
            return None
        rows = [column.filter(pa.array(good)) for column in rows]
        kept = kept if kept is None else kept.filter(pa.array(good))
        return TemplateMatch(index[good], rows, self.pattern.new_fields, kept)

    def _kept(self, whole: ValueSpans, nulls: Mask | None, good: Mask) -> pa.StringArray | None:
        """The texts of rescued values, each after its path; a null fits every column and is not rescued."""
        values = self.pattern.values
        order = {column.path: nth for nth, column in enumerate(self.layout.columns)}
        misfits = sorted(self.pattern.misfits, key=lambda nth: order[values[nth].path])
        if nulls is not None:
            good &= ~nulls[:, list(misfits)].any(axis=1)
        parts: list[pa.Array | str] = []
        for nth in (*misfits, *self.pattern.news):
            parts += [f"{',' if parts else '{'}{json.dumps(template_text(values[nth].path))}:", whole.texts(nth)]
        return pc.binary_join_element_wise(*parts, "}", "") if parts else None

    def _within(self, spans: ValueSpans, good: Mask) -> tuple[ValueSpans, Mask | None]:
        """The values without quotes and brackets, and which of them are null."""
        inner, fits, nulls = spans.inner(self.pattern)
        if nulls is None:
            good &= fits.all(axis=1)
            return inner, None
        good &= (fits | nulls).all(axis=1)
        for nth in np.flatnonzero(nulls.any(axis=0)).tolist():
            good &= ~nulls[:, nth] | (spans.is_null(nth) & self.pattern.values[nth].node.nullable)
        return inner, nulls

    def _read(self, nth: int, spans: ValueSpans, nulls: Mask | None, good: Mask) -> pa.Array:
        """A value's column; texts with an uncertain value do not match."""
        value, texts = self.pattern.values[nth], spans.texts(nth)
        if nulls is not None and nulls[:, nth].any():
            texts = pc.if_else(pa.array(nulls[:, nth]), pa.scalar(None, pa.string()), texts)
        if value.node.kind == "list" and value.node.children["*"].kind == "object":
            return self.parts.read_lists(value, texts, self.pattern.comma, good)
        if value.node.kind == "list":
            return list_of_leaves(value.node, texts, self.pattern.comma, good)
        if value.node.kind == "json":
            column, certain = texts.cast(value.node.type), self.parts.checker.valid(texts, len(value.path))
        else:
            column, certain = leaf(value.node, texts)
        if certain is not None:
            good &= certain
        return column


def value_spans(pattern: Template, texts: KeyedTexts, index: Numbers) -> tuple[ValueSpans, Numbers]:
    """The values of each text, and which texts match the pattern around them."""
    keys = texts.keys_of(index, pattern)
    starts, begin, end = keys + pattern.gaps, texts.bytes.starts[:-1][index], texts.bytes.starts[1:][index]
    ends = np.empty_like(starts)
    ends[:, :-1] = starts[:, 1:] - pattern.sizes[1:-1]
    ends[:, -1] = end - pattern.sizes[-1]
    fits = (starts[:, 0] - pattern.sizes[0] == begin) & (ends > starts).all(axis=1)
    spans = ValueSpans(texts.bytes.content, begin, starts, ends, end)
    if not fits.all():
        spans, index = spans.at(fits), index[fits]
    if not len(index):
        return spans, index
    same = spans.between() == np.frombuffer(b"".join(pattern.between), np.uint8)
    if not same.all():
        fits = same.all(axis=1)
        spans, index = spans.at(fits), index[fits]
    return spans, index


@dataclass(frozen=True, slots=True)
class ValueSpans:
    """Start and end of the values of some texts."""

    content: np.ndarray
    begin: Offsets
    starts: Offsets  # texts by values
    ends: Offsets
    end: Offsets

    def at(self, mask: Mask) -> ValueSpans:
        return ValueSpans(self.content, self.begin[mask], self.starts[mask], self.ends[mask], self.end[mask])

    def inner(self, pattern: Template) -> tuple[ValueSpans, Mask, Mask | None]:
        """The spans without quotes and brackets, which values have those of their type, and which start as null."""
        opens, closes = pattern.ends
        first, last = self.content.take(self.starts), self.content.take(self.ends - 1)
        inset = (opens > 0).astype(np.int32)
        starts, ends = self.starts + inset, self.ends - inset
        fits = ((first == opens) & (last == closes) & (ends >= starts)) | (opens == 0)
        ends = np.maximum(starts, ends)
        nulls = first == _NULL
        if not nulls.any():
            return replace(self, starts=starts, ends=ends), fits, None
        return replace(self, starts=starts, ends=np.where(nulls, starts, ends)), fits, nulls

    def is_null(self, nth: int) -> Mask:
        """Which values are the word null."""
        return bools(pc.equal(self.texts(nth), "null"))

    def texts(self, nth: int) -> pa.StringArray:
        """One value of each text."""
        return cut(self.content, self.starts[:, nth], self.ends[:, nth], pa.string())

    def between(self) -> np.ndarray:
        """The bytes around the values, one row per text."""
        starts, ends = np.column_stack([self.begin, self.ends]), np.column_stack([self.starts, self.end])
        return TextBytes(cut(self.content, starts.ravel(), ends.ravel(), pa.string())).content.reshape(
            len(self.begin), -1
        )


def _column(column: PayloadColumn, objects: frozenset[Path], read: dict[Path, pa.Array | None], count: int) -> pa.Array:
    if column.path in read and read[column.path] is None:
        return pa.nulls(count, column.node.type)
    if column.path in read or column.path in objects:
        return _built(column.node, column.path, objects, read, count)
    if column.node.default is not None:
        return pa.repeat(pa.array([default_of(column)], column.node.type)[0], count)
    return pa.nulls(count, column.node.type)


def _built(
    node: PayloadNode, path: Path, objects: frozenset[Path], read: dict[Path, pa.Array | None], count: int
) -> pa.Array:
    if path in read:
        return read[path]
    if path not in objects:
        return pa.nulls(count, node.type)
    parts = [_built(child, (*path, key), objects, read, count) for key, child in node.children.items()]
    return pa.StructArray.from_arrays(parts, fields=list(node.type))


# ---- several templates ----


class KeyedTexts:
    """A column of texts, and where their keys end."""

    def __init__(self, texts: pa.StringArray) -> None:
        self.bytes = TextBytes(texts)
        self._keys = self.bytes.keys()
        self._first = np.searchsorted(self._keys, self.bytes.starts)
        self.counts = np.diff(self._first)

    def keys_of(self, index: Numbers, pattern: Template) -> np.ndarray:
        """The ends of the keys of the pattern's values in these texts."""
        ordinals, behind = pattern.ordinals
        if pattern.free is None and len(index) * pattern.keys == len(self._keys):
            return self._keys.reshape(-1, pattern.keys)[:, ordinals]
        first, next_first = self._first[:-1][index][:, None], self._first[1:][index][:, None]
        keys: np.ndarray = self._keys[np.where(behind, next_first, first) + ordinals]
        return keys

    def text(self, at: int) -> bytes:
        begin, end = self.bytes.starts[at], self.bytes.starts[at + 1]
        return self.bytes.content[begin:end].tobytes()


class TemplateMatchers:
    """The templates of a decoder, the most useful one first."""

    def __init__(self, layout: PayloadSchema, limits: DecodeLimits, ignore: bool, keep: KeptText = NOTHING) -> None:
        self._layout = layout
        self._limits = limits
        self._ignore = ignore
        self._keep = keep
        self._parts = NestedValues(limits)
        self._known: list[TemplateMatcher] = []
        self._pause = self._idle = 0

    def fit(self, texts: pa.StringArray) -> list[TemplateMatch]:
        """Texts that match an existing or a new template; without matches, more and more batches are passed over."""
        if self._idle:
            self._idle -= 1
            return []
        column, rest = KeyedTexts(texts), np.ones(len(texts), bool)
        matches: dict[TemplateMatcher, TemplateMatch] = {}
        vain = 0
        for matcher in chain(self._known, self._traced(column, rest)):
            index = np.flatnonzero(rest & matcher.may_fit(column.counts))
            if not len(index):
                continue
            if fitting := matcher.fit(column, index):
                matches[matcher] = fitting
                rest[fitting.index] = False
            vain += len(index) - (len(fitting.index) if fitting else 0)
            if vain > _VAIN * len(texts):
                break
        useful = sorted(matches, key=lambda each: -len(matches[each].index))
        self._known = [*useful, *(each for each in self._known if each not in matches)][:_KEPT]
        self._pause = 0 if matches or not len(texts) else min(_PAUSE, 2 * self._pause + 1)
        self._idle = self._pause
        return list(matches.values())

    def _traced(self, index: KeyedTexts, rest: Mask) -> Iterator[TemplateMatcher]:
        """Trace new templates, each from the first text that matches none, while many texts match none."""
        for _ in range(_SAMPLES):
            remain = np.flatnonzero(rest)
            if not len(remain) or len(remain) * _SHARE < len(rest):
                return
            if pattern := trace_template(
                self._layout, index.text(int(remain[0])), self._limits, self._ignore, self._keep
            ):
                yield TemplateMatcher(self._layout, pattern, self._parts)
            rest[remain[0]] = False  # looked at: the next one is another


class NestedValues:
    """Reads values with objects inside: lists of objects by templates of their own, other JSON as text."""

    def __init__(self, limits: DecodeLimits) -> None:
        self.checker = JsonChecker(limits)
        self._limits = limits
        self._elements: dict[Path, TemplateMatchers] = {}

    def read_lists(self, value: TemplateValue, texts: pa.StringArray, comma: str, good: Mask) -> pa.Array:
        """A column of lists of objects from the text between their brackets; those that do not match are not `good`.

        `{"a":1},{"a":2}` is divided at `},{`. If that is inside a string, the pieces do not match either.
        """
        element = value.node.children["*"]
        if value.path not in self._elements:
            limits = replace(self._limits, depth=self._limits.depth - len(value.path) - 1)
            self._elements[value.path] = TemplateMatchers(_layout_of(element), limits, False)
        pieces, owner = _divided(TextBytes(texts), f"}}{comma}{{".encode())
        structs = pa.nulls(0, element.type)
        matches = self._elements[value.path].fit(pieces)
        index = np.concatenate([np.zeros(0, np.int64), *(each.index for each in matches)])
        if len(index) < len(pieces):
            unread = np.ones(len(pieces), bool)
            unread[index] = False
            good[owner[unread]] = False
        if matches:
            fields = list(element.type)
            structs = pa.concat_arrays([pa.StructArray.from_arrays(each.columns, fields=fields) for each in matches])
        if len(matches) > 1:
            structs, index = structs.take(pa.array(np.argsort(index))), np.sort(index)
        offsets = np.zeros(len(texts) + 1, np.int32)
        np.cumsum(np.bincount(owner[index], minlength=len(texts)), out=offsets[1:])
        gaps = texts.is_null() if texts.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets), structs, type=value.node.type, mask=gaps)


def _divided(texts: TextBytes, seam: bytes) -> tuple[pa.StringArray, Numbers]:
    """The pieces of texts that are not empty, and the text of each; a seam belongs to both pieces except its middle."""
    content, size = texts.content, len(seam)
    seams = (
        np.flatnonzero(
            reduce(np.logical_and, (content[at : len(content) - size + 1 + at] == byte for at, byte in enumerate(seam)))
        )
        if len(content) >= size
        else np.zeros(0, np.int64)
    )
    owner = np.searchsorted(texts.starts, seams, side="right") - 1
    inside = seams + size <= texts.starts[1:][owner]
    seams, owner = seams[inside], owner[inside]
    filled = np.flatnonzero(texts.sizes)
    # Both are made of two ascending sequences, which a stable sort merges.
    starts = np.sort(np.concatenate([texts.starts[:-1][filled], seams + size - 1]), kind="stable")
    ends = np.sort(np.concatenate([texts.starts[1:][filled], seams + 1]), kind="stable")
    counts = np.bincount(owner, minlength=len(texts.starts) - 1)[filled] + 1
    return cut(content, starts, ends, pa.string()), np.repeat(filled, counts)


def _layout_of(element: PayloadNode) -> PayloadSchema:
    """The objects of a list as records."""
    schema = pa.schema(list(element.type))
    columns = tuple(
        PayloadColumn(key, (key,), child, schema.field(at)) for at, (key, child) in enumerate(element.children.items())
    )
    return PayloadSchema(schema, columns, element, False, schema)
