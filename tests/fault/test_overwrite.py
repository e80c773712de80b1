"""Pipelines that overwrite: every run is a generation, and one that dies is gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace import run
from headrace.dev.kafka import Broker
from headrace.errors import UsageError
from headrace.faults import Point
from services.pipelines import Shop


@pytest.fixture
def shop(spark: Any, kafka: Broker, new_topic: Any, tmp_path: Path) -> Shop:
    """A topic of one partition, and a spec that overwrites a table for each kind, five records a batch."""
    made = Shop(kafka.bootstrap, new_topic(), str(tmp_path / "lake"), tmp_path)
    made.options = {
        "transform": [],
        "table": {"path": f"{made.lake}/{{route}}", "infer": {"records": 1}, "mode": "overwrite"},
        "limits": {"batch_rows": 5},
        "flush": {"rows": 5, "every": "200ms"},
    }
    return made


def send(shop: Shop, numbers: Iterable[int], kinds: str = "ab") -> None:
    shop.send_values(json.dumps({"id": n, "kind": kinds[n % len(kinds)], "day": n // 10}).encode() for n in numbers)


def ids(shop: Shop, kinds: str = "ab") -> list[int]:
    found = [DeltaTable(f"{shop.lake}/{kind}").to_pyarrow_table()["id"].to_pylist() for kind in kinds]
    return sorted(each for ids in found for each in ids)


def dead(shop: Shop) -> list[int]:
    return sorted(DeltaTable(f"{shop.lake}/_headrace/shop/dead_letters").to_pyarrow_table()["offset"].to_pylist())


def test_every_run_reads_from_the_start_and_one_that_dies_is_gone_on_with(shop: Shop) -> None:
    send(shop, range(8))
    shop.run()
    assert ids(shop) == list(range(8))
    first = DeltaTable(f"{shop.lake}/a").version()
    send(shop, range(8, 12))
    shop.die(Point.AFTER_COMMIT, 6)  # 1 and 4 begin generations
    assert len(ids(shop)) < 12
    shop.run()
    assert ids(shop) == list(range(12))
    assert DeltaTable(f"{shop.lake}/a", version=first).to_pyarrow_table().num_rows == 4, "what was is there still"
    shop.run()
    assert ids(shop) == list(range(12))
    with pytest.raises(UsageError, match="--until latest"):
        run(shop.spec)


def test_a_table_without_records_is_emptied_and_other_partitions_stay(shop: Shop) -> None:
    send(shop, range(4))
    shop.send_values([b"{", b"}"])
    shop.run()
    shop.run()
    assert dead(shop) == [4, 5], "the letters of a generation take the place of those before it"
    shop.options["transform"] = [{"where": "kind = 'a'"}]
    shop.run()
    assert (ids(shop, "a"), ids(shop, "b")) == ([0, 2], [])
    by_day = {**shop.options["table"], "path": f"{shop.lake}/days", "mode": "overwrite_partitions"}
    shop.options |= {"pipeline": "days", "route": {"by": "fixed"}, "transform": []}
    shop.options["table"] = {**by_day, "partition_by": ["day"]}
    send(shop, range(4, 24))
    shop.run()
    assert ids(shop, ["days"]) == list(range(24))
    shop.options["transform"] = [{"where": "id >= 12"}, {"set": {"kind": "'c'"}}]
    shop.run()
    found = DeltaTable(f"{shop.lake}/days").to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in found) == [*range(10), *range(12, 24)]
    assert {row["kind"] for row in found if row["day"] >= 1} == {"c"}
