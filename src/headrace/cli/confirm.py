"""Confirmation prompt."""

from __future__ import annotations

import typer

from headrace.errors import UsageError


def confirmed(question: str, yes: bool, as_json: bool) -> bool:
    """Ask for confirmation; with --json, --yes is required instead."""
    if not yes and as_json:
        raise UsageError("Cannot ask for confirmation with --json.", hint="Add --yes.")
    return yes or typer.confirm(question)
