"""Exact conversion of numbers to decimals; a number that does not fit becomes NULL.

Arrow's casts to decimals do not check for overflow: `4185855032379941839286221` as `decimal(38,18)` becomes
41636885477800223249.95…, the value modulo 2^128. So Arrow casts only numbers that certainly fit the type; Python
converts the others (with an exponent, or more digits than the type has) one at a time.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = 38  # of a decimal
_NUMBER = re.compile(r"(-?)(0|[1-9]\d*)(?:\.(\d+))?(?:[eE]([+-]?)0*(\d*))?(?<=\d)", re.ASCII)
_MAX_EXPONENT = 12  # digits; no record has enough digits to compensate for a larger exponent


def plain_pattern(kind: pa.DataType) -> str:
    """A regular expression for JSON numbers without exponent that certainly fit a decimal type."""
    whole, scale = kind.precision - kind.scale, kind.scale
    digits = rf"[1-9]\d{{0,{whole - 1}}}|0" if whole else "0"
    # Trailing zeros do not change the value, but Arrow counts them: at most 38 digits in all.
    zeros = _DIGITS - kind.precision
    fraction = rf"\.\d{{1,{scale}}}0{{0,{zeros}}}" if scale else rf"\.0{{1,{zeros}}}" if zeros else ""
    return rf"^-?(?:{digits})(?:{fraction})?$"


def _unfit_pattern(kind: pa.DataType) -> str:
    """A regular expression for JSON numbers without exponent that certainly do not fit a decimal type."""
    return rf"^-?(?:[1-9]\d{{{kind.precision - kind.scale},}}(?:\.\d+)?|\d+\.\d{{{kind.scale}}}\d*[1-9])$"


def exact_decimals(text: str, kind: pa.DataType) -> Decimal | None:
    """Convert a JSON number to a decimal of the type; None if it is invalid or does not fit exactly.

    12.50e3 has the digits 1250, of which 125 are significant, and the last of them stands for 10^2: `place` is 2.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, negative, exponent = match[1], match[2], match[3] or "", match[4] == "-", match[5] or "0"
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return Decimal(0)
    if len(exponent) > _MAX_EXPONENT:
        return None
    shift = -int(exponent) if negative else int(exponent)
    place = shift - len(fraction) + len(digits) - len(significant)
    if -place > kind.scale or len(significant) + place > kind.precision - kind.scale:
        return None
    return Decimal((int(sign == "-"), tuple(map(int, significant)), place))


def from_texts(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Convert JSON numbers to decimals of the type; NULL if one does not fit exactly."""
    plain = pc.match_substring_regex(texts, plain_pattern(kind))
    if pc.all(plain).as_py():  # or NULL
        return texts.cast(kind)
    decimals = pc.if_else(plain, texts, pa.scalar(None, texts.type)).cast(kind)
    rest = pc.fill_null(pc.invert(plain), False)
    rest = pc.and_(rest, pc.invert(pc.fill_null(pc.match_substring_regex(texts, _unfit_pattern(kind)), False)))
    others = [exact_decimals(text, kind) for text in texts.filter(rest).to_pylist()]
    return pc.replace_with_mask(decimals, rest, pa.array(others, kind))


def from_integers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert integers to decimals of the type; NULL if one does not fit."""
    widest = pa.uint64() if pa.types.is_uint64(values.type) else pa.int64()
    return rescaled(values.cast(widest).cast(pa.decimal128(20 if widest == pa.uint64() else 19, 0)), kind)


def rescaled(values: Any, kind: pa.DataType) -> Any:
    """Convert decimals to another decimal type; NULL if one does not fit exactly. Takes an array or chunked array."""
    have = values.type
    if have.scale < 0:  # multiples of 1,000, for example
        return rescaled(values.cast(pa.decimal256(76, 0)), kind)
    fits = None
    if have.precision - have.scale > kind.precision - kind.scale:
        limit = pa.scalar(Decimal(10) ** (kind.precision - kind.scale), have)
        fits = pc.and_(pc.less(values, limit), pc.greater(values, pc.negate(limit)))
    if have.scale > kind.scale:
        whole = pc.equal(_truncated(values, kind.scale), values)
        fits = whole if fits is None else pc.and_(fits, whole)
    if fits is not None and not pc.all(fits).as_py():
        values = pc.if_else(fits, values, pa.scalar(None, have))
    return values if have == kind else values.cast(kind)


def _truncated(values: Any, scale: int) -> Any:
    """Truncate decimals to a scale."""
    if values.type.scale - scale >= values.type.precision:  # no digit is left, which Arrow rejects
        return pa.scalar(Decimal(0), values.type)
    return pc.round(values, ndigits=scale, round_mode="towards_zero")
