"""Offset ranges of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Offsets `[start, until)` of one partition."""

    topic: str
    partition: int
    start: int
    until: int
    topic_id: str = ""


def join_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Join adjacent and overlapping ranges of a partition."""
    joined: list[Range] = []
    for part in sorted(ranges):
        last = joined[-1] if joined else None
        if last and (last.topic, last.partition) == (part.topic, part.partition) and part.start <= last.until:
            joined[-1] = Range(last.topic, last.partition, last.start, max(last.until, part.until), last.topic_id)
        else:
            joined.append(part)
    return tuple(joined)


def one_per_partition(ranges: Iterable[Range]) -> Iterator[tuple[Range, ...]]:
    """Split ranges into groups with at most one range of a partition: Spark reads no more at once."""
    rest = list(ranges)
    while rest:
        first = {(part.topic, part.partition): part for part in reversed(rest)}
        yield tuple(sorted(first.values()))
        rest = [part for part in rest if part not in first.values()]


def last_offsets(ranges: Iterable[Range]) -> dict[tuple[str, int], int]:
    """The highest offset of each partition in these ranges."""
    offsets: dict[tuple[str, int], int] = {}
    for part in ranges:
        partition = (part.topic, part.partition)
        offsets[partition] = max(offsets.get(partition, -1), part.until - 1)
    return offsets
