"""Transform steps: SQL, JMESPath and masking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from headrace.spec.base import Shorthand, SpecModel, exactly_one, word_or_mapping
from headrace.spec.secrets import Secret
from headrace.spec.units import Flag, Integer


def _null_word(value: Any) -> Any:
    """Convert a YAML null to the word `null`."""
    return "null" if value is None else value


def _form(value: Any) -> str:
    """Form of a `jmespath` value. A target may itself be named `set`; its expression is then text."""
    targets = value.set if isinstance(value, Jmespath) else value.get("set") if isinstance(value, Mapping) else None
    return "options" if isinstance(targets, Mapping) else "targets"


_Query = Annotated[str, BeforeValidator(_null_word), Shorthand(type="null")]
_Queries = Annotated[Mapping[str, _Query], Field(min_length=1)]


class Jmespath(SpecModel):
    """JMESPath expressions with options."""

    set: _Queries = Field(
        description="JMESPath expressions over the original message, by target column (dotted for nested fields)."
    )
    on_null: Annotated[Literal["keep", "drop", "null"], BeforeValidator(_null_word), Shorthand(type="null")] = Field(
        default="keep",
        description="Handling of a null result: `keep` the existing value, `drop` the target from the row, or "
        "set it to `null`.",
    )
    allow_missing: Flag = Field(
        default=False,
        description="Read fields that no message has as null, as in kafka-delta-ingest, instead of stopping the first "
        "batch (`UnknownColumn`).",
    )


class KeepSpec(SpecModel):
    """Part of the text to keep; exactly one key."""

    first: Integer | None = Field(default=None, ge=1, le=1000, description="Number of leading characters to keep.")
    last: Integer | None = Field(default=None, ge=1, le=1000, description="Number of trailing characters to keep.")

    @model_validator(mode="after")
    def _check_keys(self) -> KeepSpec:
        exactly_one(self, "first", "last")
        return self


class MaskBy(SpecModel):
    """Replacement for a value; exactly one key. NULL stays NULL."""

    sha256: Secret | None = Field(
        default=None,
        description="Replace the value by its HMAC-SHA-256 as hexadecimal text, with this key of at least 16 "
        "bytes, given as a reference. Equal values have equal hashes, which cannot be reversed or "
        "recomputed without the key.",
    )
    redact: str | None = Field(default=None, max_length=255, description="Replace the value by this text.")
    keep: KeepSpec | None = Field(
        default=None,
        description="Keep the beginning or the end of the text and replace the rest by `***`; shorter texts "
        "become `***`.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> MaskBy:
        exactly_one(self, "sha256", "redact", "keep")
        return self


Masked = Annotated[
    Annotated[Literal["redact", "null"], Tag("word")] | Annotated[MaskBy, Tag("mapping")],
    Discriminator(word_or_mapping),
    BeforeValidator(_null_word),
    Shorthand(type="null"),
]


class StepSpec(SpecModel):
    """Transform step; exactly one key."""

    set: Mapping[str, str] | None = Field(
        default=None, min_length=1, description="Columns to add or replace: SQL expressions by column name."
    )
    where: str | None = Field(
        default=None, description="SQL predicate; rows for which it is not true are dropped and counted as filtered."
    )
    drop: tuple[str, ...] | None = Field(default=None, min_length=1, description="Columns to drop.")
    rename: Mapping[str, str] | None = Field(
        default=None, min_length=1, description="Columns to rename: new names by old name."
    )
    jmespath: (
        Annotated[
            Annotated[_Queries, Tag("targets")] | Annotated[Jmespath, Tag("options")],
            Discriminator(_form),
        ]
        | None
    ) = Field(
        default=None,
        description="Columns to add with JMESPath, as in kafka-delta-ingest: `{target: expression}`, or "
        "`{set: {…}, …}` with options.",
    )
    mask: Mapping[str, Masked] | None = Field(
        default=None,
        min_length=1,
        description="Columns or nested fields (`a.b`) to mask: `redact` (`***`), `null` (the column type does "
        "not change), `{sha256: …}`, `{redact: …}` or `{keep: …}`.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> StepSpec:
        exactly_one(self, "set", "where", "drop", "rename", "jmespath", "mask")
        return self

    @property
    def queries(self) -> Mapping[str, str]:
        """JMESPath expressions by target, from either form."""
        return self.jmespath.set if isinstance(self.jmespath, Jmespath) else self.jmespath or {}

    @property
    def allows_missing(self) -> bool:
        """Whether the JMESPath expressions may read fields that no message has."""
        return isinstance(self.jmespath, Jmespath) and self.jmespath.allow_missing
