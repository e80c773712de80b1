"""The account of a batch: one number for every outcome of a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Counts:
    """The account of a batch, in records: `read = routed + dead + filtered + skipped`."""

    read: int = 0
    routed: int = 0
    dead: int = 0
    filtered: int = 0
    skipped: int = 0
    value_bytes: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)  # dead letters by reason
    ignored: Mapping[str, int] = field(default_factory=dict)  # new fields that were ignored, by "table-uri: field"
    violations: Mapping[str, int] = field(default_factory=dict)  # rows by "table-uri: expectation"
    rescued: int = 0  # rows with something in `_rescued`
    duplicates: Mapping[str, int] = field(default_factory=dict)  # filtered rows by table-uri

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{each.name: _sum(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)})

    @property
    def is_complete(self) -> bool:
        """Whether every record read has an outcome."""
        return self.read == self.routed + self.dead + self.filtered + self.skipped

    def records(self) -> dict[str, int]:
        """The records read, and how many of them had each outcome."""
        return {name: getattr(self, name) for name in RECORDS}

    def counters(self) -> dict[str, Any]:
        """Every counter of an account by name, as the ledger, events and summaries have it."""
        values = {name: getattr(self, name) for name in COUNTERS}
        return {name: dict(value) if name in KEYED else value for name, value in values.items()}


RECORDS = ("read", "routed", "dead", "filtered", "skipped")
# Every counter, in the order of the ledger's columns. The size of the values is no counter: it sizes the next tasks.
COUNTERS = tuple(each.name for each in fields(Counts) if each.name != "value_bytes")
KEYED = frozenset(each.name for each in fields(Counts) if each.default is MISSING)  # counts by reason, field or table


def _sum(one: Any, two: Any) -> Any:
    if isinstance(one, int):
        return one + two
    return {key: one.get(key, 0) + two.get(key, 0) for key in {**one, **two}}
