"""Doubles under a whole pipeline: across batches, restarts, and a batch that dies on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace import Table
from headrace.dev.kafka import Broker
from headrace.faults import Point
from services.pipelines import Shop


@pytest.fixture
def shop(spark: Any, kafka: Broker, new_topic: Any, tmp_path: Path) -> Shop:
    """A topic of one partition, and a spec that stores an id once a day, by kind, five records a batch."""
    made = Shop(kafka.bootstrap, new_topic(), str(tmp_path / "lake"), tmp_path)
    once = {"keys": ["id", "kind"], "within": "1d"}
    made.options = {
        "transform": [],
        "table": {
            "path": f"{made.lake}/{{route}}",
            "infer": {"records": 1},
            "partition_by": ["kind"],
            "deduplicate": once,
        },
        "limits": {"batch_rows": 5},
        "flush": {"rows": 5, "every": "200ms"},
    }
    return made


def values(ids: Iterable[int]) -> Iterator[bytes]:
    for number in ids:
        yield json.dumps({"id": number, "kind": "ab"[number % 2], "text": f"№ {number}"}).encode()


def stored(shop: Shop) -> list[int]:
    found = [DeltaTable(f"{shop.lake}/{kind}").to_pyarrow_table()["id"].to_pylist() for kind in "ab"]
    return sorted(found[0] + found[1])


def test_duplicates_are_left_out_whoever_dies(shop: Shop) -> None:
    shop.send_values(values([1, 2, 3, 2, 4, 1, 5, 3, 6, 7]))
    shop.die(Point.AFTER_COMMIT, 2)
    Table(f"{shop.lake}/a").optimize()
    shop.send_values(values([7, 8, 8, 1, 9]))
    shop.die(Point.AFTER_STAGING)
    shop.run()
    assert stored(shop) == list(range(1, 10))
    rows = DeltaTable(f"{shop.lake}/_headrace/shop/ledger").to_pyarrow_table().to_pylist(maps_as_pydicts="strict")
    assert sum(row["read"] for row in rows) == shop.sent
    assert sum(row["routed"] for row in rows) == sum(row["written"] for row in rows) == 9
    assert sum(row["filtered"] for row in rows) == 6
    assert sum(count for row in rows for count in row["duplicates"].values()) == 6
    named = {Path(file).name for kind in "ab" for file in DeltaTable(f"{shop.lake}/{kind}").file_uris()}
    there = {path.name for path in shop.place.glob("[ab]/kind=*/*.parquet")}
    assert named <= there


def test_a_batch_whose_files_are_gone_is_read_again_with_the_same_duplicates(shop: Shop) -> None:
    shop.send_values(values([1, 2, 3, 2, 4, 1, 5, 3, 6, 7]))
    shop.die(Point.AFTER_FIRST_TABLE, 2)
    for path in shop.place.glob("b/kind=*/part-00000002-*.parquet"):
        path.unlink()
    for path in shop.place.glob("a/kind=*/part-00000002-*.parquet"):
        assert path.exists()
    shop.run()
    assert stored(shop) == list(range(1, 8))
