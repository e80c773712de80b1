"""A replay dies at each of its moments, and once more while it is being finished: every letter lands once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.dead_letters.reader import Selection
from headrace.errors import StorageUnreachable
from headrace.faults import Point, armed
from headrace.ledger.replays import Replays
from headrace.storage.store import Store
from services.desk import Desk
from services.pipelines import run_cli
from services.s3 import S3

POINTS = [point for point in Point if point is not Point.BEFORE_DEAD_LETTERS]  # that one has a test of its own
AGAIN = {
    Point.BEFORE_STAGING: Point.AFTER_STAGING,
    Point.DURING_STAGING: Point.AFTER_COMMIT,
    Point.AFTER_STAGING: Point.DURING_STAGING,
    Point.AFTER_SCHEMA_CHANGE: Point.AFTER_TABLE_CREATION,
    Point.AFTER_TABLE_CREATION: Point.AFTER_FIRST_TABLE,
    Point.AFTER_COMMIT: Point.AFTER_COMMIT,
    Point.AFTER_FIRST_TABLE: Point.BEFORE_LEDGER_WRITE,
    Point.BEFORE_LEDGER_WRITE: Point.BEFORE_LEDGER_WRITE,
    Point.AFTER_LEDGER_WRITE: Point.BEFORE_STAGING,
}
LATE = {
    Point.AFTER_TABLE_CREATION,
    Point.AFTER_COMMIT,
    Point.AFTER_FIRST_TABLE,
    Point.BEFORE_LEDGER_WRITE,
    Point.AFTER_LEDGER_WRITE,
}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Letters for a table that is there and lacks a column, for one that is not there, and for none."""
    return eventful(Desk(tmp_path))


def eventful(desk: Desk) -> Desk:
    desk.feed([{"id": 0, "kind": "alpha"}])
    desk.options["limits"] = {"record_bytes": 20}
    kinds = ["alpha", "beta", "alpha", "beta", "gamma"]
    desk.feed([{"id": n, "kind": kind, "note": "n"} for n, kind in enumerate(kinds, 1)])
    desk.feed([b"{" * 30, b'{"id": 7, "kind": "delta", "extra": "'])
    del desk.options["limits"]
    assert len(desk.dead()) == 7
    return desk


def check(desk: Desk) -> None:
    """Each letter that could be mended is a row once; the others are still dead; the marks only grow."""
    assert desk.offsets("alpha") == {0: 1, 1: 1, 3: 1}
    assert desk.offsets("beta") == {2: 1, 4: 1}
    assert desk.offsets("gamma") == {5: 1}
    assert {row["note"] for row in desk.rows("lake/alpha")} == {None, "n"}
    settled = [row["offset"] for row in desk.outcomes() if row["outcome"] == "replayed"]
    assert sorted(settled) == [1, 2, 3, 4, 5]
    assert len(desk.dead()) == 7
    for table in ("alpha", "beta", "gamma", "_headrace/shop/replays"):
        marks = desk.marks(table)
        assert marks == sorted(set(marks))
        assert marks


@pytest.mark.parametrize("point", POINTS)
def test_a_replay_that_dies_is_finished_by_the_next(desk: Desk, point: Point) -> None:
    desk.die(point)
    desk.options["spark"] = {"cores": 1}  # another spec, another digest
    if point is not Point.AFTER_LEDGER_WRITE:
        desk.die(AGAIN[point])
    summary = desk.replay()
    assert summary.recovered == (point is not Point.AFTER_LEDGER_WRITE and AGAIN[point] in LATE)
    check(desk)
    assert desk.replay(Selection(reasons=("too_big",))).counts.routed == 0
    check(desk)


@pytest.mark.parametrize("point", sorted(LATE - {Point.AFTER_LEDGER_WRITE}))
def test_a_pipeline_that_runs_in_between_changes_nothing(desk: Desk, point: Point) -> None:
    desk.die(point, plan=1)
    desk.feed([{"id": 8, "kind": "alpha", "other": True}, {"id": 9, "kind": "gamma", "note": "m"}])
    assert desk.replay().recovered == 1
    assert desk.offsets("alpha") == {0: 1, 1: 1, 3: 1, 8: 1}
    assert desk.offsets("gamma") == {5: 1, 9: 1}


@pytest.mark.parametrize("point", sorted(LATE - {Point.AFTER_LEDGER_WRITE}))
def test_an_open_plan_is_finished_with_its_own_spec(desk: Desk, point: Point) -> None:
    """Whoever finishes it has a spec under which some of the letters would go nowhere."""
    desk.die(point, plan=1)
    desk.options["route"] = {"by": {"field": "kind"}, "exclude": "beta", "unrouted": "skip"}
    desk.replay()
    check(desk)


@pytest.mark.parametrize("point", sorted(LATE - {Point.AFTER_LEDGER_WRITE}))
def test_staged_files_that_are_gone_are_staged_again(desk: Desk, point: Point) -> None:
    """As a vacuum takes them that does not wait."""
    desk.die(point, plan=1)
    named = "".join(log.read_text() for log in desk.folder.rglob("_delta_log/*.json"))
    for file in desk.folder.rglob("part-replay-*.parquet"):
        if file.name not in named:
            file.unlink()
    desk.feed([{"id": 8, "kind": "beta", "note": "later"}])
    desk.options["limits"] = {"record_bytes": 20}
    desk.feed([{"id": 9, "kind": "gamma", "note": "a letter that no open plan may take"}])
    del desk.options["limits"]
    assert desk.replay(Selection(reasons=("tombstone",))).recovered == 1
    assert desk.offsets("beta") == {2: 1, 4: 1, 8: 1}
    assert desk.offsets("gamma") == {5: 1}
    assert desk.replay().counts.routed == 1
    assert desk.offsets("gamma") == {5: 1, 9: 1}


def test_a_lost_reply_is_asked_for_again(desk: Desk) -> None:
    with armed(Point.AFTER_COMMIT, "lost-reply", nth=2):
        assert desk.replay().batches == 1
    check(desk)


def test_a_store_that_fails_after_the_decision_makes_no_second_plan(desk: Desk) -> None:
    def fail() -> None:
        raise StorageUnreachable("for a moment")

    with armed(Point.BEFORE_LEDGER_WRITE, fail):
        assert desk.replay().recovered == 1
    check(desk)
    assert Replays.open(Store(desk.spec.state_uri), "shop:replay").batch == 1


@pytest.mark.parametrize(
    "point",
    [
        Point.AFTER_FIRST_TABLE,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (Point.AFTER_STAGING, Point.BEFORE_LEDGER_WRITE)),
    ],
)
def test_kill_9_during_a_replay(desk: Desk, point: Point) -> None:
    """The command line in a process of its own; no JVM is ever started by it."""
    killed_and_finished(desk, point)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [Point.AFTER_STAGING, Point.AFTER_COMMIT, Point.AFTER_FIRST_TABLE, Point.BEFORE_LEDGER_WRITE]
)
def test_kill_9_during_a_replay_on_s3(s3: S3, bucket: str, tmp_path: Path, point: Point) -> None:
    killed_and_finished(eventful(Desk(tmp_path, s3=s3, bucket=bucket)), point)


def killed_and_finished(desk: Desk, point: Point) -> None:
    command = ["dead-letters", "replay", desk.write_spec(), "--json"]
    killed = run_cli(command, {"HEADRACE_FAULT": f"{point}=kill"}, within=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_cli(command, {"HEADRACE_JAVA": "/nowhere"}, within=60)
    assert done.returncode == 0, done.stderr
    check(desk)
