"""Takeover with a real broker and an object store, and the command kafka-delta-ingest as active and standby."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from headrace.dev.kafka import Broker
from headrace.errors import UsageError
from headrace.faults import Abandoned, Point, armed
from headrace.recovery.resume import open_context
from headrace.recovery.takeover import Takeover, plan_takeover
from headrace.recovery.takeover_origin import Origin
from services.in_process_pipeline import Harness
from services.kafka import QUIET, produce
from services.kafka_delta_ingest import KEPT, Ingest, commit, ids, send
from services.pipelines import environment
from services.s3 import S3
from services.threads import numbered, one_table
from services.wait import eventually

COMMAND = "from headrace.compat.kafka_delta_ingest import kafka_delta_ingest; kafka_delta_ingest()"


def rows(table: Path) -> list[int]:
    return (
        sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) if DeltaTable.is_deltatable(str(table)) else []
    )


# ---- consumer groups ----


def plan(brokers: str, topic: str, lake: Path, origin: str) -> Takeover:
    spec = one_table(brokers, topic, lake / "t", source={"kafka": {"brokers": brokers, "topics": [topic]}})
    with open_context(spec) as context:
        planned = plan_takeover(context, Origin.parse(origin))
        planned.record(context)
        return planned


def test_a_consumer_group(kafka: Broker, topic: str, lake: Path) -> None:
    group = f"writer-{topic}"
    produce(kafka.bootstrap, topic, numbered(0, 10), 0)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, **QUIET})
    try:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.1) or consumer.assignment(), 90, "the consumer is a member of the group")
        consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
        with pytest.raises(UsageError, match="1 active member"):
            plan(kafka.bootstrap, topic, lake, f"group:{group}")
    finally:
        consumer.close()
    planned = plan(kafka.bootstrap, topic, lake, f"group:{group}")
    assert planned.start == {(topic, 0): 7, (topic, 1): 0}  # partition 1 has no offset: as the spec says
    with pytest.raises(UsageError, match="has no offsets"):
        plan(kafka.bootstrap, topic, lake, "group:unknown")


# ---- object stores ----


def test_tables_in_an_object_store(s3: S3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits are puts if absent: a txn that has changed meanwhile is noticed there, too."""
    table = {"path": f"s3://{bucket}/lake/orders", "txn": KEPT}
    harness = Harness(tmp_path, {"route": {}, "table": table}, s3=s3, bucket=bucket)
    harness.serve(monkeypatch)
    send(harness, 8)
    Ingest(harness).run(5)
    with armed(Point.AFTER_STAGING, "abandon"), pytest.raises(Abandoned):
        harness.run()
    Ingest(harness).run(7)
    harness.run()
    assert ids(harness) == list(range(8))
    assert Ingest(harness).txns() == {0: 7}


# ---- the command ----


@contextmanager
def ingesting(kafka: Broker, topic: str, table: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`kafka-delta-ingest ingest` in the background; whatever is left of it ends with the block."""
    words = ["ingest", topic, str(table), "-k", kafka.bootstrap, "-a", "web", "-l", "1"]
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    processes = [psutil.Process(child.pid)]
    try:
        yield child
        if child.poll() is None:
            processes += processes[0].children(recursive=True)
    finally:
        for process in processes:
            if process.is_running():
                process.kill()
        child.wait(60)


def test_the_standby_takes_over_when_the_active_process_dies(kafka: Broker, topic: str, lake: Path) -> None:
    table, leases = lake / "t", lake / "_headrace/web/lease"
    produce(kafka.bootstrap, topic, numbered(0, 20), 0)
    commit(table, pa.table({"id": list(range(5))}), {"web-0": 4})
    with ingesting(kafka, topic, table) as active:
        eventually(lambda: rows(table) == list(range(20)), 180, "the active process has written")
        with ingesting(kafka, topic, table) as standby:
            eventually(lambda: standby.poll() is None and psutil.Process(standby.pid).cpu_times().user > 0.5, 90)
            holder = json.loads(max(leases.iterdir()).read_text())["pid"]
            assert holder == active.pid
            active.kill()
            produce(kafka.bootstrap, topic, numbered(20, 10), 0)
            eventually(lambda: rows(table) == list(range(30)), 180, "the standby has taken over")
            assert DeltaTable(table).transaction_version("web-0") == 29
            standby.terminate()
            assert standby.wait(120) == 0
