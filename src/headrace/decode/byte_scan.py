"""Facts about texts that need no parser: counted over the bytes of a whole column at once."""

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
_KEPT = 100_000  # pieces; the places of fewer are not made anew each time
_KEY_END = _QUOTE | _COLON << 8  # as a little-endian number


class TextBytes:
    """The bytes of a text column, laid end to end, with the position where each text begins."""

    def __init__(self, texts: pa.StringArray | pa.BinaryArray) -> None:
        _, offsets, content = texts.buffers()
        starts = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        whole = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
        self.content = whole[starts[0] : starts[-1]]
        self.starts = starts - starts[0]

    @property
    def sizes(self) -> Numbers:
        """How many bytes each text has."""
        sizes: Numbers = np.diff(self.starts)
        return sizes

    def byte(self, nth: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Each text's nth byte, from the end where that is negative; 0 where the text is too short."""
        if not len(self.content):
            return np.zeros(len(self.starts) - 1, np.uint8)
        column: np.ndarray[Any, np.dtype[np.uint8]]
        column = np.take(self.content, nth + (self.starts[1:] if nth < 0 else self.starts[:-1]), mode="clip")
        column[self.sizes < (-nth if nth < 0 else nth + 1)] = 0
        return column

    def first(self) -> Mask:
        """Which texts begin with a brace."""
        begins: Mask = self.byte(0) == _BRACE
        return begins

    def beyond_ascii(self) -> Mask:
        """Which texts hold a byte above 127."""
        return self.holding(self.content > 127)

    def holding(self, marked: Mask) -> Mask:
        """Which texts hold one of the marked bytes."""
        holding: Mask = self._counts(np.flatnonzero(marked)) > 0
        return holding

    def text(self, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of one text."""
        return self.content[self.starts[row] : self.starts[row + 1]]

    def keys(self) -> Offsets:
        """Where a colon follows a quote: positions of the quotes, ascending."""
        # Block by block, which stays in the cache; each sees one byte of the next.
        blocks = range(0, len(self.content), _BLOCK)
        ends = [_key_ends(self.content[begin : begin + _BLOCK + 1]) + begin for begin in blocks]
        return np.concatenate(ends).astype(np.int32) if ends else np.zeros(0, np.int32)

    def colons(self) -> Numbers:
        """Per text, the colons that may end a key: as many as it has keys, or more, never fewer."""
        at = np.flatnonzero(self.content == _COLON)
        before = self.content[at - 1]
        return self._counts(at[(before == _QUOTE) | (before <= _SPACE)])

    def openers(self) -> Numbers:
        """Per text, the brackets and braces that may open a level: no text is deeper than that."""
        return self._counts(np.flatnonzero((self.content | 0x20) == _BRACE))

    def _counts(self, positions: Numbers) -> Numbers:
        counts: Numbers = np.diff(np.searchsorted(positions, self.starts))
        return counts


def _key_ends(block: np.ndarray[Any, np.dtype[np.uint8]]) -> Numbers:
    # In steps of 16 bits, from an even and from an odd position: no two such places overlap.
    even, odd = (block[by : by + (len(block) - by) // 2 * 2].view("<u2") == _KEY_END for by in (0, 1))
    here = even.copy()
    here[: len(odd)] |= odd
    pairs = np.flatnonzero(here)
    ends: Numbers = 2 * pairs + ~even[pairs]
    return ends


@dataclass(slots=True)
class Cursor:
    """Where in some records the next value begins; ascending, so that what is cut out lies in order."""

    pos: Numbers
    end: Numbers
    row: Numbers

    def some(self, which: Numbers) -> Cursor:
        """The cursors of a part of them."""
        return Cursor(self.pos[which], self.end[which], self.row[which])

    def __len__(self) -> int:
        return len(self.pos)


def cut(content: Any, starts: Any, ends: Any, kind: pa.DataType) -> pa.Array:
    """Pieces of some bytes, in their order: every second part of what their bounds divide the bytes into."""
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
    """Which texts hold a match of the pattern."""
    return bools(pc.match_substring_regex(texts, pattern))


def bools(column: pa.BooleanArray) -> Mask:
    """A boolean column as a mask; NULL is false."""
    filled = pc.fill_null(column, False) if column.null_count else column
    mask: Mask = filled.to_numpy(zero_copy_only=False)
    return mask


def lengths(lists: pa.Array) -> Numbers:
    """How many elements each list or map holds; none where it is NULL."""
    counted: Numbers = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    if lists.null_count:
        counted[bools(lists.is_null())] = 0
    return counted


def owners(lists: pa.Array) -> Numbers:
    """For each element of a column of lists, the position of the list it is in."""
    return np.repeat(np.arange(len(lists)), lengths(lists))
