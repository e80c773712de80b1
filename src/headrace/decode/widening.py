"""Widening: find the wider types that values need which do not fit their columns.

The values that do not fit are decoded again with every column as JSON text, in any format; wider types are computed
from the texts; then the values are decoded with these types. Types that help no value are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Decoded, DecodeLimits, NewField
from headrace.decode.byte_scan import Numbers
from headrace.decode.distinct_texts import alike
from headrace.decode.inference import WIDER, Structure, evolve, merge_all, struct
from headrace.decode.json.strict import Parser
from headrace.decode.payload import PayloadNode
from headrace.decode.payload_field import PayloadField, is_json_text, payload_field
from headrace.decode.scalars import UnfitValue, leaf_reader
from headrace.delta.type_widening import widened_for
from headrace.spec.types import TIMESTAMP_NTZ, type_name

_Decode = Callable[[pa.Schema, NewField, pa.BinaryArray], Decoded]


def widened_types(
    payload: pa.Schema, new_field: NewField, values: pa.BinaryArray, decode: _Decode, fixed: Collection[str] = ()
) -> Structure | None:
    """Wider types that misfits need, and new fields of the records that they help; None if nothing helps.

    Columns in `fixed` keep their types.
    """
    columns = [item for item in payload if item.name not in fixed and _is_read(item) and _may_widen(item)]
    if not columns:
        return None
    requests = _requests(columns, decode(pa.schema([_as_text(item) for item in columns]), "ignore", values))
    if not requests:
        return None
    fitting = decode(evolve(payload, merge_all(asks for asks, _ in requests)), new_field, values)
    helped = [asks for asks, positions in requests if not np.isin(positions, fitting.rejects.columns.index).all()]
    return merge_all([*helped, fitting.unknown or {}]) if helped else None


def _requests(columns: list[pa.Field], texts: Decoded) -> list[tuple[Structure, Numbers]]:
    """Distinct requests for wider types, each with the positions of its values."""
    if not len(texts.index):
        return []
    requests = [_column_requests(item, texts.rows[item.name].combine_chunks()) for item in columns]
    kinds, which = np.unique(np.column_stack([codes for _, codes in requests]), axis=0, return_inverse=True)
    positions, which = texts.index.to_numpy(), which.reshape(-1)
    groups = [
        (merge_all(asks[code] for (asks, _), code in zip(requests, kind, strict=True)), positions[which == nth])
        for nth, kind in enumerate(kinds.tolist())
    ]
    return [(asks, at) for asks, at in groups if asks]


def _column_requests(item: pa.Field, texts: pa.StringArray) -> tuple[list[Structure], Numbers]:
    """The distinct requests of a column's values, and the number of each value's request."""
    parser, known, keys = Parser(DecodeLimits()), {"{}": 0}, payload_field(item).keys
    encoded = alike(item.type, texts).dictionary_encode()
    codes = [0]  # of NULL, then of each text
    for text in encoded.dictionary.to_pylist():
        asks = _needed(item, parser.value(text))
        codes.append(known.setdefault(json.dumps({} if asks is None else _nested(keys, asks)), len(known)))
    nth = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    return [json.loads(asks) for asks in known], np.array(codes)[nth + 1]


def _needed(item: pa.Field, value: Any) -> Structure | None:
    """The wider type that one value needs, as a structure; None if it fits."""
    kind = item.type
    if value is None or is_json_text(item):
        return None
    if pa.types.is_struct(kind):
        inner = {each.name: _needed(each, value.get(each.name)) for each in kind} if isinstance(value, dict) else {}
        fields = {name: asks for name, asks in inner.items() if asks is not None}
        return struct(fields) if fields else None
    if pa.types.is_list(kind):
        element = _needed_by_all(kind.value_field, value if isinstance(value, list) else [])
        return element and {"type": "list", "element": element}
    if pa.types.is_map(kind):
        entry = _needed_by_all(kind.item_field, list(value.values()) if isinstance(value, dict) else [])
        return entry and {"type": "map", "value": entry}
    return _leaf(kind, value)


def _needed_by_all(item: pa.Field, values: list[Any]) -> Structure | None:
    """The wider type that several values need. A nested date stays a date: Delta stores no unit for elements."""
    if pa.types.is_date(item.type):
        return None
    return merge_all(filter(None, (_needed(item, value) for value in values))) or None


def _leaf(kind: pa.DataType, value: Any) -> Structure | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        leaf_reader(PayloadNode("leaf", kind))(value)
    except UnfitValue:
        # Formats with decimals of their own write them as texts, too; where that was JSON's, the last decode tells.
        written = getattr(value, "text", None) or str(value)
        wide = _moment(value) if pa.types.is_date(kind) else widened_for(kind, written)
        return wide and {"type": WIDER, "to": type_name(wide)}
    return None


def _moment(value: Any) -> pa.DataType | None:
    """The type of a date with a time and without a zone."""
    try:
        leaf_reader(PayloadNode("leaf", TIMESTAMP_NTZ))(value)
    except UnfitValue:
        return None
    return TIMESTAMP_NTZ


def _is_read(item: pa.Field) -> bool:
    """Whether a field is a column read from the record."""
    spec = payload_field(item)
    return not (spec.rescue or spec.message or spec.skipped or spec.absolute_path or spec.json_text)


def _may_widen(item: pa.Field) -> bool:
    """Whether a type in the column has a wider type."""
    kind = item.type
    inner = list(kind) if pa.types.is_struct(kind) else []
    inner = [kind.value_field] if pa.types.is_list(kind) else [kind.item_field] if pa.types.is_map(kind) else inner
    narrow = (pa.types.is_integer, pa.types.is_float32, pa.types.is_decimal, pa.types.is_date)
    return any(is_a(kind) for is_a in narrow) or any(_may_widen(each) for each in inner)


def _as_text(item: pa.Field) -> pa.Field:
    return PayloadField(item.name, pa.string(), path=payload_field(item).path, json_text=True).to_arrow()


def _nested(keys: tuple[str, ...], asks: Structure) -> Structure:
    """A structure at a path."""
    return reduce(lambda below, key: struct({key: below}), reversed(keys), asks)
