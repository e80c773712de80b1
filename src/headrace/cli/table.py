"""`headrace table`: look into a Delta table, keep it in order, mend it; Spark is started only for tables it writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.table import Repaired, Table
    from headrace.table.query import RowQuery

app = typer.Typer(
    name="table",
    help="Look into a Delta table, change its rows, keep it in order, mend it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Place = Annotated[str, typer.Argument(metavar="PATH", help="The table: a folder, or s3://bucket/path.")]
SpecFile = Annotated[
    Path | None,
    typer.Option("--spec", help="A spec whose storage and state folders are used.", exists=True, dir_okay=False),
]
DirectCommit = Annotated[
    bool,
    typer.Option(
        "--direct-commit", help="Commit directly although Spark wrote the table last; it must never write again."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")]
Where = Annotated[str | None, typer.Option(help="Only rows for which this SQL expression is true.")]
Version = Annotated[int | None, typer.Option(help="The version of that number.", min=0)]
Timestamp = Annotated[str | None, typer.Option(help="The newest version committed by then: an RFC 3339 time.")]
Limit = Annotated[int, typer.Option(help="At most so many rows; 0 for all.", min=0)]
Selected = Annotated[list[str] | None, typer.Option("--select", help="A column, or name=expression; may be repeated.")]
Vertical = Annotated[
    bool, typer.Option("--vertical", help="One line per column; rows too wide for the terminal are shown so anyway.")
]
Ordered = Annotated[list[str] | None, typer.Option("--order-by", help="A column, or 'name desc'; may be repeated.")]


@app.command("list")
def list_tables(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to look: a folder, or s3://bucket/path.")],
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Name the Delta tables below a folder."""
    from headrace.cli.output import emit
    from headrace.table import Table

    found = Table.list_tables(folder, storage_of(spec))
    for path in found:
        emit({"event": "table", "path": path}) if as_json else typer.echo(path)
    if as_json:
        emit({"event": "summary", "tables": len(found)})


@app.command()
def info(path: Place, spec: SpecFile = None, direct_commit: DirectCommit = False, as_json: AsJson = False) -> None:
    """Show what a table is: version, columns, partitioning, properties, features, who writes it."""
    from headrace.cli.table_show import info_text, pairs

    table = open_table(path, spec, direct_commit)
    said = info_text(table.metadata())
    concluded("info", table.path, said, as_json) if as_json else pairs(said)


@app.command()
def stats(path: Place, spec: SpecFile = None, as_json: AsJson = False) -> None:
    """Show how large a table is: bytes, files, partitions, rows, small files, deletion vectors."""
    from headrace.cli.table_show import counted, pairs

    table = open_table(path, spec)
    said = counted(table.statistics())
    concluded("stats", table.path, said, as_json) if as_json else pairs(said)


@app.command()
def history(
    path: Place,
    limit: Annotated[int, typer.Option(help="How many of the newest versions; 0 for all.", min=0)] = 20,
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what was done to a table, newest first, with Headrace's own account of a commit."""
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
    """Show how long operations on a table took, as its commits tell."""
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
    deleted: Annotated[bool, typer.Option("--deleted", help="Also rows that were softly deleted.")] = False,
    vertical: Vertical = False,
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table, now or as they were."""
    asked = open_table(path, spec).query().at(version, timestamp)
    asked = asked.with_deleted() if deleted else asked
    _show_rows(_narrowed(asked, where, select, order_by, limit), vertical, as_json)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT; a table is its path in quotes.")],
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="name=path of a table in the query; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Show at most so many rows; 0 for all.", min=0)] = 100,
    vertical: Vertical = False,
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Run one SELECT over tables, with joins and aggregates; nothing is changed."""
    from headrace.cli.table_show import answer
    from headrace.table.sql import select_tables

    answer(select_tables(query, lambda path: open_table(path, spec), pairs_of(tables)), limit, vertical, as_json)


@app.command()
def changes(
    path: Place,
    start: Annotated[str, typer.Option("--from", help="The first version, or an RFC 3339 time.")],
    until: Annotated[
        str | None, typer.Option("--to", help="The last version, or a time; the newest without it.")
    ] = None,
    where: Where = None,
    select: Selected = None,
    order_by: Ordered = None,
    limit: Limit = 20,
    vertical: Vertical = False,
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Show rows that came and went between versions."""
    last = None if until is None else _version_or_time(until)
    asked = open_table(path, spec).changes(_version_or_time(start), last)
    _show_rows(_narrowed(asked, where, select, order_by, limit), vertical, as_json)


@app.command()
def optimize(
    path: Place,
    where: Annotated[str | None, typer.Option(help="Only partitions for which this SQL expression is true.")] = None,
    target_size: Annotated[str | None, typer.Option(help="Size of the files to make, such as 128MB.")] = None,
    z_order: Annotated[list[str] | None, typer.Option(help="A column to order files by; may be repeated.")] = None,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Make fewer, larger files of many small ones; appends may go on meanwhile."""
    from dataclasses import asdict

    done = open_table(path, spec, direct_commit).optimize(where, _size(target_size), z_order or ())
    concluded("optimize", path, asdict(done), as_json)


@app.command()
def vacuum(
    path: Place,
    retain: Annotated[str, typer.Option(help="Keep what versions of this time need, such as 168h.")] = "168h",
    force: Annotated[bool, typer.Option("--force", help="Below the table's own retention, by this clock.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Delete files that no version within the retention needs; says what would go, then asks."""
    from headrace.cli.confirm import agreed
    from headrace.cli.table_show import list_text

    table = open_table(path, spec, direct_commit)
    plan = table.vacuum(retain, dry_run=True, force=force)
    if not as_json:
        list_text(f"{table.path}: {len(plan.files):,} files ({plan.bytes:,} bytes) to delete", plan.files)
    going = bool(plan.files) and not dry_run and agreed("Delete them for good?", yes, as_json)
    gone = table.vacuum(retain, force=force) if going else plan
    said = {"deleted": going, "files": len(gone.files), "bytes": gone.bytes, "paths": list(gone.files)}
    concluded("vacuum", table.path, said if as_json else {"deleted": going, "files": len(gone.files)}, as_json)


@app.command()
def checkpoint(
    path: Place, spec: SpecFile = None, direct_commit: DirectCommit = False, as_json: AsJson = False
) -> None:
    """Write a log checkpoint, so that readers open few files of the log."""
    table = open_table(path, spec, direct_commit)
    concluded("checkpoint", table.path, {"version": table.checkpoint()}, as_json)


@app.command()
def repair(
    path: Place,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file to its end, not only its footer.")] = False,
    reingest: Annotated[
        bool, typer.Option("--reingest", help="Read lost rows again, by --spec, as far as the source holds them.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Take files that are gone out of the log; name those that are unreadable, and the records that are lost."""
    from headrace.cli.confirm import agreed
    from headrace.cli.table_show import damage_event, damage_text, repair_text
    from headrace.errors import UsageError

    if reingest and spec is None:
        raise UsageError("--reingest needs the spec that wrote the rows.", hint="Give --spec SPEC.")
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
    """What is about to be done."""
    takes = "Take the missing files out of the log" if found.missing else ""
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
    """Hold the rows of an older version again, as a new version; what pipelines will ask then is said."""
    from dataclasses import asdict

    from headrace.cli.confirm import agreed
    from headrace.errors import UsageError

    if version is None and timestamp is None:
        raise UsageError("Restored to what?", hint="Give --version or --timestamp.")
    table = open_table(path, spec, direct_commit)
    to, now = table.resolve(version, timestamp), table.resolve()
    if not as_json:
        typer.echo(f"{table.path}: version {to} again, in place of version {now}")
    if agreed("Restore it?", yes, as_json):
        done = asdict(table.restore(to))
        concluded("restore", table.path, done if as_json else {key: done[key] for key in ("version", "to")}, as_json)
        if not as_json and done["next"]:
            typer.echo(done["next"])


@app.command()
def drop(
    path: Place, yes: Yes = False, spec: SpecFile = None, direct_commit: DirectCommit = False, as_json: AsJson = False
) -> None:
    """Delete a table with all its files and its history; says how much that is, then asks."""
    from headrace.cli.confirm import agreed

    table = open_table(path, spec, direct_commit)
    size = table.statistics()
    if not as_json:
        rows = "an unknown number of rows" if size.rows is None else f"{size.rows:,} rows"
        typer.echo(f"{table.path}: {rows} in {size.files:,} files ({size.bytes:,} bytes), and its history")
    if agreed("Delete all of it for good?", yes, as_json):
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
        raise UsageError(f"'{strange[0]}' is no name=value.")
    return {name: value for name, _, value in pairs}


def content(file: str) -> bytes:
    """What is in a file, or comes from standard input."""
    from headrace.errors import UsageError

    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None


def _size(text: str | None) -> int | None:
    from headrace.errors import UsageError
    from headrace.spec.units import size

    try:
        return None if text is None else size(text)
    except ValueError as wanted:
        raise UsageError(f"--target-size: '{text}' is none.", hint=f"Give {wanted}.") from None


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
