"""Receive records into the spools of pipelines, or into Kafka, in this process, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

from headrace.errors import UsageError
from headrace.source.base import open_source
from headrace.source.spool.receiver import Destination, Receiver, ReceivingSource
from headrace.spec import Spec

_TICK = 0.5  # seconds


def receive_all(
    specs: Sequence[Spec], stop: threading.Event, report: Callable[[dict[str, Any]], None], every: float
) -> list[dict[str, Any]]:
    """Receive until `stop` is set; returns the summary of each pipeline.

    UsageError if a source does not receive; LeaseHeld if another process writes a spool; the error of a receiver.
    """
    with ExitStack() as resources:
        running = [_start(spec, resources, report) for spec in specs]
        waited = 0.0
        while not stop.wait(_TICK):
            for receiver, destination, _ in running:
                if (failure := receiver.failure() or destination.failure) is not None:
                    raise failure
            waited += _TICK
            if waited >= every:
                waited = 0.0
                for _, destination, spec in running:
                    report({"event": "received", "pipeline": spec.pipeline, **_counts(destination)})
        for receiver, _, _ in running:
            receiver.stop()
        return [
            {"event": "summary", "pipeline": spec.pipeline, **_counts(destination)} for _, destination, spec in running
        ]


def _start(
    spec: Spec, resources: ExitStack, report: Callable[[dict[str, Any]], None]
) -> tuple[Receiver, Destination, Spec]:
    source = open_source(spec)
    if not isinstance(source, ReceivingSource):
        raise UsageError(
            f"The source '{spec.source_kind}' of {spec.pipeline} receives no records.", hint="Use `headrace run` alone."
        )
    destination = source.open_destination()
    resources.callback(destination.close)
    receiver = source.new_receiver()
    resources.callback(receiver.stop)
    receiver.start(destination, partial(_report, report, spec.pipeline))
    return receiver, destination, spec


def _report(report: Callable[[dict[str, Any]], None], pipeline: str, event: dict[str, Any]) -> None:
    report({"event": event["event"], "pipeline": pipeline, **event})


def _counts(destination: Destination) -> dict[str, Any]:
    """What was received, and what the spool has or waits for Kafka."""
    stored = {"spool_records": destination.stored_records(), "spool_bytes": destination.stored_bytes}
    return {"destination": destination.kind, **asdict(destination.counts), **stored}
