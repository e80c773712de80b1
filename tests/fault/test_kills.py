"""Real deaths: kill -9 of the whole tree, of the JVM alone, of Python alone; and an end in good order on SIGTERM."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

from headrace.dev.kafka import Broker
from headrace.faults import Point
from services.pipelines import Shop, eventful, start_cli
from services.s3 import S3
from services.stores import BUILT, new_folder
from services.wait import eventually


@pytest.fixture
def shop(spark: Any, kafka: Broker, topic: str, tmp_path: Path) -> Shop:
    """A shop on local disk; whoever finishes what died shares this process's Spark."""
    return Shop(kafka.bootstrap, topic, str(tmp_path / "lake"), tmp_path)


def drain(shop: Shop, fault: str = "") -> Any:
    """`headrace run --until latest` with a fault armed."""
    return start_cli(["run", shop.write_spec(), "--until", "latest"], _env(shop, fault))


def _env(shop: Shop, fault: str) -> dict[str, str]:
    return {"HEADRACE_FAULT": fault, "XDG_STATE_HOME": str(shop.scratch / "state")}


def finish(shop: Shop) -> None:
    """More records, a run by somebody else, the audit."""
    shop.send(20, kinds=("beta", "delta"))
    shop.run()
    assert shop.audit().records == shop.sent


def killed_at(shop: Shop, point: Point) -> None:
    """Kill -9 of the whole tree there; nothing of it is left."""
    with drain(eventful(shop), f"{point}:batch=2=kill") as running:
        jvm = running.java()
        assert running.wait() == -signal.SIGKILL, running.said()
        eventually(lambda: not jvm.is_running(), 10, "the JVM is gone")
    finish(shop)


def test_kill_when_one_table_of_several_has_the_batch(shop: Shop) -> None:
    killed_at(shop, Point.AFTER_FIRST_TABLE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [Point.AFTER_STAGING, Point.AFTER_COMMIT, Point.BEFORE_DEAD_LETTERS, Point.BEFORE_LEDGER_WRITE]
)
def test_kill_at_the_other_points(shop: Shop, point: Point) -> None:
    killed_at(shop, point)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["s3", *BUILT])
@pytest.mark.parametrize(
    "point", [Point.AFTER_STAGING, Point.AFTER_COMMIT, Point.AFTER_FIRST_TABLE, Point.BEFORE_LEDGER_WRITE]
)
def test_kill_with_the_lake_on_an_object_store(
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
    killed_at(Shop(kafka.bootstrap, topic, folder.uri, tmp_path, options=options), point)


def test_without_its_jvm_python_ends_by_itself(shop: Shop) -> None:
    with drain(eventful(shop), f"{Point.BEFORE_STAGING}:batch=2=kill-jvm") as running:
        jvm = running.java()
        eventually(lambda: not _lives(jvm), 120, running.said)
        died = time.monotonic()
        code = running.wait(10)
        assert code not in (0, -signal.SIGKILL)
        assert time.monotonic() - died < 10
        assert [event["error"] for event in running.of("error")] == ["SparkExited"]
    finish(shop)


@pytest.mark.slow
@pytest.mark.parametrize("point", [Point.AFTER_STAGING, Point.BEFORE_LEDGER_WRITE])
def test_a_staged_batch_needs_no_jvm(shop: Shop, point: Point) -> None:
    """The driver commits the last batch of a drain, and ends as usual."""
    with drain(eventful(shop), f"{point}:batch=2=kill-jvm") as running:
        jvm = running.java()
        eventually(lambda: not _lives(jvm), 120, running.said)
        assert running.wait(10) == 0
        assert running.of("error") == []
    finish(shop)


def test_without_python_nothing_stays(shop: Shop) -> None:
    """Stopped in the middle of a batch, then killed: JVM and workers are gone within 10 s."""
    with drain(eventful(shop), f"{Point.AFTER_STAGING}:batch=2=stop-self") as running:
        driver = psutil.Process(running.child.pid)
        eventually(lambda: driver.status() == psutil.STATUS_STOPPED, 120, running.said)
        tree = running.tree()
        assert [each for each in tree if each.name() == "java"]
        driver.kill()
        _, alive = psutil.wait_procs(tree, timeout=10)
        assert not [each for each in alive if _lives(each)]
    finish(shop)


def test_sigterm_in_the_middle_of_a_batch_loses_no_tail(shop: Shop) -> None:
    """The batch under way is finished and recorded; the exit is 0, in 30 s at most, and leaves nothing behind.

    A process that continues after SIGSTOP may handle SIGTERM one tick later. A third batch may start until then, if the
    second one started before all records had arrived.
    """
    shop.send(40)
    with start_cli(["run", shop.write_spec()], _env(shop, f"{Point.AFTER_STAGING}:batch=2=stop-self")) as running:
        running.until_read(40)
        shop.send(40, kinds=("alpha", "gamma"))
        driver = psutil.Process(running.child.pid)
        eventually(lambda: driver.status() == psutil.STATUS_STOPPED, 120, running.said)
        tree = running.tree()
        for number in (signal.SIGTERM, signal.SIGCONT):
            running.child.send_signal(number)
        assert running.wait(30) == 0, running.said()
        assert not [each for each in tree if _lives(each)]
        assert [each["batch"] for each in running.of("batch")] in ([1, 2], [1, 2, 3])
    assert shop.audit(drained=False).records > 40
    finish(shop)


@pytest.mark.slow
def test_kill_while_a_table_is_made_and_while_its_types_widen(shop: Shop, spark: Any) -> None:
    """Spark makes such a table, widens it and appends, each a commit of its own: a death between any two is mended."""
    wide = {"features": ["typeWidening"], "contract": {"wrong_type": "widen"}}
    table = {"path": f"{shop.lake}/wide", "columns": [{"name": "id", "type": "int"}], **wide}
    shop.options |= {"table": table, "route": {"by": "fixed"}, "transform": [], "limits": {"batch_rows": 20}}
    ids = [*range(20), *range(2**40, 2**40 + 20), 1.5]
    shop.send_values(json.dumps({"id": each}).encode() for each in ids)
    for fault in ("after_table_creation:batch=1=kill", "after_schema_change:batch=2=kill", "after_commit:batch=2=kill"):
        with drain(shop, fault) as running:
            assert running.wait() == -signal.SIGKILL, running.said()
    shop.run()
    found = spark.read.format("delta").load(f"{shop.lake}/wide").collect()
    assert sorted(float(row.id) for row in found) == sorted(map(float, ids))


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


MERGED = {"infer": {"records": 1}, "mode": "upsert", "merge": {"keys": ["id"], "sequence_by": "at"}}


def merges(shop: Shop) -> Shop:
    """Two batches that change the same keys, the second one backwards."""
    table = {**MERGED, "path": f"{shop.lake}/orders"}
    limits = {"limits": {"batch_rows": 12}, "flush": {"rows": 12, "every": "200ms"}}
    shop.options |= {"table": table, "route": {"by": "fixed"}, "transform": [], **limits}
    shop.send_values(json.dumps({"id": at % 6, "at": at, "v": f"v{at}"}).encode() for at in range(12))
    shop.send_values(json.dumps({"id": at % 9, "at": at, "v": f"v{at}"}).encode() for at in reversed(range(18)))
    return shop


def merged(shop: Shop, *points: Point) -> None:
    """Each death leaves the batch to the next one; in the end each key has its newest row, and one of them."""
    for point in points:
        with drain(shop, f"{point}:batch=2=kill") as running:
            assert running.wait() == -signal.SIGKILL, running.said()
    with drain(shop) as running:
        assert running.wait() == 0, running.said()
    found = DeltaTable(str(shop.place / "orders")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["v"]) for row in found) == [(at, f"v{at + 9}") for at in range(9)]


def test_kill_while_a_table_is_merged(shop: Shop) -> None:
    merged(merges(shop), Point.AFTER_COMMIT)


@pytest.mark.slow
def test_kill_while_a_table_is_merged_on_s3(spark: Any, kafka: Broker, topic: str, tmp_path: Path, s3: S3) -> None:
    shop = Shop(kafka.bootstrap, topic, f"s3://{s3.bucket()}/lake", tmp_path, s3)
    merged(merges(shop), Point.AFTER_STAGING, Point.AFTER_COMMIT, Point.BEFORE_LEDGER_WRITE)


# ---- the other modes on S3 ----


@pytest.fixture
def far(spark: Any, kafka: Broker, new_topic: Any, tmp_path: Path, s3: S3) -> Shop:
    """A topic of one partition, and a lake on S3; twelve records a batch."""
    shop = Shop(kafka.bootstrap, new_topic(), f"s3://{s3.bucket()}/lake", tmp_path, s3)
    limits = {"limits": {"batch_rows": 12}, "flush": {"rows": 12, "every": "200ms"}}
    shop.options |= {"route": {"by": "fixed"}, "transform": [], **limits}
    return shop


def rows_after_a_kill(shop: Shop, batch: int, **table: Any) -> list[dict[str, Any]]:
    """Killed right after a commit of that batch, and finished by another: what a reader of the disk finds."""
    shop.options["table"] = {"path": f"{shop.lake}/orders", "infer": {"records": 1}, **table}
    with drain(shop, f"{Point.AFTER_COMMIT}:batch={batch}=kill") as running:
        assert running.wait(240) == -signal.SIGKILL, running.said()
    with drain(shop) as running:
        assert running.wait(240) == 0, running.said()
    found: list[dict[str, Any]] = DeltaTable(str(shop.place / "orders")).to_pyarrow_table().to_pylist()
    return found


def said(*numbers: int) -> list[bytes]:
    return [json.dumps({"id": at % 4, "at": at}).encode() for at in numbers]


@pytest.mark.slow
def test_kill_while_a_history_is_written_on_s3(far: Shop) -> None:
    far.send_values(said(*range(0, 24, 2)))
    far.send_values(said(*range(23, 0, -2)))
    found = rows_after_a_kill(far, 2, mode="scd2", merge={"keys": ["id"], "sequence_by": "at"})
    told = sorted((row["id"], row["valid_from"], row["valid_to"]) for row in found)
    assert told == sorted((at % 4, at, at + 4 if at < 20 else None) for at in range(24))


@pytest.mark.slow
def test_kill_while_duplicates_are_left_out_on_s3(far: Shop) -> None:
    far.send_values(said(*range(12)))
    far.send_values(said(*range(6, 18)))
    found = rows_after_a_kill(far, 2, deduplicate={"keys": ["at"], "within": "1d"})
    assert sorted(row["at"] for row in found) == list(range(18))


@pytest.mark.slow
def test_kill_while_a_full_refresh_replaces_another_on_s3(far: Shop) -> None:
    far.send_values(said(*range(12)))
    assert len(rows_after_a_kill(far, 2, mode="overwrite")) == 12
    far.send_values([*said(*range(12, 20)), b"{"])
    assert sorted(row["at"] for row in rows_after_a_kill(far, 4, mode="overwrite")) == list(range(20))
    letters = DeltaTable(str(far.place / "_headrace/shop/dead_letters")).to_pyarrow_table()
    assert letters["offset"].to_pylist() == [20]


@pytest.mark.slow
def test_kill_while_lost_rows_are_restored_on_s3(far: Shop) -> None:
    far.options["table"] = {"path": f"{far.lake}/orders", "infer": {"records": 1}}
    far.send_values([*said(*range(23)), b"{"])
    far.run()
    for file in (far.place / "orders").glob("part-00000002-*.parquet"):
        file.unlink()
    command = ["table", "repair", f"{far.lake}/orders", "--reingest", "--spec", far.write_spec(), "--yes"]
    for fault, code in ((f"{Point.AFTER_STAGING}=kill", -9), (f"{Point.AFTER_COMMIT}=kill", -9), ("", 0)):
        with start_cli(command, _env(far, fault)) as running:
            assert running.wait(240) == code, running.said()
    assert running.of("summary")[-1]["reingest"]["unrecoverable"] == []
    found = DeltaTable(str(far.place / "orders")).to_pyarrow_table().to_pylist()
    assert sorted(row["_source"]["offset"] for row in found) == list(range(23))
    letters = DeltaTable(str(far.place / "_headrace/shop/dead_letters")).to_pyarrow_table()
    assert letters["offset"].to_pylist() == [23]
