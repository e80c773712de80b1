"""Files of environment variables, and the delta writer that they configure."""

from __future__ import annotations

import pytest

from headrace.importers.analytics import TEXTS
from headrace.importers.detect import import_environment, import_file
from headrace.importers.environment import file_settings
from headrace.importers.settings import Findings

WRITER = "KAFKA_BOOTSTRAP_SERVERS=localhost:9092\nDELTA_TABLE_PATH=s3://analytics/events\n"


def test_values_can_be_quoted_and_commented():
    text = """
# a comment
export A=1
B = "two # words" # a comment
C='$raw \\n'
D=a=b#c  # a comment
E="quo\\"ted"
F=
"""
    settings = file_settings(text, "writer.env", Findings())
    assert {name: setting.value for name, setting in settings.items()} == {
        "A": "1",
        "B": "two # words",
        "C": "$raw \\n",
        "D": "a=b#c",
        "E": 'quo"ted',
        "F": "",
    }
    assert str(settings["B"].place) == "writer.env:4"


@pytest.mark.parametrize(("line", "message"), [("A B", "not a line NAME=value"), ("A=1\nA=2", "duplicate variable")])
def test_other_lines_are_errors(line: str, message: str):
    findings = Findings()
    file_settings(line, "writer.env", findings)
    assert [error.message for error in findings.errors] == [message]


def test_an_unknown_variable_is_an_error_with_its_line():
    imported = import_file("writer.env", f"{WRITER}BATCH_SISE=5\n", {})
    assert imported is not None
    (error,) = imported.findings.errors
    assert (error.line, error.key, error.suggestion) == (3, "BATCH_SISE", "BATCH_SIZE")


def test_variables_that_have_no_effect_together_are_reported():
    text = (
        "KAFKA_TOPIC=a\nTABLE_LOCATION=./a\nAWS_REGION=eu-1\nSCHEMA_REGISTRY_USERNAME=me\nKAFKA_SETTING_CLIENT_ID=a\n"
    )
    imported = import_file("ingest.env", text, {})
    assert imported is not None
    names = [each.name for each in imported.findings.not_honoured]
    assert names == ["AWS_REGION", "SCHEMA_REGISTRY_USERNAME", "KAFKA_SETTING_CLIENT_ID"]


def test_all_sixteen_columns_and_the_defaults_are_there():
    imported = import_environment({"KAFKA_BOOTSTRAP_SERVERS": "localhost:9092", "DELTA_TABLE_PATH": "s3://lake/events"})
    spec = imported.drafts[0].plain()
    assert list(spec["transform"][0]["set"]) == ["timestamp", *TEXTS, "interaction_value", "metadata"]
    assert len(spec["transform"][0]["set"]) == 16
    assert spec["flush"] == {"every": "10s", "rows": 100}
    assert spec["storage"]["s3"] == {"endpoint": "http://minio:9000", "region": "us-east-1", "allow_http": True}
    assert {each.name for each in imported.findings.assumptions} == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def test_variables_of_the_process_need_no_references():
    """Headrace reads the same variables for credentials."""
    variables = {"KAFKA_BOOTSTRAP_SERVERS": "localhost:9092", "DELTA_TABLE_PATH": "s3://lake/events"}
    imported = import_environment({**variables, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hidden"})
    assert imported.findings.assumptions == imported.findings.secrets == []
    assert "hidden" not in imported.text()


def test_an_environment_of_nothing_known_is_an_error():
    assert "no variables of a known system" in str(import_environment({"HOME": "/"}).findings.errors[0])
