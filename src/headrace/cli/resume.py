"""`headrace resume`: a person's answer to a named stop, written into the ledger."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer


def resume(
    spec: Annotated[Path, typer.Argument(help="The spec file.", exists=True, dir_okay=False)],
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Go on after offsets the broker no longer has (or before its end).")
    ] = False,
    accept_replaced_topic: Annotated[
        bool, typer.Option("--accept-replaced-topic", help="Read a topic that was made anew from its first record.")
    ] = False,
    accept_added_partitions: Annotated[
        bool,
        typer.Option("--accept-added-partitions", help="Read partitions that were added; keys stayed in theirs."),
    ] = False,
    accept_new_table: Annotated[
        bool, typer.Option("--accept-new-table", help="Go on with a new table where the known one is gone or replaced.")
    ] = False,
    accept_lost_ledger: Annotated[
        bool,
        typer.Option("--accept-lost-ledger", help="Write a lost ledger anew from the tables, for the same topics."),
    ] = False,
    table_restored: Annotated[
        str | None,
        typer.Option(
            help="After a RESTORE, `refill` reads what was undone again for that table; `keep` leaves it undone.",
            metavar="keep|refill",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
) -> None:
    """Decide what a stopped pipeline asked, then run it again; each stop names the option it needs."""
    from headrace.cli.output import EventOutput, emit
    from headrace.cli.run import ends_when_asked
    from headrace.errors import StopRequested, UsageError
    from headrace.recovery.resume import Decision, decide
    from headrace.validate.load import load

    wanted = {
        Decision.GAP: accept_gap,
        Decision.REPLACED_TOPIC: accept_replaced_topic,
        Decision.ADDED_PARTITIONS: accept_added_partitions,
        Decision.NEW_TABLE: accept_new_table,
        Decision.LOST_LEDGER: accept_lost_ledger,
        Decision.RESTORED_TABLE: table_restored == "keep",
        Decision.REFILLED_TABLE: table_restored == "refill",
    }
    chosen = [decision for decision, given in wanted.items() if given]
    if table_restored not in (None, "keep", "refill"):
        raise UsageError(f"--table-restored: '{table_restored}' is not known.", hint="Use keep or refill.")
    if not chosen:
        raise UsageError("Nothing was decided.", hint="Give the option that the stop named, such as --accept-gap.")
    stop = threading.Event()
    with ends_when_asked(stop):
        for each in load(spec):
            try:
                said = decide(each, chosen, EventOutput(as_json), stop)
            except StopRequested as asked:  # to wait no longer is no failure of a run, but here nothing was decided
                typer.echo(f"{each.pipeline}: not decided. {asked}", err=True)
                raise typer.Exit(1) from None
            for line in said:
                emit({"event": "decision", "pipeline": each.pipeline, "text": line}) if as_json else typer.echo(line)
