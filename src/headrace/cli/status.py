"""`headrace status`: status of pipelines, from their state only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from headrace.cli.console import emit, print_table, say
from headrace.cli.options import AsJson, SpecFiles
from headrace.errors import plural


def status(
    spec_files: SpecFiles,
    batches: Annotated[int, typer.Option(help="Number of latest batches to show.", min=1, max=1000)] = 5,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Count orphaned files; lists the directories of all tables.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the running instance, the lag and recent batches."""
    from headrace.serve.status import pipeline_status
    from headrace.validate.load import load

    for file in spec_files:
        for spec in load(file):
            fields = pipeline_status(spec, batches, orphans)
            emit({"event": "status", **fields}) if as_json else _print(fields)


def _print(status: dict[str, Any]) -> None:
    from headrace.cli.output import lag_text, transaction_text

    holder, orphans = status["holder"], status["orphans"]
    running = f"running on {holder['host']} as process {holder['pid']}" if holder else "not running"
    batch = f"last batch {status['batch']}" if status["batch"] else "no batches yet"
    say(f"{status['pipeline']}: {running}; {batch}")
    say(f"  lag: {lag_text(status['lag'], status['lag_seconds'])}")
    if status["lag_error"]:
        say(f"    {status['lag_error']}")
    if status["open_transaction"]:
        say(f"    {transaction_text(status['open_transaction'])}")
    if status["open_batch"]:
        say(f"  batch {status['open_batch']} is unfinished; the next run completes it first")
    for table in status["tables"]:
        say(f"  {table}")
    if orphans is not None:
        say(f"  orphaned files: {orphans['files']:,} ({plural(orphans['bytes'], 'byte')})")
        for folder, count in orphans["folders"].items():
            say(f"    {count:,} in {folder}")
    if status["batches"]:
        titles = ("batch", "finished", "read", "written", "dead", "filtered", "note")
        batches = [{**row, "finished": f"{str(row['finished'])[:19]}Z"} for row in status["batches"]]  # to the second
        rows = [[row[title] for title in titles] for row in batches]
        print_table(titles, rows, numbers=("batch", "read", "written", "dead", "filtered"))
        for name, count in _violations(status["batches"]).items():
            say(f"  expectation violations in these batches, {name}: {count:,}")
    for line in _maintenance(status["maintenance"] or {}):
        say(f"  {line}")


def _maintenance(journal: dict[str, Any]) -> Iterator[str]:
    """Maintenance operations as text."""
    from headrace.cli.output import maintenance_text

    for operation in journal.get("done", []):
        yield f"{operation['at']} {maintenance_text(operation)}"
    if running := journal.get("running"):
        yield f"{running['at']} running: {maintenance_text(running)}"


def _violations(batches: list[dict[str, Any]]) -> dict[str, int]:
    """Violations per expectation over some batches."""
    from headrace.plan.accounting import Counts

    return dict(sum((Counts(violations=row["violations"]) for row in batches), Counts()).violations)
