"""Change events in any order, with doubles, cut into batches; a row's key may change, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from model.logs import VALUES
from model.merging import Change

Spelled = Callable[[int], Any]  # how the source writes a key


@dataclass(frozen=True)
class Event:
    """A row that was put, deleted, or put at another key than the one it had."""

    sequence: int
    before: int | None = None
    after: int | None = None
    values: tuple[int | None, ...] = (None, None)

    def debezium(self, spelled: Spelled) -> dict[str, Any]:
        """As Debezium says it; all that was before is the key."""
        after = self.after and {**self._row(self.after, spelled), **dict(zip("ab", self.values, strict=True))}
        before = self.before and self._row(self.before, spelled)
        op = "d" if self.after is None else "u" if self.before else "c"
        return {"op": op, "before": before, "after": after, "ts_ms": self.sequence}

    def _row(self, key: int, spelled: Spelled) -> dict[str, Any]:
        return {"id": spelled(key), "seq": self.sequence}

    def changes(self) -> Iterable[Change]:
        """What it does at each key."""
        if self.before is not None and self.before != self.after:
            yield Change("delete", self.before, self.sequence)
        if self.after is not None:
            yield Change("put", self.after, self.sequence, self.values)


@st.composite
def events(draw: st.DrawFn) -> tuple[list[Event], list[list[Event]]]:
    """Events in the order of their sequences; and the same, some of them twice, in any order, in any batches."""
    keys = st.integers(1, 3)
    log = []
    for sequence in range(1, draw(st.integers(1, 8)) + 1):
        before, after = draw(st.none() | keys), draw(st.none() | keys)
        log.append(Event(sequence, before, after if before else after or 1, draw(VALUES) if after else (None, None)))
    doubles = draw(st.lists(st.sampled_from(log), max_size=3))
    brought = draw(st.permutations([*log, *doubles]))
    edges = sorted(draw(st.sets(st.integers(1, len(brought)), max_size=2)))
    return log, [batch for batch in _cut(brought, edges) if batch]


def _cut(brought: Sequence[Event], edges: Sequence[int]) -> list[list[Event]]:
    return [list(brought[low:high]) for low, high in zip([0, *edges], [*edges, len(brought)], strict=True)]
