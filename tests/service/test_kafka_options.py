"""What a spec says about reading, against a real broker: where to start, which topics, how fast, how much at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.dev.kafka import Broker
from headrace.spec import Spec
from services.kafka import make_topic, produce
from services.threads import Watched, drain, drain_all, ids, numbered, one_table, watched
from services.wait import eventually

pytestmark = pytest.mark.usefixtures("spark")
DAY = 1_738_281_600_000  # 2025-01-31, in milliseconds
STARTS = {
    "earliest": "earliest",
    "latest": "latest",
    "timestamp": {"timestamp": "2025-01-31T00:00:04Z"},
    "offsets": {"offsets": {"0": 7}},
}


def reading(kafka: Broker, table: Path, source: Mapping[str, Any], **more: Any) -> Spec:
    return one_table(kafka.bootstrap, [], table, source={"kafka": {"brokers": kafka.bootstrap, **source}}, **more)


def test_each_start_begins_where_it_says_and_counts_once(
    kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic = new_topic(1, retention_ms="-1")
    stamped = [{"value": value, "timestamp": DAY + 1000 * at} for at, value in enumerate(numbered(0, 10))]
    produce(kafka.bootstrap, topic, stamped, 0)
    specs = [
        reading(kafka, lake / name, {"topics": [topic], "start": start}, pipeline=name)
        for name, start in STARTS.items()
    ]
    begin = {"earliest": 0, "latest": 10, "timestamp": 4, "offsets": 7}
    for total in (10, 13):
        assert drain_all(specs) == dict.fromkeys(STARTS)
        for name, first in begin.items():
            assert (ids(lake / name) if total > first else []) == list(range(first, total))
        produce(kafka.bootstrap, topic, numbered(total, 3), 0)


def test_a_pattern_reads_the_topics_that_match(kafka: Broker, lake: Path) -> None:
    for number, name in enumerate(("shop.orders", "shop.returns", "web.clicks")):
        produce(kafka.bootstrap, make_topic(kafka.bootstrap, name), numbered(10 * number, 3), 0)
    spec = reading(kafka, lake / "t", {"pattern": r"^shop\."})
    assert drain(spec).counts.read == 6
    assert ids(lake / "t") == [0, 1, 2, 10, 11, 12]


def test_a_rate_bounds_batches_and_their_pace(kafka: Broker, new_topic: Callable[..., str], lake: Path) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 20), 0)
    spec = reading(kafka, lake / "t", {"topics": [topic], "rate": "10/s"}, flush={"every": "500ms"})
    with watched(spec) as running:
        running.until_read(20)
        assert running.stop() is None
    assert [event["read"] for event in running.of("batch")] == [5, 5, 5, 5]
    assert ids(lake / "t") == list(range(20))


def lags(running: Watched, records: int) -> Callable[[], bool]:
    """Whether the newest progress events both say that so many records wait: the loop has seen them between the two."""
    return lambda: [event["lag"] for event in running.of("progress")[-2:]] == [records] * 2


def test_a_batch_waits_for_the_rows_of_flush(kafka: Broker, new_topic: Callable[..., str], lake: Path) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 5), 0)
    spec = reading(kafka, lake / "t", {"topics": [topic]}, flush={"rows": 20, "every": "1h"})
    with watched(spec) as running:
        running.until_read(5)  # the first batch of a run does not wait
        produce(kafka.bootstrap, topic, numbered(5, 15), 0)
        eventually(lags(running, 15), 30, lambda: f"15 records wait; {running.events[-3:]}")
        produce(kafka.bootstrap, topic, numbered(20, 5), 0)
        running.until_read(25)
        assert running.stop() is None
    assert [event["read"] for event in running.of("batch")] == [5, 20]
    assert ids(lake / "t") == list(range(25))


def test_the_bytes_of_flush_count_by_the_mean_size_of_records(
    kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic = new_topic(1)
    values = [b'{"id": %d, "text": "%s"}' % (number, b"x" * 80) for number in range(100_000, 100_300)]
    produce(kafka.bootstrap, topic, values[:30], 0)
    spec = reading(kafka, lake / "t", {"topics": [topic]}, flush={"bytes": "20KB", "every": "1h"})
    with watched(spec) as running:
        running.until_read(30)
        produce(kafka.bootstrap, topic, values[30:180], 0)  # 20 KB of the 1000 bytes assumed at first, less of these
        eventually(lags(running, 150), 30, lambda: f"150 records wait; {running.events[-3:]}")
        produce(kafka.bootstrap, topic, values[180:], 0)
        running.until_read(300)
        assert running.stop() is None
    assert [event["read"] for event in running.of("batch")] == [30, 270]
    assert ids(lake / "t") == list(range(100_000, 100_300))
