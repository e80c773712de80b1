"""Parse the partition values of a Delta log.

Writers format one value in several ways. The timestamp 2024-01-01 00:00 UTC is `2024-01-01 00:00:00` by Spark,
`2024-01-01 00:00:00.000000` by delta-rs and `2024-01-01T00:00:00.000000Z` by Headrace; the double 1 is `1.0` or `1`.
So values are compared by column and type, never as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.errors import TableDamaged

_PHYSICAL = b"delta.columnMapping.physicalName"  # the name of a renamed column in the log
_MICRO = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)
_EXACT = Context(prec=100)
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NOT_FINITE = re.compile(r"([+-]?)(?:(nan)|inf(?:inity)?)", re.IGNORECASE)
_TIMESTAMP = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})(?:[ T](?P<time>\d{2}:\d{2}(?::\d{2})?)(?:\.(?P<fraction>\d{1,9}))?)?"
    r" ?(?P<zone>Z|UTC|[+-]\d{2}:?\d{2})?"
)
_BYTES = re.compile(r"(?:\\u00([0-9A-Fa-f]{2}))*")


def log_name(item: pa.Field) -> str:
    """The name of a column in the log: the physical one with column mapping."""
    return str((item.metadata or {}).get(_PHYSICAL, item.name.encode()).decode())


def partition_text(values: Mapping[str, str | None], item: pa.Field) -> str | None:
    """The text of a column in a file's `partitionValues`; None if it is NULL or empty, which means NULL as well."""
    return values.get(log_name(item), values.get(item.name)) or None


def value_in(values: Mapping[str, str | None], item: pa.Field) -> pa.Scalar:
    """The value of a column in a file's `partitionValues`."""
    return partition_value(partition_text(values, item), item)


def partition_value(text: str | None, item: pa.Field) -> pa.Scalar:
    """Parse a partition value; TableDamaged if the text is invalid for the type of the column."""
    try:
        return parse_partition_value(text, item.type)
    except ValueError:
        raise TableDamaged(
            f"Invalid partition value in the log: '{text}' for column {item.name} of type {item.type}.",
            hint="Rewrite the files of that partition with the program that wrote them.",
        ) from None


@lru_cache(maxsize=1 << 14)
def parse_partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Parse a value in any format of Spark, delta-rs or Headrace; ValueError if it is invalid."""
    if not text:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind):
            return pa.scalar(_micros(text, kind.tz is not None), pa.int64()).cast(kind)
        return pa.scalar(_plain(text, kind), kind)
    except OverflowError:
        raise ValueError(text) from None


def _plain(text: str, kind: pa.DataType) -> Any:
    """The exact Python value; ValueError instead of rounding or truncating."""
    if pa.types.is_boolean(kind):
        return _boolean(text)
    if pa.types.is_integer(kind):
        return int(_matched(_INTEGER, text))
    if pa.types.is_floating(kind):
        return _float(text, kind)
    if pa.types.is_decimal(kind):
        return _decimal(text, kind.scale)
    if pa.types.is_date(kind):
        return _day(text)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _bytes(text)
    return text


def _matched(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(text)
    return text


def _boolean(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


def _float(text: str, kind: pa.DataType) -> float:
    if match := _NOT_FINITE.fullmatch(text):
        return float("nan") if match[2] else float(f"{match[1]}inf")
    # Arrow rounds a text to a float once; Python would round it to a double first.
    value = float(pa.scalar(_matched(_NUMBER, text)).cast(kind).as_py())
    if math.isinf(value):
        raise ValueError(text)
    return value


def _decimal(text: str, scale: int) -> Decimal:
    """The exact value; creating the Arrow scalar fails if it does not fit, while a cast of the text would wrap it."""
    try:
        value = Decimal(_matched(_NUMBER, text))
        scaled = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except InvalidOperation:
        raise ValueError(text) from None
    if scaled != value:
        raise ValueError(text)
    return scaled


def _day(text: str) -> date:
    """A date, also if it is written as a timestamp at midnight."""
    micros = _micros(text, zoned=False)
    if micros % 86_400_000_000:
        raise ValueError(text)
    return (_EPOCH + micros * _MICRO).date()


def _micros(text: str, zoned: bool) -> int:
    """Microseconds since the epoch; a timestamp without zone is UTC."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(text)
    fraction = (match["fraction"] or "").ljust(9, "0")
    zone = "" if match["zone"] in (None, "Z", "UTC") else match["zone"]
    if fraction[6:] != "000" or (zone and not zoned):
        raise ValueError(text)
    at = datetime.fromisoformat(f"{match['day']}T{match['time'] or '00:00:00'}{zone}")
    local = at.replace(tzinfo=None) - (at.utcoffset() or timedelta())
    return (local - _EPOCH) // _MICRO + int(fraction[:6])


def _bytes(text: str) -> bytes:
    """Bytes in the form of the protocol, `\\u0061\\u00FF`; any other text is encoded as UTF-8."""
    if not _BYTES.fullmatch(text):
        return text.encode()
    return bytes(int(code, 16) for code in re.findall(r"\\u00([0-9A-Fa-f]{2})", text))
