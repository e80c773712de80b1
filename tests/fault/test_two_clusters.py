"""Two Kafka clusters with a topic of the same name, two pipelines, one table: each record once, also after kill -9."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.dev.kafka import Broker
from headrace.errors import TableRestored
from headrace.faults import Point
from headrace.recovery.resume import Decision, decide
from headrace.spec import Spec
from services.kafka import make_topic, produce
from services.pipelines import start_cli
from services.threads import drain, drain_all, ids, numbered, one_table, opened


@pytest.fixture(scope="module")
def second_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker.start(tmp_path_factory.mktemp("second-kafka")) as broker:
        yield broker


def spec_of(broker: Broker, region: str, topic: str, lake: Path) -> Spec:
    return one_table(
        broker.bootstrap,
        topic,
        lake / "orders",
        pipeline=f"orders-{region}",
        transform=[{"set": {"region": f"'{region}'"}}],
    )


def send(broker: Broker, topic: str, first: int, count: int) -> None:
    """The same offsets on each cluster, with other records."""
    produce(broker.bootstrap, topic, numbered(first, count), 0)


def both(kafka: Broker, second: Broker, lake: Path, name: str) -> list[Spec]:
    """A pipeline for each cluster; their topics have 40 records each."""
    topic = make_topic(kafka.bootstrap, f"orders-{name}")
    make_topic(second.bootstrap, topic)
    for broker, first in ((kafka, 0), (second, 1000)):
        send(broker, topic, first, 40)
    return [spec_of(kafka, "eu", topic, lake), spec_of(second, "us", topic, lake)]


def places(lake: Path) -> list[tuple[str, int, int, int]]:
    rows = opened(lake / "orders").to_pyarrow_table(columns=["region", "_source"]).to_pylist()
    return sorted((row["region"], *(row["_source"][key] for key in ("partition", "offset"))) for row in rows)


@pytest.mark.usefixtures("spark")
def test_two_pipelines_append_to_one_table(kafka: Broker, second_kafka: Broker, lake: Path, tmp_path: Path) -> None:
    specs = both(kafka, second_kafka, lake, tmp_path.name)
    topic = f"orders-{tmp_path.name}"
    assert drain_all(specs) == {"orders-eu": None, "orders-us": None}, "both create the table"
    assert ids(lake / "orders") == [*range(40), *range(1000, 1040)]

    for broker, first in ((kafka, 40), (second_kafka, 1040)):
        send(broker, topic, first, 20)
    file = tmp_path / "eu.json"
    file.write_text(json.dumps(json.loads(specs[0].text)))
    env = {"HEADRACE_FAULT": f"{Point.AFTER_COMMIT}:batch=2=kill", "XDG_STATE_HOME": str(tmp_path / "state")}
    with start_cli(["run", str(file), "--until", "latest"], env) as running:
        drain(specs[1])  # meanwhile
        assert running.wait() == -signal.SIGKILL, running.said()
    send(second_kafka, topic, 1060, 5)
    assert drain_all(specs, wait=True) == {"orders-eu": None, "orders-us": None}

    assert ids(lake / "orders") == [*range(60), *range(1000, 1065)]
    expected = [*(("eu", 0, offset) for offset in range(60)), *(("us", 0, offset) for offset in range(65))]
    assert places(lake) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_each_pipeline_refills_its_own_rows(kafka: Broker, second_kafka: Broker, lake: Path, tmp_path: Path) -> None:
    specs = both(kafka, second_kafka, lake, tmp_path.name)
    assert drain_all(specs) == {"orders-eu": None, "orders-us": None}
    version = opened(lake / "orders").version()
    for broker, first in ((kafka, 40), (second_kafka, 1040)):
        send(broker, f"orders-{tmp_path.name}", first, 20)
    assert drain_all(specs) == {"orders-eu": None, "orders-us": None}
    opened(lake / "orders").restore(version)
    for spec in specs:
        with pytest.raises(TableRestored):
            drain(spec)
        (text,) = decide(spec, [Decision.REFILLED_TABLE])
        assert "20 undone rows" in text
    assert drain_all(specs) == {"orders-eu": None, "orders-us": None}
    assert ids(lake / "orders") == [*range(60), *range(1000, 1060)]
