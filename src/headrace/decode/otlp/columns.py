"""Convert OTLP messages to Arrow columns: attribute values as text, ids as hexadecimal text."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import DecodeLimits
from headrace.decode.byte_scan import Numbers
from headrace.decode.otlp.messages import ANY_VALUE, any_value
from headrace.decode.protobuf.columns import ProtobufColumns, Scope
from headrace.decode.protobuf.schema import Field, Message
from headrace.decode.protobuf.wire import Frames
from headrace.reasons import Reason

# An attribute value: its text, and whether that is a JSON text (a number, boolean, array or object) or plain text.
VALUE = pa.struct([pa.field("text", pa.string()), pa.field("json", pa.bool_())])

_HEX = np.frombuffer(bytes(range(256)).hex().encode(), "<u2")  # both digits of each byte


class _UnfitValue(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class OtlpColumns(ProtobufColumns):
    """Converts a column of export requests."""

    def __init__(self, values: pa.BinaryArray, limits: DecodeLimits) -> None:
        super().__init__(values, 0, limits, all_defaults=True)

    def _messages(self, message: Message, frames: Frames, count: int, scope: Scope) -> pa.Array:
        if message.name == ANY_VALUE:
            return self._any_values(frames, count, scope)
        return super()._messages(message, frames, count, scope)

    def _any_values(self, frames: Frames, count: int, scope: Scope) -> pa.StructArray:
        """Attribute values; only columns of kinds that occur are built, and usually all are strings."""
        parts = self._parts(any_value(), frames, scope)
        filled = [field for field in any_value().fields if any(map(len, parts[field.number].values()))]
        columns = {field.name: self._field(field, parts[field.number], count, scope) for field in filled}
        if list(columns) == ["string_value"]:
            texts = columns["string_value"]
            return _value_array(texts, np.zeros(count, bool))
        texts, are_json = pa.nulls(count, pa.string()), np.zeros(count, bool)
        for name, column in columns.items():
            part, part_json = self._value_texts(name, column, scope)
            texts = pc.coalesce(texts, part)
            are_json |= part_json
        return _value_array(texts, are_json)

    def _value_texts(self, name: str, column: pa.Array, scope: Scope) -> tuple[pa.Array, np.ndarray[Any, Any]]:
        """Values of one kind as text, and which of them are JSON texts."""
        valid = np.asarray(column.is_valid())
        if name == "string_value":
            return column, np.zeros(len(column), bool)
        if name == "double_value":
            texts = [None if number is None else _number_text(number) for number in column.to_pylist()]
            return pa.array(texts, pa.string()), valid & np.isfinite(column.fill_null(0).to_numpy())
        if name == "bytes_value":
            encoded = [None if raw is None else base64.b64encode(raw).decode() for raw in column.to_pylist()]
            return pa.array(encoded, pa.string()), np.zeros(len(column), bool)
        if name in ("array_value", "kvlist_value"):
            return self._nested_texts(name, column, scope), valid
        return column.cast(pa.string()), valid

    def _nested_texts(self, name: str, column: pa.BinaryArray, scope: Scope) -> pa.StringArray:
        """Arrays and objects as JSON text, one at a time; they are rare."""
        texts: list[str | None] = [None] * len(column)
        for at in np.flatnonzero(np.asarray(column.is_valid())).tolist():
            try:
                texts[at] = nested_text(name, column[at].as_py(), self._limits.depth)
            except _UnfitValue as unfit:
                self.reject(scope.rows[at : at + 1], unfit.reason, f"{scope.prefix}{name}: {unfit.detail}")
                texts[at] = "null"
        return pa.array(texts, pa.string())

    def _texts(self, field: Field, *args: Any, **options: Any) -> pa.Array:
        values = super()._texts(field, *args, **options)
        return hex_texts(values) if field.kind == "bytes" and field.name.endswith("_id") else values


def _value_array(texts: pa.Array, are_json: np.ndarray[Any, Any]) -> pa.StructArray:
    return pa.StructArray.from_arrays([texts, pa.array(are_json)], fields=list(VALUE))


def hex_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Ids as lowercase hexadecimal text, NULL if they have no bytes."""
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = np.append(0, np.cumsum(sizes * 2)).astype(np.int32)
    joined = np.frombuffer(pc.binary_join(pa.array([values.drop_null()], pa.list_(pa.binary())), b"")[0].as_py(), "u1")
    digits = pa.py_buffer(_HEX[joined].tobytes())
    texts = pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), digits])
    return texts if sizes.all() else pc.if_else(pa.array(sizes > 0), texts, pa.scalar(None, pa.string()))


def nested_text(name: str, raw: bytes, depth: int) -> str:
    """An array or an object as JSON text; raises UnfitValue."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.common.v1 import common_pb2

    kind = common_pb2.ArrayValue if name == "array_value" else common_pb2.KeyValueList
    try:
        message = kind.FromString(raw)
    except DecodeError:
        raise _UnfitValue(Reason.MALFORMED, "not well-formed, or nested too deeply") from None
    return _list_text(message.values, depth) if name == "array_value" else _object_text(message.values, depth)


def _list_text(values: Iterable[Any], depth: int) -> str:
    return f"[{','.join(_any_text(value, depth - 1) for value in values)}]"


def _object_text(pairs: Iterable[Any], depth: int) -> str:
    texts: dict[str, str] = {}
    for pair in pairs:
        if pair.key in texts:
            raise _UnfitValue(Reason.DUPLICATE_KEY, f"the key '{pair.key[:80]}' occurs twice")
        texts[pair.key] = _any_text(pair.value, depth - 1)
    return "{" + ",".join(f"{_quoted(key)}:{text}" for key, text in texts.items()) + "}"


def _any_text(value: Any, depth: int) -> str:
    if depth <= 0:
        raise _UnfitValue(Reason.TOO_DEEP, "nested deeper than the limit")
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return _list_text(value.array_value.values, depth)
    if kind == "kvlist_value":
        return _object_text(value.kvlist_value.values, depth)
    if kind is None:
        return "null"
    return _scalar_text(getattr(value, kind))


def _scalar_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return _quoted(base64.b64encode(value).decode())
    if isinstance(value, float):
        return _number_text(value) if math.isfinite(value) else _quoted(_number_text(value))
    return str(value) if isinstance(value, int) else _quoted(value)


def _number_text(number: float) -> str:
    """A double as Protobuf's JSON has it."""
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# ---- attributes ----

_SPECIAL = r'["\\\x00-\x1f]'  # characters that JSON escapes


def attribute_map(pairs: pa.ListArray) -> pa.MapArray:
    """Lists of key-value pairs as maps of texts."""
    entries = pairs.values
    return pa.MapArray.from_arrays(pairs.offsets, entries.field("key"), _texts_of(entries))


def attribute_json(pairs: pa.ListArray) -> pa.StringArray:
    """Lists of key-value pairs as JSON texts, with the types of their values."""
    entries = pairs.values
    values = entries.field("value")
    texts, are_json = _texts_of(entries), pc.fill_null(_field(values, "json"), False)
    values_text = pc.fill_null(pc.if_else(are_json, texts, _quoted_all(texts)), "null")
    keys = entries.field("key").dictionary_encode()
    quoted_keys = pa.array([_quoted(key) + ":" for key in keys.dictionary.to_pylist()], pa.string()).take(keys.indices)
    members = pc.binary_join_element_wise(quoted_keys, values_text, "")
    joined = pc.binary_join(pa.ListArray.from_arrays(pairs.offsets, members), ",")
    return pc.binary_join_element_wise("{", joined, "}", "")


def attribute_values(pairs: pa.ListArray, key: str) -> pa.StringArray:
    """The text of one attribute of each list, NULL if it is absent."""
    at = np.flatnonzero(pc.equal(pairs.values.field("key"), key).to_numpy(zero_copy_only=False))
    place = np.full(len(pairs), -1, np.int64)
    place[_owners(pairs)[at]] = at
    return _texts_of(pairs.values).take(pa.array(place, mask=place < 0))


def lists_with_duplicates(pairs: pa.ListArray) -> Numbers:
    """Positions of the lists in which a key occurs twice."""
    keys = pairs.values.field("key").dictionary_encode()
    owners = _owners(pairs)
    codes = np.sort(owners * max(1, len(keys.dictionary)) + keys.indices.to_numpy())
    twice = codes[1:][codes[1:] == codes[:-1]]
    return np.unique(twice // max(1, len(keys.dictionary)))


def _owners(pairs: pa.ListArray) -> Numbers:
    return np.repeat(np.arange(len(pairs)), np.diff(pairs.offsets.to_numpy()))


def _texts_of(entries: pa.StructArray) -> pa.StringArray:
    return _field(entries.field("value"), "text")


def _field(values: pa.StructArray, name: str) -> pa.Array:
    """A field of structs, NULL where the struct is NULL."""
    return values.flatten()[values.type.get_field_index(name)]


def _quoted_all(texts: pa.StringArray) -> pa.StringArray:
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    special = pc.fill_null(pc.match_substring_regex(texts, _SPECIAL), False)
    if not pc.any(special).as_py():
        return quoted
    escaped = pa.array([_quoted(text) for text in texts.filter(special).to_pylist()], pa.string())
    return pc.replace_with_mask(quoted, special, escaped)
