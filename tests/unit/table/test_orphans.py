"""Files that dead writers left are counted, never those that somebody needs, and they go in the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace import Table
from headrace.faults import Abandoned, Point, armed
from headrace.pipeline.pipeline import Pipeline
from headrace.serve.status import pipeline_status
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from services.clocks import DAY, clock
from services.in_process_pipeline import Harness


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.source.kafka._TIMEOUT", 0.2)


def orphans(harness: Harness) -> dict[str, Any]:
    found: dict[str, Any] = pipeline_status(harness.spec, orphans=True)["orphans"]
    return found


def dies(harness: Harness, point: Point, *values: Any) -> None:
    with armed(point, "abandon"), pytest.raises(Abandoned):
        harness.feed(values)


def test_what_a_batch_left_that_died_before_it_was_decided_is_counted_and_vacuumed(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    with clock(-10 * DAY):
        harness.feed([{"id": 1, "kind": "alpha"}])
    assert orphans(harness) == {"files": 0, "bytes": 0, "directories": {}}
    assert pipeline_status(harness.spec)["orphans"] is None
    dies(harness, Point.AFTER_STAGING, {"id": 2, "kind": "alpha"})
    lake = harness.place / "lake"
    found = orphans(harness)
    assert found["directories"] == {str(lake / "alpha"): 1}
    with Lease.take(Store(harness.spec.state_uri)):
        assert orphans(harness)["files"] == 0, "a pipeline that runs may be staging them"
        for path in lake.rglob("part-*.parquet"):
            os.utime(path, (1, 1))
        assert orphans(harness)["files"] == found["files"]
    with clock(-2 * DAY):
        harness.feed([{"id": 3, "kind": "alpha"}])
    assert orphans(harness)["files"] == found["files"]
    assert len(Table(lake / "alpha").vacuum().files) == 1
    assert str(lake / "alpha") not in orphans(harness)["directories"]
    assert len(harness.rows("lake/alpha")) == 2


def test_what_waits_to_be_merged_is_swept_at_the_next_start(tmp_path: Path) -> None:
    table = {"path": f"{tmp_path}/lake/t", "mode": "upsert", "merge": {"keys": ["id"]}}
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": table})
    harness.feed([{"id": 1}])
    dies(harness, Point.AFTER_STAGING, {"id": 2})
    staging = tmp_path / "lake/_headrace/shop/staging"
    assert orphans(harness)["directories"] == {str(staging): 1}
    harness.feed([{"id": 3}])
    assert orphans(harness)["files"] == 0
    assert not [path for path in staging.rglob("*") if path.is_file()]
    assert sorted(row["id"] for row in harness.rows("lake/t")) == [1, 3]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_files_of_an_open_batch_are_none(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    merge = {"mode": "upsert", "merge": {"keys": ["id"]}} if mode == "upsert" else {}
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/t", **merge}})
    harness.feed([{"id": 1}])

    def die(*_: Any) -> None:
        raise Abandoned

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "_commit_one", die)
        with pytest.raises(Abandoned):
            harness.feed([{"id": 2}])
    assert pipeline_status(harness.spec)["open_batch"] == 2
    assert orphans(harness)["files"] == 0
    harness.feed([])
    assert sorted(row["id"] for row in harness.rows("lake/t")) == [1, 2]


def test_files_that_a_version_took_out_of_the_table_are_none(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for number in range(4):
        harness.feed([{"id": number, "kind": "alpha"}])
    table = Table(tmp_path / "lake/alpha")
    table.optimize()
    table.checkpoint()
    harness.feed([{"id": 9, "kind": "alpha"}])
    assert len(DeltaTable(table.path).file_uris()) == 2
    assert orphans(harness)["files"] == 0
    left = tmp_path / "lake/alpha/part-insert-0-dead.parquet"
    left.write_bytes(b"PAR1")
    assert orphans(harness)["files"] == 0, "an insert may be writing it"
    os.utime(left, (1, 1))
    assert orphans(harness)["directories"] == {table.path: 1}
