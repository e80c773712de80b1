"""How `headrace run` begins and ends for the person before it: its first line, Ctrl-C at any moment, its last line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.run import exit_code
from headrace.dev.kafka import Broker
from headrace.pipeline import batch_loop, batch_size
from headrace.serve.runner import run_all
from headrace.spec import Spec
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from headrace.validate.load import load
from services.kafka import produce
from services.pipelines import environment, run_cli, spec_text
from services.terminal import terminal
from services.threads import ids, numbered, one_table
from services.wait import eventually

COLUMNS = "[{name: id, type: bigint}]"
HEAVY = "pydantic pyarrow deltalake confluent_kafka pyspark duckdb numpy obstore"
STOPPING = "Stopping after the current batch. Press Ctrl-C again to abort it."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A spec of made-up events."""
    path = tmp_path / "web.yaml"
    source = "{generate: {records: 40, partitions: 2}}"
    path.write_text(f"pipeline: web\nsource: {source}\ntable: {{path: ./lake/t, columns: {COLUMNS}}}\n")
    return path


@pytest.fixture
def spec(file: Path) -> Spec:
    return load(file)[0]


def test_nothing_that_takes_long_is_imported_before_the_first_line() -> None:
    code = f"import headrace.cli, sys; print(*set('{HEAVY}'.split()) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_process_runs_one_pipeline_after_the_other(file: Path) -> None:
    """Each run kills its JVM: nothing of it stays in PySpark, and nothing of it is printed."""
    second = file.with_name("second.yaml")
    second.write_text(file.read_text().replace("pipeline: web", "pipeline: second").replace("lake/t", "lake/second"))
    code = "import headrace, sys; print(*(headrace.run(path, until='latest').counts.read for path in sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(file), str(second)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["40", "40"], "")


def test_ctrl_c_while_spark_starts(file: Path) -> None:
    with terminal(["run", file]) as shown:
        shown.until("Starting Spark…")
        shown.java()
        asked = time.monotonic()
        shown.interrupt()
        assert shown.wait() == 0
        assert time.monotonic() - asked < 30
    first, *_, last = shown.lines()
    assert first == "Starting Spark…"
    assert STOPPING in shown.lines()
    assert re.fullmatch(r"web: 0 batches; read 0 = .*; [\d.]+ s", last)


def test_a_second_ctrl_c_abandons_the_batch_which_the_next_run_finishes(
    spark: Any, kafka: Broker, topic: str, lake: Path, tmp_path: Path
) -> None:
    produce(kafka.bootstrap, topic, numbered(0, 10))
    spec = one_table(kafka.bootstrap, topic, lake / "t")
    file = tmp_path / "shop.yaml"
    file.write_text(spec.text)
    with terminal(["run", file, "--until", "latest"], {"HEADRACE_FAULT": "before_ledger_write=hang"}) as shown:
        shown.until("running")  # in the live line
        commit = lake / "t" / "_delta_log" / f"{0:020}.json"
        eventually(commit.exists, 90, lambda: f"the batch commits; {shown.written}")
        shown.interrupt()
        shown.until(STOPPING)
        assert shown.child.poll() is None
        asked = time.monotonic()
        shown.interrupt()
        assert shown.wait() == 1
        assert time.monotonic() - asked < 10
    lines = shown.lines()
    assert "starting Spark…" in lines[0]
    assert re.fullmatch(
        r"shop: 0 batches; read 0 = .*; [\d.]+ s; not drained: records remain; the current batch was aborted "
        r"and will be completed by the next run",
        lines[-1],
    )
    assert not [line for line in lines if line.startswith("pipeline")], lines  # the live line's titles
    (outcome,) = run_all([spec], until="latest")
    assert (outcome.error, outcome.summary.recovered, outcome.summary.drained) == (None, 1, True)
    assert ids(lake / "t") == list(range(10))


def test_one_ctrl_c_ends_a_batch_that_hangs_within_30_seconds(
    spark: Any, kafka: Broker, topic: str, lake: Path, tmp_path: Path
) -> None:
    produce(kafka.bootstrap, topic, numbered(0, 10))
    spec = one_table(kafka.bootstrap, topic, lake / "t")
    file = tmp_path / "shop.yaml"
    file.write_text(spec.text)
    with terminal(["run", file, "--until", "latest"], {"HEADRACE_FAULT": "before_ledger_write=hang"}) as shown:
        commit = lake / "t" / "_delta_log" / f"{0:020}.json"
        eventually(commit.exists, 120, lambda: f"the batch commits; {shown.written}")
        asked = time.monotonic()
        shown.interrupt()
        assert shown.wait() == 1
        assert time.monotonic() - asked < 30
    assert "aborted and will be completed by the next run" in shown.lines()[-1]
    (outcome,) = run_all([spec], until="latest")
    assert (outcome.error, outcome.summary.recovered, outcome.summary.drained) == (None, 1, True)
    assert ids(lake / "t") == list(range(10))


def test_a_batch_that_takes_too_long_after_a_stop_is_cancelled(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_loop, "_GRACE", 0.5)
    monkeypatch.setattr(batch_size, "FIRST_RECORDS", 20_000_000)
    file = tmp_path / "web.yaml"
    file.write_text(
        "pipeline: web\nsource: {generate: {records: 20000000}}\nlimits: {batch_rows: 20000000}\n"
        f"table: {{path: ./lake/t, columns: {COLUMNS}}}\n"
    )
    stop, table = threading.Event(), tmp_path / "lake" / "t"

    def stop_within_the_batch(event: dict[str, Any]) -> None:
        if event["event"] == "progress" and event["batch"] is not None:
            stop.set()

    (outcome,) = run_all(load(file), until="latest", report=stop_within_the_batch, stop=stop)
    assert stop.is_set()
    assert (outcome.error, outcome.summary.drained, outcome.summary.batches) == (None, False, 0)
    assert not (table / "_delta_log").exists()


def test_a_drain_that_is_stopped_is_not_drained(spark: Any, kafka: Broker, new_topic: Any, lake: Path) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 10), 0)
    spec = one_table(kafka.bootstrap, topic, lake / "t", limits={"batch_rows": 4})
    stop = threading.Event()

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "batch":
            stop.set()

    outcomes = run_all([spec], until="latest", report=note, stop=stop)
    assert (outcomes[0].error, outcomes[0].summary.drained, outcomes[0].summary.counts.read) == (None, False, 4)
    assert exit_code(outcomes) == 1
    outcomes = run_all([spec], until="latest")
    assert (outcomes[0].summary.drained, outcomes[0].summary.counts.read, exit_code(outcomes)) == (True, 6, 0)
    assert outcomes[0].summary.rate > 0
    assert ids(lake / "t") == list(range(10))


def test_a_stop_while_waiting_for_the_lease(spec: Spec) -> None:
    stop = threading.Event()
    with Lease.take(Store(spec.state_uri)):
        timer = threading.Timer(0.2, stop.set)
        timer.start()
        (outcome,) = run_all([spec], until="latest", stop=stop, wait=True)
    assert (outcome.error, outcome.summary.drained) == (None, False)


def test_a_drain_without_anything_to_read_needs_no_java(kafka: Broker, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    start = {"kafka": {"brokers": kafka.bootstrap, "topics": [topic], "start": "latest"}}
    file.write_text(spec_text(kafka.bootstrap, [], tmp_path / "lake", source=start))
    produce(kafka.bootstrap, topic, numbered(0, 5))
    done = run_cli(["run", file, "--until", "latest", "--json"], {"HEADRACE_JAVA": str(tmp_path / "none")})
    assert done.returncode == 0, done.stderr
    *_, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert (summary["drained"], summary["read"], summary["stopped"]) == (True, 0, None)
