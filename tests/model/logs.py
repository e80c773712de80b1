"""Change logs in any order, with doubles, cut into batches: strategies for Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

from model.merging import Change

VALUES = st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))


@st.composite
def cut(draw: st.DrawFn, changes: Sequence[Change]) -> list[list[Change]]:
    """The changes in batches, in their order."""
    edges = draw(st.sets(st.integers(1, max(1, len(changes) - 1)), max_size=4))
    bounds = [0, *sorted(edge for edge in edges if edge < len(changes)), len(changes)]
    return [list(changes[low:high]) for low, high in pairwise(bounds)]


@st.composite
def logs(draw: st.DrawFn, ops: Sequence[str], sequences: bool, silent: bool = False) -> list[Change]:
    """A topic as it was written: each record's place is where it lies; sequences are distinct for each key."""
    made: list[Change] = []
    offsets = [0, 0]
    for number in range(draw(st.integers(1, 12))):
        op, partition = draw(st.sampled_from(ops)), draw(st.integers(0, 1 if not silent else 0))
        key = None if op == "truncate" else draw(st.integers(1, 3))
        mute = op == "truncate" or not sequences or (silent and op == "delete" and draw(st.booleans()))
        offset, offsets[partition] = offsets[partition], offsets[partition] + 1
        values = draw(VALUES) if op == "put" else (None, None)
        sequence = None if mute else draw(st.integers(0, 5)) * 100 + number
        made.append(Change(op, key, sequence, values, partition, offset, number))
    return made


@st.composite
def shuffled(draw: st.DrawFn, sequences: bool) -> tuple[list[Change], list[list[Change]]]:
    """A log, and the same with some records twice, in any order, in any batches."""
    log = draw(logs(("put", "put", "delete"), sequences))
    doubles = draw(st.lists(st.sampled_from(log), max_size=4))
    if sequences:  # a producer's own doubles lie further on in the topic
        doubles = [Change(**{**vars(each), "offset": 100 + at}) for at, each in enumerate(doubles)]
    return log, draw(cut(draw(st.permutations([*log, *doubles]))))
