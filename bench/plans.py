"""What the plan alone costs (route, decode, transform, fit) in this process: CPU-seconds per million, one thread.

Run: PYTHONPATH=src python -m bench.plans [records [words of a name …]] — prints the table.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.cost import Run, least, shown
from bench.drains import TEN, UNLIKE, behind, by_type
from bench.peers import spec_text
from bench.records import KINDS, Events
from headrace.delta.schema import HEADERS, RECORD_SCHEMA
from headrace.plan.plan import Plan
from headrace.validate.load import loads
from services import schemas

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLANS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "json": ("plain", {}),
    "json, ten JMESPath transforms": ("plain", TEN),
    "json, rescue, nothing to rescue": ("plain", {"table": {"contract": {"wrong_type": "rescue"}}}),
    "json, one type": ("1 table", by_type()),
    "json, 200 types": ("200 types", by_type()),
    "json, 200 unlike types": ("200 unlike types", by_type(UNLIKE)),
    "avro, by a registry": ("avro", {}),
    "protobuf, by a registry": ("protobuf", {}),
}


def envelopes(values: list[bytes]) -> pa.Table:
    """Records as a task gets them, with a header each."""
    count = len(values)
    header = pa.array([{"key": "trace", "value": b"00f067aa0ba902b7"}], HEADERS.value_type)
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(count + 1), pa.int32()), header.take(pa.array(np.zeros(count, np.int64))), type=HEADERS
    )
    columns = [
        pa.repeat("bench", count),
        pa.array(np.zeros(count), pa.int32()),
        pa.array(np.arange(count), pa.int64()),
        pa.repeat(pa.scalar(NOW, RECORD_SCHEMA.field("timestamp").type), count),
        pa.array(np.zeros(count), pa.int32()),
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        lists,
    ]
    return pa.table(columns, schema=RECORD_SCHEMA)


def run_of(events: Events, count: int, kind: str, drain: Mapping[str, Any]) -> Run:
    """The records of a kind, and the plan that takes them."""
    made, id = KINDS[kind], 0
    if made.encoding:
        id = schemas.registered(made.encoding.schema, made.encoding.kind)
        drain = {**drain, **behind(made.encoding, schemas.registry_url())}
    [spec] = loads(spec_text({"bootstrap": "localhost:9092"}, {"topic": "bench", **drain}), Path("/bench"))
    return envelopes(list(made.records(events.first(count), id))), Plan(spec, now=lambda: NOW).apply


def figures(count: int, wanted: tuple[str, ...] = ()) -> dict[str, float]:
    """Every plan's cost, or of those whose name has a wanted word."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        events = Events(Path(folder) / "events.jsonl")
        chosen = {name: plan for name, plan in PLANS.items() if not wanted or any(word in name for word in wanted)}
        return least({name: run_of(events, count, *plan) for name, plan in chosen.items()}, rounds=3)


if __name__ == "__main__":
    print(shown(figures(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, tuple(sys.argv[2:]))))
