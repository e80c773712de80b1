"""Offset ranges of each partition, as the ledger has them, and the gaps between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import plural
from headrace.serve.pipeline_view import LagView
from headrace.source.base import Partition
from headrace.write.intent import IntentKind

_WIDTH = 600.0
_MIN_WIDTH = 1.5  # of a segment, so that small ones are visible


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A range of offsets, `until` excluded."""

    kind: str  # "batch", "gap", "again" or "unread"
    start: int
    until: int
    batch: int | None
    text: str


@dataclass
class _PartitionRanges:
    ranges: list[OffsetRange] = field(default_factory=list)
    position: int | None = None

    def add(self, batch: int, kind: str, start: int, until: int, note: str) -> None:
        """Add the range of one more batch."""
        if self.position is not None and start > self.position:
            self._append("gap", self.position, start, None, "in no batch")
        if kind == IntentKind.DECISION and until > start:
            self._append("gap", start, until, batch, f"skipped by a decision: {note}" if note else "skipped")
        elif until > start:
            is_repeated = self.position is not None and start < self.position
            self._append("again" if is_repeated else "batch", start, until, batch, f"batch {batch}")
        self.position = until

    def _append(self, kind: str, start: int, until: int, batch: int | None, why: str) -> None:
        text = f"offsets {start:,} to {until - 1:,} ({plural(until - start, 'offset')}): {why}"
        self.ranges.append(OffsetRange(kind, start, until, batch, text))


@dataclass(frozen=True, slots=True)
class RangeShape:
    """A range as a part of a bar."""

    range: OffsetRange
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """A partition: its ranges, its gaps and its lag."""

    topic: str
    partition: int
    first: int
    position: int
    end: int | None  # None is unknown
    unread: int | None
    shapes: tuple[RangeShape, ...]
    gaps: tuple[OffsetRange, ...]
    repeated: tuple[OffsetRange, ...]


def partition_offsets(
    rows: Sequence[Mapping[str, Any]], position: Mapping[Partition, int], lag: LagView
) -> list[PartitionOffsets]:
    """The partitions of some rows of the ledger, oldest first, with the position after the last batch."""
    partitions: dict[Partition, _PartitionRanges] = {each: _PartitionRanges() for each in sorted(position)}
    for row in rows:
        if row["kind"] not in (IntentKind.BATCH, IntentKind.DECISION):
            continue
        for each in row["ranges"] or ():
            ranges = partitions.setdefault((each["topic"], each["partition"]), _PartitionRanges())
            ranges.add(row["batch"], row["kind"], each["from"], each["until"], row["note"])
    return [
        _offsets(partition, ranges, position.get(partition, ranges.position or 0), lag)
        for partition, ranges in sorted(partitions.items())
    ]


def _offsets(partition: Partition, ranges: _PartitionRanges, position: int, lag: LagView) -> PartitionOffsets:
    known = lag.partitions.get(partition)
    shown = list(ranges.ranges)
    if known is not None and known.end > position:
        text = f"offsets {position:,} to {known.end - 1:,}: not read yet"
        shown.append(OffsetRange("unread", position, known.end, None, text))
    first = min((each.start for each in shown), default=position)
    last = max((each.until for each in shown), default=position)
    return PartitionOffsets(
        *partition,
        first,
        position,
        known.end if known else None,
        known.records if known else None,
        tuple(_shape(each, first, last) for each in shown),
        tuple(each for each in shown if each.kind == "gap"),
        tuple(each for each in shown if each.kind == "again"),
    )


def _shape(each: OffsetRange, first: int, last: int) -> RangeShape:
    scale = _WIDTH / max(last - first, 1)
    width = max((each.until - each.start) * scale, _MIN_WIDTH)
    return RangeShape(each, round(min((each.start - first) * scale, _WIDTH - width), 2), round(width, 2))
