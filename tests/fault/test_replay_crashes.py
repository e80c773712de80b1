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
from services.in_process_pipeline import Harness
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
def harness(tmp_path: Path) -> Harness:
    """Letters for a table that is there and lacks a column, for one that is not there, and for none."""
    return eventful(Harness(tmp_path))


def eventful(harness: Harness) -> Harness:
    harness.feed([{"id": 0, "kind": "alpha"}])
    harness.options["limits"] = {"record_bytes": 20}
    kinds = ["alpha", "beta", "alpha", "beta", "gamma"]
    harness.feed([{"id": n, "kind": kind, "note": "n"} for n, kind in enumerate(kinds, 1)])
    harness.feed([b"{" * 30, b'{"id": 7, "kind": "delta", "extra": "'])
    del harness.options["limits"]
    assert len(harness.dead()) == 7
    return harness


def check(harness: Harness) -> None:
    """Each letter that could be mended is a row once; the others are still dead; the marks only grow."""
    assert harness.offsets("alpha") == {0: 1, 1: 1, 3: 1}
    assert harness.offsets("beta") == {2: 1, 4: 1}
    assert harness.offsets("gamma") == {5: 1}
    assert {row["note"] for row in harness.rows("lake/alpha")} == {None, "n"}
    settled = [row["offset"] for row in harness.outcomes() if row["outcome"] == "replayed"]
    assert sorted(settled) == [1, 2, 3, 4, 5]
    assert len(harness.dead()) == 7
    for table in ("alpha", "beta", "gamma", "_headrace/shop/replays"):
        marks = harness.marks(table)
        assert marks == sorted(set(marks))
        assert marks


@pytest.mark.parametrize("point", POINTS)
def test_a_replay_that_dies_is_finished_by_the_next(harness: Harness, point: Point) -> None:
    harness.die(point)
    harness.options["spark"] = {"cores": 1}  # another spec, another digest
    if point is not Point.AFTER_LEDGER_WRITE:
        harness.die(AGAIN[point])
    summary = harness.replay()
    assert summary.recovered == (point is not Point.AFTER_LEDGER_WRITE and AGAIN[point] in LATE)
    check(harness)
    assert harness.replay(Selection(reasons=("too_big",))).counts.routed == 0
    check(harness)


@pytest.mark.parametrize("point", sorted(LATE - {Point.AFTER_LEDGER_WRITE}))
def test_a_pipeline_that_runs_in_between_changes_nothing(harness: Harness, point: Point) -> None:
    harness.die(point, replay=1)
    harness.feed([{"id": 8, "kind": "alpha", "other": True}, {"id": 9, "kind": "gamma", "note": "m"}])
    assert harness.replay().recovered == 1
    assert harness.offsets("alpha") == {0: 1, 1: 1, 3: 1, 8: 1}
    assert harness.offsets("gamma") == {5: 1, 9: 1}


@pytest.mark.parametrize("point", sorted(LATE - {Point.AFTER_LEDGER_WRITE}))
def test_an_open_plan_is_finished_with_its_own_spec(harness: Harness, point: Point) -> None:
    """Whoever finishes it has a spec under which some of the letters would go nowhere."""
    harness.die(point, replay=1)
    harness.options["route"] = {"by": {"field": "kind"}, "exclude": "beta", "unrouted": "skip"}
    harness.replay()
    check(harness)


@pytest.mark.parametrize("point", sorted(LATE - {Point.AFTER_LEDGER_WRITE}))
def test_staged_files_that_are_gone_are_staged_again(harness: Harness, point: Point) -> None:
    """As a vacuum takes them that does not wait."""
    harness.die(point, replay=1)
    named = "".join(log.read_text() for log in harness.folder.rglob("_delta_log/*.json"))
    for file in harness.folder.rglob("part-replay-*.parquet"):
        if file.name not in named:
            file.unlink()
    harness.feed([{"id": 8, "kind": "beta", "note": "later"}])
    harness.options["limits"] = {"record_bytes": 20}
    harness.feed([{"id": 9, "kind": "gamma", "note": "a letter that no open plan may take"}])
    del harness.options["limits"]
    assert harness.replay(Selection(reasons=("tombstone",))).recovered == 1
    assert harness.offsets("beta") == {2: 1, 4: 1, 8: 1}
    assert harness.offsets("gamma") == {5: 1}
    assert harness.replay().counts.routed == 1
    assert harness.offsets("gamma") == {5: 1, 9: 1}


def test_a_lost_reply_is_asked_for_again(harness: Harness) -> None:
    with armed(Point.AFTER_COMMIT, "lost-reply", nth=2):
        assert harness.replay().batches == 1
    check(harness)


def test_a_store_that_fails_after_the_decision_makes_no_second_plan(harness: Harness) -> None:
    def fail() -> None:
        raise StorageUnreachable("for a moment")

    with armed(Point.BEFORE_LEDGER_WRITE, fail):
        assert harness.replay().recovered == 1
    check(harness)
    assert Replays.open(Store(harness.spec.state_uri), "shop:replay").batch == 1


@pytest.mark.parametrize(
    "point",
    [
        Point.AFTER_FIRST_TABLE,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (Point.AFTER_STAGING, Point.BEFORE_LEDGER_WRITE)),
    ],
)
def test_kill_9_during_a_replay(harness: Harness, point: Point) -> None:
    """The command line in a process of its own; no JVM is ever started by it."""
    killed_and_finished(harness, point)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [Point.AFTER_STAGING, Point.AFTER_COMMIT, Point.AFTER_FIRST_TABLE, Point.BEFORE_LEDGER_WRITE]
)
def test_kill_9_during_a_replay_on_s3(s3: S3, bucket: str, tmp_path: Path, point: Point) -> None:
    killed_and_finished(eventful(Harness(tmp_path, s3=s3, bucket=bucket)), point)


def killed_and_finished(harness: Harness, point: Point) -> None:
    command = ["dead-letters", "replay", harness.write_spec(), "--json"]
    killed = run_cli(command, {"HEADRACE_FAULT": f"{point}=kill"}, within=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_cli(command, {"HEADRACE_JAVA": "/nowhere"}, within=60)
    assert done.returncode == 0, done.stderr
    check(harness)
