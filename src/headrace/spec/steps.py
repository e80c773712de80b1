"""The steps of a transform: SQL, JMESPath, masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from headrace.spec.base import Shorthand, SpecModel, exactly_one, word_or_mapping
from headrace.spec.secrets import Secret
from headrace.spec.units import Whole


def _null_word(value: Any) -> Any:
    """YAML's null, where the word is meant."""
    return "null" if value is None else value


def _form(value: Any) -> str:
    """Which of the two forms of `jmespath` a value has; a target may be called `set`, its expression is a text."""
    given = value.set if isinstance(value, Jmespath) else value.get("set") if isinstance(value, Mapping) else None
    return "options" if isinstance(given, Mapping) else "targets"


Query = Annotated[str, BeforeValidator(_null_word), Shorthand(type="null")]
Queries = Annotated[Mapping[str, Query], Field(min_length=1)]


class Jmespath(SpecModel):
    """JMESPath expressions with an option."""

    set: Queries = Field(description="Targets, dotted or not, and JMESPath expressions over the message as it came.")
    on_null: Annotated[Literal["keep", "drop", "null"], BeforeValidator(_null_word), Shorthand(type="null")] = Field(
        default="keep",
        description="A result is null: `keep` the target as it is, `drop` it from the row, or set it to `null`.",
    )


class KeepSpec(SpecModel):
    """The end of a text that stays readable; exactly one of its keys."""

    first: Whole | None = Field(default=None, ge=1, le=1000, description="So many characters at its beginning.")
    last: Whole | None = Field(default=None, ge=1, le=1000, description="So many characters at its end.")

    @model_validator(mode="after")
    def _one(self) -> KeepSpec:
        exactly_one(self, "first", "last")
        return self


class MaskBy(SpecModel):
    """What is stored in place of a value; exactly one of its keys. NULL stays NULL."""

    sha256: Secret | None = Field(
        default=None,
        description="HMAC-SHA-256 of the value's text in hex, with this key of 16 bytes or more, by reference: equal "
        "values stay equal, and nobody without the key can tell which they are.",
    )
    redact: str | None = Field(default=None, max_length=255, description="This text.")
    keep: KeepSpec | None = Field(
        default=None, description="One end of the text, `***` for the rest; a text no longer than that is `***`."
    )

    @model_validator(mode="after")
    def _one(self) -> MaskBy:
        exactly_one(self, "sha256", "redact", "keep")
        return self


Masked = Annotated[
    Annotated[Literal["redact", "null"], Tag("word")] | Annotated[MaskBy, Tag("mapping")],
    Discriminator(word_or_mapping),
    BeforeValidator(_null_word),
    Shorthand(type="null"),
]


class StepSpec(SpecModel):
    """One step of the transform; exactly one of its keys."""

    set: Mapping[str, str] | None = Field(
        default=None, min_length=1, description="Columns to make or replace: name and SQL expression."
    )
    where: str | None = Field(
        default=None, description="Keep rows for which this SQL expression is true; count the others."
    )
    drop: tuple[str, ...] | None = Field(default=None, min_length=1, description="Columns to leave out.")
    rename: Mapping[str, str] | None = Field(
        default=None, min_length=1, description="Columns to rename: old name, new name."
    )
    jmespath: (
        Annotated[
            Annotated[Queries, Tag("targets")] | Annotated[Jmespath, Tag("options")],
            Discriminator(_form),
        ]
        | None
    ) = Field(
        default=None,
        description="Columns to make by JMESPath, as kafka-delta-ingest does: `{target: expression}`, or "
        "`{set: {…}, on_null: …}`.",
    )
    mask: Mapping[str, Masked] | None = Field(
        default=None,
        min_length=1,
        description="Columns, or fields inside of them (`a.b`), whose values are not stored as they are: `redact` "
        "(`***`), `null` (the column keeps its type), or `{sha256: …}`, `{redact: …}`, `{keep: …}`.",
    )

    @model_validator(mode="after")
    def _one(self) -> StepSpec:
        exactly_one(self, "set", "where", "drop", "rename", "jmespath", "mask")
        return self

    @property
    def queries(self) -> Mapping[str, str]:
        """Targets and JMESPath expressions, in either form."""
        return self.jmespath.set if isinstance(self.jmespath, Jmespath) else self.jmespath or {}
