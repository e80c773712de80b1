"""`headrace reset`: start a pipeline over."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def reset(
    spec: Annotated[Path, typer.Argument(help="Spec file.", exists=True, dir_okay=False)],
    tables: Annotated[bool, typer.Option("--tables", help="Also delete the tables of the pipeline.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted without deleting it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines to stdout.")] = False,
) -> None:
    """Delete the state, the dead letters and optionally the tables of a pipeline, so that it starts over.

    Shows what will be deleted and asks for confirmation.
    """
    from headrace.cli.confirm import agreed
    from headrace.cli.console import say
    from headrace.cli.output import emit
    from headrace.table.reset import resting
    from headrace.validate.load import load

    for each in load(spec):
        with resting(each) as found:
            for removal in () if as_json else found.removals:
                say(str(removal))
            if not dry_run:
                found.check(tables)
            going = bool(found.removals) and not dry_run and agreed("Delete permanently?", yes, as_json)
            if going:
                found.apply()
        if as_json:
            said = {"removed": going, "removals": [asdict(removal) for removal in found.removals]}
            emit({"event": "summary", "pipeline": each.pipeline, **said})
        elif going:
            say(f"{each.pipeline}: reset; the next run starts at source.start")
        else:
            say(f"{each.pipeline}: nothing was deleted" if found.removals else f"{each.pipeline}: nothing to delete")
