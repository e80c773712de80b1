"""`headrace pause` and `headrace restart`, and the part of `headrace resume` for paused pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.console import emit
from headrace.cli.options import AsJson

if TYPE_CHECKING:
    from headrace.serve.control_client import RunningProcess

_WITHIN = 60.0  # seconds; a batch takes about 7

PipelineNames = Annotated[list[str], typer.Argument(metavar="PIPELINES", help="Names of running pipelines.")]
Process = Annotated[
    int | None, typer.Option("--process", help="Process id, if several processes run a pipeline of this name.")
]
Within = Annotated[float, typer.Option("--within", help="Seconds to wait for the new state.", min=0)]


def pause(pipelines: PipelineNames, process: Process = None, within: Within = _WITHIN, as_json: AsJson = False) -> None:
    """Pause running pipelines after their current batch.

    The lease is kept. `headrace resume PIPELINE` continues.
    """
    _request("pause", pipelines, process, within, as_json, lambda row: row["state"] == "paused")


def restart(
    pipelines: PipelineNames, process: Process = None, within: Within = _WITHIN, as_json: AsJson = False
) -> None:
    """Restart pipelines of running processes, also failed ones.

    A running pipeline first finishes its current batch.
    """
    _request("restart", pipelines, process, within, as_json, _has_restarted)


def resume_paused(pipelines: Sequence[str], process: int | None, within: float, as_json: bool) -> None:
    """Continue paused pipelines."""
    _request("resume", pipelines, process, within, as_json, lambda row: row["state"] != "paused")


def _has_restarted(row: dict[str, Any]) -> bool:
    return row["state"] in ("running", "failed", "restarting", "stopped") and not row["is_restarting"]


def _request(
    command: str,
    pipelines: Sequence[str],
    pid: int | None,
    within: float,
    as_json: bool,
    is_reached: Callable[[dict[str, Any]], bool],
) -> None:
    """Send requests for all pipelines, then wait for each; exit code 1 if a state is not reached."""
    from headrace.serve.control_client import process_of, request, wait_for_state

    owners = {name: process_of(name, pid) for name in dict.fromkeys(pipelines)}  # all or none
    for name, owner in owners.items():
        request(owner.socket, command, [name])
    reached = True
    for name, owner in owners.items():
        row = wait_for_state(owner, name, is_reached, within)
        reached = reached and row is not None and row["state"] != "failed"
        _print(command, owner, name, row, within, as_json)
    if not reached:
        raise typer.Exit(1)


def _print(
    command: str, owner: RunningProcess, name: str, row: dict[str, Any] | None, within: float, as_json: bool
) -> None:
    state = None if row is None else row["state"]
    if as_json:
        reason = None if row is None else row["reason"]
        emit({"event": command, "pipeline": name, "process": owner.pid, "state": state, "reason": reason})
    elif row is None:
        typer.echo(f"{name}: requested; its current batch has not ended within {within:g} s", err=True)
    else:
        typer.echo("\n".join([f"{name}: {state}" + (f": {row['reason']}" if row["reason"] else ""), *_next_step(row)]))


def _next_step(row: dict[str, Any]) -> Iterator[str]:
    if row["hint"]:
        yield f"  {row['hint']}"
