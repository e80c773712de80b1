"""A batch dies at each of its moments, and once more while it is being finished: every record is still in its place.

The batch that dies makes a table, adds a column to two others and writes dead letters. Whoever comes after it has no
file of the machine it died on, and more records have come meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import faults
from headrace.dev.kafka import Broker
from headrace.errors import SparkExited
from headrace.faults import Point
from headrace.pipeline import task
from headrace.runtime import session
from services.pipelines import Shop, eventful
from services.s3 import S3
from services.stores import BUILT, new_folder

# Where the one that finishes the batch dies in turn; before `begun`, that is one that begins it anew.
AGAIN = {
    Point.BEFORE_STAGING: Point.AFTER_STAGING,
    Point.DURING_STAGING: Point.AFTER_COMMIT,
    Point.AFTER_STAGING: Point.AFTER_STAGING,
    Point.AFTER_SCHEMA_CHANGE: Point.AFTER_TABLE_CREATION,
    Point.AFTER_TABLE_CREATION: Point.AFTER_FIRST_TABLE,
    Point.AFTER_COMMIT: Point.AFTER_COMMIT,
    Point.AFTER_FIRST_TABLE: Point.BEFORE_DEAD_LETTERS,
    Point.BEFORE_DEAD_LETTERS: Point.BEFORE_LEDGER_WRITE,
    Point.BEFORE_LEDGER_WRITE: Point.BEFORE_LEDGER_WRITE,
    Point.AFTER_LEDGER_WRITE: Point.BEFORE_STAGING,
}
UNDECIDED = {Point.BEFORE_STAGING, Point.DURING_STAGING, Point.AFTER_STAGING, Point.AFTER_SCHEMA_CHANGE}
IN_THE_DRIVER = [point for point in Point if point is not Point.DURING_STAGING]
OFTEN_ON_S3 = {
    Point.AFTER_STAGING,
    Point.AFTER_TABLE_CREATION,
    Point.AFTER_COMMIT,
    Point.AFTER_FIRST_TABLE,
    Point.BEFORE_LEDGER_WRITE,
}
ON_OBJECT_STORES = [
    pytest.param(kind, point, marks=[] if kind == "s3" and point in OFTEN_ON_S3 else pytest.mark.slow)
    for kind in ("s3", *BUILT)
    for point in IN_THE_DRIVER
]


@pytest.fixture
def shop(spark: Any, kafka: Broker, topic: str, tmp_path: Path) -> Shop:
    """A shop on local disk with two batches ahead of it."""
    return eventful(Shop(kafka.bootstrap, topic, str(tmp_path / "lake"), tmp_path))


@pytest.mark.parametrize("point", IN_THE_DRIVER)
def test_a_batch_that_dies_is_finished_by_whoever_comes_next(shop: Shop, point: Point) -> None:
    dies_twice(shop, point)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("kind", "point"), ON_OBJECT_STORES)
def test_a_batch_that_dies_on_an_object_store_is_finished_by_whoever_comes_next(
    kind: str,
    point: Point,
    kafka: Broker,
    topic: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = new_folder(kind, request, tmp_path)
    options = {"storage": folder.spec_settings(monkeypatch)}
    dies_twice(eventful(Shop(kafka.bootstrap, topic, folder.uri, tmp_path, options=options)), point)


def dies_twice(shop: Shop, point: Point) -> None:
    """A death in the eventful batch, one in what comes next, an end, the audit."""
    shop.die(point, 2)
    shop.send(20, kinds=("beta", "delta"))
    shop.die(AGAIN[point])
    summary = shop.run()
    found = shop.audit()
    assert set(found.rows) == {"alpha", "beta", "gamma", "delta"}
    assert found.records == shop.sent
    assert summary.recovered == (AGAIN[point] not in UNDECIDED)
    assert (found.orphans > 0) == (Point.AFTER_STAGING in (point, AGAIN[point]))


def test_a_task_that_is_killed_leaves_only_orphans(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill -9 of the Python worker of one task, when another task's files are already in the tables' storage."""
    monkeypatch.setattr(task, "TASK_RECORDS", 1)  # so that each partition has one
    _kill_second_task_of(2, shop.place, monkeypatch)
    with pytest.raises(SparkExited, match="worker"):
        shop.run()
    assert list(shop.place.glob("*/*00000002-00000*.parquet"))
    monkeypatch.undo()
    shop.send(20, kinds=("beta", "delta"))
    shop.die(AGAIN[Point.DURING_STAGING])
    assert shop.run().recovered == 1
    assert shop.audit().orphans > 0


def _kill_second_task_of(batch: int, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = session.map_in_arrow

    def doomed(frame: Any, function: Any, columns: Any) -> Any:
        if function.args[2] != batch:  # after the versions and the input
            return mapped(frame, function, columns)
        return mapped(frame, _dies_second(function, str(lake), str(Path(__file__).parents[1])), columns)

    monkeypatch.setattr(session, "map_in_arrow", doomed)


def _dies_second(function: Callable[..., Any], lake: str, tests: str) -> Callable[..., Any]:
    """Goes by value into the worker, which has to be told where the tests are."""

    def body(batches: Any) -> Any:
        import sys
        from pathlib import Path

        from pyspark import TaskContext

        from headrace import faults

        def strike() -> None:
            sys.path.append(tests)
            from services.wait import eventually

            eventually(lambda: list(Path(lake).glob("*/*00000002-00000*.parquet")))
            os.kill(os.getpid(), signal.SIGKILL)

        faults.disarm()
        if TaskContext.get().partitionId() == 1:
            faults.arm("during_staging", strike)
        try:
            yield from function(batches)
        finally:
            faults.disarm()  # the worker lives on, and a run that only discovers does not reach the point

    return body


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.usefixtures("spark")
def test_a_reply_that_is_lost_is_asked_for_again(
    kafka: Broker, topic: str, tmp_path: Path, s3: S3, bucket: str, batch: int
) -> None:
    shop = eventful(Shop(kafka.bootstrap, topic, f"s3://{bucket}/lake", tmp_path, s3))
    with faults.armed(Point.AFTER_COMMIT, "lost-reply", batch=batch, nth=2):
        assert shop.run().batches == 2
    assert [event["error"] for event in shop.events if event["event"] == "retry"] == ["StorageUnreachable"]
    assert shop.audit().orphans == 0


def test_many_deaths_in_a_row_while_a_batch_is_finished(shop: Shop) -> None:
    shop.die(Point.AFTER_FIRST_TABLE, 2)
    for point in (
        Point.AFTER_COMMIT,
        Point.AFTER_FIRST_TABLE,
        Point.BEFORE_DEAD_LETTERS,
        Point.BEFORE_LEDGER_WRITE,
        Point.BEFORE_LEDGER_WRITE,
    ):
        shop.die(point, 2)
    assert shop.run().recovered == 1
    assert shop.audit().orphans == 0
