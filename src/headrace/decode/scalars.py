"""Scalars of each column type: read one by one, and proven column by column."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from decimal import Decimal
from functools import lru_cache
from math import isinf
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import TextBytes
from headrace.decode.payload import PayloadNode
from headrace.engine import decimals, duck
from headrace.reasons import Reason
from headrace.spec.types import type_name

SHOWN = 40  # characters of a value in a detail
_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999 in microseconds
_DAY = 86_400_000_000

_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_DAY_OF_YEAR = r"-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_SAFE_DAY = r"-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])"  # days that every month has
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
_ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_RFC_3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:([Zz])|([+-])(\d\d):(\d\d))?", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_FROM_BASE64 = r"""
SELECT CASE WHEN to_base64(bytes) = v THEN bytes END AS bytes
FROM (SELECT v, CASE WHEN regexp_full_match(v, '(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?')
                     THEN from_base64(v) END AS bytes FROM leaf)
"""


class UnfitValue(Exception):
    """A value that does not fit: the reason, what was seen, and the path, which callers complete."""

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(what)
        self.reason = reason
        self.what = what
        self.where = ""

    def within(self, step: str) -> UnfitValue:
        """The same, with one more parent in the path."""
        self.where = step + self.where
        return self

    @property
    def detail(self) -> str:
        """The text for the dead letter."""
        return f"{self.where.removeprefix('.')}: {self.what}" if self.where else self.what


def describe(value: object) -> str:
    """A value for a detail: its type and its first characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return "text '" + _short(value.encode(errors="replace").decode()) + "'"
    return "the number " + _short(getattr(value, "text", "") or str(value))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def leaf_reader(node: PayloadNode) -> Callable[[Any], Any]:
    """Make the reader of one JSON scalar to the node's type; it raises UnfitValue."""
    kind = node.type
    if pa.types.is_boolean(kind):
        return _plain(bool, kind)
    if pa.types.is_string(kind):
        return _plain(str, kind)
    if pa.types.is_integer(kind):
        return _integer_reader(kind)
    if pa.types.is_floating(kind):
        return _float_reader(kind)
    if pa.types.is_decimal(kind):
        return _decimal_reader(kind)
    if pa.types.is_binary(kind):
        return _text_reader(kind, _from_base64, Reason.TYPE, "base64")
    if pa.types.is_date(kind):
        return _text_reader(kind, _days, Reason.TIMESTAMP, "a date YYYY-MM-DD")
    if node.unit in ("s", "ms", "us", "ns"):
        return _epoch_reader(kind, node.unit)
    expected = "a date and time without zone" if kind.tz is None else "a date and time with zone (RFC 3339)"
    return _text_reader(kind, _moment_reader(kind, node.unit), Reason.TIMESTAMP, expected)


def _misfit(kind: pa.DataType, value: object) -> UnfitValue:
    return UnfitValue(Reason.TYPE, f"expected {_name(kind)}, saw {describe(value)}")


def _time_misfit(kind: pa.DataType, expected: str, value: object) -> UnfitValue:
    """The same for times; a bare number is ambiguous: 1700000000 may be seconds or milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int):
        return _misfit(kind, value)
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    advice = " (for numbers, declare the column's unit: s, ms, us or ns)" if zoned else ""
    return UnfitValue(Reason.TYPE, f"expected {expected}, saw {describe(value)}{advice}")


def _overflow(kind: pa.DataType, value: object) -> UnfitValue:
    return UnfitValue(Reason.OVERFLOW, f"{describe(value)} does not fit {_name(kind)}")


_name = lru_cache(maxsize=256)(type_name)


def _plain(expected: type, kind: pa.DataType) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not expected:
            raise _misfit(kind, value)
        return value

    return read


def _integer_reader(kind: pa.DataType) -> Callable[[Any], int]:
    limit = 1 << (kind.bit_width - 1)

    def read(value: Any) -> int:
        if type(value) is not int:
            raise _misfit(kind, value)
        if not -limit <= value < limit:
            raise _overflow(kind, value)
        return value

    return read


def _float_reader(kind: pa.DataType) -> Callable[[Any], float]:
    single = kind.bit_width == 32

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _misfit(kind, value)
        try:
            near = float(value)
            if single:
                (near,) = struct.unpack("f", struct.pack("f", near))
        except OverflowError:
            raise _overflow(kind, value) from None
        if isinf(near):
            raise _overflow(kind, value)
        return near

    return read


def _decimal_reader(kind: pa.DataType) -> Callable[[Any], Decimal]:
    def read(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _misfit(kind, value)
        exact = decimals.exact_decimals(getattr(value, "text", None) or str(value), kind)
        if exact is None:
            raise _overflow(kind, value)
        return exact

    return read


def _text_reader(kind: pa.DataType, parse: Callable[[str], Any], reason: Reason, expected: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not str:
            raise _time_misfit(kind, expected, value) if reason is Reason.TIMESTAMP else _misfit(kind, value)
        try:
            return parse(value)
        except ValueError:
            raise UnfitValue(reason, f"expected {expected}, saw {describe(value)}") from None

    return read


def _from_base64(text: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError from error
    if base64.b64encode(content).decode() != text:
        raise ValueError
    return content


def _days(text: str) -> int:
    if not _DATE.fullmatch(text):
        raise ValueError
    return date.fromisoformat(text).toordinal() - 719_163


def _moment_reader(kind: pa.DataType, unit: str) -> Callable[[str], int]:
    zone_needed = kind.tz is not None and unit != "local-utc"
    zone_refused = kind.tz is None

    def parse(text: str) -> int:
        if unit == "date" and _DATE.fullmatch(text):
            return _days(text) * _DAY
        match = _RFC_3339.fullmatch(text)
        if match is None:
            raise ValueError
        day, hour, minute, second, fraction, zulu, sign, ahead, ahead_minutes = match.groups()
        zoned = zulu or sign
        if (zone_needed and not zoned) or (zone_refused and zoned):
            raise ValueError
        if (
            int(hour) > 23
            or int(minute) > 59
            or int(second) > 59
            or int(ahead or 0) > 23
            or int(ahead_minutes or 0) > 59
        ):
            raise ValueError
        offset = (int(ahead or 0) * 60 + int(ahead_minutes or 0)) * (-1 if sign == "-" else 1)
        seconds = (int(hour) * 60 + int(minute) - offset) * 60 + int(second)
        return _in_range(_days(day) * _DAY + seconds * 1_000_000 + int((fraction or "")[:6].ljust(6, "0")))

    return parse


def _in_range(moment: int) -> int:
    if not _FIRST <= moment <= _LAST:
        raise ValueError
    return moment


def _epoch_reader(kind: pa.DataType, unit: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int:
            raise _misfit(kind, value)
        try:
            return _in_range(value // 1000 if unit == "ns" else value * _PER_UNIT[unit])
        except ValueError:
            raise UnfitValue(Reason.TIMESTAMP, f"{describe(value)} is not a time in {unit}, years 1 to 9999") from None

    return read


def integer_bounds(node: PayloadNode) -> tuple[int, int] | None:
    """The smallest and the largest integer that a leaf takes; None if it is not read from an integer."""
    kind = node.type
    if node.unit == "ns":
        return _FIRST * 1000, _LAST * 1000 + 999
    if node.unit in _PER_UNIT:
        return -(-_FIRST // _PER_UNIT[node.unit]), _LAST // _PER_UNIT[node.unit]
    return (-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1) if pa.types.is_integer(kind) else None


def time_pattern(node: PayloadNode) -> str:
    """A regular expression that all texts match which a column of dates or times takes."""
    day = rf"\d{{4}}{_DAY_OF_YEAR}"
    if pa.types.is_date(node.type):
        return f"^{day}$"
    zone = rf"(?:{_ZONE}|z)" + ("?" if node.unit == "local-utc" else "") if node.type.tz is not None else ""
    time = rf"[Tt]{_TIME}(?:\.\d+)?{zone}"
    return f"^{day}(?:{time})?$" if node.unit == "date" else f"^{day}{time}$"


def duckdb_type(node: PayloadNode) -> str:
    """The type that DuckDB reads a leaf as; types that it reads too freely are read as text and proven here."""
    kind = node.type
    if node.kind == "json":
        return "JSON"
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_integer(kind):
        return {8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}[kind.bit_width]
    if pa.types.is_floating(kind):
        return "DOUBLE"
    return "BIGINT" if node.unit in ("s", "ms", "us", "ns") else "VARCHAR"


def json_types(node: PayloadNode) -> tuple[str, ...]:
    """The JSON types that DuckDB may report for the leaf, besides null."""
    kind = node.type
    if pa.types.is_boolean(kind):
        return ("BOOLEAN",)
    if pa.types.is_integer(kind) or node.unit in ("s", "ms", "us", "ns"):
        return ("UBIGINT", "BIGINT")
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return ("UBIGINT", "BIGINT", "DOUBLE")
    return ("VARCHAR",)


def proven(node: PayloadNode, column: pa.Array) -> pa.Array:
    """A column as DuckDB read it, in the leaf's own type; NULL where it is not proven."""
    kind = node.type
    if pa.types.is_floating(kind):
        return _proven_floats(kind, column)
    if pa.types.is_decimal(kind):
        return decimals.from_texts(column, kind)
    if pa.types.is_binary(kind):
        return _proven_base64(column)
    if pa.types.is_date(kind):
        values = _at_once(kind, column, "")
        return _proven_times(kind, column, "", "") if values is None else values
    if pa.types.is_timestamp(kind):
        return _proven_moments(node, column)
    return column


def _proven_floats(kind: pa.DataType, column: pa.Array) -> pa.Array:
    finite = pc.is_finite(column)
    if kind.bit_width == 32:
        with np.errstate(over="ignore"):
            singles = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype(np.float32)
        finite = pc.and_(finite, pa.array(np.isfinite(singles)))
        column = pa.array(singles, pa.float32())
    elif pc.all(finite).as_py():
        return column
    return pc.if_else(finite, column, pa.scalar(None, kind))


def _proven_base64(column: pa.Array) -> pa.Array:
    return duck.plan_of_query(_FROM_BASE64, leaf=pa.table({"v": column}))["bytes"].combine_chunks().cast(pa.binary())


def _proven_moments(node: PayloadNode, column: pa.Array) -> pa.Array:
    kind = node.type
    if node.unit in ("s", "ms", "us", "ns"):
        return _proven_epochs(kind, column, node.unit)
    if (values := _at_once(kind, column, _clock("T", _ZONE if kind.tz else ""))) is not None:
        return values
    column = _cut_to_micros(column)
    if kind.tz is None:
        moments = _proven_times(kind, column, "T", "")
        return moments if node.unit != "date" else pc.coalesce(moments, _first_moments(kind, column))
    if node.unit != "local-utc":
        return _proven_times(kind, column, "T", _ZONE)
    zoned = _proven_times(kind, column, "T", _ZONE)
    local = _proven_times(pa.timestamp("us"), column, "T", "")
    return pc.coalesce(zoned, pc.assume_timezone(local, "UTC"))


def _first_moments(kind: pa.DataType, column: pa.Array) -> pa.Array:
    """Dates as the timestamps at which their days begin."""
    return _proven_times(pa.date32(), column, "", "").cast(kind)


def _cut_to_micros(column: pa.Array) -> pa.Array:
    longer = pc.any(pc.match_substring_regex(column, r"\.\d{7}")).as_py()
    return pc.replace_substring_regex(column, r"(\.\d{6})\d+", r"\1") if longer else column


def _proven_times(kind: pa.DataType, column: pa.Array, separator: str, zone: str) -> pa.Array:
    """Parse times with Arrow; the pattern accepts only RFC 3339 that Arrow parses correctly."""
    rest = _clock(separator, zone)
    for day in (_DAY_OF_YEAR, _SAFE_DAY):
        fits = pc.match_substring_regex(column, f"^{_YEAR}{day}{rest}$")
        if not pc.all(fits).as_py():
            column = pc.if_else(fits, column, pa.scalar(None, pa.string()))
        try:
            return _within_years(column.cast(kind))
        except pa.ArrowInvalid:
            continue  # e.g. February 30: the last days of every month are left to the exact path
    return pa.nulls(len(column), kind)


def _at_once(kind: pa.DataType, column: pa.Array, rest: str) -> pa.Array | None:
    """Times that all have one pattern; None if they have not, or one of them is invalid."""
    if _alike(column, f"{_YEAR}{_DAY_OF_YEAR}{rest}"):
        with suppress(pa.ArrowInvalid):
            return _within_years(column.cast(kind))
    return None


def _clock(separator: str, zone: str) -> str:
    return rf"{separator}{_TIME}(?:\.\d{{1,6}})?{zone}" if separator else ""


def _alike(column: pa.StringArray, pattern: str) -> bool:
    """Whether all texts equal the first one except for digits, and that one matches.

    Arrow checks the rest: it accepts only valid months, hours and zones.
    """
    if column.null_count or not len(column) or not re.fullmatch(pattern, column[0].as_py(), re.ASCII):
        return False
    texts = TextBytes(column)
    first = texts.content[: texts.starts[1]]
    if not (texts.sizes == len(first)).all():
        return False
    digits = (first >= ord("0")) & (first <= ord("9"))
    lowest, span = np.where(digits, ord("0"), first).astype(np.uint8), np.where(digits, 9, 0).astype(np.uint8)
    return bool(((texts.content.reshape(len(column), -1) - lowest) <= span).all())


def _within_years(column: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(column.type):
        return column
    low, high = pa.scalar(_FIRST, pa.int64()).cast(column.type), pa.scalar(_LAST, pa.int64()).cast(column.type)
    inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
    return column if pc.all(inside).as_py() else pc.if_else(inside, column, pa.scalar(None, column.type))


def _proven_epochs(kind: pa.DataType, column: pa.Array, unit: str) -> pa.Array:
    if unit == "ns":
        micros = pa.array(pc.fill_null(column, 0).to_numpy(zero_copy_only=False) // 1000)
        return pc.if_else(column.is_valid(), micros, pa.scalar(None, pa.int64())).cast(kind)
    factor = _PER_UNIT[unit]
    low, high = -(-_FIRST // factor), _LAST // factor
    inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
    kept = pc.if_else(inside, column, pa.scalar(None, pa.int64()))
    return pc.multiply(kept, factor).cast(kind)
