"""`headrace kafka`: a local single-node Kafka broker for development."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer


def kafka(
    folder: Annotated[Path, typer.Argument(help="Data directory of the broker.")] = Path("headrace-kafka"),
    port: Annotated[int, typer.Option(help="Port on the loopback interface.", min=1, max=65535)] = 9092,
) -> None:
    """Run a local single-node Kafka broker for development, until stopped (Ctrl-C or SIGTERM)."""
    from headrace.cli.run import ends_when_asked
    from headrace.dev.kafka import Broker

    stop = threading.Event()
    with ends_when_asked(stop), Broker.start(folder.absolute(), port=port, progress=_say) as broker:
        typer.echo(f"Kafka is listening on localhost:{port}; data directory: {folder}. Press Ctrl-C to stop.")
        broker.wait(stop)


def _say(line: str) -> None:
    typer.echo(line, err=True)
