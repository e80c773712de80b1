"""From a Danube broker to Delta tables: the sample topics of its sink, preview, checks, and a run with Spark."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from docs.pages import whole
from headrace.pipeline.preview import preview_records
from headrace.source.base import open_source
from headrace.source.spool.receiver import ReceivingSource
from headrace.spec import Spec
from headrace.validate.load import loads
from headrace.validate.online import online
from sample_topics.test_sample_topics import HERE, SHOWN, letters_of, plain, stored
from services.danube import BROKERS, STAND_IN, TestProducer, broker, danube_source
from services.danube_stand_in import StandIn
from services.in_process_pipeline import ingest
from services.pipelines import start_cli
from services.wait import eventually

SAMPLES = sorted(name for name in SHOWN if name.startswith("danube-"))


@pytest.fixture(scope="module", params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of each kind."""
    with broker(request.param, tmp_path_factory.mktemp("broker")) as address:
        yield address


def spec_over(content: dict[str, Any], url: str, topic: str, folder: Path, **options: Any) -> Spec:
    """A spec that reads a topic of Danube instead of what it says."""
    return loads(json.dumps(content | {"source": danube_source(url, topic, **options)}), folder)[0]


def receive(spec: Spec, count: int, send: Any) -> Any:
    """The records of all messages that `send` sends, from the spool."""
    source = open_source(spec)
    assert isinstance(source, ReceivingSource)
    events: list[dict[str, Any]] = []
    try:
        source.receive(events.append, accept=True)
        eventually(lambda: [each for each in events if each["event"] == "listening"], say=lambda: str(events))
        send()
        eventually(lambda: sum(each.latest for each in source.bounds().values()) == count)
        return source.tail(count, "start")
    finally:
        source.close()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_topic_becomes_the_same_rows_as_from_kafka(url: str, name: str, tmp_path: Path):
    lines = [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]
    positions = [each for each, line in enumerate(lines) if line["value"] is not None]  # Danube has no null values
    expected = json.loads((HERE / f"{name}.json").read_text())
    topic = f"/default/{name}"
    spec = spec_over(yaml.safe_load(whole(SHOWN[name])), url, topic, tmp_path)
    producer = TestProducer(url, topic)

    def send() -> None:
        for position in positions:
            line = lines[position]
            producer.send([base64.b64decode(line["value"])], key="k", time_ms=line["timestamp"])

    ingest(spec, receive(spec, len(positions), send))
    ((_, rows),) = stored(tmp_path / "lake").items()
    (wanted,) = expected["tables"].values()
    assert [_without_metadata(plain(row)) for _, row in rows] == [_without_metadata(row) for row in wanted]
    letters = {positions[letter["offset"]]: letter["reason"] for letter in letters_of(spec)}
    assert letters == {int(at): reason for at, reason in expected["letters"].items() if int(at) in positions}
    for offset, row in rows:
        if "_danube_metadata" in row:
            sent = lines[positions[offset]]["timestamp"]
            assert json.loads(row["_danube_metadata"]) == {
                "topic": topic,
                "offset": offset,
                "timestamp": sent,
                "timestamp_iso": f"2024-05-01T12:00:{sent // 1000 % 60:02}.000Z",
                "partition": "none",
            }


def _without_metadata(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "_danube_metadata"}


def test_a_preview_reads_the_spool_and_acknowledges_nothing(tmp_path: Path):
    topic = "/default/preview"
    content = {"pipeline": "preview", "table": {"path": f"{tmp_path}/lake/t"}}
    with StandIn() as stand_in:
        producer = TestProducer(stand_in.url, topic)
        spec = spec_over(content, stand_in.url, topic, tmp_path, subscription="s")
        assert preview_records(spec, None).counts.read == 0
        receive(spec, 3, lambda: producer.send([b'{"id": %d}' % number for number in range(3)]))
        eventually(lambda: stand_in.unacked(topic, "s") == 0)
        producer.send([b'{"id": 3}'])
        stand_in.calls.clear()
        shown = preview_records(spec, None, 2)
        assert [row["id"] for table in shown.tables.values() for row in table.to_pylist()] == [1, 2]
        assert stand_in.unacked(topic, "s") == 1
        assert not stand_in.calls


def test_an_online_check_names_what_the_broker_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DANUBE_TOKEN", "wrong")
    content = {"pipeline": "check", "table": {"path": f"{tmp_path}/lake/t"}}
    with StandIn(token="right") as stand_in:
        TestProducer(stand_in.url, "/default/there", token="right")

        def found(topic: str, **options: Any) -> list[tuple[str, str]]:
            spec = spec_over(content, stand_in.url, topic, tmp_path, **options)
            return [(each.key, each.message.split(":")[0]) for each in online(spec) if each.severity == "error"]

        assert found("/default/there", token="${env:DANUBE_TOKEN}") == [("source", "AuthenticationFailed")]
        monkeypatch.setenv("DANUBE_TOKEN", "right")
        assert found("/default/there", token="${env:DANUBE_TOKEN}") == []
        assert found("/default/else", token="${env:DANUBE_TOKEN}") == [("source.danube.topics", "SourceTopicGone")]
    assert found("/default/there") == [("source.danube.url", "BrokerUnreachable")]


@pytest.mark.spark
@pytest.mark.parametrize("kind", [STAND_IN])
def test_a_run_writes_messages_into_a_table_for_each_topic(kind: str, tmp_path: Path):
    with broker(kind, tmp_path) as url:
        orders = TestProducer(url, "/default/orders", partitions=2)
        refunds = TestProducer(url, "/default/refunds")
        content = {
            "pipeline": "shop",
            "source": danube_source(url, "/default/orders", "/default/refunds"),
            "route": {"by": "topic"},
            "table": {"path": f"{tmp_path}/lake/{{topic}}", "metadata": "danube", "infer": {"records": 1}},
            "flush": {"every": "200ms"},
        }
        spec = tmp_path / "shop.yaml"
        spec.write_text(json.dumps(content))
        with start_cli(["run", spec]) as running:
            eventually(lambda: len(running.of("listening")) == 3, 60, running.said)
            assert not running.of("batch")  # messages are received while Spark starts
            orders.send([b'{"id": %d}' % number for number in range(100)])
            refunds.send([b'{"id": %d, "reason": "late"}' % number for number in range(19)])
            refunds.send([b"{"])
            running.until_read(120)
            assert running.stop() == 0
        (loaded,) = loads(spec.read_text(), tmp_path)
        rows = DeltaTable(f"{tmp_path}/lake/default.orders").to_pyarrow_table().to_pylist()
        assert sorted(row["id"] for row in rows) == list(range(100))
        told = [json.loads(row["_danube_metadata"]) for row in rows]
        assert {(each["topic"], each["partition"], each["offset"]) for each in told} == {
            ("/default/orders", str(partition), offset) for partition in range(2) for offset in range(50)
        }
        assert len(DeltaTable(f"{tmp_path}/lake/default.refunds").to_pyarrow_table()) == 19
        assert [letter["reason"] for letter in letters_of(loaded)] == ["malformed"]
