"""One record, many rows: the list whose elements become rows, and what of the record they keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from headrace.spec.base import Shorthand, SpecModel


def _by_name(given: Any) -> Any:
    """Names alone keep their names."""
    return {name: name for name in given} if isinstance(given, list | tuple) else given


def named_list(given: Any) -> Any:
    """A list's name alone, as the mapping it stands for."""
    return {"column": given} if isinstance(given, str) else given


class Explode(SpecModel):
    """A list of the record whose elements become rows of the table."""

    column: str = Field(min_length=1, max_length=255, description="The list: a field at the top of the record's value.")
    keep: Annotated[Mapping[str, str], BeforeValidator(_by_name), Shorthand(type="array", items={"type": "string"})] = (
        Field(
            default_factory=dict,
            description="Fields of the record that every one of its rows gets: a list of names, or `{column: field}` "
            "for other names and for fields deeper down (`a.b`).",
        )
    )
    position: str | None = Field(
        default=None, min_length=1, description="A column for the element's place in its list, counted from 0."
    )
    empty: Literal["skip", "row"] = Field(
        default="skip",
        description="A list that is NULL or empty makes no row, or one `row` whose element columns are NULL.",
    )

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that are no part of an element."""
        return (*self.keep, *([self.position] if self.position else []))
