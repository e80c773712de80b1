"""`headrace table`: inspect, change, maintain and repair Delta tables. Spark starts only for tables that require it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.plural import plural

if TYPE_CHECKING:
    from headrace.table import Repaired, Table
    from headrace.table.query import RowQuery

app = typer.Typer(
    name="table",
    help="Inspect, change, maintain and repair Delta tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Place = Annotated[str, typer.Argument(metavar="PATH", help="Table path: a directory, or s3://bucket/path.")]
SpecFile = Annotated[
    Path | None,
    typer.Option(
        "--spec", help="Spec file to take the storage settings and the state path from.", exists=True, dir_okay=False
    ),
]
DirectCommit = Annotated[
    bool,
    typer.Option(
        "--direct-commit",
        help="Commit without Spark although Spark wrote the table last. No Spark writer may use the table from now on.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done without doing it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines to stdout.")]
Where = Annotated[str | None, typer.Option(help="SQL predicate; only matching rows.")]
Version = Annotated[int | None, typer.Option(help="Table version.", min=0)]
Timestamp = Annotated[str | None, typer.Option(help="Latest version committed at or before this RFC 3339 timestamp.")]
Limit = Annotated[int, typer.Option(help="Maximum number of rows; 0 for all.", min=0)]
Selected = Annotated[list[str] | None, typer.Option("--select", help="Column, or name=expression; repeatable.")]
Vertical = Annotated[
    bool, typer.Option("--vertical", help="Print one line per column. Default for rows wider than the terminal.")
]
Ordered = Annotated[list[str] | None, typer.Option("--order-by", help="Column, or 'name desc'; repeatable.")]


@app.command("list")
def list_tables(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Directory to search: a local path, or s3://bucket/path.")
    ],
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """List the Delta tables below a directory."""
    from headrace.cli.output import emit
    from headrace.table import Table

    found = Table.list_tables(folder, storage_of(spec))
    for path in found:
        emit({"event": "table", "path": path}) if as_json else typer.echo(path)
    if as_json:
        emit({"event": "summary", "tables": len(found)})


@app.command()
def info(path: Place, spec: SpecFile = None, direct_commit: DirectCommit = False, as_json: AsJson = False) -> None:
    """Show the metadata of a table: version, columns, partitioning, properties, features and writer."""
    from headrace.cli.table_show import info_text, pairs

    table = open_table(path, spec, direct_commit)
    said = info_text(table.metadata())
    concluded("info", table.path, said, as_json) if as_json else pairs(said)


@app.command()
def stats(path: Place, spec: SpecFile = None, as_json: AsJson = False) -> None:
    """Show table statistics: bytes, files, partitions, rows, small files and deletion vectors."""
    from headrace.cli.table_show import counted, pairs

    table = open_table(path, spec)
    said = counted(table.statistics())
    concluded("stats", table.path, said, as_json) if as_json else pairs(said)


@app.command()
def history(
    path: Place,
    limit: Annotated[int, typer.Option(help="Number of latest versions; 0 for all.", min=0)] = 20,
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the history of a table, newest first, with the record counts of Headrace commits."""
    from dataclasses import asdict

    from headrace.cli.output import emit
    from headrace.cli.table_show import versions

    entries = open_table(path, spec).history(limit or None)
    if not as_json:
        versions(entries)
    for entry in entries if as_json else ():
        emit({"event": "version", **asdict(entry)})
    if as_json:
        emit({"event": "summary", "versions": len(entries)})


@app.command()
def metrics(path: Place, spec: SpecFile = None, as_json: AsJson = False) -> None:
    """Show the duration of operations on a table, from its commits."""
    from dataclasses import asdict

    from headrace.cli.output import emit
    from headrace.cli.table_show import latencies

    table = open_table(path, spec)
    table.resolve()  # or TableNotFound: what is not there has no latencies either
    took = table.operation_metrics().history
    if not as_json:
        latencies(took)
        return
    for operation, each in took.items():
        emit({"event": "operation", "operation": operation, **asdict(each)})
    emit({"event": "summary", "operations": len(took)})


@app.command()
def query(
    path: Place,
    where: Where = None,
    select: Selected = None,
    order_by: Ordered = None,
    limit: Limit = 20,
    version: Version = None,
    timestamp: Timestamp = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Include soft-deleted rows.")] = False,
    vertical: Vertical = False,
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table, at its current or an earlier version."""
    asked = open_table(path, spec).query().at(version, timestamp)
    asked = asked.with_deleted() if deleted else asked
    _show_rows(_narrowed(asked, where, select, order_by, limit), vertical, as_json)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A single SELECT statement; tables are quoted paths.")],
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="Table name for the query, as name=path; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of rows; 0 for all.", min=0)] = 100,
    vertical: Vertical = False,
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a SELECT statement over one or more tables. Read-only."""
    from headrace.cli.table_show import answer
    from headrace.table.sql import select_tables

    answer(select_tables(query, lambda path: open_table(path, spec), pairs_of(tables)), limit, vertical, as_json)


@app.command()
def changes(
    path: Place,
    start: Annotated[str, typer.Option("--from", help="First version, or an RFC 3339 timestamp.")],
    until: Annotated[
        str | None, typer.Option("--to", help="Last version or timestamp. Default: the latest version.")
    ] = None,
    where: Where = None,
    select: Selected = None,
    order_by: Ordered = None,
    limit: Limit = 20,
    vertical: Vertical = False,
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Show row changes between versions (change data feed)."""
    last = None if until is None else _version_or_time(until)
    asked = open_table(path, spec).changes(_version_or_time(start), last)
    _show_rows(_narrowed(asked, where, select, order_by, limit), vertical, as_json)


@app.command()
def optimize(
    path: Place,
    where: Annotated[
        str | None, typer.Option(help="SQL predicate over partition columns; only matching partitions.")
    ] = None,
    target_size: Annotated[str | None, typer.Option(help="Target size of files, such as 128MB.")] = None,
    z_order: Annotated[list[str] | None, typer.Option(help="Z-order column; repeatable.")] = None,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Compact small files into larger ones. Concurrent appends are allowed."""
    from dataclasses import asdict

    done = open_table(path, spec, direct_commit).optimize(where, _size(target_size), z_order or ())
    concluded("optimize", path, asdict(done), as_json)


@app.command()
def vacuum(
    path: Place,
    retain: Annotated[str, typer.Option(help="Retention period, such as 168h.")] = "168h",
    force: Annotated[
        bool, typer.Option("--force", help="Allow a retention shorter than the table's, based on the local clock.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Delete files that no version within the retention period references.

    Shows what will be deleted and asks for confirmation.
    """
    from headrace.cli.confirm import agreed
    from headrace.cli.table_show import list_text

    table = open_table(path, spec, direct_commit)
    plan = table.vacuum(retain, dry_run=True, force=force)
    if not as_json:
        list_text(f"{table.path}: {plural(len(plan.files), 'file')} ({plan.bytes:,} bytes) to delete", plan.files)
    going = bool(plan.files) and not dry_run and agreed("Delete permanently?", yes, as_json)
    gone = table.vacuum(retain, force=force) if going else plan
    said = {"deleted": going, "files": len(gone.files), "bytes": gone.bytes, "paths": list(gone.files)}
    concluded("vacuum", table.path, said if as_json else {"deleted": going, "files": len(gone.files)}, as_json)


@app.command()
def checkpoint(
    path: Place, spec: SpecFile = None, direct_commit: DirectCommit = False, as_json: AsJson = False
) -> None:
    """Write a checkpoint of the Delta log, so that readers open fewer log files."""
    table = open_table(path, spec, direct_commit)
    concluded("checkpoint", table.path, {"version": table.checkpoint()}, as_json)


@app.command()
def repair(
    path: Place,
    deep: Annotated[bool, typer.Option("--deep", help="Read files completely, not only their footers.")] = False,
    reingest: Annotated[
        bool, typer.Option("--reingest", help="Read lost rows again with --spec, if the source still has them.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Remove missing files from the Delta log; report unreadable files and lost records."""
    from headrace.cli.confirm import agreed
    from headrace.cli.table_show import damage_event, damage_text, repair_text
    from headrace.errors import UsageError

    if reingest and spec is None:
        raise UsageError("--reingest requires the spec that wrote the rows.", hint="Specify --spec SPEC.")
    again = spec if reingest else None
    table = open_table(path, spec, direct_commit)
    found = table.repair(dry_run=True, deep=deep, reingest=again)
    if not as_json:
        damage_text(table.path, found)
    readable = found.reingest is not None and bool(found.reingest.ranges)
    going = (bool(found.missing) or readable) and not dry_run and agreed(_question(found), yes, as_json)
    done = table.repair(deep=deep, reingest=again) if going else found
    if as_json or going:
        concluded("repair", table.path, damage_event(done) if as_json else repair_text(done), as_json)
    if found.unreadable or found.vectors:
        raise typer.Exit(1)


def _question(found: Repaired) -> str:
    """Description of the planned repair."""
    takes = "Remove the missing files from the log" if found.missing else ""
    reads = "read the lost rows again" if found.reingest and found.reingest.ranges else ""
    both = f"{takes}, and {reads}?" if takes and reads else f"{takes or reads}?"
    return both[0].upper() + both[1:]


@app.command()
def restore(
    path: Place,
    version: Version = None,
    timestamp: Timestamp = None,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Restore a table to an earlier version, as a new version. Shows how affected pipelines continue."""
    from dataclasses import asdict

    from headrace.cli.confirm import agreed
    from headrace.errors import UsageError

    if version is None and timestamp is None:
        raise UsageError("No version specified.", hint="Specify --version or --timestamp.")
    table = open_table(path, spec, direct_commit)
    to, now = table.resolve(version, timestamp), table.resolve()
    if not as_json:
        typer.echo(f"{table.path}: restore version {to} (current version: {now})")
    if agreed("Restore?", yes, as_json):
        done = asdict(table.restore(to))
        concluded("restore", table.path, done if as_json else {key: done[key] for key in ("version", "to")}, as_json)
        if not as_json and done["next"]:
            typer.echo(done["next"])


@app.command()
def drop(
    path: Place, yes: Yes = False, spec: SpecFile = None, direct_commit: DirectCommit = False, as_json: AsJson = False
) -> None:
    """Delete a table with all files and its history. Shows its size and asks for confirmation."""
    from headrace.cli.confirm import agreed

    table = open_table(path, spec, direct_commit)
    size = table.statistics()
    if not as_json:
        rows = "an unknown number of rows" if size.rows is None else plural(size.rows, "row")
        typer.echo(f"{table.path}: {rows} in {plural(size.files, 'file')} ({size.bytes:,} bytes), and its history")
    if agreed("Delete permanently?", yes, as_json):
        concluded("drop", table.path, {"files": table.drop()}, as_json)


# ---- what was asked ----


def open_table(path: str, spec: Path | None, direct_commit: bool = False) -> Table:
    from headrace.table import Table

    return Table(path, storage_of(spec), states=_states(spec), direct_commit=direct_commit)


def storage_of(spec: Path | None) -> Any:
    from headrace.validate.load import load

    return load(spec)[0].storage_profile() if spec else None


def _states(spec: Path | None) -> dict[str, str]:
    from headrace.validate.load import load

    return {each.pipeline: each.state_uri for each in load(spec)} if spec else {}


def _narrowed(
    asked: RowQuery, where: str | None, select: list[str] | None, order_by: list[str] | None, limit: int
) -> RowQuery:
    for text in select or ():
        name, equals, expression = text.partition("=")
        asked = asked.select(**{name.strip(): expression}) if equals else asked.select(text)
    asked = asked.where(where) if where else asked
    asked = asked.order_by(*order_by) if order_by else asked
    return asked.limit(limit) if limit else asked


def _version_or_time(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def pairs_of(texts: list[str] | None) -> dict[str, str]:
    from headrace.errors import UsageError

    pairs = [text.partition("=") for text in texts or ()]
    if strange := [name for name, equals, _ in pairs if not equals or not name]:
        raise UsageError(f"Invalid value: '{strange[0]}'; expected name=value.")
    return {name: value for name, _, value in pairs}


def content(file: str) -> bytes:
    """Content of a file or of standard input."""
    from headrace.errors import UsageError

    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from None


def _size(text: str | None) -> int | None:
    from headrace.errors import UsageError
    from headrace.spec.units import size

    try:
        return None if text is None else size(text)
    except ValueError as wanted:
        raise UsageError(f"--target-size: invalid size: '{text}'.", hint=f"Specify {wanted}.") from None


# ---- what people and programs see ----


def _show_rows(asked: RowQuery, vertical: bool, as_json: bool) -> None:
    from headrace.cli.output import emit
    from headrace.cli.preview import readable_value
    from headrace.cli.table_show import grid

    if not as_json:
        grid(asked.arrow(), vertical)
        return
    shown = 0
    for batch in asked.batches():
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            emit({"event": "row", "row": readable_value(row)})
            shown += 1
    emit({"event": "summary", "rows": shown})


def concluded(operation: str, path: str, said: dict[str, Any], as_json: bool) -> None:
    from headrace.cli.output import emit
    from headrace.cli.table_show import figures

    if as_json:
        emit({"event": "summary", "operation": operation, "table": path, **said})
    else:
        typer.echo(f"{path}: {operation}: {figures(said)}")
