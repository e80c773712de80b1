"""HTTP to Kafka, through a receiver that is killed while clients send."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from headrace.dev.kafka import Broker, free_ports
from services.kafka import read_all
from services.wait import eventually

HEADRACE = [str(Path(sys.executable).with_name("headrace"))]


class Client(threading.Thread):
    """Sends numbered records, each request until it is acknowledged."""

    def __init__(self, port: int, topic: str, number: int) -> None:
        super().__init__(daemon=True)
        self.port, self.path, self.number = port, f"/v1/{topic}", number
        self.acknowledged: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        request = 0
        while not self.ended.is_set():
            values = [f'"{self.number}-{request}-{each}"' for each in range(10)]
            headers = {"Content-Type": "application/json", "Idempotency-Key": f"{self.number}-{request}"}
            while not self._is_acknowledged(f"[{','.join(values)}]".encode(), headers):
                self.ended.wait(0.05)
                if self.ended.is_set():
                    return
            self.acknowledged += values
            request += 1

    def _is_acknowledged(self, body: bytes, headers: dict[str, str]) -> bool:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
                connection.request("POST", self.path, body, headers)
                return connection.getresponse().status == 202
        except (OSError, http.client.HTTPException):
            return False


def write_spec(folder: Path, kafka: Broker, topic: str, port: int) -> Path:
    spec = folder / "spec.yaml"
    spec.write_text(
        f"pipeline: orders\nsource: {{http: {{listen: '127.0.0.1:{port}', topics: [{topic}], "
        f"kafka: {{brokers: '{kafka.bootstrap}'}}}}}}\ndecode: string\ntable: {{path: ./lake/orders}}\n"
        "flush: {every: 300ms}\n"
    )
    return spec


@contextmanager
def started(command: str, spec: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`headrace receive` or `run`, killed at the end."""
    arguments = [*HEADRACE, command, str(spec), "--json"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def test_a_killed_receiver_has_sent_each_acknowledged_record(kafka: Broker, topic: str, tmp_path: Path) -> None:
    port = next(iter(free_ports()))
    spec = write_spec(tmp_path, kafka, topic, port)
    clients = [Client(port, topic, number) for number in range(2)]
    for client in clients:
        client.start()

    def more(process: subprocess.Popen[bytes], records: int) -> None:
        wanted = [len(client.acknowledged) + records for client in clients]
        enough = lambda: all(len(each.acknowledged) >= most for each, most in zip(clients, wanted, strict=True))  # noqa: E731
        eventually(lambda: process.poll() is not None or enough(), within=90)
        assert process.poll() is None, process.communicate()[0]

    with started("receive", spec) as process:
        more(process, 200)
    with started("receive", spec) as process:
        more(process, 100)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    for client in clients:
        client.ended.set()
        client.join(60)
    assert process.returncode == 0, output
    summary = json.loads(output.splitlines()[-1])
    assert (summary["event"], summary["spool_records"]) == ("summary", 0)
    assert summary["records"] >= 200
    stored = {(record.value or b"").decode() for record in read_all(kafka.bootstrap, [topic])}
    assert {value for client in clients for value in client.acknowledged} <= stored
    assert not (tmp_path / "lake").exists()  # nothing is stored here


@pytest.mark.spark
def test_a_run_receives_and_writes_what_it_reads_from_kafka(kafka: Broker, topic: str, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    port = next(iter(free_ports()))
    table, client = tmp_path / "lake/orders", Client(port, topic, 1)
    with started("run", write_spec(tmp_path, kafka, topic, port)) as process:
        client.start()
        eventually(lambda: process.poll() is not None or len(client.acknowledged) >= 100, within=120)
        assert process.poll() is None, process.communicate()[0]
        client.ended.set()
        client.join(60)
        records = [(record.value or b"").decode() for record in read_all(kafka.bootstrap, [topic])]
        first = table / "_delta_log" / f"{0:020}.json"  # its directory is there before
        rows = lambda: DeltaTable(table).count() if first.exists() else 0  # noqa: E731
        eventually(lambda: rows() >= len(records), within=120)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    stored = DeltaTable(table).to_pyarrow_table(columns=["data"])["data"].to_pylist()
    assert sorted(stored) == sorted(records)
    assert set(client.acknowledged) <= set(stored)
