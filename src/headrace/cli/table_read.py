"""`headrace table list`, `info`, `stats`, `history`, `metrics`, `query`, `sql` and `changes`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import name_values, open_table, storage_profile
from headrace.cli.console import emit, say_progress
from headrace.cli.options import AsJson, DirectCommit, TablePath, TableSpecFile, Timestamp, Version
from headrace.cli.table_output import (
    info_fields,
    print_fields,
    print_history,
    print_latencies,
    print_query,
    print_result,
    print_sql_result,
    statistics_fields,
)

if TYPE_CHECKING:
    from headrace.table.query import RowQuery

Where = Annotated[str | None, typer.Option(help="SQL predicate; only matching rows.")]
Limit = Annotated[int, typer.Option(help="Maximum number of rows; 0 for all.", min=0)]
Select = Annotated[list[str] | None, typer.Option("--select", help="Column, or name=expression; repeatable.")]
OrderBy = Annotated[list[str] | None, typer.Option("--order-by", help="Column, or 'name desc'; repeatable.")]
Vertical = Annotated[
    bool, typer.Option("--vertical", help="Print one line per column. Default for rows wider than the terminal.")
]


def list_tables(
    folder: Annotated[
        str, typer.Argument(metavar="DIRECTORY", help="Directory to search: a local path, or s3://bucket/path.")
    ],
    spec_file: TableSpecFile = None,
    as_json: AsJson = False,
) -> None:
    """List the Delta tables below a directory."""
    from headrace.table import Table

    paths = Table.list_tables(folder, storage_profile(spec_file))
    for path in paths:
        emit({"event": "table", "path": path}) if as_json else typer.echo(path)
    if as_json:
        emit({"event": "summary", "tables": len(paths)})
    elif not paths:
        say_progress(f"No Delta tables below {folder}.")


def info(
    path: TablePath, spec_file: TableSpecFile = None, direct_commit: DirectCommit = False, as_json: AsJson = False
) -> None:
    """Show the metadata of a table.

    Version, columns, partitioning, properties, features and writer.
    """

    table = open_table(path, spec_file, direct_commit)
    fields = info_fields(table.metadata())
    print_result("info", table.path, fields, as_json) if as_json else print_fields(fields)


def stats(path: TablePath, spec_file: TableSpecFile = None, as_json: AsJson = False) -> None:
    """Show statistics of a table.

    Bytes, files, partitions, rows, small files and deletion vectors.
    """

    table = open_table(path, spec_file)
    fields = statistics_fields(table.statistics())
    print_result("stats", table.path, fields, as_json) if as_json else print_fields(fields)


def history(
    path: TablePath,
    limit: Annotated[int, typer.Option(help="Number of latest versions; 0 for all.", min=0)] = 20,
    spec_file: TableSpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the versions of a table, newest first."""

    entries = open_table(path, spec_file).history(limit or None)
    if not as_json:
        print_history(entries)
        return
    for entry in entries:
        emit({"event": "version", **asdict(entry)})
    emit({"event": "summary", "versions": len(entries)})


def metrics(path: TablePath, spec_file: TableSpecFile = None, as_json: AsJson = False) -> None:
    """Show the duration of operations, from the Delta log."""

    table = open_table(path, spec_file)
    table.resolve()  # TableNotFound
    latencies = table.operation_metrics().history
    if not as_json:
        print_latencies(latencies)
        return
    for operation, latency in latencies.items():
        emit({"event": "operation", "operation": operation, **asdict(latency)})
    emit({"event": "summary", "operations": len(latencies)})


def query(
    path: TablePath,
    where: Where = None,
    select: Select = None,
    order_by: OrderBy = None,
    limit: Limit = 20,
    version: Version = None,
    timestamp: Timestamp = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Include soft-deleted rows.")] = False,
    vertical: Vertical = False,
    spec_file: TableSpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table, at any version."""
    rows = open_table(path, spec_file).query().at(version, timestamp)
    rows = rows.with_deleted() if deleted else rows
    print_query(_refined(rows, where, select, order_by, limit), vertical, as_json)


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A single SELECT statement; tables are quoted paths.")],
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="Table name for the query, as name=path; repeatable.")
    ] = None,
    limit: Limit = 100,
    vertical: Vertical = False,
    spec_file: TableSpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a SELECT statement over one or more tables. Read-only."""
    from headrace.table.sql import select_tables

    result = select_tables(query, lambda path: open_table(path, spec_file), name_values(tables))
    print_sql_result(result, limit, vertical, as_json)


def changes(
    path: TablePath,
    start: Annotated[str, typer.Option("--from", help="First version, or an RFC 3339 timestamp.")],
    until: Annotated[
        str | None, typer.Option("--to", help="Last version or timestamp. Default: the latest version.")
    ] = None,
    where: Where = None,
    select: Select = None,
    order_by: OrderBy = None,
    limit: Limit = 20,
    vertical: Vertical = False,
    spec_file: TableSpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Show row changes between versions (change data feed)."""
    last = None if until is None else _version_or_time(until)
    rows = open_table(path, spec_file).changes(_version_or_time(start), last)
    print_query(_refined(rows, where, select, order_by, limit), vertical, as_json)


def _refined(
    query: RowQuery, where: str | None, select: list[str] | None, order_by: list[str] | None, limit: int
) -> RowQuery:
    for text in select or ():
        name, equals, expression = text.partition("=")
        query = query.select(**{name.strip(): expression}) if equals else query.select(text)
    query = query.where(where) if where else query
    query = query.order_by(*order_by) if order_by else query
    return query.limit(limit) if limit else query


def _version_or_time(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
