"""Checks before any format: values that are null, empty, too large or not UTF-8 are rejected."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import DecodeLimits, Rejects
from headrace.decode.byte_scan import Numbers, TextBytes
from headrace.decode.json import nesting
from headrace.decode.json.strict import Parser
from headrace.decode.scalars import UnfitValue
from headrace.reasons import Reason

_BOM = b"\xef\xbb\xbf"
_CHARACTERS = 64  # beyond ASCII in a text that are checked for all texts together
# By the first byte of a UTF-8 character: its size, and bounds of the second byte, which exclude characters with more
# bytes than they need, surrogates and what is beyond Unicode.
_SIZE = np.repeat(np.array([0, 2, 3, 4, 0], np.int64), [0xC2, 0x1E, 0x10, 5, 0x0B])
_LOWEST, _HIGHEST = np.full(256, 0x80, np.uint8), np.full(256, 0xBF, np.uint8)
_LOWEST[[0xE0, 0xF0]], _HIGHEST[[0xED, 0xF4]] = (0xA0, 0x90), (0x9F, 0x8F)


def triage(values: pa.BinaryArray, limits: DecodeLimits) -> tuple[pa.StringArray, Numbers, Rejects]:
    """The values that are texts, with their positions; null, empty, oversized and undecodable values are rejected."""
    kept, at, rejects = sized(values, limits)
    texts, at = texts_of(without_bom(kept), at, rejects)
    return (*_countable(texts, at, rejects, limits), rejects)


def _countable(
    texts: pa.StringArray, at: Numbers, rejects: Rejects, limits: DecodeLimits
) -> tuple[pa.StringArray, Numbers]:
    """The texts within the limit of values: a decoded value takes many times its bytes."""
    content = TextBytes(texts)
    good = np.ones(len(texts), bool)
    for row in np.flatnonzero(content.sizes > 2 * limits.values).tolist():  # a value and its comma are two bytes
        if (count := nesting.values(content.text(row))) > limits.values:
            good[row] = False
            rejects.add(int(at[row]), Reason.TOO_WIDE, f"{count} values, the limit is {limits.values}")
    return (texts, at) if good.all() else (texts.filter(pa.array(good)), at[good])


def sized(
    values: pa.BinaryArray, limits: DecodeLimits, *, empty: bool = False
) -> tuple[pa.BinaryArray, Numbers, Rejects]:
    """The values within the size limit; `empty`: a value without bytes is valid."""
    rejects = Rejects()
    sizes = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    rejects.add_all(np.flatnonzero(sizes < 0), Reason.TOMBSTONE, "the value is null")
    if not empty:
        rejects.add_all(np.flatnonzero(sizes == 0), Reason.EMPTY, "the value has no bytes")
    for position in np.flatnonzero(sizes > limits.record_bytes):
        detail = f"{sizes[position]} bytes, the limit is {limits.record_bytes}"
        rejects.add(int(position), Reason.TOO_BIG, detail)
    fit = (sizes >= (0 if empty else 1)) & (sizes <= limits.record_bytes)
    return (values.filter(pa.array(fit)) if len(rejects) else values), np.flatnonzero(fit), rejects


def texts_of(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> tuple[pa.StringArray, Numbers]:
    """The values that are UTF-8, with their positions; other values are rejected."""
    try:
        return values.cast(pa.string()), at
    except pa.ArrowInvalid:
        invalid, unchecked = _invalid_bytes(TextBytes(values))
        valid = invalid < 0
        details = pc.binary_join_element_wise("byte ", pa.array(invalid).cast(pa.string()), " is not valid UTF-8", "")
        rejects.add_all(at[~valid], Reason.ENCODING, details.filter(pa.array(~valid)))
        for position in unchecked.tolist():
            try:
                Parser.text(values[position].as_py())
            except UnfitValue as unfit:
                valid[position] = False
                rejects.add(int(at[position]), unfit.reason, unfit.detail)
        return values.filter(pa.array(valid)).cast(pa.string()), at[valid]


def _invalid_bytes(texts: TextBytes) -> tuple[Numbers, Numbers]:
    """The first byte of each text that is not UTF-8, -1 if there is none, and the texts that are not checked whole."""
    content, start, end = texts.content, texts.starts[:-1], texts.starts[1:]
    beyond = np.flatnonzero(content > 127)
    nth, last = np.searchsorted(beyond, start), np.searchsorted(beyond, end)
    invalid, rows = np.full(len(start), -1), np.flatnonzero(nth < last)
    for _ in range(_CHARACTERS):
        if not len(rows):
            break
        at = beyond[nth[rows]]
        first, second, third, fourth = (content.take(at + more, mode="clip") for more in range(4))
        size = _SIZE[first]
        good = (size > 0) & (at + size <= end[rows]) & (second >= _LOWEST[first]) & (second <= _HIGHEST[first])
        good &= ((size < 3) | (third & 0xC0 == 0x80)) & ((size < 4) | (fourth & 0xC0 == 0x80))
        invalid[rows[~good]] = at[~good] - start[rows[~good]]
        nth[rows] += size
        rows = rows[good & (nth[rows] < last[rows])]
    return invalid, rows


def without_bom(values: pa.BinaryArray) -> pa.BinaryArray:
    """Values without the UTF-8 byte-order mark."""
    marked = pc.starts_with(values, _BOM)
    if not pc.any(marked).as_py():
        return values
    # Arrow's slice fails if nothing remains of a value.
    rest = pa.array([raw.removeprefix(_BOM) for raw in values.filter(marked).to_pylist()], pa.binary())
    return pc.replace_with_mask(values, marked, rest)


def spread(texts: pa.StringArray, at: Numbers, count: int) -> pa.StringArray:
    """Texts at their positions among `count`, NULL elsewhere; the last of several at one position wins."""
    if len(at) == count and (np.diff(at) == 1).all():
        return texts
    place = np.full(count, -1, np.int64)
    place[at] = np.arange(len(at))  # in this order, so that the last one wins
    return texts.take(pa.array(place, mask=place < 0))
