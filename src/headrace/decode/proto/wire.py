"""The fields of many messages at once, off Protobuf's wire.

One cursor per message; in each turn all cursors that stand before the lowest tag read their field together. Writers put
fields in the order of their numbers, so a batch takes about as many turns as a message has fields. What is left after
that (long runs of unpacked elements, groups) is walked one by one, to the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.decode.scan import Bytes, Mask, Numbers
from headrace.reasons import Reason

Words = np.ndarray[Any, np.dtype[np.uint64]]

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)

_PAD = 24  # zero bytes behind the last message, so that a read of two words never leaves the buffer
_DONE = np.int64(2**62)  # above every tag
_FEW = 24  # cursors: with fewer a turn of all costs more than each on its own
_SMALL_TURNS = 400  # turns for few that are borne before each goes on alone
_LARGEST_TAG = 2**32 - 1

_STOP = np.uint64(0x8080808080808080)
_LOW7 = np.uint64(0x7F7F7F7F7F7F7F7F)
_PAIRS = ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4))


class Content:
    """The bytes of all messages end to end, readable as words at any place."""

    def __init__(self, values: pa.BinaryArray) -> None:
        seen = Bytes(values)
        self.bytes = np.concatenate([seen.content, np.zeros(_PAD, np.uint8)])
        self.starts = seen.starts.astype(np.int64)
        size = len(self.bytes)
        self.words: Words = np.ndarray((size - 7,), "<u8", self.bytes, strides=(1,))
        self.halves = np.ndarray((size - 3,), "<u4", self.bytes, strides=(1,))

    def varints(self, at: Numbers) -> tuple[Words, Numbers, Mask]:
        """The varints at these places: value, size, and which are none (more than ten bytes, or than 64 bits)."""
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
    """Pieces of content that hold the fields of messages: a message may come in several, one behind the other."""

    begins: Numbers
    ends: Numbers
    owners: Numbers  # which message each is of, ascending

    def __len__(self) -> int:
        return len(self.begins)


@dataclass(frozen=True, slots=True)
class Found:
    """All fields of one tag, in the order of the content: whose, where the payload begins, its varint or length."""

    owners: Numbers
    at: Numbers
    words: Words

    def __len__(self) -> int:
        return len(self.at)

    def where(self, chosen: Mask | Numbers) -> Found:
        """Some of them."""
        return Found(self.owners[chosen], self.at[chosen], self.words[chosen])


NOTHING = Found(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64))


@dataclass(slots=True)
class Walked:
    """What frames hold, by tag, and the frames that do not end as they should."""

    found: dict[int, Found] = field(default_factory=dict)
    faults: list[tuple[int, Reason, str]] = field(default_factory=list)  # owner, reason, detail


class Malformed(Exception):
    """A message breaks the wire format."""

    def __init__(self, detail: str, reason: Reason = Reason.MALFORMED) -> None:
        super().__init__(detail)
        self.detail, self.reason = detail, reason


def merged(parts: list[Found]) -> Found:
    """Fields of one kind as one, in the order of the content."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NOTHING
    whole = Found(
        np.concatenate([part.owners for part in parts]),
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.words for part in parts]),
    )
    return whole.where(np.argsort(whole.at, kind="stable"))


def walk(content: Content, frames: Frames, depth: int) -> Walked:
    """Every field of the frames; `depth` limits groups in groups."""
    return _Walk(content, frames, depth).run()


class _Walk:
    def __init__(self, content: Content, frames: Frames, depth: int) -> None:
        self.content, self.frames, self.depth = content, frames, depth
        self.cursors = frames.begins.copy()  # where the next tag stands
        self.bodies = frames.begins.copy()  # behind that tag
        self.tags = np.full(len(frames), _DONE)
        self.parts: dict[int, list[Found]] = {}
        self.faults: list[tuple[int, Reason, str]] = []
        self.alone: list[int] = []  # frames to walk one by one

    def run(self) -> Walked:
        self._next_tags(np.arange(len(self.frames)))
        small = 0
        while len(self.tags) and (tag := self.tags.min()) < _DONE:
            at = np.flatnonzero(self.tags == tag)
            small += len(at) < _FEW
            if small > _SMALL_TURNS:
                self.alone += np.flatnonzero(self.tags < _DONE).tolist()
                break
            self._turn(int(tag), at)
        for frame in self.alone:
            self._alone(frame)
        self.faults.sort(key=lambda fault: fault[0])
        return Walked({tag: merged(parts) for tag, parts in self.parts.items()}, self.faults)

    def _turn(self, tag: int, at: Numbers) -> None:
        """All cursors before this tag read their field and the next tag."""
        kind, bodies = tag & 7, self.bodies[at]
        if kind not in (VARINT, FIXED64, LENGTH, FIXED32):
            self.alone += at.tolist()
            self.tags[at] = _DONE
            return
        ends = self.frames.ends[at]
        words, starts, nexts, bad = self._payloads(kind, bodies, ends)
        bad |= nexts > ends
        if bad.any():
            for frame in at[bad].tolist():
                self._fault(frame, f"field {tag >> 3} does not end within its message")
            self.tags[at[bad]] = _DONE
            good = ~bad
            at, words, starts, nexts = at[good], words[good], starts[good], nexts[good]
        self.parts.setdefault(tag, []).append(Found(self.frames.owners[at], starts, words))
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
        # Compared as it was written: no sum can leave 64 bits.
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
                self._fault(frame, "what stands where a field begins is no tag")
            tags[bad] = _DONE
        self.tags[at] = tags
        self.bodies[at] = here + sizes

    def _alone(self, frame: int) -> None:
        owner = int(self.frames.owners[frame])
        kept: dict[int, list[tuple[int, int]]] = {}
        try:
            for tag, at, word in fields(
                self.content.bytes.data, int(self.cursors[frame]), int(self.frames.ends[frame]), self.depth
            ):
                kept.setdefault(tag, []).append((at, word))
        except Malformed as malformed:
            self.faults.append((owner, malformed.reason, malformed.detail))
        for tag, pairs in kept.items():
            begins = np.array([begin for begin, _ in pairs], np.int64)
            words = np.array([word for _, word in pairs], np.uint64)
            self.parts.setdefault(tag, []).append(Found(np.full(len(pairs), owner), begins, words))

    def _fault(self, frame: int, detail: str) -> None:
        self.faults.append((int(self.frames.owners[frame]), Reason.MALFORMED, detail))


def fields(content: Any, at: int, end: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """Tag, beginning and varint or length of each field between two places; Malformed where the wire is."""
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
    """A field's varint or length, where its payload begins, and where the next field does."""
    kind, number = tag & 7, tag >> 3
    word, start, following = 0, body, body
    if kind in (VARINT, LENGTH):
        word, following = varint(content, body, number)
        if kind == LENGTH:
            start, following = following, following + word
    elif kind in (FIXED64, FIXED32):
        following = body + (8 if kind == FIXED64 else 4)
    elif kind == END_GROUP:
        raise Malformed(f"a group {number} ends that did not begin")
    else:
        raise Malformed(f"field {number} has the wire type {kind}, which does not exist")
    if following > end:
        raise Malformed(f"field {number} does not end within its message")
    return word, start, following


def _tag(content: Any, at: int, end: int) -> tuple[int, int]:
    try:
        tag, body = varint(content, at, 0)
    except Malformed:
        tag, body = 0, at
    if not 8 <= tag <= _LARGEST_TAG or body > end or body - at > 5:
        raise Malformed("what stands where a field begins is no tag")
    return tag, body


def _group(content: Any, at: int, end: int, number: int, depth: int) -> tuple[int, int]:
    """Where a group's fields end, and where the next field begins."""
    opened = [number]
    while at < end:
        tag, body = _tag(content, at, end)
        if tag & 7 == GROUP:
            opened.append(tag >> 3)
            if len(opened) >= depth:
                raise Malformed(f"groups are nested deeper than {depth} levels", Reason.TOO_DEEP)
            at = body
        elif tag & 7 == END_GROUP:
            if opened.pop() != tag >> 3:
                raise Malformed(f"a group {tag >> 3} ends that did not begin")
            if not opened:
                return at, body
            at = body
        else:
            at = _payload(content, body, end, tag)[2]
    raise Malformed(f"group {number} does not end within its message")


def varint(content: Any, at: int, number: int) -> tuple[int, int]:
    """A varint and the place behind it; the content has zeros behind its end."""
    value = 0
    for nth in range(10):
        byte = content[at + nth]
        value |= (byte & 0x7F) << (7 * nth)
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + nth + 1
    raise Malformed(f"field {number} does not end within its message")
