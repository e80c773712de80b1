"""HTTP to tables, through processes that are killed while clients send."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.dev.kafka import free_ports
from headrace.source.ranges import Range
from headrace.source.spool.reader import open_reader, record_batches
from services.http_clients import HEADRACE, Client, healthy, started
from services.wait import eventually


@pytest.fixture
def port() -> int:
    return next(iter(free_ports()))


def write_spec(folder: Path, port: int) -> Path:
    spec = folder / "orders.yaml"
    spec.write_text(
        f"pipeline: orders\nsource: {{http: {{listen: '127.0.0.1:{port}', topics: [orders]}}}}\n"
        "table: {path: ./lake/orders, columns: [{name: id, type: bigint}]}\nflush: {every: 300ms}\n"
    )
    return spec


def test_a_killed_receiver_has_stored_each_acknowledged_record_once(tmp_path: Path, port: int) -> None:
    spec, client = write_spec(tmp_path, port), Client(port)
    client.start()
    for _ in range(2):
        with started("receive", spec):
            client.more(20)
    with started("receive", spec, "--json") as process:
        client.more(1)
        count = client.end()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert json.loads(output.splitlines()[-1])["spool_records"] == count
    folder = tmp_path / "lake/_headrace/orders/spool"
    assert open_reader(str(folder)).ends() == {"orders": count}
    batches = record_batches(open_reader(str(folder)), Range("orders", 0, 0, count))
    values = [json.loads(value)["id"] for batch in batches for value in batch["value"].to_pylist()]
    assert sorted(values) == list(range(count))


def test_receiving_does_not_import_spark(tmp_path: Path, port: int) -> None:
    code = (
        "import sys, threading; from headrace.serve.receiving import receive_all; "
        "from headrace.validate.load import load; stop = threading.Event(); "
        "receive_all(load(sys.argv[1]), stop, lambda event: stop.set(), 1); "
        "print([name for name in ('pyspark', 'py4j', 'deltalake', 'confluent_kafka') if name in sys.modules])"
    )
    spec = write_spec(tmp_path, port)
    answer = subprocess.run([sys.executable, "-c", code, spec], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"


def test_a_source_without_a_spool_cannot_receive(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("pipeline: p\nsource: {generate: {}}\ntable: {path: ./lake/t}\n")
    answer = subprocess.run([*HEADRACE, "receive", str(spec)], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 2
    assert "The source 'generate' of p receives no records" in answer.stderr


@pytest.mark.spark
def test_a_killed_run_writes_each_acknowledged_record_once(tmp_path: Path, port: int) -> None:
    """Once with the receiver inside the run, once beside it."""
    from deltalake import DeltaTable

    spec, client, table = write_spec(tmp_path, port), Client(port), tmp_path / "lake/orders"
    rows = lambda: DeltaTable(table).count() if (table / "_delta_log").exists() else 0  # noqa: E731
    client.start()
    with started("run", spec):
        eventually(lambda: rows() > 100, within=120)
    with started("receive", spec) as receiving:
        eventually(lambda: healthy(port))
        with started("run", spec):
            before = rows()
            client.more(20)
            eventually(lambda: rows() > before + 100, within=120)
        client.more(5)
        count = client.end()
        receiving.send_signal(signal.SIGTERM)
        assert receiving.wait(20) == 0
    subprocess.run([*HEADRACE, "run", str(spec), "--until", "latest"], check=True, capture_output=True, timeout=180)
    ids = DeltaTable(table).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    assert sorted(ids) == list(range(count))
