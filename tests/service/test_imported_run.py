"""Configurations of other systems that really run: what is in the tables afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace import Table, run
from headrace.cli import main
from headrace.dev.kafka import Broker
from headrace.importers.analytics import TEXTS
from services.kafka import produce

pytestmark = pytest.mark.service


def test_the_environment_of_the_delta_writer_runs(spark: Any, kafka: Broker, topic: str, tmp_path: Path):
    events = [
        {"event_type": "view", "channel": "web", "session_id": "s1", "timestamp": "2026-01-31T12:00:00Z", "extra": 1},
        {"channel": None, "user_id": None, "interaction_value": "1.5", "metadata": {"a": [1]}},
        {"interaction_value": "many", "metadata": "no object"},
    ]
    produce(kafka.bootstrap, topic, [*(json.dumps(event).encode() for event in events), b"no JSON"])
    file = tmp_path / "writer.env"
    file.write_text(
        f"KAFKA_BOOTSTRAP_SERVERS={kafka.bootstrap}\nKAFKA_TOPIC={topic}\nDELTA_TABLE_PATH=./lake/analytics-events\n"
    )
    summary = run(file, until="latest")
    assert (summary.counts.routed, summary.counts.dead) == (3, 1)
    table = DeltaTable(str(tmp_path / "lake" / "analytics-events")).to_pyarrow_table()
    assert set(table.column_names) == {"timestamp", *TEXTS, "interaction_value", "metadata", "extra"}
    first, second, third = sorted(table.to_pylist(), key=lambda row: (row["channel"] != "web", row["metadata"] == "{}"))
    assert (first["session_id"], first["platform"], first["extra"], first["metadata"]) == ("s1", "", 1, "{}")
    assert (second["channel"], second["event_type"], second["user_id"]) == ("unknown", "unknown", "")
    assert (second["interaction_value"], json.loads(second["metadata"])) == (1.5, {"a": [1]})
    assert (third["interaction_value"], third["metadata"]) == (None, "{}")
    assert None not in [row["timestamp"] for row in (first, second, third)]


def test_the_arguments_of_kafka_delta_ingest_run(
    spark: Any, kafka: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Printed as a spec, which then runs."""
    produce(kafka.bootstrap, topic, [json.dumps({"id": 7, "at": "2026-01-31T12:00", "ignored": True}).encode()])
    Table.get_or_create(tmp_path / "events", {"id": "bigint", "date": "string", "position": "bigint"})
    monkeypatch.chdir(tmp_path)
    arguments = ["ingest", topic, "./events", "-k", kafka.bootstrap, "-a", "to-delta", "-t"]
    arguments += ["date: substr(at, `0`, `10`)", "position: kafka.offset"]
    monkeypatch.setattr(sys, "argv", ["headrace", "import", "--output", "spec.yaml", "--", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (None, 0)
    summary = run("spec.yaml", until="latest")
    assert summary.pipeline == "to-delta"
    rows = DeltaTable(str(tmp_path / "events")).to_pyarrow_table().to_pylist()
    assert rows == [{"id": 7, "date": "2026-01-31", "position": 0}]
