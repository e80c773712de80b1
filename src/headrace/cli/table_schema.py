"""`headrace table create`, `set-properties`, `update-schema` and `enable-feature`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import file_content, name_values, open_table, storage_profile
from headrace.cli.confirm import confirmed
from headrace.cli.options import AsJson, DirectCommit, PartitionColumns, Properties, TablePath, TableSpecFile, Yes
from headrace.cli.table_output import (
    print_client_access,
    print_enabled_feature,
    print_list,
    print_result,
    print_schema_change,
)
from headrace.errors import UsageError

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

# Irreversible properties: a shorter retention deletes versions, and a feature locks out older readers and writers.
_RETENTION = (
    "delta.checkpointRetentionDuration",
    "delta.deletedFileRetentionDuration",
    "delta.enableExpiredLogCleanup",
    "delta.logRetentionDuration",
)
_FEATURES = ("delta.checkpointPolicy", "delta.columnMapping.", "delta.enable", "delta.feature.", "delta.min")


def create(
    path: TablePath,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="Column as 'name type', or 'name type!' for NOT NULL; repeatable."),
    ] = None,
    schema: SchemaFile = None,
    partition_by: PartitionColumns = None,
    properties: Properties = None,
    spec_file: TableSpecFile = None,
    as_json: AsJson = False,
) -> None:
    """Create an empty table. An existing table must have the same columns."""
    from headrace.table import Table

    if bool(column) == (schema is not None):
        raise UsageError("No columns specified.", hint="Specify either --column or --schema.")
    columns = _schema(schema) if schema else _columns(column or [])
    table = Table.get_or_create(path, columns, partition_by or (), name_values(properties), storage_profile(spec_file))
    print_result("create", table.path, {"version": table.resolve(), "columns": len(columns)}, as_json)


def set_properties(
    path: TablePath,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Table property as name=value; repeatable.")
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(help="Property to remove; repeatable.")] = None,
    yes: Yes = False,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Set or remove table properties. Asks for confirmation if the change is irreversible."""
    from headrace.delta.properties import check_properties

    properties = {**name_values(assignments), **dict.fromkeys(unset or ())}
    if not properties:
        raise UsageError("No property specified.", hint="Use --set name=value or --unset name.")
    check_properties({name: value for name, value in properties.items() if value is not None})
    table = open_table(path, spec_file, direct_commit)
    if irreversible := _irreversible(properties, table.metadata()):
        if not as_json:
            print_list(f"{table.path}: irreversible changes:", irreversible)
        if not confirmed("Apply?", yes, as_json):
            return
    info = table.set_properties(properties)
    print_result("set-properties", info.path, {"version": info.version, "properties": dict(info.properties)}, as_json)


def _irreversible(properties: Mapping[str, str | None], info: TableInfo) -> list[str]:
    """Irreversible property changes as text; only Spark can enable features."""
    from headrace.delta.features import WriterKind

    prefixes = (*_RETENTION, *_FEATURES) if info.writer != WriterKind.DIRECT else _RETENTION
    return [
        f"{name}: {info.properties.get(name, 'not set')} → {'not set' if value is None else value}"
        for name, value in properties.items()
        if name.startswith(prefixes)
    ]


def update_schema(
    path: TablePath,
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
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Add columns and comments, or apply the columns of a file.

    Asks for confirmation before columns are widened, renamed or dropped.
    """
    from headrace.table.schema_changes import SchemaChange

    table = open_table(path, spec_file, direct_commit)
    change = SchemaChange(
        _columns(add or []) or None,
        name_values(comment) or None,
        _columns(widen or []) or None,
        name_values(rename) or None,
        tuple(drop or ()),
    )
    columns = _schema(schema) if schema else None
    if (columns is None) == (change == SchemaChange()):
        raise UsageError("No columns specified.", hint="Specify individual changes, or all columns with --schema.")
    if not _confirm_change(table, change, columns, yes, as_json):
        return
    info = table.update_schema(
        columns, add=change.add, comment=change.comment, widen=change.widen, rename=change.rename, drop=change.drop
    )
    print_result("update-schema", info.path, {"version": info.version, "columns": len(info.schema)}, as_json)


def enable_feature(
    path: TablePath,
    feature: Annotated[
        str,
        typer.Argument(
            metavar="FEATURE", help="columnMapping, to rename and drop columns, or typeWidening, to widen them."
        ),
    ],
    yes: Yes = False,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Enable a table feature that schema changes require. From then on, only Spark writes the table.

    Shows which clients can read and write the table before and afterwards, and asks for confirmation.
    """
    table = open_table(path, spec_file, direct_commit)
    plan = table.enable_feature(feature, dry_run=True)
    if plan.before == plan.after:
        print_enabled_feature(table.path, plan, as_json)
        return
    if not as_json:
        print_client_access(table.path, plan)
    if confirmed(f"Enable {feature}? This cannot be undone.", yes, as_json):
        print_enabled_feature(table.path, table.enable_feature(feature), as_json)


def _confirm_change(table: Table, change: SchemaChange, columns: pa.Schema | None, yes: bool, as_json: bool) -> bool:
    """Ask for confirmation before irreversible changes, which only tables written by Spark allow."""
    from headrace.delta.features import WriterKind
    from headrace.table.ownership import existing_table
    from headrace.table.schema_changes import change_to

    if table.metadata().writer == WriterKind.DIRECT:
        return True
    plan = change if columns is None else change_to(existing_table(table._store), columns)
    if not (plan.widen or plan.rename or plan.drop):
        return True
    if not as_json:
        print_schema_change(table.path, plan)
    return confirmed("Apply?", yes, as_json)


def _columns(texts: list[str]) -> dict[str, str]:
    """Parse columns into names and types."""

    pairs = [text.strip().partition(" ") for text in texts]
    if invalid := [text for text, (_, space, _) in zip(texts, pairs, strict=True) if not space]:
        raise UsageError(f"Invalid column: '{invalid[0]}'.", hint="Use 'name type', such as 'id bigint'.")
    columns = {name: kind for name, _, kind in pairs}
    if len(columns) < len(texts):
        raise UsageError("Duplicate column.", hint="Specify each column once.")
    return columns


def _schema(file: str) -> pa.Schema:
    """Parse all columns of a table from a file."""
    import json

    import pyarrow as pa

    try:
        content = json.loads(file_content(file))
    except ValueError as error:
        raise UsageError(f"{file} is not valid JSON: {error}.") from None
    if isinstance(content, dict):
        content = [{"name": name, "type": kind} for name, kind in content.items()]
    try:
        return pa.schema([_field(**column) for column in content])
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"Cannot parse columns in {file}: {error}.", hint='Use {"name": "type"}, or [{"name": …, "type": …}].'
        ) from None


def _field(name: str, type: str, nullable: bool = True, comment: str | None = None) -> pa.Field:
    """Column in the format of `info --json`."""
    from headrace.table.schema_changes import schema_of

    field = schema_of({name: type}).field(0)
    return field.with_nullable(field.nullable and nullable).with_metadata({"comment": comment} if comment else None)
