"""`headrace demo`: the whole way on embedded parts, bounded in time, ending with the proof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Argument(help="Where the demo's lake is made.")] = Path("headrace-demo"),
    records: Annotated[int, typer.Option(help="How many events to produce.", min=100, max=10_000_000)] = 30_000,
    as_json: Annotated[bool, typer.Option("--json", help="Events and a summary as JSON lines on stdout.")] = False,
) -> None:
    """Start a real Kafka, produce events of three types with some bad ones, and stream them into Delta tables."""
    from headrace.cli.output import EventOutput, emit
    from headrace.dev.demo import Demo, words

    with EventOutput(as_json) as show:
        done = Demo(folder, records, show).run()
    emit({"event": "summary", **done}) if as_json else typer.echo(words(done))
    if not done["proven"]:
        raise typer.Exit(1)
