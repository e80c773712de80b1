"""Partition keys that are equal if the typed values of the partitions are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import pyarrow as pa

from headrace.delta.partition_values import partition_text, partition_value
from headrace.delta.value_text import day_text, instant_text

Partition = tuple[tuple[str, str | None], ...]


def partitions_in(rows: pa.Table, partition_by: Sequence[str]) -> set[Partition]:
    """The keys of all partitions in rows, also of values that cannot be stored."""
    distinct = rows.select(partition_by).group_by(list(partition_by), use_threads=False).aggregate([])
    columns = [[_text(value, item.type) for value in distinct[item.name]] for item in distinct.schema]
    return {tuple(zip(distinct.column_names, values, strict=True)) for values in zip(*columns, strict=True)}


def text_format(kind: pa.DataType) -> tuple[pa.DataType, Callable[[Any], str | None]]:
    """The physical type of a partition value, and the function that formats it as text."""
    if pa.types.is_boolean(kind):
        return kind, lambda value: str(value).lower()
    if pa.types.is_floating(kind):
        return kind, _float_text
    if pa.types.is_decimal(kind):
        return kind, lambda value: f"{value:f}"
    if pa.types.is_date32(kind):
        return pa.int32(), day_text
    if pa.types.is_timestamp(kind):
        return pa.int64(), _zoned_text if kind.tz else _local_text
    if pa.types.is_binary(kind):
        return kind, lambda value: "".join(f"\\u{byte:04X}" for byte in value)
    return kind, str


@dataclass(frozen=True, slots=True)
class PartitionKeys:
    """The keys of one table's partitions: equal if the typed values are, whichever writer formatted them.

    A key has the values in Headrace's own format. Floats are compared by their bits, so -0.0 is not 0.0.
    """

    columns: tuple[pa.Field, ...]

    @classmethod
    def of(cls, schema: pa.Schema, partition_by: Iterable[str]) -> Self:
        """The keys for a table with these columns."""
        return cls(tuple(schema.field(name) for name in partition_by))

    def __call__(self, values: Mapping[str, str | None]) -> Partition:
        """The key of a file's `partitionValues`."""
        return tuple((item.name, _canonical(partition_text(values, item), item)) for item in self.columns)


@lru_cache(maxsize=1 << 14)
def _canonical(text: str | None, item: pa.Field) -> str | None:
    return _text(partition_value(text, item), item.type)


def _text(value: pa.Scalar, kind: pa.DataType) -> str | None:
    physical, to_text = text_format(kind)
    return to_text(value.cast(physical).as_py()) if value.is_valid else None


def _zoned_text(micros: int) -> str | None:
    # Readers take a timestamp without zone in their own zone: another instant on every machine.
    text = instant_text(micros)
    return None if text is None else f"{text}Z"


def _local_text(micros: int) -> str | None:
    return instant_text(micros, " ")


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
