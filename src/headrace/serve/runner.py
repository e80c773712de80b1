"""Run one or several pipelines in one process, on one Spark session."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, SpecError, StopRequested, UsageError
from headrace.maintain.scheduler import MaintenanceScheduler
from headrace.pipeline.events import Report, Summary
from headrace.pipeline.overwrite import check_bounded
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.spark_session import SharedSession
from headrace.recovery.startup import StartupRecovery
from headrace.spec import Spec
from headrace.validate.load import load

_STOP_TIMEOUT = 28.0  # seconds; a request to stop is completed within 30


@dataclass
class RunResult:
    """Result of one pipeline."""

    summary: Summary
    error: HeadraceError | None = None
    abandoned: bool = False  # still running when the process ends; the next run finishes its open batch
    died: BaseException | None = None  # not an Exception; raised again to the caller


def run(spec: Spec | str | Path, until: str | None = None, report: Report = lambda event: None) -> Summary:
    """Run one pipeline; `until="latest"` reads up to the offsets at the start. Raises the error that stopped it."""
    specs = [spec] if isinstance(spec, Spec) else load(Path(spec))
    if len(specs) != 1:
        raise UsageError(f"The file has {len(specs)} pipelines.", hint="Pass one of them: headrace.load(path)[n].")
    result = run_all(specs, until=until, report=report)[0]
    if result.error is not None:
        raise result.error
    return result.summary


def run_all(
    specs: Sequence[Spec],
    *,
    until: str | None = None,
    report: Report = lambda event: None,
    stop: threading.Event | None = None,
    wait: bool = False,
    abandon: threading.Event | None = None,
    shared: SharedSession | None = None,
) -> list[RunResult]:
    """Run pipelines in parallel. If one lease is held, none starts; if one pipeline stops, the others continue.

    `abandon`: once set, do not wait for running pipelines, nor for longer than 28 s after `stop`. They keep running,
    so the caller must end the process. `shared`: a session that is already being started; it is closed at the end.
    """
    if until not in (None, "latest"):
        raise UsageError(f"Invalid until: '{until}'.", hint="Use 'latest', or omit it to run continuously.")
    _distinct(specs)
    for spec in specs:
        check_bounded(spec, until)
    stop = stop or threading.Event()
    shared = shared or SharedSession(specs, stop, report)
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
            prepare_spark=shared.prepare,
        )
        for spec in specs
    ]
    results = [RunResult(pipeline.summary) for pipeline in pipelines]
    with ExitStack() as resources:
        resources.callback(shared.close)
        try:
            for pipeline in pipelines:
                resources.enter_context(pipeline.take_lease(wait))
        except StopRequested:
            return results
        threads = [
            threading.Thread(target=_run_one, args=each, name=each[0].spec.pipeline, daemon=True)
            for each in zip(pipelines, results, strict=True)
        ]
        for thread in threads:
            thread.start()
        if running := _join(threads, stop, abandon):
            for thread, result in zip(threads, results, strict=True):
                result.abandoned = thread in running
            resources.pop_all()  # not released: running pipelines hold them until the process ends
            return results
    for result in results:
        if result.died is not None:
            raise result.died
    return results


def _join(
    threads: Sequence[threading.Thread], stop: threading.Event, abandon: threading.Event | None
) -> list[threading.Thread]:
    """Wait for all threads; returns those that are abandoned."""
    stopped_at: float | None = None
    while alive := [thread for thread in threads if thread.is_alive()]:
        alive[0].join(0.1)  # a join without timeout would block signal handlers
        stopped_at = stopped_at or (time.monotonic() if stop.is_set() else None)
        late = stopped_at is not None and time.monotonic() - stopped_at > _STOP_TIMEOUT
        if abandon is not None and (abandon.is_set() or late):
            return [thread for thread in threads if thread.is_alive()]
    return []


def _run_one(pipeline: Pipeline, result: RunResult) -> None:
    try:
        pipeline.run()
    except HeadraceError as error:
        result.error = error
        pipeline.report(error_event(pipeline.spec.pipeline, error))
    except Exception as error:  # a bug: reported, and not taken for a normal end
        result.error = HeadraceError(f"{type(error).__name__}: {error}", hint="This is a bug in Headrace; report it.")
        result.error.__cause__ = error
        pipeline.report(error_event(pipeline.spec.pipeline, result.error))
    except BaseException as error:
        result.died = error


def error_event(pipeline: str, error: HeadraceError) -> dict[str, Any]:
    """An error as an event."""
    return {"event": "error", "pipeline": pipeline, "error": error.name, "message": error.message, "hint": error.hint}


def _distinct(specs: Sequence[Spec]) -> None:
    states = [spec.state_uri for spec in specs]
    for spec in specs:
        if states.count(spec.state_uri) > 1:
            raise SpecError(
                f"Two specs have the same state: {spec.state_uri}.",
                hint="Pass each pipeline once, or set `state` for one.",
            )
