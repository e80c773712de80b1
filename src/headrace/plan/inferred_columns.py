"""Inferred columns of a table, and those that are stored as JSON text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.decode.inference import Structure, text_reasons
from headrace.plan.route_schema import RouteSchema
from headrace.spec.types import type_name
from headrace.transform.steps import Transform

_MAX_NAMES = 12  # columns in a message


@dataclass(frozen=True)
class InferredColumns:
    """Columns added to a table by schema inference."""

    table: str
    columns: Mapping[str, str]  # types by name
    json_text: Mapping[str, str] = field(default_factory=dict)  # reasons by column or nested field

    def event(self, pipeline: str) -> dict[str, Any]:
        """Event for the output."""
        fields = {"table": self.table, "columns": dict(self.columns), "json_text": dict(self.json_text)}
        return {"event": "columns", "pipeline": pipeline, **fields, "text": str(self)}

    def __str__(self) -> str:
        columns = [f"{name} {kind}" for name, kind in self.columns.items()]
        more = f", and {len(columns) - _MAX_NAMES:,} more" if len(columns) > _MAX_NAMES else ""
        text = f"{self.table}: columns inferred from records: {', '.join(columns[:_MAX_NAMES])}{more}"
        as_text = [
            f"{name} is stored as JSON text because its values are {reason}" for name, reason in self.json_text.items()
        ]
        return "; ".join([text, *as_text])


def inferred_columns(
    existing: Collection[str], after: RouteSchema | None, structure: Structure, transform: Transform
) -> InferredColumns | None:
    """Columns that an inferred schema adds to a table; None if it adds none."""
    ends = {name: transform.renamed(name) for name in structure.get("fields", {})}
    added = [
        item for item in (after.table if after else ()) if item.name not in existing and item.name in ends.values()
    ]
    if after is None or not added:
        return None
    columns = {item.name: type_name(item.type) for item in added}
    text: dict[str, str] = {}
    for name, reason in text_reasons(structure).items():
        field_name, dot, inner = name.partition(".")
        if (end := ends.get(field_name)) in columns:
            text[f"{end}{dot}{inner}"] = reason
    return InferredColumns(after.uri, columns, text)
