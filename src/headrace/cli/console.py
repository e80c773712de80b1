"""Where commands write for people: in colour on a terminal, plain text elsewhere and with NO_COLOR."""

from __future__ import annotations

import os
from typing import Literal

from rich.console import Console
from rich.text import Text


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that sends no escape codes to pipes and files, nor to a terminal when NO_COLOR is set."""
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(stderr=stderr, highlight=False, width=width, color_system=colours)


def say(text: str, style: str = "", *, head: str = "", stderr: bool = False) -> None:
    """One line as it is, its head in a style; never wrapped, so that it can be searched and copied."""
    line = Text.assemble((head, style), (text, "" if head else style))
    console(stderr=stderr).print(line, soft_wrap=True)
