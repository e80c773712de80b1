"""Convert the fields of messages to Arrow columns in their natural types; a record that does not fit is rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import DecodeLimits
from headrace.decode.byte_scan import Mask, Numbers
from headrace.decode.payload import PayloadNode
from headrace.decode.protobuf.schema import Field, Message
from headrace.decode.protobuf.struct_json import json_text
from headrace.decode.protobuf.wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    NO_OCCURRENCES,
    VARINT,
    Content,
    Frames,
    Malformed,
    Occurrences,
    Words,
    merge_occurrences,
    walk,
)
from headrace.reasons import Reason

Values = np.ndarray[Any, Any]

JSON = pa.json_(pa.string())  # text that is JSON already

_SECONDS = (-62_135_596_800, 253_402_300_799)  # years 1 to 9999
_MAX_DURATION = 315_576_000_000  # seconds
_BILLION = 1_000_000_000
_LIMITS = {"int32": (-(1 << 31), 1 << 31), "enum": (-(1 << 31), 1 << 31), "sint32": (-(1 << 31), 1 << 31)}
_TYPES = {
    **dict.fromkeys(("int32", "sint32", "sfixed32", "enum"), pa.int32()),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), pa.int64()),
    **dict.fromkeys(("uint32", "fixed32"), pa.uint32()),
    **dict.fromkeys(("uint64", "fixed64"), pa.uint64()),
    **{"float": pa.float32(), "double": pa.float64(), "bool": pa.bool_()},
}


_WHOLE = PayloadNode("skip")  # everything below is wanted


@dataclass(frozen=True, slots=True)
class Scope:
    """Messages of one type at one path of the records, and the columns that are wanted of them."""

    rows: Numbers  # the record of each message
    prefix: str = ""  # the path with dots, and a dot at the end
    node: PayloadNode | None = None
    path: tuple[int, ...] = ()  # the field numbers of the path

    def below(self, field: Field, owners: Numbers) -> Scope:
        """The scope of the messages in a field."""
        node = wanted(self.node, field.name)
        while node is not None and node.kind in ("list", "map"):
            node = node.children["*"]
        if field.map and node is not None:
            node = PayloadNode("object", children={"key": _WHOLE, "value": node})
        if field.message is not None and field.message.meaning != "plain":
            node = _WHOLE
        return Scope(self.rows[owners], f"{self.prefix}{field.name}.", node, (*self.path, field.number))


@dataclass(frozen=True, slots=True)
class UnknownField:
    """Fields with one tag that the schema does not have."""

    scope: Scope
    tag: int
    occurrences: Occurrences


def wanted(node: PayloadNode | None, name: str) -> PayloadNode | None:
    """The part of a column that a field fills, None if no column has it; all fields below JSON text are wanted."""
    if node is None or node.kind in ("json", "skip"):
        return node
    return node.children.get(name)


class ProtobufColumns:
    """Converts a column of messages to Arrow and collects the rejected records, each with its first reason."""

    def __init__(self, values: pa.BinaryArray, heads: Numbers | int, limits: DecodeLimits, all_defaults: bool) -> None:
        self.content = Content(values)
        self.count = len(values)
        self._heads = heads  # bytes in front of each message
        self.rejects: dict[int, tuple[Reason, str]] = {}
        self.unknown_fields: list[UnknownField] = []
        self._limits = limits
        self._all_defaults = all_defaults  # also for fields without a column

    def read(self, message: Message, root: PayloadNode) -> pa.Table:
        """A table with one row for each message; rows of rejected records have arbitrary values."""
        starts = self.content.starts
        frames = Frames(starts[:-1] + self._heads, starts[1:], np.arange(self.count))
        columns = self._plain(message, frames, self.count, Scope(np.arange(self.count), "", root))
        return pa.Table.from_arrays(columns, [field.name for field in message.fields])

    def reject(self, rows: Numbers, reason: Reason, detail: str) -> None:
        """Reject records, unless they have been rejected for another reason."""
        for row in np.unique(rows).tolist():
            self.rejects.setdefault(row, (reason, detail))

    # ---- messages ----

    def _plain(self, message: Message, frames: Frames, count: int, scope: Scope) -> list[pa.Array]:
        parts = self._parts(message, frames, scope)
        return [self._field(field, parts[field.number], count, scope) for field in message.fields]

    def _parts(self, message: Message, frames: Frames, scope: Scope) -> dict[int, dict[int, Occurrences]]:
        """The occurrences of each field by number and wire type."""
        fields = walk(self.content, frames, self._limits.depth)
        for owner, reason, detail in fields.errors:
            self.reject(scope.rows[owner : owner + 1], reason, f"{scope.prefix}{detail}" if scope.prefix else detail)
        by_number = {field.number: field for field in message.fields}
        parts: dict[int, dict[int, Occurrences]] = {field.number: {} for field in message.fields}
        for tag, occurrences in sorted(fields.by_tag.items()):
            field = by_number.get(tag >> 3)
            if field is None:
                self.unknown_fields.append(UnknownField(scope, tag, occurrences))
            elif tag & 7 == field.wire or (field.packable and tag & 7 == LENGTH):
                parts[field.number][tag & 7] = occurrences
            else:
                detail = f"{scope.prefix}{field.name}: wire type {tag & 7}, expected {field.wire} for {field.kind}"
                self.reject(scope.rows[occurrences.owners], Reason.MALFORMED, detail)
        _apply_oneofs(message, parts)
        return parts

    def _messages(self, message: Message, frames: Frames, count: int, scope: Scope) -> pa.Array:
        """Messages of a type as the values they stand for."""
        if message.meaning == "json":
            return self._json(message, frames, count, scope)
        columns = self._plain(message, frames, count, scope)
        if message.meaning == "wrapper":
            return columns[0]
        if message.meaning == "timestamp":
            return self._timestamps(columns[0], columns[1], scope)
        if message.meaning == "duration":
            return self._durations(columns[0], columns[1], scope)
        if message.meaning == "empty":
            return pa.ExtensionArray.from_storage(JSON, pa.array(["{}"] * count, pa.string()))
        return pa.StructArray.from_arrays(columns, [field.name for field in message.fields])

    # ---- fields ----

    def _field(self, field: Field, parts: dict[int, Occurrences], count: int, scope: Scope) -> pa.Array:
        if field.repeated:
            return self._repeated(field, parts, count, scope)
        occurrences = parts.get(field.wire, NO_OCCURRENCES)
        if field.message is not None:
            return self._inner(field, occurrences, count, scope)
        occurrences = _last(occurrences)
        present = _present(occurrences, count)
        if field.required and not present.all():
            self.reject(scope.rows[~present], Reason.MISSING, f"{scope.prefix}{field.name}: required field is missing")
        explicit = field.presence or not (self._all_defaults or wanted(scope.node, field.name) is not None)
        nulls = ~present if explicit and not present.all() else None
        if field.kind in ("string", "bytes"):
            return self._texts(field, occurrences, count, nulls, scope)
        values = self._values(field, occurrences, scope)
        if len(occurrences) < count:
            padded = np.zeros(count, values.dtype)
            padded[occurrences.owners] = values
            values = padded
        return self._named(field, values, nulls, scope)

    def _inner(self, field: Field, occurrences: Occurrences, count: int, scope: Scope) -> pa.Array:
        """A single message; several occurrences are merged."""
        assert field.message is not None  # noqa: S101
        last = _last(occurrences)
        if field.required and len(last) < count:
            absent = ~_present(last, count)
            self.reject(scope.rows[absent], Reason.MISSING, f"{scope.prefix}{field.name}: required field is missing")
        ends = occurrences.at + occurrences.words.astype(np.int64)
        if len(last) == count or not field.presence:  # every message has a value, or its default
            return self._messages(
                field.message,
                Frames(occurrences.at, ends, occurrences.owners),
                count,
                scope.below(field, np.arange(count)),
            )
        nth = np.full(count, -1)
        nth[last.owners] = np.arange(len(last))
        frames = Frames(occurrences.at, ends, nth[occurrences.owners])
        messages = self._messages(field.message, frames, len(last), scope.below(field, last.owners))
        return messages.take(pa.array(nth, mask=nth < 0))

    def _repeated(self, field: Field, parts: dict[int, Occurrences], count: int, scope: Scope) -> pa.Array:
        occurrences = parts.get(field.wire, NO_OCCURRENCES)
        if field.packable and LENGTH in parts:
            packed = self._unpacked(field, parts[LENGTH], scope)
            occurrences = merge_occurrences([each for each in (occurrences, packed) if len(each)])
        if field.message is not None:
            ends = occurrences.at + occurrences.words.astype(np.int64)
            frames = Frames(occurrences.at, ends, np.arange(len(occurrences)))
            inner = scope.below(field, occurrences.owners)
            if field.map:
                keys, items, owners = self._entries(field.message, frames, occurrences.owners, inner)
                return pa.MapArray.from_arrays(self._offsets(field, owners, count, scope), keys, items)
            items = self._messages(field.message, frames, len(occurrences), inner)
        elif field.kind in ("string", "bytes"):
            items = self._texts(field, occurrences, len(occurrences), None, scope, each=True)
        else:
            items = self._named(field, self._values(field, occurrences, scope), None, scope)
        return pa.ListArray.from_arrays(self._offsets(field, occurrences.owners, count, scope), items)

    def _entries(
        self, entry: Message, frames: Frames, owners: Numbers, scope: Scope
    ) -> tuple[pa.Array, pa.Array, Numbers]:
        """Keys, values and owners of map entries; the last entry of a key counts."""
        keys, items = self._plain(entry, frames, len(frames), scope)
        if not pa.types.is_string(keys.type):
            keys = keys.cast(pa.string())
        if (kept := _last_of_each(keys, owners)) is not None:
            keys, items, owners = keys.take(kept), items.take(kept), owners[kept.to_numpy()]
        return keys, items, owners

    def _offsets(self, field: Field, owners: Numbers, count: int, scope: Scope) -> pa.Int32Array:
        """Offsets of lists; one without elements is empty, or NULL if no column wants the field."""
        sizes = np.bincount(owners, minlength=count)
        offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
        is_wanted = self._all_defaults or wanted(scope.node, field.name) is not None
        return pa.array(offsets, mask=None if is_wanted else np.append(sizes == 0, False))

    # ---- values ----

    def _values(self, field: Field, occurrences: Occurrences, scope: Scope) -> Values:
        """Numbers of one kind; records with a number out of range are rejected."""
        kind = field.kind
        if field.wire == FIXED64:
            return self.content.words[occurrences.at].view({"sfixed64": "i8", "double": "f8"}.get(kind, "u8"))
        if field.wire == FIXED32:
            return self.content.halves[occurrences.at].view({"sfixed32": "i4", "float": "f4"}.get(kind, "u4"))
        if kind == "bool":
            flags: Mask = occurrences.words != 0
            return flags
        if kind == "uint64":
            return occurrences.words
        if kind == "uint32":
            self._overflow(field, occurrences, occurrences.words >= 1 << 32, scope)
            return occurrences.words.astype(np.uint32)
        signed = (_unzigzag(occurrences.words) if kind[0] == "s" else occurrences.words).view(np.int64)
        if kind in _LIMITS:
            low, high = _LIMITS[kind]
            self._overflow(field, occurrences, (signed < low) | (signed >= high), scope)
            return signed.astype(np.int32)
        return signed

    def _overflow(self, field: Field, occurrences: Occurrences, bad: Mask, scope: Scope) -> None:
        if bad.any():
            detail = f"{scope.prefix}{field.name}: number out of range for {field.kind}"
            self.reject(scope.rows[occurrences.owners[bad]], Reason.OVERFLOW, detail)

    def _named(self, field: Field, values: Values, nulls: Mask | None, scope: Scope) -> pa.Array:
        """Numbers as a column; enums as their names, unless the column has an integer type."""
        node = wanted(scope.node, field.name)
        while node is not None and node.kind in ("list", "map"):
            node = node.children["*"]
        if field.kind != "enum" or (node is not None and pa.types.is_integer(node.type)):
            return pa.array(values, _TYPES[field.kind], mask=nulls)
        distinct, which = np.unique(values, return_inverse=True)
        names = pa.array([field.names.get(number, str(number)) for number in distinct.tolist()], pa.string())
        return names.take(pa.array(which, mask=nulls))

    def _texts(
        self,
        field: Field,
        occurrences: Occurrences,
        count: int,
        nulls: Mask | None,
        scope: Scope,
        *,
        each: bool = False,
    ) -> pa.Array:
        """Strings or bytes as slices of the content.

        The content is cut at the begin and end of each value, so every second slice is a value: `..abc.de` with values
        at 2 to 5 and 6 to 8 has the slices `abc`, `.`, `de`, and the values are taken from 0, 2, ….
        """
        ends = occurrences.at + occurrences.words.astype(np.int64)
        cuts = np.zeros((count, 2), np.int64)
        if len(occurrences) == count:
            cuts[:, 0], cuts[:, 1] = occurrences.at, ends
        else:
            cuts[occurrences.owners, 0], cuts[occurrences.owners, 1] = occurrences.at, ends
            absent = ~_present(occurrences, count)
            cuts[absent] = np.maximum.accumulate(cuts[:, 1])[absent, None]
        offsets = np.append(cuts.reshape(-1), cuts[-1, 1] if count else 0).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.content.bytes)]
        pieces = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
        values = pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=nulls))
        if field.kind == "bytes":
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            owners = occurrences.owners if each else np.arange(count)
            return self._utf8(field, values, owners, scope)

    def _utf8(self, field: Field, values: pa.BinaryArray, owners: Numbers, scope: Scope) -> pa.Array:
        texts: list[str | None] = []
        for owner, raw in zip(owners.tolist(), values.to_pylist(), strict=True):
            try:
                texts.append(None if raw is None else raw.decode())
            except UnicodeDecodeError as error:
                detail = f"{scope.prefix}{field.name}: not UTF-8 at byte {error.start}"
                self.reject(scope.rows[owner : owner + 1], Reason.ENCODING, detail)
                texts.append("")
        return pa.array(texts, pa.string())

    def _unpacked(self, field: Field, occurrences: Occurrences, scope: Scope) -> Occurrences:
        """The elements of packed fields, as occurrences."""
        occurrences = occurrences.where(occurrences.words > 0)
        if field.wire == VARINT:
            return self._unpacked_varints(field, occurrences, scope)
        size = 8 if field.wire == FIXED64 else 4
        if (odd := occurrences.words % np.uint64(size) != 0).any():
            self._not_whole(field, occurrences.owners[odd], scope)
            occurrences = occurrences.where(~odd)
        sizes = occurrences.words.astype(np.int64)
        positions, which = _ranges(occurrences.at, sizes // size, size)
        return Occurrences(occurrences.owners[which], positions, np.zeros(len(which), np.uint64))

    def _unpacked_varints(self, field: Field, occurrences: Occurrences, scope: Scope) -> Occurrences:
        lasts = occurrences.at + occurrences.words.astype(np.int64) - 1
        if (open_ := self.content.bytes[lasts] > 0x7F).any():
            self._not_whole(field, occurrences.owners[open_], scope)
            occurrences = occurrences.where(~open_)
        positions, which = _ranges(occurrences.at, occurrences.words.astype(np.int64), 1)
        ends = self.content.bytes[positions] < 0x80
        begins = np.append(True, ends[:-1]) if len(ends) else ends
        positions, which = positions[begins], which[begins]
        words, _, bad = self.content.varints(positions)
        if bad.any():
            self._not_whole(field, occurrences.owners[which[bad]], scope)
        return Occurrences(occurrences.owners[which], positions, words)

    def _not_whole(self, field: Field, owners: Numbers, scope: Scope) -> None:
        detail = f"{scope.prefix}{field.name}: packed values extend beyond the end of their field"
        self.reject(scope.rows[owners], Reason.MALFORMED, detail)

    # ---- well-known types ----

    def _timestamps(self, seconds: pa.Array, nanos: pa.Array, scope: Scope) -> pa.Array:
        whole, parts = seconds.to_numpy(zero_copy_only=False), nanos.to_numpy(zero_copy_only=False).astype(np.int64)
        bad = (whole < _SECONDS[0]) | (whole > _SECONDS[1]) | (parts < 0) | (parts >= _BILLION)
        if bad.any():
            detail = f"{scope.prefix[:-1]}: timestamp outside of the years 1 to 9999"
            self.reject(scope.rows[bad], Reason.TIMESTAMP, detail)
            whole, parts = np.where(bad, 0, whole), np.where(bad, 0, parts)
        return pa.array(whole * 1_000_000 + parts // 1_000).cast(pa.timestamp("us", "UTC"))

    def _durations(self, seconds: pa.Array, nanos: pa.Array, scope: Scope) -> pa.Array:
        """Seconds with nine decimal places."""
        whole, parts = seconds.to_numpy(zero_copy_only=False), nanos.to_numpy(zero_copy_only=False).astype(np.int64)
        bad = (np.abs(whole) > _MAX_DURATION) | (np.abs(parts) >= _BILLION) | (np.sign(whole) * np.sign(parts) < 0)
        bad |= whole == np.iinfo(np.int64).min
        if bad.any():
            detail = f"{scope.prefix[:-1]}: duration longer than {_MAX_DURATION} seconds, or invalid nanos"
            self.reject(scope.rows[bad], Reason.TIMESTAMP, detail)
            whole, parts = np.where(bad, 0, whole), np.where(bad, 0, parts)
        fractions = pa.array(parts).cast(pa.decimal128(19, 0))
        fractions = pa.Array.from_buffers(pa.decimal128(19, 9), len(parts), fractions.buffers())  # billionths
        return pc.add(pa.array(whole).cast(pa.decimal128(28, 9)), fractions).cast(pa.decimal128(21, 9))

    def _json(self, message: Message, frames: Frames, count: int, scope: Scope) -> pa.Array:
        """Values of Struct, Value and ListValue as JSON text, one at a time."""
        pieces: list[bytes] = [b""] * count
        content = self.content.bytes
        for begin, end, owner in zip(frames.begins.tolist(), frames.ends.tolist(), frames.owners.tolist(), strict=True):
            pieces[owner] += content[begin:end].tobytes()
        texts = []
        for owner, raw in enumerate(pieces):
            try:
                texts.append(json_text(raw, message.json, self._limits))
            except Malformed as malformed:
                self.reject(scope.rows[owner : owner + 1], malformed.reason, f"{scope.prefix[:-1]}: {malformed.detail}")
                texts.append("null")
        return pa.ExtensionArray.from_storage(JSON, pa.array(texts, pa.string()))


def _apply_oneofs(message: Message, parts: dict[int, dict[int, Occurrences]]) -> None:
    """Drop all members of a oneof but the last one of each message."""
    choices: dict[str, list[Field]] = {}
    for field in message.fields:
        if field.choice and parts[field.number]:
            choices.setdefault(field.choice, []).append(field)
    for members in choices.values():
        each_member = [parts[field.number][field.wire] for field in members]
        both = merge_occurrences(each_member)
        if len(_last(both)) == len(both):
            continue
        which = np.concatenate([np.full(len(each), nth) for nth, each in enumerate(each_member)])
        which = which[np.argsort(np.concatenate([each.at for each in each_member]), kind="stable")]
        kept = _in_last_run(both.owners, which)
        for nth, field in enumerate(members):
            parts[field.number] = {field.wire: both.where(kept & (which == nth))}


def _in_last_run(owners: Numbers, which: Numbers) -> Mask:
    """Which occurrences belong to the last run of one member in their message: a a b b a is 0 0 0 0 1."""
    if not len(owners):
        return np.zeros(0, bool)
    changes = np.append(True, (owners[1:] != owners[:-1]) | (which[1:] != which[:-1]))
    run = np.cumsum(changes)
    ends = np.append(owners[1:] != owners[:-1], True)
    last_run = run[np.flatnonzero(ends)]
    sizes = np.diff(np.append(-1, np.flatnonzero(ends)))
    kept: Mask = run == np.repeat(last_run, sizes)
    return kept


def _last(occurrences: Occurrences) -> Occurrences:
    """The last occurrence in each message, which is the one that counts."""
    owners = occurrences.owners
    if len(owners) < 2 or (owners[1:] != owners[:-1]).all():
        return occurrences
    return occurrences.where(np.append(owners[1:] != owners[:-1], True))


def _present(occurrences: Occurrences, count: int) -> Mask:
    present = np.zeros(count, bool)
    present[occurrences.owners] = True
    return present


def _ranges(begins: Numbers, counts: Numbers, step: int) -> tuple[Numbers, Numbers]:
    """Every offset of ranges, and the range of each."""
    which = np.repeat(np.arange(len(begins)), counts)
    before = np.cumsum(counts) - counts
    return begins[which] + (np.arange(len(which)) - before[which]) * step, which


def _unzigzag(words: Words) -> Words:
    return (words >> np.uint64(1)) ^ (~(words & np.uint64(1)) + np.uint64(1))


def _last_of_each(keys: pa.Array, owners: Numbers) -> pa.Array | None:
    """The last entry of each key in each map; None if no key occurs twice."""
    pairs = pa.table({"owner": pa.array(owners), "key": keys, "at": pa.array(np.arange(len(owners)))})
    last = pairs.group_by(["owner", "key"]).aggregate([("at", "max")])["at_max"]
    if len(last) == len(owners):
        return None
    return pa.array(np.sort(last.to_numpy()))
