"""Pipelines inside this process, on its one Spark session: to their end, or in a thread that a test watches."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from headrace.errors import HeadraceError
from headrace.pipeline.events import Summary
from headrace.serve.runner import run_all
from headrace.serve.supervised_pipeline import RunResult
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from services.kafka import read_all
from services.pipelines import make_spec
from services.wait import eventually

Place = tuple[str, int, int]  # topic, partition, offset


def one_table(bootstrap: str, topics: Iterable[str] | str, table: Path | str, **more: Any) -> Spec:
    """A spec that puts every record of some topics into one table, as it is."""
    names = [topics] if isinstance(topics, str) else list(topics)
    options = more.pop("table", {})
    fixed = {
        "route": {"by": "fixed"},
        "transform": [],
        "table": {"path": str(table), "infer": {"records": 1}, **options},
    }
    return make_spec(bootstrap, names, "unused", **fixed | more)


def numbered(start: int, count: int, **extra: Any) -> list[bytes]:
    """JSON events with ids from `start` on."""
    return [
        json.dumps({"id": number, "text": f"№ {number}", **extra}).encode() for number in range(start, start + count)
    ]


def drained(specs: Sequence[Spec], within: float, wait: bool = False) -> list[RunResult]:
    """Run to the ends that the sources have now; what waits for ever is given up with what it said last."""
    stop, events = threading.Event(), list[dict[str, Any]]()
    timer = threading.Timer(within, stop.set)
    timer.start()
    try:
        outcomes = run_all(specs, until="latest", stop=stop, report=events.append, wait=wait)
    finally:
        timer.cancel()
    assert not stop.is_set(), f"not done within {within:g} s; {events[-3:]}"
    return outcomes


def drain(spec: Spec, within: float = 90) -> Summary:
    """Run one to its end; raises what stopped the pipeline."""
    (outcome,) = drained([spec], within)
    if outcome.error is not None:
        raise outcome.error
    return outcome.summary


def drain_all(specs: Sequence[Spec], within: float = 120, wait: bool = False) -> dict[str, HeadraceError | None]:
    """Run several side by side to their ends (`wait`: once their leases are free): what stopped each, by pipeline."""
    return {outcome.summary.pipeline: outcome.error for outcome in drained(specs, within, wait)}


class Watched:
    """An endless run in a thread, and what it has told so far."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.events: list[dict[str, Any]] = []
        self.outcomes: list[RunResult] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(specs,), daemon=True)
        self._thread.start()

    def _run(self, specs: Sequence[Spec]) -> None:
        self.outcomes = run_all(specs, report=self.events.append, stop=self._stop)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        return [event for event in list(self.events) if event["event"] == kind]

    def until_read(self, count: int, within: float = 60) -> None:
        """Wait until that many records are booked."""
        eventually(lambda: self.read() >= count, within, lambda: f"{count} records read; {self.events[-4:]}")

    def read(self) -> int:
        """Records booked so far."""
        return sum(event["read"] for event in self.of("batch"))

    def until_ended(self, within: float = 60) -> HeadraceError | None:
        """Wait until it ends by itself: what stopped it."""
        self._thread.join(within)
        assert not self._thread.is_alive(), f"still running after {within:g} s; {self.events[-4:]}"
        return self.outcomes[0].error

    def stop(self, within: float = 30) -> HeadraceError | None:
        """Ask it to end, and wait."""
        self._stop.set()
        return self.until_ended(within)


@contextmanager
def watched(*specs: Spec) -> Iterator[Watched]:
    """An endless run for the length of a block."""
    running = Watched(specs)
    try:
        yield running
    finally:
        running.stop()


def opened(uri: str | Path, spec: Spec | None = None) -> DeltaTable:
    """A table as delta-rs sees it now."""
    from headrace.storage.store import Profile, Store

    store = Store(str(uri), Profile(**spec.storage_profile()) if spec else Profile())
    return DeltaTable(store.delta_uri, storage_options=store.delta_options)


def ids(uri: str | Path, spec: Spec | None = None) -> list[int]:
    """Every id in a table, in order."""
    return sorted(opened(uri, spec).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def letters(spec: Spec) -> list[dict[str, Any]]:
    """The dead letters, in the order of their records."""
    if not DeltaTable.is_deltatable(spec.dead_letters_uri):
        return []
    found = opened(spec.dead_letters_uri).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda letter: (letter["topic"], letter["partition"], letter["offset"]))


def assert_each_once(spec: Spec, table: str | Path = "") -> None:
    """Every committed record of the spec's topics is in the table exactly once, at its place (read by others)."""
    uri = str(table) or spec.uri_of(RouteId())
    sources = opened(uri, spec).to_pyarrow_table(columns=["_source"])["_source"].to_pylist()
    rows = sorted((each["topic"], each["partition"], each["offset"]) for each in sources)
    seen = read_all(spec.kafka.bootstrap, spec.kafka.topics or ())
    assert rows == sorted((each.topic, each.partition, each.offset) for each in seen)
