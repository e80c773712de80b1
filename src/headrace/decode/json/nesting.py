"""How deep and how wide one JSON text is, by its bytes: no value of it is made.

A record may hold millions of brackets. As Python objects `[[],[],…]` costs a hundred times its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Text = np.ndarray[Any, np.dtype[np.uint8]]
Places = np.ndarray[Any, np.dtype[np.int64]]

_QUOTE, _BACKSLASH, _COLON, _COMMA = b'"\\:,'
_BLOCK = 1 << 20

# What each byte adds to the depth: `[` and `{` one, `]` and `}` take one away.
_STEP = np.zeros(256, np.int8)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1
_KEYED = _STEP != 0
_KEYED[_COLON] = True
_VALUED = _STEP > 0
_VALUED[_COMMA] = True


def too_deep(text: Text, limit: int) -> int | None:
    """Where a text first is nested as deep as the limit, as the position of that bracket; None where it never is."""
    depth = 0
    for places, begin in _blocks(text, _STEP != 0):
        steps = _STEP[text[begin:][places]]
        depths = depth + np.cumsum(steps, dtype=np.int32)
        if len(depths) and depths.max() >= limit:
            return int(begin + places[np.argmax(depths >= limit)])
        depth = int(depths[-1]) if len(depths) else depth
    return None


def widest(text: Text) -> int:
    """The keys of the object that has the most."""
    blocks = [(begin + places, text[begin:][places]) for places, begin in _blocks(text, _KEYED)]
    kinds = np.concatenate([kind for _, kind in blocks]) if blocks else np.zeros(0, np.uint8)
    depths = np.cumsum(_STEP[kinds], dtype=np.int16)
    opens = _STEP[kinds] > 0
    counted = opens | (kinds == _COLON)
    # In the order of their depth, what follows an opening bracket up to the next one is of the object that it opens.
    order = np.argsort(depths[counted], kind="stable")
    opens = opens[counted][order]
    owners = np.cumsum(opens)
    keys = np.bincount(owners[~opens])
    return int(keys.max()) if len(keys) else 0


def values(text: Text) -> int:
    """The values of a text: arrays, objects and what is in them. An empty array counts as if it held one."""
    return 1 + sum(len(places) for places, _ in _blocks(text, _VALUED))


def _blocks(text: Text, marks: np.ndarray[Any, np.dtype[np.bool_]]) -> Iterator[tuple[Places, int]]:
    """The bytes marked, outside of strings, block by block: places in the block, and where it begins."""
    begin, inside = 0, 0
    while begin < len(text):
        end = min(begin + _BLOCK, len(text))
        while end < len(text) and text[end - 1] == _BACKSLASH:  # an escape stays whole
            end += 1
        block = text[begin:end]
        quotes = _quotes(block)
        places = np.flatnonzero(marks[block])
        if len(quotes) or inside:
            places = places[(np.searchsorted(quotes, places) + inside) % 2 == 0]
        yield places, begin
        begin, inside = end, (inside + len(quotes)) % 2


def _quotes(block: Text) -> Places:
    """The quotes that no backslash escapes."""
    quotes = np.flatnonzero(block == _QUOTE)
    slashes = np.flatnonzero(block == _BACKSLASH)
    if not len(slashes):
        return quotes
    after = np.searchsorted(slashes, quotes)  # backslashes before each quote
    next_to = (after > 0) & (slashes[after - 1] == quotes - 1)
    starts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # of runs of backslashes
    first = starts[np.searchsorted(starts, after - 1, side="right") - 1]
    escaped = next_to & ((after - first) % 2 == 1)
    real: Places = quotes[~escaped]
    return real
