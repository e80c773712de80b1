"""Pipelines on a real Spark cluster: a master and two workers whose executors have nothing of the driver's."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.dev.kafka import Broker
from headrace.dev.spark_cluster import StandaloneCluster
from headrace.source.base import open_source
from headrace.source.spool.block import BLOCK_SCHEMA
from headrace.source.spool.source import SpoolSource
from headrace.source.spool.writer import Incoming
from headrace.validate.load import loads
from services.certs import Certificates
from services.kafka import make_topic, produce
from services.pipelines import Running, Shop, run_cli, start_cli
from services.s3 import S3
from services.stores import new_folder
from services.wait import eventually

MASK_KEY = "a-key-that-only-the-driver-has-in-its-environment"
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def spark_keys(cluster: StandaloneCluster, **more: Any) -> dict[str, Any]:
    """`spark` of a spec for this cluster."""
    return {"master": cluster.master, "executors": {"memory": "512m"}, "conf": LOOPBACK, **more}


@pytest.fixture(autouse=True)
def _finished_applications(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").delete_applications()


@pytest.fixture
def shop(kafka: Broker, topic: str, tmp_path: Path, s3: S3, cluster: StandaloneCluster) -> Shop:
    """A shop on S3, which the executors and the driver reach."""
    shop = Shop(kafka.bootstrap, topic, f"s3://{s3.bucket()}/lake", tmp_path, s3)
    shop.options["spark"] = spark_keys(cluster)
    return shop


def drain(shop: Shop, **env: str) -> Any:
    """`headrace run --until latest` in a process of its own, which has its own session."""
    return run_cli(["run", shop.write_spec(), "--until", "latest", "--json"], env, within=400)


def events(output: str, kind: str) -> list[dict[str, Any]]:
    return [event for line in output.splitlines() if (event := json.loads(line))["event"] == kind]


def rows(shop: Shop, table: str) -> list[dict[str, Any]]:
    options = shop.s3.options if shop.s3 else {}
    return DeltaTable(f"{shop.lake}/{table}", storage_options=options).to_pyarrow_table().to_pylist()


# ---- a whole run ----


def test_kafka_to_delta_on_a_cluster(shop: Shop, cluster: StandaloneCluster) -> None:
    mask = {"mask": {"text": {"sha256": "${env:ONLY_ON_THE_DRIVER}"}}}
    shop.options["transform"] = [{"where": "coalesce(keep, true)"}, mask]
    shop.send(200)
    finished = drain(shop, ONLY_ON_THE_DRIVER=MASK_KEY)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    written = [row for table in ("alpha", "beta") for row in rows(shop, table)]
    due = [number for number in range(200) if number % 9 != 5 and number % 7 != 3]
    assert sorted(row["id"] for row in written) == due
    for row in written:
        expected = hmac.new(MASK_KEY.encode(), f"№ {row['id']}".encode(), hashlib.sha256).hexdigest()
        assert row["text"] == expected
    (summary,) = events(finished.stdout, "summary")
    assert summary["read"] == 200 == summary["routed"] + summary["dead"] + summary["filtered"]
    executors = list(cluster.folder.glob("worker-*/work/app-*/*/environment/bin/python"))
    assert {path.relative_to(cluster.folder).parts[0] for path in executors} == {"worker-0", "worker-1"}
    ended = eventually(lambda: [app["state"] for app in cluster.state()["completedapps"]], 30, "the application ends")
    assert ended[-1] == "FINISHED"


def test_executors_read_a_spool_in_an_object_store(
    cluster: StandaloneCluster, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = new_folder("s3", request, tmp_path)
    content = {
        "pipeline": "orders",
        "source": {"http": {"topics": ["orders"], "spool": {"path": f"{storage.uri}/spool"}}},
        "table": {"path": f"{storage.uri}/orders", "columns": [{"name": "id", "type": "bigint"}]},
        "storage": storage.spec_settings(monkeypatch),
        "spark": spark_keys(cluster),
    }
    spec = tmp_path / "orders.json"
    spec.write_text(json.dumps(content))
    source = open_source(loads(json.dumps(content))[0])
    assert isinstance(source, SpoolSource)
    rows = [{"key": None, "value": b'{"id":%d}' % each, "headers": None, "timestamp": None} for each in range(500)]
    with closing(source.open_destination()) as spool:
        for start in range(0, 500, 50):
            records = pa.RecordBatch.from_pylist(rows[start : start + 50], BLOCK_SCHEMA)
            spool.append(Incoming("orders", records)).result(30)
    finished = run_cli(["run", str(spec), "--until", "latest", "--json"], {}, within=400)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    server: S3 = request.getfixturevalue("s3")
    table = DeltaTable(f"{storage.uri}/orders", storage_options=server.options)
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(500))


def test_executors_without_headrace_are_named(shop: Shop, cluster: StandaloneCluster) -> None:
    shop.options["spark"] = spark_keys(cluster, environment="installed")
    shop.send(10)
    finished = drain(shop)
    assert finished.returncode == 1
    (error,) = events(finished.stdout, "error")
    assert error["error"] == "EnvironmentMismatch"
    assert "No module named 'headrace'" in error["message"]
    shop.options["spark"] = spark_keys(cluster)  # the archive of `headrace setup --pack`, which the hint names
    assert "headrace setup --pack" in error["hint"]
    finished = drain(shop)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    assert shop.audit().records == 10


# ---- deaths ----


MANY = 240_000  # records of several batches


def reading(running: Running) -> None:
    """Wait until the first batch is recorded: then the next one runs, which is larger."""
    eventually(lambda: running.child.poll() is None and running.of("batch"), 240, running.said)


def finish(shop: Shop, running: Running) -> None:
    assert running.wait(400) == 0, running.said()
    assert shop.audit().records == shop.sent


def python_workers(cluster: StandaloneCluster) -> list[psutil.Process]:
    """Python processes of executors that run tasks: children of Spark's daemon."""
    below = [each for worker in cluster.workers if worker.poll() is None for each in _tree(worker.pid)]
    daemons = [each for each in below if "pyspark.daemon" in " ".join(each.cmdline())]
    return [each for each in daemons if each.parent() in daemons]


def _tree(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.slow
def test_a_worker_is_killed_during_a_batch(shop: Shop, cluster: StandaloneCluster) -> None:
    shop.send(MANY)
    with start_cli(["run", shop.write_spec(), "--until", "latest"]) as running:
        reading(running)
        worker = next(worker for worker in reversed(cluster.workers) if worker.poll() is None)
        for process in (*_tree(worker.pid), psutil.Process(worker.pid)):
            process.kill()
        finish(shop, running)
    eventually(lambda: cluster.state()["aliveworkers"] == 1, 90, "the master has noticed")
    cluster.add_workers()


@pytest.mark.slow
def test_the_python_of_an_executor_is_killed_during_a_batch(shop: Shop, cluster: StandaloneCluster) -> None:
    shop.send(MANY)
    with start_cli(["run", shop.write_spec(), "--until", "latest"]) as running:
        reading(running)
        eventually(lambda: python_workers(cluster), 60, "Python runs")[0].kill()
        finish(shop, running)


@pytest.mark.slow
def test_the_driver_is_killed_and_started_again(shop: Shop, cluster: StandaloneCluster) -> None:
    shop.send(MANY)
    with start_cli(["run", shop.write_spec(), "--until", "latest"]) as running:
        reading(running)
        os.kill(running.child.pid, signal.SIGKILL)
        running.wait(30)
    eventually(lambda: not cluster.state()["activeapps"], 90, "the master ends the application")
    with start_cli(["run", shop.write_spec(), "--until", "latest"], {"XDG_STATE_HOME": str(shop.scratch / "b")}) as run:
        finish(shop, run)
    orphans = run_cli(["status", shop.write_spec(), "--orphans", "--json"])
    (status,) = events(orphans.stdout, "status")
    assert status["open_batch"] is None
    assert status["orphans"] is not None


@pytest.mark.slow
def test_copies_of_slow_tasks_write_nothing_twice(shop: Shop, cluster: StandaloneCluster) -> None:
    copying = {"spark.speculation": "true", "spark.speculation.interval": "100ms", "spark.speculation.multiplier": "1"}
    copying |= {"spark.speculation.quantile": "0.1", "spark.speculation.minTaskRuntime": "1ms"}
    shop.options["spark"] = spark_keys(cluster, conf=LOOPBACK | copying)
    shop.send(MANY)
    with start_cli(["run", shop.write_spec(), "--until", "latest"]) as running:
        finish(shop, running)


@contextmanager
def losing_shuffles(cluster: StandaloneCluster) -> Iterator[None]:
    """Delete the first shuffle files that each executor writes for a shuffle; those of a retried stage stay."""
    ended, lost = threading.Event(), set[tuple[Path, str]]()

    def delete() -> None:
        while not ended.wait(0.002):
            files: dict[tuple[Path, str], list[Path]] = {}
            with suppress(FileNotFoundError):  # an executor has ended and deletes its folders
                for file in cluster.folder.glob("worker-*/local/spark-*/executor-*/blockmgr-*/*/shuffle_*_0.data"):
                    files.setdefault((file.parents[1], file.name.split("_")[1]), []).append(file)
            for shuffle in files.keys() - lost:
                for file in files[shuffle]:
                    file.unlink(missing_ok=True)
            lost.update(files)

    thread = threading.Thread(target=delete)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def stages(log: Path) -> tuple[dict[int, int], set[int]]:
    """Of an event log: the last attempt of each stage, and the stages that have failed for lack of map output."""
    attempts, failed = dict[int, int](), set[int]()
    for file in log.rglob("events_*"):
        for event in map(json.loads, file.read_text().splitlines()):
            stage = event.get("Stage Info") or {}
            if event["Event"] == "SparkListenerStageSubmitted":
                attempts[stage["Stage ID"]] = max(attempts.get(stage["Stage ID"], 0), stage["Stage Attempt ID"])
            if re.search("FetchFailed", stage.get("Failure Reason") or ""):
                failed.add(stage["Stage ID"])
    return attempts, failed


@pytest.mark.slow
def test_stages_of_merges_are_retried(shop: Shop, cluster: StandaloneCluster) -> None:
    """Lost shuffle files: Spark runs a map stage again that had succeeded, and the rest of the stage that read it."""
    log = shop.scratch / "event-log"
    log.mkdir()
    logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": log.as_uri(), "spark.eventLog.compress": "false"}
    several_tasks = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "8"}
    columns = [{"name": "id", "type": "bigint"}, {"name": "number", "type": "bigint"}]
    shop.options |= {
        "spark": spark_keys(cluster, conf=LOOPBACK | logged | several_tasks),
        "transform": [],
        "route": {"by": "fixed"},
        "table": {"path": f"{shop.lake}/orders", "mode": "upsert", "merge": {"keys": ["id"]}, "columns": columns},
        "limits": {"batch_rows": 2000, "merge_bytes": 0},
    }
    shop.send_values(b'{"id": %d, "number": %d}' % (number % 3000, number) for number in range(8000))
    with losing_shuffles(cluster):
        finished = drain(shop)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    attempts, failed = stages(log)
    retried = {stage for stage, attempt in attempts.items() if attempt > 0}
    assert retried & failed, (attempts, failed)
    assert retried - failed, (attempts, failed)
    expected = {number % 3000: number for number in range(8000)}
    written = rows(shop, "orders")
    assert sorted((row["id"], row["number"]) for row in written) == sorted(expected.items())
    merged = [batch["tables"][0] for batch in rows(shop, "_headrace/shop/ledger")]
    assert sum(table["inserted"] for table in merged) == len(expected), merged
    assert sum(table["inserted"] + table["updated"] for table in merged) == 8000, merged


# ---- other ways in ----


@pytest.mark.slow
def test_executors_read_kafka_with_tls_and_sasl(
    secure_kafka: Broker, certificates: Certificates, tmp_path: Path, s3: S3, cluster: StandaloneCluster
) -> None:
    topic = make_topic(secure_kafka.bootstrap, f"t-{uuid.uuid4().hex[:8]}", 2)
    produce(secure_kafka.bootstrap, topic, [b'{"id": %d, "kind": "alpha"}' % number for number in range(100)])
    shop = Shop(secure_kafka.bootstrap, topic, f"s3://{s3.bucket()}/lake", tmp_path, s3)
    sasl = {"mechanism": "SCRAM-SHA-512", "username": "ann", "password": "${env:ANN}"}
    tls = {"ca": f"${{file:{certificates.authority}}}"}
    brokers = secure_kafka.address("sasl_tls")
    shop.options["source"] = {"kafka": {"brokers": brokers, "topics": [topic], "sasl": sasl, "tls": tls}}
    shop.options["spark"] = spark_keys(cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANN", "ann-secret")
        finished = drain(shop)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    assert sorted(row["id"] for row in rows(shop, "alpha")) == list(range(100))


@pytest.mark.slow
def test_submit(shop: Shop) -> None:
    shop.send(200)
    finished = run_cli(["submit", shop.write_spec(), "--until", "latest"], within=400)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-3000:]
    (summary,) = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith('{"event": "summary"')]
    assert summary["read"] == 200
    assert shop.audit().records == 200
