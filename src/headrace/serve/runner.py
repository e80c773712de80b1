"""Run one or several pipelines in one process, on one Spark session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.pipeline.events import Report, Summary
from headrace.pipeline.spark_session import SharedSession
from headrace.serve.monitor import Monitor
from headrace.serve.supervised_pipeline import RunResult
from headrace.serve.supervisor import Supervisor
from headrace.spec import Spec
from headrace.validate.load import load

Service = Callable[[Supervisor], AbstractContextManager[Any]]


def run(
    spec: Spec | str | Path,
    until: str | None = None,
    report: Report = lambda event: None,
    *,
    spark: Any = None,
) -> Summary:
    """Run one pipeline; `until="latest"` reads up to the offsets at the start. Raises the error that stopped it.

    `spark`: an existing SparkSession to run on, which is not stopped; the keys of `spark` in the spec are not used.
    """
    specs = [spec] if isinstance(spec, Spec) else load(Path(spec))
    if len(specs) != 1:
        raise UsageError(f"The file has {len(specs)} pipelines.", hint="Pass one of them: headrace.load(path)[n].")
    stop = threading.Event()
    shared = SharedSession(specs, stop, report, spark)
    result = run_all(specs, until=until, report=report, stop=stop, shared=shared)[0]
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
    restarts: bool = False,
    services: Sequence[Service] = (),
    monitor: Monitor | None = None,
) -> list[RunResult]:
    """Run pipelines in parallel. If one lease is held, none starts; if one pipeline stops, the others continue.

    `abandon`: once set, do not wait for running pipelines, nor for longer than 28 s after `stop`. They keep running,
    so the caller must end the process. `shared`: a session that is already being started; it is closed at the end.
    `restarts`: start pipelines again after errors that a restart may resolve. `services`: what is open from before the
    first pipeline starts until the last one has ended, such as the control socket. `monitor`: one that gets the events
    through `report`.
    """
    stop = stop or threading.Event()
    shared = shared or SharedSession(specs, stop, report)
    is_over = True
    try:
        supervisor = Supervisor(shared, until=until, report=report, stop=stop, restarts=restarts, monitor=monitor)
        with ExitStack() as open_services:
            for service in services:
                open_services.enter_context(service(supervisor))
            supervisor.start(specs, wait)
            is_over = supervisor.join(abandon)
    finally:
        if is_over:  # otherwise running pipelines need the session until the process ends
            shared.close()
    results = supervisor.results()
    for result in results:
        if result.died is not None and not result.aborted:
            raise result.died
    return results
