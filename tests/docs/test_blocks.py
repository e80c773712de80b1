"""Every YAML block is a spec that loads, and every Python block runs as it stands."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.pages import KEY_EXAMPLES, PAGES, Block, blocks, codes, name, paths, rows, section, whole
from headrace.spec import Spec
from headrace.spec.base import SpecModel, model_keys, parts_in
from headrace.spec.model import BranchSpec, TopicSpec
from headrace.validate.load import examine_text
from services.certs import Certificates

PRICED = ("features", "cluster_by")  # keys whose price is said to whoever uses them

_VARIABLES = (
    "DANUBE_TOKEN",
    *("CLIENT_SECRET", "HOT_STORE_PASSWORD", "HTTP_TOKEN", "KAFKA", "KAFKA_PASSWORD", "KEY_PASSWORD"),
    *("LAKE_KEY", "LAKE_SECRET", "LAKE_TOKEN"),
    *("MASK_KEY", "OTLP_TOKEN", "REGISTRY_PASSWORD"),
)


@pytest.fixture
def base(tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the examples refer to."""
    for variable in _VARIABLES:
        monkeypatch.setenv(variable, "made-up-for-examples")
    shown = {
        "ca.pem": certificates.authority,
        "client.pem": certificates.client_chain,
        "client.key": certificates.client_key,
    }
    for path, file in shown.items():
        (tmp_path / path).write_bytes(file.read_bytes())
        (tmp_path / path).chmod(0o600)
    (tmp_path / "shop.proto").write_text('syntax = "proto3"; package shop; message Order { int64 id = 1; }')
    (tmp_path / "schemas").mkdir()
    for path in ("order.avsc", "schemas/order.avsc"):
        (tmp_path / path).write_text('{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}')
    layout = '{"id": 7, "name": "shop.Order", "fields": [{"name": "id", "type": "bigint"}]}'
    (tmp_path / "schemas" / "order.json").write_text(layout)
    return tmp_path


# A block with the name of a file is a configuration of another system, which the page imports.
@pytest.mark.parametrize("block", [each for each in blocks("yaml") if not each.mark.endswith(".yaml")], ids=str)
def test_yaml_blocks_load(block: Block, base: Path):
    _, findings = examine_text(whole(block), base, str(block))
    assert not [str(finding) for finding in findings if not finding.key.endswith(PRICED)]


def test_every_key_has_an_example():
    used = {
        path
        for block in blocks("yaml", *KEY_EXAMPLES)
        for document in yaml.safe_load_all(whole(block))
        for path in paths(document, Spec)
    }
    assert not sorted({shared(path) for path in known(Spec)} - {shared(path) for path in used})


def shared(path: str) -> str:
    """What several formats, or both connections to Kafka, have needs no example for each."""
    path = re.sub(r"^source\.http\.kafka\.(plaintext|tls\b|sasl\b)", r"source.kafka.\1", path)
    return re.sub(r"^decode\.\w+\.(tombstone|key|registry\.\w+)$", r"decode.*.\1", path)


def known(part: type[SpecModel], prefix: str = "") -> Iterator[str]:
    """The dotted paths of all keys; what `tables` and outputs have of `table` and pipeline needs no second example."""
    for key, field in model_keys(part).items():
        yield prefix + key
        for inner in parts_in(field.annotation) if key != "tables" and part not in (BranchSpec, TopicSpec) else ():
            yield from known(inner, f"{prefix}{key}.")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks("python", page)], ids=name)
def test_python_blocks_run(page: Path, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One after the other, as a reader would type them, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks("python", page):
        code = compile("\n" * block.line + block.text, str(page), "exec")
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            exec(code, names)  # noqa: S102
    assert {path.name for path in tmp_path.glob("lake/_headrace/*/[!.]*")} <= _documented_state()


def _documented_state() -> set[str]:
    """What the state folder holds, as the reference says."""
    listed = rows(section("docs/reference/state.md", "## Locations").split("The state directory holds:")[1])
    return {codes(row[0])[0].rstrip("/") for row in listed}
