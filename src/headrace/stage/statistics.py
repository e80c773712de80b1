"""Delta's statistics of one file: counts and bounds, such that data skipping never hides a row from a reader.

A file with the ids 7, 9, NULL and the doubles 1.5, NaN, 2.5 has

    {"numRecords":3,"minValues":{"id":7},"maxValues":{"id":9},"nullCount":{"id":1,"x":0}}

`x` has no bounds: readers disagree on the order of NaN, and one that takes 2.5 for the maximum would skip the file for
`x > 3`, which NaN satisfies in Spark. For the same reason long strings are cut so that the bound stays a bound: a
minimum is cut to 32 characters, a maximum is cut and its last character increased ("aaa…ab" for "aaa…aaz").
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.value_text import day_text, instant_text

PREFIX = 32  # maximum length of a string bound in characters
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)

Path = tuple[str, ...]
Tree = dict[str, Any]  # quoted names to JSON text, or to a nested tree


@dataclass(frozen=True, slots=True)
class BoundKind:
    """Conversion of a type's bounds from a Parquet footer to JSON text; None if there is no bound."""

    value: Callable[[Any], Any]  # from the physical value to one that Python orders correctly
    low: Callable[[Any], str | None]
    high: Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One column of the statistics: a field of a struct is a leaf of its own, a list or map is one leaf."""

    path: Path
    keys: Path  # the path as JSON text
    type: pa.DataType
    column: int | None  # its index in the footer; None if the footer's statistics cannot be used
    kind: BoundKind | None  # None: the type has no bounds

    @property
    def floating(self) -> bool:
        """Whether the column has floats, whose bounds in a footer ignore NaN."""
        return bool(pa.types.is_floating(self.type))


def decimal_text(unscaled: int, scale: int) -> str:
    """The exact digits of a decimal: (-5, 2) is -0.05."""
    digits = f"{abs(unscaled):0{scale + 1}d}"
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' if unscaled < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"


def text_above(value: str) -> str | None:
    """An upper bound of at most 32 characters for a string; None if there is none.

    A longer string is cut and its last character increased, so that every string with the prefix is below the bound.
    U+10FFFF cannot be increased, so it is cut as well; surrogates are not characters, so they are skipped.
    """
    if len(value) <= PREFIX:
        return value
    prefix = value[:PREFIX].rstrip(chr(_LAST_CODE_POINT))
    if not prefix:
        return None
    code_point = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(_SURROGATES.stop if code_point in _SURROGATES else code_point)


def _quoted(text: str | None) -> str | None:
    return None if text is None else json.dumps(text, ensure_ascii=False)


def _day(days: int) -> str | None:
    return _quoted(day_text(days))


def _instant(zone: str, micros: int) -> str | None:
    text = instant_text(micros)
    return None if text is None else f'"{text}{zone}"'


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _unscaled(raw: int | bytes) -> int:
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw


def _finite(value: float) -> str | None:
    return repr(value) if math.isfinite(value) else None  # JSON has no infinity: no bound on that side


def _low_text(raw: bytes) -> str | None:
    return _quoted(raw.decode()[:PREFIX])


def _high_text(raw: bytes) -> str | None:
    return _quoted(text_above(raw.decode()))


def _same(raw: Any) -> Any:
    return raw


def _kind(kind: pa.DataType) -> BoundKind | None:
    """The conversion of a type; None for types that readers do not skip by: binary, lists, maps."""
    if pa.types.is_boolean(kind):  # Spark ignores them; delta-rs writes them, too
        return BoundKind(_same, _truth, _truth)
    if pa.types.is_integer(kind):
        return BoundKind(_same, str, str)
    if pa.types.is_floating(kind):
        return BoundKind(_same, _finite, _finite)
    if pa.types.is_string(kind):
        return BoundKind(_same, _low_text, _high_text)
    if pa.types.is_date32(kind):
        return BoundKind(_same, _day, _day)
    if pa.types.is_timestamp(kind):
        write = partial(_instant, "Z" if kind.tz else "")
        return BoundKind(_same, write, write)
    if pa.types.is_decimal(kind):
        exact = partial(decimal_text, scale=kind.scale)
        return BoundKind(_unscaled, exact, exact)
    return None


@lru_cache(maxsize=1024)
def parquet_columns(schema: pa.Schema) -> tuple[tuple[Path, pa.DataType], ...]:
    """The leaf columns of a Parquet file in order, with their paths in the file."""
    return tuple(_columns(schema, ()))


def _columns(fields: Iterable[pa.Field], above: Path) -> Iterator[tuple[Path, pa.DataType]]:
    for item in fields:
        path, kind = (*above, item.name), item.type
        if pa.types.is_struct(kind):
            yield from _columns(kind, path)
        elif pa.types.is_map(kind):
            yield from _columns([kind.key_field, kind.item_field], (*path, "key_value"))
        elif pa.types.is_list(kind):
            yield from _columns([kind.value_field.with_name("element")], (*path, "list"))
        else:
            yield path, kind


@lru_cache(maxsize=1024)
def leaves(schema: pa.Schema, limit: int) -> tuple[Leaf, ...]:
    """The columns with statistics: the first `limit` leaves of a schema, or all if it is negative."""
    indices = {path: index for index, (path, _) in enumerate(parquet_columns(schema))}
    columns = tuple(_leaves(schema, (), indices))
    return columns if limit < 0 else columns[:limit]


def _leaves(fields: Iterable[pa.Field], above: Path, indices: dict[Path, int]) -> Iterator[Leaf]:
    for item in fields:
        path = (*above, item.name)
        if pa.types.is_struct(item.type):
            yield from _leaves(item.type, path, indices)
        else:
            index = None if pa.types.is_floating(item.type) else indices.get(path)
            keys = tuple(json.dumps(name, ensure_ascii=False) for name in path)
            yield Leaf(path, keys, item.type, index, _kind(item.type))


class FileStatistics:
    """Collects the statistics of one file: from the footer, or from the rows where the footer has none."""

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        self._leaves = leaves
        self._from_rows = tuple(leaf for leaf in leaves if leaf.column is None)
        self._nulls = dict.fromkeys((leaf.path for leaf in self._from_rows), 0)
        self._bounds: dict[Path, tuple[Any, Any] | None] = {}

    def add(self, rows: pa.Table) -> None:
        """Add the rows of a row group."""
        for leaf in self._from_rows:
            column = column_at(rows, leaf.path)
            self._nulls[leaf.path] += column.null_count
            if leaf.floating and column.null_count < len(column):
                bounds = _float_bounds(column)
                self._bounds[leaf.path] = _union(self._bounds.get(leaf.path, bounds), bounds)

    def to_json(self, footer: Any) -> str:
        """The statistics as JSON text, after the file was closed with this footer."""
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        lows: Tree = {}
        highs: Tree = {}
        nulls: Tree = {}
        for leaf in self._leaves:
            count, bounds = self._nulls_and_bounds(leaf, groups)
            _insert(nulls, leaf.keys, None if count is None else str(count))
            if leaf.kind is not None and bounds is not None:
                _insert(lows, leaf.keys, leaf.kind.low(bounds[0]))
                _insert(highs, leaf.keys, leaf.kind.high(bounds[1]))
        bounds_and_nulls = f'"minValues":{_write(lows)},"maxValues":{_write(highs)},"nullCount":{_write(nulls)}'
        return f'{{"numRecords":{footer.num_rows},{bounds_and_nulls}}}'

    def _nulls_and_bounds(self, leaf: Leaf, groups: list[Any]) -> tuple[int | None, tuple[Any, Any] | None]:
        if leaf.column is None:
            return self._nulls[leaf.path], self._bounds.get(leaf.path)
        statistics = [group.column(leaf.column).statistics for group in groups]
        if any(item is None or not item.has_null_count for item in statistics):
            return None, None
        return sum(item.null_count for item in statistics), _footer_bounds(leaf, statistics)


def column_at(rows: pa.Table, path: Path) -> Any:
    """A column at a path of structs, NULL where a struct is NULL; None for a path into a list or map."""
    column = rows.column(path[0])
    for name in path[1:]:
        if not pa.types.is_struct(column.type):
            return None
        column = pc.struct_field(column, name)
    return column


def _float_bounds(column: pa.ChunkedArray) -> tuple[float, float] | None:
    """None if there is a NaN, which readers order differently. A zero is -0.0 as minimum and 0.0 as maximum."""
    if pc.any(pc.is_nan(column)).as_py():
        return None
    bounds = pc.min_max(column).as_py()
    return (bounds["min"] or -0.0, bounds["max"] or 0.0)


def _footer_bounds(leaf: Leaf, statistics: list[Any]) -> tuple[Any, Any] | None:
    """The bounds of all row groups; None if a row group with values has no bounds."""
    if leaf.kind is None:
        return None
    filled = [item for item in statistics if item.num_values > 0]
    if not filled or not all(item.has_min_max for item in filled):
        return None
    lows = [leaf.kind.value(item.min_raw) for item in filled]
    highs = [leaf.kind.value(item.max_raw) for item in filled]
    return min(lows), max(highs)


def _union(first: tuple[Any, Any] | None, second: tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    if first is None or second is None:
        return None
    return min(first[0], second[0]), max(first[1], second[1])


def _insert(tree: Tree, path: Path, text: str | None) -> None:
    if text is None:
        return
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = text


def _write(tree: Tree) -> str:
    """Leaves are JSON text already, so that the digits of a decimal never become a float."""
    return (
        "{" + ",".join(f"{key}:{item if isinstance(item, str) else _write(item)}" for key, item in tree.items()) + "}"
    )
