"""Parsers for durations, sizes, rates and scalars; a ValueError states the expected value."""

from __future__ import annotations

import re
import warnings
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

from headrace.spec.base import InvalidValue

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_SECONDS = {"s": 1, "m": 60, "h": 3600}

_DURATION = r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(ms|s|m|h|d)"
_SIZE = r"([0-9]{1,15}(?:\.[0-9]{1,3})?) ?([kKmMgGtT]i?[bB]|[bB]?)"
_RATE = r"([0-9]{1,12}(?:\.[0-9]{1,3})?) ?/ ?(s|m|h)"
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
_INTEGER = r"[+-]?[0-9](?:_?[0-9]){0,17}"


def duration(value: Any) -> timedelta:
    """Parse `250ms`, `5s`, `1m`, `2h` or `7d` into a timedelta."""
    if isinstance(value, timedelta):
        return value
    match = re.fullmatch(_DURATION, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a duration with a unit: 250ms, 5s, 1m, 2h, 7d")
    return timedelta(milliseconds=float(match[1]) * _MILLISECONDS[match[2]])


def size(value: Any) -> int:
    """Parse `128MB` (powers of 1000), `64KiB` (powers of 1024) or a number into bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return int(value)
    match = re.fullmatch(_SIZE, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a size: 128MB, 64KiB, 1GB, or a number of bytes")
    return round(float(match[1]) * _BYTES[match[2].lower()])


def rate(value: Any) -> float:
    """Parse `5000/s`, `300/m` or `10/h` into records per second."""
    if isinstance(value, float):
        return value
    match = re.fullmatch(_RATE, value) if isinstance(value, str) else None
    if match is None or float(match[1]) == 0:
        raise ValueError("a rate greater than zero: 5000/s, 300/m, 10/h")
    return float(match[1]) / _SECONDS[match[2]]


def parse_integer(value: Any) -> int:
    """Parse an integer; text of digits is accepted because references resolve to text, `true` and `1.0` are not."""
    if isinstance(value, str) and re.fullmatch(_INTEGER, value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    raise ValueError("an integer")


def ratio(value: Any) -> float:
    """Parse `5%`, or a number from 0 to 1."""
    percent = isinstance(value, str) and value.endswith("%")
    try:
        number = float("nan") if isinstance(value, bool) else float(value[:-1] if percent else value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number <= (100 if percent else 1):
        raise ValueError("a ratio from 0 to 1, or from 0% to 100%")
    return number / 100 if percent else number


def flag(value: Any) -> bool:
    """Parse `true` or `false`; no other spelling is accepted."""
    values = {True: True, False: False, "true": True, "false": False}
    if isinstance(value, bool | str) and value in values:
        return values[value]
    raise ValueError("true or false")


def moment(value: Any) -> datetime:
    """Parse an RFC 3339 timestamp with a time zone."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if isinstance(value, str) and re.fullmatch(_MOMENT, value):
        try:
            return datetime.fromisoformat(value.upper())
        except ValueError:
            pass
    number = isinstance(value, int | float) or (
        isinstance(value, str) and value.lstrip("-").replace(".", "").isdecimal()
    )
    reason = "; a plain number has no unit" if number else ""
    raise ValueError(f"RFC 3339 with a time zone, such as 2025-01-31T12:00:00Z{reason}")


def plain_text(value: Any) -> Any:
    """Text; numbers and booleans are accepted without quotes where only text is possible."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


RE2_SYNTAX = "a regular expression in RE2 syntax (no lookaround, no backreferences)"
_GLOB = re.compile(r"\*?[\w.-]*\*?")  # file name patterns such as `orders*`


def regex(text: str) -> str:
    """Validate a regular expression for all engines in use; RE2 matches in linear time."""
    if error := regex_error(text):
        suggestion = text.replace(".", r"\.").replace("*", ".*") if _GLOB.fullmatch(text) else ""
        raise InvalidValue(RE2_SYNTAX, message=error, suggestion=suggestion)
    return text


def regex_error(text: str, *, python: bool = True) -> str:
    """Reason and position if a text is not valid for both RE2 and Python; empty if it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if python:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                re.compile(text)
    except re.error as error:
        return f"'{text}': {error.msg} at character {(error.pos or 0) + 1}"
    except RecursionError:
        return f"'{text}': nested too deeply"
    try:
        pc.match_substring_regex(pa.array([""]), text)
    except pa.ArrowInvalid as error:
        # RE2 names the unsupported part: "invalid perl operator: (?="
        reason, _, part = str(error).removeprefix("Invalid regular expression: ").partition(": ")
        at = text.find(part) if part else -1
        return f"'{text}': {reason}" + (f" '{part}' at character {at + 1}" if at >= 0 else "")
    return ""


def spell_duration(value: timedelta) -> str:
    """Timedelta in the largest unit that divides it."""
    milliseconds = round(value.total_seconds() * 1000)
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % _MILLISECONDS[unit] == 0:
            return f"{milliseconds // _MILLISECONDS[unit]}{unit}"
    return f"{milliseconds}ms"


def spell_size(value: int) -> str:
    """Bytes in the largest unit that divides them."""
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if value and value % _BYTES[unit.lower()] == 0:
            return f"{value // _BYTES[unit.lower()]}{unit}"
    return str(value)


def spell_rate(value: float) -> str:
    """Records per second in spec notation."""
    return f"{value:.3f}".rstrip("0").rstrip(".") + "/s"


def _text(pattern: str, example: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$", "examples": [example]}


_REFERENCE = {"type": "string", "pattern": r"^\$\{(env|file):[^}]+\}$"}


def _or_reference(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, _REFERENCE]}


Duration = Annotated[
    timedelta,
    BeforeValidator(duration),
    PlainSerializer(spell_duration, when_used="json"),
    WithJsonSchema(_or_reference(_text(_DURATION, "5s"))),
]
Size = Annotated[
    int,
    BeforeValidator(size),
    PlainSerializer(spell_size, when_used="json"),
    WithJsonSchema({"anyOf": [_text(_SIZE, "128MB"), {"type": "integer", "minimum": 0}, _REFERENCE]}),
]
Rate = Annotated[
    float,
    BeforeValidator(rate),
    PlainSerializer(spell_rate, when_used="json"),
    WithJsonSchema(_or_reference(_text(_RATE, "5000/s"))),
]
Integer = Annotated[int, BeforeValidator(parse_integer), WithJsonSchema(_or_reference({"type": "integer"}))]
Ratio = Annotated[
    float,
    BeforeValidator(ratio),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                _text(r"[0-9]{1,3}(?:\.[0-9]{1,6})?%", "5%"),
                _REFERENCE,
            ]
        }
    ),
]
Flag = Annotated[bool, BeforeValidator(flag), WithJsonSchema(_or_reference({"type": "boolean"}))]
Moment = Annotated[datetime, BeforeValidator(moment), WithJsonSchema({"type": "string", "format": "date-time"})]
PlainText = Annotated[
    str, BeforeValidator(plain_text), WithJsonSchema({"type": ["string", "number", "boolean"]}, mode="validation")
]
Regex = Annotated[str, AfterValidator(regex), WithJsonSchema({"type": "string", "format": "regex"})]
