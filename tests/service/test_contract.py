"""Contracts in a running pipeline: what stops it, what it leaves behind, and tables that grow by the spec's word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.dev.kafka import Broker
from headrace.errors import ColumnMismatch, ContractViolation, TooManyRejected
from services.pipelines import Shop

ID = {"name": "id", "type": "bigint"}


@pytest.fixture
def shop(spark: Any, kafka: Broker, topic: str, lake: Path, tmp_path: Path) -> Shop:
    options = {"route": {"by": "fixed"}, "transform": [], "table": {"path": f"{lake}/web"}}
    return Shop(kafka.bootstrap, topic, str(lake), tmp_path, options=options)


def table(shop: Shop, **keys: Any) -> None:
    shop.options["table"] = {"path": f"{shop.lake}/web", **keys}


def stored(shop: Shop) -> list[dict[str, Any]]:
    rows = DeltaTable(f"{shop.lake}/web").to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["_source"]["offset"])


def letters(shop: Shop) -> int:
    return len(DeltaTable(f"{shop.lake}/_headrace/shop/dead_letters").to_pyarrow_table())


def test_the_breaker_stops_behind_the_batch_that_crosses_it_and_the_next_run_goes_on(shop: Shop):
    shop.options |= {"circuit_breaker": {"max_reject_ratio": "20%", "min_records": 10}, "limits": {"batch_rows": 10}}
    good, bad = [json.dumps({"id": 1}).encode()] * 10, [b"{"] * 5 + [b'{"id":2}'] * 5
    shop.send_values([*good, *bad, *good])
    with pytest.raises(TooManyRejected, match=r"5 of the last 20 records are dead letters: 25\.0%"):
        shop.run()
    assert (len(stored(shop)), letters(shop)) == (15, 5)
    assert shop.run().counts.read == 10
    assert (len(stored(shop)), letters(shop)) == (25, 5)


def test_an_expectation_may_stop_and_the_record_is_read_again(shop: Shop):
    positive = {"name": "positive", "expect": "id > 0", "on_violation": "stop"}
    table(shop, columns=[ID], expectations=[positive])
    shop.send_values([b'{"id":1}', b'{"id":-1}'])
    with pytest.raises(ContractViolation, match="'positive'"):
        shop.run()
    assert not Path(shop.lake, "web").exists()
    table(shop, columns=[ID], expectations=[{**positive, "on_violation": "warn"}])
    summary = shop.run()
    assert [row["id"] for row in stored(shop)] == [1, -1]
    assert summary.counts.violations == {f"{shop.lake}/web: positive": 1}
    assert [event["violations"] for event in shop.events if event["event"] == "batch"] == [summary.counts.violations]


def test_what_the_spec_asks_for_is_added_to_a_table_that_exists(shop: Shop):
    shop.send_values([b'{"id":1}'])
    shop.run()
    rescue = {"new_field": "rescue", "wrong_type": "rescue"}
    table(shop, columns=[ID, {"name": "more", "type": "string"}], contract=rescue, metadata="danube")
    shop.send_values([b'{"id":2,"more":"x"}', b'{"id":"3","other": 1.0}'])
    shop.run()
    found = stored(shop)
    assert [(row["id"], row["more"], row["_rescued"]) for row in found] == [
        (1, None, None),
        (2, "x", None),
        (None, None, '{"id":"3","other":1.0}'),
    ]
    assert [json.loads(row["_danube_metadata"] or "{}").get("offset") for row in found] == [None, 1, 2]


def test_a_table_that_must_not_be_altered_stops_where_the_spec_declares_more(shop: Shop):
    shop.send_values([b'{"id":1}'])
    shop.run()
    table(shop, columns=[ID, {"name": "more", "type": "string"}], create="never")
    shop.send_values([b'{"id":2}'])
    with pytest.raises(ColumnMismatch, match="lacks the declared 'more'"):
        shop.run()
