"""A console on a real socket, over a pipeline that has run in this process and has dead letters of many kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from headrace.ledger.ledger import Ledger
from headrace.serve.access import Access, ListenOptions, tokens_from
from headrace.serve.console.app import Console
from headrace.serve.endpoint import Endpoint
from headrace.serve.monitor import Monitor
from headrace.serve.redaction import Redaction
from headrace.source.ranges import Range
from headrace.storage.store import Store
from services.endpoint_client import Client
from services.in_process_pipeline import Harness
from services.monitored import partitions, progress

VIEWER, OPERATOR = "viewer-token-of-32-characters-aa", "operator-token-of-32-characters-"
TOKENS = {"HEADRACE_VIEWER_TOKEN": VIEWER, "HEADRACE_OPERATOR_TOKEN": OPERATOR}
LOCAL = ListenOptions("127.0.0.1:0")
COLUMNS = [
    {"name": "id", "type": "bigint", "nullable": False},
    {"name": "at", "type": "timestamp"},
    {"name": "amount", "type": "decimal(8,2)"},
]
BAD: list[Any] = [
    {"kind": "order", "id": "four"},
    {"kind": "order", "id": 5, "at": "yesterday"},
    {"kind": "view", "id": 6, "amount": 123456789.5},
    b'{"kind": "view", "id": ',
    b'{"kind": "vi\xffew"}',
    {"kind": "a/b", "id": 7},
]


@dataclass
class ServedConsole:
    """A console, its pipeline and a client."""

    client: Client
    harness: Harness
    monitor: Monitor
    console: Console

    def page(self, path: str, token: str | None = VIEWER) -> str:
        """The HTML of a page."""
        status, html, _ = self.client.get(path, token, Accept="text/html")
        assert status == 200, (path, status, html)
        return str(html)

    def table_path(self, name: str, token: str = VIEWER) -> str:
        """The path of a table's page."""
        parts = self.page("/pipelines/shop", token).split('"')
        return next(part for part in parts if f"/tables/{name}-" in part)


def filled_pipeline(folder: Path, **options: Any) -> Harness:
    """A pipeline with three batches, two tables, a new column and six dead letters."""
    harness = Harness(folder)
    table = {"path": f"{folder}/lake/{{route}}", "columns": COLUMNS, "contract": {"new_field": "evolve"}}
    steps = [{"where": "coalesce(id, 0) < 1000"}]
    harness.options = {"table": table, "transform": steps, "allow_missing": ["id"], **options}
    harness.feed([{"kind": ("order", "view")[n % 2], "id": n, "at": "2026-01-01T00:00:00Z"} for n in range(20)])
    harness.feed([{"kind": "order", "id": 20, "amount": 12.5}, {"kind": "order", "id": 5000}, *BAD])
    harness.feed([{"kind": "order", "id": 21, "color": "red"}])
    return harness


def observed(harness: Harness) -> Monitor:
    """A monitor that has seen the events of a pipeline, and its lag."""
    monitor = Monitor([harness.spec])
    for event in (*harness.events, progress(lag=7), partitions(7)):
        monitor(event)
    return monitor


def busy_pipeline(folder: Path) -> tuple[Harness, Monitor]:
    """A pipeline with 24 batches within the last 15 minutes and a gap in its offsets, and a monitor that saw it."""
    harness = Harness(folder)
    table = {"path": f"{folder}/lake/{{route}}", "columns": COLUMNS, "contract": {"new_field": "evolve"}}
    harness.options = {"table": table, "transform": [{"where": "coalesce(id, 0) >= 0"}], "allow_missing": ["id"]}
    moment = [datetime.now(UTC) - timedelta(minutes=14, seconds=30)]
    monitor = Monitor([harness.spec], clock=lambda: moment[0])
    ids = count()
    for number in range(24):
        if number == 15:
            _skip_offsets(harness, 900)
        waiting = 250 + 40 * (number % 5) + (600 if number == 16 else 0)
        for step in range(6):  # 36 seconds for a batch
            moment[0] += timedelta(seconds=6)
            monitor(progress(lag=waiting * (step + 1) // 6, seconds=0.4 * (step + 1)))
        values: list[Any] = [_order(next(ids), number) for _ in range(waiting)]
        values += BAD if number % 6 == 4 else []
        seen = len(harness.events)
        harness.feed(values)
        for event in harness.events[seen:]:
            monitor(event)
    monitor(progress(lag=118, seconds=1.2))
    return harness, monitor


def _order(number: int, batch: int) -> dict[str, Any]:
    order = {"kind": ("order", "page_view", "refund")[number % 3], "id": number if number % 50 else -1}
    order |= {"at": f"2026-11-19T08:{number % 60:02}:00Z", "amount": number % 900 + 0.5}
    return order | ({"coupon": "WINTER"} if batch > 8 else {}) | ({"currency": "EUR"} if batch > 18 else {})


def _skip_offsets(harness: Harness, number: int) -> None:
    """Offsets that a decision has skipped, as after `headrace resume --accept-gap`."""
    start = len(harness.sent)
    harness.sent += [b""] * number
    ledger = Ledger.open(Store(harness.spec.state_uri), "shop")
    ledger.decide("accept-gap", {("orders", 0): start + number}, (Range("orders", 0, start, start + number, "id"),))


@contextmanager
def served_console(
    harness: Harness, tokens: Mapping[str, str] | None = None, monitor: Monitor | None = None
) -> Iterator[ServedConsole]:
    """Serve a console; without tokens, everyone may read."""
    monitor = monitor or observed(harness)
    access = Access(LOCAL, tokens_from(tokens or {}))
    redaction = Redaction([view.spec for view in monitor.pipelines()])
    console = Console(monitor, access, redaction)
    endpoint = Endpoint(
        monitor,
        LOCAL,
        access=access,
        routes=console.routes,
        open_paths=console.open_paths,
        identify=console.identify,
        challenges=console.challenges,
        unauthorized=console.unauthorized,
    )
    try:
        yield ServedConsole(Client(endpoint.start()), harness, monitor, console)
    finally:
        endpoint.stop()
