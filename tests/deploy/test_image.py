"""The Dockerfile: its instructions run on this machine, and its container runs read-only, without root, as it says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from headrace.runtime.child_process import spawn
from services.container import Image, built_image
from services.wait import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SPEC = """\
pipeline: web
source: {generate: {records: 2000, partitions: 2}}
table: {path: /var/lib/headrace/lake/web}
"""
TOKEN = "viewer-" + 32 * "0"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image, built from a new wheel; its file system is read-only, as in the manifests."""
    folder = tmp_path_factory.mktemp("image")
    context, specs, tokens = (folder / each for each in ("context", "specs", "tokens"))
    for each in (context / "dist", specs, tokens):
        each.mkdir(parents=True)
    _wheel(context / "dist")
    shutil.copy(ROOT / "requirements.txt", context)
    shutil.copytree(DEPLOY / "docker", context / "deploy/docker")
    (specs / "pipeline.yaml").write_text(SPEC)
    (tokens / "viewer").write_text(TOKEN)
    with built_image(DEPLOY / "docker/Dockerfile", context, folder / "build") as built:
        mounted = {specs: "/etc/headrace/specs", tokens: "/etc/headrace/tokens"}
        built.freeze(["/var/lib/headrace", "/var/log/headrace", "/tmp"], mounted)  # noqa: S108 - in the container
        yield built


def test_the_container_streams_into_a_table(image: Image, tmp_path: Path) -> None:
    """The image's own command, health check and stop signal; nothing but the two directories is written."""
    log = tmp_path / "headrace.log"
    with _running(image, log, *image.last.entrypoint, *image.last.command):
        eventually(lambda: _code(image, *image.last.health) == 0, within=60, say=log.read_text)
        eventually(lambda: _read(log) >= 2000, within=180, say=lambda: log.read_text()[-3000:])
        assert _code(image, *_probe("/ready")) == 0
    rows = _out(image, "headrace", "table", "stats", "/var/lib/headrace/lake/web", "--json")
    assert json.loads(rows.splitlines()[0])["rows"] + _dead(image) == 2000


def test_the_container_of_the_manifest(image: Image, tmp_path: Path) -> None:
    """Arguments, environment and probe of the deployment; other clients need the token."""
    deployment = yaml.safe_load((DEPLOY / "kubernetes/base/deployment.yaml").read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"] if "OPERATOR" not in each["name"]}
    ready = container["readinessProbe"]["exec"]["command"]
    log = tmp_path / "headrace.log"
    with _running(image, log, *image.last.entrypoint, *container["args"], **environment):
        eventually(lambda: _code(image, *ready, **environment) == 0, within=180, say=log.read_text)
        assert _code(image, *_probe("/live")) == 0
        assert "status 401" in _fails(image, *_probe("/ready"))
        assert "status 401" in _fails(image, *_probe("/metrics"))


def test_the_command_of_the_service(image: Image, tmp_path: Path) -> None:
    """With the variables of the unit and not those of the image."""
    unit = (DEPLOY / "systemd/headrace.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    environment = dict(each.split("=", 1) for each in settings["Environment"].split())
    host = replace(image, last=replace(image.last, environment={"PATH": "/usr/bin:/bin", "HOME": "/"}))
    log = tmp_path / "headrace.log"
    with _running(host, log, *shlex.split(settings["ExecStart"]), **environment):
        eventually(lambda: _code(image, *_probe("/ready")) == 0, within=180, say=log.read_text)
        assert _out(image, "ls", environment["HEADRACE_LOG_DIR"]).startswith("spark-")


def test_nothing_else_can_be_written(image: Image) -> None:
    for path in ("/opt/headrace/x", "/etc/x", "/opt/headrace/cache/headrace/x", "/etc/headrace/specs/x"):
        assert "Read-only file system" in _fails(image, "touch", path)
    identity = _out(image, "sh", "-c", "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status").split()
    assert identity == ["10001", "CapEff:", 16 * "0", "NoNewPrivs:", "1"]


def test_the_service_unit_is_valid_where_headrace_is_installed(image: Image) -> None:
    """systemd reads the unit, finds its programs, and rates its isolation."""
    unit = (DEPLOY / "systemd/headrace.service").read_text()
    tool = image.enter(
        "chroot",
        str(image.root),
        "sh",
        "-euc",
        f"cat > /tmp/headrace.service <<'UNIT'\n{unit}\nUNIT\n$0 $@ /tmp/headrace.service",
    )
    _succeeds([*tool, "systemd-analyze", "verify"])
    _succeeds([*tool, "systemd-analyze", "security", "--offline=true", "--threshold=20"])


def _wheel(folder: Path) -> None:
    _succeeds([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)])


def _probe(path: str) -> tuple[str, ...]:
    return ("python3", "-I", "/opt/headrace/probe.py", path)


@contextmanager
def _running(image: Image, log: Path, *command: str, **environment: str) -> Iterator[None]:
    """A command in a container, which ends well when it is asked to."""
    program, *arguments = image.container(*command, **environment)
    child = spawn([str(shutil.which(program)), *arguments], log=log)
    try:
        yield
        child.terminate()
        assert child.wait(45) == 0, log.read_text()[-3000:]
    finally:
        child.stop()


def _code(image: Image, *command: str, **environment: str) -> int:
    return _done(image.container(*command, **environment)).returncode


def _fails(image: Image, *command: str) -> str:
    done = _done(image.container(*command))
    assert done.returncode != 0
    return done.stderr


def _out(image: Image, *command: str) -> str:
    return _succeeds(image.container(*command))


def _read(log: Path) -> int:
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return sum(event["read"] for event in events if event["event"] == "batch")


def _dead(image: Image) -> int:
    lines = _out(image, "headrace", "dead-letters", "list", "/etc/headrace/specs/pipeline.yaml", "--json").splitlines()
    return int(json.loads(lines[-1])["dead_letters"])


def _succeeds(command: list[str]) -> str:
    done = _done(command)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _done(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
