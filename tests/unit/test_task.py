"""How much of its records a task reads at once."""

from __future__ import annotations

import pyarrow as pa

from headrace import task


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
