"""Console for human-readable output: colored on a terminal, plain text otherwise or with NO_COLOR."""

from __future__ import annotations

import os
from typing import Literal

from rich.console import Console
from rich.text import Text


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Console that writes no escape codes to pipes, files, or terminals with NO_COLOR."""
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(stderr=stderr, highlight=False, width=width, color_system=colours)


def say(text: str, style: str = "", *, head: str = "", stderr: bool = False) -> None:
    """Print one line without wrapping, with a styled prefix."""
    line = Text.assemble((head, style), (text, "" if head else style))
    console(stderr=stderr).print(line, soft_wrap=True)
