"""Histories by Spark: the model's rows, once for each batch, and no more of them written than change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.delta.schema import SOURCE
from headrace.errors import CommitConflict, Fenced
from headrace.write.intent import MergeRules, Scd2Columns
from headrace.write.spark_append import SparkAppend
from model.merging import Change
from model.states import Row, history, whole
from services.changes import Merged, cut, log
from services.staging import intent, opened

SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("id", "seq", "a", "b", "valid_from", "valid_to")),
        ("current", pa.bool_()),
        SOURCE,
    ]
)
EVERY = MergeRules(
    ("id",), sequence="seq", tombstone_retention=3600, scd2=Scd2Columns("valid_from", "valid_to", "current")
)
TRACKED = MergeRules(
    ("id",), sequence="seq", tombstone_retention=3600, scd2=Scd2Columns("valid_from", "valid_to", "current", ("b",))
)
VECTORS = {"delta.enableDeletionVectors": "true"}


@pytest.fixture(autouse=True)
def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """No merge is small enough to be done without Spark."""
    monkeypatch.setattr(Merged, "in_process_bytes", 0)


def found(made: Merged) -> list[Row]:
    """The rows as the model tells them."""
    read = made.read()
    assert all(row["current"] == (row["valid_to"] is None) for row in read)
    told = [(row["id"], row["valid_from"], row["valid_to"], row["seq"], (row["a"], row["b"])) for row in read]
    assert whole(sorted(told))
    return sorted(told)


@pytest.mark.parametrize(
    ("merging", "track", "properties"),
    [
        pytest.param(EVERY, (), {}, id="every change", marks=pytest.mark.slow),
        pytest.param(EVERY, (), VECTORS, id="every change, with vectors", marks=pytest.mark.slow),
        pytest.param(TRACKED, (1,), {}, id="tracked"),
    ],
)
def test_a_log_in_any_order_with_duplicates_ends_as_the_log_in_order(
    spark: Any, tmp_path: Path, merging: MergeRules, track: tuple[int, ...], properties: dict[str, str]
) -> None:
    made = Merged(spark, tmp_path, merging, schema=SCHEMA, properties=properties)
    changes = log(1500, 100, seed=1)
    mixed = [*changes, *changes[::5]]
    random.Random(2).shuffle(mixed)
    for number, batch in enumerate(cut(mixed, 3), 1):
        made.batch(batch, number)
    assert found(made) == history(changes, track)


def test_a_batch_goes_in_once_and_writes_only_what_changes(spark: Any, tmp_path: Path) -> None:
    made = Merged(spark, tmp_path, EVERY, partition_by=("current",), schema=SCHEMA)
    zombie = made.open()
    part = made.part([Change("put", key, seq, (seq, 0), offset=seq) for key in (1, 2) for seq in (1, 5)], 1)
    first = zombie.commit(part, intent(1))
    assert (first.inserted, first.updated, first.deleted) == (4, 0, 0)
    for driver in (zombie, made.open()):
        assert driver.commit(part, intent(1)).skipped
    late = [Change("put", 1, 3, (3, 0), offset=9), Change("put", 1, 1, (1, 0), offset=1)]
    second = made.batch([*late, Change("delete", 2, 7, offset=10)], 2)
    assert (second.inserted, second.updated, second.deleted) == (1, 2, 0)
    again = made.batch([Change("delete", 2, 7, offset=10), Change("put", 1, 3, (3, 0), offset=9)], 3)
    assert (again.inserted, again.updated, again.deleted) == (0, 0, 0)
    _beside_another(made, 4)
    assert opened(made.table).transaction_version("headrace:shop") == 4
    with pytest.raises(Fenced):
        zombie.commit(part, intent(1))
    assert [row[:3] for row in found(made)] == [
        *((1, 1, 3), (1, 3, 5), (1, 5, None)),
        *((2, 1, 5), (2, 5, 7), (2, 9, 11), (2, 11, None)),
    ]


def _beside_another(made: Merged, batch: int) -> None:
    """What a history was told from must still be so when its states are written: else Delta finds the conflict."""
    theirs = {"id": 2, "seq": 9, "a": 9, "b": 0, "valid_from": 9, "valid_to": None, "current": True, "_source": None}
    part, driver = made.part([Change("put", 2, 11, (11, 0), offset=20)], batch), made.open()
    flag = Path(made.table.uri).parent / "once"
    with pytest.MonkeyPatch.context() as patch:
        read_staged = _meanwhile(SparkAppend.read_staged, made.table.uri, theirs, flag)
        patch.setattr(SparkAppend, "read_staged", read_staged)
        with pytest.raises(CommitConflict):
            driver.commit(part, intent(batch))
    driver.commit(part, intent(batch))


def _meanwhile(staged: Any, uri: str, row: dict[str, Any], flag: Path) -> Any:
    """The staged rows, which are read in the midst of the merge; whoever does so first finds another at work."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not flag.exists():
            flag.touch()
            schema = pa.schema(DeltaTable(uri).schema().to_arrow())
            write_deltalake(uri, pa.Table.from_pylist([row], schema), mode="append")
        yield from batches

    def frame(self: Any, *given: Any) -> Any:
        read = staged(self, *given)
        return read.mapInArrow(write, read.schema)

    return frame
