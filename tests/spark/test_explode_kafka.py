"""Exploded orders from Kafka through Spark: rescued elements, a record that repeats too many bytes, and odd records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from headrace.dev.kafka import Broker
from headrace.serve.runner import run_all
from services.kafka import produce
from services.plans import spec_of


def test_elements_are_rescued_and_a_record_that_repeats_too_much_is_one_dead_letter(
    spark: Any, kafka: Broker, topic: str, lake: Path
):
    fitting = {"id": 6, "items": [{"sku": "a", "qty": 1}]}
    rescued = {"id": "A-7", "note": "x", "items": [{"sku": "a", "qty": 2}, {"sku": "b", "qty": "two", "gift": True}, 5]}
    repeated = {"id": 8, "memo": "x" * 50_000, "items": [{"sku": f"s{number}"} for number in range(100)]}
    values = [json.dumps(each).encode() for each in (fitting, rescued, {"id": 9}, repeated)]
    header = {"key": b"k", "headers": [("h", b"1"), ("n", None)]}
    produce(kafka.bootstrap, topic, [*values, b"not json", {"value": values[0], **header}, {"value": b"bad", **header}])
    columns = [
        {"name": "order_id", "type": "bigint"},
        {"name": "memo", "type": "string"},
        {"name": "sku", "type": "string"},
        {"name": "qty", "type": "int"},
    ]
    spec = spec_of(
        source={"kafka": {"brokers": kafka.bootstrap, "topics": [topic]}},
        explode={"column": "items", "keep": {"order_id": "id", "memo": "memo"}, "position": "line"},
        table={
            "path": f"{lake}/lines",
            "columns": columns,
            "contract": {"new_field": "rescue", "wrong_type": "rescue"},
        },
        limits={"repeated_bytes": "1MB"},
    )
    (outcome,) = run_all([spec], until="latest")
    assert outcome.error is None

    names = ["order_id", "line", "sku", "qty", "_rescued"]
    rows = DeltaTable(f"{lake}/lines").to_pyarrow_table(columns=names).to_pylist()
    assert sorted((tuple(row.values()) for row in rows), key=str) == sorted(
        [
            (6, 0, "a", 1, None),
            (6, 0, "a", 1, None),
            (None, 0, "a", 2, '{"id":"A-7"}'),
            (None, 1, "b", None, '{"id":"A-7","items.qty":"two","items.gift":true}'),
            (None, 2, None, None, '{"id":"A-7","items":5}'),
        ],
        key=str,
    )
    dead_letters = (
        DeltaTable(spec.dead_letters_uri).to_pyarrow_table(columns=["reason", "value", "headers"]).to_pylist()
    )
    assert sorted(map(tuple, map(dict.values, dead_letters)), key=str) == [
        ("malformed", b"bad", [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]),
        ("malformed", b"not json", None),
        ("too_big", values[3], None),
    ]
    counts = outcome.summary.counts
    assert (counts.read, counts.routed, counts.dead, counts.filtered) == (7, 3, 3, 1)
