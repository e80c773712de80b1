"""What a table is partitioned by: a column's value, or a day, an hour or a bucket that is made from one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from headrace.spec.base import InvalidValue, SpecModel, exactly_one, word_or_mapping
from headrace.spec.units import Whole

_ENDINGS = {"date": "date", "hour": "hour", "hash": "bucket"}


class PartitionBy(SpecModel):
    """A partition column that is made from another column; exactly one of `date`, `hour` and `hash`."""

    date: str | None = Field(
        default=None,
        min_length=1,
        description="A timestamp column, or `_timestamp` for the record's own: its day in UTC (`date`).",
    )
    hour: str | None = Field(
        default=None, min_length=1, description="As `date`: its hour of the day in UTC, 0 to 23 (`int`)."
    )
    hash: str | None = Field(
        default=None,
        min_length=1,
        description="A column of texts or whole numbers: which of `buckets` its value falls into (`int`, from 0).",
    )
    buckets: Whole | None = Field(default=None, ge=2, le=10_000, description="How many buckets, for `hash`.")
    name: str | None = Field(
        default=None,
        alias="as",
        min_length=1,
        description="What the column is called; `<column>_date`, `_hour` or `_bucket` without it.",
    )

    @model_validator(mode="after")
    def _one(self) -> PartitionBy:
        exactly_one(self, "date", "hour", "hash")
        if (self.hash is None) != (self.buckets is None):
            raise InvalidValue("buckets with hash", message="one of hash and buckets without the other")
        return self

    @property
    def kind(self) -> Literal["date", "hour", "hash"]:
        """How the column is made."""
        return "date" if self.date else "hour" if self.hour else "hash"

    @property
    def origin(self) -> str:
        """The column that it is made from."""
        return self.date or self.hour or self.hash or ""

    @property
    def column(self) -> str:
        """The column that it is."""
        return self.name or f"{self.origin.lstrip('_')}_{_ENDINGS[self.kind]}"


Partitioning = Annotated[
    Annotated[str, Field(min_length=1), Tag("word")] | Annotated[PartitionBy, Tag("mapping")],
    Discriminator(word_or_mapping),
]


def column_of(by: str | PartitionBy) -> str:
    """The partition column that an entry stands for."""
    return by if isinstance(by, str) else by.column
