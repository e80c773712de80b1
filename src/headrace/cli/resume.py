"""`headrace resume`: a person's answer to a named stop, written into the ledger."""

from __future__ import annotations

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
    accept_new_table: Annotated[
        bool, typer.Option("--accept-new-table", help="Go on with a new table where the known one is gone or replaced.")
    ] = False,
    table_restored: Annotated[
        str | None,
        typer.Option(help="`keep`: go on with a table that was restored; undone rows stay undone.", metavar="keep"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
) -> None:
    """Decide what a stopped pipeline asked, then run it again; each stop names the option it needs."""
    from headrace.cli.show import emit
    from headrace.decisions import Decision, decide
    from headrace.errors import UsageError
    from headrace.spec.load import load

    wanted = {
        Decision.GAP: accept_gap,
        Decision.REPLACED_TOPIC: accept_replaced_topic,
        Decision.NEW_TABLE: accept_new_table,
        Decision.RESTORED_TABLE: table_restored == "keep",
    }
    chosen = [decision for decision, given in wanted.items() if given]
    if table_restored not in (None, "keep"):
        raise UsageError(f"--table-restored: '{table_restored}' is not known.", next="Use keep.")
    if not chosen:
        raise UsageError("Nothing was decided.", next="Give the option that the stop named, such as --accept-gap.")
    for each in load(spec):
        for line in decide(each, chosen):
            emit({"event": "decision", "pipeline": each.pipeline, "text": line}) if as_json else typer.echo(line)
