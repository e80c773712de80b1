"""Events of a pipeline for tests of the monitor, and a monitor that has seen an event of each kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from headrace.pipeline.progress import Progress
from headrace.serve.monitor import Monitor
from headrace.spec import Spec
from headrace.validate.load import loads

SPEC = """
pipeline: shop
source: {generate: {records: 10}}
table: {path: lake/orders}
"""
TABLE = "/lake/orders"
HOT_STORE = "hot_store: {postgres: {host: localhost, database: events, user: ann}}\n"


def shop_spec(extra: str = "") -> Spec:
    """A small spec, with further keys."""
    return loads(SPEC + extra)[0]


def progress(
    lag: int | None = 0, batch: int | None = None, read: int | None = None, seconds: float | None = None
) -> dict[str, Any]:
    """The progress of the pipeline; by default the oldest of `lag` records is lag / 10 seconds old."""
    age = seconds if seconds is not None else None if lag is None else lag / 10
    lag_fields = {"lag": lag, "lag_seconds": age, "lag_reason": None, "open_transaction": None}
    current = {**Progress().event(), "batch": batch, "batch_read": read}
    return {"event": "progress", "pipeline": "shop", **lag_fields, **current}


def partitions(*lags: int, topic: str = "orders", seconds: float | None = None) -> dict[str, Any]:
    """The lag of partitions, all at position 100."""
    parts = [
        {"topic": topic, "partition": number, "position": 100, "end": 100 + lag, "lag": lag, "lag_seconds": seconds}
        for number, lag in enumerate(lags)
    ]
    return {"event": "partitions", "pipeline": "shop", "partitions": parts}


def batch(number: int = 1, read: int = 10, dead: int = 0, **more: Any) -> dict[str, Any]:
    """A finished batch."""
    counts = {"read": read, "routed": read - dead, "dead": dead, "filtered": 0, "skipped": 0, "rescued": 0}
    keyed = {"reasons": {"malformed": dead} if dead else {}, "ignored": {}, "violations": {}, "duplicates": {}}
    tables = {TABLE: {"version": number, "rows": read - dead, "files": 1, "bytes": 100}}
    head = {"event": "batch", "pipeline": "shop", "batch": number, "seconds": 0.5, "runs": 1}
    return {**head, **counts, **keyed, "tables": tables, **more}


def retry(error: str = "StorageUnreachable", seconds: float = 1.0, message: str = "no answer") -> dict[str, Any]:
    """A transient error."""
    return {"event": "retry", "pipeline": "shop", "error": error, "seconds": seconds, "message": message}


def stopped(error: str = "SourceGap", message: str = "Offsets are gone.", hint: str = "Resume.") -> dict[str, Any]:
    """The error that stops the pipeline."""
    return {"event": "error", "pipeline": "shop", "error": error, "message": message, "hint": hint}


def state(name: str, reason: str | None = None) -> dict[str, Any]:
    """A state that the supervisor sets."""
    return {"event": "state", "pipeline": "shop", "state": name, "reason": reason}


def hot_store(name: str, **more: Any) -> dict[str, Any]:
    """What the hot store does: `applied`, `failed` or `recovered`."""
    fields: dict[str, Any] = {"event": "hot_store", "pipeline": "shop", "state": name}
    if name == "applied":
        fields |= {"table": TABLE, "hot_table": "public.orders", "version": 3, "rows": 10, "removed": 1, "rejected": 2}
        fields |= {"lag_commits": 4, "lag_seconds": 1.5, "seconds": 0.1}
    return fields | more


def full_monitor() -> Monitor:
    """A monitor in which every metric has a value."""
    seconds = count()
    start = datetime.now(UTC)
    monitor = Monitor(
        [shop_spec(f"freshness: {{target: 30s}}\n{HOT_STORE}"), *many_tables(1_001)],
        clock=lambda: start + timedelta(seconds=next(seconds) / 1000),
    )
    phases = {"stage": 0.3, "check": 0.01, "intent": 0.02, "commit": 0.1, "ledger": 0.03}
    keyed = {"ignored": {f"{TABLE}: color": 2}, "violations": {f"{TABLE}: amount > 0": 1}, "duplicates": {TABLE: 1}}
    action = {"event": "maintenance", "pipeline": "shop", "operation": "compact", "table": TABLE, "files": 3}
    received = dict.fromkeys(
        ("records", "bytes", "requests", "duplicates", "full", "syncs", "spool_records", "spool_bytes"), 5
    )
    for event in (
        retry(),
        progress(lag=7),
        partitions(3, 4, seconds=0.5),
        batch(1, dead=1, phases=phases, bytes=1000, **keyed),
        {"event": "recover", "pipeline": "shop", "batch": 1},
        {**action, "state": "done", "bytes": 300, "seconds": 0.5},
        {"event": "table_files", "pipeline": "shop", "table": TABLE, "small_files": 3, "small_bytes": 30},
        {"event": "table_files", "pipeline": "shop", "table": TABLE, "unused_files": 2, "unused_bytes": 20},
        {"event": "received", "pipeline": "shop", **received},
        stopped(),
        state("restarting"),
        state("starting"),
        progress(lag=7),
        partitions(3, 4, seconds=0.5),
        progress(lag=7),
        hot_store("applied"),
        batch(1, pipeline="many", tables={f"/lake/{n}": {"version": 1, "rows": 1} for n in range(1_001)}),
    ):
        monitor(event)
    return monitor


def many_tables(number: int) -> list[Spec]:
    """A pipeline whose path has a route, for `number` tables."""
    return loads(
        "pipeline: many\nsource: {generate: {records: 10}}\nroute: {by: {field: type}}\n"
        f'table: {{path: "lake/{{route}}"}}\nlimits: {{tables: {number}}}\n'
    )
