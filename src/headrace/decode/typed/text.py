"""Typed values as text: whole values as JSON, and scalars at a path."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode import nested
from headrace.decode.byte_scan import bools
from headrace.engine import duck
from headrace.spec.types import is_list


def as_json(values: pa.Array) -> pa.Array:
    """Typed values as JSON text: bytes in base64, decimals and times as strings, so that nothing is rounded."""
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.string())
    result = duck.query(
        "SELECT CASE WHEN v IS NOT NULL THEN CAST(to_json(v) AS VARCHAR) END AS t FROM seen",
        seen=pa.table({"v": _speakable(values)}),
    )
    texts = result["t"].combine_chunks().cast(pa.string())
    odd = bools(pc.fill_null(pc.match_substring_regex(texts, "NaN|Infinity"), False))
    return pc.replace_with_mask(texts, pa.array(odd), _finite(texts.filter(pa.array(odd)))) if odd.any() else texts


def _finite(texts: pa.StringArray) -> pa.StringArray:
    """Numbers that are not finite become strings, as JSON has no literal for them."""
    read = (json.loads(text, parse_constant=str) for text in texts.to_pylist())
    return pa.array([json.dumps(value, separators=(",", ":"), ensure_ascii=False) for value in read], pa.string())


def _speakable(values: pa.Array) -> pa.Array:
    if nested.is_json(values.type):
        return values  # as in DuckDB
    values = nested.plain(values)
    kind = values.type
    if pa.types.is_binary(kind):
        result = duck.query("SELECT to_base64(v) AS t FROM seen", seen=pa.table({"v": values}))
        return result["t"].combine_chunks().cast(pa.string())
    if pa.types.is_timestamp(kind):
        texts = pc.strftime(values, "%Y-%m-%dT%H:%M:%S" + ("Z" if kind.tz else ""))
        return texts
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return values.cast(pa.string())
    if pa.types.is_struct(kind):
        inner = [_speakable(nested.struct_field(values, item.name)) for item in kind]
        return pa.StructArray.from_arrays(inner, [item.name for item in kind], mask=pa.array(~nested.is_there(values)))
    if is_list(kind):
        inner, owner = nested.list_elements(values)
        return pa.ListArray.from_arrays(
            nested.offsets_of(values, owner), _speakable(inner), mask=pa.array(~nested.is_there(values))
        )
    if pa.types.is_map(kind):
        items, owner = nested.map_items(values)
        offsets = pa.array(nested.offsets_of(values, owner).to_numpy(), mask=np.append(~nested.is_there(values), False))
        return pa.MapArray.from_arrays(offsets, nested.map_keys(values), _speakable(items))
    return values


def path_steps(path: str) -> tuple[str, ...]:
    """The keys of a JSON pointer or a dotted path."""
    if not path.startswith("/"):
        return tuple(path.split("."))
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/"))


def scalars_as_text(table: pa.Table, steps: tuple[str, ...]) -> pa.Array | None:
    """The scalars at a path as text, NULL if absent; None if the values there are not scalars."""
    values: pa.Array | None = nested.as_struct(table)
    for step in steps:
        if values is None or not pa.types.is_struct(values.type):
            return pa.nulls(len(table), pa.string())
        values = nested.struct_field(values, step)
    if values is None or pa.types.is_null(values.type):
        return pa.nulls(len(table), pa.string())
    if pa.types.is_nested(values.type):
        return None
    texts = _speakable(nested.plain(values))
    return texts if pa.types.is_string(texts.type) else as_json(texts)
