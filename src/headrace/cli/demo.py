"""`headrace demo`: an end-to-end demo with an embedded Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console import emit
from headrace.cli.options import AsJson


def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory for the demo.")] = Path(
        "headrace-demo"
    ),
    records: Annotated[int, typer.Option(help="Number of events to produce.", min=100, max=10_000_000)] = 30_000,
    as_json: AsJson = False,
) -> None:
    """Run an end-to-end demo with a local Kafka broker.

    Produces sample events, some of them invalid, and streams them into Delta tables.
    """
    from headrace.cli.output import EventOutput
    from headrace.dev.demo import Demo, demo_text

    with EventOutput(as_json) as output:
        summary = Demo(folder, records, output).run()
    emit({"event": "summary", **summary}) if as_json else typer.echo(demo_text(summary))
    if not summary["proven"]:
        raise typer.Exit(1)
