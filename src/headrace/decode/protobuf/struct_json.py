"""Convert Struct, Value and ListValue to JSON text, one value at a time."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.decode.base import DecodeLimits
from headrace.decode.protobuf.wire import FIXED64, LENGTH, VARINT, Malformed, fields
from headrace.reasons import Reason

_PAD = bytes(24)
_KINDS = {1: VARINT, 2: FIXED64, 3: LENGTH, 4: VARINT, 5: LENGTH, 6: LENGTH}  # wire types of Value
_EXACT = 2**53  # integers below it are exact as doubles


def json_text(raw: bytes, kind: str, limits: DecodeLimits) -> str:
    """The JSON text of a Struct, Value or ListValue; raises Malformed."""
    reader = _Reader(raw + _PAD, limits.keys)
    read = {"Struct": reader.object_at, "Value": reader.value_at, "ListValue": reader.array_at}[kind]
    return json.dumps(read(0, len(raw), limits.depth), ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _Reader:
    """The bytes of one value."""

    raw: bytes
    keys: int  # limit for one object

    def object_at(self, at: int, end: int, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for begin, size in self._only(at, end, depth):
            key, value = "", None
            for tag, start, length in fields(self.raw, begin, begin + size, depth):
                if tag == (1 << 3 | LENGTH):
                    key = self._text(start, length)
                elif tag == (2 << 3 | LENGTH):
                    value = self.value_at(start, start + length, depth - 1)
                else:
                    raise Malformed(f"unknown field {tag >> 3} with wire type {tag & 7} in a Struct entry")
            members[key] = value
        if len(members) > self.keys:
            raise Malformed(f"an object has {len(members)} keys, the limit is {self.keys}", Reason.TOO_WIDE)
        return members

    def array_at(self, at: int, end: int, depth: int) -> list[Any]:
        return [self.value_at(begin, begin + size, depth - 1) for begin, size in self._only(at, end, depth)]

    def value_at(self, at: int, end: int, depth: int) -> Any:
        if depth <= 0:
            raise Malformed("values nested deeper than the limit", Reason.TOO_DEEP)
        value: Any = None
        for tag, start, word in fields(self.raw, at, end, depth):
            number = tag >> 3
            if _KINDS.get(number) != tag & 7:
                raise Malformed(f"unknown field {number} with wire type {tag & 7} in a Value")
            if number == 2:
                value = self._number(start)
            elif number == 3:
                value = self._text(start, word)
            elif number == 4:
                value = bool(word)
            elif number == 5:
                value = self.object_at(start, start + word, depth)
            else:
                value = None if number == 1 else self.array_at(start, start + word, depth)
        return value

    def _only(self, at: int, end: int, depth: int) -> Iterator[tuple[int, int]]:
        """Offset and size of each occurrence of field 1, the only field of the type."""
        for tag, begin, size in fields(self.raw, at, end, depth):
            if tag != (1 << 3 | LENGTH):
                raise Malformed(f"unknown field {tag >> 3} with wire type {tag & 7} in a Struct or ListValue")
            yield begin, size

    def _number(self, at: int) -> float | int:
        (number,) = struct.unpack_from("<d", self.raw, at)
        if not math.isfinite(number):
            raise Malformed("NaN and Infinity cannot be stored as JSON", Reason.TYPE)
        return int(number) if number.is_integer() and abs(number) < _EXACT else float(number)

    def _text(self, at: int, size: int) -> str:
        try:
            return self.raw[at : at + size].decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"not UTF-8 at byte {error.start}", Reason.ENCODING) from None
