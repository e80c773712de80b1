"""Rows of Arrow columns as Avro: each row is a container file with one record, so that it has its schema with it.

Avro has a type for every column type of Delta. As JSON, a decimal would be a number that is inferred as `double`, and
a timestamp a string.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode import nested
from headrace.decode.byte_scan import Numbers, bools, lengths
from headrace.spec.types import is_list

_MAGIC = b"Obj\x01"
_DIGITS = 38  # of a decimal
_UNITS = {"s": ("millis", "ms"), "ms": ("millis", "ms"), "us": ("micros", "us"), "ns": ("nanos", "ns")}
_NULL = pa.array([b"\x00"], pa.binary())  # the branch of a null, and the end of an array


def container_values(records: pa.BinaryArray, header: bytes) -> pa.BinaryArray:
    """Encoded records as container files with one record each."""
    sync = header[-16:]
    return pc.binary_join_element_wise(header + b"\x02", _sizes(records), records, sync, b"")


def container_prefix(schema: str) -> bytes:
    """Header of a container file without compression."""
    text = schema.encode()
    size: bytes = _varints(np.array([len(text)]))[0].as_py()
    meta = b"\x02" + _short(b"avro.schema") + size + text + b"\x00"
    return _MAGIC + meta + hashlib.sha256(text).digest()[:16]


def _short(text: bytes) -> bytes:
    return bytes([2 * len(text)]) + text


class RowEncoder:
    """Encodes the rows of record batches with one schema; raises TypeError for a type that Avro does not have."""

    def __init__(self, schema: pa.Schema) -> None:
        record = pa.struct(list(schema))
        self.schema = json.dumps(_Schemas().any(record), ensure_ascii=False, separators=(",", ":"))
        self._header = container_prefix(self.schema)

    def rows(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The rows of a batch as container files."""
        return container_values(_encoded(batch.to_struct_array()), self._header)


# ---- schemas ----


class _Schemas:
    """Avro schemas of Arrow types."""

    def __init__(self) -> None:
        self._numbers = count()

    def any(self, kind: pa.DataType) -> Any:
        """The schema of a type, without null."""
        kind = _plain_type(kind)
        if pa.types.is_struct(kind):
            name = f"row{next(self._numbers)}"
            return {"type": "record", "name": name, "fields": [self._field(item) for item in kind]}
        if is_list(kind) or pa.types.is_fixed_size_list(kind):
            return {"type": "array", "items": self._nullable(kind.value_type)}
        if pa.types.is_map(kind) and _is_text(kind.key_type):
            return {"type": "map", "values": self._nullable(kind.item_type)}
        if pa.types.is_map(kind):
            return {"type": "array", "items": self._nullable(_entry_type(kind))}
        return _scalar_schema(kind)

    def _field(self, item: pa.Field) -> dict[str, Any]:
        return {"name": item.name, "type": self._nullable(item.type)}

    def _nullable(self, kind: pa.DataType) -> Any:
        return "null" if pa.types.is_null(kind) else ["null", self.any(kind)]


def _entry_type(kind: pa.MapType) -> pa.DataType:
    return pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without dictionary encoding and extension types."""
    while True:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def _is_text(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_bytes(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in checks)


def _scalar_schema(kind: pa.DataType) -> Any:
    if pa.types.is_uint64(kind):
        return _decimal_schema(20, 0)
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _DIGITS:
        return _decimal_schema(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}timestamp-{_UNITS[kind.unit][0]}"}
    for is_kind, schema in _SCALARS:
        if is_kind(kind):
            return schema
    raise TypeError(f"columns of type {kind} are not supported")


def _decimal_schema(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


_DATE = {"type": "int", "logicalType": "date"}
_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "int"),
    (pa.types.is_int16, "int"),
    (pa.types.is_int32, "int"),
    (pa.types.is_uint8, "int"),
    (pa.types.is_uint16, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_uint32, "long"),
    (pa.types.is_float16, "float"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_date, _DATE),
    (pa.types.is_time, "string"),
    (_is_text, "string"),
    (_is_bytes, "bytes"),
)

# ---- values ----


def _nullable(values: pa.Array) -> pa.BinaryArray:
    """Values of a union of null and their type."""
    if pa.types.is_null(values.type):
        return pa.array([b""] * len(values), pa.binary())
    encoded = pc.binary_join_element_wise(b"\x02", _encoded(values.drop_null()), b"")
    if not values.null_count:
        return encoded
    place = np.full(len(values), len(encoded))
    place[bools(values.is_valid())] = np.arange(len(encoded))
    return pa.concat_arrays([encoded, _NULL]).take(pa.array(place))


def _encoded(values: pa.Array) -> pa.BinaryArray:
    """Encode values without nulls."""
    values = nested.plain(values)
    kind = values.type
    if pa.types.is_struct(kind):
        return _joined([_nullable(each) for each in values.flatten()], len(values))
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _blocks(_nullable(values.flatten()), _lengths(values))
    if pa.types.is_map(kind):
        keys, items = nested.map_keys(values), nested.map_items(values)[0]
        if _is_text(kind.key_type):
            return _blocks(_joined([_encoded(keys), _nullable(items)], len(keys)), _lengths(values))
        entries = pa.StructArray.from_arrays([keys, items], fields=list(_entry_type(kind)))
        return _blocks(_nullable(entries), _lengths(values))
    return _scalars(values)


def _lengths(values: pa.Array) -> Numbers:
    if pa.types.is_fixed_size_list(values.type):
        return np.full(len(values), values.type.list_size)
    return lengths(values)


def _joined(parts: list[pa.BinaryArray], rows: int) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*parts, b"") if parts else pa.array([b""] * rows, pa.binary())


def _blocks(items: pa.BinaryArray, lengths: Numbers) -> pa.BinaryArray:
    """Items as arrays of these lengths: the number of items, the items, and a zero unless the array is empty."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    content = pc.binary_join(pa.ListArray.from_arrays(offsets, items), b"")
    full = pc.binary_join_element_wise(_varints(lengths), content, b"\x00", b"")
    return pc.if_else(pa.array(lengths > 0), full, b"\x00")


def _scalars(values: pa.Array) -> pa.BinaryArray:
    kind = values.type
    if pa.types.is_boolean(kind):
        return _fixed(values.cast(pa.uint8()).to_numpy().reshape(-1, 1))
    if pa.types.is_floating(kind):
        width = "<f8" if pa.types.is_float64(kind) else "<f4"
        return _fixed(values.to_numpy(zero_copy_only=False).astype(width).view(np.uint8).reshape(len(values), -1))
    if pa.types.is_uint64(kind):
        return _decimals(values.cast(pa.decimal128(20, 0)))
    if pa.types.is_decimal(kind):
        return _decimals(values.cast(pa.decimal128(kind.precision, kind.scale)))
    if _is_text(kind) or _is_bytes(kind) or pa.types.is_time(kind):
        texts = values if _is_bytes(kind) else values.cast(pa.string())
        return pc.binary_join_element_wise(_sizes(texts.cast(pa.binary())), texts.cast(pa.binary()), b"")
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp(_UNITS[kind.unit][1], kind.tz)).cast(pa.int64())
    elif pa.types.is_date(kind):
        values = values.cast(pa.date32()).cast(pa.int32())
    return _varints(values.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _sizes(values: pa.BinaryArray) -> pa.BinaryArray:
    return _varints(pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64))


def _decimals(values: pa.Decimal128Array) -> pa.BinaryArray:
    """Decimals as 16 bytes, big-endian, after their length."""
    raw = np.frombuffer(values.buffers()[1], np.uint8)[16 * values.offset : 16 * (values.offset + len(values))]
    rows = np.empty((len(values), 17), np.uint8)
    rows[:, 0], rows[:, 1:] = 32, raw.reshape(-1, 16)[:, ::-1]
    return _fixed(rows)


def _fixed(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> pa.BinaryArray:
    """Rows of as many bytes each."""
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), data])


def _varints(numbers: Numbers) -> pa.BinaryArray:
    """Numbers in zigzag encoding: seven bits in a byte, lowest first; all bytes but the last have the eighth bit.

    -3 is 5, one byte; 100 is 200 = 0b1_1001000, the bytes 0xC8 and 0x01.
    """
    numbers = np.asarray(numbers, np.int64)
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    shifts = np.arange(0, 70, 7, dtype=np.uint64)
    pieces = (zigzag[:, None] >> shifts) & np.uint64(0x7F)
    sizes = np.maximum(1, 10 - np.argmax(pieces[:, ::-1] != 0, axis=1))
    sizes[~pieces.any(axis=1)] = 1
    at = np.arange(10)
    pieces |= np.where(at < sizes[:, None] - 1, 0x80, 0).astype(np.uint64)
    data = pieces.astype(np.uint8)[at < sizes[:, None]]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
