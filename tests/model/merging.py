"""What a table that merges must hold, said in plain Python: changes one by one, in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.write.intent import MergeRules

Place = tuple[int, int]


@dataclass(frozen=True)
class Change:
    """One record's change of one key; `key` and `sequence` may be None where a truncate or a null value has none."""

    op: str
    key: int | None = None
    sequence: int | None = None
    values: tuple[int | None, ...] = (None, None)
    partition: int = 0
    offset: int = 0
    at: int = 0  # the record's time
    topic: str = "t"

    @property
    def place(self) -> Place:
        return self.partition, self.offset


@dataclass
class Row:
    """What the table holds at a key."""

    sequence: int | None
    values: list[int | None]
    partition: int
    offset: int
    at: int

    @property
    def place(self) -> Place:
        return self.partition, self.offset


@dataclass
class Model:
    """The table, and the deletes it remembers."""

    merging: MergeRules
    rows: dict[int, Row] = field(default_factory=dict)
    deletes: list[Change] = field(default_factory=list)

    def take(self, changes: Iterable[Change]) -> Model:
        """All of them, in this order."""
        for change in changes:
            getattr(self, f"_{change.op}")(change)
        return self

    def table(self) -> dict[int, tuple[int | None, ...]]:
        """Key to sequence and values."""
        return {key: (row.sequence, *row.values) for key, row in self.rows.items()}

    def _put(self, change: Change) -> None:
        assert change.key is not None
        if any(self._ends(delete, change) for delete in self.deletes):
            return
        row = self.rows.get(change.key)
        if row is None:
            self.rows[change.key] = _row(change)
        elif self._beats(change, row):
            self.rows[change.key] = self._overlaid(row, change) if self.merging.partial else _row(change)

    def _delete(self, change: Change) -> None:
        self.deletes.append(change)
        row = self.rows.get(change.key or 0)
        if row is not None and self._beats(change, row):
            del self.rows[change.key or 0]

    def _truncate(self, change: Change) -> None:
        gone = [key for key, row in self.rows.items() if ended(row, change)]
        for key in gone:
            del self.rows[key]

    def _ends(self, delete: Change, change: Change) -> bool:
        if delete.key != change.key:
            return False
        if self.merging.sequence is None or delete.sequence is None:
            return change.place < delete.place
        return _order(change) < _order(delete)

    def _beats(self, change: Change, row: Row) -> bool:
        if self.merging.sequence is None or change.sequence is None:
            return change.place > row.place
        assert row.sequence is not None
        return _order(change) > (row.sequence, row.place)

    def _overlaid(self, row: Row, change: Change) -> Row:
        names = ("a", "b")
        taken = [not self.merging.columns or name in self.merging.columns for name in names]
        said = [not (value is None and self.merging.ignore_nulls) for value in change.values]
        values = [
            new if takes and says else old
            for old, new, takes, says in zip(row.values, change.values, taken, said, strict=True)
        ]
        return replace(_row(change), values=values)


def _order(change: Change) -> tuple[int, Place]:
    assert change.sequence is not None
    return change.sequence, change.place


def _row(change: Change) -> Row:
    return Row(change.sequence, list(change.values), change.partition, change.offset, change.at)


def ended(row: Row | Change, change: Change) -> bool:
    """Whether a truncate ends what lies before it."""
    return row.offset < change.offset if row.partition == change.partition else row.at <= change.at


def columns_of(changes: Iterable[Change], source: bool = True) -> dict[str, list[Any]]:
    """Changes as the columns of a staged file: `_headrace`, `id`, `seq`, `a`, `b`, `_source`."""
    made: dict[str, list[Any]] = {name: [] for name in ("_headrace", "id", "seq", "a", "b", "_source")}
    for row, change in enumerate(changes):
        place = {"topic": change.topic, "partition": change.partition, "offset": change.offset, "timestamp": change.at}
        made["_headrace"].append({"op": change.op, **place, "row": row})
        made["id"].append(change.key)
        made["seq"].append(change.sequence)
        made["a"].append(change.values[0])
        made["b"].append(change.values[1])
        made["_source"].append(place)
    return made
