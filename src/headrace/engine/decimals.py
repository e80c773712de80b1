"""Numbers into decimals, exactly or not at all.

Arrow's casts to decimals multiply without looking: `4185855032379941839286221` as `decimal(38,18)` comes back modulo
2^128, as 41636885477800223249.95…. So a cast sees only what provably fits its type; whatever else there is (an
exponent, more digits than the type has) is read by Python, one value at a time. What does not fit is NULL.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = 38  # of a decimal
_NUMBER = re.compile(r"(-?)(0|[1-9]\d*)(?:\.(\d+))?(?:[eE]([+-]?)0*(\d*))?(?<=\d)", re.ASCII)
_LONGEST = 12  # digits of an exponent: no record is so long that its own digits could make up for more


def plain_pattern(kind: pa.DataType) -> str:
    """A regular expression for numbers as JSON writes them, without exponent, that fit a decimal's type for sure."""
    whole, scale = kind.precision - kind.scale, kind.scale
    digits = rf"[1-9]\d{{0,{whole - 1}}}|0" if whole else "0"
    # Zeros behind the last place change nothing; Arrow counts them, so there are at most 38 digits in all.
    zeros = _DIGITS - kind.precision
    fraction = rf"\.\d{{1,{scale}}}0{{0,{zeros}}}" if scale else rf"\.0{{1,{zeros}}}" if zeros else ""
    return rf"^-?(?:{digits})(?:{fraction})?$"


def exact_decimals(text: str, kind: pa.DataType) -> Decimal | None:
    """A number, written as JSON writes it, as a decimal of the type; None when it is none, or that would change it."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, below, exponent = found[1], found[2], found[3] or "", found[4] == "-", found[5] or "0"
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return Decimal(0)
    if len(exponent) > _LONGEST:
        return None
    shift = -int(exponent) if below else int(exponent)
    place = shift - len(fraction) + len(digits) - len(kept)  # of the last digit that counts
    if -place > kind.scale or len(kept) + place > kind.precision - kind.scale:
        return None
    return Decimal((int(sign == "-"), tuple(map(int, kept)), place))


def from_texts(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Texts as decimals of the type, NULL where one does not fit it exactly."""
    plain = pc.match_substring_regex(texts, plain_pattern(kind))
    if pc.all(plain).as_py():  # or NULL
        return texts.cast(kind)
    made = pc.if_else(plain, texts, pa.scalar(None, texts.type)).cast(kind)
    rest = pc.fill_null(pc.invert(plain), False)
    others = [exact_decimals(text, kind) for text in texts.filter(rest).to_pylist()]
    return pc.replace_with_mask(made, rest, pa.array(others, kind))


def from_integers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Integers as decimals of the type, NULL where one does not fit it."""
    widest = pa.uint64() if pa.types.is_uint64(values.type) else pa.int64()
    return rescaled(values.cast(widest).cast(pa.decimal128(20 if widest == pa.uint64() else 19, 0)), kind)


def rescaled(values: Any, kind: pa.DataType) -> Any:
    """Decimals in another decimal's type, NULL where one does not fit it exactly; an array, or a chunked one."""
    have = values.type
    if have.scale < 0:  # thousands, say: as many zeros behind the last digit
        return rescaled(values.cast(pa.decimal256(76, 0)), kind)
    fits = None
    if have.precision - have.scale > kind.precision - kind.scale:
        limit = pa.scalar(Decimal(10) ** (kind.precision - kind.scale), have)
        fits = pc.and_(pc.less(values, limit), pc.greater(values, pc.negate(limit)))
    if have.scale > kind.scale:
        whole = pc.equal(_cut(values, kind.scale), values)
        fits = whole if fits is None else pc.and_(fits, whole)
    if fits is not None and not pc.all(fits).as_py():
        values = pc.if_else(fits, values, pa.scalar(None, have))
    return values if have == kind else values.cast(kind)


def _cut(values: Any, scale: int) -> Any:
    """Decimals without the digits behind a place."""
    if values.type.scale - scale >= values.type.precision:  # none is left, which Arrow does not take
        return pa.scalar(Decimal(0), values.type)
    return pc.round(values, ndigits=scale, round_mode="towards_zero")
