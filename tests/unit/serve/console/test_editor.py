"""The editor runs a spec over records, and reaches nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from headrace.serve.console.editor import (
    MAX_TEXT,
    NEW_RECORDS,
    NEW_SPEC,
    example_records,
    outside_changes,
    run_editor,
)
from headrace.serve.console.spec_text import spec_text
from headrace.spec import Spec
from headrace.validate.load import load, loads
from services.console import VIEWER, filled_pipeline, served_console

BASE = """
pipeline: shop
source:
  kafka:
    brokers: "${env:BROKERS}"
    topics: [orders]
    sasl: {mechanism: PLAIN, username: a, password: "${env:P}"}
decode: {avro: {schema: order.avsc}}
transform:
  - set: {x: "1"}
  - mask: {who: {sha256: "${env:MASK}"}}
table: {path: lake/orders}
"""


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    for name in ("BROKERS", "P", "MASK", "OTHER"):
        monkeypatch.setenv(name, "localhost:9092,127.0.0.11:9092")
    schema = {"type": "record", "name": "Order", "fields": [{"name": "who", "type": "string"}]}
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    return loads(BASE, tmp_path)[0]


def test_the_first_content_has_rows_and_a_dead_letter() -> None:
    result = run_editor(NEW_SPEC, NEW_RECORDS, None)
    assert result.counts == {"read": 3, "routed": 2, "dead": 1, "filtered": 0, "skipped": 0}
    assert {each.table.rpartition("/")[2] for each in result.tables} == {"page_view", "order"}
    (rejected,) = result.rejected
    assert (rejected.line, rejected.step, rejected.reason) == (3, "decode", "type")
    assert result.errors == 0
    assert result.milliseconds > 0


def test_errors_have_their_line() -> None:
    result = run_editor(NEW_SPEC.replace("type: bigint", "type: bigin"), NEW_RECORDS, None)
    assert [(each.line, each.severity) for each in result.diagnostics] == [(10, "error")]
    assert result.tables == ()
    assert [each.message for each in run_editor("pipeline: [", "", None).diagnostics] != []
    assert "another system" not in str(run_editor("pipeline: [", "", None))
    assert run_editor("", "", None).errors == 1
    assert run_editor(NEW_SPEC.replace("occurred_at AS", "nothing AS"), NEW_RECORDS, None).diagnostics[0].line == 4


def test_sizes_are_limited() -> None:
    assert "at most" in run_editor("x" * (MAX_TEXT + 1), "", None).error
    assert run_editor(NEW_SPEC, NEW_RECORDS.splitlines()[0] + "\n" + "{}\n" * 200, None).counts["read"] == 100


def changed(path: tuple[str | int, ...], value: object) -> str:
    content = yaml.safe_load(BASE)
    inner = content
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return yaml.safe_dump(content)


def refused(text: str, edited: Spec | None) -> list[str]:
    return [each.key for each in outside_changes(text, edited)]


def test_the_spec_of_the_pipeline_runs(edited: Spec) -> None:
    assert refused(BASE, edited) == []
    assert refused(changed(("transform", 0, "set", "x"), "2"), edited) == []
    content = yaml.safe_load(BASE)
    content["transform"].reverse()
    assert refused(yaml.safe_dump(content), edited) == []


REFUSED = [
    (("transform", 0, "set", "x"), "'${env:OTHER}'", "transform.*.set.x"),
    (("transform", 0, "set", "x"), "'${env:P}'", "transform.*.set.x"),
    (("transform", 0, "set", "x"), "'${file:/etc/passwd}'", "transform.*.set.x"),
    (("transform", 1, "mask", "who", "sha256"), "${env:P}", "transform.*.mask.who.sha256"),
    (("table", "path"), "lake/${env:P}", "table.path"),
    (("source", "kafka", "brokers"), "evil.example:9092", "source"),
    (("decode", "avro", "schema"), "/etc/passwd", "decode.avro.schema"),
    (("decode",), {"json": {"registry": "http://evil.example"}}, "decode.json.registry"),
    (("decode",), {"protobuf": {"descriptor": "/etc/passwd", "message": "x"}}, "decode.protobuf.descriptor"),
    (
        ("topics",),
        [{"name": "a", "topic": "a", "decode": {"avro": {"schema": "/etc/passwd"}}, "table": {"path": "lake/a"}}],
        "topics.*.decode.avro.schema",
    ),
    (("dead_letters",), {"path": "s3://evil/x"}, "dead_letters.path"),
    (("storage",), {"s3": {"endpoint": "https://evil.example"}}, "storage"),
    (("hot_store",), {"postgres": {"host": "evil.example"}}, "hot_store"),
]


@pytest.mark.parametrize(("path", "value", "key"), REFUSED)
def test_what_reaches_outside_is_refused(path: tuple[str | int, ...], value: object, key: str, edited: Spec) -> None:
    text = changed(path, value)
    assert key in refused(text, edited)
    result = run_editor(text, '{"who": "x"}', edited)
    assert result.errors > 0
    assert result.tables == ()
    assert "127.0.0.11" not in str([each.message for each in result.diagnostics])


def test_a_new_spec_has_a_harmless_source() -> None:
    plain = "pipeline: a\ntable: {path: lake/a}\nsource: "
    assert refused(plain + "{kafka: {brokers: 'localhost:9092', topics: [a]}}", None) == []
    for source in ("{kafka: {brokers: 'h:1', topics: [a], tls: {ca: /etc/passwd}}}", "{files: {path: /etc}}", "x"):
        assert refused(plain + source, None) == ["source"], source
    assert refused(f"{NEW_SPEC}---\n{NEW_SPEC}", None) == [""]


CONNECT = """
broker: {bootstrap_servers: [localhost:9092]}
sinks:
  events:
    connector: delta-lake
    topics: [events]
    consumer_group: delta
    config:
      table_uri: s3://bucket/${OTHER}
      s3: {region: us-east-1, access_key_id: key, secret_access_key: abc-plain-secret}
"""


def test_configurations_of_other_systems_are_refused(edited: Spec) -> None:
    """They may refer to variables in ways of their own, which only their importers know."""
    for of in (edited, None):
        result = run_editor(CONNECT, "{}", of)
        assert [each.message for each in result.diagnostics] == ["the configuration of another system"]
        assert "127.0.0.11" not in str(result)


def test_plain_secrets_of_an_imported_configuration_are_not_shown(edited: Spec, tmp_path: Path) -> None:
    file = tmp_path / "connect.yaml"
    file.write_text(CONNECT.replace("${OTHER}", "events"))
    (spec,) = load(file)
    shown = spec_text(spec)
    assert shown.file == ""
    assert "bucket/events" in shown.text
    assert "abc-plain-secret" not in shown.text
    assert refused(shown.text, spec) == []


def test_examples_fit_their_tables(tmp_path: Path) -> None:
    harness = filled_pipeline(tmp_path)
    with served_console(harness, {}) as served:
        html = served.page("/editor?pipeline=shop", None)
        assert "read 2 = routed 2 + dead 0 + filtered 0" in html
        form = {"pipeline": "shop", "spec": harness.spec.text, "records": '{"kind": "order", "id": "x"}'}
        part = served.client.post("/editor", form, **{"Sec-Fetch-Site": "same-origin", "X-Headrace-Part": "result"})[1]
    assert "<html" not in part
    assert "read 1 = routed 0 + dead 1" in part
    assert example_records(harness.spec, {}) == ""
    assert VIEWER not in html
