"""Fields that come while records flow: a table grows in the batch that brings them, and nothing is lost or NULLed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.dev.kafka import Broker
from services.kafka import produce
from services.pipelines import Shop, start_cli

PER_TICK = 250
SECONDS = 60


@pytest.fixture
def shop(kafka: Broker, topic: str, lake: Path, tmp_path: Path) -> Shop:
    table = {"path": f"{lake}/web", "infer": {"records": 1}}
    options = {"route": {"by": "fixed"}, "transform": [], "table": table}
    return Shop(kafka.bootstrap, topic, str(lake), tmp_path, options=options)


def ticks(seconds: float, every: float) -> Iterator[int]:
    """Numbers, as many a second as asked for; what is late is made up for."""
    began = time.monotonic()
    for number in range(round(seconds / every)):
        time.sleep(max(0.0, began + number * every - time.monotonic()))
        yield number


@pytest.mark.slow
def test_two_new_fields_a_second_for_a_minute(shop: Shop):
    """The names of the last fields come too, in other records than the new one: no task sees all of them."""
    sent: dict[int, dict[str, Any]] = {}
    with start_cli(["run", shop.write_spec()], {"XDG_STATE_HOME": str(shop.scratch / "state")}) as running:
        for tick in ticks(SECONDS, 0.5):
            made = {len(sent) + at: _fields(tick, at) for at in range(PER_TICK)}
            sent |= made
            values = [json.dumps({"id": id, **fields}).encode() for id, fields in made.items()]
            for partition in (0, 1):
                produce(shop.bootstrap, shop.topic, values[partition::2], partition)
        running.until_read(len(sent))
        batches = len(running.of("batch"))
        assert running.stop() == 0, running.said()
    rows = DeltaTable(f"{shop.lake}/web").to_pyarrow_table().to_pylist()
    assert {row["id"]: _filled(row) for row in rows} == sent
    assert len(rows) == len(sent)
    assert batches >= 20
    assert not DeltaTable.is_deltatable(shop.spec.dead_letters_uri)


def _fields(tick: int, at: int) -> dict[str, Any]:
    """The new field, or one of the three before it, or none."""
    back = at % 5
    return {f"f{tick - back}": tick * at} if back < 4 and tick >= back else {}


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("id", "_source") and value is not None}
