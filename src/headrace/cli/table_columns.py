"""`headrace table create`, `set-properties` and `update-schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
    from collections.abc import Mapping

    import pyarrow as pa

    from headrace.table import Table, TableInfo
    from headrace.table.schema_changes import SchemaChange

SchemaFile = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="FILE", help="JSON file with all columns: names and types, or a list as in `info --json`."
    ),
]

# Properties whose change cannot be taken back: what they let go is gone; other readers and writers stay away for good.
_KEPT = (
    "delta.checkpointRetentionDuration",
    "delta.deletedFileRetentionDuration",
    "delta.enableExpiredLogCleanup",
    "delta.logRetentionDuration",
)
_FEATURES = ("delta.checkpointPolicy", "delta.columnMapping.", "delta.enable", "delta.feature.", "delta.min")


def add_to(app: typer.Typer) -> None:
    """Add the commands to the group."""
    app.command()(create)
    app.command("set-properties")(set_properties)
    app.command("update-schema")(update_schema)


def create(
    path: Place,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="Column as 'name type', or 'name type!' for NOT NULL; repeatable."),
    ] = None,
    schema: SchemaFile = None,
    partition_by: Annotated[list[str] | None, typer.Option(help="Partition column; repeatable.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="Table property as name=value; repeatable.")
    ] = None,
    spec: SpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Create an empty table. An existing table must have the same columns."""
    from headrace.errors import UsageError
    from headrace.table import Table

    if bool(column) == (schema is not None):
        raise UsageError("No columns specified.", hint="Specify either --column or --schema.")
    columns = _schema(schema) if schema else columns_of(column or [])
    made = Table.get_or_create(path, columns, partition_by or (), pairs_of(properties), storage_of(spec))
    concluded("create", made.path, {"version": made.resolve(), "columns": len(columns)}, as_json)


def set_properties(
    path: Place,
    given: Annotated[list[str] | None, typer.Option("--set", help="Table property as name=value; repeatable.")] = None,
    unset: Annotated[list[str] | None, typer.Option(help="Property to remove; repeatable.")] = None,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Set or remove table properties. Asks for confirmation if the change is irreversible."""
    from headrace.cli.confirm import agreed
    from headrace.cli.table_show import list_text
    from headrace.delta.properties import check_properties
    from headrace.errors import UsageError

    wanted = {**pairs_of(given), **dict.fromkeys(unset or ())}
    if not wanted:
        raise UsageError("No property specified.", hint="Use --set name=value or --unset name.")
    check_properties({name: value for name, value in wanted.items() if value is not None})
    table = open_table(path, spec, direct_commit)
    if lasting := _lasting(wanted, table.metadata()):
        if not as_json:
            list_text(f"{table.path}: irreversible changes:", lasting)
        if not agreed("Apply?", yes, as_json):
            return
    after = table.set_properties(wanted)
    concluded("set-properties", after.path, {"version": after.version, "properties": dict(after.properties)}, as_json)


def _lasting(wanted: Mapping[str, str | None], about: TableInfo) -> list[str]:
    """Irreversible property changes as text; only Spark can enable features."""
    from headrace.delta.features import WriterKind

    lasting = (*_KEPT, *_FEATURES) if about.writer != WriterKind.DIRECT else _KEPT
    return [
        f"{name}: {about.properties.get(name, 'not set')} → {'not set' if value is None else value}"
        for name, value in wanted.items()
        if name.startswith(lasting)
    ]


def update_schema(
    path: Place,
    add: Annotated[list[str] | None, typer.Option(help="New column as 'name type'; repeatable.")] = None,
    comment: Annotated[list[str] | None, typer.Option(help="Column comment as column=text; repeatable.")] = None,
    widen: Annotated[
        list[str] | None, typer.Option(help="New type as 'name type'; requires the typeWidening feature.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(help="Rename as old=new; requires the columnMapping feature.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to drop; requires the columnMapping feature.")] = None,
    schema: SchemaFile = None,
    yes: Yes = False,
    spec: SpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Add columns and comments, or apply the columns of a file.

    Asks for confirmation before columns are widened, renamed or dropped.
    """
    from headrace.errors import UsageError
    from headrace.table.schema_changes import SchemaChange

    table = open_table(path, spec, direct_commit)
    change = SchemaChange(
        columns_of(add or []) or None,
        pairs_of(comment) or None,
        columns_of(widen or []) or None,
        pairs_of(rename) or None,
        tuple(drop or ()),
    )
    whole = _schema(schema) if schema else None
    if (whole is None) == (change == SchemaChange()):
        raise UsageError("No columns specified.", hint="Specify individual changes, or all columns with --schema.")
    if not _agreed(table, change, whole, yes, as_json):
        return
    after = table.update_schema(
        whole, add=change.add, comment=change.comment, widen=change.widen, rename=change.rename, drop=change.drop
    )
    concluded("update-schema", after.path, {"version": after.version, "columns": len(after.schema)}, as_json)


def _agreed(table: Table, change: SchemaChange, whole: pa.Schema | None, yes: bool, as_json: bool) -> bool:
    """Ask for confirmation before irreversible changes, which only tables written by Spark allow."""
    from headrace.cli.confirm import agreed
    from headrace.cli.table_show import plan_text
    from headrace.delta.features import WriterKind
    from headrace.table.ownership import existing_table
    from headrace.table.schema_changes import towards

    if table.metadata().writer == WriterKind.DIRECT:
        return True
    plan = change if whole is None else towards(existing_table(table._store), whole)
    if not (plan.widen or plan.rename or plan.drop):
        return True
    if not as_json:
        plan_text(table.path, plan)
    return agreed("Apply?", yes, as_json)


def columns_of(texts: list[str]) -> dict[str, str]:
    """Parse columns into names and types."""
    from headrace.errors import UsageError

    pairs = [text.strip().partition(" ") for text in texts]
    if strange := [text for text, (_, space, _) in zip(texts, pairs, strict=True) if not space]:
        raise UsageError(f"Invalid column: '{strange[0]}'.", hint="Use 'name type', such as 'id bigint'.")
    columns = {name: kind for name, _, kind in pairs}
    if len(columns) < len(texts):
        raise UsageError("Duplicate column.", hint="Specify each column once.")
    return columns


def _schema(file: str) -> pa.Schema:
    """Parse all columns of a table from a file."""
    import json

    import pyarrow as pa

    from headrace.errors import UsageError

    try:
        said = json.loads(content(file))
    except ValueError as error:
        raise UsageError(f"{file} is not valid JSON: {error}.") from None
    listed = [{"name": name, "type": kind} for name, kind in said.items()] if isinstance(said, dict) else said
    try:
        return pa.schema([_field(**each) for each in listed])
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"Cannot parse columns in {file}: {error}.", hint='Use {"name": "type"}, or [{"name": …, "type": …}].'
        ) from None


def _field(name: str, type: str, nullable: bool = True, comment: str | None = None) -> pa.Field:
    """Column in the format of `info --json`."""
    from headrace.table.schema_changes import schema_of

    item = schema_of({name: type}).field(0)
    return item.with_nullable(item.nullable and nullable).with_metadata({"comment": comment} if comment else None)
