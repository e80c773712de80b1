"""The deployment files, read by the programs that will read them: kustomize, compose, schemas of Kubernetes."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from services.programs import (
    COMPOSE,
    DOCKERFILE_UTILS,
    KUBERNETES_SCHEMAS,
    KUSTOMIZE,
    PROMETHEUS_OPERATOR,
    go_program,
    node_package,
    python_wheel,
)

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
_DEFINITIONS = "kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/_definitions.json"
_VALIDATE = """
import { readFileSync } from "node:fs";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";
new ServiceMonitor(JSON.parse(readFileSync(0))).validate();
"""
# Kind of a manifest, and its definition in the API of Kubernetes.
KINDS = {
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
    "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "Service": "io.k8s.api.core.v1.Service",
    "ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
}


@pytest.mark.parametrize("version", ["1.30.0", "1.37.0"])
@pytest.mark.parametrize("folder", ["base", "example"])
def test_manifests_fit_the_api_of_kubernetes(folder: str, version: str) -> None:
    """Unknown fields are errors, too."""
    with zipfile.ZipFile(python_wheel(KUBERNETES_SCHEMAS)) as wheel:
        definitions = json.loads(wheel.read(_DEFINITIONS.format(version=version)))
    registry: Registry[Any] = Registry().with_resource("/api/_definitions.json", _resource(definitions))
    documents = [each for each in _kustomized(folder) if each["kind"] != "ServiceMonitor"]  # of an extension
    assert {"Deployment", "PodDisruptionBudget", "NetworkPolicy"} <= {each["kind"] for each in documents}
    for document in documents:
        schema = {"$ref": f"/api/_definitions.json#/$defs/{KINDS[document['kind']]}"}
        Draft202012Validator(schema, registry=registry).validate(document)


def test_the_example_selects_and_mounts_what_it_creates() -> None:
    documents = {each["kind"]: each for each in _kustomized("example")}
    pod = documents["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    for kind, path in (("Service", "selector"), ("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        selector = documents[kind]["spec"][path]
        assert selector.get("matchLabels", selector).items() <= labels, kind
    assert documents["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes["specs"]["configMap"]["name"] == documents["ConfigMap"]["metadata"]["name"]
    assert volumes["state"] == {
        "name": "state",
        "persistentVolumeClaim": {"claimName": documents["PersistentVolumeClaim"]["metadata"]["name"]},
    }
    assert {each["metadata"]["namespace"] for each in documents.values()} == {"headrace"}


def test_the_service_monitor_fits_its_definition() -> None:
    """By the validator that is generated from the definition of the Prometheus Operator."""
    [monitor] = [each for each in _kustomized("example") if each["kind"] == "ServiceMonitor"]
    command = ["node", "--input-type=module", "-e", _VALIDATE]
    _out(command, node_package(PROMETHEUS_OPERATOR), json.dumps(monitor))
    monitor["spec"]["endpoints"][0]["interval"] = 15
    with pytest.raises(AssertionError, match="interval must be string"):
        _out(command, node_package(PROMETHEUS_OPERATOR), json.dumps(monitor))


@pytest.mark.parametrize("stack", ["analytics", "danube"])
def test_compose_loads_the_stack(stack: str) -> None:
    """Schema, references between services and volumes; the variables stay as they are."""
    command = [str(go_program(COMPOSE)), "--no-interpolation", "--format", "json", "compose.yaml"]
    model = json.loads(_out(command, DEPLOY / "compose" / stack))
    assert model["services"]["headrace"]["read_only"] is True


def test_the_dockerfile_is_linted() -> None:
    program = node_package(DOCKERFILE_UTILS) / "node_modules/.bin/dockerfile-utils"
    assert _out([str(program), "lint", str(DEPLOY / "docker/Dockerfile")], DEPLOY) == ""


def _kustomized(folder: str) -> list[dict[str, Any]]:
    text = _out([str(go_program(KUSTOMIZE)), "build", folder], DEPLOY / "kubernetes")
    return list(yaml.safe_load_all(text))


def _resource(definitions: dict[str, Any]) -> Resource[Any]:
    return Resource.from_contents({"$schema": "https://json-schema.org/draft/2020-12/schema", **definitions})


def _out(command: list[str], folder: Path, sent: str = "") -> str:
    done = subprocess.run(command, cwd=folder, input=sent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
