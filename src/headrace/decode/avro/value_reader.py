"""Read Avro's binary encoding one value at a time: for few values, and to find where records end."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from headrace.decode.avro.schema import UNION, Type
from headrace.decode.scalars import UnfitValue
from headrace.reasons import Reason

ValueAndEnd = tuple[Any, int]  # a value, and where the next begins
_EXACT = Context(prec=60)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


class AvroValueReader:
    """Reads from bytes up to an end."""

    def __init__(self, data: Any, end: int) -> None:
        self._data, self._end = data, end

    def value(self, kind: Type, at: int) -> ValueAndEnd:
        """The value at a position; raises UnfitValue if it is invalid."""
        return _READERS[kind.kind](self, kind, at)

    def rest(self, kind: Type, at: int, count: int) -> tuple[list[Any], int]:
        """The items of an array from within a block that has `count` more items, to the array's end."""
        values: list[Any] = []
        while count:
            for _ in range(count):
                item, at = self._within(kind, at, "")
                values.append(item)
            count, at = self._block(kind, at)
        return values, at

    def spans(self, kind: Type, at: int, count: int, starts: array[int], sizes: array[int]) -> int:
        """Start and size of the texts of an array, from the same position as `rest`; the texts are not checked."""
        data, end = self._data, self._end
        while count:
            for _ in range(count):
                if at < end and (size := data[at]) < 0x80 and not size & 1:  # nearly always
                    size, at = size >> 1, at + 1
                else:
                    size, at = self._number(at)
                if not 0 <= size <= end - at:
                    raise _early()
                starts.append(at)
                sizes.append(size)
                at += size
            count, at = self._block(kind, at)
        return at

    def _within(self, kind: Type, at: int, step: str) -> ValueAndEnd:
        try:
            return self.value(kind, at)
        except UnfitValue as unfit:
            raise unfit.within(step) from None

    def _block(self, kind: Type, at: int) -> tuple[int, int]:
        count, at = self._number(at)
        if count < 0:
            _, at = self._number(at)
            count = -count
        if count > (self._end - at) // kind.least:
            raise UnfitValue(Reason.MALFORMED, "a block has more items than there are bytes")
        return count, at

    def _number(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            if at >= self._end:
                raise _early()
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise UnfitValue(Reason.MALFORMED, "a number has more than 64 bits")
        if value >= 1 << 64:
            raise UnfitValue(Reason.MALFORMED, "a number has more than 64 bits")
        return (value >> 1) ^ -(value & 1), at

    def _bytes(self, kind: Type, at: int) -> tuple[bytes, int]:
        size, at = (kind.width, at) if kind.width is not None else self._number(at)
        if not 0 <= size <= self._end - at:
            raise _early()
        return bytes(self._data[at : at + size]), at + size

    # ---- kinds ----

    def _null(self, kind: Type, at: int) -> ValueAndEnd:
        return None, at

    def _boolean(self, kind: Type, at: int) -> ValueAndEnd:
        (byte,), at = self._bytes(kind, at)
        if byte > 1:
            raise UnfitValue(Reason.MALFORMED, "invalid boolean byte")
        return byte == 1, at

    def _int(self, kind: Type, at: int) -> ValueAndEnd:
        number, at = self._number(at)
        if not -(1 << 31) <= number < 1 << 31:
            raise UnfitValue(Reason.MALFORMED, "an int has more than 32 bits")
        if pa.types.is_date(kind.arrow) and not _FIRST_DAY <= number <= _LAST_DAY:
            raise UnfitValue(Reason.TIMESTAMP, "not a date of the years 1 to 9999")
        return number, at

    def _long(self, kind: Type, at: int) -> ValueAndEnd:
        return self._number(at)

    def _float(self, kind: Type, at: int) -> ValueAndEnd:
        raw, at = self._bytes(kind, at)
        return struct.unpack("<f" if kind.kind == "float" else "<d", raw)[0], at

    def _enum(self, kind: Type, at: int) -> ValueAndEnd:
        number, at = self._number(at)
        if not 0 <= number < len(kind.names):
            raise UnfitValue(Reason.MALFORMED, "enum index out of range")
        return kind.names[number], at

    def _text(self, kind: Type, at: int) -> ValueAndEnd:
        raw, at = self._bytes(kind, at)
        if kind.is_decimal:
            return _decimal(kind, raw), at
        if kind.kind == "fixed" and pa.types.is_string(kind.arrow):
            return str(UUID(bytes=raw)), at
        if kind.kind != "string":
            return raw, at
        try:
            return raw.decode(), at
        except UnicodeDecodeError:
            raise UnfitValue(Reason.ENCODING, "text that is not UTF-8") from None

    def _record(self, kind: Type, at: int) -> ValueAndEnd:
        record = {}
        for name, child in zip(kind.names, kind.children, strict=True):
            record[name], at = self._within(child, at, f".{name}")
        return record, at

    def _union(self, kind: Type, at: int) -> ValueAndEnd:
        tag, at = self._number(at)
        if not 0 <= tag < len(kind.children):
            raise UnfitValue(Reason.MALFORMED, "union index out of range")
        value, at = self.value(kind.children[tag], at)
        if kind.only is not None or kind.children[tag].kind == "null":
            return value, at
        return {kind.names[tag]: value}, at

    def _array(self, kind: Type, at: int) -> ValueAndEnd:
        try:
            return self.rest(kind.children[0], *reversed(self._block(kind.children[0], at)))
        except UnfitValue as unfit:
            raise unfit.within("[]") from None

    def _map(self, kind: Type, at: int) -> ValueAndEnd:
        try:
            entries, at = self.rest(kind.entry, *reversed(self._block(kind.entry, at)))
        except UnfitValue as unfit:
            raise unfit.within(".*") from None
        return [(entry["key"], entry["value"]) for entry in entries], at


def _early() -> UnfitValue:
    return UnfitValue(Reason.MALFORMED, "unexpected end of value")


def _decimal(kind: Type, raw: bytes) -> Decimal:
    if not raw:
        raise UnfitValue(Reason.MALFORMED, "empty decimal")
    number = int.from_bytes(raw, "big", signed=True)
    if abs(number) >= 10**kind.arrow.precision:
        raise UnfitValue(Reason.OVERFLOW, f"a decimal has more than {kind.arrow.precision} digits")
    return Decimal(number).scaleb(-kind.arrow.scale, _EXACT)


_READERS: dict[str, Callable[[AvroValueReader, Type, int], ValueAndEnd]] = {
    "null": AvroValueReader._null,
    "boolean": AvroValueReader._boolean,
    "int": AvroValueReader._int,
    "long": AvroValueReader._long,
    "float": AvroValueReader._float,
    "double": AvroValueReader._float,
    "bytes": AvroValueReader._text,
    "string": AvroValueReader._text,
    "fixed": AvroValueReader._text,
    "enum": AvroValueReader._enum,
    "record": AvroValueReader._record,
    UNION: AvroValueReader._union,
    "array": AvroValueReader._array,
    "map": AvroValueReader._map,
}
