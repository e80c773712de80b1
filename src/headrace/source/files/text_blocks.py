"""Blocks of text files, cut into rows: lines, or elements of a JSON array. The bytes are not parsed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from headrace.decode.byte_scan import Mask, Numbers
from headrace.reasons import Reason
from headrace.source.files.compressed import DamagedFile, Read
from headrace.source.files.rows import Reject

BLOCK = 4 << 20  # bytes
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_NEWLINE, _RETURN, _QUOTE, _BACKSLASH, _COMMA = b'\n\r"\\,'
_SPACES, _OPENERS, _CLOSERS = np.zeros(256, bool), np.zeros(256, bool), np.zeros(256, bool)
_SPACES[list(_BLANK)] = _OPENERS[list(b"[{")] = _CLOSERS[list(b"]}")] = True
_NO_ROWS: Numbers = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Bounds of the complete rows in a buffer, and the position after them."""

    starts: Numbers = field(default_factory=lambda: _NO_ROWS)
    ends: Numbers = field(default_factory=lambda: _NO_ROWS)
    rest: int = 0
    closed: bool = False  # whether the text has ended before the file
    damage: Reject | None = None  # why the text cannot be read from `rest` on


class TextCutter(Protocol):
    """Cuts the text of a file into rows."""

    resync: bool  # whether the row after one that is too big can be found

    def cut(self, buffer: bytes, *, final: bool) -> Cuts:
        """The rows of a buffer, which begins at a row; `final`: it reaches to the end of the file."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Rows in a part of a file."""

    buffer: bytes
    starts: Numbers
    ends: Numbers
    position: int  # in the file, after the last row
    reject: Reject | None = None  # of the only row
    damaged: bool = False  # whether rows after it cannot be read

    def __len__(self) -> int:
        return len(self.starts)


class _Input:
    """The text of a file, which may be damaged."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.damage: Reject | None = None

    def next(self) -> bytes:
        """The next bytes; none at the end, and where the file is damaged."""
        try:
            return self._read(BLOCK)
        except DamagedFile as damage:
            self.damage = damage.reason, damage.detail
            return b""

    def start(self) -> tuple[int, bytes]:
        """Position and bytes of the beginning, after a byte-order mark."""
        data = b""
        while len(data) < len(_BOM) and (more := self.next()):
            data += more
        return (len(_BOM), data[len(_BOM) :]) if data.startswith(_BOM) else (0, data)


def text_blocks(read: Read, cutter: TextCutter, record_bytes: int, position: int = 0) -> Iterator[TextBlock]:
    """The rows of a text from the position of a row on."""
    text = _Input(read)
    position, buffer = text.start() if position == 0 else (position, text.next())
    fresh = bool(buffer)
    while True:
        cuts = cutter.cut(buffer, final=not fresh and text.damage is None)
        position += cuts.rest
        yield TextBlock(buffer, cuts.starts, cuts.ends, position)
        buffer = buffer[cuts.rest :]
        damage = cuts.damage or (text.damage if not fresh else None)
        if damage is None and cuts.closed:
            buffer, damage = _after_end(text, buffer)
        if damage is None and len(buffer) > record_bytes + BLOCK:
            damage = Reason.TOO_BIG, f"more than {record_bytes} bytes, which is the limit"
            if cutter.resync:
                yield _rejected(buffer[:record_bytes], damage, position)
                position, buffer = _skip_line(text, position + len(buffer))
                damage = text.damage
        if damage is not None:
            reason, detail = damage
            rest = reason, f"{detail}; the rest of the file is not read"
            yield _rejected(buffer[:record_bytes], rest, position, damaged=True)
        if damage is not None or cuts.closed or not fresh:
            return
        data = text.next()
        buffer, fresh = buffer + data, bool(data)


def _rejected(value: bytes, reject: Reject, position: int, *, damaged: bool = False) -> TextBlock:
    return TextBlock(value, np.array([0]), np.array([len(value)]), position, reject, damaged)


def _skip_line(text: _Input, position: int) -> tuple[int, bytes]:
    """The position of the next line, and the bytes of it that were read."""
    while data := text.next():
        if (at := data.find(b"\n")) >= 0:
            return position + at + 1, data[at + 1 :]
        position += len(data)
    return position, b""


def _after_end(text: _Input, rest: bytes) -> tuple[bytes, Reject | None]:
    """What follows a text that has ended, and why it is damaged unless it is white space."""
    rest = rest.strip(_BLANK)
    while not rest and (data := text.next()):
        rest = data.strip(_BLANK)
    return rest, text.damage or ((Reason.TRAILING_DATA, "data follows the JSON array") if rest else None)


# ---- lines ----


class LineCutter:
    """Lines without line breaks; `blank`: lines of white space are rows."""

    resync = True

    def __init__(self, *, blank: bool) -> None:
        self._blank = blank

    def cut(self, buffer: bytes, *, final: bool) -> Cuts:
        """Cut at line breaks."""
        content = np.frombuffer(buffer, np.uint8)
        starts, ends, rest = line_bounds(content, np.flatnonzero(content == _NEWLINE), final=final)
        if not self._blank:
            starts, ends = without_blank(content, starts, ends)
        return Cuts(starts, ends, rest)


def line_bounds(content: Bytes, newlines: Numbers, *, final: bool) -> tuple[Numbers, Numbers, int]:
    """Bounds of the lines that end at line breaks or, in the `final` part, at the end; and the position after them."""
    ends, rest = newlines, int(newlines[-1]) + 1 if len(newlines) else 0
    if final and rest < len(content):
        ends, rest = np.append(ends, len(content)), len(content)
    if not len(ends):
        return _NO_ROWS, _NO_ROWS, 0
    starts = np.append(0, ends[:-1] + 1)
    return starts, ends - ((ends > starts) & (content[np.maximum(ends - 1, 0)] == _RETURN)), rest


def without_blank(content: Bytes, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Bounds without those of white space only; few lines begin with white space."""
    if not len(starts):
        return starts, ends
    maybe = (starts == ends) | _SPACES[content[np.minimum(starts, len(content) - 1)]]
    if not maybe.any():
        return starts, ends
    keep = ~maybe
    for at in np.flatnonzero(maybe).tolist():
        keep[at] = not _SPACES[content[starts[at] : ends[at]]].all()
    return starts[keep], ends[keep]


# ---- elements of a JSON array ----


class ArrayCutter:
    """Elements of the JSON array that a text is; `inside`: the text is read from an element on."""

    resync = False

    def __init__(self, *, inside: bool = False) -> None:
        self._inside = self._later = inside  # later: after the first element

    def cut(self, buffer: bytes, *, final: bool) -> Cuts:
        """Cut at the commas between elements."""
        begin = 0
        if not self._inside:
            begin = len(buffer) - len(buffer.lstrip(_BLANK))
            if begin == len(buffer) and not final:
                return Cuts()
            if buffer[begin : begin + 1] != b"[":
                return Cuts(damage=(Reason.MALFORMED, "expected a JSON array"))
            self._inside, begin = True, begin + 1
        cuts = self._elements(buffer, begin)
        if final and not cuts.closed:
            return Cuts(cuts.starts, cuts.ends, cuts.rest, damage=(Reason.MALFORMED, "the JSON array does not end"))
        return cuts

    def _elements(self, buffer: bytes, begin: int) -> Cuts:
        """Elements of a buffer whose first one begins at `begin`.

        For `{"a":[1,2]},"x,y"]` the depth after each bracket is 1 2 1 0 -1. The commas at depth 0 outside of strings
        separate elements, and the bracket with which the depth falls below 0 ends the array.
        """
        content = np.frombuffer(buffer, np.uint8)[begin:]
        at = _structure(content)
        kinds = content[at]
        depth = np.cumsum(_OPENERS[kinds].astype(np.int64) - _CLOSERS[kinds])
        below = np.flatnonzero(depth < 0)
        last = int(below[0]) if len(below) else len(at)
        ends = at[:last][(kinds[:last] == _COMMA) & (depth[:last] == 0)]
        ends = np.append(ends, at[last]) if len(below) else ends
        if not len(ends):
            return Cuts(rest=begin)
        rest = begin + int(ends[-1]) + 1
        starts, ends = _trimmed(content, np.append(0, ends[:-1] + 1), ends)
        if len(below) and len(ends) == 1 and not self._later and starts[0] == ends[0]:
            return Cuts(rest=rest, closed=True)  # the array is empty
        self._later = True
        return Cuts(starts + begin, ends + begin, rest, closed=bool(len(below)))


def _structure(content: Bytes) -> Numbers:
    """Positions of brackets, braces and commas outside of strings."""
    quotes = np.flatnonzero(content == _QUOTE)
    quotes = quotes[~_escaped_quotes(content, quotes)]
    at = np.flatnonzero(_OPENERS[content] | _CLOSERS[content] | (content == _COMMA))
    return at[outside(quotes, at)]


def outside(quotes: Numbers, at: Numbers) -> Mask:
    """Which positions have an even number of quotes before them."""
    even: Mask = np.searchsorted(quotes, at) % 2 == 0
    return even


def _escaped_quotes(content: Bytes, quotes: Numbers) -> Mask:
    """Which quotes have an odd number of backslashes before them."""
    odd = np.zeros(len(quotes), bool)
    going, before = np.arange(len(quotes)), quotes - 1
    while len(going):
        slash = (before >= 0) & (content[np.maximum(before, 0)] == _BACKSLASH)
        going, before = going[slash], before[slash] - 1
        odd[going] ^= True
    return odd


def _trimmed(content: Bytes, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Bounds without white space at both ends."""
    starts, ends = starts.copy(), ends.copy()
    while (blank := (starts < ends) & _SPACES[content[np.minimum(starts, len(content) - 1)]]).any():
        starts[blank] += 1
    while (blank := (starts < ends) & _SPACES[content[np.maximum(ends - 1, 0)]]).any():
        ends[blank] -= 1
    return starts, ends
