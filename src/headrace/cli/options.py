"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="Spec file.", exists=True, dir_okay=False)]
SpecFiles = Annotated[list[Path], typer.Argument(metavar="SPECS", help="Spec files.", exists=True, dir_okay=False)]
SpecPaths = Annotated[
    list[Path], typer.Argument(metavar="SPECS", help="Spec files, or a directory of spec files.", exists=True)
]
CONFIG_PATH = "CONNECTOR_CONFIG_PATH"  # of Danube's sink, whose start command sets nothing else
OF_CONFIG_PATH = f"Default: the file that {CONFIG_PATH} names, as for Danube's sink."
RunPaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="SPECS",
        help=f"Spec files, or a directory of spec files. {OF_CONFIG_PATH}",
        envvar=CONFIG_PATH,
        show_envvar=False,
        exists=True,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines to stdout.")]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done without doing it.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the lease instead of exiting with code 3.")]


def all_spec_files(paths: Sequence[Path]) -> list[Path]:
    """The spec files among the arguments, and those in directories; UsageError for a directory without any."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        from headrace.errors import UsageError
        from headrace.serve.spec_folder import spec_files

        folder_files = list(spec_files(path))
        if not folder_files:
            raise UsageError(f"{path} has no spec files (*.yaml, *.yml).", hint="Specify a spec file or its directory.")
        files += folder_files
    return files


class LogFormat(StrEnum):
    """Format of the log."""

    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        envvar="HEADRACE_LOG_FORMAT",
        help="Write events to stderr as log lines with time and level, as `text` or `json`.",
    ),
]

# ---- headrace table ----

TablePath = Annotated[str, typer.Argument(metavar="PATH", help="Table path: a directory, or s3://bucket/path.")]
TableSpecFile = Annotated[
    Path | None,
    typer.Option(
        "--spec", help="Spec file that provides the storage settings and the state path.", exists=True, dir_okay=False
    ),
]
DirectCommit = Annotated[
    bool,
    typer.Option(
        "--direct-commit",
        help="Commit without Spark although Spark wrote the table last. No Spark writer may use the table from now on.",
    ),
]
Version = Annotated[int | None, typer.Option(help="Table version.", min=0)]
Timestamp = Annotated[str | None, typer.Option(help="Latest version committed at or before this RFC 3339 timestamp.")]
PartitionColumns = Annotated[list[str] | None, typer.Option(help="Partition column of a new table; repeatable.")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", help="Property of a new table, as name=value; repeatable.")
]
