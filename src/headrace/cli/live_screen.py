"""The live view of `headrace top`: a screen of its own, whose lines are replaced in place."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from headrace.cli.pipeline_table import table_lines
from headrace.errors import plural

if TYPE_CHECKING:
    from headrace.serve.live_pipelines import LivePipelines

_KEY_INTERVAL = 0.2  # seconds between checks for a signal to stop


def show_live(
    live: LivePipelines, read: Callable[[], LivePipelines], every: float, stop: threading.Event, output: Console
) -> None:
    """Show pipelines until a key or a signal ends it; every some seconds those that `read` returns."""
    with _keyboard() as keyboard, Live(console=output, screen=True, auto_refresh=False) as screen:
        while not stop.is_set():
            screen.update(_page(live, output), refresh=True)
            _wait(keyboard, every, stop)
            live = live if stop.is_set() else read()


def _page(live: LivePipelines, output: Console) -> Group:
    """As many lines as fit the screen."""
    first, *lines = table_lines(live, output.width)
    first.append("  q quits", style="dim")
    room = output.height - 2
    if len(lines) > room:
        lines = [*lines[: room - 1], Text(f"… {plural(len(lines) - room + 1, 'more line')}", style="dim")]
    for line in (first, *lines):
        line.no_wrap, line.overflow = True, "crop"
    return Group(first, Text(), *lines)


def _wait(keyboard: int | None, seconds: float, stop: threading.Event) -> None:
    """Wait for the next update; `q` sets `stop`."""
    deadline = time.monotonic() + seconds
    while not stop.is_set() and (left := deadline - time.monotonic()) > 0:
        if keyboard is None:
            stop.wait(left)
        elif select.select([keyboard], [], [], min(left, _KEY_INTERVAL))[0]:
            keys = os.read(keyboard, 64)
            if not keys or b"q" in keys.lower():  # nothing: the terminal is closed
                stop.set()


@contextmanager
def _keyboard() -> Iterator[int | None]:
    """Standard input, whose keys arrive at once and are not shown; None if it is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
