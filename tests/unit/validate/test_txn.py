"""`table.txn`: what it needs, and tables of kafka-delta-ingest that `check --online` finds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.spec.txn import TxnSpec
from headrace.validate.load import examine_text, loads
from headrace.validate.online import online
from services.kafka_delta_ingest import commit, one_table, send, set_options

SPEC = """
pipeline: web
source: {{kafka: {{brokers: "localhost:9092", {topics}}}}}
table: {{path: ./lake/web, {options}}}
"""


def errors(tmp_path: Path, options: str, topics: str = "topics: [web]") -> list[str]:
    _, diagnostics = examine_text(SPEC.format(options=options, topics=topics), tmp_path / "web.yaml")
    return [each.message for each in diagnostics if each.severity == "error"]


@pytest.mark.parametrize(
    ("txn", "app_id"), [("kafka-delta-ingest", "kafka_delta_ingest"), ("{kafka-delta-ingest: web}", "web")]
)
def test_the_app_id(tmp_path: Path, txn: str, app_id: str) -> None:
    [spec] = loads(SPEC.format(options=f"txn: {txn}", topics="topics: [web]"), tmp_path)
    assert spec.table.txn == TxnSpec.model_validate({"kafka-delta-ingest": app_id})


@pytest.mark.parametrize("topics", ["topics: [a, b]", "pattern: web"])
def test_it_needs_one_topic(tmp_path: Path, topics: str) -> None:
    [message] = errors(tmp_path, "txn: kafka-delta-ingest", topics)
    assert "requires one topic" in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("mode: upsert, merge: {keys: [id]}", "mode: upsert"),
        ("mode: overwrite", "mode: overwrite"),
        ("features: [typeWidening]", "direct commits"),
        ("cluster_by: [id]", "direct commits"),
    ],
)
def test_it_needs_direct_commits(tmp_path: Path, options: str, expected: str) -> None:
    assert any(expected in each for each in errors(tmp_path, f"txn: kafka-delta-ingest, {options}"))


@pytest.mark.parametrize(
    "txn",
    [
        "spark",
        "{kafka-delta-ingest: ''}",
        "{ignore: ['headrace:web']}",
        "{kafka-delta-ingest: a, ignore: [a]}",
        "{app_id: web}",
    ],
)
def test_invalid_values(tmp_path: Path, txn: str) -> None:
    assert errors(tmp_path, f"txn: {txn}")


def test_check_finds_tables_of_kafka_delta_ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = one_table(tmp_path, monkeypatch)
    send(harness, 3)
    commit(tmp_path / "lake/orders", pa.table({"id": [0]}), {"web-0": 0, "b-7": 5})
    [found] = [each for each in online(harness.spec) if each.severity == "error"]
    assert found.message.startswith("TakeoverRequired: ")
    assert "web-0 = 0" in found.message
    assert "headrace takeover SPEC --from kafka-delta-ingest:web" in found.expected
    for txn in ({"ignore": ["web"]}, {"kafka-delta-ingest": "web"}):
        set_options(harness, txn=txn)
        assert [each for each in online(harness.spec) if each.severity == "error"] == []
