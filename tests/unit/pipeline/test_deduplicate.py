"""Doubles: the first of rows with the same keys within a while is kept, however the rows are cut into batches."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.delta.actions import File
from headrace.delta.rows import ColumnReader
from headrace.delta.schema import SOURCE
from headrace.errors import ColumnMismatch
from headrace.pipeline.deduplicate import TIME, _keys, _later_ones, _one_by_one, duplicate_mask
from headrace.storage.store import Store
from headrace.validate.load import examine_text
from services.plans import LAKE, envelopes, plan_of

WITHIN = 10


def rows(said: list[tuple[int | None, str | None, int]], start: int = 0) -> pa.Table:
    """Two keys and a time each; the offset is where they stand."""
    ids, names, times = zip(*said, strict=True) if said else ((), (), ())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array(names, pa.string()),
            TIME: pa.array(times, pa.int64()),
            "topic": pa.array(["t"] * len(said), pa.string()),
            "partition": pa.array([0] * len(said), pa.int32()),
            "offset": pa.array(range(start, start + len(said)), pa.int64()),
        }
    )


def model(said: list[tuple[int | None, str | None, int]]) -> list[bool]:
    """One after the other."""
    kept: list[tuple[Any, ...]] = []
    found = []
    for key, name, time in said:
        double = any((key, name) == other[:2] and abs(time - other[2]) <= WITHIN for other in kept)
        found.append(double and key is not None and name is not None)
        if not found[-1]:
            kept.append((key, name, time))
    return found


ROWS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from("ab"), st.integers(0, 40)))


@settings(max_examples=80, deadline=None)
@given(ROWS, st.sets(st.integers(0, 20)))
def test_batches_make_no_difference(said: Any, edges: set[int]) -> None:
    bounds = sorted({0, len(said), *(edge for edge in edges if edge < len(said))})
    seen: list[pa.Table] = []
    found: list[bool] = []
    for low, high in pairwise(bounds):
        batch = rows(said[low:high], low)
        is_duplicate = duplicate_mask(batch, seen, ["id", "name"], WITHIN)
        seen.append(batch.filter(pa.array(~is_duplicate)))
        found += is_duplicate.tolist()
    assert found == model(said)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=40))
def test_many_rounds_are_as_one_by_one(said: list[tuple[int, int]]) -> None:
    """A key that is kept again and again leaves the rounds behind."""
    numbers, times = (np.array(each, np.int64) for each in (zip(*said, strict=True) if said else ((), ())))
    place = np.arange(len(said)) - 3
    found = _later_ones(numbers, times, place, WITHIN)
    assert found.tolist() == _one_by_one(numbers, times, place, WITHIN).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.pipeline.deduplicate._ROUNDS", 50)
        assert _later_ones(numbers, times, place, WITHIN).tolist() == found.tolist()


def test_the_first_by_its_place_is_kept():
    batch = rows([(1, "a", 5), (1, "a", 3), (1, "a", 20)])
    backwards = batch.take(pa.array([2, 1, 0]))
    assert duplicate_mask(batch, [], ["id"], WITHIN).tolist() == [False, True, False]
    assert np.array_equal(duplicate_mask(backwards, [], ["id"], WITHIN), [False, True, False])


def test_a_table_without_the_keys_or_with_such_as_are_not_equal_to_everyone_stops_the_pipeline():
    """0.0 and -0.0 are one number and two keys."""
    for keys, said in ((["nr"], "'nr'"), (["at"], "'at' is struct"), (["total"], "'total' is double")):
        plan = plan_of(table={"deduplicate": {"keys": keys, "within": "1h"}})
        with pytest.raises(ColumnMismatch, match=said):
            plan.apply(envelopes([{"id": 1, "at": {"x": 1}, "total": 0.5}]))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.string(), "a", "a"),
        (pa.int64(), 7, "7"),
        (pa.date32(), date(2026, 1, 2), "2026-01-02"),
        (pa.bool_(), True, "true"),
        (pa.decimal128(9, 2), Decimal("1.50"), "1.50"),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00.000000Z"),
    ],
)
def test_a_key_in_the_folders_of_the_table_is_the_key_of_the_rows(
    tmp_path: Path, kind: pa.DataType, value: Any, text: str
) -> None:
    """What Spark is to append is staged without folders, and is in folders once it has."""
    schema, store = pa.schema([pa.field("id", kind), SOURCE]), Store(str(tmp_path))
    place = {"topic": "t", "partition": 0, "offset": 0, "timestamp": 5}
    row = pa.table({"id": [value], "_source": [place]}, schema=schema)
    pq.write_table(row, tmp_path / "staged.parquet")
    pq.write_table(row.select(["_source"]), tmp_path / "stored.parquet")
    columns = ColumnReader(store, ["id", "_source"])
    staged, stored = (
        _keys(columns, File(path, path, partition, 1, 1), {"id": schema.field("id")})
        for path, partition in (("staged.parquet", {}), ("stored.parquet", {"id": text}))
    )
    assert duplicate_mask(staged, [stored], ["id"], WITHIN).tolist() == [True]


ONCE = {"deduplicate": {"keys": ["id"], "within": "1h"}}


@pytest.mark.parametrize(
    ("more", "table", "path"),
    [
        ({}, ONCE, None),
        ({}, {"deduplicate": {"keys": ["id"], "within": "0s"}}, "table.deduplicate.within"),
        ({}, {"deduplicate": {"keys": ["id", "id"], "within": "1h"}}, "table.deduplicate.keys"),
        ({}, {"deduplicate": {"keys": ["nr"], "within": "1h"}}, "table.deduplicate.keys[0]"),
        ({}, {**ONCE, "source": False}, "table.source"),
        ({}, {**ONCE, "mode": "upsert", "merge": {"keys": ["id"]}}, "table.deduplicate"),
        ({"decode": {"json": {"rows": "array"}}}, ONCE, "table.deduplicate"),
        ({"branches": [{"name": "b", "table": {"path": "/lake/b"}}]}, ONCE, "table.deduplicate"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(more: dict[str, Any], table: dict[str, Any], path: str | None) -> None:
    columns = [{"name": "id", "type": "bigint"}]
    whole = {"pipeline": "web", "source": {"generate": {}}, **more}
    text = json.dumps({**whole, "table": {"path": "/lake/web", "columns": columns, **table}})
    _, findings = examine_text(text, LAKE, "web.yaml")
    assert [each.key for each in findings if each.severity == "error"] == ([path] if path else [])
