"""Arrow columns out of fields: every value that the wire holds, in its natural type, or its record refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.contract import Limits
from headrace.decode.layout import Node
from headrace.decode.proto.json import json_text
from headrace.decode.proto.schema import Field, Message
from headrace.decode.proto.wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    NOTHING,
    VARINT,
    Content,
    Found,
    Frames,
    Malformed,
    Words,
    merged,
    walk,
)
from headrace.decode.scan import Mask, Numbers
from headrace.reasons import Reason

Values = np.ndarray[Any, Any]

JSON = pa.json_(pa.string())  # text that is JSON already

_SECONDS = (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999
_SPAN = 315_576_000_000  # seconds: the longest duration
_BILLION = 1_000_000_000
_LIMITS = {"int32": (-(1 << 31), 1 << 31), "enum": (-(1 << 31), 1 << 31), "sint32": (-(1 << 31), 1 << 31)}
_TYPES = {
    **dict.fromkeys(("int32", "sint32", "sfixed32", "enum"), pa.int32()),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), pa.int64()),
    **dict.fromkeys(("uint32", "fixed32"), pa.uint32()),
    **dict.fromkeys(("uint64", "fixed64"), pa.uint64()),
    **{"float": pa.float32(), "double": pa.float64(), "bool": pa.bool_()},
}


_WHOLE = Node("skip")  # below it, everything counts


@dataclass(frozen=True, slots=True)
class Place:
    """Many messages of one type, somewhere in the records: whose they are, and what the columns want of them."""

    rows: Numbers  # the record each message is in
    where: str = ""  # dotted, with a dot behind
    node: Node | None = None
    path: tuple[int, ...] = ()  # the numbers of the fields on the way

    def below(self, field: Field, owners: Numbers) -> Place:
        """Messages in a field of these."""
        node = known(self.node, field.name)
        while node is not None and node.kind in ("list", "map"):
            node = node.children["*"]
        if field.map and node is not None:
            node = Node("object", children={"key": _WHOLE, "value": node})
        if field.message is not None and field.message.meaning != "plain":
            node = _WHOLE
        return Place(self.rows[owners], f"{self.where}{field.name}.", node, (*self.path, field.number))


@dataclass(frozen=True, slots=True)
class Stray:
    """Fields no schema names, of one number."""

    place: Place
    tag: int
    found: Found


def known(node: Node | None, name: str) -> Node | None:
    """What the columns want of a field; below what is kept whole, everything is wanted."""
    if node is None or node.kind in ("json", "skip"):
        return node
    return node.children.get(name)


class Reader:
    """One column of messages on its way into Arrow, with the records refused so far and the first reason of each."""

    def __init__(self, values: pa.BinaryArray, heads: Numbers | int, limits: Limits, all_defaults: bool) -> None:
        self.content = Content(values)
        self.count = len(values)
        self._heads = heads  # bytes before each message
        self.verdicts: dict[int, tuple[Reason, str]] = {}
        self.strays: list[Stray] = []
        self._limits = limits
        self._all_defaults = all_defaults  # also of fields no column wants

    def read(self, message: Message, root: Node) -> pa.Table:
        """All messages as a table, one row each; what the verdicts name is not to be trusted."""
        starts = self.content.starts
        frames = Frames(starts[:-1] + self._heads, starts[1:], np.arange(self.count))
        made = self._plain(message, frames, self.count, Place(np.arange(self.count), "", root))
        return pa.Table.from_arrays(made, [field.name for field in message.fields])

    def refuse(self, rows: Numbers, reason: Reason, detail: str) -> None:
        """These records have this fault, unless another was found before."""
        for row in np.unique(rows).tolist():
            self.verdicts.setdefault(row, (reason, detail))

    # ---- messages ----

    def _plain(self, message: Message, frames: Frames, count: int, place: Place) -> list[pa.Array]:
        walked = walk(self.content, frames, self._limits.depth)
        for owner, reason, detail in walked.faults:
            self.refuse(place.rows[owner : owner + 1], reason, f"{place.where}{detail}" if place.where else detail)
        by_number = {field.number: field for field in message.fields}
        parts: dict[int, dict[int, Found]] = {field.number: {} for field in message.fields}
        for tag, found in sorted(walked.found.items()):
            field = by_number.get(tag >> 3)
            if field is None:
                self.strays.append(Stray(place, tag, found))
            elif tag & 7 == field.wire or (field.packable and tag & 7 == LENGTH):
                parts[field.number][tag & 7] = found
            else:
                detail = f"{place.where}{field.name}: wire type {tag & 7} where {field.kind} has {field.wire}"
                self.refuse(place.rows[found.owners], Reason.MALFORMED, detail)
        _choose(message, parts)
        return [self._field(field, parts[field.number], count, place) for field in message.fields]

    def _messages(self, message: Message, frames: Frames, count: int, place: Place) -> pa.Array:
        """Messages of a type as what they mean."""
        if message.meaning == "json":
            return self._json(message, frames, count, place)
        made = self._plain(message, frames, count, place)
        if message.meaning == "wrapper":
            return made[0]
        if message.meaning == "timestamp":
            return self._timestamps(made[0], made[1], place)
        if message.meaning == "duration":
            return self._durations(made[0], made[1], place)
        if message.meaning == "empty":
            return pa.ExtensionArray.from_storage(JSON, pa.array(["{}"] * count, pa.string()))
        return pa.StructArray.from_arrays(made, [field.name for field in message.fields])

    # ---- fields ----

    def _field(self, field: Field, parts: dict[int, Found], count: int, place: Place) -> pa.Array:
        if field.repeated:
            return self._repeated(field, parts, count, place)
        found = parts.get(field.wire, NOTHING)
        if field.message is not None:
            return self._inner(field, found, count, place)
        found = _last(found)
        present = _present(found, count)
        if field.required and not present.all():
            self.refuse(place.rows[~present], Reason.MISSING, f"{place.where}{field.name}: required, and absent")
        explicit = field.presence or not (self._all_defaults or known(place.node, field.name) is not None)
        nulls = ~present if explicit and not present.all() else None
        if field.kind in ("string", "bytes"):
            return self._texts(field, found, count, nulls, place)
        values = self._values(field, found, place)
        if len(found) < count:
            spread = np.zeros(count, values.dtype)
            spread[found.owners] = values
            values = spread
        return self._named(field, values, nulls, place)

    def _inner(self, field: Field, found: Found, count: int, place: Place) -> pa.Array:
        """A single message; what comes in several pieces is one."""
        assert field.message is not None  # noqa: S101
        last = _last(found)
        if field.required and len(last) < count:
            absent = ~_present(last, count)
            self.refuse(place.rows[absent], Reason.MISSING, f"{place.where}{field.name}: required, and absent")
        ends = found.at + found.words.astype(np.int64)
        if len(last) == count or not field.presence:  # all are there, or their defaults are
            return self._messages(
                field.message, Frames(found.at, ends, found.owners), count, place.below(field, np.arange(count))
            )
        nth = np.full(count, -1)
        nth[last.owners] = np.arange(len(last))
        frames = Frames(found.at, ends, nth[found.owners])
        made = self._messages(field.message, frames, len(last), place.below(field, last.owners))
        return made.take(pa.array(nth, mask=nth < 0))

    def _repeated(self, field: Field, parts: dict[int, Found], count: int, place: Place) -> pa.Array:
        found = parts.get(field.wire, NOTHING)
        if field.packable and LENGTH in parts:
            found = merged([each for each in (found, self._unpacked(field, parts[LENGTH], place)) if len(each)])
        if field.message is not None:
            frames = Frames(found.at, found.at + found.words.astype(np.int64), np.arange(len(found)))
            inner = place.below(field, found.owners)
            if field.map:
                keys, items, owners = self._entries(field.message, frames, found.owners, inner)
                return pa.MapArray.from_arrays(self._offsets(field, owners, count, place), keys, items)
            items = self._messages(field.message, frames, len(found), inner)
        elif field.kind in ("string", "bytes"):
            items = self._texts(field, found, len(found), None, place, each=True)
        else:
            items = self._named(field, self._values(field, found, place), None, place)
        return pa.ListArray.from_arrays(self._offsets(field, found.owners, count, place), items)

    def _entries(
        self, entry: Message, frames: Frames, owners: Numbers, place: Place
    ) -> tuple[pa.Array, pa.Array, Numbers]:
        """Keys, values and owners of the entries of maps; of a key that is there twice, the last."""
        keys, items = self._plain(entry, frames, len(frames), place)
        if not pa.types.is_string(keys.type):
            keys = keys.cast(pa.string())
        if (kept := _last_of_each(keys, owners)) is not None:
            keys, items, owners = keys.take(kept), items.take(kept), owners[kept.to_numpy()]
        return keys, items, owners

    def _offsets(self, field: Field, owners: Numbers, count: int, place: Place) -> pa.Int32Array:
        """Where each list begins; one without elements is empty, or NULL where nobody asks for the field."""
        sizes = np.bincount(owners, minlength=count)
        offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
        asked = self._all_defaults or known(place.node, field.name) is not None
        return pa.array(offsets, mask=None if asked else np.append(sizes == 0, False))

    # ---- values ----

    def _values(self, field: Field, found: Found, place: Place) -> Values:
        """Numbers of one kind; those that the kind cannot hold are refused."""
        kind = field.kind
        if field.wire == FIXED64:
            return self.content.words[found.at].view({"sfixed64": "i8", "double": "f8"}.get(kind, "u8"))
        if field.wire == FIXED32:
            return self.content.halves[found.at].view({"sfixed32": "i4", "float": "f4"}.get(kind, "u4"))
        if kind == "bool":
            flags: Mask = found.words != 0
            return flags
        if kind == "uint64":
            return found.words
        if kind == "uint32":
            self._overflow(field, found, found.words >= 1 << 32, place)
            return found.words.astype(np.uint32)
        signed = (_unzigzag(found.words) if kind[0] == "s" else found.words).view(np.int64)
        if kind in _LIMITS:
            low, high = _LIMITS[kind]
            self._overflow(field, found, (signed < low) | (signed >= high), place)
            return signed.astype(np.int32)
        return signed

    def _overflow(self, field: Field, found: Found, bad: Mask, place: Place) -> None:
        if bad.any():
            detail = f"{place.where}{field.name}: a number does not fit {field.kind}"
            self.refuse(place.rows[found.owners[bad]], Reason.OVERFLOW, detail)

    def _named(self, field: Field, values: Values, nulls: Mask | None, place: Place) -> pa.Array:
        """Numbers as a column; an enum's by their names, where the column does not want numbers."""
        node = known(place.node, field.name)
        while node is not None and node.kind in ("list", "map"):
            node = node.children["*"]
        if field.kind != "enum" or (node is not None and pa.types.is_integer(node.type)):
            return pa.array(values, _TYPES[field.kind], mask=nulls)
        distinct, which = np.unique(values, return_inverse=True)
        names = pa.array([field.names.get(number, str(number)) for number in distinct.tolist()], pa.string())
        return names.take(pa.array(which, mask=nulls))

    def _texts(
        self, field: Field, found: Found, count: int, nulls: Mask | None, place: Place, *, each: bool = False
    ) -> pa.Array:
        """Strings or bytes, cut out of the content: as it is in order, every second of the pieces it falls into."""
        ends = found.at + found.words.astype(np.int64)
        cuts = np.zeros((count, 2), np.int64)
        if len(found) == count:
            cuts[:, 0], cuts[:, 1] = found.at, ends
        else:
            cuts[found.owners, 0], cuts[found.owners, 1] = found.at, ends
            absent = ~_present(found, count)
            cuts[absent] = np.maximum.accumulate(cuts[:, 1])[absent, None]
        offsets = np.append(cuts.reshape(-1), cuts[-1, 1] if count else 0).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.content.bytes)]
        pieces = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
        made = pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=nulls))
        if field.kind == "bytes":
            return made
        try:
            return made.cast(pa.string())
        except pa.ArrowInvalid:
            owners = found.owners if each else np.arange(count)
            return self._utf8(field, made, owners, place)

    def _utf8(self, field: Field, values: pa.BinaryArray, owners: Numbers, place: Place) -> pa.Array:
        texts: list[str | None] = []
        for owner, raw in zip(owners.tolist(), values.to_pylist(), strict=True):
            try:
                texts.append(None if raw is None else raw.decode())
            except UnicodeDecodeError as trouble:
                detail = f"{place.where}{field.name}: not UTF-8 at byte {trouble.start}"
                self.refuse(place.rows[owner : owner + 1], Reason.ENCODING, detail)
                texts.append("")
        return pa.array(texts, pa.string())

    def _unpacked(self, field: Field, found: Found, place: Place) -> Found:
        """The elements of packed fields."""
        found = found.where(found.words > 0)
        if field.wire == VARINT:
            return self._unpacked_varints(field, found, place)
        size = 8 if field.wire == FIXED64 else 4
        if (odd := found.words % np.uint64(size) != 0).any():
            self._not_whole(field, found.owners[odd], place)
            found = found.where(~odd)
        sizes = found.words.astype(np.int64)
        positions, which = _spread(found.at, sizes // size, size)
        return Found(found.owners[which], positions, np.zeros(len(which), np.uint64))

    def _unpacked_varints(self, field: Field, found: Found, place: Place) -> Found:
        last = self.content.bytes[found.at + found.words.astype(np.int64) - 1] if len(found) else np.zeros(0, np.uint8)
        if (open_ := last > 0x7F).any():
            self._not_whole(field, found.owners[open_], place)
            found = found.where(~open_)
        positions, which = _spread(found.at, found.words.astype(np.int64), 1)
        ends = self.content.bytes[positions] < 0x80
        begins = np.append(True, ends[:-1]) if len(ends) else ends
        positions, which = positions[begins], which[begins]
        words, _, bad = self.content.varints(positions)
        if bad.any():
            self._not_whole(field, found.owners[which[bad]], place)
        return Found(found.owners[which], positions, words)

    def _not_whole(self, field: Field, owners: Numbers, place: Place) -> None:
        detail = f"{place.where}{field.name}: packed values do not end with their field"
        self.refuse(place.rows[owners], Reason.MALFORMED, detail)

    # ---- well-known types ----

    def _timestamps(self, seconds: pa.Array, nanos: pa.Array, place: Place) -> pa.Array:
        whole, parts = seconds.to_numpy(zero_copy_only=False), nanos.to_numpy(zero_copy_only=False).astype(np.int64)
        bad = (whole < _SECONDS[0]) | (whole > _SECONDS[1]) | (parts < 0) | (parts >= _BILLION)
        if bad.any():
            detail = f"{place.where[:-1]}: no time of the years 1 to 9999"
            self.refuse(place.rows[bad], Reason.TIMESTAMP, detail)
            whole, parts = np.where(bad, 0, whole), np.where(bad, 0, parts)
        return pa.array(whole * 1_000_000 + parts // 1_000).cast(pa.timestamp("us", "UTC"))

    def _durations(self, seconds: pa.Array, nanos: pa.Array, place: Place) -> pa.Array:
        """Seconds with nine decimal places."""
        whole, parts = seconds.to_numpy(zero_copy_only=False), nanos.to_numpy(zero_copy_only=False).astype(np.int64)
        bad = (np.abs(whole) > _SPAN) | (np.abs(parts) >= _BILLION) | (np.sign(whole) * np.sign(parts) < 0)
        bad |= whole == np.iinfo(np.int64).min
        if bad.any():
            detail = f"{place.where[:-1]}: no duration of up to {_SPAN} seconds"
            self.refuse(place.rows[bad], Reason.TIMESTAMP, detail)
            whole, parts = np.where(bad, 0, whole), np.where(bad, 0, parts)
        fractions = pa.array(parts).cast(pa.decimal128(19, 0))
        fractions = pa.Array.from_buffers(pa.decimal128(19, 9), len(parts), fractions.buffers())  # billionths
        return pc.add(pa.array(whole).cast(pa.decimal128(28, 9)), fractions).cast(pa.decimal128(21, 9))

    def _json(self, message: Message, frames: Frames, count: int, place: Place) -> pa.Array:
        """Values without a schema of their own, as JSON text; one by one."""
        pieces: list[bytes] = [b""] * count
        content = self.content.bytes
        for begin, end, owner in zip(frames.begins.tolist(), frames.ends.tolist(), frames.owners.tolist(), strict=True):
            pieces[owner] += content[begin:end].tobytes()
        texts = []
        for owner, raw in enumerate(pieces):
            try:
                texts.append(json_text(raw, message.json, self._limits))
            except Malformed as malformed:
                self.refuse(place.rows[owner : owner + 1], malformed.reason, f"{place.where[:-1]}: {malformed.detail}")
                texts.append("null")
        return pa.ExtensionArray.from_storage(JSON, pa.array(texts, pa.string()))


def _choose(message: Message, parts: dict[int, dict[int, Found]]) -> None:
    """Of the members of a oneof only what stands behind the last other one counts."""
    choices: dict[str, list[Field]] = {}
    for field in message.fields:
        if field.choice and parts[field.number]:
            choices.setdefault(field.choice, []).append(field)
    for members in choices.values():
        found = [parts[field.number][field.wire] for field in members]
        both = merged(found)
        if len(_last(both)) == len(both):
            continue
        which = np.concatenate([np.full(len(each), nth) for nth, each in enumerate(found)])
        which = which[np.argsort(np.concatenate([each.at for each in found]), kind="stable")]
        kept = _tails(both.owners, which)
        for nth, field in enumerate(members):
            parts[field.number] = {field.wire: both.where(kept & (which == nth))}


def _tails(owners: Numbers, which: Numbers) -> Mask:
    """Which fields belong to the last run of one member in their message."""
    if not len(owners):
        return np.zeros(0, bool)
    changes = np.append(True, (owners[1:] != owners[:-1]) | (which[1:] != which[:-1]))
    run = np.cumsum(changes)
    ends = np.append(owners[1:] != owners[:-1], True)
    last_run = run[np.flatnonzero(ends)]
    sizes = np.diff(np.append(-1, np.flatnonzero(ends)))
    kept: Mask = run == np.repeat(last_run, sizes)
    return kept


def _last(found: Found) -> Found:
    """The last field of each message: it is the one that counts."""
    owners = found.owners
    if len(owners) < 2 or (owners[1:] != owners[:-1]).all():
        return found
    return found.where(np.append(owners[1:] != owners[:-1], True))


def _present(found: Found, count: int) -> Mask:
    present = np.zeros(count, bool)
    present[found.owners] = True
    return present


def _spread(begins: Numbers, counts: Numbers, step: int) -> tuple[Numbers, Numbers]:
    """Every place in ranges, and which range each is in."""
    which = np.repeat(np.arange(len(begins)), counts)
    before = np.cumsum(counts) - counts
    return begins[which] + (np.arange(len(which)) - before[which]) * step, which


def _unzigzag(words: Words) -> Words:
    return (words >> np.uint64(1)) ^ (~(words & np.uint64(1)) + np.uint64(1))


def _last_of_each(keys: pa.Array, owners: Numbers) -> pa.Array | None:
    """The last entry of each key of each map, where any key is there twice."""
    pairs = pa.table({"owner": pa.array(owners), "key": keys, "at": pa.array(np.arange(len(owners)))})
    last = pairs.group_by(["owner", "key"]).aggregate([("at", "max")])["at_max"]
    if len(last) == len(owners):
        return None
    return pa.array(np.sort(last.to_numpy()))
