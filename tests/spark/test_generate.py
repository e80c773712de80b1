"""The made-up source through Spark: the same seed, the same records, once each, and an account that adds up."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from headrace.serve.runner import run_all
from headrace.source.base import open_source
from headrace.source.ranges import Range
from headrace.source.sample_events import events
from headrace.spec import Spec
from services.plans import spec_of

RECORDS, PARTITIONS = 1000, 3


def _spec(lake: Path, **more: Any) -> Spec:
    source = {"generate": {"records": RECORDS, "partitions": PARTITIONS, "bad_ratio": 0.1, "seed": 5}}
    content = {"source": source, "table": {"path": f"{lake}/{{route}}"}, "route": {"by": {"field": "type"}}}
    return spec_of(**content | more)


def _drained(spec: Spec) -> tuple[Any, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    (outcome,) = run_all([spec], until="latest", report=told.append)
    assert outcome.error is None
    return outcome.summary, [event for event in told if event["event"] == "batch"]


def _places(uri: str) -> list[tuple[int, int]]:
    table = DeltaTable(uri).to_pyarrow_table()
    if "_source" in table.column_names:
        return [(each["partition"], each["offset"]) for each in table["_source"].to_pylist()]
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_a_drain_takes_every_event_once_in_batches_under_their_cap(spark: Any, lake: Path):
    spec = _spec(lake, limits={"batch_rows": 400}, flush={"rows": 400})
    summary, batches = _drained(spec)
    counts = summary.counts
    assert counts.read == RECORDS == counts.routed + counts.dead + counts.filtered
    assert counts.dead == sum(counts.reasons.values()) > 0
    assert len(batches) >= 3
    assert max(each["read"] for each in batches) <= 400
    found = Counter(at for uri in summary.tables for at in _places(uri))
    sizes = [-(-(RECORDS - part) // PARTITIONS) for part in range(PARTITIONS)]
    assert found == Counter((part, offset) for part, size in enumerate(sizes) for offset in range(size))
    again, batches = _drained(spec)
    assert (again.counts.read, batches) == (0, [])


def test_a_dead_letter_holds_the_event_as_it_was_made(spark: Any, lake: Path):
    spec = _spec(lake)
    summary, _ = _drained(spec)
    letters = DeltaTable(spec.dead_letters_uri).to_pyarrow_table().to_pylist()
    assert len(letters) == summary.counts.dead
    for letter in letters[:20]:
        (made,) = events(5, letter["partition"], letter["offset"], letter["offset"] + 1, 0.1)
        assert (letter["key"], letter["value"]) == (made.key, made.value)


def test_ranges_are_read_again_exactly(spark: Any, lake: Path):
    source = open_source(_spec(lake))
    ranges = (Range("generated", 0, 10, 15), Range("generated", 2, 0, 3))
    records = source.read(spark, ranges)
    assert records.reader is not None
    read = pa.Table.from_batches(batch for part in records.parts for batch in records.reader(part)).to_pylist()
    rows = sorted((row["partition"], row["offset"], row["value"]) for row in read)
    made = [(each.partition, at) for each in ranges for at in range(each.start, each.until)]
    assert [row[:2] for row in rows] == made
    assert rows == [(part, at, next(iter(events(5, part, at, at + 1, 0.1))).value) for part, at in made]


def test_maintenance_takes_turns_with_batches_and_ends_with_few_files(spark: Any, lake: Path):
    """A run that goes on looks after its tables while it waits; a bounded one does at its end."""
    maintain = {"every": "1s", "min_input_files": 2}
    spec = _spec(lake, limits={"batch_rows": 500}, flush={"rows": 500, "every": "200ms"}, maintenance=maintain)
    told: list[dict[str, Any]] = []
    stop = threading.Event()

    def watch(event: dict[str, Any]) -> None:
        told.append(event)
        rests = sum(each.get("read", 0) for each in told if each["event"] == "batch") == RECORDS
        if rests and event["event"] == "maintenance" and event["state"] == "done":
            stop.set()

    (outcome,) = run_all([spec], report=watch, stop=stop)
    assert outcome.error is None
    assert not [each for each in told if each.get("state") == "failed"]
    summary, _ = _drained(spec)
    places = Counter(at for uri in (*outcome.summary.tables, *summary.tables) for at in _places(uri))
    assert (len(places), places.total()) == (RECORDS, RECORDS)
    assert all(len(DeltaTable(uri).file_uris()) <= 2 for uri in outcome.summary.tables)
