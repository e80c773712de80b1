"""`headrace table`: commands for Delta tables. Spark starts only for tables that require it."""

from __future__ import annotations

import typer

from headrace.cli.table_maintain import checkpoint, drop, optimize, repair, restore, vacuum
from headrace.cli.table_read import changes, history, info, list_tables, metrics, query, sql, stats
from headrace.cli.table_rows import delete, insert, update, upsert
from headrace.cli.table_schema import create, enable_feature, set_properties, update_schema

app = typer.Typer(
    name="table",
    help="Inspect, change, maintain and repair Delta tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("list")(list_tables)
for _commands in (
    (info, stats, history, metrics, query, sql, changes),
    (optimize, vacuum, checkpoint, repair, restore, drop),
    (create, set_properties, update_schema, enable_feature, insert, upsert, delete, update),
):
    for _command in _commands:
        app.command()(_command)
