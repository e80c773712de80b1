"""The health of pipelines that really run, without a JVM: what stops one is unhealthy and says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace import run
from headrace.errors import PipelineStopped
from headrace.serve.health import health_of
from headrace.serve.monitor import Monitor
from services.in_process_pipeline import Harness


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    harness.serve(monkeypatch)
    harness.send([{"id": number, "kind": "alpha"} for number in range(10)])
    return harness


def observed(harness: Harness) -> dict[str, Any]:
    """The health of the pipeline after a run."""
    monitor = Monitor([harness.spec])
    with suppress(PipelineStopped):
        run(harness.spec, until="latest", report=monitor)
    (health,) = health_of(monitor)["pipelines"]
    return health


def test_a_drain_that_has_read_everything_is_healthy(harness: Harness) -> None:
    health = observed(harness)
    assert (health["healthy"], health["state"], health["problems"]) == (True, "stopped", [])
    assert (health["batch"], health["records"]["read"], health["records"]["routed"]) == (1, 10, 10)


def test_a_gap_is_unhealthy_and_names_the_command(harness: Harness) -> None:
    observed(harness)
    harness.send([{"id": number, "kind": "alpha"} for number in range(10)])
    harness.earliest = 15
    health = observed(harness)
    assert (health["healthy"], health["ready"], health["state"]) == (False, False, "failed")
    assert health["problems"][0].startswith("failed: SourceGap: ")
    assert health["reason"]["error"] == "SourceGap"
    assert "headrace resume SPEC --accept-gap" in health["reason"]["hint"]
    assert (health["lag"], health["lag_seconds"]) == (None, None)


def test_a_topic_that_is_gone_is_unhealthy(harness: Harness) -> None:
    observed(harness)
    harness.topic_id = None
    assert observed(harness)["problems"][0].startswith("failed: SourceTopicGone: ")
