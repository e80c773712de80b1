"""`headrace table insert`, `upsert`, `delete`, `update`: rows of a table are added and changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.table import (
    AsJson,
    DirectCommit,
    Place,
    SpecFile,
    Yes,
    concluded,
    content,
    open_table,
    pairs_of,
    storage_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.table import Table

File = Annotated[str, typer.Argument(metavar="FILE", help="The records: JSON lines or Parquet; - for standard input.")]
Partition = Annotated[str | None, typer.Option(help="Only in this partition: a=x/b=y.")]
Create = Annotated[bool, typer.Option("--create", help="Make the table of the records, where there is none.")]
PartitionBy = Annotated[
    list[str] | None, typer.Option(help="With --create: a partition column of the new table; may be repeated.")
]
Properties = Annotated[
    list[str] | None, typer.Option("--property", help="With --create: name=value of the new table; may be repeated.")
]
Condition = Annotated[str, typer.Option(help="The rows for which this SQL expression is true.")]


def add_to(app: typer.Typer) -> None:
    """Let the group have these commands."""
    for each in (insert, upsert, delete, update):
        app.command()(each)


def insert(
    path: Place,
    file: File,
    partition: Annotated[str | None, typer.Option(help="The partition of them all: a=x/b=y.")] = None,
    create: Create = False,
    partition_by: PartitionBy = None,
    properties: Properties = None,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Add records to a table, all of them in one commit."""
    table = _made(open_table(path, spec, direct_commit), create, partition_by, properties, spec)
    concluded("insert", table.path, asdict(table.bulk_insert(_records(file, table), partition)), as_json)


def upsert(
    path: Place,
    file: File,
    key: Annotated[list[str], typer.Option(help="A column that tells rows apart; may be repeated.")],
    sequence_by: Annotated[str | None, typer.Option(help="The column by which the last one counts.")] = None,
    partition: Partition = None,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate/--no-deduplicate", help="Whether a key may be there twice.")
    ] = True,
    create: Create = False,
    partition_by: PartitionBy = None,
    properties: Properties = None,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Put records in place of the rows with their key, and add the others; says how many there are, then asks."""
    table = _made(open_table(path, spec, direct_commit), create, partition_by, properties, spec)
    records = _records(file, table)
    plan = f"{len(records):,} records by {', '.join(key)}"
    _changed(
        "upsert", table, plan, lambda: table.upsert(records, key, sequence_by, partition, deduplicate), yes, as_json
    )


def delete(
    path: Place,
    where: Condition,
    partition: Partition = None,
    soft: Annotated[bool, typer.Option("--soft", help="Only hide the rows: _deleted is true.")] = False,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Delete rows, or hide them; says how many there are, then asks."""
    table = open_table(path, spec, direct_commit)
    what = f"{_met(table, where, partition, hidden=not soft)} rows to {'hide' if soft else 'delete'}"
    _changed("delete", table, what, lambda: table.delete(where, partition, hard=not soft), yes, as_json)


def update(
    path: Place,
    where: Condition,
    values: Annotated[list[str], typer.Option("--set", help="column=SQL expression; may be repeated.")],
    partition: Partition = None,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Set columns of rows; says how many there are, then asks."""
    table, wanted = open_table(path, spec, direct_commit), pairs_of(values)
    what = f"{_met(table, where, partition)} rows that get {', '.join(wanted)}"
    _changed("update", table, what, lambda: table.update(where, wanted, partition), yes, as_json)


def _changed(operation: str, table: Table, plan: str, change: Callable[[], Any], yes: bool, as_json: bool) -> None:
    """Say what is planned, ask, do it, and say what was done."""
    from headrace.cli.confirm import agreed

    if not as_json:
        at = f"at version {table.resolve()}" if table.exists() else "into a new table"
        typer.echo(f"{table.path}: {plan}, {at}")
    if agreed("Do it?", yes, as_json):
        concluded(operation, table.path, asdict(change()), as_json)


def _met(table: Table, where: str, partition: str | None, hidden: bool = True) -> str:
    """How many rows are meant; hidden ones are not hidden again."""
    asked = table.query().where(where).within(partition)
    return f"{(asked.with_deleted() if hidden else asked).count():,}"


def _made(
    table: Table, create: bool, partition_by: list[str] | None, properties: list[str] | None, spec: Path | None
) -> Table:
    """The table; one that its first records make where there is none, if that is wanted."""
    from headrace.errors import UsageError

    if not create and (partition_by or properties):
        raise UsageError("--partition-by and --property are of a new table.", hint="Say --create, too.")
    if not create:
        table.resolve()  # or TableNotFound
    if not create or table.exists():
        return table
    return type(table).get_or_create(table.path, None, partition_by or (), pairs_of(properties), storage_of(spec))


def _records(file: str, table: Table) -> Any:
    from headrace.table.records import from_json, from_parquet

    data = content(file)
    if data[:4] == b"PAR1":
        return from_parquet(data, file)
    return from_json(data, table.schema() if table.exists() else None, file)
