"""The day that Debezium tells, in any order, doubled, over several partitions and batches: the table it ended with."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.delta.schema import RECORD_SCHEMA
from services.debezium import DAYS, RECORDED_FINAL, final, recorded
from services.in_process_pipeline import THEN, Harness, ingest
from services.plans import envelope

Record = dict[str, Any]


def harness(folder: str, mode: str = "upsert", tombstone: str | None = None) -> Harness:
    """One table that merges by `id`, ordered by the time of its events."""
    said = {"envelope": "debezium"} | ({"tombstone": tombstone} if tombstone else {})
    merge = {"keys": ["id"], "sequence_by": "_changed_at"}
    table = {"path": f"{folder}/lake/orders", "infer": {"records": 1}, "mode": mode, "merge": merge}
    return Harness(Path(folder), {"decode": {"json": said}, "route": {"by": "fixed"}, "table": table})


def bring(made: Harness, records: Iterable[tuple[int, Record]], size: int) -> None:
    """Records into partitions, so many a batch."""
    lying, ends = [], {0: 0, 1: 0, 2: 0}
    for partition, record in records:
        value = record["value"] and record["value"].encode()
        at, ends[partition] = ends[partition], ends[partition] + 1
        more = {"partition": partition, "key": record["key"].encode(), "timestamp": THEN + timedelta(seconds=at)}
        lying.append(envelope(at, value, topic=made.topic, **more))
    for start in range(0, len(lying), size):
        ingest(made.spec, pa.Table.from_pylist(lying[start : start + size], RECORD_SCHEMA))


def table(made: Harness) -> dict[int, tuple[str, int]]:
    """Of the rows that are so now; no key twice."""
    rows = [row for row in made.rows("lake/orders") if row.get("current", True)]
    found = {row["id"]: (row["state"], row["total"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("day", DAYS)
@pytest.mark.parametrize("mode", ["upsert", "scd2"])
@settings(max_examples=4, deadline=None)
@given(st.data())
def test_in_any_order_with_duplicates_over_partitions(mode: str, day: str, data: st.DataObject) -> None:
    """A null value is ordered by its place alone, so none is sent."""
    records, end = DAYS[day]
    events = [each for each in records if each["value"]]
    doubles = data.draw(st.lists(st.sampled_from(events), max_size=5))
    mixed = data.draw(st.permutations([*events, *doubles]))
    partitions = [data.draw(st.integers(0, 2)) for _ in mixed]
    with tempfile.TemporaryDirectory() as folder:
        made = harness(folder, mode)
        bring(made, zip(partitions, mixed, strict=True), data.draw(st.integers(3, 20)))
        assert table(made) == end
        assert made.dead() == []


@pytest.mark.parametrize("day", DAYS)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_as_it_is_keys_in_partitions_with_the_null_values_after_deletes(size: int, day: str, tmp_path: Path) -> None:
    """A record's key chooses its partition; some doubled at once, as a producer that tries again does."""
    made = harness(str(tmp_path))
    records, end = DAYS[day]
    said = [each for nth, each in enumerate(records) for _ in range(2 if nth % 3 else 1)]
    bring(made, ((crc32(each["key"].encode()) % 3, each) for each in said), size)
    assert table(made) == end
    assert made.dead() == []


@pytest.mark.parametrize("file", ["orders.jsonl", "orders-without-schema.jsonl"])
def test_a_recorded_day_ends_with_every_column_as_the_database_had_it(file: str, tmp_path: Path) -> None:
    """But for what Debezium sends in another form: dates as days, times as numbers, decimals and bytes as Base64."""
    made = harness(str(tmp_path))
    bring(made, ((0, each) for each in recorded(file)), 7)
    assert table(made) == RECORDED_FINAL
    assert made.dead() == []
    stored = {row["id"]: row for row in made.rows("lake/orders")}
    for id, row in final().items():
        alike = ("state", "total", "weight", "gift", "note", "tags", "code", "carrier")
        assert {name: stored[id][name] for name in alike} == {name: row[name] for name in alike}
    assert stored[1]["extra"] == '{"a": [1, 2.50]}'
    assert stored[1]["placed"] == "2026-03-01T09:00:00.123456Z"
    assert int.from_bytes(base64.b64decode(stored[1]["price"]), "big") == 12345678901234567890123456789012345678


@pytest.mark.parametrize("topic", ["__debezium-heartbeat.shop", "shop.transaction"])
def test_recorded_heartbeats_and_notes_on_transactions_are_dead_letters(topic: str, tmp_path: Path) -> None:
    made = harness(str(tmp_path))
    notes = recorded(topic=topic)
    bring(made, ((0, each) for each in [*recorded()[:3], *notes]), 100)
    assert [letter["reason"] for letter in made.dead()] == ["unknown_operation"] * len(notes)
    assert notes
