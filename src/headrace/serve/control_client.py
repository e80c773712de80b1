"""Find the processes of this user that run pipelines, and send them requests over their control sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError, UsageError, error_from_dict
from headrace.serve.control_folder import control_folder, pid_of, short_path, socket_names

_RESPONSE_TIMEOUT = 5.0  # seconds
_WATCH_INTERVAL = 0.2  # seconds between two requests for a state that is waited for
_PARALLEL = 8


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """A process with a control socket, and its pipelines; `error` if it does not answer."""

    socket: str
    pid: int
    fields: dict[str, Any]
    error: str | None = None

    @property
    def pipelines(self) -> list[dict[str, Any]]:
        """Its pipelines with their states."""
        rows: list[dict[str, Any]] = self.fields.get("pipelines", [])
        return rows


def running_processes(command: str = "status") -> list[RunningProcess]:
    """All processes of this user, with the answer of each to `list` or `status`; sockets of dead ones are deleted."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        answers = pool.map(lambda name: _process(name, command), socket_names(control_folder()))
        return [process for process in answers if process is not None]


def _process(name: str, command: str) -> RunningProcess | None:
    try:
        fields = request(name, command)
    except ConnectionRefusedError:  # its process is dead
        with suppress(OSError):
            (control_folder() / name).unlink()
        return None
    except FileNotFoundError:  # it has just ended
        return None
    except (OSError, ValueError) as error:
        return RunningProcess(name, pid_of(name), {}, f"does not respond: {error}")
    return RunningProcess(name, int(fields["process"]), fields)


def request(name: str, command: str, pipelines: Sequence[str] = ()) -> dict[str, Any]:
    """Send a request to the process with this socket; raises the error that it answers with."""
    with socket.socket(socket.AF_UNIX) as connection, short_path(control_folder()) as folder:
        connection.settimeout(_RESPONSE_TIMEOUT)
        connection.connect(f"{folder}/{name}")
        connection.sendall(json.dumps({"command": command, "pipelines": list(pipelines)}).encode() + b"\n")
        with connection.makefile("rb") as lines:
            response: dict[str, Any] = json.loads(lines.readline())
    if not response.pop("ok"):
        raise error_from_dict(response)
    return response


def process_of(pipeline: str, pid: int | None = None) -> RunningProcess:
    """The process that has a pipeline; UsageError if there is none, or if there are several and no `pid` is given."""
    processes = running_processes("list")
    owners = [
        process
        for process in processes
        if pid in (None, process.pid) and any(row["pipeline"] == pipeline for row in process.pipelines)
    ]
    if len(owners) > 1:
        pids = ", ".join(str(process.pid) for process in owners)
        raise UsageError(f"Several processes run a pipeline '{pipeline}': {pids}.", hint="Use --process PID.")
    if not owners:
        raise _unknown_pipeline(pipeline, processes)
    return owners[0]


def _unknown_pipeline(pipeline: str, processes: Sequence[RunningProcess]) -> HeadraceError:
    folder = control_folder()
    if not processes:
        return UsageError(
            f"No running process found: {folder} has no control sockets.",
            hint="Start the pipeline with `headrace run SPEC`. Processes of other users, in containers or with another "
            "XDG_RUNTIME_DIR are not visible: run the command where the process runs, as its user.",
        )
    names = ", ".join(sorted({row["pipeline"] for process in processes for row in process.pipelines})) or "none"
    silent = "".join(f" The process {process.pid} {process.error}." for process in processes if process.error)
    advice = " Use the name of the pipeline, not its file." if pipeline.endswith((".yaml", ".yml")) else ""
    hint = f"Running pipelines: {names}.{advice}"
    return UsageError(f"No running process has a pipeline '{pipeline}'.{silent}", hint=hint)


def wait_for_state(
    process: RunningProcess, pipeline: str, is_reached: Callable[[dict[str, Any]], bool], within: float
) -> dict[str, Any] | None:
    """Wait until the state of a pipeline is as expected; None if it is not within some seconds.

    UsageError if the process has ended or no longer has the pipeline.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            rows = request(process.socket, "list", [pipeline])["pipelines"]
        except (ConnectionError, FileNotFoundError):
            rows = []
        if not rows:
            raise UsageError(f"The process {process.pid} no longer runs '{pipeline}'.")
        if is_reached(rows[0]):
            row: dict[str, Any] = rows[0]
            return row
        if time.monotonic() > deadline:
            return None
        time.sleep(_WATCH_INTERVAL)
