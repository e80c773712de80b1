"""Explain rejected texts in columns: the same reasons and details as the exact path, which reads text by text.

Texts of a fault template differ only in their values. For `{"id":"x1"}` with a column of integers, the exact path reads
one text, `id: expected long, saw text '?'`, and the other values take the place of the question mark. A text is
explained only if every value is certainly JSON and the first fault is certain; others are left to the exact path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import CODES, DETAIL, DecodeLimits, RejectColumns, Rejects
from headrace.decode.byte_scan import Mask, Numbers, bools
from headrace.decode.json.exact import ExactReader, missing_value, reader_of
from headrace.decode.json.fault_template import FaultCheck, FaultTemplate, trace_fault
from headrace.decode.json.first_error import ErrorColumns, FirstErrors, error_columns, parser_error
from headrace.decode.json.scalar_text import (
    EXAMPLES,
    JSON_ELEMENTS,
    JsonKind,
    described,
    leaf,
    list_of_leaves,
    plainly_printed,
    valid_scalars,
)
from headrace.decode.json.strict import Parser, Real
from headrace.decode.json.template import Path, TemplateValue
from headrace.decode.json.template_match import KeyedTexts, ValueSpans, value_spans
from headrace.decode.json.unreadable import UnreadableTexts
from headrace.decode.payload import PayloadSchema
from headrace.decode.scalars import UnfitValue, describe, integer_bounds, time_pattern
from headrace.reasons import Reason

_FEW = 16  # texts that the exact path explains sooner than a template is traced
_KEPT = 16  # templates of one decoder
_SAMPLES = 4  # texts traced in one batch
_SHARE = 16  # one text in so many must be explained, or the next batch is first proven
_VAIN = 2  # failed matches per text, on average
_PAUSE = 63  # maximum number of batches passed over after one without explanations
_TRIED = 64  # texts, of which half must be malformed
_LIST = r"^[^\[\]{}\\]*$"  # arrays of scalars without escapes
_BEYOND = "1e999"  # fits no decimal
_HUGE = 10**30  # fits no column of integers or times; short enough to be shown


class FaultTemplates:
    """The fault templates of a decoder, the most useful one first."""

    def __init__(self, layout: PayloadSchema, exact: ExactReader, limits: DecodeLimits) -> None:
        self._layout, self._exact, self._limits = layout, exact, limits
        self._errors = FirstErrors(exact.parser, limits)
        self._unreadable = UnreadableTexts(self._errors, limits)
        self._known: list[FaultTemplate] = []
        self._useful = False
        self._pause = self._idle = 0

    def recognize(self, texts: pa.StringArray) -> Rejects:
        """Explain texts with faults that many had in the last batch."""
        rejects = self._matched(texts)
        return _with_others(rejects, texts, self._unreadable.recognize)

    def explain(self, texts: pa.StringArray, read: int) -> Rejects:
        """Explain what remains of so many texts, also with faults that are new."""
        rejects = self._traced_first(texts, read)
        return _with_others(rejects, texts, lambda others: self._unreadable.explain(others, read))

    def _matched(self, texts: pa.StringArray) -> Rejects:
        """Rejects of texts that match an existing template, if many did in the last batch."""
        if not self._useful or len(texts) < _FEW:
            return Rejects()
        rejects, _ = self._explain(texts, trace=False)
        self._useful = len(rejects) * _SHARE >= len(texts)
        return rejects

    def _traced_first(self, texts: pa.StringArray, read: int) -> Rejects:
        """Rejects of texts that match a template, new ones too; without success, batches are passed over."""
        if len(texts) < _FEW or self._idle:
            self._idle = max(0, self._idle - 1)
            return Rejects()
        rejects, repeated = self._explain(texts, trace=True)
        self._useful |= len(rejects) * _SHARE >= read
        self._pause = 0 if repeated else min(_PAUSE, 2 * self._pause + 1)
        self._idle = self._pause
        return rejects

    def _explain(self, texts: pa.StringArray, *, trace: bool) -> tuple[Rejects, bool]:
        """Rejects by position, and whether any template explains more than the text that it is traced from."""
        column, rest, rejects = KeyedTexts(texts), np.ones(len(texts), bool), Rejects()
        counts: dict[FaultTemplate, int] = {}
        vain = 0
        for template in chain(self._known, self._traced(column, rest) if trace else ()):
            if vain > _VAIN * len(texts) and template in self._known:
                continue
            index = np.flatnonzero(rest & _same_keys(column, template))
            rejected = self._matching(template, column, index)
            counts[template] = len(rejected)
            rejects.join(rejected)
            rest[rejected.columns.index] = False
            vain += len(index) - len(rejected)
        useful = sorted((each for each in counts if counts[each] > 1), key=lambda each: -counts[each])
        self._known = [*useful, *(each for each in self._known if each not in useful)][:_KEPT]
        return rejects, bool(useful)

    def _matching(self, template: FaultTemplate, column: KeyedTexts, index: Numbers) -> Rejects:
        """Rejects of the texts that match a template."""
        rejects = Rejects()
        if len(index):
            spans, index = value_spans(template.pattern, column, index)
        if len(index):
            rejects.join(_Explanation(template, spans, self._exact.parser, self._limits, self._errors).rejects(), index)
        return rejects

    def _traced(self, column: KeyedTexts, rest: Mask) -> Iterator[FaultTemplate]:
        """Trace new templates, each from the first text without explanation, while many have none."""
        looked_at = np.zeros(len(rest), bool)
        for _ in range(_SAMPLES):
            remain = np.flatnonzero(rest & ~looked_at)
            if len(remain) < _FEW or len(remain) * _SHARE < len(rest):
                return
            looked_at[remain[0]] = True
            if template := trace_fault(self._layout, self._exact, column.text(int(remain[0])), self._limits):
                yield template


def _with_others(rejects: Rejects, texts: pa.StringArray, explain: Callable[[pa.StringArray], Rejects]) -> Rejects:
    """Rejects, and those of the texts that have none yet."""
    if not len(rejects):
        return explain(texts)
    others = np.delete(np.arange(len(texts)), rejects.columns.index)
    rejects.join(explain(texts.take(pa.array(others))), others)
    return rejects


def _same_keys(column: KeyedTexts, template: FaultTemplate) -> Mask:
    keys = template.pattern.keys
    same: Mask = column.counts >= keys if template.depth else column.counts == keys
    return same


class _Explanation:
    """Texts that match one template, and the rejects of those whose fault is certain."""

    def __init__(
        self, template: FaultTemplate, spans: ValueSpans, parser: Parser, limits: DecodeLimits, errors: FirstErrors
    ) -> None:
        self._template, self._spans, self._parser, self._limits = template, spans, parser, limits
        self._errors = errors
        self._inner, fits, nulls = spans.inner(template.pattern)
        self._nulls = np.zeros(fits.shape, bool) if nulls is None else nulls
        for nth in np.flatnonzero(self._nulls.any(axis=0)).tolist():
            self._nulls[:, nth] &= spans.is_null(nth)
        self._open: Mask = np.asarray((fits | self._nulls).all(axis=1))  # all values are JSON, and no fault is found
        self._doubts: dict[int, Mask] = {}  # by value: where its column may not take it
        self._rejects = Rejects()

    def rejects(self) -> Rejects:
        """Rejects by position among the texts that match."""
        if self._template.depth:
            self._check_json(len(self._template.pattern.values) - 1)
            self._malformed()
        else:
            self._check_json(len(self._template.pattern.values))
            if not self._template.constant_first:
                for check in self._template.checks:
                    self._check(check)
            if (unfit := self._template.constant) is not None:
                self._reject(self._open, unfit)
        return self._rejects

    def _texts(self, nth: int) -> pa.StringArray:
        """A value of each text, without quotes or brackets."""
        nulls = self._nulls[:, nth]
        texts = self._inner.texts(nth)
        return pc.if_else(pa.array(nulls), pa.scalar(None, pa.string()), texts) if nulls.any() else texts

    def _reject(self, where: Mask, unfit: UnfitValue, details: pa.StringArray | None = None) -> None:
        self._rejects.add_all(np.flatnonzero(where), unfit.reason, unfit.detail if details is None else details)
        self._open = self._open & ~where

    # ---- values that are certainly JSON ----

    def _check_json(self, count: int) -> None:
        """Check that the first values are JSON of their kind, and collect those that may not fit their column."""
        taken = {check.nth for check in self._template.checks if check.takes and check.node.kind != "json"}
        for nth, value in enumerate(self._template.pattern.values[:count]):
            texts = self._texts(nth)
            fit, valid = self._fit(value, texts, taken=nth in taken)
            if valid is not None:
                self._open &= valid | self._nulls[:, nth]
            if nth in taken and fit is not None and not fit.all():
                self._doubts[nth] = ~fit & ~self._nulls[:, nth]

    def _fit(self, value: TemplateValue, texts: pa.StringArray, *, taken: bool) -> tuple[Mask | None, Mask | None]:
        """Which values certainly fit, and which are certainly JSON; None: all."""
        if value.node.kind == "list":
            fit = np.ones(len(texts), bool)
            list_of_leaves(value.node, texts, self._template.pattern.comma, fit)
            return fit, self._arrays(texts, fit) if taken else fit
        if not taken:
            return None, valid_scalars(value.node, texts)
        column_fit = leaf(value.node, texts)[1]
        if column_fit is None:
            return None, None
        valid = valid_scalars(value.node, texts)
        return column_fit, None if valid is None else column_fit | valid

    def _arrays(self, texts: pa.StringArray, fit: Mask) -> Mask:
        """Which texts are JSON inside an array, of scalars without escapes."""
        arrays = fit | bools(pc.match_substring_regex(texts, JSON_ELEMENTS))
        for row in np.flatnonzero(~arrays & bools(pc.match_substring_regex(texts, _LIST))).tolist():
            with suppress(UnfitValue):
                self._value("array", texts[row].as_py())
                arrays[row] = True
        return arrays

    def _value(self, kind: JsonKind | None, text: str) -> Any:
        return self._parser.value(f"[{text}]" if kind == "array" else text)

    # ---- faults of values, in the order of the exact path ----

    def _check(self, check: FaultCheck) -> None:
        if not self._open.any():
            return
        if check.kind is None:
            self._reject(self._open, _missing(check.path))
        elif check.nth is None:
            if not check.takes:
                self._reject(self._open, _unfit(check, EXAMPLES[check.kind]))
        else:
            self._check_value(check, check.nth)

    def _check_value(self, check: FaultCheck, nth: int) -> None:
        if not check.node.nullable and (absent := self._open & self._nulls[:, nth]).any():
            self._reject(absent, _missing(check.path))
        if not check.takes:
            there = self._open & ~self._nulls[:, nth]
            if check.kind == "number":
                self._misfitting_numbers(check, there, self._texts(nth))
            else:
                self._framed(check, there, self._texts(nth))
        elif nth in self._doubts and (doubt := self._open & self._doubts[nth]).any():
            if check.kind == "text" and pa.types.is_temporal(check.node.type):
                texts = self._texts(nth)
                no_time = doubt & ~bools(pc.match_substring_regex(texts, time_pattern(check.node)))
                self._framed(check, no_time, texts)
                doubt &= ~no_time
            elif check.kind == "number":
                doubt = self._unfit_numbers(check, doubt, self._texts(nth))
            self._one_by_one(doubt, self._texts(nth), self._reading(check))

    def _unfit_numbers(self, check: FaultCheck, doubt: Mask, texts: pa.StringArray) -> Mask:
        """Reject numbers that certainly do not fit their column; returns where that is still open."""
        printed = bools(plainly_printed(texts))
        if pa.types.is_decimal(check.node.type):  # what the column did not take does not fit
            self._framed(check, doubt & printed, texts, Real(_BEYOND))
            return doubt & ~printed
        if (bounds := integer_bounds(check.node)) is None:
            return doubt
        real = bools(pc.match_substring_regex(texts, "[.eE]"))
        self._framed(check, doubt & printed & real, texts, Real("7.5"))
        self._framed(check, doubt & printed & ~real & _outside(texts, *bounds), texts, _HUGE)
        return doubt & ~printed

    def _framed(self, check: FaultCheck, where: Mask, texts: pa.StringArray, example: object = None) -> None:
        """Reject values that the column never takes: what the exact path says of one, with the others in its place."""
        if not where.any():
            return
        assert check.kind is not None  # noqa: S101
        example = EXAMPLES[check.kind] if example is None else example
        unfit = _unfit(check, example)
        before, _, after = unfit.detail.rpartition(describe(example))
        seen = described(check.kind, texts if where.all() else texts.filter(pa.array(where)))
        self._reject(where, unfit, pc.binary_join_element_wise(before, seen, after, ""))

    def _misfitting_numbers(self, check: FaultCheck, where: Mask, texts: pa.StringArray) -> None:
        odd = ~bools(plainly_printed(texts))
        self._open = self._open & ~(where & odd)
        real = bools(pc.match_substring_regex(texts, "[.eE]"))
        self._framed(check, where & ~odd & ~real, texts, EXAMPLES["number"])
        self._framed(check, where & ~odd & real, texts, Real("7.5"))

    def _reading(self, check: FaultCheck) -> Callable[[str], tuple[Reason, str] | None]:
        """What the exact path says of one value; None if it takes it, or the value is not JSON."""
        read = reader_of(check.node)

        def explain(text: str) -> tuple[Reason, str] | None:
            try:
                value = text if check.kind == "text" else self._value(check.kind, text)
            except UnfitValue:
                return None
            try:
                read(value)
            except UnfitValue as unfit:
                return unfit.reason, unfit.within(".".join(check.path)).detail
            return None

        return explain

    def _one_by_one(
        self, where: Mask, texts: pa.StringArray, explain: Callable[[str], tuple[Reason, str] | None]
    ) -> None:
        """Explain each distinct text; texts that are not explained are left to the exact path."""
        rows = np.flatnonzero(where)
        self._open = self._open & ~where
        if not len(rows):
            return
        distinct = texts.take(pa.array(rows)).dictionary_encode()
        unfits = [explain(text) for text in distinct.dictionary.to_pylist()]
        codes = np.array([CODES[unfit[0]] if unfit else 0 for unfit in unfits], np.uint8)
        details = pa.array([unfit[1][:DETAIL] if unfit else None for unfit in unfits], pa.string())
        which = distinct.indices.to_numpy()
        certain = bools(details.is_valid())[which]
        which = which[certain]
        self._rejects.join(Rejects.of(RejectColumns(rows[certain], codes[which], details.take(pa.array(which)))))

    # ---- malformed texts, and texts that go on after their end ----

    def _malformed(self) -> None:
        """Explain texts by what follows their last common key: all before it is JSON."""
        last = len(self._template.pattern.values) - 1
        rows = np.flatnonzero(self._open)
        tails = self._spans.texts(last).take(pa.array(rows)).dictionary_encode()
        errors = self._tail_errors(tails.dictionary)
        place = np.full(len(tails.dictionary), -1)
        place[errors.index] = np.arange(len(errors.index))
        which = place[tails.indices.to_numpy()]
        certain = which >= 0
        rows, errors = rows[certain], errors.take(which[certain])
        before = self._characters_before(last)[rows] - len(self._nesting)
        self._rejects.join(Rejects.of(RejectColumns(rows, errors.code, errors.details(before))))

    @property
    def _nesting(self) -> str:
        """A text in which a tail is as deep as in its own."""
        return '{"":' * self._template.depth

    def _tail_errors(self, tails: pa.StringArray) -> ErrorColumns:
        """The errors of tails; none if few of the first ones have any, so that valid texts are not parsed here."""
        texts = pc.binary_join_element_wise(self._nesting, tails, "")
        tried = self._parser_errors(texts, np.arange(min(_TRIED, len(texts))))
        if len(tried.index) * 2 < min(_TRIED, len(texts)):
            return tried.take(tried.index[:0])
        errors, valid = self._errors.find(texts)
        others = np.delete(np.arange(len(texts)), np.concatenate([errors.index, valid]))
        return errors.join(self._parser_errors(texts, others))

    def _parser_errors(self, texts: pa.StringArray, index: Numbers) -> ErrorColumns:
        """The errors of texts that the parser reads one by one."""
        some = [texts[at].as_py() for at in index.tolist()]
        errors = [
            None if text.count("{") + text.count("[") >= self._limits.depth else parser_error(self._parser, text)
            for text in some
        ]
        kept = np.flatnonzero([error is not None for error in errors])
        certain = [error for error in errors if error is not None]
        at = np.array([-1 if error.at is None else error.at for error in certain], np.int64)
        sizes = np.array([len(text) for text in some], np.int64)[kept]
        return error_columns(index[kept], certain, np.arange(len(certain)), at, sizes)

    def _characters_before(self, nth: int) -> Numbers:
        """Number of characters of each text before a value: UTF-8 continues a character with bytes 10xxxxxx."""
        begin, start = self._spans.begin, self._spans.starts[:, nth]
        further = np.flatnonzero((self._spans.content & 0xC0) == 0x80)
        characters: Numbers = start - begin - (np.searchsorted(further, start) - np.searchsorted(further, begin))
        return characters


def _missing(path: Path) -> UnfitValue:
    return missing_value().within(".".join(path))


def _unfit(check: FaultCheck, example: object) -> UnfitValue:
    """What the exact path says of a value that the column never takes."""
    try:
        reader_of(check.node)(example)
    except UnfitValue as unfit:
        return unfit.within(".".join(check.path))
    raise AssertionError(f"{check} takes {example!r}")


def _outside(texts: pa.StringArray, low: int, high: int) -> Mask:
    """Which whole numbers, as JSON writes them, are not between two bounds."""
    below = pc.starts_with(texts, "-")
    digits, limit = pc.utf8_ltrim(texts, "-"), pc.if_else(below, str(-low), str(high))
    size, longest = pc.binary_length(digits), pc.binary_length(limit)
    return bools(pc.or_(pc.greater(size, longest), pc.and_(pc.equal(size, longest), pc.greater(digits, limit))))
