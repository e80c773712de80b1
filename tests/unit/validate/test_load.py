"""Loading configurations of other systems as specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import SpecError
from headrace.importers.detect import import_arguments
from headrace.serve.redaction import Redaction
from headrace.validate.load import load, load_imported, loads

CONFIGS = Path(__file__).parents[1] / "importers" / "configs"


def test_a_secret_in_plain_text_is_used_and_not_stored():
    """Where the file is used directly, no variable needs to be set."""
    (spec,) = load(CONFIGS / "rivven-minio.yaml")
    assert spec.storage_profile()["s3"]["secret_access_key"] == "minioadmin"
    assert "minioadmin" not in spec.text + repr(spec)
    assert "${env:EVENTS_SECRET_ACCESS_KEY}" in spec.text
    assert Redaction([spec]).text("minioadmin") == "[redacted]"


def test_files_with_different_secrets_for_one_variable_are_refused(tmp_path: Path):
    text = (CONFIGS / "rivven-minio.yaml").read_text()
    for name, secret in (("one", "first-secret"), ("two", "second-secret")):
        (tmp_path / f"{name}.yaml").write_text(text.replace("minioadmin", secret).replace("events:", "clicks:", 1))
    load(tmp_path / "one.yaml")
    with pytest.raises(SpecError, match="another file has a different secret for CLICKS_ACCESS_KEY_ID") as error:
        load(tmp_path / "two.yaml")
    assert "second-secret" not in str(error.value)
    (tmp_path / "one.yaml").write_text((tmp_path / "one.yaml").read_text().replace("first-secret", "renewed-secret"))
    (spec,) = load(tmp_path / "one.yaml")
    assert spec.storage_profile()["s3"]["access_key_id"] == "renewed-secret"


def test_a_spec_that_was_stored_finds_the_secret_again():
    (spec,) = load(CONFIGS / "rivven-minio.yaml")
    (restored,) = loads(spec.text)
    assert restored.storage_profile() == spec.storage_profile()


def test_values_that_are_missing_are_errors():
    with pytest.raises(
        SpecError, match=r"rivven-minimal.yaml:2:3 sinks.events.topics: Sink 'events' must have"
    ) as error:
        load(CONFIGS / "rivven-minimal.yaml")
    assert "broker.bootstrap_servers: required key is missing" in str(error.value)


def test_the_result_is_passed_on():
    results = []
    load(CONFIGS / "danube.toml", results.append)
    assert [imported.system for imported in results] == ["Danube's sink for Delta Lake"]


def test_relative_paths_are_those_of_the_directory(tmp_path: Path):
    imported = import_arguments(("ingest", "events", "./lake/events"), {})
    (spec,) = load_imported(imported, tmp_path)
    assert spec.table.path == str(tmp_path / "lake" / "events")
