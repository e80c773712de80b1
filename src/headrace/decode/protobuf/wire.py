"""Read the fields of many serialized messages at once.

Every message has a cursor. In each round, all cursors at the lowest tag read their field together with NumPy. Writers
emit fields in the order of their numbers, so a batch takes about as many rounds as a message has fields:

    message 0: 08 01 | 12 01 61     round 1: tag 08 (field 1, varint) of messages 0 and 1
    message 1: 08 05                round 2: tag 12 (field 2, length-delimited) of message 0

The rest (long runs of unpacked elements, groups) is read one message at a time, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.decode.byte_scan import Mask, Numbers, TextBytes
from headrace.reasons import Reason

Words = np.ndarray[Any, np.dtype[np.uint64]]

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)

_PAD = 24  # zero bytes behind the last message: reading two words never leaves the buffer
_DONE = np.int64(2**62)  # greater than every tag
_FEW = 24  # cursors; a round with fewer costs more than reading them one at a time
_SMALL_ROUNDS = 400  # rounds with few cursors until the rest is read one message at a time
_LARGEST_TAG = 2**32 - 1

_STOP = np.uint64(0x8080808080808080)
_LOW7 = np.uint64(0x7F7F7F7F7F7F7F7F)
_PAIRS = ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4))


class Content:
    """The bytes of all messages end to end; a word of 8 or 4 bytes can be read at any offset."""

    def __init__(self, values: pa.BinaryArray) -> None:
        source = TextBytes(values)
        self.bytes = np.concatenate([source.content, np.zeros(_PAD, np.uint8)])
        self.starts = source.starts.astype(np.int64)
        size = len(self.bytes)
        self.words: Words = np.ndarray((size - 7,), "<u8", self.bytes, strides=(1,))
        self.halves = np.ndarray((size - 3,), "<u4", self.bytes, strides=(1,))

    def varints(self, at: Numbers) -> tuple[Words, Numbers, Mask]:
        """The varints at these offsets: values, sizes, and which are invalid (more than ten bytes or 64 bits).

        A varint has 7 bits per byte, lowest first; the high bit says that another byte follows. 300 is AC 02:
        `ends` has the high bit of each byte that is the last of a varint, `last` the first of them. The bits up to it
        are taken without the high bits (2C 02) and moved together in three steps: 7 bits to 14, to 28, to 56.
        """
        words = self.words[at]
        if not (words & np.uint64(0x80)).any():
            return words & np.uint64(0x7F), np.ones(len(at), np.int64), np.zeros(len(at), bool)
        ends = ~words & _STOP
        last = ends & (~ends + np.uint64(1))
        values = words & ((last << np.uint64(1)) - np.uint64(1)) & _LOW7
        for mask, shift in _PAIRS:
            low = np.uint64(mask)
            values = (values & low) | ((values & ~low) >> np.uint64(shift))
        sizes = (np.bitwise_count(last - np.uint64(1)).astype(np.int64) + 1) >> 3
        bad = np.zeros(len(at), bool)
        if len(long := np.flatnonzero(last == 0)):
            rest = self.words[at[long] + 8]
            ninth, tenth = rest & np.uint64(0xFF), (rest >> np.uint64(8)) & np.uint64(0xFF)
            goes_on = ninth > 0x7F
            high = (ninth & np.uint64(0x7F)) << np.uint64(56)
            values[long] |= high | np.where(goes_on, tenth << np.uint64(63), np.uint64(0))
            sizes[long] = np.where(goes_on, 10, 9)
            bad[long] = goes_on & (tenth > 1)
        return values, sizes, bad


@dataclass(frozen=True, slots=True)
class Frames:
    """Ranges of the content with the fields of messages; a message can have several ranges, in order."""

    begins: Numbers
    ends: Numbers
    owners: Numbers  # the message of each range, ascending

    def __len__(self) -> int:
        return len(self.begins)


@dataclass(frozen=True, slots=True)
class Occurrences:
    """All fields with one tag, in the order of the content: message, offset of the payload, its varint or length."""

    owners: Numbers
    at: Numbers
    words: Words

    def __len__(self) -> int:
        return len(self.at)

    def where(self, chosen: Mask | Numbers) -> Occurrences:
        """A selection, by mask or index."""
        return Occurrences(self.owners[chosen], self.at[chosen], self.words[chosen])


NO_OCCURRENCES = Occurrences(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64))


@dataclass(slots=True)
class WireFields:
    """The fields of frames by tag, and the errors of malformed frames."""

    by_tag: dict[int, Occurrences] = field(default_factory=dict)
    errors: list[tuple[int, Reason, str]] = field(default_factory=list)  # owner, reason, detail


class Malformed(Exception):
    """A message that violates the wire format."""

    def __init__(self, detail: str, reason: Reason = Reason.MALFORMED) -> None:
        super().__init__(detail)
        self.detail, self.reason = detail, reason


def merge_occurrences(parts: list[Occurrences]) -> Occurrences:
    """Concatenate occurrences in the order of the content."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_OCCURRENCES
    joined = Occurrences(
        np.concatenate([part.owners for part in parts]),
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.words for part in parts]),
    )
    return joined.where(np.argsort(joined.at, kind="stable"))


def walk(content: Content, frames: Frames, depth: int) -> WireFields:
    """Read every field of the frames; `depth` limits nested groups."""
    return _Walk(content, frames, depth).run()


class _Walk:
    def __init__(self, content: Content, frames: Frames, depth: int) -> None:
        self.content, self.frames, self.depth = content, frames, depth
        self.cursors = frames.begins.copy()  # offset of the next tag
        self.bodies = frames.begins.copy()  # offset behind that tag
        self.tags = np.full(len(frames), _DONE)
        self.parts: dict[int, list[Occurrences]] = {}
        self.errors: list[tuple[int, Reason, str]] = []
        self.single: list[int] = []  # frames to read one at a time

    def run(self) -> WireFields:
        self._next_tags(np.arange(len(self.frames)))
        small = 0
        while len(self.tags) and (tag := self.tags.min()) < _DONE:
            at = np.flatnonzero(self.tags == tag)
            small += len(at) < _FEW
            if small > _SMALL_ROUNDS:
                self.single += np.flatnonzero(self.tags < _DONE).tolist()
                break
            self._round(int(tag), at)
        for frame in self.single:
            self._read_single(frame)
        self.errors.sort(key=lambda error: error[0])
        return WireFields({tag: merge_occurrences(parts) for tag, parts in self.parts.items()}, self.errors)

    def _round(self, tag: int, at: Numbers) -> None:
        """Read the field at all cursors with this tag, and the next tag."""
        kind, bodies = tag & 7, self.bodies[at]
        if kind not in (VARINT, FIXED64, LENGTH, FIXED32):
            self.single += at.tolist()
            self.tags[at] = _DONE
            return
        ends = self.frames.ends[at]
        words, starts, nexts, bad = self._payloads(kind, bodies, ends)
        bad |= nexts > ends
        if bad.any():
            for frame in at[bad].tolist():
                self._error(frame, f"field {tag >> 3} extends beyond the end of its message")
            self.tags[at[bad]] = _DONE
            good = ~bad
            at, words, starts, nexts = at[good], words[good], starts[good], nexts[good]
        self.parts.setdefault(tag, []).append(Occurrences(self.frames.owners[at], starts, words))
        self.cursors[at] = nexts
        self._next_tags(at)

    def _payloads(self, kind: int, bodies: Numbers, ends: Numbers) -> tuple[Words, Numbers, Numbers, Mask]:
        if kind in (FIXED64, FIXED32):
            return (
                np.zeros(len(bodies), np.uint64),
                bodies,
                bodies + (8 if kind == FIXED64 else 4),
                np.zeros(len(bodies), bool),
            )
        words, sizes, bad = self.content.varints(bodies)
        if kind == VARINT:
            return words, bodies, bodies + sizes, bad
        starts = bodies + sizes
        # Compare the length itself: a sum with the offset could overflow 64 bits.
        bad |= words > np.maximum(ends - starts, 0).astype(np.uint64)
        return words, starts, starts + np.where(bad, 0, words).astype(np.int64), bad

    def _next_tags(self, at: Numbers) -> None:
        here = self.cursors[at]
        ended = here >= self.frames.ends[at]
        if ended.any():
            self.tags[at[ended]] = _DONE
            at, here = at[~ended], here[~ended]
        words, sizes, bad = self.content.varints(here)
        bad |= (words > _LARGEST_TAG) | (words < 8) | (sizes > 5) | (here + sizes > self.frames.ends[at])
        tags = words.astype(np.int64)
        if bad.any():
            for frame in at[bad].tolist():
                self._error(frame, "invalid field tag")
            tags[bad] = _DONE
        self.tags[at] = tags
        self.bodies[at] = here + sizes

    def _read_single(self, frame: int) -> None:
        owner = int(self.frames.owners[frame])
        by_tag: dict[int, list[tuple[int, int]]] = {}
        try:
            for tag, at, word in fields(
                self.content.bytes.data, int(self.cursors[frame]), int(self.frames.ends[frame]), self.depth
            ):
                by_tag.setdefault(tag, []).append((at, word))
        except Malformed as malformed:
            self.errors.append((owner, malformed.reason, malformed.detail))
        for tag, pairs in by_tag.items():
            begins = np.array([begin for begin, _ in pairs], np.int64)
            words = np.array([word for _, word in pairs], np.uint64)
            self.parts.setdefault(tag, []).append(Occurrences(np.full(len(pairs), owner), begins, words))

    def _error(self, frame: int, detail: str) -> None:
        self.errors.append((int(self.frames.owners[frame]), Reason.MALFORMED, detail))


def fields(content: Any, at: int, end: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """Tag, payload offset and varint or length of each field between two offsets; raises Malformed."""
    while at < end:
        tag, body = _tag(content, at, end)
        kind = tag & 7
        if kind == GROUP:
            inner, at = _group(content, body, end, tag >> 3, depth)
            yield tag, body, inner - body
            continue
        word, start, at = _payload(content, body, end, tag)
        yield tag, start, word


def _payload(content: Any, body: int, end: int, tag: int) -> tuple[int, int, int]:
    """The varint or length of a field, the offset of its payload and that of the next field."""
    kind, number = tag & 7, tag >> 3
    word, start, following = 0, body, body
    if kind in (VARINT, LENGTH):
        word, following = varint(content, body, number)
        if kind == LENGTH:
            start, following = following, following + word
    elif kind in (FIXED64, FIXED32):
        following = body + (8 if kind == FIXED64 else 4)
    elif kind == END_GROUP:
        raise Malformed(f"end of group {number} without its start")
    else:
        raise Malformed(f"field {number} has the invalid wire type {kind}")
    if following > end:
        raise Malformed(f"field {number} extends beyond the end of its message")
    return word, start, following


def _tag(content: Any, at: int, end: int) -> tuple[int, int]:
    try:
        tag, body = varint(content, at, 0)
    except Malformed:
        tag, body = 0, at
    if not 8 <= tag <= _LARGEST_TAG or body > end or body - at > 5:
        raise Malformed("invalid field tag")
    return tag, body


def _group(content: Any, at: int, end: int, number: int, depth: int) -> tuple[int, int]:
    """The offset of the end of a group's fields, and that of the next field."""
    open_groups = [number]
    while at < end:
        tag, body = _tag(content, at, end)
        if tag & 7 == GROUP:
            open_groups.append(tag >> 3)
            if len(open_groups) >= depth:
                raise Malformed(f"groups are nested deeper than {depth} levels", Reason.TOO_DEEP)
            at = body
        elif tag & 7 == END_GROUP:
            if open_groups.pop() != tag >> 3:
                raise Malformed(f"end of group {tag >> 3} without its start")
            if not open_groups:
                return at, body
            at = body
        else:
            at = _payload(content, body, end, tag)[2]
    raise Malformed(f"group {number} has no end")


def varint(content: Any, at: int, number: int) -> tuple[int, int]:
    """A varint and the offset behind it; the content is padded with zeros."""
    value = 0
    for nth in range(10):
        byte = content[at + nth]
        value |= (byte & 0x7F) << (7 * nth)
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + nth + 1
    raise Malformed(f"field {number} extends beyond the end of its message")
