"""Rules of the HTTP source and of the spool."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.validate.load import examine_text

KAFKA = "kafka: {brokers: 'localhost:9092'}"
ELSEWHERE = "listen: '0.0.0.0:8080', topics: [a]"


def messages(folder: Path, source: str, more: str = "", table: str = "./lake/t") -> list[str]:
    text = f"pipeline: p\nsource: {{http: {{{source}}}}}\ntable: {{path: '{table}'}}\n{more}"
    _, diagnostics = examine_text(text, folder)
    return [f"{'.'.join(map(str, each.key.split('.')))}: {each.message}" for each in diagnostics]


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "x")


@pytest.mark.parametrize(
    "source",
    [
        "topics: [a]",
        "pattern: 'a.*'",
        "preset: analytics",
        "listen: 'localhost:0', topics: [a]",
        "listen: '[::1]:8080', topics: [a]",
        f"{ELSEWHERE}, tokens: ['${{env:TOKEN}}'], plaintext: true",
        f"{ELSEWHERE}, dangerously_open: true, plaintext: true",
        "topics: [a], spool: {path: 's3://lake/spool'}",
        "topics: [a], kafka: {brokers: 'localhost:9092'}",
        "preset: analytics, kafka: {brokers: 'kafka:9092', tls: true, retry_window: 10m}",
    ],
)
def test_accepted(tmp_path: Path, source: str) -> None:
    assert messages(tmp_path, source) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cors: ['https://a.example']", "source.http: no topic is accepted"),
        ("topics: [a, b, a]", "source.http.topics[2]: duplicate topic 'a'"),
        (f"{ELSEWHERE}, plaintext: true", "source.http.listen: other machines can send records without a token"),
        (f"{ELSEWHERE}, tokens: ['${{env:TOKEN}}']", "source.http.listen: unencrypted connections from other machines"),
        (
            f"{ELSEWHERE}, tokens: ['${{env:TOKEN}}'], dangerously_open: true, plaintext: true",
            "source.http.dangerously_open: conflicts with tokens",
        ),
        ("topics: [a], tls: {certificate: x, key: '${env:TOKEN}'}", "source.http.tls.certificate: no certificate"),
        (
            "topics: [a], max_body: 20MB, spool: {max_bytes: 16MB}",
            "source.http.spool.max_bytes: a request of 20,000,000 bytes (max_body) never fits into 16,000,000 bytes",
        ),
        ("topics: [a], kafka: {}", "source.http.kafka.brokers: required key is missing"),
        ("topics: [a], kafka: {brokers: 'kafka'}", "source.http.kafka.brokers"),
        (
            "topics: [a], kafka: {brokers: 'kafka:9092'}",
            "source.http.kafka.brokers: an unencrypted connection to a broker on another host",
        ),
        (f"topics: [a], {KAFKA}, spool: {{}}", "source.http.spool: conflicts with kafka"),
        (f"pattern: 'a.*', {KAFKA}", "source.http.pattern: not used with kafka"),
        (
            "topics: [a], kafka: {brokers: 'localhost:9092', tls: true, plaintext: true}",
            "source.http.kafka.plaintext: conflicts with tls",
        ),
        (
            "topics: [a], kafka: {brokers: 'localhost:9092', sasl: {mechanism: GSSAPI}}",
            "source.http.kafka.sasl.mechanism: records cannot be sent with GSSAPI",
        ),
        (
            "topics: [a], kafka: {brokers: 'localhost:9092', tls: {ca: x}}",
            "source.http.kafka.tls.ca: no certificate",
        ),
        (
            "topics: [a], kafka: {brokers: 'localhost:9092', sasl: {mechanism: PLAIN, username: u, password: hunter2}}",
            "source.http.kafka.sasl.password",
        ),
    ],
)
def test_refused(tmp_path: Path, source: str, message: str) -> None:
    assert [each for each in messages(tmp_path, source) if each.startswith(message)]


def test_plain_text_tokens_are_refused(tmp_path: Path) -> None:
    (found,) = messages(tmp_path, "topics: [a], tokens: [hunter2]")
    assert found.startswith("source.http.tokens")
    assert "hunter2" not in found


def test_a_spool_in_an_object_store_is_asked_for(tmp_path: Path) -> None:
    (message,) = messages(tmp_path, "topics: [a]", table="s3://lake/t")
    assert message.startswith("source.http.spool.path: no directory for the spool")
    for path in ("./spool", "s3://lake/spool", "az://lake/spool", "gs://lake/spool"):
        assert messages(tmp_path, f"topics: [a], spool: {{path: '{path}'}}", table="s3://lake/t") == []


@pytest.mark.parametrize("uri", ["{}", "s3://lake{}"])
@pytest.mark.parametrize("path", ["/state", "/state/ledger", "/state/spool/0", "/"])
def test_a_spool_in_the_state_is_refused(tmp_path: Path, uri: str, path: str) -> None:
    """Both would have a lease in one directory, or one would delete the other."""
    state, table = uri.format("/pipelines/state"), "s3://tables/t"
    spool = uri.format(f"/pipelines{path}".rstrip("/"))
    (message,) = messages(tmp_path, f"topics: [a], spool: {{path: '{spool}'}}", f"state: '{state}'", table)
    assert message == f"source.http.spool.path: overlaps with the state ({state})"
    for other in (f"{state}/spool", f"{state}2"):
        assert messages(tmp_path, f"topics: [a], spool: {{path: '{other}'}}", f"state: '{state}'", table) == []


def test_two_pipelines_with_one_spool_are_refused(tmp_path: Path) -> None:
    pipeline = "pipeline: {0}\nsource: {{http: {{topics: [a], spool: {{path: ./spool}}}}}}\ntable: {{path: ./{0}}}\n"
    specs, diagnostics = examine_text("---\n".join(map(pipeline.format, "ab")), tmp_path)
    assert len(specs) == 2
    assert [(each.key, each.message) for each in diagnostics] == [
        ("source.http.spool.path", f"duplicate spool {tmp_path}/spool")
    ] * 2


@pytest.mark.parametrize("path", ["s3://lake/t", "s3://lake/t/spool", "s3://lake/t/_headrace/q/spool"])
def test_a_spool_in_a_table_would_be_deleted_by_vacuum(tmp_path: Path, path: str) -> None:
    (message,) = messages(tmp_path, f"topics: [a], spool: {{path: '{path}'}}", table="s3://lake/t")
    assert message == "source.http.spool.path: overlaps with a table (s3://lake/t)"


def test_executors_of_a_cluster_must_reach_the_spool(tmp_path: Path) -> None:
    cluster = (
        f"state: {tmp_path}/state\nspark: {{master: 'spark://10.0.0.1:7077', shared_mounts: [{tmp_path}/shared]}}\n"
    )
    found = messages(tmp_path, "topics: [a]", cluster)
    assert [each for each in found if "executors of spark://10.0.0.1:7077 cannot read the spool" in each]
    shared = messages(tmp_path, f"topics: [a], spool: {{path: {tmp_path}/shared/spool}}", cluster)
    assert not [each for each in shared if "the spool" in each]
    objects = messages(tmp_path, "topics: [a], spool: {path: 's3://lake/spool'}", cluster)
    assert not [each for each in objects if "the spool" in each]


def test_kafka_needs_no_local_directory(tmp_path: Path) -> None:
    assert messages(tmp_path, f"topics: [a], {KAFKA}", table="s3://lake/t") == []


def test_an_unknown_key_of_the_connection_has_its_place(tmp_path: Path) -> None:
    text = (
        "pipeline: p\nsource:\n  http:\n    topics: [a]\n    kafka:\n      broker: localhost:9092\ntable: {path: ./t}\n"
    )
    _, diagnostics = examine_text(text, tmp_path)
    [unknown] = [each for each in diagnostics if "unknown key" in each.message]
    assert (unknown.line, unknown.column, unknown.suggestion) == (6, 7, "brokers")


def test_several_topics_in_one_merged_table(tmp_path: Path) -> None:
    text = "pipeline: p\nsource: {http: {topics: [a, b]}}\ntable: {path: ./t, mode: upsert, merge: {keys: [id]}}\n"
    _, diagnostics = examine_text(text, tmp_path)
    assert any("several topics in one table" in each.message for each in diagnostics)
