"""Explain rejected texts in columns: the same reasons and details as the exact path, which reads text by text.

Texts of a fault template differ only in their values. For `{"id":"x1"}` with a column of integers, the exact path reads
one text, `id: expected long, saw text '?'`, and the other values take the place of the question mark. A text is
explained only if every value is certainly JSON and the first fault is certain; others are left to the exact path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import CODES, DETAIL, DecodeLimits, RejectColumns, Rejects
from headrace.decode.byte_scan import Mask, Numbers, bools
from headrace.decode.json.exact import ExactReader, missing_value, reader_of
from headrace.decode.json.fault_template import FaultCheck, FaultTemplate, JsonKind, trace_fault
from headrace.decode.json.scalar_text import leaf, list_of_leaves, valid_scalars
from headrace.decode.json.strict import Parser, Real, space
from headrace.decode.json.template import Path, TemplateValue
from headrace.decode.json.template_match import KeyedTexts, ValueSpans, value_spans
from headrace.decode.payload import PayloadSchema
from headrace.decode.scalars import SHOWN, UnfitValue, describe
from headrace.reasons import Reason

_FEW = 16  # texts that the exact path explains sooner than a template is traced
_KEPT = 16  # templates of one decoder
_SAMPLES = 4  # texts traced in one batch
_SHARE = 16  # one text in so many must be explained, or the next batch is first proven
_VAIN = 2  # failed matches per text, on average
_PAUSE = 63  # maximum number of batches passed over after one without explanations
_TRIED = 64  # texts, of which half must be malformed
_DIGITS = 1_000  # characters of a number beyond which its detail is left to the exact path
_LIST = r"^[^\[\]{}\\]*$"  # arrays of scalars without escapes
_DAY = r"^\d{4}-\d\d-\d\d"  # how every date and time starts


class FaultTemplates:
    """The fault templates of a decoder, the most useful one first."""

    def __init__(self, layout: PayloadSchema, exact: ExactReader, limits: DecodeLimits) -> None:
        self._layout, self._exact, self._limits = layout, exact, limits
        self._known: list[FaultTemplate] = []
        self._useful = False
        self._pause = self._idle = 0

    def recognize(self, texts: pa.StringArray) -> Rejects:
        """Explain texts that match an existing template, if many did in the last batch."""
        if not self._useful or len(texts) < _FEW:
            return Rejects()
        rejects, _ = self._explain(texts, trace=False)
        self._useful = len(rejects) * _SHARE >= len(texts)
        return rejects

    def explain(self, texts: pa.StringArray, read: int) -> Rejects:
        """Explain what remains of so many texts, with new templates too; without success, batches are passed over."""
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
            rejects.join(_Explanation(template, spans, self._exact.parser, self._limits).rejects(), index)
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


def _same_keys(column: KeyedTexts, template: FaultTemplate) -> Mask:
    keys = template.pattern.keys
    same: Mask = column.counts >= keys if template.depth else column.counts == keys
    return same


class _Explanation:
    """Texts that match one template, and the rejects of those whose fault is certain."""

    def __init__(self, template: FaultTemplate, spans: ValueSpans, parser: Parser, limits: DecodeLimits) -> None:
        self._template, self._spans, self._parser, self._limits = template, spans, parser, limits
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
        arrays = fit.copy()
        for row in np.flatnonzero(~fit & bools(pc.match_substring_regex(texts, _LIST))).tolist():
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
                self._reject(self._open, _unfit(check, _EXAMPLES[check.kind]))
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
                no_day = doubt & ~bools(pc.match_substring_regex(texts, _DAY))
                self._framed(check, no_day, texts)
                doubt &= ~no_day
            self._one_by_one(doubt, self._texts(nth), lambda text: self._exactly(check, text))

    def _framed(self, check: FaultCheck, where: Mask, texts: pa.StringArray, example: object = None) -> None:
        """Reject values that the column never takes: what the exact path says of one, with the others in its place."""
        if not where.any():
            return
        assert check.kind is not None  # noqa: S101
        example = _EXAMPLES[check.kind] if example is None else example
        unfit = _unfit(check, example)
        before, _, after = unfit.detail.rpartition(describe(example))
        seen = _described(check.kind, texts if where.all() else texts.filter(pa.array(where)))
        self._reject(where, unfit, pc.binary_join_element_wise(before, seen, after, ""))

    def _misfitting_numbers(self, check: FaultCheck, where: Mask, texts: pa.StringArray) -> None:
        # The exact path prints an integer, not its text: 0 for -0; thousands of digits are replaced.
        odd = bools(pc.or_(pc.equal(texts, "-0"), pc.greater(pc.binary_length(texts), _DIGITS)))
        self._open = self._open & ~(where & odd)
        real = bools(pc.match_substring_regex(texts, "[.eE]"))
        self._framed(check, where & ~odd & ~real, texts, _EXAMPLES["number"])
        self._framed(check, where & ~odd & real, texts, Real("7.5"))

    def _exactly(self, check: FaultCheck, text: str) -> UnfitValue | None:
        """What the exact path says of one value; None if it takes it, or the value is not JSON."""
        try:
            value = text if check.kind == "text" else self._value(check.kind, text)
        except UnfitValue:
            return None
        try:
            reader_of(check.node)(value)
        except UnfitValue as unfit:
            return unfit.within(".".join(check.path))
        return None

    def _one_by_one(self, where: Mask, texts: pa.StringArray, explain: Callable[[str], UnfitValue | None]) -> None:
        """Explain each distinct text; texts that are not explained are left to the exact path."""
        rows = np.flatnonzero(where)
        self._open = self._open & ~where
        if not len(rows):
            return
        distinct = texts.take(pa.array(rows)).dictionary_encode()
        unfits = [explain(text) for text in distinct.dictionary.to_pylist()]
        codes = np.array([CODES[unfit.reason] if unfit else 0 for unfit in unfits], np.uint8)
        details = pa.array([unfit.detail[:DETAIL] if unfit else None for unfit in unfits], pa.string())
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
        errors = self._errors(tails.dictionary.to_pylist())
        which = tails.indices.to_numpy()
        certain = np.array([error is not None for error in errors], bool)[which]
        if not certain.any():
            return
        rows, which = rows[certain], which[certain]
        starts = self._characters_before(last)[rows]
        codes = np.array([CODES[error.reason] if error else 0 for error in errors], np.uint8)
        parts = [pa.array([error.before if error else "" for error in errors]).take(pa.array(which))]
        for offsets in ([error and error.at for error in errors], [error and error.total for error in errors]):
            parts.append(_shifted(pa.array(offsets, pa.int64()).take(pa.array(which)), starts))
        parts.insert(2, pa.array([error.between if error else "" for error in errors]).take(pa.array(which)))
        details = pc.binary_join_element_wise(*parts, "")
        self._rejects.join(Rejects.of(RejectColumns(rows, codes[which], details)))

    def _errors(self, tails: list[str]) -> list[_TailError | None]:
        """The error of each text; none if few of the first ones have any, so that valid texts are not parsed here."""
        errors = [self._error(tail) for tail in tails[:_TRIED]]
        if sum(error is not None for error in errors) * 2 < len(errors):
            return [None] * len(tails)
        return [*errors, *(self._error(tail) for tail in tails[_TRIED:])]

    def _error(self, tail: str) -> _TailError | None:
        """The error in the last part of a text; None if there is none."""
        depth = self._template.depth
        if depth + tail.count("{") + tail.count("[") >= self._limits.depth:
            return None
        before = '{"":' * depth
        try:
            end = self._parser.scan(before + tail, 0)[1] - len(before)
        except json.JSONDecodeError as error:
            return _TailError(Reason.MALFORMED, f"{error.msg} at character ", error.pos - len(before))
        except UnfitValue as unfit:
            return _TailError(unfit.reason, unfit.detail)
        if space(tail, end) == len(tail):
            return None
        return _TailError(Reason.TRAILING_DATA, "the value ends at character ", end, " of ", len(tail))

    def _characters_before(self, nth: int) -> Numbers:
        """Number of characters of each text before a value: UTF-8 continues a character with bytes 10xxxxxx."""
        begin, start = self._spans.begin, self._spans.starts[:, nth]
        further = np.flatnonzero((self._spans.content & 0xC0) == 0x80)
        characters: Numbers = start - begin - (np.searchsorted(further, start) - np.searchsorted(further, begin))
        return characters


@dataclass(frozen=True, slots=True)
class _TailError:
    """An error after the last common key of some texts; positions are relative to it."""

    reason: Reason
    before: str
    at: int | None = None
    between: str = ""
    total: int | None = None


def _shifted(offsets: pa.Int64Array, starts: Numbers) -> pa.StringArray:
    """Positions in the text, as text; none for NULL."""
    if offsets.null_count == len(offsets):
        return pa.repeat("", len(offsets))
    return pc.fill_null(pc.add(offsets, pa.array(starts, pa.int64())).cast(pa.string()), "")


_EXAMPLES: dict[JsonKind, object] = {"text": "?", "number": 7, "boolean": True, "array": [], "object": {}}


def _missing(path: Path) -> UnfitValue:
    return missing_value().within(".".join(path))


def _unfit(check: FaultCheck, example: object) -> UnfitValue:
    """What the exact path says of a value that the column never takes."""
    try:
        reader_of(check.node)(example)
    except UnfitValue as unfit:
        return unfit.within(".".join(check.path))
    raise AssertionError(f"{check} takes {example!r}")


def _described(kind: JsonKind, texts: pa.StringArray) -> pa.StringArray:
    """`describe` for texts of JSON values of one kind."""
    if kind == "boolean":
        return texts
    if kind == "array":
        return pa.repeat(describe([]), len(texts))
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > SHOWN:
        longer = pc.greater(pc.utf8_length(texts), SHOWN)
        shortened = pc.binary_join_element_wise(pc.utf8_slice_codeunits(texts, 0, SHOWN), "…", "")
        texts = pc.if_else(longer, shortened, texts)
    before, _, after = describe(_EXAMPLES[kind]).rpartition(str(_EXAMPLES[kind]))
    return pc.binary_join_element_wise(before, texts, after, "")
