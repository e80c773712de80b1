"""The command `kafka-delta-ingest`: its arguments, environment and exit codes, in tables that it has written before."""

from __future__ import annotations

import re
import socket
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.compat.kafka_delta_ingest import kafka_delta_ingest
from headrace.importers.kafka_delta_ingest import FLAGS
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from services.in_process_pipeline import Harness
from services.kafka_delta_ingest import Ingest, ids, one_table, send

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kafka-delta-ingest", *arguments])
        try:
            kafka_delta_ingest()
        except SystemExit as ended:
            return (int(ended.code or 0), *capsys.readouterr())
        return (0, *capsys.readouterr())

    return run


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A table with five of eight records, by kafka-delta-ingest."""
    harness = one_table(tmp_path, monkeypatch)
    send(harness, 8)
    Ingest(harness).run(5)
    return harness


def test_it_is_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kafka-delta-ingest"] == "headrace.entry:kafka_delta_ingest_command"


# ---- ingest ----


def test_ingest_continues_in_the_table_and_keeps_its_txns(cli: Run, harness: Harness) -> None:
    code, _, err = cli("ingest", "orders", "lake/orders", "-a", "web", "-e")
    assert code == 0
    assert "web: 1 batch; read 3 = routed 3" in err
    assert ids(harness) == list(range(8))
    assert Ingest(harness).txns() == {0: 7}


def test_the_form_of_the_fork_with_variables(cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "APP_ID": "web",
        "TABLE_BASE_URI": str(harness.folder / "lake"),
        "KAFKA_TOPIC": "orders",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TURN_OFF_AT_KAFKA_TOPIC_END", "true")
    assert cli("ingest")[0] == 0
    assert ids(harness) == list(range(8))
    assert Ingest(harness).txns() == {0: 7}


def test_both_programs_in_turns(cli: Run, harness: Harness) -> None:
    for _ in range(2):
        assert cli("ingest", "orders", "lake/orders", "--app_id", "web", "--ends_at_latest_offsets")[0] == 0
        send(harness, 3)
        Ingest(harness).run()
        send(harness, 1)
    assert cli("ingest", "orders", "lake/orders", "--app_id=web", "-e")[0] == 0
    assert ids(harness) == list(range(16))


@pytest.mark.parametrize(
    ("arguments", "suffix"),
    [(("orders", "lake/orders"), b""), (("--topic", "orders", "--table_base_uri", "lake"), b".web")],
)
def test_metrics_are_sent_over_statsd(
    cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], suffix: bytes
) -> None:
    """Names of the fork have a suffix, those of the project have none."""
    monkeypatch.setenv("KDI_METRICS_PREFIX", "shop")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(60)
        address = f"127.0.0.1:{receiver.getsockname()[1]}"
        assert cli("ingest", *arguments, "-a", "web", "-e", "-s", address)[0] == 0
        packet = receiver.recv(65_536)
        while b"delta.write.completed" not in packet:
            packet = receiver.recv(65_536)
        assert b"shop.delta.write.completed%s:1|c" % suffix in packet.split(b"\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "required argument is missing"),
        (("orders", "lake/orders", "--nothing"), "unknown argument"),
        (("orders", "lake/orders", "-o", "middle"), "earliest or latest"),
        (("orders", "lake/nowhere", "-e"), "TableGone"),
    ],
)
def test_errors_have_exit_code_1(cli: Run, harness: Harness, arguments: tuple[str, ...], expected: str) -> None:
    code, out, err = cli("ingest", *arguments)
    assert code == 1
    assert expected in out + err


def test_the_help_has_every_flag(cli: Run) -> None:
    code, out, _ = cli("ingest", "--help")
    assert code == 0
    assert not [name for name in FLAGS if name != "table_location" and f"--{name}" not in out]
    assert "ingest" in cli("--help")[1]
    assert "Headrace" in cli("--version")[1]


@pytest.mark.parametrize("command", ["ingest", "repair"])
def test_help_of_a_command_describes_its_options(cli: Run, command: str) -> None:
    code, out, _ = cli("help", command)
    assert (code, out) == (0, cli(command, "--help")[1])
    assert out.startswith(f"Usage: kafka-delta-ingest {command} ")
    rows = out.partition("Options:\n")[2].splitlines()
    assert all(row.lstrip().startswith("-") for row in rows[::2])
    assert all(re.match(r" {10}[A-Z]\w+ ", row) for row in rows[1::2])


def test_an_unknown_command(cli: Run) -> None:
    for arguments in (("consume",), ("help", "consume")):
        code, _, err = cli(*arguments)
        assert code == 1
        assert "Use ingest or repair" in err


# ---- repair ----


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A table with two partitions of two files each."""
    for number in range(2):
        rows = pa.table({"day": ["a", "b"], "id": [number, number + 10]})
        write_deltalake(tmp_path / "parts", rows, mode="append", partition_by=["day"])
    return tmp_path / "parts"


def files(table: Path) -> dict[str, int]:
    """Number of files by partition."""
    partitions = [uri.rpartition("/")[0].rpartition("day=")[2] for uri in DeltaTable(table).file_uris()]
    return {name: partitions.count(name) for name in sorted(set(partitions))}


def test_repair_removes_missing_files_and_compacts(cli: Run, parts: Path) -> None:
    next((parts / "day=a").glob("*.parquet")).unlink()
    code, out, _ = cli("repair", "--table_url", str(parts))
    assert code == 0
    assert "removed 1 missing file" in out
    assert files(parts) == {"a": 1, "b": 1}
    assert DeltaTable(parts).to_pyarrow_table().num_rows == 3


def test_repair_of_one_partition(cli: Run, parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLE_URL", str(parts))
    assert cli("repair", "--optimize_partition", "day", "--optimize_partition_predicate=b")[0] == 0
    assert files(parts) == {"a": 2, "b": 1}
    assert cli("repair", "--optimize_partition", "day")[0] == 0  # both are needed for a condition
    assert files(parts) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--table_url is required"),
        (("--table_url",), "requires a value"),
        (("--table",), "did you mean '--table_url'"),
        (("--table_url", "nowhere"), "TableNotFound"),
        (("--table_url", "x", "--optimize_target_size", "1MB"), "invalid value: '1MB'"),
    ],
)
def test_invalid_repairs(cli: Run, arguments: tuple[str, ...], expected: str) -> None:
    code, _, err = cli("repair", *arguments)
    assert code == 1
    assert expected in err


# ---- several processes ----


def test_a_second_process_waits_for_the_first(cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is taken once the holder has released it, or has died."""
    lease = Lease.take(Store(str(harness.folder / "lake/_headrace/web")), ttl=20, renew=5)
    waits: list[bool] = []
    monkeypatch.setattr(Lease, "take", _released(lease, waits, Lease.take))
    assert cli("ingest", "orders", "lake/orders", "-a", "web", "-e")[0] == 0
    assert waits == [True]
    assert ids(harness) == list(range(8))


def _released(lease: Lease, waits: list[bool], take: Callable[..., Lease]) -> Callable[..., Lease]:
    def released(*arguments: object, wait: bool = False, **options: object) -> Lease:
        waits.append(wait)
        lease.release()
        return take(*arguments, wait=wait, **options)

    return released
