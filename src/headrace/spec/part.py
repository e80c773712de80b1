"""What all parts of the spec share: frozen, closed, and exact about what is wrong."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Part(BaseModel):
    """A mapping of the spec: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False, hide_input_in_errors=True)


class Wrong(ValueError):
    """A rule between keys is broken: which key, what was seen, what is allowed."""

    def __init__(self, key: str, seen: str, allowed: str) -> None:
        super().__init__(f"{seen}; {allowed}")
        self.key, self.seen, self.allowed = key, seen, allowed


def exactly_one(part: Part, *names: str) -> None:
    """Refuse a part in which not exactly one of the keys is given."""
    given = [name for name in names if name in _given(part)]
    if len(given) != 1:
        wanted = f"exactly one of {', '.join(names)}"
        raise Wrong("", f"both {' and '.join(given)}" if given else "none of them", wanted)


def _given(part: Part) -> frozenset[str]:
    fields = type(part).model_fields
    return frozenset(fields[name].alias or name for name in part.model_fields_set if getattr(part, name) is not None)


def word_or_mapping(value: Any) -> str:
    """Which of two forms a value has: a single word, or a mapping."""
    return "word" if isinstance(value, str) else "mapping"


class Shorthand:
    """Says in the JSON Schema that a shorter form is taken, too."""

    def __init__(self, **schema: Any) -> None:
        self.schema = schema

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The short form beside the long one."""
        return {"anyOf": [self.schema, handler(core)]}
