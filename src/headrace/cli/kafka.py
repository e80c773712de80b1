"""`headrace kafka`: a single-node Kafka on this machine, for development."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer


def kafka(
    folder: Annotated[Path, typer.Argument(help="Data folder of the broker.")] = Path("headrace-kafka"),
    port: Annotated[int, typer.Option(help="Port to listen on, on the loopback interface.", min=1, max=65535)] = 9092,
) -> None:
    """Run a single-node Kafka for development until stopped (Ctrl-C or SIGTERM)."""
    from headrace.cli.run import ends_when_asked
    from headrace.dev.kafka import Broker

    stop = threading.Event()
    with ends_when_asked(stop), Broker.start(folder.absolute(), port=port, progress=_say) as broker:
        typer.echo(f"Kafka listens on localhost:{port}; data in {folder}. Press Ctrl-C to stop it.")
        broker.wait(stop)


def _say(line: str) -> None:
    typer.echo(line, err=True)
