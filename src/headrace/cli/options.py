"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="Spec file.", exists=True, dir_okay=False)]
SpecFiles = Annotated[list[Path], typer.Argument(metavar="SPECS", help="Spec files.", exists=True, dir_okay=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines to stdout.")]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done without doing it.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the lease instead of exiting with code 3.")]

# ---- headrace table ----

TablePath = Annotated[str, typer.Argument(metavar="PATH", help="Table path: a directory, or s3://bucket/path.")]
TableSpec = Annotated[
    Path | None,
    typer.Option(
        "--spec", help="Spec file to take the storage settings and the state path from.", exists=True, dir_okay=False
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
PartitionBy = Annotated[list[str] | None, typer.Option(help="Partition column of a new table; repeatable.")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", help="Property of a new table, as name=value; repeatable.")
]
