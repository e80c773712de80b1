"""`headrace table insert`, `upsert`, `delete` and `update`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.arguments import file_content, name_values, open_table, storage_profile
from headrace.cli.confirm import confirmed
from headrace.cli.options import AsJson, DirectCommit, PartitionColumns, Properties, TablePath, TableSpecFile, Yes
from headrace.cli.table_output import print_result
from headrace.errors import UsageError, plural

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.table import Table

_File = Annotated[str, typer.Argument(metavar="FILE", help="Records: JSON lines or Parquet; - for stdin.")]
_Partition = Annotated[str | None, typer.Option(help="Only in this partition: a=x/b=y.")]
Create = Annotated[bool, typer.Option("--create", help="Create the table from the records if it does not exist.")]
_Condition = Annotated[str, typer.Option(help="SQL predicate; matching rows.")]


def insert(
    path: TablePath,
    file: _File,
    partition: Annotated[str | None, typer.Option(help="Partition of all records: a=x/b=y.")] = None,
    create: Create = False,
    partition_by: PartitionColumns = None,
    properties: Properties = None,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Append records to a table in one commit."""
    table = _open_or_create(open_table(path, spec_file, direct_commit), create, partition_by, properties, spec_file)
    print_result("insert", table.path, asdict(table.bulk_insert(_records(file, table), partition)), as_json)


def upsert(
    path: TablePath,
    file: _File,
    key: Annotated[list[str], typer.Option(help="Key column; repeatable.")],
    sequence_by: Annotated[
        str | None, typer.Option(help="Column that orders records of the same key; the highest value wins.")
    ] = None,
    partition: _Partition = None,
    deduplicate: Annotated[
        bool,
        typer.Option(
            "--deduplicate/--no-deduplicate",
            help="Accept several records with the same key (the last one wins), or reject them.",
        ),
    ] = True,
    create: Create = False,
    partition_by: PartitionColumns = None,
    properties: Properties = None,
    yes: Yes = False,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Update rows by key and insert new ones. Shows the number of records and asks for confirmation."""
    table = _open_or_create(open_table(path, spec_file, direct_commit), create, partition_by, properties, spec_file)
    records = _records(file, table)
    plan = f"upsert {plural(len(records), 'record')} by {', '.join(key)}"
    _apply("upsert", table, plan, lambda: table.upsert(records, key, sequence_by, partition, deduplicate), yes, as_json)


def delete(
    path: TablePath,
    where: _Condition,
    partition: _Partition = None,
    soft: Annotated[bool, typer.Option("--soft", help="Soft delete: set _deleted to true.")] = False,
    yes: Yes = False,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Delete or soft-delete rows. Shows the number of rows and asks for confirmation."""
    table = open_table(path, spec_file, direct_commit)
    rows = plural(_count(table, where, partition, with_deleted=not soft), "row")
    plan = f"{rows} to {'soft-delete' if soft else 'delete'}"
    _apply("delete", table, plan, lambda: table.delete(where, partition, hard=not soft), yes, as_json)


def update(
    path: TablePath,
    where: _Condition,
    values: Annotated[list[str], typer.Option("--set", help="Assignment as column=SQL expression; repeatable.")],
    partition: _Partition = None,
    yes: Yes = False,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Update columns of matching rows. Shows the number of rows and asks for confirmation."""
    table, assignments = open_table(path, spec_file, direct_commit), name_values(values)
    plan = f"{plural(_count(table, where, partition), 'row')} to update: {', '.join(assignments)}"
    _apply("update", table, plan, lambda: table.update(where, assignments, partition), yes, as_json)


def _apply(operation: str, table: Table, plan: str, change: Callable[[], Any], yes: bool, as_json: bool) -> None:
    """Print the plan, ask for confirmation, apply it and print the result."""
    if not as_json:
        at = f"at version {table.resolve()}" if table.exists() else "into a new table"
        typer.echo(f"{table.path}: {plan}, {at}")
    if confirmed("Apply?", yes, as_json):
        print_result(operation, table.path, asdict(change()), as_json)


def _count(table: Table, where: str, partition: str | None, with_deleted: bool = True) -> int:
    """Number of matching rows; soft-deleted rows are not counted again."""
    query = table.query().where(where).within(partition)
    return (query.with_deleted() if with_deleted else query).count()


def _open_or_create(
    table: Table, create: bool, partition_by: list[str] | None, properties: list[str] | None, spec_file: Path | None
) -> Table:
    """Open the table, or create it from its first records if requested."""
    if not create and (partition_by or properties):
        raise UsageError("--partition-by and --property apply to new tables only.", hint="Add --create.")
    if not create:
        table.resolve()  # TableNotFound
    if not create or table.exists():
        return table
    return type(table).get_or_create(
        table.path, None, partition_by or (), name_values(properties), storage_profile(spec_file)
    )


def _records(file: str, table: Table) -> Any:
    from headrace.table.records import from_json, from_parquet

    data = file_content(file)
    if data[:4] == b"PAR1":
        return from_parquet(data, file)
    return from_json(data, table.schema() if table.exists() else None, file)
