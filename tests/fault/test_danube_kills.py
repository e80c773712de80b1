"""kill -9 of the receiver of Danube while messages flow: each message is in the spool exactly once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from headrace.source.ranges import Range
from headrace.source.spool.reader import open_reader, record_batches
from services.danube import BROKERS, TestProducer, broker, danube_source
from services.pipelines import HEADRACE
from services.wait import eventually

TOPIC, NAME = "/default/kills", "default.kills"
IN_FLIGHT = 50  # messages: the real broker drops those that a subscription has not read before 256 more


@pytest.mark.parametrize("kind", BROKERS)
def test_kills_lose_and_duplicate_nothing(kind: str, tmp_path: Path):
    spool = tmp_path / "spool"
    with broker(kind, tmp_path) as url:
        producer = TestProducer(url, TOPIC, partitions=2)
        spec = tmp_path / "pipeline.yaml"
        source = danube_source(url, TOPIC, subscription_type="Shared", spool={"path": str(spool)})
        spec.write_text(json.dumps({"pipeline": "kills", "source": source, "table": {"path": str(tmp_path / "lake")}}))
        sent = 0
        for kill_after in (130, 300, None):
            process = _receive(spec, tmp_path / "out")
            try:
                while sent < (kill_after or 450):
                    producer.send([b"%d" % sent])
                    sent += 1
                    stored = sent - IN_FLIGHT
                    eventually(lambda: _stored(spool) >= stored, 60, lambda: (tmp_path / "out").read_text()[-2000:])  # noqa: B023
                if kill_after is None:
                    eventually(lambda: _stored(spool) >= 450, 60)
            finally:
                process.kill()
                process.wait(30)
        values = [
            row
            for batch in record_batches(open_reader(str(spool)), _range(spool))
            for row in batch["value"].to_pylist()
        ]
    assert sorted(values) == sorted(b"%d" % number for number in range(sent))


def _receive(spec: Path, output: Path) -> subprocess.Popen[bytes]:
    """A receiver, connected to both partitions."""
    with output.open("wb") as file:
        process = subprocess.Popen([HEADRACE, "receive", str(spec), "--json"], stdout=file, stderr=file)
    eventually(lambda: output.read_text().count('"listening"') == 2, 60, output.read_text)
    return process


def _stored(spool: Path) -> int:
    return open_reader(str(spool)).ends().get(NAME, 0)


def _range(spool: Path) -> Range:
    return Range(NAME, 0, 0, _stored(spool))
