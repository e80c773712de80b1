"""What is deleted for good rests on times in the log: a clock that was wrong once takes nothing away."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.delta.log import proved_time
from headrace.errors import ClockSkew
from headrace.ledger.ledger import Ledger
from headrace.storage.store import Store
from headrace.table import Table
from headrace.write.tombstones import Tombstones
from services.clocks import DAY, YEAR, clock
from services.in_process_pipeline import Harness
from services.maintenance import Clock, Keeping

# ---- dead letters ----


def rejecting(folder: Path, **more: Any) -> Harness:
    harness = Harness(folder, {"dead_letters": {"retention": "30d"}, **more})
    with clock(-2 * DAY):
        harness.feed([b"{"])
    return harness


def test_one_start_with_a_clock_a_year_ahead_deletes_no_dead_letter(tmp_path: Path) -> None:
    harness = rejecting(tmp_path)
    with clock(YEAR):
        harness.feed([b"["])
        harness.feed([b"]"])  # the ledger has a commit of that year now
        with clock(YEAR + timedelta(hours=20)):
            harness.feed([{"id": 1, "kind": "alpha"}])
    assert len(harness.dead()) == 3
    harness.feed([{"id": 2, "kind": "alpha"}])
    assert len(harness.dead()) == 3


def test_dead_letters_go_once_the_ledger_proves_that_their_time_is_over(tmp_path: Path) -> None:
    harness = rejecting(tmp_path)
    with clock(31 * DAY):
        harness.feed([{"id": 1, "kind": "alpha"}])
    assert len(harness.dead()) == 1
    with clock(32 * DAY + timedelta(minutes=1)):
        harness.feed([{"id": 2, "kind": "alpha"}])
    assert harness.dead() == []


# ---- tombstones ----


def merging(folder: Path) -> Harness:
    rules = {"mode": "upsert", "merge": {"keys": ["id"], "sequence_by": "seq", "delete_when": "gone"}}
    columns = [{"name": "id", "type": "bigint"}, {"name": "seq", "type": "bigint"}, {"name": "gone", "type": "boolean"}]
    table = {"path": f"{folder}/lake/t", "columns": columns, **rules}
    harness = Harness(folder, {"route": {"by": "fixed"}, "table": table})
    with clock(-2 * DAY):
        harness.feed([{"id": 1, "seq": 1, "gone": False}])
    return harness


DELETED, LATE = {"id": 1, "seq": 9, "gone": True}, {"id": 1, "seq": 5, "gone": False}


@pytest.mark.parametrize("ahead", [YEAR, -YEAR], ids=["ahead", "behind"])
def test_one_start_with_a_wrong_clock_forgets_no_delete(tmp_path: Path, ahead: timedelta) -> None:
    """Neither those that were remembered before, nor those of that very run."""
    harness = merging(tmp_path)
    if ahead > timedelta(0):
        harness.feed([DELETED])
    with clock(ahead):
        harness.feed([LATE if ahead > timedelta(0) else DELETED])
    harness.feed([LATE])
    with clock(2 * DAY):
        harness.feed([LATE])
    assert harness.rows("lake/t") == []


def test_a_delete_is_forgotten_once_the_ledger_proves_that_its_time_is_over(tmp_path: Path) -> None:
    harness = merging(tmp_path)
    harness.feed([DELETED])
    for days in (9, 11):
        with clock(days * DAY):
            harness.feed([{"id": 2, "seq": days, "gone": False}])
    (folder,) = (tmp_path / "lake/_headrace/shop/tombstones").iterdir()
    assert Tombstones(Store(str(folder)), "shop").files(datetime.now(UTC)) == []
    with clock(11 * DAY):
        harness.feed([LATE])
    assert sorted(row["id"] for row in harness.rows("lake/t")) == [1, 2]


# ---- files of tables and logs ----


def rewritten(folder: Path) -> Table:
    """Four files that a compaction three days ago has replaced; the newest commit is of today."""
    table = Table.get_or_create(folder / "t", {"id": "bigint"})
    with clock(-3 * DAY):
        for number in range(4):
            table.bulk_insert([{"id": number}])
        table.optimize()
    for path in Path(table.path).glob("*.parquet"):
        os.utime(path, (1, 1))
    table.bulk_insert([{"id": 4}])
    return table


def test_a_clock_far_ahead_lets_no_vacuum_take_files_within_the_retention(tmp_path: Path) -> None:
    table = rewritten(tmp_path)
    with clock(YEAR):
        assert table.vacuum().files == ()
        table.bulk_insert([{"id": 5}])
        assert table.vacuum().files == ()
    with clock(9 * DAY), pytest.raises(ClockSkew, match="Set the clock"):
        table.vacuum(dry_run=True)
    with clock(9 * DAY):
        assert len(table.vacuum(force=True, dry_run=True).files) == 4


def test_a_vacuum_takes_files_once_the_log_proves_their_age(tmp_path: Path) -> None:
    table = rewritten(tmp_path)
    with clock(6 * DAY):
        assert table.vacuum().files == ()
        table.bulk_insert([{"id": 5}])
    with clock(8 * DAY):
        assert len(table.vacuum().files) == 4
    with clock(8 * DAY):
        assert table.query().count() == 6


def test_a_table_at_rest_is_vacuumed_by_the_time_of_the_ledger_that_goes_on(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.feed([{"id": 1, "kind": "alpha"}])
    table = Table(str(tmp_path / "lake/alpha"))
    left = tmp_path / "lake/alpha/part-left.parquet"
    left.write_bytes(b"PAR1")
    with clock(8 * DAY):
        assert table.vacuum().files == ()
        harness.feed([{"id": 2, "kind": "beta"}])
    with clock(10 * DAY):
        assert table.vacuum().files == (left.name,)


def test_a_refused_vacuum_succeeds_as_its_message_says(tmp_path: Path) -> None:
    table = rewritten(tmp_path)
    with clock(-DAY), pytest.raises(ClockSkew, match="use `force`"):
        table.vacuum()
    with clock(-DAY):
        assert table.vacuum(force=True).files == ()
    assert table.query().count() == 5


def test_a_clock_far_ahead_lets_no_maintenance_take_files_or_log(tmp_path: Path) -> None:
    kept = {"delta.deletedFileRetentionDuration": "interval 1 hour", "delta.checkpointInterval": "5"}
    rules = {"maintenance": {"every": "1s", "min_input_files": 4, "retention": "1h", "vacuum_every": "30m"}}
    run = Keeping(tmp_path, Clock(), table={"properties": kept}, **rules)
    with run.open():
        for _ in range(12):
            run.batch()
        run.pipeline.maintain(at_end=True)
    run.settle()
    before = run.on_disk(), len(list((run.place / "_delta_log").glob("*.json")))
    run.clock.now += YEAR.total_seconds()
    with run.open():
        run.pipeline.maintain(at_end=True)
        run.batch()
        run.settle()
        run.pipeline.maintain(at_end=True)
    assert not {each["operation"] for each in run.done()} & {"vacuum", "clean_log"}
    assert run.on_disk() >= before[0]
    run.clock.now -= YEAR.total_seconds() - 4000
    with run.open():
        run.batch()
        run.clock.now += 4000
        run.pipeline.maintain(at_end=True)
    assert "vacuum" in {each["operation"] for each in run.done()}, (
        "a vacuum that was noted a year ahead holds back none"
    )


# ---- the rule itself ----


def _log(folder: Path, times: list[int], first: int = 0) -> Store:
    (folder / "_delta_log").mkdir(parents=True)
    for version, time in enumerate(times, first):
        text = json.dumps({"commitInfo": {"timestamp": time * 60_000}})
        (folder / "_delta_log" / f"{version:020}.json").write_text(text)
    return Store(str(folder))


MINUTES = 24 * 60


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 900), min_size=1, max_size=60),
    st.integers(0, 40),
    st.integers(2 * MINUTES, 2_000_000),
    st.integers(1, 30),
)
def test_no_run_of_less_than_a_day_moves_the_time_past_the_commits_before_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], first: int, jump: int, commits: int
) -> None:
    """Whatever its clock says, and however many commits it makes."""
    times = [sum(steps[: at + 1]) + 10 * MINUTES for at in range(len(steps))]
    wrong = [times[-1] + jump + at for at in range(commits)]
    store = _log(tmp_path_factory.mktemp("log"), [*times, *wrong], first)
    now = datetime.fromtimestamp((wrong[-1] + 1) * 60, UTC)
    assert proved_time(store, now, 30 * DAY) == datetime.fromtimestamp(times[-1] * 60, UTC)
    later = datetime.fromtimestamp((wrong[-1] + MINUTES) * 60, UTC)
    assert proved_time(store, later, 30 * DAY) == datetime.fromtimestamp(wrong[-1] * 60, UTC)


def test_a_log_that_tells_no_time_proves_none(tmp_path: Path) -> None:
    epoch = datetime.fromtimestamp(0, UTC)
    assert proved_time(Store(str(tmp_path)), datetime.now(UTC), DAY) == epoch
    store = Store(str(tmp_path / "state"))
    assert Ledger.open(store, "shop").proved_time(datetime.now(UTC)) == epoch
