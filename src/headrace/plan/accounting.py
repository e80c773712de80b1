"""The account of a batch: one number for every outcome of a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Counts:
    """The account of a batch, in records: `read = routed + dead + filtered + skipped`."""

    read: int = 0
    routed: int = 0
    dead: int = 0
    filtered: int = 0
    skipped: int = 0
    value_bytes: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)  # letters by reason
    ignored: Mapping[str, int] = field(default_factory=dict)  # "table-uri: field" of ignored new fields
    violations: Mapping[str, int] = field(default_factory=dict)  # "table-uri: expectation", rows that do not fulfil it
    rescued: int = 0  # rows with something in `_rescued`
    duplicates: Mapping[str, int] = field(default_factory=dict)  # by table-uri, rows it has already; they are filtered

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            self.routed + other.routed,
            self.dead + other.dead,
            self.filtered + other.filtered,
            self.skipped + other.skipped,
            self.value_bytes + other.value_bytes,
            _sum(self.reasons, other.reasons),
            _sum(self.ignored, other.ignored),
            _sum(self.violations, other.violations),
            self.rescued + other.rescued,
            _sum(self.duplicates, other.duplicates),
        )


def _sum(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + two.get(key, 0) for key in {**one, **two}}
