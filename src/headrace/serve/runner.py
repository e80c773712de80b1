"""One or several pipelines in one process, on one Spark session."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, SpecError, StopRequested, UsageError
from headrace.maintain.scheduler import MaintenanceScheduler
from headrace.pipeline.events import Report, Summary
from headrace.pipeline.overwrite import check_bounded
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.spark_session import ORDERLY, SharedSession
from headrace.recovery.startup import StartupRecovery
from headrace.spec import Spec
from headrace.validate.load import load

if TYPE_CHECKING:
    pass


_STOP_WITHIN = 28.0  # of the 30 seconds in which a request to stop is answered
_QUICK = 1.0  # seconds that the JVM gets to end by itself after a request to stop


@dataclass
class RunResult:
    """How one pipeline ended."""

    summary: Summary
    error: HeadraceError | None = None
    abandoned: bool = False  # still at work when it was given up: what it began, the next run finishes
    died: BaseException | None = None  # given up in a way that nothing answers: raised again to the caller


def run(spec: Spec | str | Path, until: str | None = None, report: Report = lambda event: None) -> Summary:
    """Run one pipeline; `until="latest"` drains what is there at the start. Raises what stopped it."""
    given = spec if isinstance(spec, Spec) else _only(load(Path(spec)))
    outcome = run_all([given], until=until, report=report)[0]
    if outcome.error is not None:
        raise outcome.error
    return outcome.summary


def _only(specs: Sequence[Spec]) -> Spec:
    if len(specs) != 1:
        raise UsageError(f"The file holds {len(specs)} pipelines; give one of them, as headrace.load(path)[n].")
    return specs[0]


def run_all(
    specs: Sequence[Spec],
    *,
    until: str | None = None,
    report: Report = lambda event: None,
    stop: threading.Event | None = None,
    wait: bool = False,
    abandon: threading.Event | None = None,
) -> list[RunResult]:
    """Run them side by side: a lease that is held keeps all from starting; one that stops leaves the others.

    `abandon`: do not wait for pipelines that are at work once it is set, nor for longer than 28 s after `stop`. They
    stay at work, so the caller must end the process.
    """
    if until not in (None, "latest"):
        raise UsageError(f"until: '{until}' is not known.", hint="Use 'latest', or leave it out to run for ever.")
    _distinct(specs)
    for spec in specs:
        check_bounded(spec, until)
    stop = stop or threading.Event()
    shared = SharedSession(specs, stop, report)
    recovery = StartupRecovery()
    pipelines = [
        Pipeline(
            spec,
            shared.get,
            recovery=recovery,
            maintenance=None if spec.maintenance is None else MaintenanceScheduler(spec.maintenance),
            until=until,
            report=report,
            stop=stop,
        )
        for spec in specs
    ]
    outcomes = [RunResult(pipeline.summary) for pipeline in pipelines]
    with ExitStack() as leases:
        try:
            for pipeline in pipelines:
                leases.enter_context(pipeline.take_lease(wait))
        except StopRequested:
            return outcomes
        threads = [
            threading.Thread(target=_run_one, args=each, name=each[0].spec.pipeline, daemon=True)
            for each in zip(pipelines, outcomes, strict=True)
        ]
        for thread in threads:
            thread.start()
        if left := _joined(threads, stop, abandon):
            for thread, outcome in zip(threads, outcomes, strict=True):
                outcome.abandoned = thread in left
            leases.pop_all()  # not released: who is still at work holds them, and they end with the process
            return outcomes
    shared.close(_QUICK if stop.is_set() else ORDERLY)
    for outcome in outcomes:
        if outcome.died is not None:
            raise outcome.died
    return outcomes


def _joined(
    threads: Sequence[threading.Thread], stop: threading.Event, abandon: threading.Event | None
) -> list[threading.Thread]:
    """Wait for all of them; answers with those that are given up."""
    asked: float | None = None
    while alive := [thread for thread in threads if thread.is_alive()]:
        alive[0].join(0.1)  # a bare join would keep signals from being answered
        asked = asked or (time.monotonic() if stop.is_set() else None)
        late = asked is not None and time.monotonic() - asked > _STOP_WITHIN
        if abandon is not None and (abandon.is_set() or late):
            return [thread for thread in threads if thread.is_alive()]
    return []


def _run_one(pipeline: Pipeline, outcome: RunResult) -> None:
    try:
        pipeline.run()
    except HeadraceError as error:
        outcome.error = error
        pipeline.report(error_event(pipeline.spec.pipeline, error))
    except Exception as error:  # a fault of ours: named, shown, and never taken for an end
        outcome.error = HeadraceError(f"{type(error).__name__}: {error}", hint="This is a bug in Headrace; report it.")
        outcome.error.__cause__ = error
        pipeline.report(error_event(pipeline.spec.pipeline, outcome.error))
    except BaseException as error:
        outcome.died = error


def error_event(pipeline: str, error: HeadraceError) -> dict[str, Any]:
    """A named error, as programs read it."""
    return {"event": "error", "pipeline": pipeline, "error": error.name, "message": error.message, "hint": error.hint}


def _distinct(specs: Sequence[Spec]) -> None:
    states = [spec.state_uri for spec in specs]
    for spec in specs:
        if states.count(spec.state_uri) > 1:
            raise SpecError(f"Two specs share the state {spec.state_uri}: give each pipeline once, or its own state.")
