"""Before the format: decompress values, and split values that contain several."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Decoded, DecodeLimits, Decoder, Rejects, TypedDecoder, fills_of
from headrace.decode.byte_scan import Mask, Numbers, bools
from headrace.decode.input import sized, spread, without_bom
from headrace.reasons import Reason

RATIO = 100  # maximum ratio of decompressed to compressed bytes; more is an attack
SMALL = 64 * 1024  # decompressed bytes below which the ratio does not matter
_OTHERS = np.frombuffer(b'{"-0123456789tfn', np.uint8)  # first bytes of JSON values that are not arrays
_XERIAL = b"\x82SNAPPY\0"


@dataclass(frozen=True, slots=True)
class UnpackedValues:
    """Pieces of values: the value that each is a piece of, and rejects."""

    values: pa.BinaryArray
    owner: Numbers  # ascending
    rejects: Rejects
    word: str = ""  # name of a piece in details


Prepare = Callable[[pa.BinaryArray, DecodeLimits], UnpackedValues]


class UnpackingDecoder:
    """A format after a preparation; a value with a bad piece is rejected as a whole."""

    def __init__(self, inner: Decoder, prepare: Prepare, limits: DecodeLimits) -> None:
        self._inner = inner
        self._prepare = prepare
        self._limits = limits

    @property
    def fills(self) -> Mapping[str, str]:
        """As the inner format."""
        return fills_of(self._inner)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        pieces = self._prepare(values, self._limits)
        decoded = self._inner.decode(pieces.values)
        rejects = _of_owners(pieces, decoded.rejects)
        index = pieces.owner[decoded.index.to_numpy()]
        bad = np.isin(index, rejects.columns.index)
        rows = decoded.rows.filter(pa.array(~bad)) if bad.any() else decoded.rows
        return replace(decoded, rows=rows, index=pa.array(index[~bad]), rejects=rejects)

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """The scalar at a path of each value; of the last piece if there are several."""
        pieces = self._prepare(values, self._limits)
        return self._spread(pieces, len(values), *self._inner.peek(pieces.values, path))

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The type of each value; of the last piece if there are several."""
        if not isinstance(self._inner, TypedDecoder):
            return pa.nulls(len(values), pa.string()), Rejects()
        pieces = self._prepare(values, self._limits)
        return self._spread(pieces, len(values), *self._inner.types(pieces.values))

    def _spread(
        self, pieces: UnpackedValues, count: int, texts: pa.StringArray, rejects: Rejects
    ) -> tuple[pa.StringArray, Rejects]:
        return spread(texts, pieces.owner, count), _of_owners(pieces, rejects)


def _of_owners(pieces: UnpackedValues, inner: Rejects) -> Rejects:
    """Rejects of pieces as rejects of their values: the first of each."""
    first = {owner: at for at, owner in reversed(list(enumerate(pieces.owner.tolist())))} if pieces.word else {}
    rejects, rejected = pieces.rejects, set(pieces.rejects.index)
    for index, reason, detail in inner:
        owner = int(pieces.owner[index])
        if owner in rejected:
            continue
        rejected.add(owner)
        where = f"{pieces.word} {index - first[owner] + 1}: " if pieces.word else ""
        rejects.add(owner, reason, where + detail)
    return rejects.in_order()


# ---- decompression ----


def unpacking(codec: str) -> Prepare:
    """Decompress with a codec, within the limits."""

    def unpack(values: pa.BinaryArray, limits: DecodeLimits) -> UnpackedValues:
        packed, at, rejects = sized(values, limits)
        pieces: list[bytes] = []
        kept: list[int] = []
        for position, raw in zip(at.tolist(), packed.to_pylist(), strict=True):
            try:
                pieces.append(_unpacked(codec, raw, limits))
                kept.append(position)
            except _Refused as refused:
                rejects.add(position, refused.reason, str(refused))
        return UnpackedValues(pa.array(pieces, pa.binary()), np.array(kept, np.int64), rejects)

    return unpack


class _Refused(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _unpacked(codec: str, raw: bytes, limits: DecodeLimits) -> bytes:
    most = min(limits.record_bytes, max(SMALL, RATIO * len(raw)))
    try:
        content = (
            _gunzip(raw, most)
            if codec == "gzip"
            else decompress_snappy(raw, most)
            if codec == "snappy"
            else stream(codec, raw, most)
        )
    except (OSError, zlib.error, ValueError) as error:
        raise _Refused(Reason.MALFORMED, f"not {codec}: {str(error) or type(error).__name__}") from None
    if len(content) <= most:
        return content
    if most == limits.record_bytes:
        raise _Refused(Reason.TOO_BIG, f"decompressed value exceeds {most} bytes")
    raise _Refused(Reason.RATIO, f"{len(raw)} bytes decompress to more than {RATIO} times as many")


def _gunzip(raw: bytes, most: int) -> bytes:
    """All members of a gzip value, and nothing after them."""
    content = b""
    while raw:
        reader = zlib.decompressobj(wbits=31)
        content += reader.decompress(raw, most + 1 - len(content))
        if len(content) > most:
            return content
        if not reader.eof:
            raise ValueError("unexpected end")
        raw = reader.unused_data
    return content


def decompress_snappy(raw: bytes, most: int) -> bytes:
    """Decompress Snappy's raw format; returns more than `most` bytes if there are more."""
    if raw.startswith(_XERIAL):
        raise ValueError("Snappy framing format; expected raw Snappy")
    size = _snappy_size(raw)
    if size > most:
        return b"\0" * (most + 1)
    return bytes(pa.Codec("snappy").decompress(raw, decompressed_size=size))


def _snappy_size(raw: bytes) -> int:
    size = 0
    for at, byte in enumerate(raw[:5]):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return size
    raise ValueError("no length")


def stream(codec: str, raw: bytes, most: int) -> bytes:
    """Decompress a codec's frames; returns more than `most` bytes if there are more."""
    with pa.CompressedInputStream(pa.BufferReader(raw), codec) as stream:
        return bytes(stream.read(most + 1))


# ---- splitting ----


def lines(values: pa.BinaryArray, limits: DecodeLimits) -> UnpackedValues:
    """One value per line; blank lines are skipped."""
    whole, at, rejects = sized(values, limits)
    cut = pc.split_pattern(without_bom(whole), b"\n")
    pieces = cut.flatten()
    owner = at[pc.list_parent_indices(cut).to_numpy(zero_copy_only=False)]
    there = _there(pieces)
    pieces, owner = pieces.filter(pa.array(there)), owner[there]
    for position in np.setdiff1d(at, owner).tolist():
        rejects.add(position, Reason.MALFORMED, "nothing but white space")
    return _within(UnpackedValues(pieces, owner, rejects, "line"), limits)


def _there(pieces: pa.BinaryArray) -> Mask:
    """Which pieces have more than white space."""
    return ~bools(pc.match_substring_regex(pieces, rb"^[ \t\r\n]*$"))


def json_elements(values: pa.BinaryArray, limits: DecodeLimits) -> UnpackedValues:
    """Split JSON arrays into elements, cut from the original bytes; the format validates them."""
    whole, at, rejects = sized(values, limits)
    whole = without_bom(whole)
    cuts = _Cuts(whole)
    for position in np.flatnonzero(cuts.others).tolist():
        rejects.add(int(at[position]), Reason.TYPE, "expected an array of objects")
    for position in np.flatnonzero(~cuts.arrays & ~cuts.others).tolist():
        rejects.add(int(at[position]), Reason.MALFORMED, "an array that does not end where the value does")
    return _within(UnpackedValues(cuts.pieces, at[cuts.owner], rejects, "element"), limits)


def _within(pieces: UnpackedValues, limits: DecodeLimits) -> UnpackedValues:
    """Without the values that have more rows than the limit."""
    counts = np.bincount(pieces.owner) if len(pieces.owner) else np.zeros(0, np.int64)
    for position in np.flatnonzero(counts > limits.rows).tolist():
        pieces.rejects.add(position, Reason.TOO_WIDE, f"{counts[position]} rows, the limit is {limits.rows}")
    if not (counts > limits.rows).any():
        return pieces
    keep = counts[pieces.owner] <= limits.rows
    return replace(pieces, values=pieces.values.filter(pa.array(keep)), owner=pieces.owner[keep])


class _Cuts:
    """Bounds of the elements of arrays: the commas outside of strings at depth one.

    For `[1,[2,3],"a,b"]` the depth after each bracket is 1 2 1 0. Of the four commas, the one in `[2,3]` has depth 2
    and the one in "a,b" is in a string, so the array is cut at the two others.
    """

    def __init__(self, values: pa.BinaryArray) -> None:
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1].astype(
            np.int64
        )
        raw = (
            np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
            if len(values)
            else np.zeros(0, np.uint8)
        )
        self._bytes, self._starts, self._ends = raw, offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
        black = np.flatnonzero((raw != 0x20) & (raw != 0x0A) & (raw != 0x0D) & (raw != 0x09))
        first, last = self._outer(black)
        self._measure(first, last)

    def _outer(self, black: Numbers) -> tuple[Numbers, Numbers]:
        """First and last byte of each value that is not white space; -1 if there is none."""
        begin, end = np.searchsorted(black, self._starts), np.searchsorted(black, self._ends)
        some = end > begin
        padded = np.append(black, -1)
        return np.where(some, padded[np.minimum(begin, len(black))], -1), np.where(some, padded[end - 1], -1)

    def _measure(self, first: Numbers, last: Numbers) -> None:
        raw = self._bytes
        inside = _in_text(raw, self._starts, self._ends)
        opens = ((raw == 0x5B) | (raw == 0x7B)) & ~inside
        closes = ((raw == 0x5D) | (raw == 0x7D)) & ~inside
        depth = np.cumsum(opens.astype(np.int64) - closes)
        base = np.where(self._starts > 0, depth[np.maximum(self._starts - 1, 0)] if len(raw) else 0, 0)
        head = np.where(first >= 0, raw[np.maximum(first, 0)] if len(raw) else 0, 0)
        foot = np.where(last >= 0, raw[np.maximum(last, 0)] if len(raw) else 0, 0)
        owner = np.repeat(np.arange(len(self._starts)), self._ends - self._starts)
        level = depth - base[owner] if len(raw) else depth
        ground = np.flatnonzero((level <= 0) & closes)  # end of a value's outermost bracket
        closed = np.full(len(self._starts), -1)
        closed[owner[ground[::-1]]] = ground[::-1]
        self.others = (first >= 0) & np.isin(head, _OTHERS)
        self.arrays = (head == 0x5B) & (foot == 0x5D) & (closed == last) & (first >= 0) & (last > first)
        commas = np.flatnonzero((raw == 0x2C) & ~inside & (level == 1))
        commas = commas[self.arrays[owner[commas]]]
        self._cut(first, last, commas, owner)

    def _cut(self, first: Numbers, last: Numbers, commas: Numbers, owner: Numbers) -> None:
        """The bytes between brackets and commas; an empty array has no element."""
        whole = np.flatnonzero(self.arrays)
        separators = np.concatenate([first[whole], commas])
        ends = np.concatenate([commas, last[whole]])
        begins, ends = np.sort(separators) + 1, np.sort(ends)
        of = owner[begins - 1] if len(begins) else np.zeros(0, np.int64)
        single = np.bincount(of, minlength=len(self._starts)) == 1
        pieces = _slices(self._bytes, begins, ends)
        empty = single[of] & ~_there(pieces) if len(of) else np.zeros(0, bool)
        self.pieces = pieces.filter(pa.array(~empty)) if empty.any() else pieces
        self.owner = of[~empty]


def _slices(raw: np.ndarray, begins: Numbers, ends: Numbers) -> pa.BinaryArray:
    """Parts of a buffer as an array."""
    sizes = ends - begins
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    at = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], sizes)
    data = raw[at] if len(raw) else raw
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data.tobytes())])


def _in_text(raw: np.ndarray, starts: Numbers, ends: Numbers) -> Mask:
    """Which bytes are inside a string of their value."""
    quotes = np.flatnonzero(raw == 0x22)
    quotes = quotes[~_escaped(raw, quotes)]
    is_quote = np.zeros(len(raw) + 1, np.int64)
    is_quote[quotes] = 1
    parity = np.cumsum(is_quote[:-1])
    base = np.where(starts > 0, parity[np.maximum(starts - 1, 0)] if len(raw) else 0, 0)
    return ((parity - np.repeat(base, ends - starts)) & 1).astype(bool) if len(raw) else np.zeros(0, bool)


def _escaped(raw: np.ndarray, quotes: Numbers) -> Mask:
    """Which quotes have an odd number of backslashes before them."""
    odd = np.zeros(len(quotes), bool)
    going, before = np.arange(len(quotes)), quotes - 1
    while len(going):
        slash = (before >= 0) & (raw[np.maximum(before, 0)] == 0x5C)
        going, before = going[slash], before[slash] - 1
        odd[going] ^= True
    return odd
