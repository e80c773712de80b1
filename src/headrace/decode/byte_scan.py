"""Scan the bytes of a whole text column at once, without a parser."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Offsets = np.ndarray[Any, np.dtype[np.int32]]

_QUOTE, _COLON, _SPACE, _BRACE = b'": {'
_BLOCK = 1 << 19  # bytes, an even number
_KEPT = 100_000  # pieces up to which the indices are cached
_KEY_END = _QUOTE | _COLON << 8  # as a little-endian number


class TextBytes:
    """The bytes of a text column, end to end, with the start of each text."""

    def __init__(self, texts: pa.StringArray | pa.BinaryArray) -> None:
        _, offsets, content = texts.buffers()
        starts = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        whole = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
        self.content = whole[starts[0] : starts[-1]]
        self.starts = starts - starts[0]

    @property
    def sizes(self) -> Numbers:
        """Number of bytes of each text."""
        sizes: Numbers = np.diff(self.starts)
        return sizes

    def byte(self, nth: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The nth byte of each text, from the end if negative; 0 if the text is too short."""
        if not len(self.content):
            return np.zeros(len(self.starts) - 1, np.uint8)
        column: np.ndarray[Any, np.dtype[np.uint8]]
        column = np.take(self.content, nth + (self.starts[1:] if nth < 0 else self.starts[:-1]), mode="clip")
        column[self.sizes < (-nth if nth < 0 else nth + 1)] = 0
        return column

    def first(self) -> Mask:
        """Which texts start with a brace."""
        begins: Mask = self.byte(0) == _BRACE
        return begins

    def beyond_ascii(self) -> Mask:
        """Which texts have a byte above 127."""
        return self.holding(self.content > 127)

    def holding(self, marked: Mask) -> Mask:
        """Which texts have one of the marked bytes."""
        holding: Mask = self._counts(np.flatnonzero(marked)) > 0
        return holding

    def text(self, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of one text."""
        return self.content[self.starts[row] : self.starts[row + 1]]

    def keys(self) -> Offsets:
        """Positions of quotes that are followed by a colon, ascending."""
        # Blocks stay in the CPU cache; each includes one byte of the next block.
        blocks = range(0, len(self.content), _BLOCK)
        ends = [_key_ends(self.content[begin : begin + _BLOCK + 1]) + begin for begin in blocks]
        return np.concatenate(ends).astype(np.int32) if ends else np.zeros(0, np.int32)

    def colons(self) -> Numbers:
        """Per text, the number of colons that can end a key: at least as many as it has keys."""
        at = np.flatnonzero(self.content == _COLON)
        before = self.content[at - 1]
        return self._counts(at[(before == _QUOTE) | (before <= _SPACE)])

    def openers(self) -> Numbers:
        """Per text, the number of opening brackets and braces: at least its depth."""
        return self._counts(np.flatnonzero((self.content | 0x20) == _BRACE))

    def _counts(self, positions: Numbers) -> Numbers:
        counts: Numbers = np.diff(np.searchsorted(positions, self.starts))
        return counts


def _key_ends(block: np.ndarray[Any, np.dtype[np.uint8]]) -> Numbers:
    # Compare 16-bit words at even and at odd positions: `":` is one word, and two matches cannot overlap.
    even, odd = (block[by : by + (len(block) - by) // 2 * 2].view("<u2") == _KEY_END for by in (0, 1))
    here = even.copy()
    here[: len(odd)] |= odd
    pairs = np.flatnonzero(here)
    ends: Numbers = 2 * pairs + ~even[pairs]
    return ends


@dataclass(slots=True)
class Cursor:
    """Position of the next value of some records, ascending."""

    pos: Numbers
    end: Numbers
    row: Numbers

    def some(self, which: Numbers) -> Cursor:
        """The cursors at these positions."""
        return Cursor(self.pos[which], self.end[which], self.row[which])

    def __len__(self) -> int:
        return len(self.pos)


def cut(content: Any, starts: Any, ends: Any, kind: pa.DataType) -> pa.Array:
    """Slice bytes at ascending bounds without copying them one by one.

    Bounds (2, 5), (7, 9) are the offsets 2 5 7 9 of an Arrow array with the pieces [2:5], [5:7], [7:9]; every second
    piece is wanted.
    """
    if not len(starts):
        return pa.array([], kind)
    bounds = np.empty((len(starts), 2), np.int32)
    bounds[:, 0], bounds[:, 1] = starts, ends
    pieces = pa.Array.from_buffers(kind, bounds.size - 1, [None, pa.py_buffer(bounds), pa.py_buffer(content)])
    return pieces.take((_kept_seconds if len(starts) <= _KEPT else _seconds)(len(starts)))


def _seconds(count: int) -> pa.Int32Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


_kept_seconds = lru_cache(maxsize=32)(_seconds)


def matches(texts: pa.StringArray, pattern: str) -> Mask:
    """Which texts match the pattern anywhere."""
    return bools(pc.match_substring_regex(texts, pattern))


def bools(column: pa.BooleanArray) -> Mask:
    """A boolean column as a mask; NULL is false."""
    filled = pc.fill_null(column, False) if column.null_count else column
    mask: Mask = filled.to_numpy(zero_copy_only=False)
    return mask


def lengths(lists: pa.Array) -> Numbers:
    """Number of elements of each list or map; 0 for NULL."""
    counted: Numbers = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    if lists.null_count:
        counted[bools(lists.is_null())] = 0
    return counted


def owners(lists: pa.Array) -> Numbers:
    """For each element of a column of lists, the position of its list."""
    return np.repeat(np.arange(len(lists)), lengths(lists))
