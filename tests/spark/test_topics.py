"""Settings per topic from Kafka through Spark: fifty mappings in one batch, and topics with intervals of their own."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from headrace import run
from headrace.dev.kafka import Broker
from services.kafka import make_topics, produce, produce_all
from services.plans import spec_of
from services.threads import watched

MAPPINGS = 50


def test_fifty_mappings_run_in_one_batch(spark: Any, kafka: Broker, lake: Path):
    prefix = uuid.uuid4().hex[:8]
    topics = [f"{prefix}.t{n}" for n in range(MAPPINGS)]
    make_topics(kafka.bootstrap, [*topics, f"{prefix}.rest"])
    values = {topic: [b"text %d" % n if n % 2 else b'{"id": %d}' % n, b"\xff"] for n, topic in enumerate(topics)}
    produce_all(kafka.bootstrap, {**values, f"{prefix}.rest": [b'{"id": -1}']})
    entries = [
        {
            "name": f"t{n}",
            "topic": topic,
            "decode": "string" if n % 2 else "json",
            "table": {"path": f"{lake}/mapped/t{n}"},
        }
        for n, topic in enumerate(topics)
    ]
    spec = spec_of(
        source={"kafka": {"brokers": kafka.bootstrap, "topics": [*topics, f"{prefix}.rest"]}},
        route={"by": "topic"},
        table={"path": f"{lake}/{{topic}}"},
        topics=entries,
    )
    events: list[dict[str, Any]] = []
    summary = run(spec, until="latest", report=events.append)
    assert summary.counts.records() == {"read": 101, "routed": 51, "dead": 50, "filtered": 0, "skipped": 0}
    assert [event["batch"] for event in events if event["event"] == "batch"] == [1]
    for n, topic in enumerate(topics):
        (row,) = DeltaTable(f"{lake}/mapped/t{n}").to_pyarrow_table().to_pylist()
        assert (row["_source"]["topic"], row.get("id"), row.get("data")) == (
            (topic, None, f"text {n}") if n % 2 else (topic, n, None)
        )
    assert DeltaTable(f"{lake}/{prefix}.rest").to_pyarrow_table()["id"].to_pylist() == [-1]
    dead = DeltaTable(spec.dead_letters_uri).to_pyarrow_table().to_pylist()
    assert {each["topic"]: each["table"] for each in dead} == {
        topic: f"{lake}/mapped/t{n}" for n, topic in enumerate(topics)
    }


def test_topics_are_read_at_intervals_of_their_own(spark: Any, kafka: Broker, new_topic: Any, lake: Path):
    fast, slow = new_topic(), new_topic()
    infer = {"records": 1}
    table = {"path": f"{lake}/slow", "infer": infer}
    spec = spec_of(
        source={"kafka": {"brokers": kafka.bootstrap, "topics": [fast, slow]}},
        table={"path": f"{lake}/fast", "infer": infer},
        flush={"every": "200ms"},
        topics=[{"name": "slow", "topic": slow, "table": table, "flush": {"every": "1h"}}],
    )
    for topic in (fast, slow):
        produce(kafka.bootstrap, topic, [b'{"id": 0}'])
    with watched(spec) as running:
        running.until_read(2, within=120)  # the first batch reads what is there
        produce(kafka.bootstrap, slow, [b'{"id": 1}'])
        for number in (1, 2, 3):
            produce(kafka.bootstrap, fast, [b'{"id": %d}' % number])
            running.until_read(2 + number, within=120)
    assert ids_of(lake / "fast") == [0, 1, 2, 3]
    assert ids_of(lake / "slow") == [0]
    run(spec, until="latest")  # a drain reads all topics
    assert ids_of(lake / "slow") == [0, 1]


def ids_of(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())
