"""CPU cost of the plan (route, decode, transform, fit) without Spark: CPU-seconds per million, one thread.

Run: PYTHONPATH=src python -m bench.plans [records [parts of names …]] — prints the figures.
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

from bench.cost import Run, lowest_costs, to_text
from bench.drains import TEN, UNLIKE, by_type, with_registry
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


def records_of(values: list[bytes]) -> pa.Table:
    """Records as in a task, with one header each."""
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
    """Records of a kind, and the plan that is applied to them."""
    record_kind, id = KINDS[kind], 0
    if record_kind.encoding:
        id = schemas.registered(record_kind.encoding.schema, record_kind.encoding.kind)
        drain = {**drain, **with_registry(record_kind.encoding, schemas.registry_url())}
    [spec] = loads(spec_text({"bootstrap": "localhost:9092"}, {"topic": "bench", **drain}), Path("/bench"))
    return records_of(list(record_kind.records(events.first(count), id))), Plan(spec, now=lambda: NOW).apply


def figures(count: int, words: tuple[str, ...] = ()) -> dict[str, float]:
    """Cost of all plans, or of those whose name contains one of the words."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        events = Events(Path(folder) / "events.jsonl")
        plans = {name: plan for name, plan in PLANS.items() if not words or any(word in name for word in words)}
        from bench import rejections  # which imports this module

        runs = {name: run_of(events, count, *plan) for name, plan in plans.items()}
        return lowest_costs({**runs, **({} if words else rejections.runs(count))}, rounds=3)


if __name__ == "__main__":
    print(to_text(figures(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, tuple(sys.argv[2:]))))
