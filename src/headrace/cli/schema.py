"""`headrace schema`: JSON Schema of the spec, for editors."""

from __future__ import annotations

import typer


def schema() -> None:
    """Print the JSON Schema of the spec, for use in editors."""
    from headrace.spec.json_schema import json_schema_text

    typer.echo(json_schema_text(), nl=False)
