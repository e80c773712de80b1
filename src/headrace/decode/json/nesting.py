"""Depth and width of a JSON text from its bytes, without parsing it.

Brackets outside of strings are counted: for `{"a":[1,"]"]}` the brackets are `{ [ ] }` (the one in the string does not
count), their steps +1 +1 -1 -1, and the cumulative sum 1 2 1 0 is the depth. A record may have millions of brackets;
as Python objects `[[],[],…]` takes a hundred times its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Text = np.ndarray[Any, np.dtype[np.uint8]]
Places = np.ndarray[Any, np.dtype[np.int64]]

_QUOTE, _BACKSLASH, _COLON, _COMMA = b'"\\:,'
_BLOCK = 1 << 20

# Change of the depth by byte: +1 for `[` and `{`, -1 for `]` and `}`.
_STEP = np.zeros(256, np.int8)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1
_KEYED = _STEP != 0
_KEYED[_COLON] = True
_VALUED = _STEP > 0
_VALUED[_COMMA] = True


def too_deep(text: Text, limit: int) -> int | None:
    """Position of the bracket at which a text exceeds the depth limit; None if it does not."""
    depth = 0
    for places, begin in _blocks(text, _STEP != 0):
        steps = _STEP[text[begin:][places]]
        depths = depth + np.cumsum(steps, dtype=np.int32)
        if len(depths) and depths.max() >= limit:
            return int(begin + places[np.argmax(depths >= limit)])
        depth = int(depths[-1]) if len(depths) else depth
    return None


def widest(text: Text) -> int:
    """The number of keys of the largest object."""
    blocks = [(begin + places, text[begin:][places]) for places, begin in _blocks(text, _KEYED)]
    kinds = np.concatenate([kind for _, kind in blocks]) if blocks else np.zeros(0, np.uint8)
    depths = np.cumsum(_STEP[kinds], dtype=np.int16)
    opens = _STEP[kinds] > 0
    counted = opens | (kinds == _COLON)
    # Sorted by depth, all that follows an opening bracket up to the next one belongs to the object that it opens.
    order = np.argsort(depths[counted], kind="stable")
    opens = opens[counted][order]
    owners = np.cumsum(opens)
    keys = np.bincount(owners[~opens])
    return int(keys.max()) if len(keys) else 0


def values(text: Text) -> int:
    """The number of values, nested ones, arrays and objects included. An empty array counts as if it had one."""
    return 1 + sum(len(places) for places, _ in _blocks(text, _VALUED))


def _blocks(text: Text, searched: np.ndarray[Any, np.dtype[np.bool_]]) -> Iterator[tuple[Places, int]]:
    """The marked bytes outside of strings, block by block: positions in the block, and the start of the block."""
    begin, inside = 0, 0
    while begin < len(text):
        end = min(begin + _BLOCK, len(text))
        while end < len(text) and text[end - 1] == _BACKSLASH:  # do not split an escape sequence
            end += 1
        block = text[begin:end]
        quotes = _quotes(block)
        places = np.flatnonzero(searched[block])
        if len(quotes) or inside:
            places = places[(np.searchsorted(quotes, places) + inside) % 2 == 0]
        yield places, begin
        begin, inside = end, (inside + len(quotes)) % 2


def _quotes(block: Text) -> Places:
    """The quotes that are not escaped by a backslash."""
    quotes = np.flatnonzero(block == _QUOTE)
    slashes = np.flatnonzero(block == _BACKSLASH)
    if not len(slashes):
        return quotes
    real: Places = np.setdiff1d(quotes, escaped_quotes(block, slashes), assume_unique=True)
    return real


def escaped_quotes(text: Text, slashes: Places) -> Places:
    """The quotes after an odd number of backslashes: in `\\\\\\"` the first backslash escapes the second."""
    starts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # of runs of backslashes
    lengths = np.diff(starts, append=len(slashes))
    after = slashes[starts] + lengths
    odd = (lengths % 2 == 1) & (after < len(text))
    behind = after[odd]
    escaped: Places = behind[text[behind] == _QUOTE]
    return escaped
