"""Columns of a Delta table in PostgreSQL: their types, and which other types of an existing table hold every value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.schema import SOURCE
from headrace.spec.types import TIMESTAMP, TIMESTAMP_NTZ

_TYPES: Mapping[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    TIMESTAMP: "timestamp with time zone",
    TIMESTAMP_NTZ: "timestamp without time zone",
}
_WIDER: Mapping[str, tuple[str, ...]] = {
    "smallint": ("integer", "bigint", "numeric"),
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "real": ("double precision", "numeric"),
    "double precision": ("numeric",),
    "text": ("character varying", "jsonb", "json", "uuid"),
    "jsonb": ("json", "text"),
}
_INTEGERS = ("smallint", "integer", "bigint")
_WIDENED: Mapping[str, tuple[str, ...]] = {
    "smallint": ("integer", "bigint", "double precision"),
    "integer": ("bigint", "double precision"),
    "real": ("double precision",),
    "date": ("timestamp without time zone",),
}
_SIZED = re.compile(r"(numeric|character varying)\((\d+)(?:,(\d+))?\)")
_MIN_MICROSECOND = -210_866_803_200_000_000  # since 1970; 4714-11-24 BC
_MIN_DAY, _END_DAY = -2_440_588, 2_145_042_906  # since 1970; 4714-11-24 BC to 5874898-01-01


@dataclass(frozen=True, slots=True)
class HotColumn:
    """A column: its type in Delta, in the staging table and in the hot table."""

    name: str
    kind: pa.DataType
    staged: str
    type: str

    @property
    def max_length(self) -> int | None:
        """Maximum number of characters, of `character varying(n)`."""
        match = _SIZED.fullmatch(self.type)
        return int(match[2]) if match and match[1] == "character varying" else None


def hot_type(kind: pa.DataType) -> str:
    """The type of a column in a new table; nested types are `jsonb`."""
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return _TYPES.get(kind, "jsonb")


def hot_column(item: pa.Field, actual: str) -> HotColumn | None:
    """The column for a type that PostgreSQL reports; None if that type cannot hold every value unchanged."""
    expected = hot_type(item.type)
    match = _SIZED.fullmatch(actual)
    base = match[1] if match else actual
    if pa.types.is_decimal(item.type):
        digits = (item.type.precision, item.type.scale)
        if base != "numeric" or (match and not _holds(digits, _digits(actual))):
            return None
    elif actual != expected and (base not in _WIDER.get(expected, ()) or (match and base == "numeric")):
        return None
    # A double is cast to numeric by 15 digits, its text by all of them.
    is_text = (
        pa.types.is_decimal(item.type) or expected == "jsonb" or (expected != actual == "numeric" and _is_float(item))
    )
    return HotColumn(item.name, item.type, "text" if is_text else expected, actual)


def must_widen(actual: str, wanted: str) -> bool:
    """Whether a column of the hot table must become wider, as Delta's type widening has made the Delta column."""
    if actual.startswith("numeric(") and wanted.startswith("numeric("):
        return actual != wanted and _holds(_digits(actual), _digits(wanted))
    return wanted in _WIDENED.get(actual, ()) or (actual in _INTEGERS and wanted.startswith("numeric("))


def _is_float(item: pa.Field) -> bool:
    return bool(pa.types.is_floating(item.type))


def _digits(numeric: str) -> tuple[int, int]:
    """Precision and scale of `numeric(p,s)`."""
    precision, _, scale = numeric[8:-1].partition(",")
    return int(precision), int(scale or 0)


def _holds(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    """Whether a precision and scale has all digits of another, on both sides of the point."""
    return outer[1] >= inner[1] and outer[0] - outer[1] >= inner[0] - inner[1]


def data_fields(schema: pa.Schema) -> list[pa.Field]:
    """The columns of a Delta table without `_source`, which has columns of its own."""
    return [item for item in schema if item.name != SOURCE.name]


def unstorable_values(column: HotColumn, values: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Reasons for which PostgreSQL refuses values of the column, with a mask of these values."""
    if pa.types.is_string(column.kind):
        yield "contains the character U+0000", pc.match_substring(values, "\0")
        if column.max_length is not None:
            # A longer text is an error, unless the rest is blanks: those would be cut.
            yield (
                f"is longer than {column.max_length} characters",
                pc.greater(pc.utf8_length(values), column.max_length),
            )
    if pa.types.is_timestamp(column.kind):
        yield "is before 4714-11-24 BC", pc.less(values.cast(pa.int64()), _MIN_MICROSECOND)
    if pa.types.is_date(column.kind):
        days = values.cast(pa.int32())
        yield "is out of range", pc.or_(pc.less(days, _MIN_DAY), pc.greater_equal(days, _END_DAY))
