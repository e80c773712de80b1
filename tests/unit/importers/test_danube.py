"""Configurations of Danube's sink: topics in one pipeline, variables, stores and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.importers.detect import import_file
from headrace.importers.imported import Imported
from headrace.validate.load import examine_imported

HEAD = """
connector_name = "sink"
danube_service_url = "http://localhost:6650"
[deltalake]
storage_backend = "s3"
s3_region = "eu-1"
"""
MAPPING = """
[[deltalake.topic_mappings]]
topic = "{topic}"
subscription = "{subscription}"
delta_table_path = "{path}"
schema_type = "Json"
schema = [{{ name = "id", data_type = "Int64" }}]
"""


def mapping(topic: str, path: str, subscription: str = "s") -> str:
    """One entry of `topic_mappings`."""
    return MAPPING.format(topic=topic, path=path, subscription=subscription)


def _imported(text: str, **variables: str) -> Imported:
    imported = import_file("connector.toml", text, variables)
    assert imported is not None
    return imported


def _specs(text: str, **variables: str) -> list[dict[str, Any]]:
    """The specs, which must be valid."""
    imported = _imported(text, **variables)
    _, diagnostics = examine_imported(imported, Path())
    assert [str(each) for each in diagnostics if each.severity == "error"] == []
    return [draft.plain() for draft in imported.drafts]


def _errors(text: str) -> str:
    return "\n".join(map(str, _imported(text).findings.errors))


def test_fifty_mappings_are_one_pipeline():
    mappings = [mapping(f"/d/t{number}", f"s3://lake-bucket/tables/t{number}") for number in range(50)]
    (spec,) = _specs(HEAD + "".join(mappings))
    assert len(spec["topics"]) == 50
    assert spec["source"]["danube"]["subscription"] == "sink-s"
    assert spec["table"]["path"] == "s3://lake-bucket/tables/{topic}"


def test_a_topic_with_two_tables_needs_two_pipelines():
    text = mapping("/d/a", "s3://lake-bucket/a", "one") + mapping("/d/a", "s3://lake-bucket/b", "two")
    first, second = _specs(HEAD + text)
    assert [first["pipeline"], second["pipeline"]] == ["sink", "sink-2"]
    assert [first["table"]["path"], second["table"]["path"]] == ["s3://lake-bucket/a", "s3://lake-bucket/b"]
    assert second["source"]["danube"]["subscription"] == "sink-two"


def test_tables_can_be_in_different_buckets():
    (spec,) = _specs(HEAD + mapping("/d/a", "s3://one-bucket/x/a") + mapping("/d/b", "s3://other-bucket/x/b"))
    assert spec["table"]["path"] == "s3://one-bucket/x/{topic}"


def test_topics_with_similar_names_have_entries_of_their_own():
    text = mapping("/d/a_b", "s3://lake-bucket/a") + mapping("/d/A_b", "s3://lake-bucket/b")
    (spec,) = _specs(HEAD + text)
    assert [entry["name"] for entry in spec["topics"]] == ["d-a_b", "d-a_b-2"]


def test_variables_override_keys():
    variables = {"DANUBE_SERVICE_URL": "http://broker:6650", "CONNECTOR_NAME": "other", "AWS_REGION": "us-1"}
    text = HEAD + mapping("/d/a", "s3://lake-bucket/a")
    (spec,) = _specs(text, S3_ENDPOINT="https://minio:9000", **variables)
    assert spec["source"]["danube"]["url"] == "http://broker:6650"
    assert spec["source"]["danube"]["plaintext"] is True
    assert (spec["pipeline"], spec["source"]["danube"]["subscription"]) == ("other", "other-s")
    assert spec["storage"]["s3"] == {"region": "us-1", "endpoint": "https://minio:9000"}
    assert sorted(_imported(text, **variables).findings.overrides) == sorted(variables)


def test_numbers_and_text_are_timestamps():
    text = mapping("/d/a", "s3://lake-bucket/a").replace("Int64", "Timestamp")
    (spec,) = _specs(HEAD + text)
    assert spec["table"]["coerce"] == {"timestamp": "s"}


def test_tables_of_the_sink_have_longs_for_uint64():
    text = _imported(HEAD + mapping("/d/a", "s3://lake-bucket/a").replace("Int64", "UInt64")).text()
    assert "- {name: id, type: UInt64}  # decimal(20,0); for a table of the sink, write bigint" in text


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('connector_name = "sink"', "", "connector_name cannot be empty"),
        ('"http://localhost:6650"', '""', "danube_service_url cannot be empty"),
        ('s3_region = "eu-1"', "", "s3_region is required when storage_backend = 's3'"),
        ('"s3"', '"ftp"', "deltalake.storage_backend: unknown value 'ftp'; expected: s3, azure, gcs"),
        ('"Int64"', '"Int63"', "data_type: unknown value 'Int63'; expected: Utf8, Int8"),
        ('schema = [{ name = "id", data_type = "Int64" }]', "", "Schema cannot be empty for topic '/d/a'"),
        ('schema_type = "Json"', "", "its documentation says Json, the sink uses Bytes"),
        ('"s3://lake-bucket/a"', '"gs://lake-bucket/a"', "Invalid Delta table path URL"),
        ('topic = "/d/a"', 'topic = ""', "Topic cannot be empty"),
        ("[[deltalake.topic_mappings]]", "[deltalake.topic_mapping]", "No topic mappings configured"),
        ("[deltalake]", "[retry]\nmax_retries = 101\n[deltalake]", "101 is out of range; expected: 0 to 100"),
    ],
)
def test_errors(before: str, after: str, message: str):
    text = HEAD + mapping("/d/a", "s3://lake-bucket/a")
    assert before in text
    assert message in _errors(text.replace(before, after, 1))
