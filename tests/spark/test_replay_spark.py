"""A replay into a table that only Spark may write: the same marks, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.faults import Point
from services.in_process_pipeline import Harness


@pytest.mark.parametrize(
    "point",
    [Point.AFTER_COMMIT, *(pytest.param(each, marks=pytest.mark.slow) for each in (None, Point.AFTER_STAGING))],
)
def test_dead_letters_land_once_in_a_table_with_a_constraint(spark: Any, tmp_path: Path, point: Point | None) -> None:
    harness = Harness(tmp_path, {"limits": {"record_bytes": 10}}, spark=lambda: spark)
    harness.feed([{"id": n, "kind": kind} for n, kind in enumerate(("alpha", "beta", "alpha"))])
    del harness.options["limits"]
    table = f"delta.`{tmp_path}/lake/alpha`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, kind STRING) USING delta")
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT some CHECK (id >= 0)")
    if point is not None:
        harness.die(point)
    harness.replay()
    assert sorted(row["id"] for row in harness.rows("lake/alpha")) == [0, 2]
    assert harness.offsets("beta") == {1: 1}
    assert harness.marks("alpha") == [1]
    assert harness.replay().counts.read == 0
    assert not list(tmp_path.rglob("staging/*/*/*.parquet")) or point is Point.AFTER_STAGING
    harness.options["limits"] = {"record_bytes": 10}
    harness.feed([{"id": 3, "kind": "alpha"}])
    harness.options["limits"] = {"record_bytes": 100}
    harness.replay()
    assert harness.marks("alpha") == [1, 2]
