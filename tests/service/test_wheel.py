"""The wheel, installed as a user installs it: the product's own lock, an empty environment, another folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.console import follow
from headrace.dev.kafka import Broker, free_ports
from services.kafka import produce
from services.local_kafka import local_kafka
from services.packages import PIP, locked_packages
from services.wait import eventually

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = ROOT / "tests/unit/importers/configs"
SPEC = """\
pipeline: web
source: {generate: {records: 300, partitions: 2}}
table: {path: ./lake/web}
"""
# What people have in their environment, and what is no business of a pipeline on local disk.
USERS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_REGION": "eu-central-1",
    "AWS_PROFILE": "work",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "LANG": "C",
    "TZ": "Pacific/Auckland",
    "COLUMNS": "100",
}
_KEPT = ("PATH", "HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HEADRACE_JAVA", "HEADRACE_JVM", "JAVA_HOME")

Command = Callable[..., str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and its lock, and nothing of the source tree or of the development lock."""
    place = tmp_path_factory.mktemp("wheel")
    _do(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", place, ROOT)
    _do(sys.executable, "-m", "venv", "--without-pip", place / "venv")
    [packages] = place.glob("venv/lib/python*/site-packages")
    (packages / "locked.pth").write_text(f"{locked_packages(ROOT / 'requirements.txt')}\n")
    # No index: what the wheel asks for must be in the lock, or this fails.
    _do(*PIP, "--python", place / "venv/bin/python", "install", "--no-index", *place.glob("*.whl"))
    return place / "venv/bin"


@pytest.fixture
def environment() -> dict[str, str]:
    """The variables of a user."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | USERS


@pytest.fixture
def headrace(installed: Path, tmp_path: Path, environment: dict[str, str]) -> Command:
    """The installed command, in a folder with a spec, with a user's variables: what it prints."""
    (tmp_path / "web.yaml").write_text(SPEC)
    return lambda *arguments: _do(installed / "headrace", *arguments, cwd=tmp_path, env=environment)


@pytest.fixture
def kafka_delta_ingest(installed: Path, tmp_path: Path, environment: dict[str, str]) -> Command:
    """The other installed command, in the same folder."""
    return lambda *arguments: _do(installed / "kafka-delta-ingest", *arguments, cwd=tmp_path, env=environment)


def test_the_wheel_needs_nothing_but_its_lock(installed: Path, tmp_path: Path):
    """Every module imports, out of the environment and not out of the source tree."""
    script = (
        "import headrace, importlib, pkgutil\n"
        "for each in pkgutil.walk_packages(headrace.__path__, 'headrace.'): importlib.import_module(each.name)\n"
        "print(headrace.__file__)\n"
    )
    where = _do(installed / "python", "-c", script, cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_the_wheel_has_the_pages_of_the_console(installed: Path, tmp_path: Path):
    script = "from importlib.resources import files; root = files('headrace.serve.console'); "
    script += "print(*sorted(each.name for folder in ('static', 'templates') for each in (root / folder).iterdir()))"
    names = _do(installed / "python", "-c", script, cwd=tmp_path, env={"PATH": os.environ["PATH"]}).split()
    sources = ROOT / "src" / "headrace" / "serve" / "console"
    assert names == sorted(each.name for folder in ("static", "templates") for each in (sources / folder).iterdir())
    assert {"console.css", "console.js", "base.html"} <= set(names)


def test_the_wheel_takes_a_spec_from_check_to_a_table(headrace: Command):
    assert headrace("check", "web.yaml", "--online").startswith("web: ")
    shown = _events(headrace("preview", "web.yaml", "--json"))
    assert shown[-1]["read"] == 10
    done = _events(headrace("run", "web.yaml", "--until", "latest", "--json"))
    totals = [each for each in done if each["event"] == "summary"][-1]
    assert totals["read"] == totals["routed"] + totals["dead"] + totals["filtered"] == 300
    rows = totals["routed"]
    assert _events(headrace("table", "stats", "lake/web", "--json"))[0]["rows"] == rows
    assert len(_events(headrace("table", "query", "lake/web", "--limit", "0", "--json"))) - 1 == rows
    assert "_source" in headrace("table", "info", "lake/web")
    counted = _events(headrace("table", "sql", "SELECT count(*) AS n FROM 'lake/web'", "--json"))
    assert counted[0]["row"] == {"n": rows}
    assert _events(headrace("table", "history", "lake/web", "--json"))[0]["rows_after"] == rows
    assert "web: not running" in headrace("status", "web.yaml")
    assert _events(headrace("dead-letters", "list", "web.yaml", "--json"))[-1]["dead_letters"] == totals["dead"]


@pytest.mark.parametrize(
    "configuration", ["danube.toml", "orasi.toml", "rivven-minimal.yaml", "kafka-delta-ingest.env"]
)
def test_the_wheel_imports_configurations_of_other_systems(headrace: Command, configuration: str, tmp_path: Path):
    shutil.copy(CONFIGURATIONS / configuration, tmp_path)
    shown = _events(headrace("import", configuration, "--json"))[-1]
    assert (shown["event"], shown["text"].startswith("#")) == ("spec", True)
    headrace("import", configuration, "--output", "imported.yaml")
    assert "pipeline:" in (tmp_path / "imported.yaml").read_text()


def test_the_wheel_takes_over_at_offsets(
    headrace: Command, kafka_delta_ingest: Command, kafka: Broker, topic: str, tmp_path: Path
):
    """Without Spark: from a command line to a spec, and from positions to the start of a pipeline."""
    assert "headrace takeover" in headrace("takeover", "--help")
    assert kafka_delta_ingest("--version").endswith("(Headrace)\n")
    assert "--ends_at_latest_offsets" in kafka_delta_ingest("ingest", "--help")
    headrace("table", "create", "lake/orders", "--column", "id bigint")
    produce(kafka.bootstrap, topic, [b'{"id": %d}' % number for number in range(3)], 0)
    arguments = ["ingest", topic, "./lake/orders", "--kafka", kafka.bootstrap, "--app_id", "orders"]
    headrace("import", "--output", "orders.yaml", "--", *arguments)
    positions = json.dumps({topic: {"0": 2}})
    taken_over = _events(headrace("takeover", "orders.yaml", "--from", f"offsets:{positions}", "--yes", "--json"))
    assert taken_over[-1]["recorded"]
    assert "already recorded" in headrace("takeover", "orders.yaml", "--from", f"offsets:{positions}")
    kafka_delta_ingest("repair", "--table_url", "lake/orders")


@pytest.mark.slow
def test_the_wheel_takes_over_from_kafka_delta_ingest(
    headrace: Command, kafka_delta_ingest: Command, kafka: Broker, topic: str, tmp_path: Path
):
    """From its command line to a spec, its txns to a start, and on with a pipeline: nothing twice, nothing lost."""
    headrace("table", "create", "lake/orders", "--column", "id bigint")
    produce(kafka.bootstrap, topic, [b'{"id": %d}' % number for number in range(3)])
    arguments = ["ingest", topic, "./lake/orders", "--kafka", kafka.bootstrap, "--app_id", "orders"]
    kafka_delta_ingest(*arguments, "--ends_at_latest_offsets")
    assert _ids(headrace) == [0, 1, 2]
    produce(kafka.bootstrap, topic, [b'{"id": %d}' % number for number in range(3, 5)])
    headrace("import", "--output", "orders.yaml", "--", *arguments)
    spec = (tmp_path / "orders.yaml").read_text()
    (tmp_path / "orders.yaml").write_text(re.sub(r"(?m)^pipeline: .*$", "pipeline: heir", spec))
    taken_over = _events(headrace("takeover", "orders.yaml", "--from", "kafka-delta-ingest:orders", "--yes", "--json"))
    assert taken_over[-1]["recorded"]
    headrace("run", "orders.yaml", "--until", "latest", "--json")
    assert _ids(headrace) == [0, 1, 2, 3, 4]


def test_the_wheel_shows_what_runs(headrace: Command, installed: Path, tmp_path: Path, environment: dict[str, str]):
    before = headrace("top", "--once")
    assert "web" not in before.split()
    run = subprocess.Popen(
        [installed / "headrace", "run", "web.yaml", "--json"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        eventually(lambda: str(run.pid) in headrace("top", "--once", "--json"), 120, "top shows the running pipeline")
        assert "web" in headrace("top", "--once").split()
    finally:
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 0


def _ids(headrace: Command) -> list[int]:
    """The ids of all rows."""
    rows = _events(headrace("table", "query", "lake/orders", "--order-by", "id", "--json"))
    return [each["row"]["id"] for each in rows if each["event"] == "row"]


@pytest.mark.slow
def test_the_wheel_runs_the_first_example_against_its_own_broker(installed: Path, tmp_path: Path):
    folder, port = shutil.copytree(ROOT / "examples/web-requests", tmp_path / "web-requests"), next(iter(free_ports()))
    for file in folder.iterdir():
        file.write_text(file.read_text().replace("localhost:9092", f"localhost:{port}"))
    with local_kafka(tmp_path / "headrace-kafka", port, installed / "headrace"):
        follow(folder, installed)


def _events(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def _do(*command: object, **how: Any) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False, **how)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
