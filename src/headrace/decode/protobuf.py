"""Protobuf: messages by a schema registry or a schema file, read off the wire by the column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.decode.arrays import is_json
from headrace.decode.contract import Decoded, Limits, NewField, Rejects, joined
from headrace.decode.framing import framed
from headrace.decode.layout import Node, layout_of
from headrace.decode.proto.columns import Reader
from headrace.decode.proto.files import in_file, in_texts
from headrace.decode.proto.indexes import indexed
from headrace.decode.proto.schema import BadSchema, Message, NoMessage
from headrace.decode.proto.strays import UNKNOWN, kept_bytes
from headrace.decode.registry import Registered, Registry, UnknownSchema, registry_of
from headrace.decode.scan import Numbers
from headrace.decode.spoken import as_text, steps_of
from headrace.decode.triage import sized
from headrace.decode.typed import fitted, sample
from headrace.errors import ContractBroken, UsageError
from headrace.reasons import Reason
from headrace.spec.decode import Protobuf
from headrace.spec.registry import RegistrySpec

_KNOWN = 10_000  # message types kept, or that they are none


@dataclass(frozen=True, slots=True)
class Group:
    """Values of one message type."""

    message: Message
    values: pa.BinaryArray
    heads: Numbers | int  # bytes before the message
    at: Numbers


class Source(Protocol):
    """Where message types come from."""

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> list[Group]:
        """The values by message type; those without one are rejects."""
        ...


class ProtobufDecoder:
    """Messages into the rows of one payload schema."""

    def __init__(
        self, source: Source, payload: pa.Schema, new_field: NewField, limits: Limits, options: Protobuf
    ) -> None:
        self._source = source
        self._layout = layout_of(payload)
        self._new_field = new_field
        self._limits = limits
        self._options = options

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Typed rows and rejects of a column of values."""
        groups, rejects = self._groups(values)
        if not groups:
            none = self._layout.with_message(self._layout.schema.empty_table(), lambda: pa.array([], pa.string()))
            return Decoded(none, pa.array([], pa.int64()), rejects.in_order())
        parts = [self._decode(group, Rejects() if nth else rejects) for nth, group in enumerate(groups)]
        return parts[0] if len(parts) == 1 else joined(parts, self._layout.schema)

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The full name of each value's message type, NULL where there is none; such values are rejects."""
        groups, rejects = self._groups(values)
        names = np.full(len(values), None, object)
        for group in groups:
            names[group.at] = group.message.name
        return pa.array(names, pa.string()), rejects.in_order()

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """The scalar at a JSON pointer or dotted path as text, NULL where absent; unreadable values are rejects."""
        steps = steps_of(path)
        groups, rejects = self._groups(values)
        texts = np.full(len(values), None, object)
        for group in groups:
            if (way := _way_to(group.message, steps)) is None:
                continue
            reader = Reader(group.values, group.heads, self._limits, all_defaults=True)
            if (found := as_text(reader.read(way, Node("skip")), steps)) is not None:
                texts[group.at] = found.to_pylist()
            for row, (reason, detail) in reader.verdicts.items():
                texts[group.at[row]] = None
                rejects.add(int(group.at[row]), reason, detail)
        return pa.array(texts, pa.string()), rejects.in_order()

    def foresee(self, schema: Registered) -> tuple[str, Decoded]:
        """The type, and what becomes of one record with a value in every field, of the schema's first message."""
        if schema.kind != "PROTOBUF":
            raise UnknownSchema(f"schema {schema.id} is of the kind {schema.kind}")
        try:
            message = in_texts(schema.text, schema.references, self._limits.depth).at([0])
        except BadSchema as bad:
            raise UnknownSchema(f"schema {schema.id} cannot be used: {bad}") from None
        empty = Reader(pa.array([b""], pa.binary()), 0, self._limits, all_defaults=True)
        natural = empty.read(message, self._layout.root).schema
        kinds = pa.schema([(item.name, _stored(item.type)) for item in natural])
        made = pa.Table.from_pylist([{item.name: sample(item.type) for item in kinds}], kinds)
        return message.name, fitted(made, np.zeros(1, np.int64), self._layout, self._new_field, Rejects())

    def _groups(self, values: pa.BinaryArray) -> tuple[list[Group], Rejects]:
        kept, at, rejects = sized(values, self._limits, empty=self._options.allow_empty)
        return self._source.groups(kept, at, rejects), rejects

    def _decode(self, group: Group, rejects: Rejects) -> Decoded:
        # Defaults are a part of the message, too.
        whole = self._new_field == "evolve" or self._layout.message is not None
        reader = Reader(group.values, group.heads, self._limits, all_defaults=whole)
        natural = reader.read(group.message, self._layout.root)
        ignored: Counter[str] = Counter()
        if reader.strays and self._options.keep_unknown_fields:
            natural = natural.append_column(UNKNOWN, kept_bytes(reader))
        elif reader.strays:
            ignored = self._meet_strays(reader)
        at = group.at
        if reader.verdicts:
            good = np.ones(reader.count, bool)
            for row, (reason, detail) in reader.verdicts.items():
                good[row] = False
                rejects.add(int(at[row]), reason, detail)
            natural, at = natural.filter(pa.array(good)), at[good]
        found = fitted(natural, at, self._layout, self._new_field, rejects, self._limits)
        return replace(found, ignored={**found.ignored, **ignored}) if ignored else found

    def _meet_strays(self, reader: Reader) -> Counter[str]:
        """Fields that no schema names: what the contract says of new fields holds; they cannot become columns."""
        ignored: Counter[str] = Counter()
        for stray in reader.strays:
            rows = [row for row in np.unique(stray.place.rows[stray.found.owners]) if row not in reader.verdicts]
            name = f"{stray.place.where}#{stray.tag >> 3}"
            if rows and self._new_field == "stop":
                raise ContractBroken(f"A record brings the unknown field '{name}', and the contract says: stop.")
            if rows and self._new_field == "reject":
                detail = f"{name}: the schema knows no such field"
                reader.refuse(np.array(rows), Reason.NEW_FIELD, detail)
            elif rows:
                ignored[name] += len(rows)
        return ignored


def _way_to(message: Message, steps: Sequence[str]) -> Message | None:
    """The message type with nothing but the way to one field; None where there is no such scalar."""
    step, *rest = steps
    field = next((each for each in message.fields if each.name == step), None)
    if field is None or field.repeated or message.meaning != "plain":
        return None
    inner = field.message
    if inner is not None and (rest or inner.meaning == "plain"):
        if not rest or (inner := _way_to(inner, rest)) is None:
            return None
        field = replace(field, message=inner)
    elif rest:
        return None
    others = [each for each in message.fields if each.choice and each.choice == field.choice and each.name != step]
    return replace(message, fields=(field, *others))


def _stored(kind: pa.DataType) -> pa.DataType:
    """A type of which Arrow can make values out of Python's: JSON as mere text."""
    if is_json(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(item.name, _stored(item.type)) for item in kind])
    if pa.types.is_list(kind):
        return pa.list_(_stored(kind.value_type))
    return pa.map_(kind.key_type, _stored(kind.item_type)) if pa.types.is_map(kind) else kind


class FromFile:
    """One message type of a schema file; values are bare messages."""

    def __init__(self, path: str, name: str, depth: int) -> None:
        self._path, self._name, self._depth = path, name, depth

    @cached_property
    def _message(self) -> Message:
        try:
            return in_file(self._path, self._depth).message(self._name)
        except (BadSchema, OSError) as trouble:
            raise UsageError(
                f"The schema {self._path} cannot be used: {trouble}.", next="Mend decode.protobuf.descriptor."
            ) from None

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> list[Group]:
        """All values, as one."""
        return [Group(self._message, values, 0, at)]


class FromRegistry:
    """Message types by schema id and message index."""

    def __init__(self, spec: RegistrySpec, depth: int) -> None:
        self._spec, self._depth = spec, depth
        self._known: dict[tuple[int, tuple[int, ...]], Message | tuple[Reason, str]] = {}

    @cached_property
    def _registry(self) -> Registry:
        return registry_of(self._spec)

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> list[Group]:
        """The values by schema and message."""
        kept = framed(values, at, rejects)
        found = indexed(kept.payloads)
        for row in np.flatnonzero(found.codes < 0).tolist():
            rejects.add(int(kept.at[row]), Reason.FRAMING, "no message index follows the schema's id")
        keys = np.where(found.codes < 0, -1, kept.ids.astype(np.uint32).astype(np.int64) * found.span + found.codes)
        made = []
        for key in [int(keys[0])] if len(keys) and (keys == keys[0]).all() else np.unique(keys).tolist():
            if key < 0:
                continue
            rows = np.flatnonzero(keys == key)
            message = self._message(int(kept.ids[rows[0]]), found.paths[key % found.span])
            if isinstance(message, Message):
                alone = len(rows) == len(keys)
                part = kept.payloads if alone else kept.payloads.take(pa.array(rows))
                made.append(Group(message, part, found.heads[rows], kept.at[rows]))
            else:
                rejects.add_all(kept.at[rows], *message)
        return made

    def _message(self, id: int, path: tuple[int, ...]) -> Message | tuple[Reason, str]:
        """The message type, or why there is none; an id that is unknown may become known."""
        if (id, path) in self._known:
            return self._known[id, path]
        try:
            schema = self._registry.schema(id)
            if schema.kind != "PROTOBUF":
                return Reason.UNKNOWN_SCHEMA, f"schema {id} is of the kind {schema.kind}"
        except UnknownSchema as unknown:
            return Reason.UNKNOWN_SCHEMA, str(unknown)
        try:
            made: Message | tuple[Reason, str] = in_texts(schema.text, schema.references, self._depth).at(path)
        except NoMessage as none:
            made = Reason.FRAMING, f"schema {id}: {none}"
        except BadSchema as bad:
            made = Reason.UNKNOWN_SCHEMA, f"schema {id} cannot be used: {bad}"
        if len(self._known) < _KNOWN:
            self._known[id, path] = made
        return made


def protobuf_decoder(payload: pa.Schema, new_field: NewField, limits: Limits, options: Protobuf) -> ProtobufDecoder:
    """The factory of the format table."""
    if options.registry is not None:
        return ProtobufDecoder(FromRegistry(options.registry, limits.depth), payload, new_field, limits, options)
    source = FromFile(options.descriptor or "", options.message or "", limits.depth)
    return ProtobufDecoder(source, payload, new_field, limits, options)
