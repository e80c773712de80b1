"""Type widening: the types that Delta allows a column to be widened to, and the one that a value requires."""

from __future__ import annotations

import re
from decimal import Decimal
from math import isfinite

import pyarrow as pa

from headrace.spec.types import TIMESTAMP_NTZ

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_MAX_DIGITS = 38  # of a decimal
_NUMBER = re.compile(r"-?\d{1,80}(\.\d{1,80})?([eE][-+]?\d{1,3})?", re.ASCII)


def widens(have: pa.DataType, to: pa.DataType) -> bool:
    """Whether Delta can widen a column from one type to another without rewriting its files."""
    if pa.types.is_integer(have) and pa.types.is_integer(to):
        return bool(to.bit_width > have.bit_width)
    if pa.types.is_float64(to):
        return bool(pa.types.is_float32(have) or (pa.types.is_integer(have) and have.bit_width <= 32))
    if pa.types.is_decimal(to) and (pa.types.is_integer(have) or pa.types.is_decimal(have)):
        whole, scale = _digits(have)
        return bool(to != have and to.precision - to.scale >= whole and to.scale >= scale)
    return bool(pa.types.is_date32(have) and to == TIMESTAMP_NTZ)


def common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """The type for values of both types; if no decimal has enough digits, digits before the point take precedence."""
    kinds = (first, second)
    if first == second or not all(map(_is_number, kinds)):
        return second if widens(first, second) else first
    if pa.float64() in kinds:
        return pa.float64()
    if all(map(pa.types.is_integer, kinds)):
        return max(kinds, key=lambda kind: kind.bit_width)
    wholes, scales = zip(*map(_digits, kinds), strict=True)
    return pa.decimal128(min(_MAX_DIGITS, max(wholes) + max(scales)), min(max(scales), _MAX_DIGITS - max(wholes)))


def widened_for(kind: pa.DataType, text: str) -> pa.DataType | None:
    """The narrowest wider type of a column that can store a number exactly; None if there is none."""
    if not _NUMBER.fullmatch(text):
        return None
    return next((candidate for candidate in _candidates(kind, text) if widens(kind, candidate)), None)


def _candidates(kind: pa.DataType, text: str) -> list[pa.DataType]:
    plain = text.lstrip("-").isdecimal()
    candidates = [integer for integer in _INTEGERS if plain and _fits(integer, int(text))]
    if not plain or pa.types.is_float32(kind):
        candidates += [pa.float64()] if isfinite(float(text)) else []
    return [*candidates, *_decimals(kind, text)]


def _fits(kind: pa.DataType, number: int) -> bool:
    limit: int = 1 << (kind.bit_width - 1)
    return -limit <= number < limit


def _decimals(kind: pa.DataType, text: str) -> list[pa.DataType]:
    """The smallest decimal for the number and all values of the column, if there is one."""
    if not (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        return []
    _, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - the pattern admits neither NaN nor infinity
    whole, scale = _digits(pa.int64() if pa.types.is_integer(kind) else kind)
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    whole, scale = max(whole, len(digits) + exponent), max(scale, -exponent - zeros)
    return [pa.decimal128(whole + scale, scale)] if whole + scale <= _MAX_DIGITS else []


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point that Delta requires of a decimal for all values of a type."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return (20 if kind.bit_width == 64 else 10), 0


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
