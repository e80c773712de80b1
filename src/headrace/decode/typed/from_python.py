"""Convert Python values to Arrow columns strictly: a column at a time, one by one only if a value is wrong."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgpack import Timestamp

from headrace.decode.byte_scan import Numbers, bools
from headrace.decode.nested import is_json
from headrace.decode.scalars import describe
from headrace.reasons import Reason
from headrace.spec.types import type_name

Refuse = Callable[[int, Reason, str], None]  # record, reason, detail

_NONE = type(None)
_EPOCH_MICROS = (-62_135_596_800_000_000, 253_402_300_799_999_999)


class ColumnBuilder:
    """Builds columns, and reports the records whose values do not fit."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse

    def column(self, values: Sequence[Any], kind: pa.DataType, rows: Numbers, where: str) -> pa.Array:
        """One column; a value that does not fit is NULL, and its record is rejected."""
        if is_json(kind):
            return pa.ExtensionArray.from_storage(kind, self._texts(values, rows, where))
        types = _python(kind)
        if not set(map(type, values)) <= {*types, _NONE}:
            values = [self._fit(value, types, kind, int(row), where) for value, row in zip(values, rows, strict=True)]
        if pa.types.is_struct(kind):
            return self._structs(values, kind, rows, where)
        if pa.types.is_list(kind):
            return self._lists(values, kind, rows, where)
        if pa.types.is_map(kind):
            return self._maps(values, kind, rows, where)
        if pa.types.is_timestamp(kind):
            values = [self._micros(value, int(row), where) for value, row in zip(values, rows, strict=True)]
        if pa.types.is_floating(kind):
            return self._floats(values, kind, rows, where)
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, OverflowError):
            return pa.array(
                [self._inside(value, kind, int(row), where) for value, row in zip(values, rows, strict=True)], kind
            )

    def _fit(self, value: Any, types: tuple[type, ...], kind: pa.DataType, row: int, where: str) -> Any:
        if value is None or type(value) in types:
            return value
        self._refuse(row, Reason.TYPE, f"{where}: expected {type_name(kind)}, saw {_type_text(value)}")
        return None

    def _inside(self, value: Any, kind: pa.DataType, row: int, where: str) -> Any:
        half = 1 << (kind.bit_width - 1) if pa.types.is_integer(kind) else 0
        if value is None or -half <= value < half:
            return value
        self._refuse(row, Reason.OVERFLOW, f"{where}: {describe(value)} does not fit {type_name(kind)}")
        return None

    def _floats(self, values: Sequence[Any], kind: pa.DataType, rows: Numbers, where: str) -> pa.Array:
        exact = pa.array([None if value is None else float(value) for value in values], pa.float64())
        numbers = exact.cast(kind, safe=False)
        grown = pc.and_(pc.is_inf(numbers), pc.invert(pc.is_inf(exact)))
        for at in np.flatnonzero(bools(grown)).tolist():
            detail = f"{where}: {describe(values[at])} does not fit {type_name(kind)}"
            self._refuse(int(rows[at]), Reason.OVERFLOW, detail)
        return numbers

    def _micros(self, value: Timestamp | None, row: int, where: str) -> int | None:
        if value is None:
            return None
        micros = value.seconds * 1_000_000 + value.nanoseconds // 1_000
        if _EPOCH_MICROS[0] <= micros <= _EPOCH_MICROS[1]:
            return int(micros)
        self._refuse(row, Reason.TIMESTAMP, f"{where}: not a time of the years 1 to 9999")
        return None

    def _structs(self, values: Sequence[Any], kind: pa.DataType, rows: Numbers, where: str) -> pa.Array:
        columns = []
        for item in kind:
            inner = [None if value is None else value.get(item.name) for value in values]
            columns.append(self.column(inner, item.type, rows, f"{where}.{item.name}"))
        nulls = np.array([value is None for value in values], bool)
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pa.array(nulls))

    def _lists(self, values: Sequence[Any], kind: pa.DataType, rows: Numbers, where: str) -> pa.Array:
        sizes, offsets = _offsets(values)
        inner = list(chain.from_iterable(value for value in values if value is not None))
        elements = self.column(inner, kind.value_type, np.repeat(rows, sizes), f"{where}[]")
        return pa.ListArray.from_arrays(offsets, elements, type=kind)

    def _maps(self, values: Sequence[Any], kind: pa.DataType, rows: Numbers, where: str) -> pa.Array:
        sizes, offsets = _offsets(values)
        owners = np.repeat(rows, sizes)
        keys = list(chain.from_iterable(value for value in values if value is not None))
        items = list(chain.from_iterable(value.values() for value in values if value is not None))
        key_column = self.column(keys, pa.string(), owners, f"{where}, a key")
        if key_column.null_count:  # rejected above; Arrow does not accept NULL as a key
            key_column = key_column.fill_null("")
        return pa.MapArray.from_arrays(
            offsets, key_column, self.column(items, kind.item_type, owners, f"{where}.*"), type=kind
        )

    def _texts(self, values: Sequence[Any], rows: Numbers, where: str) -> pa.Array:
        texts: list[str | None] = []
        for value, row in zip(values, rows.tolist(), strict=True):
            try:
                texts.append(None if value is None else python_as_json(value))
            except (TypeError, ValueError, OverflowError):  # the last: a time beyond the year 9999
                self._refuse(row, Reason.TYPE, f"{where}: {_type_text(value)} cannot be JSON")
                texts.append(None)
        return pa.array(texts, pa.string())


def _offsets(values: Sequence[Any]) -> tuple[Numbers, pa.Int32Array]:
    sizes = np.array([0 if value is None else len(value) for value in values], np.int64)
    nulls = np.array([value is None for value in values] + [False], bool)
    return sizes, pa.array(np.append(0, np.cumsum(sizes)).astype(np.int32), mask=nulls)


def _python(kind: pa.DataType) -> tuple[type, ...]:
    """The Python types of a type's values."""
    if pa.types.is_boolean(kind):
        return (bool,)
    if pa.types.is_integer(kind):
        return (int,)
    if pa.types.is_floating(kind):
        return (float, int)
    if pa.types.is_string(kind):
        return (str,)
    if pa.types.is_binary(kind):
        return (bytes,)
    if pa.types.is_timestamp(kind):
        return (Timestamp,)
    return (list,) if pa.types.is_list(kind) else (dict,)


def python_as_json(value: Any) -> str:
    """A Python value as JSON text, bytes in base64; raises TypeError, ValueError or OverflowError."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_spoken)


def _spoken(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Timestamp):
        return str(value.to_datetime().isoformat()).replace("+00:00", "Z")
    raise TypeError


def _type_text(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", bytes: "bytes", Timestamp: "a time"}
    return names.get(type(value), "an array" if isinstance(value, list) else "a map")
