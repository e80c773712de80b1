"""`headrace kafka`: a local single-node Kafka broker for development."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console import say_progress


def kafka(
    folder: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Data directory of the broker.")] = Path(
        "headrace-kafka"
    ),
    port: Annotated[int, typer.Option(help="Port on the loopback interface.", min=1, max=65535)] = 9092,
) -> None:
    """Run a local single-node Kafka broker for development.

    Runs until stopped (Ctrl-C or SIGTERM).
    """
    from headrace.cli.signals import stops_on_signals
    from headrace.dev.kafka import Broker

    stop = threading.Event()
    with stops_on_signals(stop), Broker.start(folder.absolute(), port=port, progress=say_progress) as broker:
        typer.echo(f"Kafka is listening on localhost:{port}; data directory: {folder}. Press Ctrl-C to stop.")
        broker.wait(stop)
