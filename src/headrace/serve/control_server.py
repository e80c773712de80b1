"""The control socket of a process: lists, pauses, resumes and restarts its pipelines. JSON lines; see `state.md`."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, cast

from headrace.errors import HeadraceError, UsageError
from headrace.pipeline.events import Report
from headrace.serve.control_folder import control_folder, new_names, short_path
from headrace.serve.process_memory import ProcessMemory
from headrace.serve.supervised_pipeline import SupervisedState
from headrace.serve.supervisor import Supervisor

PROTOCOL = 1
_MAX_REQUEST = 64 * 1024  # bytes
_REQUEST_TIMEOUT = 5.0  # seconds for a client to send its request, and to take the response
_POLL_SECONDS = 0.5  # between checks for the end of the server

Figures = Callable[[str], Mapping[str, Any]]
Redact = Callable[[Any], Any]


@contextmanager
def control_socket(
    supervisor: Supervisor,
    report: Report,
    figures: Figures = lambda name: {},
    redact: Redact = lambda response: response,
) -> Iterator[None]:
    """Serve the control socket of this process during the block.

    `figures`: of a pipeline, for `status`. `redact`: removes secrets from responses. A process that cannot have a
    socket runs without one, and says so.
    """
    try:
        server = _Server(supervisor, figures, redact)
    except (HeadraceError, OSError) as error:
        text = f"no control socket, so `headrace status`, `top` and `pause` do not find this process: {error}"
        report({"event": "warning", "pipeline": None, "text": text})
        yield
        return
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="control socket", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False  # a client that does not read its response must not delay the end of the process

    def __init__(self, supervisor: Supervisor, figures: Figures, redact: Redact) -> None:
        self.supervisor, self.figures, self.redact = supervisor, figures, redact
        self.started, self.memory = datetime.now(UTC), ProcessMemory()
        folder = control_folder()
        name, temporary = new_names()
        self._path = folder / name
        with short_path(folder) as short:
            super().__init__(f"{short}/{temporary}", _Handler, bind_and_activate=False)
            before = os.umask(0o177)
            try:
                self.server_bind()
            finally:
                os.umask(before)
        self.server_activate()
        # Visible once it listens: a socket that refuses connections is taken for one of a dead process.
        (folder / temporary).rename(self._path)

    def server_close(self) -> None:
        super().server_close()
        with suppress(OSError):
            self._path.unlink()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or takes too long, is no error of this process."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = _REQUEST_TIMEOUT

    def handle(self) -> None:
        server = cast(_Server, self.server)
        try:
            response = {"ok": True} | answer(server, json.loads(self.rfile.readline(_MAX_REQUEST)))
        except HeadraceError as error:
            response = {"ok": False, **error.to_dict()}
        except ValueError as error:
            response = {"ok": False, **UsageError(f"Invalid request: {error}").to_dict()}
        self.wfile.write(json.dumps(server.redact(response), default=str).encode() + b"\n")


def answer(server: _Server, request: Any) -> dict[str, Any]:
    """The response to a request; UsageError for an invalid one."""
    if not isinstance(request, dict) or not isinstance(request.get("pipelines", []), list):
        raise UsageError("Invalid request.", hint='Send {"command": …, "pipelines": […]}.')
    supervisor, names = server.supervisor, [str(name) for name in request.get("pipelines", [])]
    command = request.get("command")
    if command in ("list", "status"):
        figures = server.figures if command == "status" else (lambda name: {})
        states = [state for state in supervisor.states() if not names or state.pipeline in names]
        return {**_process(server), "pipelines": [_row(supervisor, state, figures) for state in states]}
    actions = {"pause": supervisor.pause, "resume": supervisor.resume, "restart": supervisor.restart}
    if command not in actions:
        raise UsageError(f"Unknown command: {command!r}.", hint=f"Commands: list, status, {', '.join(actions)}.")
    return {"pipelines": [_row(supervisor, actions[command](name), lambda name: {}) for name in names]}


def _process(server: _Server) -> dict[str, Any]:
    return {
        "protocol": PROTOCOL,
        "process": os.getpid(),
        "started": server.started.isoformat(timespec="seconds"),
        "memory_bytes": sum(server.memory.by_kind().values()) or None,
    }


def _row(supervisor: Supervisor, state: SupervisedState, figures: Figures) -> dict[str, Any]:
    return {
        "pipeline": state.pipeline,
        "state": state.state.value,
        "reason": state.reason,
        "hint": state.hint,
        "since": state.since.isoformat(timespec="seconds"),
        "restarts": state.restarts,
        "is_pausing": state.is_pausing,
        "is_restarting": state.is_restarting,
        "state_uri": supervisor.spec_of(state.pipeline).state_uri,
        **figures(state.pipeline),
    }
