"""Tables that merge under a whole pipeline: change events in, one row for each key out, whatever dies between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.dead_letters.replay import replay
from headrace.dev.kafka import Broker
from headrace.errors import SourceRepartitioned, TableFeature, TableRestored, TxnMismatch
from headrace.faults import Point
from headrace.recovery.resume import Decision, decide
from services.debezium import RECORDED_FINAL, WRITTEN_FINAL, recorded, written
from services.kafka import add_partitions
from services.pipelines import Shop

DEBEZIUM = {
    "decode": {"json": {"envelope": "debezium"}},
    "transform": [],
    "route": {"by": "fixed"},
}


def merging(lake: str, **more: Any) -> dict[str, Any]:
    """A table that merges by id."""
    table = {"path": f"{lake}/orders", "infer": {"records": 1}, "mode": "upsert", "merge": {"keys": ["id"], **more}}
    return {**DEBEZIUM, "table": table}


def table(shop: Shop) -> dict[int, tuple[str, int]]:
    found = DeltaTable(f"{shop.lake}/orders").to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["state"], row["total"]) for row in found}


def ledger(shop: Shop) -> list[dict[str, Any]]:
    rows = DeltaTable(f"{shop.lake}/_headrace/shop/ledger").to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["batch"])


@pytest.fixture
def shop(spark: Any, kafka: Broker, new_topic: Any, tmp_path: Path) -> Shop:
    """A topic of one partition, a lake, and a spec that merges, three records a batch."""
    made = Shop(kafka.bootstrap, new_topic(), str(tmp_path / "lake"), tmp_path)
    made.options = {**merging(made.lake), "limits": {"batch_rows": 5}, "flush": {"rows": 5, "every": "200ms"}}
    return made


def test_a_recorded_day_of_debezium_ends_as_its_table_did(shop: Shop) -> None:
    shop.send_values(recorded())
    shop.run()
    assert table(shop) == RECORDED_FINAL
    rows = ledger(shop)
    assert sum(row["read"] for row in rows) == sum(row["routed"] for row in rows) == shop.sent
    told = [item for row in rows for item in row["tables"]]
    assert sum(item["inserted"] - item["deleted"] for item in told) == len(RECORDED_FINAL)
    assert "_op" not in DeltaTable(f"{shop.lake}/orders").to_pyarrow_table().column_names
    shop.run()
    assert table(shop) == RECORDED_FINAL


@pytest.mark.parametrize("point", [Point.AFTER_STAGING, Point.AFTER_COMMIT, Point.BEFORE_LEDGER_WRITE])
def test_a_batch_that_dies_is_merged_once(shop: Shop, point: Point) -> None:
    """Whoever comes next has no file of the machine it died on, and finds another backlog."""
    events = list(written())
    shop.send_values(events[:10])
    shop.die(point, 2)
    shop.send_values(events[10:])
    shop.die(Point.AFTER_COMMIT)
    shop.run()
    assert table(shop) == WRITTEN_FINAL
    assert [row["batch"] for row in ledger(shop)] == list(range(1, len(ledger(shop)) + 1))


def test_partitions_that_are_added_stop_it_until_somebody_decides(shop: Shop, kafka: Broker) -> None:
    events = list(written())
    shop.send_values(events[:10])
    shop.run()
    add_partitions(kafka.bootstrap, shop.topic, 2)
    shop.send_values(events[10:])
    with pytest.raises(SourceRepartitioned, match="--accept-added-partitions"):
        shop.run()
    with shop.elsewhere():
        decide(shop.spec, [Decision.ADDED_PARTITIONS])
    shop.run()
    assert table(shop) == WRITTEN_FINAL


def test_a_lost_state_goes_on_from_the_txn_of_the_merge(shop: Shop) -> None:
    events = list(written())
    shop.send_values(events[:10])
    shop.run()
    for lost in ("ledger", "tombstones"):
        shutil.rmtree(f"{shop.lake}/_headrace/shop/{lost}")
    shop.send_values(events[10:])
    with pytest.raises(TxnMismatch, match=r"tombstones .* are missing"):
        shop.run()
    (said,) = [line for line in decide(shop.spec, [Decision.LOST_LEDGER]) if "tombstones" in line]
    assert "continues without" in said
    shop.run()
    assert table(shop) == WRITTEN_FINAL


@pytest.mark.parametrize("point", [Point.AFTER_COMMIT, Point.AFTER_FIRST_TABLE])
def test_several_tables_are_merged_side_by_side(shop: Shop, point: Point) -> None:
    shop.options = {
        **shop.options,
        "decode": {"json": {}},
        "route": {"by": {"field": "kind"}},
        "table": {**merging(shop.lake, sequence_by="at")["table"], "path": f"{shop.lake}/{{route}}"},
    }
    shop.send_values(_kinds(range(8)))
    shop.die(point, 1)
    shop.send_values(_kinds(range(8, 12)))
    shop.run()
    for kind in ("a", "b"):
        found = DeltaTable(f"{shop.lake}/{kind}").to_pyarrow_table().to_pylist()
        assert {row["id"]: row["at"] for row in found} == {0: 11 if kind == "b" else 10}


def _kinds(numbers: Iterable[int]) -> Iterator[bytes]:
    for number in numbers:
        yield json.dumps({"kind": "ab"[number % 2], "id": 0, "at": number}).encode()


def test_a_table_that_was_appended_to_is_not_merged_into(shop: Shop) -> None:
    options = shop.options
    shop.options = {**options, "table": {"path": f"{shop.lake}/orders", "infer": {"records": 1}}}
    shop.send_values(list(written())[:3])
    shop.run()
    shop.options = options
    shop.send_values(list(written())[3:5])
    with pytest.raises(TableFeature, match="merges rows"):
        shop.run()


def test_a_replayed_dead_letter_does_not_replace_what_came_after_it(shop: Shop) -> None:
    small = {"name": "small", "expect": "total < 100", "on_violation": "reject"}
    open_ = {**shop.options, "decode": {"json": {}}}
    shop.options = {**open_, "table": {**open_["table"], "expectations": [small]}}
    rows = [(1, "late", 500), (1, "new", 5), (2, "late", 500)]
    shop.send_values(json.dumps({"id": key, "state": state, "total": total}).encode() for key, state, total in rows)
    shop.run()
    assert table(shop) == {1: ("new", 5)}
    shop.options = open_
    with shop.elsewhere():
        assert replay(shop.spec).counts.routed == 2
    assert table(shop) == {1: ("new", 5), 2: ("late", 500)}


def test_a_restored_table_is_refilled(shop: Shop, spark: Any) -> None:
    shop.send_values(written())
    shop.run()
    spark.sql(f"RESTORE TABLE delta.`{shop.lake}/orders` TO VERSION AS OF 1")
    with pytest.raises(TableRestored, match="--table-restored=refill"):
        shop.run()
    with shop.elsewhere():
        decide(shop.spec, [Decision.REFILLED_TABLE])
    assert table(shop) == WRITTEN_FINAL
