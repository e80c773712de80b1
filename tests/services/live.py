"""Pipelines of a supervisor in this process, with a control socket; a test sends their figures to the monitor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.pipeline.events import to_all
from headrace.serve.control_server import Redact, control_socket
from headrace.serve.health import health_figures
from headrace.serve.monitor import Monitor
from headrace.serve.supervisor import Supervisor
from headrace.validate.load import loads
from services.sessions import FailingSession


@dataclass
class LiveProcess:
    """What a process with a control socket consists of."""

    supervisor: Supervisor
    monitor: Monitor
    session: FailingSession
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, folder: Path, *names: str) -> None:
        """Start pipelines; they wait for a Spark session in the state `starting`."""
        for name in names:
            text = f"pipeline: {name}\nsource: {{generate: {{rate: 10/s}}}}\n"
            text += f"table: {{path: ./lake/{name}, columns: [{{name: id, type: bigint}}]}}\n"
            self.supervisor.add(loads(text, folder)[0])


@contextmanager
def live_process(*failures: HeadraceError, redact: Redact = lambda response: response) -> Iterator[LiveProcess]:
    """A supervisor and its control socket; the first starts end with the errors given, and are not repeated."""
    monitor, session, events = Monitor(), FailingSession(failures), list[dict[str, Any]]()

    def observe(event: dict[str, Any]) -> None:
        if event["event"] in ("state", "error"):  # figures come from the test
            monitor(event)

    report = to_all(observe, events.append)
    supervisor = Supervisor(session, report=report, monitor=monitor)
    supervisor.is_endless = True
    try:
        with control_socket(supervisor, report, partial(health_figures, monitor), redact):
            yield LiveProcess(supervisor, monitor, session, events)
    finally:
        supervisor.process_stop.set()
        session.released.set()
        assert supervisor.join()
