"""Explain texts that are not JSON objects in columns: malformed, with trailing data, or another value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import DecodeLimits, RejectColumns, Rejects
from headrace.decode.byte_scan import Mask, Numbers, TextBytes, bools, matches
from headrace.decode.json.first_error import FirstErrors
from headrace.decode.json.member_reader import JsonChecker
from headrace.decode.json.scalar_text import JsonKind, described, plainly_printed
from headrace.decode.scalars import SHOWN
from headrace.reasons import Reason

_FEW = 64  # texts that the exact path explains sooner
_WORTH = 4  # one text in so many must be explained, or the next batches are passed over
_PAUSE = 63  # maximum number of batches passed over
_FIRST_BYTES: dict[JsonKind, bytes] = {"text": b'"', "number": b"-0123456789", "boolean": b"tfn", "array": b"["}
_SURROGATE = r"\\u[dD][89a-fA-F]"
_FEW_ESCAPES = r'(?s)^(?:[^\\]|\\["\\/])*\\?$'  # the last one may be cut


class UnreadableTexts:
    """Explains such texts while they are frequent."""

    def __init__(self, errors: FirstErrors, limits: DecodeLimits) -> None:
        self._errors, self._checker = errors, JsonChecker(limits)
        self._frequent = False
        self._pause = self._idle = 0

    def recognize(self, texts: pa.StringArray) -> Rejects:
        """Explain texts before they are read, if half of the last batch were such texts."""
        if not self._frequent or len(texts) < _FEW:
            return Rejects()
        rejects = self._explained(texts)
        self._frequent = len(rejects) * 2 >= len(texts)
        return rejects

    def explain(self, texts: pa.StringArray, read: int) -> Rejects:
        """Explain what remains of so many texts; without success, batches are passed over."""
        if len(texts) < _FEW or self._idle:
            self._idle = max(0, self._idle - 1)
            return Rejects()
        rejects = self._explained(texts)
        self._frequent |= len(rejects) * 2 >= read
        self._pause = 0 if len(rejects) * _WORTH >= len(texts) else min(_PAUSE, 2 * self._pause + 1)
        self._idle = self._pause
        return rejects

    def _explained(self, texts: pa.StringArray) -> Rejects:
        errors, valid = self._errors.find(texts)
        rejects = Rejects.of(RejectColumns(errors.index, errors.code, errors.details()))
        if len(valid):
            for index, values in self._others(texts.take(pa.array(valid))):
                detail = pc.binary_join_element_wise("the value is ", values, "")
                rejects.add_all(valid[index], Reason.NOT_AN_OBJECT, detail)
        return rejects

    def _others(self, texts: pa.StringArray) -> Iterator[tuple[Numbers, pa.StringArray]]:
        """The values other than objects, and their descriptions; values that may have other faults are left out."""
        content = TextBytes(texts)
        if np.isin([content.byte(0), content.byte(-1)], list(b" \t\r\n")).any():
            texts = pc.ascii_trim(texts, " \t\r\n")
            content = TextBytes(texts)
        first = content.byte(0)
        for kind, bytes_ in _FIRST_BYTES.items():
            index = np.flatnonzero(np.isin(first, list(bytes_)))
            if not len(index):
                continue
            values, certain = self._shown(kind, texts.take(pa.array(index)))
            if certain is not None:
                index, values = index[certain], values.filter(pa.array(certain))
            yield index, described(kind, values)

    def _shown(self, kind: JsonKind, texts: pa.StringArray) -> tuple[pa.StringArray, Mask | None]:
        """What a detail shows of values, and for which of them that is certain."""
        if kind == "text":
            return _shown_texts(pc.utf8_slice_codeunits(texts, 1, -1))
        if kind == "array":
            return texts, self._checker.valid(texts, 0)
        return texts, bools(plainly_printed(texts)) if kind == "number" else None


def _shown_texts(texts: pa.StringArray) -> tuple[pa.StringArray, Mask]:
    """The first characters of valid strings; certain without surrogates and, in what is shown, with few escapes."""
    whole = ~matches(texts, _SURROGATE)
    # JSON inside a string has escaped quotes throughout: with them, the shown characters are twice as many.
    texts = pc.utf8_slice_codeunits(texts, 0, 2 * (SHOWN + 1))
    certain: Mask = whole & matches(texts, _FEW_ESCAPES)
    return pc.replace_substring_regex(texts, r'\\(["\\/])', r"\1"), certain
