"""Explode: write one row for each element of an array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from headrace.spec.base import Shorthand, SpecModel


def _by_name(value: Any) -> Any:
    """Expand a list of names to a mapping of names to themselves."""
    return {name: name for name in value} if isinstance(value, list | tuple) else value


def expand_array_name(value: Any) -> Any:
    """Expand an array's name to a mapping."""
    return {"column": value} if isinstance(value, str) else value


class Explode(SpecModel):
    """Array field of the record whose elements become rows."""

    column: str = Field(
        min_length=1, max_length=255, description="Array to explode; a top-level field of the record value."
    )
    keep: Annotated[Mapping[str, str], BeforeValidator(_by_name), Shorthand(type="array", items={"type": "string"})] = (
        Field(
            default_factory=dict,
            description="Fields of the record to copy into each row: a list of names, or `{column: field}` to "
            "rename fields or to copy nested fields (`a.b`).",
        )
    )
    position: str | None = Field(
        default=None, min_length=1, description="Column for the index of the element in the array, starting at 0."
    )
    empty: Literal["skip", "row"] = Field(
        default="skip",
        description="Handling of a NULL or empty array: write no row, or one `row` with NULL in the element columns.",
    )

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that do not come from an element."""
        return (*self.keep, *([self.position] if self.position else []))
