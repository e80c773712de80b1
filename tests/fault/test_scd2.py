"""Tables that keep a history under a whole pipeline: late events, deletes, and a batch that dies on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.dev.kafka import Broker
from headrace.faults import Point
from model.merging import Change
from model.states import Row, history
from services.pipelines import Shop


@pytest.fixture
def shop(spark: Any, kafka: Broker, new_topic: Any, tmp_path: Path) -> Shop:
    """A topic of one partition, and a spec that keeps the history of `state`, five records a batch."""
    made = Shop(kafka.bootstrap, new_topic(), str(tmp_path / "lake"), tmp_path)
    merge = {"keys": ["id"], "sequence_by": "at", "delete_when": "gone", "scd2": {"track": ["state"]}}
    made.options = {
        "transform": [],
        "route": {"by": "fixed"},
        "table": {"path": f"{made.lake}/orders", "infer": {"records": 1}, "mode": "scd2", "merge": merge},
        "limits": {"batch_rows": 5},
        "flush": {"rows": 5, "every": "200ms"},
    }
    return made


def log() -> Iterator[Change]:
    """Three keys, changes late by up to a whole log, a delete before what it ends, a double."""
    order = (7, 2, 9, 2, 4, 11, 1, 8, 3, 10, 6, 5)
    for offset, at in enumerate(order):
        op = "delete" if at in (4, 9) else "put"
        yield Change(op, at % 3, at, (at // 4, at) if op == "put" else (None, None), offset=offset)


def values(changes: Iterable[Change]) -> Iterator[bytes]:
    for each in changes:
        state, note = each.values
        said = {"id": each.key, "at": each.sequence, "state": state, "note": note, "gone": each.op == "delete"}
        yield json.dumps(said).encode()


def table(shop: Shop) -> list[Row]:
    found = DeltaTable(f"{shop.lake}/orders").to_pyarrow_table().to_pylist()
    return sorted(
        (row["id"], row["valid_from"], row["valid_to"], row["at"], (row["state"], row["note"])) for row in found
    )


def test_a_history_in_any_order_is_written_once_whoever_dies(shop: Shop) -> None:
    changes = list(log())
    shop.send_values(values(changes[:8]))
    shop.die(Point.AFTER_COMMIT, 1)
    shop.send_values(values(changes[8:]))
    shop.die(Point.AFTER_STAGING)
    shop.run()
    assert table(shop) == history(changes, (0,))
    shop.run()
    assert table(shop) == history(changes, (0,))
