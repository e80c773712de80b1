"""How many tasks a batch has, how many records a task reads at once, and how its error reaches the driver."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ERRORS, HeadraceError
from headrace.pipeline import task
from headrace.pipeline.manifest import Manifest
from headrace.source.ranges import Range

_FACTS = {
    "PartitionNotFound": {"partition": "day=1|2"},
    "SchemaMismatch": {"expected": '"a" long', "actual": "'a' | string"},
    "ConcurrentModification": {"version": 7},
}
_TEXTS = st.text(st.sampled_from("|'\"\\{}\n,: aé\u2028"), max_size=20)


def _in_the_driver(error: HeadraceError) -> HeadraceError:
    """The error of a task as the driver raises it."""
    manifest = Manifest.from_json(Manifest(error=error.to_dict()).to_json())
    with pytest.raises(HeadraceError) as caught:
        task.raise_task_error([Manifest(), manifest])
    return caught.value


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
        ([(0, 250_000)] * 4, 300.0, 40),
        ([(0, 1_000)] * 4, 1024.0 * 1024, 500),
        ([(0, 1)] * 100, 300.0, 7),
    ],
    ids=["few records", "none", "many", "large ones", "many partitions"],
)
def test_a_task_is_worth_its_records(ranges: list[tuple[int, int]], mean_bytes: float, tasks: int) -> None:
    parts = [Range("web", nth, *each) for nth, each in enumerate(ranges)]
    assert task.tasks_for(parts, mean_bytes) == tasks


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_error_of_a_task_keeps_its_class_and_its_facts(name: str) -> None:
    facts = {"column": 'a|b "c"', **_FACTS.get(name, {})}
    if name in _FACTS:
        facts.pop("column")
    error = _in_the_driver(ERRORS[name]("No such column: 'a|b \"c\"'.", hint='Quote it: `"a|b"`.', **facts))
    assert (error.name, error.message, error.hint, error.facts) == (
        name,
        "No such column: 'a|b \"c\"'.",
        'Quote it: `"a|b"`.',
        facts,
    )


@given(message=_TEXTS, hint=_TEXTS)
@settings(max_examples=50, deadline=None)
def test_no_character_cuts_the_error_of_a_task(message: str, hint: str) -> None:
    error = _in_the_driver(ERRORS["ContractViolation"](message, hint=hint))
    assert (error.message, error.hint) == (message, hint)


def test_a_task_without_an_error_raises_nothing() -> None:
    task.raise_task_error([Manifest.from_json(Manifest().to_json())])
