"""Operations on tables that only Spark may write: fill, compact, vacuum, restore and drop by the same calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import Table
from headrace.errors import OperationDisabled, PartitionNotFound, SchemaMismatch, UsageError, VersionNotFound

FEATURES = "'delta.enableDeletionVectors' = 'true', 'delta.constraints.small' = 'v < 1000'"


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> Table:
    path = tmp_path / "my lake" / "t"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, p DATE, v BIGINT, twice BIGINT GENERATED ALWAYS AS (v * 2)) "
        f"USING delta PARTITIONED BY (p) TBLPROPERTIES ({FEATURES})"
    )
    return Table(path, spark=spark)


def test_the_life_of_a_table_that_spark_writes(table: Table, spark: Any) -> None:
    for number in range(2):
        days = ["2026-01-01", "2026-01-02", *([] if number else [None])]
        done = table.bulk_insert([{"id": 10 * number + at, "p": day, "v": at} for at, day in enumerate(days)])
        assert (done.version, done.rows, done.files) == (number + 1, len(days), len(days))
        assert done.bytes > 0
    with pytest.raises(SchemaMismatch, match="small"):
        table.bulk_insert([{"id": 1, "v": 1000}])
    with pytest.raises(SchemaMismatch, match="twice"):
        table.bulk_insert([{"id": 1, "v": 1, "twice": 3}])
    assert table.bulk_insert([]).version == 2
    rows = table.query().order_by("id").records()
    assert [(row["id"], row["twice"]) for row in rows] == [(0, 0), (1, 2), (2, 4), (10, 0), (11, 2)]

    assert table.optimize(min_file_size=1).version == 2, "no file is that small"
    with pytest.raises(OperationDisabled, match="Spark, which does not split files"):
        table.optimize(max_file_size=2**30)
    packed = table.optimize("p = date '2026-01-01' or p is null")
    assert (packed.partitions, packed.files_removed, packed.files_added) == (1, 2, 1)
    assert (packed.version, packed.bytes_removed > packed.bytes_added > 0) == (3, True)
    newest = table.history(1)[0]
    assert (newest.operation, newest.headrace["operation"]) == ("OPTIMIZE", "optimize")
    with pytest.raises(PartitionNotFound):
        table.optimize("p = date '2025-01-01'")
    ordered = table.optimize(z_order=["v"])
    assert (ordered.version, ordered.z_order, table.statistics().files) == (4, ("v",), 3)
    with pytest.raises(UsageError, match="partition column or does not exist"):
        table.optimize(z_order=["p"])
    assert table.query().order_by("id").records() == rows

    table.delete("id = 11")
    assert table.statistics().deletion_vectors == 1
    back = table.restore(version=3)
    assert (back.version, back.to, back.pipelines) == (6, 3, ())
    assert back.files_restored > 0
    assert table.query().order_by("id").records() == rows

    gone = table.vacuum("0s", force=True)
    assert any(path.endswith(".bin") for path in gone.files)
    assert table.query().order_by("id").records() == rows
    assert spark.sql(f"SELECT sum(id) FROM delta.`{table.path}`").collect()[0][0] == sum(row["id"] for row in rows)
    with pytest.raises(VersionNotFound, match="vacuum"):
        table.restore(version=4)
    table.drop()
    assert not table.exists()
