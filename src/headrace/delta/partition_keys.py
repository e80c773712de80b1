"""Partitions as keys that are equal where the typed values are."""

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
    """Every partition that rows have values of, as keys; also of values that could not be stored."""
    few = rows.select(partition_by).group_by(list(partition_by), use_threads=False).aggregate([])
    columns = [[_text(value, item.type) for value in few[item.name]] for item in few.schema]
    return {tuple(zip(few.column_names, values, strict=True)) for values in zip(*columns, strict=True)}


def _spelling(kind: pa.DataType) -> tuple[pa.DataType, Callable[[Any], str | None]]:
    """The type to look at a value in, and how it is then written."""
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
    """The partitions of one table as keys: equal where the typed values are, whoever wrote them, in whatever order.

    A key is the partition as Headrace itself writes it. Floats are told apart by their bits, so -0.0 is not 0.0.
    """

    columns: tuple[pa.Field, ...]

    @classmethod
    def of(cls, schema: pa.Schema, partition_by: Iterable[str]) -> Self:
        """Those of a table with these columns."""
        return cls(tuple(schema.field(name) for name in partition_by))

    def __call__(self, values: Mapping[str, str | None]) -> Partition:
        """The key of a file's `partitionValues`."""
        return tuple((item.name, _canonical(partition_text(values, item), item)) for item in self.columns)


@lru_cache(maxsize=1 << 14)
def _canonical(text: str | None, item: pa.Field) -> str | None:
    return _text(partition_value(text, item), item.type)


def _text(value: pa.Scalar, kind: pa.DataType) -> str | None:
    physical, spell = _spelling(kind)
    return spell(value.cast(physical).as_py()) if value.is_valid else None


def _zoned_text(micros: int) -> str | None:
    # The form without a zone is read in the reader's own zone: another instant on every machine.
    text = instant_text(micros)
    return None if text is None else f"{text}Z"


def _local_text(micros: int) -> str | None:
    return instant_text(micros, " ")


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
