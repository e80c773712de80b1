"""Record counts of a batch, by outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Counts:
    """Record counts of a batch: `read = routed + dead + filtered + skipped`."""

    read: int = 0
    routed: int = 0
    dead: int = 0
    filtered: int = 0
    skipped: int = 0
    value_bytes: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)  # dead letters by reason
    ignored: Mapping[str, int] = field(default_factory=dict)  # ignored new fields by "table-uri: field"
    violations: Mapping[str, int] = field(default_factory=dict)  # violating rows by "table-uri: expectation"
    rescued: int = 0  # rows with a value in `_rescued`
    duplicates: Mapping[str, int] = field(default_factory=dict)  # filtered rows by table-uri

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{item.name: _sum(getattr(self, item.name), getattr(other, item.name)) for item in fields(self)})

    @property
    def is_complete(self) -> bool:
        """Whether every record read has an outcome."""
        return self.read == self.routed + self.dead + self.filtered + self.skipped

    def records(self) -> dict[str, int]:
        """Records read, and their number by outcome."""
        return {name: getattr(self, name) for name in RECORDS}

    def counters(self) -> dict[str, Any]:
        """All counters by name, for the ledger, events and summaries."""
        values = {name: getattr(self, name) for name in COUNTERS}
        return {name: dict(value) if name in KEYED else value for name, value in values.items()}


RECORDS = ("read", "routed", "dead", "filtered", "skipped")
# All counters, in the order of the ledger columns. value_bytes is not one: it only determines the size of tasks.
COUNTERS = tuple(item.name for item in fields(Counts) if item.name != "value_bytes")
KEYED = frozenset(item.name for item in fields(Counts) if item.default is MISSING)  # counts by reason, field or table


def _sum(first: Any, second: Any) -> Any:
    if isinstance(first, int):
        return first + second
    return {key: first.get(key, 0) + second.get(key, 0) for key in {**first, **second}}
