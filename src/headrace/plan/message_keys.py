"""The keys of messages, for JMESPath, which reads more of a message than the columns have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.payload_field import PayloadField, payload_field, payload_fields
from headrace.spec.decode import Decode, JsonFormat


class MessageKeys:
    """The keys of the messages of a batch, for those that no column has."""

    def __init__(self, decode: Decode, payload: pa.Schema, values: pa.BinaryArray, rows: pa.Table) -> None:
        message = next((item.name for item in payload_fields(payload) if item.message), None)
        self._columns = [
            (item, rows.column(item.name)) for item in payload_fields(payload) if item.name in rows.schema.names
        ]
        self._format, self._texts = decode.format, None
        if message in rows.column_names:
            self._format, self._texts = "json", rows.column(message)
        elif isinstance(decode.options, JsonFormat) and decode.options.compression == "none":
            self._texts = values  # a field that is null in every record has no column

    def have(self, name: str) -> bool:
        """Whether one of the messages has the key, at any depth."""
        if self._texts is not None:
            return holds_key(self._format, self._texts, name)
        return any(_has_key(item, chunk, name) for item, column in self._columns for chunk in column.chunks)


def holds_key(format: str, values: pa.Array, name: str) -> bool:
    """Whether a value contains a key, at any depth; typed formats have it in their schema."""
    pattern = {"json": rf'"{_json_key(name)}"\s*:', "msgpack": re.escape(name)}.get(format)
    return pattern is not None and bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def payload_keys(payload: pa.Schema) -> frozenset[str]:
    """The keys that a payload schema has, at any depth."""
    return frozenset(key for item in payload_fields(payload) for key in _keys_of(item))


def _keys_of(item: PayloadField) -> Iterator[str]:
    yield from item.keys
    for child in item.children:
        yield from _keys_of(child)


def _has_key(item: PayloadField, values: pa.Array, name: str) -> bool:
    """Whether a map or a JSON text inside a column has the key; the keys of objects are in the schema."""
    kind = values.type
    if item.json_text:
        return holds_key("json", values, name)
    if pa.types.is_map(kind):
        same = pc.any(pc.equal(values.keys.cast(pa.string()), name)).as_py()
        return bool(same) or _has_key(payload_field(kind.item_field), values.items, name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_key(payload_field(kind.value_field), values.flatten(), name)
    if pa.types.is_struct(kind):
        return any(_has_key(child, part, name) for child, part in zip(item.children, values.flatten(), strict=True))
    return False


def _json_key(name: str) -> str:
    """A pattern of a key as JSON text: `é` may be written as `\\u00e9`, and `/` as `\\/`."""
    return "".join(char if char.isalnum() and char.isascii() else _json_char(char) for char in name)


def _json_char(char: str) -> str:
    units = char.encode("utf-16-be")  # two for characters such as emoji
    escapes = "".join(rf"\\u(?i:{units[at : at + 2].hex()})" for at in range(0, len(units), 2))
    plain = r"\\?/" if char == "/" else re.escape(json.dumps(char, ensure_ascii=False)[1:-1])
    return f"(?:{plain}|{escapes})"
