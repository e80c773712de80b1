"""`headrace reset`: start a pipeline over."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.confirm import confirmed
from headrace.cli.console import emit, say
from headrace.cli.options import AsJson, SpecFile, Yes
from headrace.errors import plural

if TYPE_CHECKING:
    from headrace.table.reset import Removal


def reset(
    spec_file: SpecFile,
    tables: Annotated[bool, typer.Option("--tables", help="Also delete the tables of the pipeline.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted without deleting it.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the state of a pipeline, so that it starts over.

    Also deletes its dead letters and, with --tables, its tables. Shows what will be deleted and asks for confirmation.
    """
    from headrace.table.reset import open_reset
    from headrace.validate.load import load

    for spec in load(spec_file):
        with open_reset(spec) as reset:
            for removal in () if as_json else reset.removals:
                say(_removal_text(removal))
            if not dry_run:
                reset.check(tables)
            removed = bool(reset.removals) and not dry_run and confirmed("Delete permanently?", yes, as_json)
            if removed:
                reset.apply()
        if as_json:
            removals = [asdict(removal) for removal in reset.removals]
            emit({"event": "summary", "pipeline": spec.pipeline, "removed": removed, "removals": removals})
        elif removed:
            say(f"{spec.pipeline}: reset; the next run starts at source.start")
        else:
            say(f"{spec.pipeline}: {'nothing was deleted' if reset.removals else 'nothing to delete'}")


def _removal_text(removal: Removal) -> str:
    rows = "" if removal.rows is None else f"{plural(removal.rows, 'row')}, "
    return f"{removal.what} {removal.path}: {rows}{plural(removal.files, 'file')}, {plural(removal.bytes, 'byte')}"
