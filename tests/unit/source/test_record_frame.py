"""Ranges that tasks read by themselves: every offset once, in order, in parts of a useful size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.source.ranges import Range
from headrace.source.record_frame import SPLIT_RECORDS, RecordFrame, split_range


@given(st.integers(0, 10**12), st.integers(0, 20 * SPLIT_RECORDS), st.integers(1, 64))
def test_parts_of_a_range_have_every_offset_once(start: int, records: int, count: int):
    whole = Range("web", 3, start, start + records, "id")
    parts = split_range(whole, count)
    assert [parts[0].start, *(part.until for part in parts)] == [*(part.start for part in parts), whole.until]
    assert len(parts) == 1 or min(part.until - part.start for part in parts) >= SPLIT_RECORDS
    assert len(parts) <= count
    assert {(part.topic, part.partition, part.topic_id) for part in parts} == {("web", 3, "id")}


@pytest.mark.parametrize("indexes", [[0], [1, 0], []])
def test_a_task_reads_the_ranges_of_its_indexes_lazily(indexes: list[int]):
    read: list[Range] = []

    def reader(part: Range) -> Iterator[pa.RecordBatch]:
        read.append(part)
        yield pa.record_batch({"offset": list(range(part.start, part.until))})

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    parts = (Range("web", 0, 0, 2), Range("web", 1, 5, 6))
    frame: Any = None
    task = RecordFrame(frame, parts, reader).in_task(run)
    records = task(iter([pa.record_batch({"id": pa.array(indexes, pa.int64())})]))
    assert read == []
    offsets = [list(range(parts[index].start, parts[index].until)) for index in indexes]
    assert [batch.to_pydict()["offset"] for batch in records] == offsets


def test_records_of_a_frame_are_passed_on_as_they_are():
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    frame: Any = None
    assert RecordFrame(frame).in_task(run) is run
