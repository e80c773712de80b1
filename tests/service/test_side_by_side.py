"""Sources of different kinds in one process; and a preview of each, which changes nothing."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.dev.kafka import Broker, free_ports
from headrace.pipeline.preview import preview_records
from headrace.spec import Spec
from headrace.validate.load import load
from services.danube import TestProducer, danube_source
from services.danube_stand_in import StandIn
from services.kafka import admin, produce
from services.otlp_requests import random_request
from services.rivven import RivvenServer
from services.threads import Watched, drain_all, ids, numbered, opened, watched
from services.wait import eventually

RECORDS = 60


def spec_file(folder: Path, name: str, source: dict[str, Any], **more: Any) -> Spec:
    content = {
        "pipeline": name,
        "source": source,
        "table": {"path": f"./lake/{name}", "infer": {"records": 1}},
        "flush": {"every": "200ms"},
        **more,
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(content))
    return load(file)[0]


def groups(broker: Broker) -> set[str]:
    client = admin(broker.bootstrap)
    return {group.group_id for group in client.list_consumer_groups().result(20).valid}


@pytest.mark.usefixtures("spark")
def test_kafka_and_generated_events_in_one_process(kafka: Broker, topic: str, tmp_path: Path) -> None:
    produce(kafka.bootstrap, topic, numbered(0, RECORDS))
    group = f"lag-{topic}"
    specs = [
        spec_file(tmp_path, "kafka", {"kafka": {"brokers": kafka.bootstrap, "topics": [topic], "group": group}}),
        spec_file(tmp_path, "made", {"generate": {"records": RECORDS, "partitions": 2, "bad_ratio": 0}}),
    ]
    before = groups(kafka)
    for spec in specs:
        assert preview_records(spec, None).counts.routed > 0
    assert groups(kafka) == before
    assert not (tmp_path / "lake").exists()

    assert drain_all(specs) == {"kafka": None, "made": None}
    assert ids(tmp_path / "lake" / "kafka") == list(range(RECORDS))
    assert opened(tmp_path / "lake" / "made").to_pyarrow_table().num_rows == RECORDS
    assert groups(kafka) - before == {group}

    versions = [opened(tmp_path / "lake" / spec.pipeline).version() for spec in specs]
    for spec in specs:
        assert preview_records(spec, None).counts.routed > 0
    assert versions == [opened(tmp_path / "lake" / spec.pipeline).version() for spec in specs]
    assert groups(kafka) - before == {group}


class Everywhere:
    """A pipeline for each source, and records for all of them."""

    def __init__(self, folder: Path, kafka: Broker, topic: str, danube: str) -> None:
        self.kafka, self.topic, self.landing = kafka, topic, folder / "landing"
        self.landing.mkdir()
        self.producer = TestProducer(danube, "/default/orders")
        ports = free_ports()
        self.http, self.grpc, self.otlp = (f"127.0.0.1:{next(ports)}" for _ in range(3))
        sources: dict[str, dict[str, Any]] = {
            "kafka": {"kafka": {"brokers": kafka.bootstrap, "topics": [topic]}},
            "files": {"files": {"path": str(self.landing), "settle": "0s", "poll": "1s"}},
            "http": {"http": {"listen": self.http, "topics": ["orders"]}},
            "danube": danube_source(danube, "/default/orders"),
        }
        self.specs = [spec_file(folder, name, source) for name, source in sources.items()]
        self.received = spec_file(
            folder, "otlp", {"otlp": {"grpc": self.grpc, "http": self.otlp}}, decode={"otlp": {"signal": "logs"}}
        )

    def send(self, start: int) -> None:
        """Some numbered records to each source."""
        values = numbered(start, RECORDS)
        produce(self.kafka.bootstrap, self.topic, values)
        partial = self.landing / f".{start}"
        partial.write_bytes(b"\n".join(values))
        partial.rename(self.landing / f"{start}.jsonl")
        self._post(f"http://{self.http}/v1/orders", b"\n".join(values), "application/x-ndjson")
        self.producer.send(values)
        request = random_request("logs", start).SerializeToString()
        self._post(f"http://{self.otlp}/v1/logs", request, "application/x-protobuf")

    def _post(self, url: str, body: bytes, kind: str) -> None:
        request = urllib.request.Request(url, body, {"Content-Type": kind})  # noqa: S310 - a server of this test
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            assert answer.status in (200, 202)


def listening(running: Watched) -> Callable[[], bool]:
    """Whether all receivers accept records."""
    return lambda: {event["pipeline"] for event in running.of("listening")} == {"http", "otlp", "danube"}


@pytest.mark.usefixtures("spark")
def test_all_sources_in_one_process(kafka: Broker, topic: str, tmp_path: Path) -> None:
    """Each preview shows what was received, and changes nothing."""
    with StandIn() as stand_in:
        everywhere = Everywhere(tmp_path, kafka, topic, stand_in.url)
        with watched(*everywhere.specs, everywhere.received) as running:
            eventually(listening(running), 60, lambda: str(running.events[-4:]))
            for start in (0, RECORDS):
                everywhere.send(start)
                running.until_read((len(everywhere.specs) * RECORDS + 1) * (start // RECORDS + 1))
        for spec in everywhere.specs:
            assert ids(tmp_path / "lake" / spec.pipeline) == list(range(2 * RECORDS)), spec.pipeline
        versions = {spec.pipeline: opened(tmp_path / "lake" / spec.pipeline).version() for spec in everywhere.specs}
        for spec in everywhere.specs:
            preview_records(spec, None)
        assert versions == {name: opened(tmp_path / "lake" / name).version() for name in versions}


def test_rivven_beside_the_others(rivven: RivvenServer, kafka: Broker, topic: str, tmp_path: Path, spark: Any) -> None:
    produce(kafka.bootstrap, topic, numbered(0, RECORDS))
    name = rivven.topic(numbered(0, RECORDS))
    specs = [
        spec_file(tmp_path, "kafka", {"kafka": {"brokers": kafka.bootstrap, "topics": [topic]}}),
        spec_file(tmp_path, "rivven", {"rivven": {"broker": rivven.address, "topics": [name]}}),
    ]
    assert drain_all(specs) == {"kafka": None, "rivven": None}
    for spec in specs:
        assert ids(tmp_path / "lake" / spec.pipeline) == list(range(RECORDS))
