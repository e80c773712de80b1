"""Values as the pages show them. What is unknown is `unknown`, never 0."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

UNKNOWN = "unknown"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def number_text(value: float | None) -> str:
    """A number with separators; one decimal below 10 if it has a fraction."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float) and value < 10 and value != int(value):
        return f"{value:,.1f}"
    return f"{value:,.0f}"


def size_text(value: int | None) -> str:
    """A number of bytes in the largest unit that it reaches."""
    if value is None:
        return UNKNOWN
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{value:,} {'byte' if value == 1 else 'bytes'}" if not unit else f"{amount:,.1f} {_UNITS[unit]}"


def seconds_text(value: float | timedelta | None) -> str:
    """A duration in its one or two largest units."""
    if value is None:
        return UNKNOWN
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 10:
        return f"{seconds:,.1f} s" if seconds % 1 else f"{seconds:,.0f} s"
    whole = int(seconds)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size:,} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def moment_text(value: datetime | None) -> str:
    """A time in UTC, to the second."""
    return UNKNOWN if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def age_text(value: datetime | None, now: datetime | None = None) -> str:
    """How long ago something was."""
    if value is None:
        return "never"
    return f"{seconds_text(max(0, int(((now or datetime.now(UTC)) - value).total_seconds())))} ago"


def printable(value: Any, limit: int = 400) -> str:
    """A value as one line: control and invisible characters are escaped, and long values are cut."""
    text = value if isinstance(value, str) else _plain_text(value)
    escaped = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[:limit])
    return escaped + "…" if len(text) > limit else escaped


def _plain_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict | list):
        return json.dumps(value, default=_json_text, ensure_ascii=False)
    return _json_text(value)


def _json_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.isoformat() if isinstance(value, date) else str(value)
