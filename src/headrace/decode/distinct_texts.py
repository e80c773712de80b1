"""Replace texts that require the same type by one of them, so that only a few distinct texts are parsed.

The type that a number requires depends on its number of digits and their position, not on the digits: 12345 and
99999 require the same, 1234.5 does not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import Mask, bools
from headrace.decode.json.scalar_text import leaf
from headrace.decode.payload import PayloadNode
from headrace.spec.types import TIMESTAMP_NTZ

_SHORT = r"^-?\d{1,18}$"  # surely within 64 bits
_POINTED = r'^"?-?\d+\.\d+"?$'
_DIGITS = r'^"?-?\d+(\.\d+)?"?$'
_NUMBER = r"^-?\d+(\.\d+)?([eE][-+]?\d+)?$"
_QUOTED = r'^"[^"\\]*"$'
_LARGEST = [(1 << bits) - 1 for bits in (7, 15, 31, 63)]
_DAY, _MOMENT = '"2000-01-01"', '"2000-01-01T00:00:00"'


def alike(kind: pa.DataType, texts: pa.StringArray) -> pa.StringArray:
    """JSON texts, each replaced by one that requires the same of a column of this type."""
    if pa.types.is_integer(kind):
        return _instead(_instead(texts, _SHORT, _by_width), _POINTED, _by_digits)
    if pa.types.is_decimal(kind):
        return _instead(texts, _DIGITS, _by_digits)
    if pa.types.is_float32(kind):
        return _instead(texts, _NUMBER, _by_range)
    return _instead(texts, _QUOTED, _by_time) if pa.types.is_date(kind) else texts


def _instead(texts: pa.StringArray, pattern: str, like: Callable[[pa.StringArray], pa.StringArray]) -> pa.StringArray:
    """The texts, with replacements where the pattern matches."""
    matching = pc.fill_null(pc.match_substring_regex(texts, pattern), False)
    if not matching.true_count:
        return texts
    return pc.replace_with_mask(texts, matching, like(texts.filter(matching)))


def _by_width(texts: pa.StringArray) -> pa.StringArray:
    """The largest integer with as many bytes."""
    numbers = texts.cast(pa.int64()).to_numpy()
    nth = np.searchsorted(_LARGEST[:-1], np.where(numbers < 0, ~numbers, numbers))
    return pa.array(list(map(str, _LARGEST))).take(pa.array(nth))


def _by_digits(texts: pa.StringArray) -> pa.StringArray:
    """A number with as many digits before and after the point."""
    return pc.replace_substring_regex(texts, "[1-9]", "1")


def _by_range(texts: pa.StringArray) -> pa.StringArray:
    """A number that a float can hold, or one that only a double can hold."""
    doubles = texts.cast(pa.float64()).to_numpy()
    with np.errstate(over="ignore"):
        singles = doubles.astype(np.float32)
    texts = pc.if_else(pa.array(np.isfinite(doubles)), "1e300", texts)
    return pc.if_else(pa.array(np.isfinite(singles)), "0", texts)


def _by_time(texts: pa.StringArray) -> pa.StringArray:
    """A date, or a date with a time."""
    inside = pc.utf8_slice_codeunits(texts, 1, -1)
    days, moments = _fits(pa.date32(), inside), _fits(TIMESTAMP_NTZ, inside)
    texts = pc.if_else(pa.array(moments), _MOMENT, texts)
    return pc.if_else(pa.array(days), _DAY, texts)


def _fits(kind: pa.DataType, texts: pa.StringArray) -> Mask:
    column, good = leaf(PayloadNode("leaf", kind), texts)
    there = bools(column.is_valid())
    return there if good is None else there & good
