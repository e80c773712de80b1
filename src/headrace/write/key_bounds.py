"""Between which keys all changes of a batch lie: a merge that says so leaves the files outside untouched and unread."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.delta.partition_keys import partitions_in
from headrace.delta.staged_file import StagedFile
from headrace.write.merge_sql import Bounds

_LISTED = 200  # values that one condition names
_SUFFIX = {pa.int8(): "Y", pa.int16(): "S", pa.int32(): "", pa.int64(): "L"}


def key_bounds(files: Sequence[StagedFile], schema: pa.Schema, keys: Sequence[str]) -> Bounds:
    """For each key whose statistics tell it, the lowest and the highest value as Spark's literals."""
    stats = [json.loads(item.stats, parse_float=Decimal) for item in files]
    found = ((key, _hull(stats, key), _literal(schema.field(key).type)) for key in keys)
    return [(key, write(hull[0]), write(hull[1])) for key, hull, write in found if hull and write]


def partition_literals(keys: pa.Table) -> dict[str, list[str]]:
    """For each of these columns all its values as Spark's literals; none for a column of too many."""
    found = {}
    for item in keys.schema:
        values = sorted(text for ((_, text),) in partitions_in(keys, [item.name]) if text is not None)
        if values and len(values) <= _LISTED and (write := _literal(item.type)):
            found[item.name] = [write(text) for text in values]
    return found


def _hull(stats: Sequence[Mapping[str, Any]], key: str) -> tuple[Any, Any] | None:
    """None when a file with keys does not tell; one whose keys are all NULL has none."""
    telling = [each for each in stats if each.get("nullCount", {}).get(key) != each.get("numRecords")]
    lows = [each.get("minValues", {}).get(key) for each in telling]
    highs = [each.get("maxValues", {}).get(key) for each in telling]
    if not telling or any(value is None for value in (*lows, *highs)):
        return None
    return min(lows), max(highs)


def _literal(kind: pa.DataType) -> Callable[[Any], str] | None:
    """How Spark writes a value of a type; None for those without bounds."""
    if kind in _SUFFIX:
        return lambda value: f"{value}{_SUFFIX[kind]}"
    if pa.types.is_boolean(kind):
        return lambda value: str(value).lower()
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_date32(kind):
        return lambda value: f"DATE '{value}'"
    if pa.types.is_timestamp(kind):
        return lambda value: f"{'TIMESTAMP_LTZ' if kind.tz else 'TIMESTAMP_NTZ'} '{value}'"
    if pa.types.is_decimal(kind):
        # Written out: what has an exponent is a double.
        return lambda value: f"CAST({Decimal(value):f} AS DECIMAL({kind.precision}, {kind.scale}))"
    return None


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
