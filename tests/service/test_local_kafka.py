"""`headrace kafka`: a broker for development that keeps its topics, and takes no port of others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from headrace.dev.kafka import free_ports
from services.kafka import make_topic, produce, read_all
from services.local_kafka import local_kafka
from services.pipelines import HEADRACE

pytestmark = pytest.mark.service


def test_topics_are_found_again_by_the_next_start(tmp_path: Path):
    port = next(iter(free_ports()))
    with local_kafka(tmp_path / "kafka", port) as first:
        make_topic(f"localhost:{port}", "orders", 2)
        produce(f"localhost:{port}", "orders", [b"1", b"2"])
        taken = subprocess.run(
            [HEADRACE, "kafka", str(tmp_path / "other"), "--port", str(port)], capture_output=True, text=True
        )
        assert (taken.returncode, taken.stdout) == (2, "")
        assert f"Port {port} is in use." in taken.stderr
    assert first.returncode == 0
    with local_kafka(tmp_path / "kafka", port) as second:
        values = [record.value for record in read_all(f"localhost:{port}", ["orders"])]
        assert sorted(map(str, values)) == ["b'1'", "b'2'"]
        [java] = [each for each in psutil.Process(second.pid).children() if each.name() == "java"]
        java.kill()
        assert second.wait(60) == 1, "a broker that ends by itself ends the command"
