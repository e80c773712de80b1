"""`headrace status` of several pipelines: of a directory of specs, of states, and of running processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.storage.lease import Lease
from headrace.storage.store import Store
from services.command_line import Run, command_line
from services.in_process_pipeline import Harness
from services.live import live_process
from services.monitored import batch, progress, stopped
from services.wait import eventually

GENERATE = "pipeline: {name}\nsource: {{generate: {{records: 40}}}}\ntable: {{path: ./lake/{name}}}\n"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return command_line(monkeypatch, capsys)


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_directory_of_specs(cli: Run, tmp_path: Path) -> None:
    specs = tmp_path / "specs"
    specs.mkdir()
    (specs / "one.yaml").write_text(GENERATE.format(name="web") + "---\n" + GENERATE.format(name="shop"))
    (specs / "two.yml").write_text(GENERATE.format(name="clicks"))
    (specs / "notes.txt").write_text("no spec")
    code, out, _ = cli("status", "specs", "--json")
    assert code == 0
    assert [(each["event"], each["pipeline"], each["lag"]) for each in events(out)] == [
        ("status", "web", 40),
        ("status", "shop", 40),
        ("status", "clicks", 40),
    ]
    assert cli("status", "specs")[1].count("not running; no batches yet") == 3


def test_the_states_below_a_path(cli: Run, tmp_path: Path) -> None:
    Harness(tmp_path).feed([{"id": number, "kind": "alpha"} for number in range(5)])
    named = Harness(tmp_path, {"pipeline": "orders", "state": f"{tmp_path}/lake/_headrace/another-name"})
    named.feed([{"id": 1, "kind": "beta"}])
    (tmp_path / "lake" / "_headrace" / "no-state").mkdir()
    with Lease.take(Store(f"{tmp_path}/lake/_headrace/new")):
        code, out, _ = cli("status", "--state", "lake/_headrace", "--json")
        shown = events(out)
    assert code == 0
    assert [(each["pipeline"], each["batch"]) for each in shown] == [("orders", 1), ("new", 0), ("shop", 1)]
    assert [each["holder"] is not None for each in shown] == [False, True, False]
    assert [(each["lag"], each["lag_seconds"]) for each in shown] == [(None, None)] * 3
    shop = shown[2]
    assert (shop["tables"], shop["batches"][0]["read"]) == ([f"{tmp_path}/lake/alpha"], 5)
    text = cli("status", "--state", "lake/_headrace/shop")[1]
    assert text.startswith("shop: not running; last batch 1\n  lag: unknown\n")
    assert f"  {tmp_path}/lake/alpha\n" in text


def test_a_state_that_cannot_be_read_leaves_the_others(cli: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        Harness(tmp_path, {"pipeline": name}).feed([{"id": 1, "kind": "alpha"}])
    log = tmp_path / "lake" / "_headrace" / "one" / "ledger" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace('"headrace.format":"2"', '"headrace.format":"99"'))
    code, out, _ = cli("status", "--state", "lake/_headrace", "--json")
    error, two = events(out)
    assert (code, two["pipeline"], two["batch"]) == (1, "two", 1)
    state = f"{tmp_path}/lake/_headrace/one"
    assert (error["event"], error["pipeline"], error["error"]) == ("error", state, "UnsupportedStateFormat")
    assert f"{state}: unknown: UnsupportedStateFormat: The state at" in cli("status", "--state", "lake/_headrace")[1]
    code, _, err = cli("status", "--state", state)
    assert code == 1
    assert err.startswith("headrace: UnsupportedStateFormat: ")


def test_the_pipelines_of_running_processes(cli: Run, tmp_path: Path) -> None:
    with live_process() as process:
        process.add(tmp_path, "shop", "web")
        process.monitor(progress(lag=1_200, seconds=41.0))
        process.monitor(batch(12, read=10, dead=2))
        code, out, _ = cli("status", "--json")
        shop, web = events(out)
        assert code == 0
        assert (shop["event"], shop["pipeline"], shop["process"], shop["state"]) == (
            "pipeline",
            "shop",
            os.getpid(),
            "running",
        )
        assert (shop["lag"], shop["batch"], shop["dead"], web["lag"], web["batch"]) == (1_200, 12, 2, None, None)
        titles, row, starting = cli("status")[1].splitlines()
        assert titles.split()[:4] == ["pipeline", "process", "state", "lag"]
        assert row.split()[:6] == ["shop", str(os.getpid()), "running", "1,200", "(41.0", "s)"]
        assert starting.split() == ["web", str(os.getpid()), "starting", "unknown", "0", "0"]
        process.monitor(stopped())
        assert "\nshop: failed: SourceGap: Offsets are gone.\n" in cli("status")[1]


def test_without_running_processes_it_says_so(cli: Run, tmp_path: Path) -> None:
    code, out, err = cli("status")
    assert (code, out) == (0, "")
    assert err == (
        f"No running pipelines: {tmp_path}/runtime/headrace has no control sockets. Use `headrace status SPEC` for "
        "others.\n"
    )
    assert cli("status", "--json") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--orphans"], "--orphans requires a spec. Use `headrace status SPEC --orphans`."),
        (["web.yaml", "--state", "lake"], "--state cannot be used with specs"),
        (["--state", "absent"], "/absent has no states of pipelines. Specify a state directory, or the"),
        (["empty"], "empty has no spec files (*.yaml, *.yml)."),
    ],
)
def test_wrong_arguments(cli: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "web.yaml").write_text(GENERATE.format(name="web"))
    (tmp_path / "empty").mkdir()
    code, _, err = cli("status", *arguments)
    assert code == 2
    assert message in err


def test_pause_resume_and_restart_name_the_state_they_reach(cli: Run, tmp_path: Path) -> None:
    with live_process() as process:
        process.add(tmp_path, "shop")
        eventually(lambda: process.session.starts == 1, 60, "it waits for Spark")
        code, out, _ = cli("restart", "shop", "--within", "0", "--json")
        (answer,) = events(out)
        assert (code, answer["event"], answer["process"], answer["state"]) == (1, "restart", os.getpid(), None)
        code, _, err = cli("pause", "shop", "--within", "0")
        assert (code, err) == (1, "shop: requested; its current batch has not ended within 0 s\n")
        assert process.supervisor.states()[0].is_pausing
        assert cli("resume", "shop")[:2] == (0, "shop: starting\n")
        assert not process.supervisor.states()[0].is_pausing
        code, _, err = cli("pause", "web")
        assert code == 2
        assert "No running process has a pipeline 'web'. Running pipelines: shop." in err
