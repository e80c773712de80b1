"""`headrace demo`: an end-to-end demo with an embedded Kafka."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console import emit
from headrace.cli.listen import ANY_PORT, endpoint, listen_options, new_console
from headrace.cli.options import AsJson


class DemoMaster(StrEnum):
    """Where Spark runs in the demo."""

    LOCAL = "local"
    CLUSTER = "cluster"


def _serve(url: str, spec: str) -> None:
    """Print the address of the console, and serve it until Ctrl-C if there is someone who can press it."""
    is_watched = sys.stdin.isatty() and sys.stdout.isatty()
    typer.echo("Press Ctrl-C to end the console." if is_watched else f"To start it again: headrace console {spec}")
    typer.echo(f"Console: {url}")
    if not is_watched:
        return
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory for the demo.")] = Path(
        "headrace-demo"
    ),
    records: Annotated[int, typer.Option(help="Number of events to produce.", min=100, max=10_000_000)] = 30_000,
    master: Annotated[
        DemoMaster, typer.Option(help="Run Spark in this process, or on a standalone cluster of two workers.")
    ] = DemoMaster.LOCAL,
    with_console: Annotated[
        bool,
        typer.Option(
            "--console",
            help="Serve the web console at a free port of 127.0.0.1; in a terminal until Ctrl-C, otherwise until the "
            "demo ends.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run an end-to-end demo with a local Kafka broker.

    Produces sample events, some of them invalid, and streams them into Delta tables.
    """
    from headrace.cli.output import EventOutput
    from headrace.dev.demo import Demo, demo_text
    from headrace.serve.monitor import Monitor
    from headrace.serve.redaction import Redaction

    redaction = Redaction()
    monitor = Monitor(on_add=redaction.add)
    options = listen_options(ANY_PORT, None, None, False, False, None) if with_console else None
    console = new_console(with_console, options, monitor, redaction)
    with endpoint(options, monitor, console=console) as url:
        with EventOutput(as_json) as output:
            if url is not None:
                output.endpoint(url, has_console=True)
            on_cluster = master is DemoMaster.CLUSTER
            services = [] if console is None else [console.control]
            summary = Demo(folder, records, output, on_cluster=on_cluster, monitor=monitor, services=services).run()
        emit({"event": "summary", **summary}) if as_json else typer.echo(demo_text(summary))
        if url is not None and not as_json:
            _serve(url, summary["spec"])
    if not summary["counts_match"]:
        raise typer.Exit(1)
