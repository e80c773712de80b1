"""Find the members (key and value) of all objects in many JSON texts at once, without a parser.

Every key ends with `":`. What stands between a key and the next one is a value, brackets that close, a comma, and
brackets that open, most of it empty:

    text      {"a":1,"b":[{"c":2},{"c":3}],"d":"x"}
    keys       "a":  "b":  "c":   "c":   "d":
    between        1,    [{    2},{    3}],  "x"}
    depth       1     1     2      2      1

A text is accepted if every byte of it is accounted for in this way, the brackets match, and no object has a key twice.
That makes it JSON if its values are, which the reader of the values must check. Texts with white space other than a
space after colons and commas, with escapes in keys, or with other values in arrays than scalars or objects that are
not empty, are left to the next path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.decode.base import DecodeLimits
from headrace.decode.byte_scan import Mask, Numbers, TextBytes
from headrace.decode.json.nesting import escaped_quotes

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_QUOTE, _BACKSLASH, _COMMA, _COLON, _SPACE, _OPEN, _CLOSE, _ARRAY, _END = b'"\\,: {}[]'
_CASE = 0x20  # the bit in which a brace differs from a bracket
_PADDING = 8  # zero bytes before and after the texts, so that whole words can be read everywhere
# Odd numbers with random bits, as factors of hashes.
_FIRST, _LAST, _LENGTH, _OBJECT = (
    np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
)
_WITHIN = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)  # masks of the first bytes of a word


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys by their first and last eight bytes and their length, which is all of a key with up to 16 bytes."""

    first: np.ndarray[Any, np.dtype[np.uint64]]
    last: np.ndarray[Any, np.dtype[np.uint64]]
    sizes: Numbers
    hashes: np.ndarray[Any, np.dtype[np.uint64]]

    def some(self, which: Any) -> Keys:
        """The keys at these positions."""
        return Keys(*(each.take(which) for each in (self.first, self.last, self.sizes, self.hashes)))


def keys_at(content: Bytes, starts: Numbers, ends: Numbers) -> Keys:
    """The keys between these positions, eight bytes or more from both ends of the content."""
    words = np.ndarray(len(content) - 7, "<u8", content, strides=(1,))  # the word from every position, unaligned
    sizes = ends - starts
    first = words[starts] & _WITHIN.take(sizes, mode="clip")
    last = words[ends - 8] & ~_WITHIN.take(16 - sizes, mode="clip")  # only the bytes that `first` does not have
    hashes = first * _FIRST ^ last * _LAST ^ sizes.view(np.uint64) * _LENGTH
    return Keys(first, last, sizes, (hashes ^ hashes >> np.uint64(29)) * _FIRST)


@dataclass(frozen=True, slots=True)
class MemberLevel:
    """The members of all objects of one depth, and these objects, in the order of the texts."""

    members: Numbers
    objects: Numbers  # each object by its first member
    parents: Numbers  # the member whose value each object is, or is an element of; itself for the outermost object


@dataclass(frozen=True, slots=True)
class Members:
    """The members of the objects of some texts, in the order of the texts."""

    content: Bytes
    rows: Numbers  # the text of each member
    key_starts: Numbers  # without the quote
    key_ends: Numbers
    keys: Keys
    starts: Numbers  # of the values
    ends: Numbers
    opens: Mask  # whether a value is an object with members, or an array of such objects
    objects: Numbers  # the object of each member, by its first member
    elements: Mask  # whether the object of a member is an element of an array
    levels: list[MemberLevel]


class MemberScan:
    """One pass over some texts; it ends at the first check that one of them does not pass."""

    def __init__(self, texts: TextBytes, limits: DecodeLimits) -> None:
        padding = np.zeros(_PADDING, np.uint8)
        self._content = np.concatenate([padding, texts.content, padding])
        self._bounds = texts.starts.astype(np.int64) + _PADDING
        self._count = len(texts.starts) - 1
        self._limits = limits

    def run(self) -> Members | Mask:
        """The members of all texts; or, if there are bad texts, which these are."""
        for check in (self._find_keys, self._divide, self._nest, self._close, self._compare):
            bad = check()
            if bad.any():
                return bad
        return Members(
            self._content,
            np.repeat(np.arange(self._count), np.diff(self._firsts)),
            self._key_starts,
            self._key_ends,
            self._keys,
            self._starts,
            self._ends,
            self._opens,
            self._objects,
            self._in_array[self._objects],
            self._levels,
        )

    def _rows_at(self, positions: Numbers) -> Mask:
        """Which texts have one of these positions."""
        bad = np.zeros(self._count, bool)
        if len(positions):
            bad[np.searchsorted(self._bounds, positions, side="right") - 1] = True
        return bad

    def _rows_with(self, members: Any) -> Mask:
        """Which texts have one of these members (positions or a mask)."""
        return self._rows_at(self._key_starts[members])

    def _find_keys(self) -> Mask:
        """Find strings that are followed by a colon: of the quotes of a text, every second one ends a string."""
        content = self._content
        is_quote = content == _QUOTE
        slashes = np.flatnonzero(content == _BACKSLASH)
        if len(slashes):
            is_quote[escaped_quotes(content, slashes)] = False
        quotes = np.flatnonzero(is_quote)
        bad: Mask = np.diff(np.searchsorted(quotes, self._bounds)) % 2 == 1
        text = content[_PADDING:-_PADDING]
        if len(text) and text.min() < _SPACE:
            bad |= self._rows_at(np.flatnonzero(text < _SPACE) + _PADDING)
        if bad.any():
            return bad
        opens, closes = quotes[0::2], quotes[1::2]
        keys = np.flatnonzero(content.take(closes + 1) == _COLON)
        self._key_starts, self._key_ends = opens.take(keys) + 1, closes.take(keys)
        self._firsts = np.searchsorted(self._key_starts, self._bounds)
        counts = np.diff(self._firsts)
        bad = (counts == 0) | (counts > self._limits.keys)
        if len(slashes):
            before, after = (np.searchsorted(slashes, each) for each in (self._key_starts, self._key_ends))
            bad |= self._rows_with(before != after)
        return bad

    def _divide(self) -> Mask:
        """Divide the bytes between keys: a value and brackets that close it, a comma, brackets that open."""
        content, lasts = self._content, self._firsts[1:] - 1
        starts = self._key_ends + 2
        starts += content.take(starts) == _SPACE
        ends = np.empty_like(starts)
        ends[:-1] = self._key_starts[1:] - 1
        ends[lasts] = self._bounds[1:]
        ends -= content.take(ends - 1) == _SPACE
        first, final = content.take(starts), content.take(ends - 1)
        braces, sizes = final == _OPEN, ends - starts
        self._opens_array = braces & (sizes == 2) & (first == _ARRAY)
        self._opens = self._opens_array | (braces & (sizes == 1))
        self._again = braces & ~self._opens  # `},{`: another element of the same array
        commas = (final == _COMMA) | self._opens
        if self._again.any():
            again = np.flatnonzero(self._again)
            comma = ends[again] - 2
            comma -= content.take(comma) == _SPACE
            commas[again] = content.take(comma) == _COMMA
            ends[again] = comma + 1
        commas[lasts] = (final[lasts] == _CLOSE) & ~self._again[lasts]
        ends -= 1
        ends[lasts] += 1
        self._starts, self._ends = starts, ends
        bad = self._rows_with(~commas | (ends <= starts) & ~self._opens)
        # The outermost object starts with the first byte, its first key with the next one.
        bad |= content.take(self._bounds[:-1]) != _OPEN
        bad |= self._key_starts[self._firsts[:-1]] != self._bounds[:-1] + 2
        return bad

    def _nest(self) -> Mask:
        """Separate values from the brackets that close after them, and sum up the depth."""
        content, starts, ends = self._content, self._starts, self._ends
        closers, braces = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
        which = np.flatnonzero((content.take(ends - 1) | _CASE) == _CLOSE)
        which = which[~self._opens[which]]
        at = ends[which] - 1
        for _ in range(self._limits.depth):
            if not len(which):
                break
            closers[which] += 1
            braces[which] += content.take(at) == _CLOSE
            at -= 1
            more = ((content.take(at) | _CASE) == _CLOSE) & (at >= starts[which])
            which, at = which[more], at[more]
        bad = self._rows_with(which)
        # A value that starts with a bracket ends with one of its own: `[1,2]}` closes one object.
        own = np.flatnonzero(((content.take(starts) | _CASE) == _OPEN) & ~self._opens)
        if len(own):
            bad |= self._rows_with(own[closers[own] == 0])
            braces[own] -= content.take(ends[own] - closers[own]) == _CLOSE
            closers[own] -= 1
        self._closers = closers
        self._ends = np.where(self._opens, starts, ends - closers)
        lasts = self._firsts[1:] - 1
        missing = (self._ends <= starts) & ~self._opens
        missing |= self._again & (closers == 0)
        missing[lasts] |= closers[lasts] == 0
        if missing.any():
            bad |= self._rows_with(missing)
        if bad.any():
            return bad
        steps = self._opens.astype(np.int64) + self._again - braces
        steps[lasts] += 1  # so that each text starts with the same depth
        sums = np.cumsum(steps)
        unequal: Mask = np.diff(sums[lasts], prepend=0) != 0
        if unequal.any():
            return unequal
        depths = np.empty_like(sums)
        depths[:1], depths[1:] = 1, sums[:-1] + 1
        # One object may be two levels, its array among them, and its values one more.
        wrong = (depths < 1) | (2 * depths + 2 >= self._limits.depth)
        self._depths = depths
        return self._rows_with(wrong)

    def _close(self) -> Mask:
        """Find the object of each member, and check that each bracket closes the object or array that is open."""
        self._find_objects()
        content, ends = self._content, self._ends
        which = np.flatnonzero(self._closers)
        at, left, object_ = ends[which], self._closers[which], self._objects[which]
        lasts = np.zeros(len(ends), bool)
        lasts[self._firsts[1:] - 1] = True
        wrong = []
        while len(which):
            parent, element = self._parents[object_], self._in_array[object_]
            good = content.take(at) == _CLOSE
            at, left = at + 1, left - 1
            done = left == 0
            # An array ends after its last element: `}]`.
            good &= ~done | (element == self._again[which])
            root = self._depths[object_] == 1
            good &= root == (done & lasts[which])
            array = element & ~done
            good &= ~array | (content.take(at) == _END)
            at, left = at + array, left - array
            done |= left == 0
            good &= ~(array & (left == 0) & lasts[which])
            closed = good & ~root & ~(element & ~array)
            ends[parent[closed]] = at[closed]
            wrong.append(which[~good])
            more = good & ~done
            which, at, left, object_ = which[more], at[more], left[more], self._objects[parent[more]]
        return self._rows_with(np.concatenate(wrong)) if wrong else np.zeros(self._count, bool)

    def _find_objects(self) -> None:
        """Find the object of each member: at each depth, all members up to the next object that begins."""
        count = len(self._starts)
        begins = np.zeros(count, bool)
        begins[1:] = (self._opens | self._again)[:-1]
        begins[self._firsts[:-1]] = True
        self._objects = np.empty(count, np.int64)
        self._parents = np.arange(count)  # by the first member of an object
        self._in_array = np.zeros(count, bool)  # likewise: whether the object is an element
        self._levels = []
        for depth in range(1, int(self._depths.max(initial=0)) + 1):
            members = np.flatnonzero(self._depths == depth)
            first = np.flatnonzero(begins[members])
            objects = members[first]
            self._objects[members] = np.repeat(objects, np.diff(first, append=len(members)))
            parents = objects
            if depth > 1:
                # After `},{` the parent is that of the object before.
                before = objects - 1
                opened = np.flatnonzero(self._opens[before])
                parents = np.repeat(before[opened], np.diff(opened, append=len(before)))
                self._parents[objects] = parents
                self._in_array[objects] = self._opens_array[parents]
            self._levels.append(MemberLevel(members, objects, parents))

    def _compare(self) -> Mask:
        """Compare the keys of each object: none may be there twice, which equal hashes may show wrongly."""
        self._keys = keys_at(self._content, self._key_starts, self._key_ends)
        pairs = self._keys.hashes + self._objects.view(np.uint64) * _OBJECT
        # Each member writes its number to a place that the key and the object determine. One that finds another number
        # there is compared with that member; if they differ, it takes part in the next round.
        bits = max(1, (4 * len(pairs)).bit_length())
        places, table = (pairs >> np.uint64(64 - bits)).view(np.int64), np.empty(1 << bits, np.int64)
        members, twins = np.arange(len(pairs)), [np.zeros(0, np.int64)]
        while len(members):
            table[places] = members
            winners = table.take(places)
            lost = np.flatnonzero(winners != members)
            members, winners, places = members.take(lost), winners.take(lost), places.take(lost)
            same = pairs.take(members) == pairs.take(winners)
            twins.append(members[same])
            members, places = members[~same], places[~same]
        return self._rows_with(np.concatenate(twins))
