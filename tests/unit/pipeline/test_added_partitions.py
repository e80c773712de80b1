"""Partitions added to a topic under a table that merges: a key that moves must not lose its newer changes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import SourceRepartitioned
from headrace.ledger.ledger import Ledger
from headrace.pipeline.verify_source import ordered_by_offset, verify_source
from headrace.plan.accounting import Counts
from headrace.recovery.resume import Decision, decide
from headrace.source.base import open_source
from headrace.source.ranges import Range
from headrace.spec import Spec
from headrace.storage.store import Store
from headrace.validate.load import loads
from headrace.version import VERSION
from headrace.write.intent import Intent
from services.in_process_pipeline import Harness, ingest
from services.plans import envelope

MERGED = {"mode": "upsert", "merge": {"keys": ["id"]}}
ORDERED = {"mode": "upsert", "merge": {"keys": ["id"], "sequence_by": "seq"}}
PARTIAL = {"mode": "upsert", "merge": {"keys": ["id"], "update": {"ignore_nulls": True}}}


def spec(folder: Path, partitions: int, table: dict[str, Any]) -> Spec:
    content = {
        "pipeline": "shop",
        "source": {"generate": {"records": 40, "partitions": partitions}},
        "table": {"path": f"{folder}/lake/t", **table},
    }
    return loads(json.dumps(content), folder)[0]


def ledger(made: Spec) -> Ledger:
    return Ledger.open(Store(made.state_uri), "shop")


def booked(folder: Path, table: dict[str, Any]) -> None:
    """A pipeline that has read both partitions of its topic, of which one was empty."""
    made = spec(folder, 2, table)
    found = ledger(made)
    _, position = verify_source(open_source(made), found)
    assert set(position) == {("generated", 0), ("generated", 1)}
    ranges = (Range("generated", 0, 0, 10, "seed-1"),)
    intent = Intent("shop", 1, ranges, (), Counts(), datetime.now(UTC), "t", "{}", "d", VERSION)
    found.begin(intent)
    found.record(intent, (), datetime.now(UTC))


def verified(made: Spec) -> dict[tuple[str, int], int]:
    return verify_source(open_source(made), ledger(made), ordered_by_offset(made))[1]


@pytest.mark.parametrize("table", [MERGED, PARTIAL], ids=["whole rows", "parts"])
def test_they_stop_a_pipeline_that_orders_changes_by_offset(tmp_path: Path, table: dict[str, Any]) -> None:
    booked(tmp_path, table)
    assert len(verified(spec(tmp_path, 2, table))) == 2
    grown = spec(tmp_path, 4, table)
    for _ in range(2):  # to start again does not get past it
        with pytest.raises(SourceRepartitioned, match=r"generated/2, generated/3") as stop:
            verified(grown)
    assert "merge.sequence_by" in stop.value.hint
    assert "--accept-added-partitions" in stop.value.hint
    said = decide(grown, [Decision.ADDED_PARTITIONS])
    assert said == [f"generated/{number}: is read from its first record" for number in (2, 3)]
    assert verified(grown) == {("generated", 0): 10, ("generated", 1): 0, ("generated", 2): 0, ("generated", 3): 0}
    assert "added partitions accepted" in ledger(grown).rows(1)[0]["note"]
    assert decide(grown, [Decision.ADDED_PARTITIONS]) == ["shop: nothing to accept; nothing was changed"]


@pytest.mark.parametrize("table", [{}, ORDERED], ids=["append", "ordered by a column"])
def test_others_read_them(tmp_path: Path, table: dict[str, Any]) -> None:
    booked(tmp_path, MERGED)
    grown = spec(tmp_path, 4, table)
    assert set(verified(grown)) == {("generated", number) for number in range(4)}


def test_a_first_start_is_no_growth(tmp_path: Path) -> None:
    assert len(verified(spec(tmp_path, 4, MERGED))) == 4


@pytest.mark.parametrize(("table", "wins"), [(MERGED, 1), (ORDERED, 2)], ids=["by offset", "by a column"])
def test_a_key_that_moves_to_a_lower_partition(tmp_path: Path, table: dict[str, Any], wins: int) -> None:
    """Why the pipeline stops, and that what it advises goes on with the newer change."""
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/t", **MERGED}})
    for partition, offset, seq in ((1, 70, 1), (0, 3, 2)):
        record = envelope(offset, b'{"id": 1, "seq": %d}' % seq, topic=harness.topic, partition=partition)
        ingest(harness.spec, pa.Table.from_pylist([record], RECORD_SCHEMA))
        harness.options["table"] |= table
    assert [row["seq"] for row in harness.rows("lake/t")] == [wins]
