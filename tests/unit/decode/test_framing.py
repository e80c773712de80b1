"""Confluent's frame: taken off by the column, told when it is broken."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.base import Rejects
from headrace.decode.registry.framing import schema_ids, unframed
from headrace.reasons import Reason

VALUES = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=9)).map(lambda p: frame(*p)),
    )
)


def frame(id: int, payload: bytes) -> bytes:
    return b"\0" + id.to_bytes(4, "big", signed=True) + payload


def plainly(value: bytes | None) -> tuple[int, bytes] | None:
    if value is None or len(value) < 5 or value[0]:
        return None
    return int.from_bytes(value[1:5], "big", signed=True), value[5:]


@settings(deadline=None)
@given(VALUES, st.integers(0, 3))
def test_frames_are_taken_off(values, skipped):
    array = pa.array([*[b"before"] * skipped, *values], pa.binary())[skipped:]
    at = np.arange(len(values)) * 10
    rejects = Rejects()
    found = unframed(array, at, rejects)
    expected = {int(at[n]): pair for n, value in enumerate(values) if (pair := plainly(value))}
    assert (
        dict(zip(found.at.tolist(), zip(found.ids.tolist(), found.payloads.to_pylist(), strict=True), strict=True))
        == expected
    )
    assert sorted([*found.at.tolist(), *rejects.index]) == at.tolist()
    assert set(rejects.reason) <= {Reason.FRAMING}
    found.payloads.validate(full=True)


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=7)), min_size=1))
def test_ids_for_dead_letters(values):
    expected = [pair[0] if (pair := plainly(value)) else None for value in values]
    assert schema_ids(pa.array(values, pa.binary()), "confluent").to_pylist() == expected
