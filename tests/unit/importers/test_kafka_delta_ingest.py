"""The arguments and the environment of kafka-delta-ingest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.importers.detect import import_arguments
from headrace.importers.imported import Imported
from headrace.validate.load import examine_imported

PROJECT = ("ingest", "web_requests", "./lake/web_requests")
SCHEMAS = str(Path(__file__).parents[2] / "sample_topics" / "schemas")
FORK = ("ingest", "--table_base_uri", "./lake", "--topic", "events")


def _spec(*words: str, **variables: str) -> dict[str, Any]:
    """The spec, which must be valid."""
    imported = import_arguments(words, variables)
    _, diagnostics = examine_imported(imported, Path())
    assert [str(each) for each in diagnostics if each.severity == "error"] == []
    return imported.drafts[0].plain()


def _errors(*words: str, **variables: str) -> list[str]:
    return [str(error) for error in import_arguments(words, variables).findings.errors]


def _not_honoured(imported: Imported) -> list[str]:
    return [each.name for each in imported.findings.not_honoured]


def test_the_project_writes_into_one_existing_table():
    spec = _spec(*PROJECT, "-l", "60", "-a", "web_requests")
    assert spec["pipeline"] == "web_requests"
    assert spec["source"]["kafka"] == {"brokers": "localhost:9092", "topics": ["web_requests"]}
    assert spec["table"]["path"] == "./lake/web_requests"
    assert spec["table"]["create"] == "never"
    assert "route" not in spec
    assert spec["flush"] == {"every": "1m", "rows": 1_000_000, "bytes": "128MiB"}


def test_the_fork_writes_tables_by_type_or_topic():
    assert _spec(*FORK)["table"]["path"] == "./lake/{topic}"
    spec = _spec(*FORK, "--protobuf", "http://localhost:8081", "--message_type_whitelist", "^shop")
    assert spec["table"]["path"] == "./lake/{type}"
    assert spec["route"] == {"by": "type", "include": "^shop", "unrouted": "skip"}


def test_variables_stand_for_arguments_which_come_first():
    variables = {"KAFKA_TOPIC": "a", "TABLE_LOCATION": "./a", "ALLOWED_LATENCY": "10", "KAFKA_BROKERS": "localhost:1"}
    spec = _spec("ingest", "-l", "20", **variables)
    assert spec["source"]["kafka"]["topics"] == ["a"]
    assert spec["source"]["kafka"]["brokers"] == "localhost:1"
    assert spec["flush"]["every"] == "20s"


def test_arguments_can_be_written_in_all_ways():
    words = ("-l60", "-m=7", "--kafka=localhost:1", "-c", "-a", "app")
    spec = _spec(*PROJECT, *words)
    assert (spec["flush"]["every"], spec["flush"]["rows"], spec["pipeline"]) == ("1m", 7, "app")
    assert spec["source"]["kafka"]["brokers"] == "localhost:1"


def test_the_first_offset_is_one_after_the_one_that_is_sought():
    spec = _spec(*PROJECT, "--seek_offsets", '{"1":321, "0":123}')
    assert spec["source"]["kafka"]["start"] == {"offsets": {"0": 124, "1": 322}}


def test_transforms_are_jmespath():
    transforms = ("-t", "date: substr(meta.at, `0`, `10`)", "meta.offset: kafka.offset", "-t", "a:b")
    queries = {"date": "substr(meta.at, `0`, `10`)", "meta.offset": "kafka.offset", "a": "b"}
    assert _spec(*PROJECT, *transforms)["transform"] == [{"jmespath": {"set": queries, "allow_missing": True}}]
    fork = _spec(*FORK, "-t", "date: at^bids: null")["transform"]
    options = {"on_null": "drop", "allow_missing": True}
    assert fork == [{"jmespath": {"set": {"date": "at", "bids": "null"}, **options}}]


@pytest.mark.parametrize("words", [("a:b", "c:d"), ("a: b", "c :d"), ("a:b", "-t", "c:d"), ("a:b", "c:d", "-k=h:1")])
def test_transforms_need_no_space_after_the_colon(words: tuple[str, ...]):
    transform = [{"jmespath": {"set": {"a": "b", "c": "d"}, "allow_missing": True}}]
    assert _spec(*PROJECT, "-t", *words)["transform"] == transform
    assert _spec("ingest", "-t", *words, "--", *PROJECT[1:])["transform"] == transform


def test_the_location_of_the_table_is_no_transform():
    assert _spec("ingest", "web_requests", "-t", "a:b", "s3://bucket/web")["table"]["path"] == "s3://bucket/web"


def test_the_environment_has_the_certificates(monkeypatch: pytest.MonkeyPatch):
    variables = {f"KAFKA_DELTA_INGEST_{name}": "-----BEGIN CERTIFICATE-----" for name in ("CERT", "KEY", "CA")}
    imported = import_arguments((*PROJECT, "-K", "security.protocol=SSL"), variables)
    assert imported.drafts[0].plain()["source"]["kafka"]["tls"] == {
        "certificate": "${env:KAFKA_DELTA_INGEST_CERT}",
        "key": "${env:KAFKA_DELTA_INGEST_KEY}",
        "ca": "${env:KAFKA_DELTA_INGEST_CA}",
    }


def test_kafka_settings_are_keys_of_the_source():
    settings = ("fetch.wait.max.ms=100", "auto.offset.reset=latest", "isolation.level=read_uncommitted")
    kafka = _spec(*PROJECT, "-K", *settings)["source"]["kafka"]
    assert kafka["settings"] == {"fetch.max.wait.ms": "100"}
    assert (kafka["start"], kafka["isolation"]) == ("latest", "read_uncommitted")
    imported = import_arguments((*PROJECT, "-K", "queued.min.messages=1", "-K", "enable.auto.commit=false"), {})
    assert _not_honoured(imported) == ["--kafka_setting queued.min.messages", "--kafka_setting enable.auto.commit"]


def test_settings_of_another_protocol_are_reported():
    settings = ("security.protocol=PLAINTEXT", "ssl.ca.location=ca.pem", "sasl.username=me")
    imported = import_arguments((*PROJECT, "-K", *settings), {})
    reasons = [each.reason for each in imported.findings.not_honoured]
    assert reasons == [
        "security.protocol is PLAINTEXT, which does not use TLS",
        "security.protocol is PLAINTEXT, which does not use SASL",
    ]


def test_dead_letters_have_a_date():
    words = ("--dlq_table_location", "./dead", "--dlq_transform", "date: substr(timestamp, `0`, `10`)", "a: error")
    imported = import_arguments((*PROJECT, *words), {})
    dead_letters = {"path": "./dead", "transform": [{"jmespath": {"a": "error"}}]}
    assert imported.drafts[0].plain()["dead_letters"] == dead_letters
    assert imported.findings.fulfilled[0].reason == "every dead letter has the column date"


def test_a_password_argument_is_not_printed():
    settings = ("security.protocol=SASL_SSL", "sasl.mechanisms=PLAIN", "sasl.username=me", "sasl.password=hunter22")
    imported = import_arguments((*PROJECT, "-K", *settings), {})
    sasl = imported.drafts[0].plain()["source"]["kafka"]["sasl"]
    assert sasl == {"mechanism": "PLAIN", "username": "me", "password": "${env:KAFKA_PASSWORD}"}
    assert "hunter22" not in imported.text() + repr(imported) + "".join(map(str, imported.diagnostics()))


@pytest.mark.parametrize(
    ("words", "decode"),
    [
        ((), "json"),
        (("--json", ""), "json"),
        (("--json", "anything"), "json"),
        (("--json", "http://localhost:8081"), {"json": {"registry": {"url": "http://localhost:8081"}}}),
        (("--decompress_gzip",), {"json": {"compression": "gzip"}}),
        (("--avro", ""), {"avro": {"container": True}}),
        (("--avro", "http://localhost:8081"), {"avro": {"registry": {"url": "http://localhost:8081"}}}),
        (("--soe-avro", SCHEMAS), {"avro": {"single_object": SCHEMAS}}),
    ],
)
def test_formats_of_the_project(words: tuple[str, ...], decode: Any):
    assert _spec(*PROJECT, *words)["decode"] == decode


def test_options_that_are_no_part_of_a_spec_are_options_of_run():
    imported = import_arguments((*FORK, "-e", "--prometheus_port", "9000"), {"KDI_METRICS_PREFIX": "kdi"})
    assert imported.findings.run_options == [
        "--until latest",
        "--listen 127.0.0.1:9000 --metrics-profile kafka-delta-ingest",
        "--metrics-prefix kdi",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ingest",), "--topic: required argument is missing"),
        ((*PROJECT, "more"), "unexpected argument"),
        ((*PROJECT, "--allowed_latancy", "5"), "did you mean '--allowed_latency'?"),
        ((*PROJECT, "-l"), "--allowed_latency: a value is required"),
        ((*PROJECT, "-l", "soon"), "invalid value 'soon'"),
        ((*PROJECT, "-o", "middle"), "earliest or latest"),
        ((*PROJECT, "-t", "no colon"), "'no colon' - Each transform argument must be colon delimited"),
        ((*PROJECT, "-K", "no-equals"), "Each Kafka setting must be delimited by an '='"),
        ((*PROJECT, "--json", "", "--avro", ""), "--avro: cannot be used with --json"),
        ((*PROJECT, "--avro", "http::a//"), "Invalid url"),
        ((*PROJECT, "--seek_offsets", "5"), "not a JSON object"),
        ((*PROJECT, "--message_type_whitelist", "a"), "not an argument of this form"),
        ((*FORK, "-s", "h:1", "--prometheus_port", "1"), "Cannot specify both statsd_endpoint and prometheus_port"),
        (("repair", "--table_url", "./lake"), "headrace table repair"),
        (("help",), "unknown command 'help'"),
    ],
)
def test_errors(words: tuple[str, ...], message: str):
    assert message in "\n".join(_errors(*words))


def test_a_scram_user_that_is_no_json_is_an_error_that_does_not_quote_it():
    errors = _errors(*PROJECT, KAFKA_DELTA_INGEST_SCRAM_JSON="hunter22")
    assert errors == ["environment KAFKA_DELTA_INGEST_SCRAM_JSON: not a JSON object with username and password"]


def test_settings_are_available_by_flag():
    imported = import_arguments((*PROJECT, "-a", "My App"), {})
    assert imported.settings["app_id"].value == "My App"
    assert json.dumps(imported.drafts[0].plain()["pipeline"]) == '"my-app"'
