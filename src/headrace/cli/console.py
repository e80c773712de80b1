"""Console for human-readable output: colored on a terminal, plain text otherwise or with NO_COLOR."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import typer

from headrace.cli.values import cell, cell_text

if TYPE_CHECKING:  # imported where it is used: the help of every command imports this module
    from rich.console import Console

_UNLIMITED = 1_000_000  # columns


def console(*, stderr: bool = False) -> Console:
    """Console that writes no escape codes to pipes, files, or terminals with NO_COLOR.

    Only a terminal has a width: in a pipe or a file, nothing is wrapped or cut.
    """
    from rich.console import Console

    colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    console = Console(stderr=stderr, highlight=False, color_system=colors)
    if not console.is_terminal:
        console.width = _UNLIMITED
    return console


def say(text: str, style: str = "", *, head: str = "", stderr: bool = False) -> None:
    """Print one line without wrapping, with a styled prefix."""
    from rich.text import Text

    line = Text.assemble((head, style), (text, "" if head else style))
    console(stderr=stderr).print(line, soft_wrap=True)


def emit(event: Mapping[str, Any]) -> None:
    """Print one JSON object as a line on stdout."""
    sys.stdout.write(json.dumps(event, default=cell_text) + "\n")
    sys.stdout.flush()


def say_progress(line: str) -> None:
    """Print a line to stderr, which keeps stdout for results."""
    typer.echo(line, err=True)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[str] = ()) -> None:
    """Print rows as aligned columns, numeric ones right-aligned; lines wrap on terminals only."""
    from rich.markup import escape
    from rich.table import Table as Grid

    grid = Grid(box=None)
    for title in titles:
        grid.add_column(escape(cell(title)), justify="right" if title in numbers else "left")
    for row in rows:
        grid.add_row(*(escape(_text(value)) for value in row))
    console().print(grid)


def table_width(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Number of terminal columns that a table needs."""
    from rich.cells import cell_len

    return sum(max(map(cell_len, column)) + 2 for column in zip(titles, *rows, strict=True))


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else cell(value)
