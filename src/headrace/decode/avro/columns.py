"""Read Avro's binary encoding column by column: each step reads one field of all records with NumPy.

Every record has a cursor, its position in the bytes of all records; reading a field moves all cursors. For the schema
{id: long, name: string} and the record 02 04 "ab", one step reads 02 (zigzag: 1) at all cursors, the next step the
length 04 (2) and the text. Arrays and maps are read item by item, the longest ones record by record. The cursor of an
invalid record moves to its end, so that other records are not affected.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.avro.schema import UNION, Type
from headrace.decode.avro.value_reader import AvroValueReader
from headrace.decode.byte_scan import Cursor, Mask, Numbers, TextBytes, cut
from headrace.decode.scalars import UnfitValue
from headrace.reasons import Reason

FEW = 16  # unfinished arrays below which each is read by itself
_TEXTS = 16  # factor for arrays of texts, whose bounds are cheaper to find
_PAD = 16  # bytes after the last record that a read may touch
_TOPS = np.uint64(0x8080808080808080)
_REST = np.uint64(0x7F7F7F7F7F7F7F7F)
_SQUEEZE = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]
_ONE = np.uint64(1)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of the years 1 and 9999
_HEX = np.array([b"%02x" % number for number in range(256)]).view(np.uint8).reshape(256, 2)


class AvroColumns:
    """Records of one schema, end to end; each starts after `head` bytes."""

    def __init__(self, values: pa.BinaryArray, head: int = 0) -> None:
        seen = TextBytes(values)
        self.data = np.concatenate([seen.content, np.zeros(_PAD, np.uint8)])
        starts = seen.starts.astype(np.int64)
        self.all = Cursor(starts[:-1] + head, starts[1:], np.arange(len(values)))
        self.bad = np.zeros(len(values), bool)
        self.verdicts: dict[int, tuple[Reason, str]] = {}
        self._words = self._view(np.dtype("<u8"))
        self._last: Numbers | None = None  # bytes that end a number

    def read(self, kind: Type) -> pa.Array:
        """Read one value of every record; a record with bytes after its value is invalid."""
        values = self.value(kind, self.all, "")
        unread = np.flatnonzero((self.all.pos < self.all.end) & ~self.bad)
        for at in unread.tolist():
            rest = self.all.end[at] - self.all.pos[at]
            self._refuse(self.all.row[at : at + 1], Reason.TRAILING_DATA, f"{rest} bytes follow the value")
        return values

    def _view(self, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """The bytes as numbers of a type that start at every byte."""
        count = len(self.data) - kind.itemsize + 1
        return np.ndarray((count,), kind, self.data.data, strides=(1,))

    # ---- errors ----

    def _refuse(self, rows: Numbers, reason: Reason, detail: str) -> None:
        for row in np.unique(rows[~self.bad[rows]]).tolist():
            self.verdicts[row] = (reason, detail)
        self.bad[rows] = True

    def _stop(self, cursor: Cursor, wrong: Mask, reason: Reason, what: str, where: str) -> None:
        """Reject the records of some cursors and move the cursors to the end."""
        self._refuse(cursor.row[wrong], reason, f"{where.removeprefix('.')}: {what}" if where else what)
        cursor.pos[wrong] = cursor.end[wrong]

    def _moved(self, cursor: Cursor, by: Any, where: str) -> None:
        cursor.pos += by
        over = cursor.pos > cursor.end
        if over.any():
            self._stop(cursor, over, Reason.MALFORMED, "unexpected end of value", where)

    # ---- values ----

    def value(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        """Read one value at each cursor."""
        return _READERS[kind.kind](self, kind, cursor, where)

    def _null(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        return pa.nulls(len(cursor))

    def _boolean(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        tags = self.data[cursor.pos]
        self._moved(cursor, 1, where)
        if (tags > 1).any():
            self._stop(cursor, tags > 1, Reason.MALFORMED, "invalid boolean byte", where)
        return pa.array(tags == 1)

    def _number(self, cursor: Cursor, where: str) -> Numbers:
        """Read varints, eight bytes of each at once.

        A varint has seven bits per byte, lowest first; the high bit says that another byte follows: 96 01 is
        0x16 + (0x01 << 7) = 150, with zigzag 75. The eight bytes at a cursor are one 64-bit word. The lowest byte
        without a high bit ends the number; the bits up to it are kept, and shifts close the gaps of the high bits.
        """
        first = self.data[cursor.pos]
        if (first < 0x80).all():  # fast path: lengths and branches mostly have one byte
            self._moved(cursor, 1, where)
            return _signed(first.astype(np.uint64))
        value = self._words[cursor.pos]
        stops = ~value
        stops &= _TOPS
        inside = stops - _ONE
        inside ^= stops  # all bits up to the byte that ends the number
        value &= inside
        value &= _REST
        inside &= _TOPS
        size = np.bitwise_count(inside).astype(np.int64)
        for low, high, shift in _SQUEEZE:
            upper = value & high
            upper >>= shift
            value &= low
            value |= upper
        if not stops.all():
            self._long_numbers(np.flatnonzero(stops == 0), cursor, value, size, where)
        self._moved(cursor, size, where)
        return _signed(value)

    def _long_numbers(self, at: Numbers, cursor: Cursor, value: Any, size: Numbers, where: str) -> None:
        """Read the few varints that have a ninth and a tenth byte."""
        ninth, tenth = (self.data[cursor.pos[at] + more].astype(np.uint64) for more in (8, 9))
        value[at] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
        more = ninth >= 0x80
        value[at] |= np.where(more, tenth & _ONE, np.uint64(0)) << np.uint64(63)
        size[at] = np.where(more, 10, 9)
        if (beyond := more & (tenth > 1)).any():
            wrong = np.zeros(len(cursor), bool)
            wrong[at[beyond]] = True
            self._stop(cursor, wrong, Reason.MALFORMED, "a number has more than 64 bits", where)
            size[at[beyond]] = 0

    def _int(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        numbers = self._number(cursor, where)
        narrow = numbers.astype(np.int32)
        if (narrow != numbers).any():
            self._stop(cursor, narrow != numbers, Reason.MALFORMED, "an int has more than 32 bits", where)
        if not pa.types.is_date(kind.arrow):
            return pa.array(narrow)
        if (wrong := (narrow < _FIRST_DAY) | (narrow > _LAST_DAY)).any():
            self._stop(cursor, wrong, Reason.TIMESTAMP, "not a date of the years 1 to 9999", where)
        return pa.array(narrow).view(kind.arrow)

    def _long(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        return pa.array(self._number(cursor, where)).view(kind.arrow)

    def _float(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        numbers = self._view(np.dtype("<f4" if kind.kind == "float" else "<f8"))[cursor.pos]
        self._moved(cursor, kind.width, where)
        return pa.array(numbers)

    def _enum(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        numbers = self._number(cursor, where)
        wrong = (numbers < 0) | (numbers >= len(kind.names))
        if wrong.any():
            self._stop(
                cursor,
                wrong,
                Reason.MALFORMED,
                "enum index out of range",
                where,
            )
            numbers[wrong] = 0
        return pa.array(kind.names, pa.string()).take(pa.array(numbers))

    def _text(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        starts, sizes = self._spans(kind, cursor, where)
        if kind.is_decimal:
            return self._decimals(kind, cursor, starts, sizes, where)
        if kind.kind == "fixed" and pa.types.is_string(kind.arrow):
            return self._uuids(starts)
        texts = cut(self.data, starts, starts + sizes, pa.binary())
        return texts if kind.kind != "string" else self._texts(texts, cursor, where)

    def _spans(self, kind: Type, cursor: Cursor, where: str) -> tuple[Numbers, Numbers]:
        """Start and size of bytes or texts."""
        if kind.width is None:
            sizes = self._number(cursor, where)
            beyond = (sizes < 0) | (sizes > cursor.end - cursor.pos)
        else:
            sizes = np.full(len(cursor), kind.width)
            beyond = sizes > cursor.end - cursor.pos
        if beyond.any():
            self._stop(cursor, beyond, Reason.MALFORMED, "unexpected end of value", where)
            sizes[beyond] = 0
        starts = cursor.pos.copy()
        cursor.pos += sizes
        return starts, sizes

    def _texts(self, texts: pa.BinaryArray, cursor: Cursor, where: str) -> pa.StringArray:
        try:
            return texts.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = np.zeros(len(texts), bool)
            for at in np.flatnonzero(TextBytes(texts).beyond_ascii()).tolist():
                try:
                    texts[at].as_py().decode()
                except UnicodeDecodeError:
                    wrong[at] = True
            self._stop(cursor, wrong, Reason.ENCODING, "text that is not UTF-8", where)
            return pc.if_else(pa.array(wrong), pa.scalar(b"", pa.binary()), texts).cast(pa.string())

    def _decimals(self, kind: Type, cursor: Cursor, starts: Numbers, sizes: Numbers, where: str) -> pa.Array:
        """Decimals from two's complement, highest byte first, to 128 bits, lowest byte first."""
        whole = np.zeros((len(starts), 16), np.uint8)
        whole[(sizes > 0) & (self.data[starts] >= 0x80)] = 0xFF
        long, empty = sizes > 16, (sizes == 0) & ~self.bad[cursor.row]
        for place in range(min(16, int(sizes.max(initial=0)))):
            there = sizes > place
            whole[there, place] = self.data[(starts + sizes - 1 - place)[there]]
        for at in np.flatnonzero(long).tolist():
            begin, size = int(starts[at]), int(sizes[at])
            number = int.from_bytes(self.data[begin : begin + size].tobytes(), "big", signed=True)
            long[at] = not -(2**127) <= number < 2**127
        if empty.any():
            self._stop(cursor, empty, Reason.MALFORMED, "empty decimal", where)
        over = long | _beyond(whole, kind.arrow.precision)
        if over.any():
            detail = f"a decimal has more than {kind.arrow.precision} digits"
            self._stop(cursor, over, Reason.OVERFLOW, detail, where)
            whole[over] = 0
        return pa.Array.from_buffers(kind.arrow, len(starts), [None, pa.py_buffer(whole.tobytes())])

    def _uuids(self, starts: Numbers) -> pa.StringArray:
        digits = _HEX[self.data[starts[:, None] + np.arange(16)]].reshape(-1, 32)
        text = np.full((len(starts), 36), ord("-"), np.uint8)
        text[:, [*range(8), *range(9, 13), *range(14, 18), *range(19, 23), *range(24, 36)]] = digits
        offsets = np.arange(len(starts) + 1, dtype=np.int32) * 36
        return pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))

    # ---- nested types ----

    def _record(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        columns = [
            self.value(child, cursor, f"{where}.{name}") for name, child in zip(kind.names, kind.children, strict=True)
        ]
        if not columns:
            return pa.array([{}] * len(cursor), kind.arrow)
        return pa.StructArray.from_arrays(columns, fields=list(kind.arrow))

    def _union(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        tags = self._number(cursor, where)
        wrong = (tags < 0) | (tags >= len(kind.children))
        if wrong.any():
            self._stop(cursor, wrong, Reason.MALFORMED, "union index out of range", where)
        if kind.only is not None:
            return self._branch(*kind.only, tags, cursor, where)
        branches = [
            self._branch(at, child, tags, cursor, where)
            for at, child in enumerate(kind.children)
            if child.kind != "null"
        ]
        if not branches:
            return pa.nulls(len(cursor))
        none = np.isin(tags, [at for at, child in enumerate(kind.children) if child.kind == "null"]) | wrong
        return pa.StructArray.from_arrays(branches, fields=list(kind.arrow), mask=pa.array(none))

    def _branch(self, at: int, kind: Type, tags: Numbers, cursor: Cursor, where: str) -> pa.Array:
        """Values of one branch of a union; NULL where the value has another branch."""
        matches = tags == at
        if matches.all():
            return self.value(kind, cursor, where)
        which = np.flatnonzero(matches)
        if not len(which):
            return pa.nulls(len(cursor), kind.arrow)
        some = cursor.some(which)
        values = self.value(kind, some, where)
        cursor.pos[which] = some.pos
        return values.take(pa.array(np.cumsum(matches) - 1, mask=~matches))

    def _array(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        items, offsets = self._items(kind.children[0], cursor, f"{where}[]")
        return pa.ListArray.from_arrays(offsets, items, type=kind.arrow)

    def _map(self, kind: Type, cursor: Cursor, where: str) -> pa.Array:
        entries, offsets = self._items(kind.entry, cursor, f"{where}.*")
        keys, values = entries.field(0), entries.field(1)
        return pa.MapArray.from_arrays(offsets, keys, values, type=kind.arrow)

    def _items(self, kind: Type, cursor: Cursor, where: str) -> tuple[pa.Array, pa.Int32Array]:
        """All items of arrays in order, and the offsets of each array: step n reads item n of every array."""
        walk = _Walk(self, kind, cursor, where)
        walk.run()
        return walk.joined()

    def block(self, kind: Type, cursor: Cursor, where: str) -> Numbers:
        """Number of items in the next block; 0 at the end of an array."""
        counts = self._number(cursor, where)
        sized = np.flatnonzero(counts < 0)
        if len(sized):
            some = cursor.some(sized)
            self._number(some, where)  # the block's bytes, for readers that skip it
            cursor.pos[sized] = some.pos
            counts[sized] = -counts[sized]
        wrong = (counts < 0) | (counts > (cursor.end - cursor.pos) // kind.least)
        if wrong.any():
            self._stop(cursor, wrong, Reason.MALFORMED, "a block has more items than there are bytes", where)
        counts[self.bad[cursor.row]] = 0
        return counts

    def ends(self) -> Numbers:
        """Positions of bytes that can end a varint."""
        if self._last is None:
            self._last = np.flatnonzero(self.data < 0x80)
        return self._last

    def alone(self, kind: Type, cursor: Cursor, count: int, where: str) -> tuple[pa.Array, int]:
        """Read the rest of one array item by item."""
        exact = AvroValueReader(self.data.data, int(cursor.end[0]))
        if kind.is_text:
            return self._texts_alone(exact, kind, cursor, count, where)
        try:
            values, cursor.pos[0] = exact.rest(kind, int(cursor.pos[0]), count)
        except UnfitValue as unfit:
            self._stop(cursor, np.ones(1, bool), unfit.reason, unfit.what, where + unfit.where)
            values = []
        return pa.array(values, kind.arrow), len(values)

    def _texts_alone(
        self, exact: AvroValueReader, kind: Type, cursor: Cursor, count: int, where: str
    ) -> tuple[pa.Array, int]:
        """Read the rest of one array of texts: only their bounds are read one by one, as a value may have millions."""
        starts, sizes, error = array("i"), array("i"), None
        try:
            cursor.pos[0] = exact.spans(kind, int(cursor.pos[0]), count, starts, sizes)
        except UnfitValue as unfit:
            error = unfit
        begin = np.array(starts, np.int64)
        pieces = cut(self.data, begin, begin + np.array(sizes, np.int64), pa.binary())
        items = Cursor(*(np.repeat(each, len(pieces)) for each in (cursor.pos, cursor.end, cursor.row)))
        texts = self._texts(pieces, items, where) if kind.kind == "string" else pieces
        if error is not None:
            self._stop(cursor, np.ones(1, bool), error.reason, error.what, where + error.where)
        if self.bad[cursor.row[0]]:
            cursor.pos[0] = cursor.end[0]
            return pa.nulls(0, kind.arrow), 0
        return texts, len(texts)


class _Walk:
    """Read the items of many arrays."""

    def __init__(self, wire: AvroColumns, kind: Type, cursor: Cursor, where: str) -> None:
        self.wire, self.kind, self.cursor, self.where = wire, kind, cursor, where
        self.left = np.zeros(len(cursor), np.int64)  # items left in the current block of each array
        self.met = np.zeros(len(cursor), np.int64)  # items so far
        self.parts: list[tuple[pa.Array, Numbers, Numbers]] = []  # items, of which array, and their number in it

    def run(self) -> None:
        live = self._opened(np.flatnonzero(~self.wire.bad[self.cursor.row]))
        at_once = self.kind.kind in ("int", "long", "enum") or self.kind.width is not None
        few = FEW * _TEXTS if self.kind.is_text else FEW
        while len(live):
            if at_once:
                self._whole_blocks(live)
            elif len(live) < few:
                self._alone(live)
                return
            else:
                self._one_of_each(live)
            live = self._opened(live)

    def _opened(self, live: Numbers) -> Numbers:
        """Arrays that have another item, in this block or the next."""
        need = live[self.left[live] == 0]
        if len(need):
            some = self.cursor.some(need)
            self.left[need] = self.wire.block(self.kind, some, self.where)
            self.cursor.pos[need] = some.pos
        return live[(self.left[live] > 0) & ~self.wire.bad[self.cursor.row[live]]]

    def _one_of_each(self, live: Numbers) -> None:
        some = self.cursor.some(live)
        values = self.wire.value(self.kind, some, self.where)
        self.cursor.pos[live] = some.pos
        self._add(values, live, self.met[live])
        self.met[live] += 1
        self.left[live] -= 1

    def _whole_blocks(self, live: Numbers) -> None:
        """Read items whose bounds need no decoding: items of one width, and varints."""
        counts, begin = self.left[live], self.cursor.pos[live]
        owner = np.repeat(np.arange(len(live)), counts)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        if self.kind.width is not None:
            starts, after = begin[owner] + number * self.kind.width, begin + counts * self.kind.width
        else:
            starts, after = self._number_bounds(begin, counts, owner, number)
        items = Cursor(starts, self.cursor.end[live][owner], self.cursor.row[live][owner])
        values = self.wire.value(self.kind, items, self.where)
        self.cursor.pos[live] = np.minimum(after, self.cursor.end[live])
        self._add(values, live[owner], self.met[live][owner] + number)
        self.met[live] += counts
        self.left[live] = 0

    def _number_bounds(
        self, begin: Numbers, counts: Numbers, owner: Numbers, number: Numbers
    ) -> tuple[Numbers, Numbers]:
        ends = self.wire.ends()
        first = np.searchsorted(ends, begin)
        last = np.minimum(first + counts - 1, len(ends) - 1)
        nth = np.minimum(first[owner] + number, len(ends) - 1)
        starts = np.where(number == 0, begin[owner], ends[nth - 1] + 1)
        return np.minimum(starts, self.cursor.end.max(initial=0)), ends[last] + 1

    def _alone(self, live: Numbers) -> None:
        for at in live.tolist():
            one = self.cursor.some(np.array([at]))
            values, count = self.wire.alone(self.kind, one, int(self.left[at]), self.where)
            self.cursor.pos[at] = one.pos[0]
            self._add(values, np.full(count, at), self.met[at] + np.arange(count))
            self.met[at] += count

    def _add(self, values: pa.Array, owner: Numbers, number: Numbers) -> None:
        self.parts.append((values, owner, number))

    def joined(self) -> tuple[pa.Array, pa.Int32Array]:
        offsets = np.concatenate([[0], np.cumsum(self.met)])
        begins = pa.array(offsets.astype(np.int32))
        if not self.parts:
            return pa.nulls(0, self.kind.arrow), begins
        items = pa.concat_arrays([part for part, _, _ in self.parts])
        order = np.empty(len(items), np.int64)
        order[np.concatenate([offsets[owner] + number for _, owner, number in self.parts])] = np.arange(len(items))
        return (items if len(self.parts) == 1 else items.take(pa.array(order))), begins


def _signed(value: np.ndarray[Any, np.dtype[np.uint64]]) -> Numbers:
    """Numbers from zigzag encoding: 0, 1, 2, 3 are 0, -1, 1, -2."""
    sign = np.uint64(0) - (value & _ONE)
    value >>= _ONE
    value ^= sign
    return value.view(np.int64)


def _beyond(whole: np.ndarray[Any, Any], precision: int) -> Mask:
    """Which 128-bit numbers have more digits than the precision."""
    low = np.ascontiguousarray(whole[:, :8]).view("<u8").reshape(-1)
    high = np.ascontiguousarray(whole[:, 8:]).view("<i8").reshape(-1)
    (above_high, above_low), (below_high, below_low) = (divmod(sign * 10**precision, 1 << 64) for sign in (1, -1))
    above = (high > above_high) | ((high == above_high) & (low >= np.uint64(above_low)))
    below = (high < below_high) | ((high == below_high) & (low <= np.uint64(below_low)))
    beyond: Mask = above | below
    return beyond


_READERS = {
    "null": AvroColumns._null,
    "boolean": AvroColumns._boolean,
    "int": AvroColumns._int,
    "long": AvroColumns._long,
    "float": AvroColumns._float,
    "double": AvroColumns._float,
    "bytes": AvroColumns._text,
    "string": AvroColumns._text,
    "fixed": AvroColumns._text,
    "enum": AvroColumns._enum,
    "record": AvroColumns._record,
    UNION: AvroColumns._union,
    "array": AvroColumns._array,
    "map": AvroColumns._map,
}
