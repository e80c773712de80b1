"""Counts in text."""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """Number with its noun, such as `1 row` and `2,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
