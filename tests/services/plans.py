"""Plans for tests: specs that need no broker, and envelopes of records made up on the spot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA
from headrace.plan.accounting import Counts
from headrace.plan.batch_result import BatchResult
from headrace.plan.plan import Plan
from headrace.plan.route_schema import RouteSchema
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.validate.load import loads

MOMENT = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)
LAKE = Path("/lake")


def spec_of(**content: Any) -> Spec:
    """A spec of the made-up source; a table per route unless the route is fixed."""
    fixed = content.get("route", {}).get("by", "fixed") == "fixed"
    table = {"path": "/lake/web" if fixed else "/lake/{route}", **content.pop("table", {})}
    whole = {"pipeline": "web", "source": {"generate": {}}, "table": table, **content}
    return loads(json.dumps(whole), LAKE)[0]


def envelope(offset: int, value: Any, **more: Any) -> dict[str, Any]:
    """One record: bytes and None as they are, anything else as JSON."""
    record = {
        "topic": "web",
        "partition": 0,
        "offset": offset,
        "timestamp": MOMENT,
        "timestamp_type": 0,
        "key": b"k%d" % offset,
        "value": value if isinstance(value, bytes | None) else json.dumps(value).encode(),
        "headers": [],
    }
    return record | more


def envelopes(values: Iterable[Any], topic: str = "web", **columns: Any) -> pa.Table:
    """Records of one partition, one for each value."""
    made = [envelope(offset, value, topic=topic, **columns) for offset, value in enumerate(values)]
    return pa.Table.from_pylist(made, RECORD_SCHEMA)


def plan_of(existing: Mapping[str, pa.Schema] | None = None, **content: Any) -> Plan:
    """A plan that learns, with a clock that stands still."""
    tables = {RouteId.parse(route): schema for route, schema in (existing or {}).items()}
    return Plan(spec_of(**content), existing=tables, now=lambda: MOMENT)


def shaped(plan: Plan, *routes: str, **options: Any) -> Plan:
    """The same plan as a task has it: with schemas given, learning nothing."""
    schemas: dict[RouteId, RouteSchema | None] = {}
    for route_id in map(RouteId.parse, routes or ("",)):
        schemas[route_id] = plan.branches[route_id.branch].route_schema(route_id.route, **options)
    return Plan(plan.spec, schemas, now=lambda: MOMENT)


def rows(applied: BatchResult, route: str = "") -> list[dict[str, Any]]:
    """A route's rows without where they came from."""
    route_id = RouteId.parse(route)
    found = applied.tables[route_id].to_pylist() if route_id in applied.tables else []
    return [{name: value for name, value in row.items() if name != "_source"} for row in found]


def letters(applied: BatchResult) -> list[tuple[int, str, str]]:
    """Offset, step and reason of each dead letter, by offset."""
    found = applied.dead_letters.to_pylist()
    return sorted((each["offset"], each["step"], each["reason"]) for each in found)


def adds_up(applied: BatchResult) -> Counts:
    """The account, after a look whether it is one."""
    counts, letters = applied.counts, applied.dead_letters
    assert counts.read == counts.routed + counts.dead + counts.filtered + counts.skipped
    assert {name: len(table) for name, table in applied.tables.items()} == {
        name: len(of) for name, of in applied.origins.items()
    }
    stored = {record for of in applied.origins.values() for record in of.tolist()}
    assert (counts.routed, counts.dead) == (len(stored), len({*applied.dead.tolist()} - stored))
    assert len(letters) == len(applied.dead) == sum(counts.reasons.values())
    assert len({*zip(applied.dead.tolist(), letters["table"].to_pylist(), strict=True)}) == len(letters)
    return counts


def changes(applied: BatchResult, *names: str) -> list[tuple[Any, ...]]:
    """Operation, offset and the columns asked for, in the order of the records."""
    found = applied.tables[RouteId()].to_pylist() if RouteId() in applied.tables else []
    made = [(each["_headrace"]["op"], each["_headrace"]["offset"], *(each[name] for name in names)) for each in found]
    counts = applied.counts
    assert counts.read == counts.routed + counts.dead + counts.filtered + counts.skipped
    return sorted(made, key=lambda each: (each[1], each[0]))


def event(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    """What Debezium says of one change."""
    return {"op": op, "before": before, "after": after, "ts_ms": 1_700_000_000_000, "source": {"lsn": 5}}
