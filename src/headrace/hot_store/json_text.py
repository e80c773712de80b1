"""Values as JSON text, column by column: nested columns are `jsonb` in PostgreSQL.

Numbers keep all digits. What JSON cannot express is a string: NaN and infinities, bytes (Base64), dates and timestamps
(ISO 8601).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine import duck
from headrace.spec.types import is_list

_NULL = pa.scalar("null")
_ESCAPES = {'"': '\\"', "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL = {chr(code): _ESCAPES.get(chr(code), f"\\u{code:04x}") for code in range(32)}


def json_texts(values: pa.Array) -> pa.Array:
    """Each value as JSON; NULL remains NULL."""
    return pc.if_else(values.is_valid(), _texts(values), pa.scalar(None, pa.string()))


def _texts(values: pa.Array) -> pa.Array:
    """Each value as JSON; NULL is `null`."""
    kind = values.type
    if pa.types.is_struct(kind):
        texts = _objects(values)
    elif pa.types.is_map(kind):
        texts = _maps(values)
    elif is_list(kind):
        texts = _joined(values, _texts(pc.list_flatten(values)), "[", "]")
    else:
        texts = _scalars(values)
    return pc.if_else(values.is_valid(), texts, _NULL)


def _scalars(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind):
        return _quoted(_escaped(values))
    if pa.types.is_binary(kind):
        return _quoted(duck.query("SELECT to_base64(v) AS v FROM t", t=pa.table({"v": values}))["v"].combine_chunks())
    if pa.types.is_temporal(kind):
        return _quoted(pc.replace_substring(values.cast(pa.string()), " ", "T", max_replacements=1))
    texts = values.cast(pa.string())
    if pa.types.is_floating(kind):
        names = pc.if_else(pc.is_nan(values), "NaN", pc.if_else(pc.greater(values, 0), "Infinity", "-Infinity"))
        texts = pc.if_else(pc.is_finite(values), texts, _quoted(names))
    return texts


def _objects(values: pa.Array) -> pa.Array:
    if not values.type.num_fields:
        return pa.repeat(pa.scalar("{}"), len(values))
    parts = []
    for number, item in enumerate(values.type):
        name = _escaped(pa.array([item.name]))[0].as_py()
        parts += [pa.scalar(("," if number else "{") + f'"{name}":'), _texts(pc.struct_field(values, number))]
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), "")


def _maps(values: pa.Array) -> pa.Array:
    """A map with text keys as an object, any other as an array of its entries."""
    entries = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))
    flat = pc.list_flatten(entries)
    if not pa.types.is_string(values.type.key_type):
        return _joined(entries, _texts(flat), "[", "]")
    pairs = pc.binary_join_element_wise(_texts(pc.struct_field(flat, 0)), _texts(pc.struct_field(flat, 1)), ":")
    return _joined(entries, pairs, "{", "}")


def _joined(lists: pa.Array, texts: pa.Array, start: str, end: str) -> pa.Array:
    """The texts of each list's elements, joined by commas."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    return pc.binary_join_element_wise(pa.scalar(start), joined, pa.scalar(end), "")


def _quoted(texts: pa.Array) -> pa.Array:
    quote = pa.scalar('"')
    return pc.binary_join_element_wise(quote, texts, quote, "")


def _escaped(texts: pa.Array) -> pa.Array:
    """Texts with JSON's escapes; only characters that occur are replaced."""
    texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    if not pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        return texts
    for character, escape in _CONTROL.items():
        texts = pc.replace_substring(texts, character, escape)
    return texts
