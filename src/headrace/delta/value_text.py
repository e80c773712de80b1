"""Dates and timestamps in the format of a Delta log."""

from __future__ import annotations

from datetime import date, datetime, timedelta

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)


def day_text(days: int) -> str | None:
    """Format a date, given in days since 1970; None outside of the years 1 to 9999."""
    ordinal = days + _EPOCH_DAY
    return date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= date.max.toordinal() else None


def instant_text(micros: int, separator: str = "T") -> str | None:
    """Format a timestamp without zone, given in microseconds since 1970; None outside of the years 1 to 9999."""
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(separator, "microseconds")
    except OverflowError:
        return None
