"""Partition columns: a column's value, or a date, hour or hash bucket derived from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from headrace.spec.base import InvalidValue, SpecModel, exactly_one, word_or_mapping
from headrace.spec.units import Integer

_ENDINGS = {"date": "date", "hour": "hour", "hash": "bucket"}


class PartitionBy(SpecModel):
    """Derived partition column; exactly one of `date`, `hour` and `hash`."""

    date: str | None = Field(
        default=None,
        min_length=1,
        description="Timestamp column, or `_timestamp` for the record timestamp; partitions by its UTC date (`date`).",
    )
    hour: str | None = Field(
        default=None,
        min_length=1,
        description="Same as `date`; partitions by the UTC hour of the day, 0 to 23 (`int`).",
    )
    hash: str | None = Field(
        default=None,
        min_length=1,
        description="String or integer column; partitions by hash bucket, from 0 to `buckets` - 1 (`int`).",
    )
    buckets: Integer | None = Field(
        default=None, ge=2, le=10_000, description="Number of buckets; required with `hash`."
    )
    name: str | None = Field(
        default=None,
        alias="as",
        min_length=1,
        description="Name of the partition column. Default: `<column>_date`, `<column>_hour` or `<column>_bucket`.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> PartitionBy:
        exactly_one(self, "date", "hour", "hash")
        if (self.hash is None) != (self.buckets is None):
            raise InvalidValue("both hash and buckets", message="only one of hash and buckets")
        return self

    @property
    def kind(self) -> Literal["date", "hour", "hash"]:
        """Kind of the derivation."""
        return "date" if self.date else "hour" if self.hour else "hash"

    @property
    def origin(self) -> str:
        """Source column."""
        return self.date or self.hour or self.hash or ""

    @property
    def column(self) -> str:
        """Name of the partition column."""
        return self.name or f"{self.origin.lstrip('_')}_{_ENDINGS[self.kind]}"


Partitioning = Annotated[
    Annotated[str, Field(min_length=1), Tag("word")] | Annotated[PartitionBy, Tag("mapping")],
    Discriminator(word_or_mapping),
]


def column_of(by: str | PartitionBy) -> str:
    """Partition column of an entry."""
    return by if isinstance(by, str) else by.column
