"""Branches through Spark: a drain that dies between the commits of two tables, and the run after it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.faults import Abandoned, Point, armed
from headrace.serve.runner import run_all
from headrace.source.sample_events import events
from services.plans import spec_of

RECORDS, SEED = 600, 11
ID = {"name": "id", "type": "bigint"}


def test_elements_and_records_are_each_in_their_table_once_after_a_kill_between_them(spark: Any, lake: Path):
    child = {
        "name": "tags",
        "explode": {"column": "tags", "keep": ["id"], "position": "nth"},
        "table": {"path": f"{lake}/tags", "columns": [ID, {"name": "tags", "type": "string"}]},
    }
    spec = spec_of(
        source={"generate": {"records": RECORDS, "partitions": 2, "bad_ratio": 0.1, "seed": SEED}},
        table={"path": f"{lake}/events", "columns": [ID, {"name": "tags", "type": "array<string>"}]},
        branches=[child],
        limits={"batch_rows": 300},
        flush={"rows": 300},
    )
    with armed(Point.AFTER_FIRST_TABLE, "abandon", batch=2), pytest.raises(Abandoned):
        run_all([spec], until="latest")
    (outcome,) = run_all([spec], until="latest")
    assert outcome.error is None
    assert outcome.summary.recovered == 1

    own = DeltaTable(f"{lake}/events").to_pyarrow_table()
    tags = DeltaTable(f"{lake}/tags").to_pyarrow_table()
    dead = DeltaTable(spec.dead_letters_uri).to_pyarrow_table()
    expected = {row["id"]: row["tags"] for row in own.select(["id", "tags"]).to_pylist()}
    assert len(expected) == len(own)
    found = Counter((row["id"], row["nth"], row["tags"]) for row in tags.select(["id", "nth", "tags"]).to_pylist())
    assert set(found.values()) == {1}
    refused = {(row["partition"], row["offset"]) for row in dead.to_pylist() if row["table"].endswith("/tags")}
    assert len(refused) == len([row for row in dead.to_pylist() if row["table"].endswith("/tags")])
    places = {(row["_source"]["partition"], row["_source"]["offset"]) for row in tags.select(["_source"]).to_pylist()}
    everyone = {(part, offset) for part in range(2) for offset, _ in enumerate(events(SEED, part, 0, RECORDS // 2))}
    assert places | refused == everyone
    assert not places & refused
    flattened = {(id, nth, tag) for id, given in expected.items() for nth, tag in enumerate(given)}
    assert flattened == set(found)
    booked = DeltaTable(f"{spec.state_uri}/ledger").to_pyarrow_table().to_pylist()
    assert all(row["read"] == row["routed"] + row["dead"] + row["filtered"] + row["skipped"] for row in booked)
    assert sum(row["written"] for row in booked) == len(own) + len(tags)
