"""`headrace table insert`, `upsert`, `delete` and `update`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.plural import plural
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

File = Annotated[str, typer.Argument(metavar="FILE", help="Records: JSON lines or Parquet; - for standard input.")]
Partition = Annotated[str | None, typer.Option(help="Only in this partition: a=x/b=y.")]
Create = Annotated[bool, typer.Option("--create", help="Create the table from the records if it does not exist.")]
PartitionBy = Annotated[
    list[str] | None, typer.Option(help="With --create: partition column of the new table; repeatable.")
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", help="With --create: property of the new table, as name=value; repeatable."),
]
Condition = Annotated[str, typer.Option(help="SQL predicate; matching rows.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the group."""
    for each in (insert, upsert, delete, update):
        app.command()(each)


def insert(
    path: Place,
    file: File,
    partition: Annotated[str | None, typer.Option(help="Partition of all records: a=x/b=y.")] = None,
    create: Create = False,
    partition_by: PartitionBy = None,
    properties: Properties = None,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Append records to a table in one commit."""
    table = _made(open_table(path, spec, direct_commit), create, partition_by, properties, spec)
    concluded("insert", table.path, asdict(table.bulk_insert(_records(file, table), partition)), as_json)


def upsert(
    path: Place,
    file: File,
    key: Annotated[list[str], typer.Option(help="Key column; repeatable.")],
    sequence_by: Annotated[
        str | None, typer.Option(help="Column that orders records of the same key; the highest value wins.")
    ] = None,
    partition: Partition = None,
    deduplicate: Annotated[
        bool,
        typer.Option(
            "--deduplicate/--no-deduplicate",
            help="Accept several records with the same key (the last one wins), or reject them.",
        ),
    ] = True,
    create: Create = False,
    partition_by: PartitionBy = None,
    properties: Properties = None,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Update rows by key and insert new ones. Shows the number of records and asks for confirmation."""
    table = _made(open_table(path, spec, direct_commit), create, partition_by, properties, spec)
    records = _records(file, table)
    plan = f"upsert {plural(len(records), 'record')} by {', '.join(key)}"
    _changed(
        "upsert", table, plan, lambda: table.upsert(records, key, sequence_by, partition, deduplicate), yes, as_json
    )


def delete(
    path: Place,
    where: Condition,
    partition: Partition = None,
    soft: Annotated[bool, typer.Option("--soft", help="Soft delete: set _deleted to true.")] = False,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Delete or soft-delete rows. Shows the number of rows and asks for confirmation."""
    table = open_table(path, spec, direct_commit)
    what = f"{plural(_met(table, where, partition, hidden=not soft), 'row')} to {'hide' if soft else 'delete'}"
    _changed("delete", table, what, lambda: table.delete(where, partition, hard=not soft), yes, as_json)


def update(
    path: Place,
    where: Condition,
    values: Annotated[list[str], typer.Option("--set", help="Assignment as column=SQL expression; repeatable.")],
    partition: Partition = None,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Update columns of matching rows. Shows the number of rows and asks for confirmation."""
    table, wanted = open_table(path, spec, direct_commit), pairs_of(values)
    what = f"{plural(_met(table, where, partition), 'row')} to update: {', '.join(wanted)}"
    _changed("update", table, what, lambda: table.update(where, wanted, partition), yes, as_json)


def _changed(operation: str, table: Table, plan: str, change: Callable[[], Any], yes: bool, as_json: bool) -> None:
    """Print the plan, ask for confirmation, apply it and print the result."""
    from headrace.cli.confirm import agreed

    if not as_json:
        at = f"at version {table.resolve()}" if table.exists() else "into a new table"
        typer.echo(f"{table.path}: {plan}, {at}")
    if agreed("Apply?", yes, as_json):
        concluded(operation, table.path, asdict(change()), as_json)


def _met(table: Table, where: str, partition: str | None, hidden: bool = True) -> int:
    """Number of matching rows; soft-deleted rows are not counted again."""
    asked = table.query().where(where).within(partition)
    return (asked.with_deleted() if hidden else asked).count()


def _made(
    table: Table, create: bool, partition_by: list[str] | None, properties: list[str] | None, spec: Path | None
) -> Table:
    """Open the table, or create it from its first records if requested."""
    from headrace.errors import UsageError

    if not create and (partition_by or properties):
        raise UsageError("--partition-by and --property apply to new tables only.", hint="Add --create.")
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
