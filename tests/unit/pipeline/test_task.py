"""How much of its records a task reads at once, and how many tasks there are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.pipeline import task
from headrace.source.ranges import Range


def test_batches_are_gathered_only_where_there_are_many_shapes(monkeypatch):
    monkeypatch.setattr(task, "GATHERED_ROWS", 25)
    batches = [pa.record_batch({"n": list(range(nth, nth + 10))}) for nth in range(0, 100, 10)]
    assert [len(each) for each in task.gathered(batches, task.MANY)] == [10] * 10
    assert [len(each) for each in task.gathered(batches, task.MANY + 1)] == [30, 30, 30, 10]
    whole = pa.concat_tables(task.gathered(batches, 200))
    assert whole["n"].to_pylist() == list(range(100))
    monkeypatch.setattr(task, "GATHERED_BYTES", batches[0].nbytes)
    assert [len(each) for each in task.gathered(batches, 200)] == [10] * 10
    assert list(task.gathered([], 200)) == []


@pytest.mark.parametrize(
    ("ranges", "mean_bytes", "tasks"),
    [
        ([(0, 250)] * 4, 300.0, 1),
        ([(5, 5)], 300.0, 1),
        ([(0, 250_000)] * 4, 300.0, 100),
        ([(0, 1_000)] * 4, 1024.0 * 1024, 500),
        ([(0, 1)] * 100, 300.0, 7),
    ],
    ids=["few records", "none", "many", "large ones", "many partitions"],
)
def test_a_task_is_worth_its_records(ranges: list[tuple[int, int]], mean_bytes: float, tasks: int) -> None:
    given = [Range("web", nth, *each) for nth, each in enumerate(ranges)]
    assert task.tasks_for(given, mean_bytes) == tasks
