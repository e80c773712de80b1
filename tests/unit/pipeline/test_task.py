"""How many tasks a batch has, how many records a task reads at once, and how its error reaches the driver."""

from __future__ import annotations

import pickle
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.protobuf.schema_files import files_of
from headrace.decode.schema_paths import read_schema_files, with_schema_files
from headrace.errors import ERRORS, EnvironmentMismatch, HeadraceError
from headrace.pipeline import task
from headrace.pipeline.manifest import Manifest
from headrace.source.ranges import Range
from headrace.storage.store import Profile
from services.plans import spec_of

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
    assert [len(each) for each in task.gathered(batches, lambda: task.MANY)] == [10] * 10
    assert [len(each) for each in task.gathered(batches, lambda: task.MANY + 1)] == [30, 30, 30, 10]
    whole = pa.concat_tables(task.gathered(batches, lambda: 200))
    assert whole["n"].to_pylist() == list(range(100))
    monkeypatch.setattr(task, "GATHERED_BYTES", batches[0].nbytes)
    assert [len(each) for each in task.gathered(batches, lambda: 200)] == [10] * 10
    assert list(task.gathered([], lambda: 200)) == []


def test_batches_are_gathered_as_soon_as_many_routes_are_known(monkeypatch):
    monkeypatch.setattr(task, "GATHERED_ROWS", 25)
    batches = [pa.record_batch({"n": list(range(nth, nth + 10))}) for nth in range(0, 60, 10)]
    sizes = list[int]()
    for each in task.gathered(batches, lambda: 200 if sizes else 0):
        sizes.append(len(each))
    assert sizes == [10, 30, 20]


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


# ---- on another machine ----


def test_another_version_is_named_before_its_input_is_read():
    other = {**task.versions(), "PyArrow": "1.2.3"}
    (batch,) = task.run_task(other, b"not a pickle", 1, datetime.now(UTC), [])
    with pytest.raises(EnvironmentMismatch, match=rf"PyArrow {pa.__version__} \(driver: 1.2.3\)"):
        task.raise_task_error([Manifest.from_json(batch["manifest"][0].as_py())])


def test_secrets_and_schema_files_travel_with_the_task(tmp_path, monkeypatch):
    monkeypatch.setenv("MASK_KEY", "0123456789abcdef0123456789abcdef")
    (tmp_path / "parts").mkdir()
    (tmp_path / "shop.proto").write_text(
        'syntax = "proto3"; package shop; import "parts/line.proto"; message Order { Line line = 1; }'
    )
    (tmp_path / "parts" / "line.proto").write_text('syntax = "proto3"; package shop; message Line { int64 id = 1; }')
    spec = spec_of(
        decode={"protobuf": {"descriptor": str(tmp_path / "shop.proto"), "message": "shop.Order"}},
        transform=[{"mask": {"name": {"sha256": "${env:MASK_KEY}"}}}],
    )
    inputs = task.TaskInput(spec, {}, {}, None, Profile(), schema_files=read_schema_files(spec))  # type: ignore[arg-type]
    serialized = inputs.to_bytes()
    monkeypatch.delenv("MASK_KEY")
    shutil.rmtree(tmp_path)
    there = pickle.loads(serialized)  # noqa: S301
    moved = with_schema_files(there.spec, there.schema_files)
    assert files_of(moved.decode.protobuf.descriptor)[1].name == "line.proto"
    assert moved.transform[0].mask["name"].sha256.reveal() == "0123456789abcdef0123456789abcdef"
    assert "0123456789" not in repr(there)
    assert moved.text == spec.text


def test_a_machine_with_the_same_schema_files_uses_them(tmp_path):
    (tmp_path / "order.avsc").write_text('{"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}')
    spec = spec_of(decode={"avro": {"schema": str(tmp_path / "order.avsc")}})
    files = read_schema_files(spec)
    assert with_schema_files(spec, files) is spec
    (tmp_path / "order.avsc").write_text("changed since")
    moved = with_schema_files(spec, files)
    assert Path(moved.decode.avro.schema_).read_bytes() == files[str(tmp_path / "order.avsc")]
