"""`headrace table optimize`, `vacuum`, `checkpoint`, `repair`, `restore` and `drop`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import open_table
from headrace.cli.confirm import confirmed
from headrace.cli.console import say
from headrace.cli.options import AsJson, DirectCommit, DryRun, TablePath, TableSpecFile, Timestamp, Version, Yes
from headrace.cli.table_output import damage_event, print_damage, print_list, print_result, repair_fields
from headrace.errors import UsageError, plural

if TYPE_CHECKING:
    from headrace.table import Repaired


def optimize(
    path: TablePath,
    where: Annotated[
        str | None, typer.Option(help="SQL predicate over partition columns; only matching partitions.")
    ] = None,
    target_size: Annotated[str | None, typer.Option(help="Target size of files, such as 128MB.")] = None,
    min_file_size: Annotated[
        str | None, typer.Option(help="Compact files below this size. Default: 75 % of the target size.")
    ] = None,
    max_file_size: Annotated[
        str | None, typer.Option(help="Split files above this size, at least twice the target size.")
    ] = None,
    z_order: Annotated[list[str] | None, typer.Option(help="Z-order column; repeatable.")] = None,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Compact small files into larger ones. Concurrent appends are allowed."""
    table = open_table(path, spec_file, direct_commit)
    result = table.optimize(
        where,
        _size("target-size", target_size),
        z_order or (),
        min_file_size=_size("min-file-size", min_file_size),
        max_file_size=_size("max-file-size", max_file_size),
    )
    print_result("optimize", table.path, asdict(result), as_json)


def vacuum(
    path: TablePath,
    retain: Annotated[str, typer.Option(help="Retention period, such as 168h.")] = "168h",
    force: Annotated[
        bool, typer.Option("--force", help="Allow a retention shorter than the table's, based on the local clock.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Delete files that are no longer referenced.

    Keeps the files of versions within the retention period. Shows what will be deleted and asks for confirmation.
    """

    table = open_table(path, spec_file, direct_commit)
    plan = table.vacuum(retain, dry_run=True, force=force)
    if not as_json:
        print_list(f"{table.path}: {plural(len(plan.files), 'file')} ({plan.bytes:,} bytes) to delete", plan.files)
    deleted = bool(plan.files) and not dry_run and confirmed("Delete permanently?", yes, as_json)
    result = table.vacuum(retain, force=force) if deleted else plan
    if as_json:
        fields = {"deleted": deleted, "files": len(result.files), "bytes": result.bytes, "paths": list(result.files)}
        print_result("vacuum", table.path, fields, as_json)
    else:
        say(f"{table.path}: vacuum: deleted {plural(len(result.files) if deleted else 0, 'file')}")


def checkpoint(
    path: TablePath, spec_file: TableSpecFile = None, direct_commit: DirectCommit = False, as_json: AsJson = False
) -> None:
    """Write a checkpoint of the Delta log."""
    table = open_table(path, spec_file, direct_commit)
    print_result("checkpoint", table.path, {"version": table.checkpoint()}, as_json)


def repair(
    path: TablePath,
    deep: Annotated[bool, typer.Option("--deep", help="Read files completely, not only their footers.")] = False,
    reingest: Annotated[
        bool, typer.Option("--reingest", help="Read lost rows again with --spec, if the source still has them.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Remove missing files from the Delta log.

    Reports unreadable files and lost records.
    """

    if reingest and spec_file is None:
        raise UsageError("--reingest requires the spec that wrote the rows.", hint="Specify --spec SPEC.")
    reingest_spec = spec_file if reingest else None
    table = open_table(path, spec_file, direct_commit)
    plan = table.repair(dry_run=True, deep=deep, reingest=reingest_spec)
    if not as_json:
        print_damage(table.path, plan)
    actions = _repair_actions(plan)
    repaired = bool(actions) and not dry_run and confirmed(f"{' and '.join(actions).capitalize()}?", yes, as_json)
    result = table.repair(deep=deep, reingest=reingest_spec) if repaired else plan
    if as_json or repaired:
        print_result("repair", table.path, damage_event(result) if as_json else repair_fields(result), as_json)
    if plan.unreadable or plan.vectors:
        raise typer.Exit(1)


def _repair_actions(plan: Repaired) -> list[str]:
    remove = ["remove the missing files from the log"] if plan.missing else []
    return remove + (["read the lost rows again"] if plan.reingest and plan.reingest.ranges else [])


def restore(
    path: TablePath,
    version: Version = None,
    timestamp: Timestamp = None,
    yes: Yes = False,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Restore a table to an earlier version.

    Commits a new version, and shows how affected pipelines continue.
    """

    if version is None and timestamp is None:
        raise UsageError("No version specified.", hint="Specify --version or --timestamp.")
    table = open_table(path, spec_file, direct_commit)
    to, now = table.resolve(version, timestamp), table.resolve()
    if not as_json:
        typer.echo(f"{table.path}: restore version {to} (current version: {now})")
    if confirmed("Restore?", yes, as_json):
        result = asdict(table.restore(to))
        if as_json:
            print_result("restore", table.path, result, as_json)
            return
        say(f"{table.path}: restored version {to} as version {result['version']}")
        if result["next"]:
            say(result["next"])


def drop(
    path: TablePath,
    yes: Yes = False,
    spec_file: TableSpecFile = None,
    direct_commit: DirectCommit = False,
    as_json: AsJson = False,
) -> None:
    """Delete a table with all files and its history. Shows its size and asks for confirmation."""

    table = open_table(path, spec_file, direct_commit)
    statistics = table.statistics()
    if not as_json:
        rows = "an unknown number of rows" if statistics.rows is None else plural(statistics.rows, "row")
        files = f"{plural(statistics.files, 'file')} ({statistics.bytes:,} bytes)"
        typer.echo(f"{table.path}: {rows} in {files}, and its history")
    if confirmed("Delete permanently?", yes, as_json):
        print_result("drop", table.path, {"files": table.drop()}, as_json)


def _size(option: str, text: str | None) -> int | None:
    from headrace.spec.units import size

    try:
        return None if text is None else size(text)
    except ValueError as expected:
        raise UsageError(f"--{option}: invalid size: '{text}'.", hint=f"Specify {expected}.") from None
