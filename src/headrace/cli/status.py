"""`headrace status`: status of pipelines, from their state only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer


def status(
    specs: Annotated[list[Path], typer.Argument(help="Spec files.", exists=True, dir_okay=False)],
    batches: Annotated[int, typer.Option(help="Number of latest batches to show.", min=1, max=1000)] = 5,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Count orphaned files; lists the directories of all tables.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines to stdout.")] = False,
) -> None:
    """Show the running instance, recent batches, lag and unfinished batches."""
    from headrace.cli.output import emit
    from headrace.serve.status import pipeline_status
    from headrace.validate.load import load

    for path in specs:
        for spec in load(path):
            found = pipeline_status(spec, batches, orphans)
            emit({"event": "status", **found}) if as_json else _print(found)


def _print(found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from headrace.cli.console import console
    from headrace.cli.output import lag_text, transaction_text

    out = console()
    holder = found["holder"]
    running = f"running on {holder['host']} as process {holder['pid']}" if holder else "not running"
    out.print(escape(f"{found['pipeline']}: {running}; last batch {found['batch']}"))
    out.print(f"  lag: {lag_text(found['lag'], found['lag_seconds'])}")
    if found["lag_error"]:
        out.print(escape(f"    {found['lag_error']}"), soft_wrap=True)
    if found["open_transaction"]:
        out.print(f"    {transaction_text(found['open_transaction'])}", soft_wrap=True)
    if found["open_batch"]:
        out.print(f"  batch {found['open_batch']} is unfinished; the next run completes it first")
    for table in found["tables"]:
        out.print(escape(f"  {table}"))
    if (left := found["orphans"]) is not None:
        out.print(f"  orphaned files: {left['files']:,} ({left['bytes']:,} bytes)")
        for folder, count in left["folders"].items():
            out.print(escape(f"    {count:,} in {folder}"))
    if found["batches"]:
        table = Table("batch", "finished", "read", "written", "dead", "filtered", "note", box=None)
        for row in found["batches"]:
            cells = [row[key] for key in ("batch", "finished", "read", "written", "dead", "filtered", "note")]
            table.add_row(*(escape(f"{cell:,}" if isinstance(cell, int) else str(cell or "")) for cell in cells))
        out.print(table)
        for name, count in _violations(found["batches"]).items():
            out.print(escape(f"  expectation violations in these batches, {name}: {count:,}"))
    for line in _maintenance(found["maintenance"] or {}):
        out.print(escape(f"  {line}"))


def _maintenance(found: dict[str, Any]) -> Iterator[str]:
    """Maintenance operations as text."""
    from headrace.cli.output import maintenance_text

    for each in found.get("done", []):
        yield f"{each['at']} {maintenance_text(each)}"
    if running := found.get("running"):
        yield f"{running['at']} running: {maintenance_text(running)}"


def _violations(batches: list[dict[str, Any]]) -> dict[str, int]:
    """Violations per expectation over some batches; older ledger rows may have none."""
    counts: dict[str, int] = {}
    for row in batches:
        for name, count in (row.get("violations") or {}).items():
            counts[name] = counts.get(name, 0) + count
    return counts
