"""What a table that keeps a history must hold, said in plain Python: the changes of each key in order, once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from model.merging import Change

Row = tuple[int, int, int | None, int, tuple[int | None, ...]]  # key, from, to, sequence of its last change, values


@dataclass
class _State:
    begins: int
    last: Change


def history(changes: Iterable[Change], track: Sequence[int] = ()) -> list[Row]:
    """The rows; `track` are the places among the values whose change makes a new one, all changes without it."""
    keys: dict[int, list[Change]] = {}
    for change in changes:
        assert change.key is not None
        keys.setdefault(change.key, []).append(change)
    return sorted(row for key, theirs in keys.items() for row in _rows(key, theirs, track))


def _rows(key: int, changes: Sequence[Change], track: Sequence[int]) -> Iterable[Row]:
    states: list[tuple[int, _State | None]] = []
    for change in sorted(changes, key=_order):
        state = states[-1][1] if states else None
        if change.op == "delete":
            states.append((_order(change), None))
        elif state is not None and track and _same(state.last, change, track):
            state.last = change
        else:
            states.append((_order(change), _State(_order(change), change)))
    ends = [*(begins for begins, _ in states[1:]), None]
    for (begins, state), end in zip(states, ends, strict=True):
        if state is not None:
            yield key, begins, end, _order(state.last), state.last.values


def _same(one: Change, two: Change, track: Sequence[int]) -> bool:
    return all(one.values[at] == two.values[at] for at in track)


def _order(change: Change) -> int:
    assert change.sequence is not None
    return change.sequence


def whole(rows: Sequence[Row]) -> bool:
    """Whether no two rows of a key overlap, and at most one is not ended."""
    of_key: dict[int, list[Row]] = {}
    for row in rows:
        of_key.setdefault(row[0], []).append(row)
    return all(one[2] is not None and one[2] <= two[1] for each in of_key.values() for one, two in pairwise(each))
