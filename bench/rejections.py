"""CPU cost of the plan if every record is a dead letter, by reason, beside clean records: CPU-seconds per million.

Run: PYTHONPATH=src python -m bench.rejections [records] — prints the figures and the throughput relative to clean.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from bench.cost import Run, lowest_costs
from bench.peers import spec_text
from bench.plans import NOW, records_of
from headrace.plan.plan import Plan
from headrace.source.sample_events import bench_event
from headrace.validate.load import loads

CLEAN = "rejects: none"
Row = dict[str, Any]


def _json(change: Callable[[Row], Row]) -> Callable[[bytes], bytes]:
    return lambda value: json.dumps(change(orjson.loads(value)), separators=(",", ":")).encode()


def _number(value: bytes) -> int:
    number: int = orjson.loads(value)["id"]
    return number


REASONS: dict[str, Callable[[bytes], bytes]] = {
    CLEAN: lambda value: value,
    "rejects: invalid JSON": lambda value: value[:-20],
    "rejects: cut off anywhere": lambda value: value[: 1 + _number(value) * 7919 % (len(value) - 1)],
    "rejects: two values": lambda value: value + b" " + value,
    "rejects: array of an object": lambda value: b"[" + value + b"]",
    "rejects: JSON in a string": lambda value: json.dumps(value.decode()).encode(),
    "rejects: lines of a log": lambda value: b"2026-01-01 12:00:00 INFO started worker %d" % _number(value),
    "rejects: not UTF-8": lambda value: value[:-2] + b"\xe9%d" % _number(value) + value[-2:],
    "rejects: number too large": _json(lambda row: {**row, "id": 2**70 + row["id"]}),
    "rejects: fraction for an integer": _json(lambda row: {**row, "id": row["id"] + 0.5}),
    "rejects: wrong type": _json(lambda row: {**row, "id": f"x{row['id']}"}),
    "rejects: wrong type in an object": _json(lambda row: {**row, "user": {**row["user"], "id": "x"}}),
    "rejects: required field missing": _json(lambda row: {key: row[key] for key in row if key != "id"}),
    "rejects: invalid timestamp": _json(lambda row: {**row, "timestamp": f"at {row['id']}"}),
    "rejects: key twice": lambda value: value[:-1] + b',"id":1}',
}


def runs(count: int) -> dict[str, Run]:
    """Records and the plan of each reason."""
    text = spec_text({"bootstrap": "localhost:9092"}, {"topic": "bench"})
    required = text.replace('"name": "id", "type": "bigint"', '"name": "id", "type": "bigint", "nullable": false')
    [spec] = loads(required, Path("/bench"))
    events = [bench_event(1, number) for number in range(count)]
    return {
        name: (records_of([change(event) for event in events]), Plan(spec, now=lambda: NOW).apply)
        for name, change in REASONS.items()
    }


def figures(count: int) -> dict[str, float]:
    """Cost of all reasons."""
    return lowest_costs(runs(count), rounds=3)


if __name__ == "__main__":
    costs = figures(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
    for name, seconds in costs.items():
        print(f"{name:36s}{seconds:8.2f} CPU-s per million, throughput ÷ clean {costs[CLEAN] / seconds:5.2f}")
