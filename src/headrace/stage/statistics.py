"""Delta's statistics of one file: counts and bounds that never hide a row from a reader."""

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

PREFIX = 32  # characters of a text that a bound keeps
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)

Path = tuple[str, ...]
Tree = dict[str, Any]  # quoted names to JSON text, or to a tree of the same kind


@dataclass(frozen=True, slots=True)
class BoundKind:
    """How a type's bounds get from a Parquet footer into JSON; None where there is nothing to say."""

    value: Callable[[Any], Any]  # the footer's physical value, as something Python orders rightly
    low: Callable[[Any], str | None]
    high: Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One column of the statistics; structs are walked into, lists and maps are leaves."""

    path: Path
    keys: Path  # the same, as JSON text
    type: pa.DataType
    column: int | None  # its place in the footer, where the footer tells the truth about it
    kind: BoundKind | None  # None: no bounds

    @property
    def floating(self) -> bool:
        """Bounds of floats are ours to find: a footer's ignore NaN."""
        return bool(pa.types.is_floating(self.type))


def decimal_text(unscaled: int, scale: int) -> str:
    """A decimal's exact digits, never by way of a float."""
    digits = f"{abs(unscaled):0{scale + 1}d}"
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' if unscaled < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"


def text_above(value: str) -> str | None:
    """The shortest bound of at most 32 characters that no text with this prefix exceeds; None if there is none."""
    if len(value) <= PREFIX:
        return value
    kept = value[:PREFIX].rstrip(chr(_LAST_CODE_POINT))
    if not kept:
        return None
    raised = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if raised in _SURROGATES else raised)


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
    return repr(value) if math.isfinite(value) else None  # JSON has no infinity: that side stays open


def _low_text(raw: bytes) -> str | None:
    return _quoted(raw.decode()[:PREFIX])


def _high_text(raw: bytes) -> str | None:
    return _quoted(text_above(raw.decode()))


def _same(raw: Any) -> Any:
    return raw


def _kind(kind: pa.DataType) -> BoundKind | None:
    """None for what readers do not skip by: binary, lists, maps."""
    if pa.types.is_boolean(kind):  # Spark reads past them, delta-rs writes them, too
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
    """The columns of a Parquet file in its own order, each with its path in the file."""
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
    """The first `limit` leaves of a file's schema (all, when negative): those that statistics speak of."""
    places = {path: place for place, (path, _) in enumerate(parquet_columns(schema))}
    found = tuple(_leaves(schema, (), places))
    return found if limit < 0 else found[:limit]


def _leaves(fields: Iterable[pa.Field], above: Path, places: dict[Path, int]) -> Iterator[Leaf]:
    for item in fields:
        path = (*above, item.name)
        if pa.types.is_struct(item.type):
            yield from _leaves(item.type, path, places)
        else:
            footed = None if pa.types.is_floating(item.type) else places.get(path)
            keys = tuple(json.dumps(name, ensure_ascii=False) for name in path)
            yield Leaf(path, keys, item.type, footed, _kind(item.type))


class Tally:
    """Gathers one file's statistics: what a footer cannot tell as rows go by, the rest from the footer."""

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        self._leaves = leaves
        self._own = tuple(leaf for leaf in leaves if leaf.column is None)
        self._nulls = dict.fromkeys((leaf.path for leaf in self._own), 0)
        self._bounds: dict[Path, tuple[Any, Any] | None] = {}

    def add(self, rows: pa.Table) -> None:
        """Look at rows on their way into the file."""
        for leaf in self._own:
            column = column_at(rows, leaf.path)
            self._nulls[leaf.path] += column.null_count
            if leaf.floating and column.null_count < len(column):
                self._widen(leaf.path, _float_bounds(column))

    def _widen(self, path: Path, seen: tuple[Any, Any] | None) -> None:
        known = self._bounds.get(path, seen)
        self._bounds[path] = _hull(known, seen)

    def to_json(self, footer: Any) -> str:
        """Delta's statistics of the closed file whose footer this is."""
        groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
        lows: Tree = {}
        highs: Tree = {}
        nulls: Tree = {}
        for leaf in self._leaves:
            count, bounds = self._found(leaf, groups)
            _plant(nulls, leaf.keys, None if count is None else str(count))
            if leaf.kind is not None and bounds is not None:
                _plant(lows, leaf.keys, leaf.kind.low(bounds[0]))
                _plant(highs, leaf.keys, leaf.kind.high(bounds[1]))
        bounds_and_nulls = f'"minValues":{_write(lows)},"maxValues":{_write(highs)},"nullCount":{_write(nulls)}'
        return f'{{"numRecords":{footer.num_rows},{bounds_and_nulls}}}'

    def _found(self, leaf: Leaf, groups: list[Any]) -> tuple[int | None, tuple[Any, Any] | None]:
        if leaf.column is None:
            return self._nulls[leaf.path], self._bounds.get(leaf.path)
        statistics = [group.column(leaf.column).statistics for group in groups]
        if any(item is None or not item.has_null_count for item in statistics):
            return None, None
        return sum(item.null_count for item in statistics), _footer_bounds(leaf, statistics)


def column_at(rows: pa.Table, path: Path) -> Any:
    """A column at any depth of structs, NULL wherever something above it is; None for a path into a list or map."""
    found = rows.column(path[0])
    for name in path[1:]:
        if not pa.types.is_struct(found.type):
            return None
        found = pc.struct_field(found, name)
    return found


def _float_bounds(column: pa.ChunkedArray) -> tuple[float, float] | None:
    """None when there is a NaN, which readers order differently. A zero counts as both of its signs."""
    if pc.any(pc.is_nan(column)).as_py():
        return None
    found = pc.min_max(column).as_py()
    return (found["min"] or -0.0, found["max"] or 0.0)


def _footer_bounds(leaf: Leaf, statistics: list[Any]) -> tuple[Any, Any] | None:
    """Over all row groups; None when one that has values lacks its bounds."""
    if leaf.kind is None:
        return None
    filled = [item for item in statistics if item.num_values > 0]
    if not filled or not all(item.has_min_max for item in filled):
        return None
    lows = [leaf.kind.value(item.min_raw) for item in filled]
    highs = [leaf.kind.value(item.max_raw) for item in filled]
    return min(lows), max(highs)


def _hull(one: tuple[Any, Any] | None, two: tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    if one is None or two is None:
        return None
    return min(one[0], two[0]), max(one[1], two[1])


def _plant(tree: Tree, path: Path, text: str | None) -> None:
    if text is None:
        return
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = text


def _write(tree: Tree) -> str:
    """Leaves are JSON already: a decimal's digits must not pass through Python's own numbers."""
    return (
        "{" + ",".join(f"{key}:{item if isinstance(item, str) else _write(item)}" for key, item in tree.items()) + "}"
    )
