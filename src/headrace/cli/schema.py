"""`headrace schema`: the spec's JSON Schema, for editors."""

from __future__ import annotations

import typer


def schema() -> None:
    """Print the JSON Schema of a spec; point your editor's YAML support at it."""
    from headrace.spec.json_schema import json_schema_text

    typer.echo(json_schema_text(), nl=False)
