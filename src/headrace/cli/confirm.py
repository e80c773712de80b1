"""Asking a person before something is gone."""

from __future__ import annotations

import typer

from headrace.errors import UsageError


def agreed(question: str, yes: bool, as_json: bool) -> bool:
    """Whether to go on; a program cannot be asked and must say --yes."""
    if not yes and as_json:
        raise UsageError("With --json nobody can be asked.", hint="Say --yes.")
    return yes or typer.confirm(question)
