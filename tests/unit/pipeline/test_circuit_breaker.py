"""The breaker and the inference floor: when a pipeline stops by itself, and what it waits for before it begins."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import SpecError, TooManyRejected
from headrace.pipeline import inference_minimum
from headrace.pipeline.circuit_breaker import CircuitBreaker
from headrace.plan.accounting import Counts
from headrace.source.base import Bounds
from headrace.spec.route_id import RouteId
from services.plans import spec_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def batch(read: int, dead: int) -> Counts:
    return Counts(read=read, routed=read - dead, dead=dead)


def breaker(**rule: Any) -> CircuitBreaker:
    return CircuitBreaker(
        spec_of(
            circuit_breaker={"max_reject_ratio": "5%", "window": "10m", "min_records": 1000, **rule}
        ).circuit_breaker
    )


def test_no_breaker_never_breaks():
    CircuitBreaker(spec_of().circuit_breaker).add(batch(10_000, 10_000), NOW)


def test_it_breaks_above_the_share_and_not_at_it():
    exact = breaker()
    exact.add(batch(1000, 50), NOW)
    with pytest.raises(TooManyRejected, match=r"101 of the last 2,000 records are dead letters: 5\.\d%"):
        exact.add(batch(1000, 51), NOW)


def test_it_waits_for_enough_records():
    few = breaker()
    few.add(batch(999, 999), NOW)
    with pytest.raises(TooManyRejected):
        few.add(batch(1, 0), NOW)


def test_what_is_older_than_the_window_no_longer_counts():
    old = breaker(min_records=100)
    old.add(batch(100_000, 5000), NOW)
    old.add(batch(100, 5), NOW + timedelta(minutes=10, seconds=1))
    with pytest.raises(TooManyRejected, match="of the last 200"):
        old.add(batch(100, 6), NOW + timedelta(minutes=11))


@pytest.mark.parametrize(
    "rule",
    [
        {"max_reject_ratio": 0},
        {"max_reject_ratio": "101%"},
        {"max_reject_ratio": 1.5},
        {"max_reject_ratio": "5%", "window": "1ms"},
        {},
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule: dict[str, Any]):
    with pytest.raises(SpecError):
        spec_of(circuit_breaker=rule)


def test_a_share_is_percent_or_a_number():
    assert [
        spec_of(circuit_breaker={"max_reject_ratio": text}).circuit_breaker.max_reject_ratio
        for text in ("5%", 0.05, "0.05", "12.5%")
    ] == [
        0.05,
        0.05,
        0.05,
        0.125,
    ]


# ---- the floor ----


class Waiting:
    """A pipeline that is about to begin: each look at its source finds the next number of records."""

    def __init__(self, *counts: int, until: str | None = None, schemas: Any = (), **table: Any) -> None:
        self.spec, self.until = spec_of(table=table), until
        self.tables = SimpleNamespace(schemas=dict(schemas))
        self.position = {("web", 0): 5}
        self.stop = threading.Event()
        self.lease = SimpleNamespace(check=lambda: None)
        self.source, self.spark = self, None
        self.left, self.looks = list(counts), 0

    def bounds(self) -> dict[tuple[str, int], Bounds]:
        self.looks += 1
        count = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return {("web", 0): Bounds(0, 5 + count), ("web", 1): Bounds(7, 7)}

    def on_tick(self) -> None:
        pass


def waited(pipeline: Waiting) -> int:
    inference_minimum.wait(pipeline)  # type: ignore[arg-type]
    return pipeline.looks


def test_the_first_columns_wait_for_enough_records():
    assert waited(Waiting(0, 999, 1000)) == 3


def test_the_first_columns_wait_no_longer_than_asked():
    assert waited(Waiting(0, 1, infer={"within": "100ms"})) == 3


def test_nothing_waits_where_columns_are_known_or_the_end_is():
    assert waited(Waiting(0, until="latest")) == 0
    assert waited(Waiting(0, schemas={RouteId(): object()})) == 0
    assert waited(Waiting(0, columns=[{"name": "id", "type": "bigint"}])) == 0


def test_a_request_to_stop_ends_the_wait():
    pipeline = Waiting(0)
    pipeline.stop.set()
    assert waited(pipeline) == 0
