"""Rules that the deployment files keep: no passwords, no root, nothing published to other machines, pinned images."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.validate.load import examine_text
from headrace.version import VERSION
from services.container import exec_form, instructions

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
STACKS = sorted((DEPLOY / "compose").glob("*/compose.yaml"))
SPECS = sorted(DEPLOY.rglob("specs/*.yaml"))
MANIFESTS = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
WRITABLE = ("/var/lib/headrace", "/tmp")  # noqa: S108 - a volume
_SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|KEY|ROOT_USER")
_PROBE = ["python3", "-I", "/opt/headrace/probe.py"]


def _name(path: Path) -> str:
    return path.relative_to(DEPLOY).as_posix()


@pytest.mark.parametrize("path", SPECS, ids=_name)
def test_specs_are_correct(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{env:(\w+)\}", path.read_text()):
        monkeypatch.setenv(name, 32 * "0")
    specs, diagnostics = examine_text(path.read_text(), path.parent, str(path))
    assert specs
    assert not [str(each) for each in diagnostics]


@pytest.mark.parametrize("path", STACKS, ids=_name)
class TestCompose:
    """Both stacks."""

    def test_secrets_come_from_the_environment_and_are_required(self, path: Path) -> None:
        text = path.read_text()
        required = re.findall(r"\$\{(\w+):\?[^}]+\}", text)
        assert len(required) == text.count("$")
        for name, value in _variables(path):
            assert not _SECRET.search(name) or value.startswith("${"), name
        example = (path.parent / "env.example").read_text()
        assert {*required} == {*re.findall(r"^(\w+)=$", example, re.MULTILINE)}

    def test_images_are_pinned(self, path: Path) -> None:
        for name, service in _services(path).items():
            assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", service["image"]), name
        assert _services(path)["headrace"]["image"] == f"headrace:{VERSION}"

    def test_ports_are_published_on_this_machine_only(self, path: Path) -> None:
        ports = [port for service in _services(path).values() for port in service.get("ports", [])]
        assert ports
        assert all(port.startswith("127.0.0.1:") for port in ports)

    def test_headrace_is_isolated(self, path: Path) -> None:
        headrace = _services(path)["headrace"]
        assert headrace["read_only"] is True
        assert headrace["init"] is True
        assert headrace["cap_drop"] == ["ALL"]
        assert headrace["security_opt"] == ["no-new-privileges:true"]
        assert "user" not in headrace  # that of the image
        assert headrace["healthcheck"]["test"] == ["CMD", *_PROBE, "/ready"]
        assert _seconds(headrace["stop_grace_period"]) > 30

    def test_what_is_written_has_a_volume(self, path: Path) -> None:
        headrace = _services(path)["headrace"]
        mounted = [volume.split(":")[1] for volume in headrace["volumes"]] + headrace["tmpfs"]
        assert [each.split(":")[0] for each in mounted] == ["/etc/headrace/specs", *WRITABLE]
        for spec in (path.parent / "specs").glob("*.yaml"):
            folders = re.findall(r"spool: \{path: ([^,}]+)", spec.read_text())
            assert all(folder.startswith("/var/lib/headrace/") for folder in folders)

    def test_the_bucket_is_created_private(self, path: Path) -> None:
        """By Headrace, which makes no policy; nothing in the stack makes one."""
        assert all("create_bucket: true" in spec.read_text() for spec in (path.parent / "specs").glob("*.yaml"))
        assert "anonymous" not in path.read_text()
        assert "policy" not in path.read_text()


def test_the_image_is_isolated() -> None:
    steps = instructions((DEPLOY / "docker/Dockerfile").read_text())
    last = steps[max(number for number, (name, _) in enumerate(steps) if name == "FROM") :]
    values = dict(last)
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", values["USER"])
    assert [name for name, _ in last].index("USER") > [name for name, _ in last].index("COPY")
    assert exec_form(values["ENTRYPOINT"]) == ["headrace"]
    assert exec_form(values["CMD"])[0] == "run"
    assert exec_form(values["HEALTHCHECK"].partition(" CMD ")[2]) == [*_PROBE, "/live"]
    assert "ADD" not in dict(steps)


def test_the_image_holds_locked_packages_only() -> None:
    installs = [
        value for name, value in instructions((DEPLOY / "docker/Dockerfile").read_text()) if "install -" in value
    ]
    pip = [value for value in installs if " pip " in value]
    assert [("--require-hashes" in value, "--no-index" in value) for value in pip] == [(True, False), (False, True)]


def test_the_build_context_holds_what_is_copied_and_nothing_else() -> None:
    copied = [
        value.split()[0]
        for name, value in instructions((DEPLOY / "docker/Dockerfile").read_text())
        if name == "COPY" and not value.startswith("--from")
    ]
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().split()
    assert ignored == ["*", *(f"!{each}" for each in copied)]


def test_the_pod_is_isolated() -> None:
    pod = _manifest("base/deployment.yaml")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == _image("USER")
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["image"] == f"headrace:{VERSION}"
    assert {"requests", "limits"} == container["resources"].keys()
    assert pod["terminationGracePeriodSeconds"] > 30


def test_the_pod_is_probed() -> None:
    [container] = _manifest("base/deployment.yaml")["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    assert container["readinessProbe"]["exec"]["command"] == [*_PROBE, "/ready"]
    [port] = container["ports"]
    assert str(port["containerPort"]) == _image("EXPOSE")
    assert f"0.0.0.0:{port['containerPort']}" in container["args"]


def test_the_pod_writes_to_volumes() -> None:
    pod = _manifest("base/deployment.yaml")["spec"]["template"]["spec"]
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert {path for path, mount in mounts.items() if not mount.get("readOnly")} == {*WRITABLE}
    assert {each["name"] for each in mounts.values()} == {each["name"] for each in pod["volumes"]}


def test_manifests_hold_no_secret() -> None:
    """They refer to Secrets, which are made where the cluster is."""
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            assert document.get("kind") != "Secret", path
    deployment = _manifest("base/deployment.yaml")
    for variable in deployment["spec"]["template"]["spec"]["containers"][0]["env"]:
        assert not _SECRET.search(variable["name"]) or variable["name"].endswith("_FILE")


def test_prometheus_finds_the_endpoint() -> None:
    [endpoint] = _manifest("components/prometheus/servicemonitor.yaml")["spec"]["endpoints"]
    service = _manifest("base/service.yaml")
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    pod = _manifest("base/deployment.yaml")["spec"]["template"]["spec"]
    [tokens] = [volume["secret"]["secretName"] for volume in pod["volumes"] if volume["name"] == "tokens"]
    assert endpoint["authorization"]["credentials"] == {"name": tokens, "key": "viewer"}


def test_the_service_does_not_repeat_errors() -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / "systemd/headrace.service").read_text(), re.MULTILINE))
    assert settings["Restart"] == "on-abnormal"
    assert int(settings["TimeoutStopSec"]) > 30
    assert settings["DynamicUser"] == "yes"


def test_files_of_secrets_are_examples_without_values() -> None:
    for path in (*DEPLOY.rglob("*env*"),):
        if path.is_file():
            assert not re.findall(r"^\w+=.+$", path.read_text(), re.MULTILINE), path
            assert not path.stat().st_mode & stat.S_IXUSR


def _services(path: Path) -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["services"]
    return services


def _variables(path: Path) -> Iterator[tuple[str, str]]:
    for service in _services(path).values():
        yield from service.get("environment", {}).items()


def _seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def _image(instruction: str) -> str:
    return dict(instructions((DEPLOY / "docker/Dockerfile").read_text()))[instruction]


def _manifest(path: str) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / path).read_text())
    return manifest
