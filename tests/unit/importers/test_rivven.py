"""Configurations of Rivven: sinks, variables, storage options and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.importers.detect import import_file
from headrace.importers.imported import Imported
from headrace.validate.load import examine_imported

SINK: dict[str, Any] = {
    "connector": "delta-lake",
    "topics": ["events"],
    "consumer_group": "group",
    "start_offset": "earliest",
    "config": {"table_uri": "s3://lake-bucket/events"},
}


def _imported(sink: dict[str, Any] | None = None, *, text: str = "", **variables: str) -> Imported:
    content = {"broker": {"bootstrap_servers": ["localhost:9092"]}, "sinks": {"events": {**SINK, **(sink or {})}}}
    imported = import_file("connect.yaml", text or json.dumps(content), variables)
    assert imported is not None
    return imported


def _spec(sink: dict[str, Any] | None = None, **variables: str) -> dict[str, Any]:
    """The spec, which must be valid."""
    imported = _imported(sink, **variables)
    _, diagnostics = examine_imported(imported, Path())
    assert [str(each) for each in diagnostics if each.severity == "error"] == []
    return imported.drafts[0].plain()


def _config(**keys: Any) -> dict[str, Any]:
    return {"config": {**SINK["config"], **keys}}


def test_the_defaults_of_rivven_are_kept():
    sink = {key: value for key, value in SINK.items() if key != "start_offset"}
    content = {"broker": {"bootstrap_servers": ["localhost:9092"]}, "sinks": {"events": sink}}
    spec = _imported(text=json.dumps(content)).drafts[0].plain()
    assert spec["source"]["rivven"]["start"] == "latest"
    assert spec["flush"] == {"every": "1m", "rows": 10_000}
    assert spec["storage"] == {"s3": {"region": "us-east-1"}}
    assert [column["name"] for column in spec["table"]["columns"]] == ["data", "event_type", "timestamp", "stream"]


def test_the_interval_and_the_attempts_of_a_conflict_are_keys_of_retry():
    """The interval is the first one for all errors, and doubles; direct appends have no conflict to wait for."""
    retry = _spec()["retry"]
    assert retry == {"unreachable": {"initial_interval": "100ms", "max_interval": "30s"}, "conflict": 4}


def test_storage_options_override_the_keys_of_the_store():
    options = {"AWS_REGION": "eu-1", "aws_endpoint_url": "https://s3.example.com", "timeout": "60s"}
    storage = _spec(_config(s3={"region": "us-1"}, storage_options=options))["storage"]["s3"]
    assert storage == {"region": "eu-1", "endpoint": "https://s3.example.com", "options": {"timeout": "60s"}}
    assert _spec(_config(storage_options={"region": "eu-2"}))["storage"]["s3"] == {"region": "eu-2"}


def test_options_of_another_store_are_reported():
    imported = _imported(_config(azure={"account": "account1"}))
    assert "sinks.events.config.azure.account: the table is not in Azure." in str(imported.findings.not_honoured[1])


def test_variables_are_references_and_defaults_are_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET", "hidden")
    keys = {"region": "${REGION:-eu-1}", "endpoint": "https://${HOST:-a}:9000"}
    keys |= {"access_key_id": "${SECRET}", "secret_access_key": "${SECRET}"}
    assert _spec(_config(s3=keys), HOST="minio")["storage"]["s3"] == {
        "region": "eu-1",
        "endpoint": "https://minio:9000",
        "access_key_id": "${env:SECRET}",
        "secret_access_key": "${env:SECRET}",
    }
    assert _imported(_config(s3=keys), HOST="minio").findings.overrides == ["HOST"]


def test_wildcards_are_a_pattern():
    source = _spec({"topics": ["orders", "shop.*", "v?"]})["source"]["rivven"]
    assert source["pattern"] == r"^(?:orders|shop\..*|v.)$"


def test_a_filter_is_a_condition():
    transforms = [{"type": "filter", "config": {"field": "kind's", "equals": "it's"}}]
    condition = "json_extract_string(data, '$.\"kind''s\"') = 'it''s'"
    assert _spec({"transforms": transforms})["transform"] == [{"where": condition}]


def test_overwrite_appends_as_in_rivven_and_is_reported():
    imported = _imported(_config(write_mode="overwrite"))
    assert "mode" not in imported.drafts[0].plain()["table"]
    assert "Set table.mode: overwrite" in imported.findings.not_honoured[-1].advice


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (_config(partition_columns=["user"]), "Invalid partition column 'user'; expected: data, event_type"),
        ({"config": {}}, "table_uri is required"),
        (_config(batch_size=0), "0 is out of range; expected: 1 to 1,000,000"),
        (_config(compression="brotli"), "unknown value 'brotli'; expected: snappy, gzip"),
        ({"transforms": [{"type": "mask"}]}, "unknown value 'mask'; expected: rename_field, remove_field"),
        ({"enabled": False}, "no enabled sink with connector: delta-lake"),
    ],
)
def test_errors(sink: dict[str, Any], message: str):
    assert message in "\n".join(map(str, _imported(sink).findings.errors))


def test_a_spec_is_no_configuration_of_rivven():
    assert import_file("web.yaml", "pipeline: web\nsinks: {}\n", {}) is None


def test_invalid_yaml_is_an_error_with_its_line():
    imported = import_file("connect.yaml", "sinks:\n  a: {b: 1, b: 2}\n", {})
    assert imported is not None
    assert str(imported.findings.errors[0]) == "connect.yaml:2:13 duplicate key 'b'; expected: unique keys"
