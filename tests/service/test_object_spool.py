"""A spool on a real S3 server: processes are killed and suspended, and responses are lost, while clients send."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import pytest

from headrace.dev.kafka import free_ports
from headrace.source.ranges import Range
from headrace.source.spool.object_reader import ObjectReader
from headrace.source.spool.reader import record_batches
from services.http_clients import HEADRACE, Client, healthy, started
from services.s3gate import s3gate
from services.stores import StorageFolder, new_folder
from services.wait import eventually


@pytest.fixture
def ports() -> list[int]:
    return list(islice(free_ports(), 2))


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFolder:
    return new_folder("s3", request, tmp_path)


def write_spec(folder: Path, port: int, storage: StorageFolder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state and the table are on disk: only the spool is in the store."""
    http = {"listen": f"127.0.0.1:{port}", "topics": ["orders"], "spool": {"path": f"{storage.uri}/spool"}}
    spec = folder / f"orders-{port}.json"
    spec.write_text(
        json.dumps(
            {
                "pipeline": "orders",
                "source": {"http": http},
                "table": {"path": str(folder / "lake/orders"), "columns": [{"name": "id", "type": "bigint"}]},
                "flush": {"every": "300ms"},
                "lease": {"ttl": "3s", "renew": "500ms"},
                "storage": storage.spec_settings(monkeypatch),
            }
        )
    )
    return spec


def stored_ids(storage: StorageFolder) -> list[int]:
    reader = ObjectReader(storage.store("spool"))
    batches = record_batches(reader, Range("orders", 0, 0, reader.ends()["orders"]))
    return [json.loads(value)["id"] for batch in batches for value in batch["value"].to_pylist()]


def test_a_killed_receiver_has_stored_each_acknowledged_record_once(
    tmp_path: Path, ports: list[int], storage: StorageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, client = write_spec(tmp_path, ports[0], storage, monkeypatch), Client(ports[0])
    client.start()
    for _ in range(3):
        with started("receive", spec):  # ends by SIGKILL
            client.more(20)
    with started("receive", spec, "--json") as process:
        client.more(1)
        count = client.end()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert json.loads(output.splitlines()[-1])["spool_records"] == count
    assert stored_ids(storage) == list(range(count))


def test_a_receiver_that_was_suspended_acknowledges_nothing_after_another_has_begun(
    tmp_path: Path, ports: list[int], storage: StorageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [write_spec(tmp_path, port, storage, monkeypatch) for port in ports]
    with ExitStack() as processes:
        first = processes.enter_context(started("receive", specs[0]))
        client = Client(ports[0])
        client.start()
        client.more(10)
        os.kill(first.pid, signal.SIGSTOP)
        processes.enter_context(started("receive", specs[1]))
        eventually(lambda: healthy(ports[1]))
        client.port = ports[1]
        client.more(10)
        os.kill(first.pid, signal.SIGCONT)
        late = Client(ports[0])
        late.sent = 10**6  # requests that were not sent before
        late.start()
        output, _ = first.communicate(timeout=60)
        assert b"is written by another process" in output
        assert late.sent == 10**6
        late.ended.set()
        count = client.end()
    assert stored_ids(storage) == list(range(count))


@pytest.mark.parametrize("deed", ["refuse", "lose", "late"])
def test_requests_of_an_outage_are_stored_once(
    tmp_path: Path, ports: list[int], storage: StorageFolder, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    """Puts are refused, or carried out without a response, at once or when the store is reachable again."""
    with s3gate(storage.endpoint) as gate:
        spec, client = write_spec(tmp_path, ports[0], storage.at(gate.endpoint), monkeypatch), Client(ports[0])
        client.start()
        with started("receive", spec):
            client.more(5)
            rule = gate.on("PUT", "spool/log/", deed, times=10**6)  # type: ignore[arg-type]
            eventually(lambda: client.refused >= 2)
            assert rule.seen
            gate.open()
            client.more(5)
            count = client.end()
    assert stored_ids(storage) == list(range(count))


@pytest.mark.spark
def test_a_killed_run_writes_each_acknowledged_record_once(
    tmp_path: Path, ports: list[int], storage: StorageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks read the objects with the settings of the spec."""
    from deltalake import DeltaTable

    spec, client = write_spec(tmp_path, ports[0], storage, monkeypatch), Client(ports[0])
    table = tmp_path / "lake/orders"
    rows = lambda: DeltaTable(table).count() if (table / "_delta_log").exists() else 0  # noqa: E731
    client.start()
    for _ in range(2):
        with started("run", spec):
            before = rows()
            eventually(lambda before=before: rows() > before + 100, within=180)  # type: ignore[misc]
    with started("receive", spec):
        client.more(5)
        count = client.end()
    subprocess.run([*HEADRACE, "run", str(spec), "--until", "latest"], check=True, capture_output=True, timeout=180)
    ids = DeltaTable(table).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    assert sorted(ids) == list(range(count))
