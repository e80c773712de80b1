"""Struct, Value and ListValue of Protobuf as JSON text, one value at a time."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

from headrace.decode.proto.wire import FIXED64, LENGTH, VARINT, Malformed, fields
from headrace.reasons import Reason

_PAD = bytes(24)
_KINDS = {1: VARINT, 2: FIXED64, 3: LENGTH, 4: VARINT, 5: LENGTH, 6: LENGTH}  # of a Value's fields
_EXACT = 2**53


def json_text(raw: bytes, kind: str, depth: int) -> str:
    """The JSON text of a Struct, Value or ListValue; Malformed where it is none."""
    value = _READERS[kind](raw + _PAD, 0, len(raw), depth)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _struct(raw: bytes, at: int, end: int, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _, begin, size in _only(raw, at, end, 1, depth):
        key, value = "", None
        for tag, start, length in fields(raw, begin, begin + size, depth):
            if tag == (1 << 3 | LENGTH):
                key = _text(raw, start, length)
            elif tag == (2 << 3 | LENGTH):
                value = _value(raw, start, start + length, depth - 1)
            else:
                raise Malformed(f"an entry has no field {tag >> 3} of wire type {tag & 7}")
        made[key] = value
    return made


def _list(raw: bytes, at: int, end: int, depth: int) -> list[Any]:
    return [_value(raw, begin, begin + size, depth - 1) for _, begin, size in _only(raw, at, end, 1, depth)]


def _value(raw: bytes, at: int, end: int, depth: int) -> Any:
    if depth <= 0:
        raise Malformed("values are nested deeper than the limit", Reason.TOO_DEEP)
    value: Any = None
    for tag, start, word in fields(raw, at, end, depth):
        number = tag >> 3
        if _KINDS.get(number) != tag & 7:
            raise Malformed(f"a value has no field {number} of wire type {tag & 7}")
        if number == 2:
            value = _number(raw, start)
        elif number == 3:
            value = _text(raw, start, word)
        elif number == 4:
            value = bool(word)
        else:
            value = None if number == 1 else (_struct if number == 5 else _list)(raw, start, start + word, depth)
    return value


def _only(raw: bytes, at: int, end: int, number: int, depth: int) -> list[tuple[int, int, int]]:
    """The one field such a type has, as often as it is there."""
    found = list(fields(raw, at, end, depth))
    for tag, _, _ in found:
        if tag != (number << 3 | LENGTH):
            raise Malformed(f"there is no field {tag >> 3} of wire type {tag & 7}")
    return found


def _number(raw: bytes, at: int) -> float | int:
    (number,) = struct.unpack_from("<d", raw, at)
    if not math.isfinite(number):
        raise Malformed("a number that JSON does not have", Reason.TYPE)
    return int(number) if number.is_integer() and abs(number) < _EXACT else float(number)


def _text(raw: bytes, at: int, size: int) -> str:
    try:
        return raw[at : at + size].decode()
    except UnicodeDecodeError as trouble:
        raise Malformed(f"not UTF-8 at byte {trouble.start}", Reason.ENCODING) from None


_READERS = {"Struct": _struct, "Value": _value, "ListValue": _list}
