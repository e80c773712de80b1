"""The same records from Kafka and from a Rivven server, each with four partitions.

The server takes more than a millisecond for each record that is published, so its files are written for it.
It then runs unchanged.
"""

from __future__ import annotations

from bench.runs import Bench, Figures
from services.rivven import rivven_server, write_topics

KIND, TOPIC, PARTITIONS = "0 headers, no key", "events", 4


def rivven(bench: Bench) -> list[Figures]:
    """Drain a topic of each."""
    count = bench.scale.records
    folder = bench.folder / "rivven"
    values = bench.topics.values(KIND, count)
    write_topics(folder, {TOPIC: [values[partition::PARTITIONS] for partition in range(PARTITIONS)]})
    with rivven_server(folder) as server:
        drain = {"topic": bench.topics.filled(KIND, count), "records": count, "headers": False}
        source = {"source": {"rivven": {"broker": server.address, "topics": [TOPIC]}}}
        return bench.run("headrace", [{**drain, "label": "kafka"}, {**drain, "label": "rivven", "spec": source}])
