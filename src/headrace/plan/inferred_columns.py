"""What records gave a table: columns with their types, and those that could only be kept as JSON text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.decode.inference import Structure, text_reasons
from headrace.plan.route_schema import RouteSchema
from headrace.spec.types import type_name
from headrace.transform.steps import Transform

_SHOWN = 12  # columns that a sentence names


@dataclass(frozen=True)
class InferredColumns:
    """Columns that a table gets because records have them."""

    table: str
    columns: Mapping[str, str]  # types by name
    json_text: Mapping[str, str] = field(default_factory=dict)  # why, by column or a field of it

    def event(self, pipeline: str) -> dict[str, Any]:
        """As an event."""
        said = {"table": self.table, "columns": dict(self.columns), "json_text": dict(self.json_text)}
        return {"event": "columns", "pipeline": pipeline, **said, "text": str(self)}

    def __str__(self) -> str:
        named = [f"{name} {kind}" for name, kind in self.columns.items()]
        more = f", and {len(named) - _SHOWN:,} more" if len(named) > _SHOWN else ""
        text = f"{self.table}: columns inferred from records: {', '.join(named[:_SHOWN])}{more}"
        kept = [f"{name} is stored as JSON text because its values are {why}" for name, why in self.json_text.items()]
        return "; ".join([text, *kept])


def inferred_columns(
    known: Collection[str], after: RouteSchema | None, structure: Structure, transform: Transform
) -> InferredColumns | None:
    """The columns that a structure of records adds to those known of a table; None when it adds none."""
    ends = {name: transform.renamed(name) for name in structure.get("fields", {})}
    added = [item for item in (after.table if after else ()) if item.name not in known and item.name in ends.values()]
    if after is None or not added:
        return None
    columns = {item.name: type_name(item.type) for item in added}
    text: dict[str, str] = {}
    for name, why in text_reasons(structure).items():
        field_name, dot, inner = name.partition(".")
        if (end := ends.get(field_name)) in columns:
            text[f"{end}{dot}{inner}"] = why
    return InferredColumns(after.uri, columns, text)
