"""The day that Debezium tells, in any order, doubled, over several partitions and batches: the table it ended with."""

from __future__ import annotations

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

from headrace.tables.schema import ENVELOPE
from services.debezium import FINAL, recorded
from services.desk import THEN, Desk, ingest
from services.plans import envelope

Record = dict[str, Any]


def desk(folder: str, mode: str = "upsert", tombstone: str | None = None) -> Desk:
    """One table that merges by `id`, ordered by the time of its events."""
    said = {"envelope": "debezium"} | ({"tombstone": tombstone} if tombstone else {})
    merge = {"keys": ["id"], "sequence_by": "_changed_at"}
    table = {"path": f"{folder}/lake/orders", "infer": {"records": 1}, "mode": mode, "merge": merge}
    return Desk(Path(folder), {"decode": {"json": said}, "route": {"by": "fixed"}, "table": table})


def bring(made: Desk, records: Iterable[tuple[int, Record]], size: int) -> None:
    """Records into partitions, so many a batch."""
    lying, ends = [], {0: 0, 1: 0, 2: 0}
    for partition, record in records:
        value = record["value"] and record["value"].encode()
        at, ends[partition] = ends[partition], ends[partition] + 1
        more = {"partition": partition, "key": record["key"].encode(), "timestamp": THEN + timedelta(seconds=at)}
        lying.append(envelope(at, value, topic=made.topic, **more))
    for start in range(0, len(lying), size):
        ingest(made.spec, pa.Table.from_pylist(lying[start : start + size], ENVELOPE))


def table(made: Desk) -> dict[int, tuple[str, int]]:
    """Of the rows that are so now; no key twice."""
    rows = [row for row in made.rows("lake/orders") if row.get("current", True)]
    found = {row["id"]: (row["state"], row["total"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("mode", ["upsert", "scd2"])
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_in_any_order_with_doubles_over_partitions(mode: str, data: st.DataObject) -> None:
    """A null value is ordered by its place alone, so none is sent."""
    events = [each for each in recorded() if each["value"]]
    doubles = data.draw(st.lists(st.sampled_from(events), max_size=5))
    mixed = data.draw(st.permutations([*events, *doubles]))
    partitions = [data.draw(st.integers(0, 2)) for _ in mixed]
    with tempfile.TemporaryDirectory() as folder:
        made = desk(folder, mode)
        bring(made, zip(partitions, mixed, strict=True), data.draw(st.integers(3, 20)))
        assert table(made) == FINAL
        assert made.dead() == []


@pytest.mark.parametrize("size", [1, 4, 100])
def test_as_it_is_keys_in_partitions_with_the_null_values_after_deletes(size: int, tmp_path: Path) -> None:
    """A record's key chooses its partition; some doubled at once, as a producer that tries again does."""
    made = desk(str(tmp_path))
    said = [each for nth, each in enumerate(recorded()) for _ in range(2 if nth % 3 else 1)]
    bring(made, ((crc32(each["key"].encode()) % 3, each) for each in said), size)
    assert table(made) == FINAL
    assert made.dead() == []
