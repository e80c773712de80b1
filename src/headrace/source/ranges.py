"""Offset ranges of partitions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Offsets `[start, until)` of one partition."""

    topic: str
    partition: int
    start: int
    until: int
    topic_id: str = ""
