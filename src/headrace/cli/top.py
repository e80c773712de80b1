"""`headrace top`: a live view of the pipelines of running processes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.console import console, emit
from headrace.cli.options import AsJson
from headrace.cli.signals import stops_on_signals
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.serve.live_pipelines import LivePipelines

Read = Callable[[], "LivePipelines"]


def top(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Show the pipelines of an HTTP endpoint, such as http://127.0.0.1:9187, instead of the processes on "
            "this machine. The token is that of HEADRACE_VIEWER_TOKEN.",
        ),
    ] = None,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="Send the token to other hosts over unencrypted connections.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.1, max=3600)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show running pipelines, live.

    Ends with `q` or Ctrl-C. Without a terminal, it prints a table at each update.
    """
    read = _source(url, plaintext)
    live = read()  # an error of the URL or the token ends the command
    output = console()
    stop = threading.Event()
    with stops_on_signals(stop):
        if as_json or once or not output.is_terminal or output.is_dumb_terminal:
            _print_repeatedly(live, None if once else read, every, stop, as_json)
        else:
            from headrace.cli.live_screen import show_live

            show_live(live, lambda: _read_again(read), every, stop, output)


def _source(url: str | None, plaintext: bool) -> Read:
    from headrace.serve.live_pipelines import EndpointClient, pipelines_of_processes

    if url is None:
        return pipelines_of_processes
    from headrace.serve.access import tokens_from

    return EndpointClient(url, tokens_from(os.environ), plaintext).pipelines


def _read_again(read: Read) -> LivePipelines:
    """Read, with an error as a warning: what does not answer now may answer later."""
    from headrace.serve.live_pipelines import LivePipelines

    try:
        return read()
    except HeadraceError as error:
        return LivePipelines([], [error.message])


def _print_repeatedly(
    live: LivePipelines, read: Read | None, every: float, stop: threading.Event, as_json: bool
) -> None:
    """Print now, and at each update if there is `read`."""
    try:
        _print(live, as_json)
        while read is not None and not stop.wait(every):
            _print(_read_again(read), as_json)
    except BrokenPipeError:  # the reader, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(live: LivePipelines, as_json: bool) -> None:
    if as_json:
        for event in live.events():
            emit(event)
        return
    from headrace.cli.pipeline_table import table_lines

    lines = [line.plain.rstrip() for line in table_lines(live, console().width)]
    typer.echo("\n".join([*lines, ""]))
