"""`headrace resume`: resolve an error that requires a decision, and record it in the ledger."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer


def resume(
    spec: Annotated[Path, typer.Argument(help="Spec file.", exists=True, dir_okay=False)],
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Skip offsets that the broker no longer has, or continue at its end.")
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines to stdout.")] = False,
) -> None:
    """Resolve the error that stopped a pipeline, then run it again. The error message names the option to use."""
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
        raise UsageError(f"--table-restored: invalid value: '{table_restored}'.", hint="Use keep or refill.")
    if not chosen:
        raise UsageError(
            "No option specified.", hint="Use the option named in the error message, such as --accept-gap."
        )
    stop = threading.Event()
    with ends_when_asked(stop):
        for each in load(spec):
            try:
                said = decide(each, chosen, EventOutput(as_json), stop)
            except StopRequested as asked:  # to wait no longer is no failure of a run, but here nothing was decided
                typer.echo(f"{each.pipeline}: unresolved. {asked}", err=True)
                raise typer.Exit(1) from None
            for line in said:
                emit({"event": "decision", "pipeline": each.pipeline, "text": line}) if as_json else typer.echo(line)
