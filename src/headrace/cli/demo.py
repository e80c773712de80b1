"""`headrace demo`: an end-to-end demo with an embedded Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Argument(help="Directory for the demo.")] = Path("headrace-demo"),
    records: Annotated[int, typer.Option(help="Number of events to produce.", min=100, max=10_000_000)] = 30_000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events and a summary as JSON lines to stdout.")
    ] = False,
) -> None:
    """Start a local Kafka broker, produce sample events (some invalid), and stream them into Delta tables."""
    from headrace.cli.output import EventOutput, emit
    from headrace.dev.demo import Demo, words

    with EventOutput(as_json) as show:
        done = Demo(folder, records, show).run()
    emit({"event": "summary", **done}) if as_json else typer.echo(words(done))
    if not done["proven"]:
        raise typer.Exit(1)
