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
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import DecodeLimits
from headrace.decode.byte_scan import Mask, Numbers, Offsets, TextBytes, bools, cut, owners
from headrace.decode.json.exact import default_of
from headrace.decode.json.scalar_text import leaf, quoted_texts
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
_QUOTE, _NULL = b'"n'


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

    def fit(self, texts: _Texts, index: Numbers) -> TemplateMatch | None:
        """The texts that match."""
        spans, index = self._spans(texts, index)
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

    def _kept(self, whole: _Spans, nulls: Mask | None, good: Mask) -> pa.StringArray | None:
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

    def _spans(self, texts: _Texts, index: Numbers) -> tuple[_Spans, Numbers]:
        """The values of each text, and which texts match the pattern around them."""
        keys = texts.keys_of(index, self.pattern.keys)[:, [value.key for value in self.pattern.values]]
        starts, begin, end = keys + self.pattern.gaps, texts.bytes.starts[:-1][index], texts.bytes.starts[1:][index]
        ends = np.empty_like(starts)
        ends[:, :-1] = starts[:, 1:] - self.pattern.sizes[1:-1]
        ends[:, -1] = end - self.pattern.sizes[-1]
        fits = (starts[:, 0] - self.pattern.sizes[0] == begin) & (ends > starts).all(axis=1)
        spans = _Spans(texts.bytes.content, begin, starts, ends, end)
        if not fits.all():
            spans, index = spans.at(fits), index[fits]
        if not len(index):
            return spans, index
        same = spans.between() == np.frombuffer(b"".join(self.pattern.between), np.uint8)
        if not same.all():
            fits = same.all(axis=1)
            spans, index = spans.at(fits), index[fits]
        return spans, index

    def _within(self, spans: _Spans, good: Mask) -> tuple[_Spans, Mask | None]:
        """The values without quotes and brackets, and which of them are null."""
        opens, closes = self.pattern.ends
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
            good &= ~nulls[:, nth] | (spans.is_null(nth) & self.pattern.values[nth].node.nullable)
        return replace(spans, starts=starts, ends=np.where(nulls, starts, ends)), nulls

    def _read(self, nth: int, spans: _Spans, nulls: Mask | None, good: Mask) -> pa.Array:
        """A value's column; texts with an uncertain value do not match."""
        value, texts = self.pattern.values[nth], spans.texts(nth)
        if nulls is not None and nulls[:, nth].any():
            texts = pc.if_else(pa.array(nulls[:, nth]), pa.scalar(None, pa.string()), texts)
        if value.node.kind == "list":
            return _list(value, texts, self.pattern.comma, good)
        column, vouched = leaf(value.node, texts)
        if vouched is not None:
            good &= vouched
        return column


@dataclass(frozen=True, slots=True)
class _Spans:
    """Start and end of the values of some texts."""

    content: np.ndarray
    begin: Offsets
    starts: Offsets  # texts by values
    ends: Offsets
    end: Offsets

    def at(self, mask: Mask) -> _Spans:
        return _Spans(self.content, self.begin[mask], self.starts[mask], self.ends[mask], self.end[mask])

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


def _list(value: TemplateValue, texts: pa.StringArray, comma: str, good: Mask) -> pa.Array:
    """A column of lists from the text between their brackets."""
    text = TextBytes(texts)
    quotes = quoted_texts(value.leaf)
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
    values, vouched = leaf(value.leaf, elements)
    if vouched is not None:
        good[owner[~vouched]] = False
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    gaps = texts.is_null() if texts.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=value.node.type, mask=gaps)


def _cut_ends(texts: pa.StringArray, text: TextBytes, filled: Mask) -> pa.StringArray:
    starts = text.starts[:-1] + filled
    pieces = cut(text.content, starts, np.maximum(starts, text.starts[1:] - filled), pa.string())
    return pieces if not texts.null_count else pc.if_else(texts.is_null(), pa.scalar(None, pa.string()), pieces)


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


class _Texts:
    """A column of texts, and where their keys end."""

    def __init__(self, texts: pa.StringArray) -> None:
        self.bytes = TextBytes(texts)
        self._keys = self.bytes.keys()
        self._first = np.searchsorted(self._keys, self.bytes.starts)
        self.counts = np.diff(self._first)

    def keys_of(self, index: Numbers, count: int) -> np.ndarray:
        """The ends of the keys of these texts, which all have the same number of keys."""
        if len(index) * count == len(self._keys):
            return self._keys.reshape(-1, count)
        keys: np.ndarray = self._keys[self._first[index][:, None] + np.arange(count)]
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
        self._known: list[TemplateMatcher] = []
        self._pause = self._idle = 0

    def fit(self, texts: pa.StringArray) -> list[TemplateMatch]:
        """Texts that match an existing or a new template; without matches, more and more batches are passed over."""
        if self._idle:
            self._idle -= 1
            return []
        column, rest = _Texts(texts), np.ones(len(texts), bool)
        matches: dict[TemplateMatcher, TemplateMatch] = {}
        vain = 0
        for matcher in chain(self._known, self._traced(column, rest)):
            index = np.flatnonzero(rest & (column.counts == matcher.pattern.keys))
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

    def _traced(self, index: _Texts, rest: Mask) -> Iterator[TemplateMatcher]:
        """Trace new templates, each from the first text that matches none, while many texts match none."""
        for _ in range(_SAMPLES):
            remain = np.flatnonzero(rest)
            if not len(remain) or len(remain) * _SHARE < len(rest):
                return
            if pattern := trace_template(
                self._layout, index.text(int(remain[0])), self._limits, self._ignore, self._keep
            ):
                yield TemplateMatcher(self._layout, pattern)
            rest[remain[0]] = False  # looked at: the next one is another
