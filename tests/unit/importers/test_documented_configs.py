"""The documented configurations of other systems: each becomes a spec that `check` accepts.

To rewrite the expected specs: `cd tests; python -m unit.importers.test_documented_configs`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.importers.detect import import_file
from headrace.importers.imported import Imported
from headrace.validate.load import examine, examine_text

CONFIGS = Path(__file__).parent / "configs"
EXPECTED = Path(__file__).parent / "expected"
FILES = sorted(path.name for path in CONFIGS.iterdir())
SECRETS = ("minioadmin", "scram-password", "registry-password")
VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_STORAGE_KEY",
    "EVENTS_ACCESS_KEY_ID",
    "EVENTS_SECRET_ACCESS_KEY",
    "KAFKA_PASSWORD",
    "SCHEMA_REGISTRY_PASSWORD",
)
# The examples of Rivven's page leave out what Rivven requires: a broker and topics.
INCOMPLETE = {"rivven-minimal.yaml", "rivven-full.yaml", "rivven-local-setup.yaml", "rivven-production.yaml"}


def _imported(name: str) -> Imported:
    imported = import_file(name, (CONFIGS / name).read_text(), {})
    assert imported is not None
    return imported


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The variables and files that the configurations refer to."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "value")
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n")
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_the_spec_is_the_expected_one(name: str):
    assert _imported(name).text() == (EXPECTED / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", FILES)
def test_the_printed_spec_is_valid(name: str, variables: Path):
    specs, diagnostics = examine_text(_imported(name).text(), variables)
    assert [str(each) for each in diagnostics if each.severity == "error"] == []
    assert [spec.pipeline for spec in specs] == [draft.plain()["pipeline"] for draft in _imported(name).drafts]


@pytest.mark.parametrize("name", FILES)
def test_the_file_itself_is_a_spec(name: str, variables: Path):
    """Nothing runs on values that a file lacks: they are errors, at their place in the file."""
    path = variables / name
    path.write_text((CONFIGS / name).read_text())
    specs, diagnostics = examine(path)
    errors = [each for each in diagnostics if each.severity == "error"]
    if name in INCOMPLETE:
        assert {each.key for each in errors} >= {"broker.bootstrap_servers"}
        assert {each.key for each in errors} == {each.name for each in _imported(name).findings.assumptions}
    else:
        printed, _ = examine_text(_imported(name).text(), variables)
        assert errors == []
        assert [spec.digest for spec in specs] == [spec.digest for spec in printed]


@pytest.mark.parametrize("name", FILES)
def test_secrets_are_not_printed(name: str, variables: Path):
    imported = _imported(name)
    output = imported.text() + "".join(str(each) for each in imported.diagnostics()) + repr(imported)
    assert [secret for secret in SECRETS if secret in output] == []


def test_the_only_part_that_is_not_ours_is_the_source():
    imported = _imported("rivven-production.yaml")
    assert [each.name for each in imported.findings.not_honoured] == ["sources.postgres"]
    assert "Debezium" in imported.findings.not_honoured[0].advice


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    for file in FILES:
        (EXPECTED / f"{file}.yaml").write_text(_imported(file).text())
