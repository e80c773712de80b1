"""Base class and helpers shared by all spec models."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema


class SpecModel(BaseModel):
    """Mapping in a spec: immutable; unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


class InvalidValue(ValueError):
    """A value of a spec is invalid: the expected value, a message, and a suggestion."""

    def __init__(
        self, expected: str, *, message: str = "", key: str = "", options: Collection[str] = (), suggestion: str = ""
    ) -> None:
        super().__init__(expected)
        self.expected, self.message, self.suggestion = expected, message, suggestion
        self.key, self.options = key, options


def exactly_one(part: SpecModel, *names: str) -> None:
    """Raise InvalidValue unless exactly one of the keys is set."""
    keys = [name for name in names if getattr(part, name) is not None]
    if len(keys) != 1:
        message = f"{' and '.join(keys)} together" if keys else f"none of {', '.join(names)}"
        raise InvalidValue(f"exactly one of {', '.join(names)}", message=message)


def word_or_mapping(value: Any) -> str:
    """Form of a value: `word` for a scalar, `mapping` for a mapping."""
    return "mapping" if isinstance(value, dict | SpecModel) else "word"


def model_keys(part: type[SpecModel]) -> dict[str, FieldInfo]:
    """Fields of a model by spec key (the alias where there is one)."""
    return {field.alias or name: field for name, field in part.model_fields.items()}


def parts_in(annotation: Any) -> Iterator[type[SpecModel]]:
    """Spec models that a field's type can hold."""
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        yield annotation
    for inner in get_args(annotation):
        yield from parts_in(inner)


def names_parts(annotation: Any) -> bool:
    """Whether the field is a mapping from user-defined names to spec models."""
    if get_origin(annotation) is Mapping:
        return any(parts_in(annotation))
    return any(names_parts(inner) for inner in get_args(annotation))


class Shorthand:
    """JSON Schema annotation for a field that also accepts a short form."""

    def __init__(self, **schema: Any) -> None:
        self.schema = schema

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Schema that accepts the short form or the full form."""
        return {"anyOf": [self.schema, handler(core)]}
