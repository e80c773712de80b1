"""`headrace resume`: continue a paused pipeline, or resolve the error that stopped one and record it in the ledger."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console import emit
from headrace.cli.control import Process, resume_paused
from headrace.cli.options import AsJson
from headrace.errors import HeadraceError, StopRequested, UsageError

_WITHIN = 10.0  # seconds for a paused pipeline to continue


def resume(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="PIPELINES|SPEC",
            help="Names of paused pipelines; with an option that resolves an error, a spec file.",
        ),
    ],
    accept_gap: Annotated[
        bool,
        typer.Option(
            "--accept-gap",
            help="Skip offsets that the broker no longer has; after a rewind, continue at the end offset.",
        ),
    ] = False,
    accept_replaced_topic: Annotated[
        bool, typer.Option("--accept-replaced-topic", help="Read a recreated topic from its first record.")
    ] = False,
    accept_added_partitions: Annotated[
        bool,
        typer.Option(
            "--accept-added-partitions", help="Read added partitions. Use only if every key stays in its partition."
        ),
    ] = False,
    accept_new_table: Annotated[
        bool,
        typer.Option(
            "--accept-new-table", help="Continue with a new table if the known table was deleted or replaced."
        ),
    ] = False,
    accept_lost_ledger: Annotated[
        bool,
        typer.Option("--accept-lost-ledger", help="Rebuild a lost ledger from the tables, for the same topics."),
    ] = False,
    table_restored: Annotated[
        str | None,
        typer.Option(
            help="After a RESTORE: `refill` reads the undone records again for that table; `keep` "
            "leaves the table as restored.",
            metavar="keep|refill",
        ),
    ] = None,
    process: Process = None,
    as_json: AsJson = False,
) -> None:
    """Continue a paused pipeline, or resolve an error.

    Without options, continues paused pipelines of running processes. The message of an error names the option that
    resolves it; a process in which the pipeline has failed restarts it then, otherwise run it again.
    """
    from headrace.cli.output import EventOutput
    from headrace.cli.signals import stops_on_signals
    from headrace.recovery.resume import Decision, decide
    from headrace.validate.load import load

    options = {
        Decision.GAP: accept_gap,
        Decision.REPLACED_TOPIC: accept_replaced_topic,
        Decision.ADDED_PARTITIONS: accept_added_partitions,
        Decision.NEW_TABLE: accept_new_table,
        Decision.LOST_LEDGER: accept_lost_ledger,
        Decision.RESTORED_TABLE: table_restored == "keep",
        Decision.REFILLED_TABLE: table_restored == "refill",
    }
    decisions = [decision for decision, is_set in options.items() if is_set]
    if table_restored not in (None, "keep", "refill"):
        raise UsageError(f"--table-restored: invalid value: '{table_restored}'.", hint="Use keep or refill.")
    if not decisions:
        resume_paused(_names(targets), process, _WITHIN, as_json)
        return
    stop = threading.Event()
    with stops_on_signals(stop):
        for spec in load(_spec_file(targets)):
            try:
                lines = decide(spec, decisions, EventOutput(as_json), stop)
            except StopRequested as error:  # exit code 0 for a run; here the error remains unresolved
                typer.echo(f"{spec.pipeline}: unresolved. {error}", err=True)
                raise typer.Exit(1) from None
            lines += _restart_failed(spec.pipeline, spec.state_uri)
            for line in lines:
                emit({"event": "decision", "pipeline": spec.pipeline, "text": line}) if as_json else typer.echo(line)


def _names(targets: list[str]) -> list[str]:
    """Names of pipelines: as given, or of the spec files among the arguments."""
    from headrace.validate.load import load

    names: list[str] = []
    for each in targets:
        names += [spec.pipeline for spec in load(each)] if Path(each).is_file() else [each]
    return names


def _spec_file(targets: list[str]) -> Path:
    """The one spec file whose error is resolved."""
    if len(targets) != 1 or not Path(targets[0]).is_file():
        raise UsageError(
            f"Expected one spec file: {' '.join(targets)}.",
            hint="Options that resolve an error require the spec of the pipeline. Names are for paused pipelines.",
        )
    return Path(targets[0])


def _restart_failed(pipeline: str, state_uri: str) -> list[str]:
    """Restart the pipeline in a process in which it has failed, and say so."""
    from headrace.serve.control_client import request, running_processes

    lines = []
    with suppress(HeadraceError, OSError):  # the decision is recorded; a restart by hand uses it as well
        for process in running_processes("list"):
            for row in process.pipelines:
                if (row["state_uri"], row["state"]) == (state_uri, "failed"):
                    request(process.socket, "restart", [pipeline])
                    lines.append(f"{pipeline}: restarted in process {process.pid}")
    return lines
