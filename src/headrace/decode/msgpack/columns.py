"""MessagePack read column by column: a field is read from all records in one NumPy step, with the type of the schema.

Each record has a cursor, its position in the bytes of all records. For `{"id": 1, "ok": true}`, the bytes
82 a2 "id" 01 a2 "ok" c3, a step compares the key a2 "id" at all cursors, reads the number after it where the key
matches, and moves these cursors past it.

A record is taken if every byte of it is what the schema allows. Any other record (another type, a duplicate key, a long
list, a field that is kept as JSON) is left to the exact path, which reads it by itself or gives the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import Cursor, Mask, Numbers, TextBytes, bools, cut
from headrace.decode.msgpack.schema import MsgpackSchema
from headrace.decode.nested import is_json

FEW = 16  # minimum of records for a step
STEP = 128  # keys that the exact path reads in the time of one step
LONGEST = 64  # items of a list
_PAD = 16  # bytes after the last record that a read may touch
_NIL, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
_SECONDS = 253_402_300_799  # end of the year 9999
_FIRST = -62_135_596_800  # start of the year 1

_WIDTH = np.zeros(256, np.int64)  # by tag: bytes of a number after it
_WIDTH[[0xCC, 0xD0]], _WIDTH[[0xCD, 0xD1]], _WIDTH[[0xCE, 0xD2, 0xCA]], _WIDTH[[0xCF, 0xD3, 0xCB]] = 1, 2, 4, 8
_WHOLE = np.zeros(256, bool)  # tags of integers
_WHOLE[:0x80] = _WHOLE[0xE0:] = _WHOLE[0xCC:0xD4] = True
_SMALL = np.zeros(256, np.int64)  # integers that are in the tag itself
_SMALL[:0x80], _SMALL[0xE0:] = np.arange(0x80), np.arange(-32, 0)
_SIGNED = np.zeros(256, bool)
_SIGNED[0xD0:0xD4] = True


@dataclass
class _Field:
    """The values of one field, in parts, and the rows that they belong to."""

    kind: pa.DataType
    parts: list[pa.Array] = field(default_factory=list)
    rows: list[Numbers] = field(default_factory=list)

    def whole(self, count: int) -> pa.Array:
        """The column; NULL where the map does not have the field."""
        if not self.parts:
            return nulls(count, self.kind)
        order = np.concatenate(self.rows)
        values = pa.concat_arrays(self.parts)
        if len(order) == count and len(self.parts) == 1:
            return values
        place = np.full(count, -1, np.int64)
        place[order] = np.arange(len(order))
        return values.take(pa.array(place, mask=place < 0))


class MsgpackColumns:
    """Records of one schema, end to end; each starts after `head` bytes, a map has `keys` keys at most."""

    def __init__(self, values: pa.BinaryArray, head: int, keys: int) -> None:
        seen = TextBytes(values)
        self.data = np.concatenate([seen.content, np.zeros(_PAD, np.uint8)])
        starts = seen.starts.astype(np.int64)
        self.all = Cursor(starts[:-1] + head, starts[1:], np.arange(len(values)))
        self.good = np.ones(len(values), bool)
        self.unknown_fields: list[tuple[str, Numbers]] = []  # fields that the schema does not have, and their rows
        self._keys = keys
        self._big, self._words = self._view(">u8"), self._view("<u8")

    def read(self, schema: MsgpackSchema) -> list[pa.Array]:
        """The columns of all records; only the rows in `good` are valid."""
        tags, count = self.data[self.all.pos], len(self.all)
        fields = {name: _Field(kind) for name, kind in schema.fields}
        for which, read in ((_is_map(tags), self._pairs), (_is_list(tags), self._ordered)):
            at = np.flatnonzero(which)
            if len(at):
                some = self.all.some(at)
                read(some, at, fields)
                self.all.pos[at] = some.pos
        self._leave(self.all, ~(_is_map(tags) | _is_list(tags)) | (self.all.pos != self.all.end))
        return [each.whole(count) for each in fields.values()]

    def _view(self, kind: str) -> np.ndarray:
        """The bytes as numbers of a type that start at every byte."""
        size = np.dtype(kind).itemsize
        return np.ndarray((len(self.data) - size + 1,), kind, self.data.data, strides=(1,))

    # ---- cursors ----

    def _leave(self, cursor: Cursor, odd: Mask) -> None:
        """Leave the records of some cursors to the exact path; the cursors move to the end."""
        if odd.any():
            self.good[cursor.row[odd]] = False
            cursor.pos[odd] = cursor.end[odd]

    def _move(self, cursor: Cursor, by: Numbers | int) -> None:
        cursor.pos += by
        self._leave(cursor, cursor.pos > cursor.end)

    def _count(self, cursor: Cursor, small: int, large: tuple[int, int]) -> Numbers:
        """The number of items or pairs that follow; 0 for a record that is left."""
        tags = self.data[cursor.pos]
        short, long = tags == large[0], tags == large[1]
        width = np.where(short, 2, np.where(long, 4, 0))
        counts = np.where(width == 0, tags.astype(np.int64) - small, self._whole(cursor.pos + 1, width))
        self._move(cursor, 1 + width)
        self._leave(cursor, counts > cursor.end - cursor.pos)
        counts[~self.good[cursor.row]] = 0
        return counts

    def _whole(self, pos: Numbers, width: Numbers) -> Numbers:
        """Unsigned integers of `width` bytes; undefined where the width is 0."""
        shift = (8 * (8 - np.maximum(width, 1))).astype(np.uint64)
        numbers: Numbers = (self._big[np.minimum(pos, len(self._big) - 1)] >> shift).astype(np.int64)
        return numbers

    # ---- maps and lists ----

    def _pairs(self, cursor: Cursor, at: Numbers, fields: dict[str, _Field], *, top: bool = True) -> None:
        """Read maps: a step reads one field from all records whose next key is the same.

        Maps with their keys in another order take more steps. `credit` is in keys: a step earns the keys it reads and
        costs the keys that the exact path reads in the same time. At 0 the records that are not finished are left.
        """
        remaining = self._count(cursor, 0x80, (0xDE, 0xDF))
        self._leave(cursor, remaining > self._keys)
        remaining[~self.good[cursor.row]] = 0
        key_rows: dict[str | None, Mask] = {}
        credit = limit = STEP * (4 * len(fields) + FEW)
        while len(live := np.flatnonzero(remaining > 0)) and credit > 0:
            name, here = self._same_key(cursor, live)
            some, twice = cursor.some(here), key_rows.setdefault(name, np.zeros(len(cursor), bool))
            self._leave(some, twice[here] if name is not None else np.ones(len(here), bool))
            twice[here] = True
            if name in fields:
                fields[name].parts.append(self._value(fields[name].kind, some))
                fields[name].rows.append(at[here])
            else:
                if top:
                    self._pass_over(some)
                    self.unknown_fields.append((str(name), some.row))
                else:
                    self._leave(some, np.ones(len(some), bool))  # the exact path names and counts the field
            cursor.pos[here] = some.pos
            remaining[here] -= 1
            remaining[~self.good[cursor.row]] = 0
            credit = min(limit, credit + len(here) - STEP - len(live) // STEP)
        self._leave(cursor, remaining > 0)

    def _same_key(self, cursor: Cursor, live: Numbers) -> tuple[str | None, Numbers]:
        """The key at the first cursor and all cursors at the same key, moved past it; None if the key is not a text.

        Keys are compared eight bytes at a time: aa "event_t", then "ype" with the rest of the word masked.
        """
        begin, end = int(cursor.pos[live[0]]), int(cursor.end[live[0]])
        tag = int(self.data[begin])
        head = {0xD9: 2, 0xDA: 3}.get(tag, 1)
        size = tag - 0xA0 if head == 1 else int.from_bytes(self.data[begin + 1 : begin + head].tobytes(), "big")
        if not (0xA0 <= tag <= 0xBF or head > 1) or begin + head + size > end:
            return None, live[:1]
        key = self.data[begin : begin + head + size]
        here = live[cursor.pos[live] + len(key) <= cursor.end[live]]
        for nth, (word, mask) in enumerate(zip(_words(key.tobytes()), _words(b"\xff" * len(key)), strict=True)):
            here = here[(self._words[cursor.pos[here] + 8 * nth] & mask) == word]
        cursor.pos[here] += len(key)
        try:
            return key[head:].tobytes().decode(), here
        except UnicodeDecodeError:
            return None, here

    def _pass_over(self, cursor: Cursor) -> None:
        """Skip a value that the schema does not have; a nested one is left."""
        tags = self.data[cursor.pos]
        texts = ((tags >= 0xA0) & (tags <= 0xBF)) | ((tags >= 0xD9) & (tags <= 0xDB))
        plain = _WHOLE[tags] | np.isin(tags, (_NIL, _FALSE, _TRUE, 0xCA, 0xCB))
        self._leave(cursor, ~(texts | plain))
        at = np.flatnonzero(texts)
        if len(at):
            some = cursor.some(at)
            self._value(pa.string(), some)
            cursor.pos[at] = some.pos
        self._move(cursor, np.where(plain, 1 + _WIDTH[tags], 0))

    def _ordered(self, cursor: Cursor, at: Numbers, fields: dict[str, _Field]) -> None:
        """Read arrays in the order of the schema's fields; a shorter one lacks the last fields."""
        remaining = self._count(cursor, 0x90, (0xDC, 0xDD))
        self._leave(cursor, remaining > len(fields))
        for nth, each in enumerate(fields.values()):
            live = np.flatnonzero((remaining > nth) & self.good[cursor.row])
            if not len(live):
                return
            some = cursor.some(live)
            each.parts.append(self._value(each.kind, some))
            each.rows.append(at[live])
            cursor.pos[live] = some.pos

    def _items(self, kinds: Sequence[pa.DataType], cursor: Cursor, counts: Numbers) -> tuple[list[pa.Array], Numbers]:
        """The items of all lists (or pairs of maps) in order, and the lists they belong to.

        Step n reads item n of every list that has one; a sort brings the items of each list together.
        """
        self._leave(cursor, counts > LONGEST)
        counts[~self.good[cursor.row]] = 0
        parts: list[list[pa.Array]] = [[nulls(0, kind)] for kind in kinds]
        owners, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number in range(int(counts.max(initial=0))):
            live = np.flatnonzero(counts > number)
            if len(live) < FEW and number:
                odd = np.zeros(len(cursor), bool)
                odd[live] = True
                self._leave(cursor, odd)
                break
            some = cursor.some(live)
            for kind, part in zip(kinds, parts, strict=True):
                part.append(self._value(kind, some))
            cursor.pos[live] = some.pos
            owners.append(live)
            numbers.append(np.full(len(live), number))
        owner = np.concatenate(owners)
        order = np.lexsort((np.concatenate(numbers), owner))
        return [pa.concat_arrays(part).take(pa.array(order)) for part in parts], owner[order]

    # ---- values ----

    def _value(self, kind: pa.DataType, cursor: Cursor) -> pa.Array:
        """The value at each cursor, NULL where it is nil."""
        nil = self.data[cursor.pos] == _NIL
        if not nil.any():
            return self._there(kind, cursor)
        at = np.flatnonzero(~nil)
        some = cursor.some(at)
        values = self._there(kind, some) if len(at) else nulls(0, kind)
        cursor.pos[at] = some.pos
        self._move(cursor, nil.astype(np.int64))
        place = np.cumsum(~nil) - 1
        return values.take(pa.array(place, mask=nil))

    def _there(self, kind: pa.DataType, cursor: Cursor) -> pa.Array:
        if is_json(kind) or pa.types.is_unsigned_integer(kind):
            self._leave(cursor, np.ones(len(cursor), bool))
            return nulls(len(cursor), kind)
        if pa.types.is_struct(kind):
            return self._struct(kind, cursor)
        if pa.types.is_list(kind):
            return self._list(kind, cursor)
        if pa.types.is_map(kind):
            return self._map(kind, cursor)
        if pa.types.is_boolean(kind):
            return self._boolean(cursor)
        if pa.types.is_integer(kind):
            return self._integer(kind, cursor)
        if pa.types.is_floating(kind):
            return self._float(kind, cursor)
        if pa.types.is_timestamp(kind):
            return self._moment(kind, cursor)
        return self._text(kind, cursor)

    def _boolean(self, cursor: Cursor) -> pa.Array:
        tags = self.data[cursor.pos]
        self._leave(cursor, (tags != _FALSE) & (tags != _TRUE))
        self._move(cursor, self.good[cursor.row].astype(np.int64))
        return pa.array(tags == _TRUE)

    def _numbers(self, cursor: Cursor) -> tuple[Numbers, Mask]:
        """Integers, and which of the values are integers below 2^63."""
        tags = self.data[cursor.pos]
        width = _WIDTH[tags]
        shift = 8 * (8 - np.maximum(width, 1))
        words = self._big[cursor.pos + 1].astype(np.uint64)
        numbers = np.where(
            width == 0,
            _SMALL[tags],
            np.where(_SIGNED[tags], words.view(np.int64) >> shift, (words >> shift.astype(np.uint64)).view(np.int64)),
        )
        return numbers, _WHOLE[tags] & ~((tags == 0xCF) & (numbers < 0))

    def _integer(self, kind: pa.DataType, cursor: Cursor) -> pa.Array:
        width = _WIDTH[self.data[cursor.pos]]
        numbers, whole = self._numbers(cursor)
        half = 1 << (kind.bit_width - 1)
        inside = whole & (numbers >= -half) & (numbers <= half - 1)
        self._leave(cursor, ~inside)
        self._move(cursor, np.where(inside, 1 + width, 0))
        return pa.array(np.where(inside, numbers, 0)).cast(kind)

    def _float(self, kind: pa.DataType, cursor: Cursor) -> pa.Array:
        tags = self.data[cursor.pos]
        numbers, whole = self._numbers(cursor)
        with np.errstate(invalid="ignore"):  # bytes that are not a float are not used
            single = self._view(">f4")[cursor.pos + 1].astype(np.float64)
        double = self._view(">f8")[cursor.pos + 1].astype(np.float64)
        exact = np.where(tags == 0xCB, double, np.where(tags == 0xCA, single, numbers.astype(np.float64)))
        number = whole | (tags == 0xCA) | (tags == 0xCB)
        values = pa.array(exact).cast(kind, safe=False)
        grown = np.isinf(values.to_numpy(zero_copy_only=False)) & ~np.isinf(exact)
        self._leave(cursor, ~number | grown)
        self._move(cursor, np.where(number & ~grown, 1 + _WIDTH[tags], 0))
        return values

    def _text(self, kind: pa.DataType, cursor: Cursor) -> pa.Array:
        """Text or bytes, by the type; a value with the tag of the other is left."""
        tags = self.data[cursor.pos]
        is_text = pa.types.is_string(kind)
        width = _TEXT_WIDTH[tags] if is_text else _BYTES_WIDTH[tags]
        self._leave(cursor, width < 0)
        width = np.maximum(width, 0)
        fixed = (width == 0) if is_text else np.zeros(len(tags), bool)
        sizes = np.where(fixed, tags & 0x1F, self._whole(cursor.pos + 1, width))
        self._move(cursor, np.where(self.good[cursor.row], 1 + width, 0))
        self._leave(cursor, sizes > cursor.end - cursor.pos)
        sizes[~self.good[cursor.row]] = 0
        starts = cursor.pos.copy()
        cursor.pos += sizes
        texts = cut(self.data, starts, cursor.pos, pa.binary())
        return self._utf8(texts, cursor) if is_text else texts

    def _utf8(self, texts: pa.BinaryArray, cursor: Cursor) -> pa.StringArray:
        try:
            return texts.cast(pa.string())
        except pa.ArrowInvalid:
            odd = TextBytes(texts).beyond_ascii()
            self._leave(cursor, odd)
            return pc.if_else(pa.array(odd), pa.scalar(b"", pa.binary()), texts).cast(pa.string())

    def _moment(self, kind: pa.DataType, cursor: Cursor) -> pa.Array:
        """The timestamp extension, in one of its three lengths."""
        tags, at = self.data[cursor.pos], np.minimum(cursor.pos, len(self.data) - _PAD)
        short, middle, long = tags == 0xD6, tags == 0xD7, (tags == 0xC7) & (self.data[at + 1] == 12)
        code = self.data[at + np.where(long, 2, 1)]
        words = self._big[at + 2].astype(np.uint64)
        seconds = np.where(short, words >> np.uint64(32), words & np.uint64((1 << 34) - 1)).astype(np.int64)
        nanos = np.where(middle, words >> np.uint64(34), np.uint64(0)).astype(np.int64)
        if long.any():
            apart = np.minimum(at + 7, len(self._big) - 1)
            seconds = np.where(long, self._big[apart].astype(np.uint64).view(np.int64), seconds)
            nanos = np.where(long, self._whole(at + 3, np.full(len(at), 4)), nanos)
        fits = (short | middle | long) & (code == 0xFF) & (nanos < 1_000_000_000)
        fits &= (seconds >= _FIRST) & (seconds <= _SECONDS)
        self._leave(cursor, ~fits)
        self._move(cursor, np.where(fits, np.where(short, 6, np.where(middle, 10, 15)), 0))
        micros = np.where(fits, seconds, 0) * 1_000_000 + np.where(fits, nanos, 0) // 1_000
        return pa.array(micros).view(kind)

    def _struct(self, kind: pa.DataType, cursor: Cursor) -> pa.Array:
        self._leave(cursor, ~_is_map(self.data[cursor.pos]))
        fields = {item.name: _Field(item.type) for item in kind}
        self._pairs(cursor, np.arange(len(cursor)), fields, top=False)
        columns = [each.whole(len(cursor)) for each in fields.values()]
        return pa.StructArray.from_arrays(columns, fields=list(kind))

    def _list(self, kind: pa.DataType, cursor: Cursor) -> pa.Array:
        self._leave(cursor, ~_is_list(self.data[cursor.pos]))
        (items,), owner = self._items([kind.value_type], cursor, self._count(cursor, 0x90, (0xDC, 0xDD)))
        return pa.ListArray.from_arrays(_offsets(owner, len(cursor)), items, type=kind)

    def _map(self, kind: pa.DataType, cursor: Cursor) -> pa.Array:
        self._leave(cursor, ~_is_map(self.data[cursor.pos]))
        counts = self._count(cursor, 0x80, (0xDE, 0xDF))
        self._leave(cursor, counts > self._keys)
        (keys, items), owner = self._items([pa.string(), kind.item_type], cursor, counts)
        self._leave(cursor, _with_twins(keys, owner, len(cursor)))
        return pa.MapArray.from_arrays(_offsets(owner, len(cursor)), keys.fill_null(""), items, type=kind)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """NULLs of a type; Arrow has no function for extension types."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.nulls(count, kind.storage_type))
    return pa.nulls(count, kind)


def _words(raw: bytes) -> np.ndarray:
    """Bytes as 64-bit words, the last one filled with zeros."""
    return np.frombuffer(raw + b"\0" * (-len(raw) % 8), "<u8")


def _is_map(tags: np.ndarray) -> Mask:
    is_map: Mask = ((tags & 0xF0) == 0x80) | (tags == 0xDE) | (tags == 0xDF)
    return is_map


def _is_list(tags: np.ndarray) -> Mask:
    is_list: Mask = ((tags & 0xF0) == 0x90) | (tags == 0xDC) | (tags == 0xDD)
    return is_list


def _offsets(owner: Numbers, count: int) -> pa.Int32Array:
    counts = np.bincount(owner, minlength=count)
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def _with_twins(keys: pa.StringArray, owner: Numbers, count: int) -> Mask:
    """Which maps have a duplicate key, or a key that is NULL."""
    odd = np.zeros(count, bool)
    encoded = keys.dictionary_encode(null_encoding="encode")
    codes = owner * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
    kinds, counts = np.unique(codes, return_counts=True)
    odd[kinds[counts > 1] // (len(encoded.dictionary) + 1)] = True
    odd[owner[bools(keys.is_null())]] = True
    return odd


def _widths(tags: Sequence[int], small: slice | None = None) -> np.ndarray:
    """By tag, the bytes of the length field; -1 for other tags."""
    widths = np.full(256, -1, np.int64)
    widths[list(tags)] = [1, 2, 4]
    if small:
        widths[small] = 0
    return widths


_TEXT_WIDTH = _widths((0xD9, 0xDA, 0xDB), slice(0xA0, 0xC0))
_BYTES_WIDTH = _widths((0xC4, 0xC5, 0xC6))
