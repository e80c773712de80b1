"""`headrace resume`: resolve an error that requires a decision, and record it in the ledger."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from headrace.cli.console import emit
from headrace.cli.options import AsJson, SpecFile


def resume(
    spec_file: SpecFile,
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
    as_json: AsJson = False,
) -> None:
    """Resolve the error that stopped a pipeline.

    The error message names the option to use. Run the pipeline again afterwards.
    """
    from headrace.cli.output import EventOutput
    from headrace.cli.run import stops_on_signals
    from headrace.errors import StopRequested, UsageError
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
        raise UsageError(
            "No option specified.", hint="Use the option named in the error message, such as --accept-gap."
        )
    stop = threading.Event()
    with stops_on_signals(stop):
        for spec in load(spec_file):
            try:
                lines = decide(spec, decisions, EventOutput(as_json), stop)
            except StopRequested as error:  # exit code 0 for a run; here the error remains unresolved
                typer.echo(f"{spec.pipeline}: unresolved. {error}", err=True)
                raise typer.Exit(1) from None
            for line in lines:
                emit({"event": "decision", "pipeline": spec.pipeline, "text": line}) if as_json else typer.echo(line)
