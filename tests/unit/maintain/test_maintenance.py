"""Maintenance between batches: planned before it is done, never in a batch's way, and harmless wherever it dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace import Table
from headrace.cli.output import sentence
from headrace.cli.status import _maintenance
from headrace.delta import snapshot
from headrace.delta.actions import DeletionVector, File
from headrace.delta.log import last_checkpoint
from headrace.delta.log_writer import LogWriter
from headrace.faults import Abandoned
from headrace.maintain.journal import Journal
from headrace.maintain.maintained_table import FileListing
from headrace.maintain.planner import FileTargets, plan_rewrites
from headrace.spec.maintenance import MaintenanceSpec
from headrace.storage.store import Store
from headrace.table.optimize import z_order_prefix
from headrace.validate.load import examine_text
from services.maintenance import LOG, Keeping

MB = 1_000_000
RULES = MaintenanceSpec(min_input_files=10, idle_after=timedelta(hours=1), max_bytes_per_run=256 * MB)
PLAIN = FileTargets(128 * MB, 96 * MB)


def file(name: str, size: int, day: str = "a", at: float = 0.0) -> File:
    return File(name, name, {"day": day}, size, 1, modified=int(at * 1000))


def by_day(each: File) -> str:
    return str(each.partition.get("day"))


def planned(
    stands: list[File], now: float = 0.0, targets: FileTargets = PLAIN, rules: MaintenanceSpec = RULES
) -> list[Any]:
    mark = f"part-{z_order_prefix(targets.z_order)}-"
    return plan_rewrites("t", stands, targets, rules, now, lambda each: each.path.startswith(mark), by_day)


# ---- the plan ----


def test_nothing_is_due_before_the_debt_is_full():
    stands = [file(f"{n}", 10_000) for n in range(9)]
    assert planned(stands) == []
    (action,) = planned([*stands, file("9", 10_000)])
    assert (action.operation, action.files, action.bytes) == ("compact", 10, 100_000)
    assert action.reason == "small files: 10 files in 1 partition"


def test_files_of_another_size_are_left_until_there_are_enough_of_theirs():
    large = [file(f"l{n}", 20 * MB) for n in range(3)]
    (action,) = planned([*large, *(file(f"{n}", 10_000) for n in range(10))])
    assert {each.size for each in action.bins[0]} == {10_000}


def test_an_idle_partition_is_compacted_whole_and_comes_first():
    hot = [file(f"h{n}", 10_000, "hot", at=3600) for n in range(10)]
    idle = [file("c1", 10_000, "idle"), file("c2", 30 * MB, "idle")]
    (action,) = planned([*hot, *idle], now=3600)
    assert [each[0].partition["day"] for each in action.bins] == ["idle", "hot"]
    assert action.reason == "idle, small files: 12 files in 2 partitions"
    assert planned([file("c", 10_000)], now=3600) == []


def test_an_action_stays_within_its_bytes():
    idle = [file(f"{n}", 60 * MB, str(n // 2)) for n in range(20)]
    actions = planned(idle, now=3600)
    assert [each.bytes for each in actions] == [240 * MB] * 5


def test_a_long_life_rewrites_each_row_a_few_times_and_keeps_files_few():
    """20,000 appends of 20 kB: 400 MB."""
    stands: list[File] = []
    rewritten = most = 0
    for number in range(20_000):
        stands.append(file(f"{number}", 20_000, at=number))
        for action in planned(stands, now=number):
            rewritten += action.bytes
            gone = {each.path for files in action.bins for each in files}
            stands = [each for each in stands if each.path not in gone]
            stands += [
                file(f"{number}.{at}", sum(one.size for one in each), at=number) for at, each in enumerate(action.bins)
            ]
        most = max(most, len(stands))
    assert most < 50
    assert rewritten < 5 * 400 * MB


def test_order_is_made_once_a_partition_is_idle_and_again_when_a_third_of_it_is_new():
    targets = replace(PLAIN, z_order=("id",))
    name = f"part-{z_order_prefix(['id'])}"
    (action,) = planned([file("part-1", 200 * MB)], now=3600, targets=targets)
    assert (action.operation, action.reason) == ("z_order", "idle and unordered: 1 files in 1 partition")
    ordered = [file(f"{name}-{n}", 120 * MB) for n in range(3)]
    assert planned(ordered, now=3600, targets=targets) == []
    assert planned([*ordered, file("part-2", 130 * MB)], targets=targets) == []
    assert planned([*ordered, file("part-2", 190 * MB)], targets=targets)[0].reason.startswith("a third")
    assert planned([file(f"part-{z_order_prefix(['day'])}-1", 130 * MB)], targets=targets)[0].operation == "z_order"


def test_files_that_vectors_have_emptied_are_rewritten_where_spark_can(tmp_path: Path):
    def emptied(name: str, rows: int) -> File:
        return File(name, name, {}, 200 * MB, 100, DeletionVector("u", name, 1, rows))

    stands = [emptied("a", 19), emptied("b", 20), emptied("c", 90), file("d", 10_000)]
    assert not any(map(PLAIN.is_candidate, stands[:3]))
    targets = replace(PLAIN, max_deleted=0.2)
    assert [targets.is_candidate(each) for each in stands] == [False, True, True, True]
    (action,) = planned([each for each in stands if targets.is_candidate(each)][:2], targets=targets)
    assert (action.operation, action.reason) == ("compact", "deleted rows: 2 files in 1 partition")


def test_what_only_whole_partitions_can_be_put_in_order_is_planned_so():
    targets = replace(PLAIN, whole_partitions=True, clusters=True)
    stands = [file(f"{n}", 200 * MB) for n in range(4)]
    (action,) = plan_rewrites("t", stands, targets, RULES, 3600, _clustered, by_day)
    assert (action.operation, len(action.bins)) == ("cluster", 1)
    assert (
        plan_rewrites("t", [replace(each, clustered=True) for each in stands], targets, RULES, 3600, _clustered, by_day)
        == []
    )


def _clustered(each: File) -> bool:
    return each.clustered


# ---- a running pipeline ----


def maintain(**rules: Any) -> dict[str, Any]:
    return {"maintenance": {"every": "1s", "min_input_files": 5, **rules}}


def test_maintenance_is_reported_before_and_after_and_stays_in_status_and_history(tmp_path: Path):
    with Keeping(tmp_path, **maintain()).open() as run:
        for _ in range(5):
            run.batch()
            run.pipeline.maintain()
        told = [each for each in run.events if each["event"] == "maintenance" and each["table"] == str(run.place)]
    assert [(each["state"], each["operation"], each["files"]) for each in told] == [
        ("started", "compact", 5),
        ("done", "compact", 5),
    ]
    assert told[0]["bytes"] > told[1]["bytes_added"] > 0
    assert run.ids() == [0, 1, 2, 3, 4]
    assert run.files() == 1
    newest = Table(run.place).history(1)[0]
    assert (newest.operation, newest.headrace["by"]) == ("OPTIMIZE", "shop")
    assert newest.headrace["reason"] == "small files: 5 files in 1 partition"
    found = Journal(run.pipeline.state)
    assert found.running is None
    assert {each["table"] for each in found.done} >= {str(run.place)}


def test_the_ledger_is_looked_after_as_well(tmp_path: Path):
    with Keeping(tmp_path, **maintain()).open() as run:
        for _ in range(12):
            run.batch()
            run.pipeline.maintain(at_end=True)
        assert len(DeltaTable(f"{run.pipeline.state.uri}/ledger").file_uris()) < 6
        assert [row["batch"] for row in run.pipeline.ledger.rows(12)] == list(range(1, 13))
    with run.open():
        assert run.pipeline.ledger.batch == 12
        run.batch()
    assert run.ids() == list(range(13))


def test_nothing_is_done_while_the_pipeline_is_behind_or_is_to_stop(tmp_path: Path):
    with Keeping(tmp_path, **maintain(max_lag="30s")).open() as run:
        for _ in range(6):
            run.batch()
        run.pipeline.lag_seconds = 31.0
        run.pipeline.maintain()
        assert run.done() == []
        run.pipeline.lag_seconds = 29.0
        run.pipeline.stop.set()
        run.pipeline.maintain()
        assert run.done() == []
        run.pipeline.stop.clear()
        run.pipeline.maintain()
        assert len(run.done()) == 1


def test_idle_partitions_are_compacted_and_the_one_in_use_is_left(tmp_path: Path):
    with Keeping(tmp_path, table={"partition_by": ["day"]}, **maintain(idle_after="1h")).open() as run:
        for _ in range(3):
            run.batch("mon", "tue")
        run.clock.now += 4000
        run.batch("wed")
        run.batch("wed")
        run.pipeline.maintain(at_end=True)
        (action,) = [each for each in run.done("compact") if each["table"] == str(run.place)]
        assert action["reason"] == "idle: 6 files in 2 partitions"
        assert run.files() == 4
        assert run.ids() == list(range(8))


def test_a_table_is_ordered_as_the_spec_says(tmp_path: Path):
    with Keeping(
        tmp_path, table={"partition_by": ["day"], "z_order": ["id"]}, **maintain(idle_after="1h")
    ).open() as run:
        for _ in range(2):
            run.batch("mon")
        run.clock.now += 4000
        run.pipeline.maintain(at_end=True)
        assert [each["operation"] for each in run.done() if each["table"] == str(run.place)] == ["z_order"]
        (path,) = DeltaTable(run.place).file_uris()
        assert f"part-{z_order_prefix(['id'])}-" in path
        run.clock.now += 10
        run.pipeline.maintain(at_end=True)
        assert len([each for each in run.done() if each["table"] == str(run.place)]) == 1


def test_old_files_and_old_log_entries_go_and_the_vacuum_is_in_the_history(tmp_path: Path):
    """An hour is retained: what a version within it needs is there, what is older is gone, and no more."""
    kept = {"delta.deletedFileRetentionDuration": "interval 1 hour", "delta.checkpointInterval": "5"}
    with Keeping(tmp_path, table={"properties": kept}, **maintain(retention="1h", vacuum_every="30m")).open() as run:
        for _ in range(10):
            run.batch()
        run.settle()
        run.pipeline.maintain(at_end=True)
        assert run.on_disk() == 11
        run.clock.now += 4000
        for _ in range(5):
            run.batch()
        run.settle()
        run.clock.now += 600  # until then the commits after the hour are no proof that it is over
        run.pipeline.maintain(at_end=True)
        assert (run.files(), run.on_disk()) == (1, 7)  # six files were joined within the hour
        assert Table(run.place).history()[-1].version >= 5
        assert [each["files"] for each in run.done("vacuum") if each["table"] == str(run.place)] == [10]
        assert "VACUUM END" in [each.operation for each in Table(run.place).history()]
        run.batch()
        assert run.ids() == list(range(16))
    with run.open():
        run.batch()
    assert run.ids() == list(range(17))


def test_runs_of_a_batch_each_get_a_log_checkpoint_in_the_end(tmp_path: Path):
    run = Keeping(tmp_path, table={"properties": {"delta.checkpointInterval": "5"}}, **maintain())
    for _ in range(11):
        with run.open():
            run.batch()
            run.pipeline.maintain(at_end=True)
    run.settle()
    assert last_checkpoint(Store(str(run.place))) >= 9


def test_maintenance_in_words():
    action = {"operation": "compact", "table": "t", "reason": "idle", "files": 1200, "bytes": 34_000, "at": "12:00"}
    event = {"event": "maintenance", "pipeline": "shop", **action}
    assert sentence({**event, "state": "done"}) == "shop: done: compact t: idle (1,200 files, 34,000 bytes)"
    assert sentence({**event, "state": "failed", "message": "CommitConflict: x"}).endswith("; CommitConflict: x")
    assert list(_maintenance({"done": [action], "running": action})) == [
        "12:00 compact t: idle (1,200 files, 34,000 bytes)",
        "12:00 running: compact t: idle (1,200 files, 34,000 bytes)",
    ]


# ---- deaths and others ----


@pytest.mark.parametrize("landed", [False, True])
def test_maintenance_that_dies_leaves_a_table_that_the_next_run_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
):
    """Before its commit, or after it and before anybody is told."""
    put = LogWriter._put

    def dies(tail: LogWriter, version: int, text: bytes) -> str | None:
        if landed:
            put(tail, version, text)
        raise Abandoned

    with Keeping(tmp_path, **maintain()).open() as run:
        for _ in range(5):
            run.batch()
        monkeypatch.setattr(LogWriter, "_put", dies)
        with pytest.raises(Abandoned):
            run.pipeline.maintain()
        monkeypatch.undo()
    begun = Journal(run.pipeline.state).running
    assert begun is not None
    assert begun["operation"] == "compact"
    with run.open():
        assert run.ids() == list(range(5))
        for _ in range(2):
            run.batch()
        run.pipeline.maintain(at_end=True)
        assert run.ids() == list(range(7))
        assert run.pipeline.ledger.batch == 7
        marks = DeltaTable(run.place).transaction_version("headrace:shop")
        assert marks == 7


@pytest.mark.parametrize("point", ["after_staging", "before_ledger_write"])
def test_a_batch_that_died_is_finished_after_a_compaction_by_hand(tmp_path: Path, point: str):
    from headrace.faults import armed

    with Keeping(tmp_path, **maintain()).open() as run:
        for _ in range(4):
            run.batch()
        with armed(point, "abandon"), pytest.raises(Abandoned):
            run.batch()
    Table(run.place).optimize()
    with run.open():
        run.pipeline.maintain(at_end=True)
        if point == "after_staging":  # nothing was decided: the record is read again
            run.harness.sent.pop()
            run.sent -= 1
            run.batch()
        run.pipeline.maintain(at_end=True)
    assert run.ids() == list(range(5))


def test_duplicates_are_known_after_a_compaction(tmp_path: Path):
    """What a table remembers of its keys is its rows, wherever they are now."""
    once = {"deduplicate": {"keys": ["id"], "within": "1d"}}
    with Keeping(tmp_path, table=once, **maintain()).open() as run:
        for _ in range(2):
            run.sent = 0
            for _ in range(5):
                run.batch()
            run.pipeline.maintain(at_end=True)
        assert run.ids() == list(range(5))
        assert run.files() == 1


def test_files_that_others_took_away_are_planned_again(tmp_path: Path):
    with Keeping(tmp_path, **maintain()).open() as run:
        for _ in range(5):
            run.batch()
        run.scheduler._context = run.pipeline.context
        run.scheduler._plan()
        Table(run.place).optimize()
        run.pipeline.maintain()
        (failed,) = [each for each in run.events if each.get("state") == "failed"]
        assert failed["message"].startswith("CommitConflict")
        for _ in range(5):
            run.batch()
        run.pipeline.maintain(at_end=True)
        assert run.ids() == list(range(10))
        assert run.files() == 1


def test_a_file_that_is_gone_is_reported_and_stops_nothing(tmp_path: Path):
    with Keeping(tmp_path, **maintain()).open() as run:
        for _ in range(5):
            run.batch()
        next(iter(run.place.glob("*.parquet"))).unlink()
        run.pipeline.maintain()
        (failed,) = [each for each in run.events if each.get("state") == "failed"]
        assert "TableDamaged" in failed["message"]
        run.batch()
    assert run.on_disk() == 5


def test_a_picture_that_follows_is_the_one_that_is_read(tmp_path: Path):
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint"})
    store = Store(table.path)
    followed = FileListing(store, lambda file: True)
    steps: list[Callable[[], object]] = [
        lambda: table.bulk_insert([{"id": 1}]),
        lambda: table.bulk_insert([{"id": 2}]),
        table.optimize,
        lambda: table.bulk_insert([{"id": 3}]),
        lambda: table.restore(version=2),
    ]
    for step in steps:
        step()
        followed.follow(table.metadata().version)
        assert {each.path for each in followed.files} == {
            each.path for each in snapshot.active_files(store, followed.version).values()
        }


# ---- a day ----


def one_second_commits(folder: Path, commits: int) -> None:
    """One-second commits, of which a minute is retained: so an hour is long, and a day is a year."""
    kept = {"delta.deletedFileRetentionDuration": "interval 1 minute", "delta.checkpointInterval": "20"}
    rules = maintain(every="10s", retention="1m", vacuum_every="1m", min_input_files=10)
    most = (0, 0, 0, 0)
    with Keeping(folder, table={"properties": kept}, **rules).open() as run:
        run.batch()
        for number in range(2, commits + 1):
            run.commit(number)
            run.pipeline.maintain()
            if number % 10 == 0:
                run.settle()  # a checkpoint that is being written is a file that goes away
            if number % 50 == 0:
                log = [each.stat().st_size for each in (run.place / LOG).glob("*.*")]
                most = tuple(map(max, most, (run.files(), run.on_disk(), len(log), sum(log))))  # type: ignore[assignment]
        assert run.ids() == list(range(commits))
        assert DeltaTable(run.place).transaction_version("headrace:shop") == commits
    assert most[0] < 40
    assert most[1] < 200
    assert most[2] < 150
    assert most[3] < 1_000_000


def test_minutes_of_one_second_commits_keeps_files_and_log_few(tmp_path: Path):
    one_second_commits(tmp_path, 800)


@pytest.mark.slow
def test_hours_of_one_second_commits_keep_files_and_log_few(tmp_path: Path):
    one_second_commits(tmp_path, 10_000)


# ---- what a spec may say ----


@pytest.mark.parametrize(
    ("more", "key", "severity"),
    [
        ("table: {path: t, z_order: [id]}", "table.z_order", "error"),
        ("maintenance: {}\ntable: {path: t, z_order: [id, id]}", "table.z_order[1]", "error"),
        ("maintenance: {}\ntable: {path: t, partition_by: [id], z_order: [id]}", "table.z_order[0]", "error"),
        ("maintenance: {every: 0s}\ntable: {path: t}", "maintenance.every", "error"),
    ],
)
def test_maintenance_that_cannot_be(tmp_path: Path, more: str, key: str, severity: str):
    _, found = examine_text(f"pipeline: web\nsource: {{generate: {{}}}}\n{more}\n", tmp_path, "web.yaml")
    assert [(each.key, each.severity) for each in found] == [(key, severity)]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("cluster_by: [id]", [("table.cluster_by", "warning")]),
        ("cluster_by: [id], mode: upsert, merge: {keys: [id]}", []),
        ("cluster_by: [id, id], mode: upsert, merge: {keys: [id]}", [("table.cluster_by[1]", "error")]),
        ("cluster_by: [a, b, c, d, e]", [("table.cluster_by", "error")]),
        ("cluster_by: [id], partition_by: [day]", [("table.cluster_by", "error"), ("table.cluster_by", "warning")]),
        ("cluster_by: [id], z_order: [day]", [("table.cluster_by", "error"), ("table.cluster_by", "warning")]),
        ("max_file_size: 255MB", [("table.max_file_size", "error")]),
        ("max_file_size: 256MB", []),
        ("max_file_size: 1GB, mode: upsert, merge: {keys: [id]}", [("table.max_file_size", "error")]),
        ("min_file_size: 129MB", [("table.min_file_size", "error")]),
    ],
)
def test_layouts_that_cannot_be(tmp_path: Path, table: str, found: list[tuple[str, str]]):
    text = f"pipeline: web\nsource: {{generate: {{}}}}\nmaintenance: {{}}\ntable: {{path: t, {table}}}\n"
    _, told = examine_text(text, tmp_path, "web.yaml")
    assert sorted((each.key, each.severity) for each in told) == found


def test_a_file_that_is_too_large_is_divided():
    targets = replace(PLAIN, max_size=300 * MB)
    stands = [file("a", 299 * MB), file("b", 301 * MB), file("c", 900 * MB)]
    assert [targets.is_candidate(each) for each in stands] == [False, True, True]
    actions = planned(stands[1:], targets=targets)
    assert [(each.operation, each.reason, each.files) for each in actions] == [
        ("compact", "large files: 1 files in 1 partition", 1)
    ] * 2
