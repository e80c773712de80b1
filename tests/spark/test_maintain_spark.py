"""Maintenance of tables that Spark writes, by the pipeline's own Spark, between its batches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace import Table
from headrace.delta.snapshot import active_files
from headrace.errors import TableRestored
from headrace.storage.store import Store
from services.maintenance import Clock, Keeping

MERGED = {"mode": "upsert", "merge": {"keys": ["id"]}, "z_order": ["day"]}


def test_a_merged_table_is_compacted_ordered_and_vacuumed_between_batches(spark: Any, tmp_path: Path) -> None:
    kept = {"table": MERGED, "maintenance": {"every": "1s", "min_input_files": 2, "vacuum_every": "1m"}}
    run = Keeping(tmp_path, Clock(time.time()), **kept)
    run.spark = lambda: spark
    with run.open():
        for day in "ba":
            run.batch(day)
            run.pipeline.maintain(at_end=True)
        (compacted,) = _done(run)
        assert (compacted["operation"], compacted["reason"]) == ("compact", "small files: 2 files in 1 partition")
        newest = Table(run.place).history(1)[0]
        assert (newest.operation, newest.headrace["by"], newest.version) == ("OPTIMIZE", "shop", compacted["version"])
        assert newest.headrace["reason"] == compacted["reason"]
        assert (run.files(), run.ids()) == (1, [0, 1])

        run.clock.now += 2 * 3600
        run.pipeline.maintain(at_end=True)
        ordered = _done(run)[-1]
        assert (ordered["operation"], ordered["reason"]) == ("z_order", "idle and unordered: 1 files in 1 partition")
        run.clock.now += 3600
        run.pipeline.maintain(at_end=True)
        assert len(_done(run)) == 2, "what is in order stays as it is"

        run.clock.now += 8 * 86_400
        run.pipeline.ledger.log_writer.note("BOOKED", {}, {})  # the ledger proves that the time has passed
        run.clock.now += 86_400
        run.pipeline.maintain(at_end=True)
        assert _done(run)[-1]["operation"] == "vacuum"
        assert run.on_disk() == run.files() == 1
    with run.open():
        run.batch("c")
        assert run.pipeline.ledger.batch == 3
    assert run.ids() == [0, 1, 2]
    table = Table(run.place, spark=spark)
    assert table.metadata().pipelines == {"shop": 3}
    back = table.restore(version=ordered["version"])
    assert (back.pipelines, run.ids()) == (("shop",), [0, 1])
    with pytest.raises(TableRestored), run.open():
        pass


def _done(run: Keeping) -> list[dict[str, Any]]:
    return [each for each in run.done() if each["table"] == str(run.place)]


def test_a_clustered_table_is_made_appended_to_and_clustered_by_spark(spark: Any, tmp_path: Path) -> None:
    columns = [{"name": "id", "type": "bigint"}, {"name": "day", "type": "string"}]
    run = Keeping(tmp_path, Clock(time.time()), table={"cluster_by": ["id"], "columns": columns})
    run.spark = lambda: spark
    with run.open():
        run.batch("b")
        run.batch("c")
        about = Table(run.place).metadata()
        assert (about.writer, "clustering" in about.features) == ("spark", True)
        run.clock.now += 2 * 3600
        run.pipeline.maintain(at_end=True)
        (clustered,) = _done(run)
        assert (clustered["operation"], clustered["reason"]) == (
            "cluster",
            "idle and unordered: 2 files in 1 partition",
        )
        run.pipeline.maintain(at_end=True)
        assert len(_done(run)) == 1, "what is clustered stays as it is"
    assert (run.ids(), run.files()) == ([0, 1], 1)
    assert all(file.clustered for file in active_files(Store(str(run.place)), Table(run.place).resolve()).values())
    at = Table(run.place).checkpoint()
    told = pq.read_table(run.place / "_delta_log" / f"{at:020}.checkpoint.parquet")["domainMetadata"].drop_null()
    assert [each["domain"] for each in told.to_pylist()] == ["delta.clustering"], "a checkpoint by others keeps it"
