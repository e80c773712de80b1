"""Protobuf: messages with the schemas of a registry or a schema file, decoded by column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.decode.base import Decoded, DecodeLimits, NewField, Rejects, join_rejects, new_field_stop
from headrace.decode.byte_scan import Numbers
from headrace.decode.input import sized
from headrace.decode.nested import as_struct, is_json, struct_field
from headrace.decode.payload import PayloadNode, payload_schema_of
from headrace.decode.protobuf.columns import ProtobufColumns
from headrace.decode.protobuf.message_index import indexed
from headrace.decode.protobuf.schema import BadProtobufSchema, Message, NoMessage
from headrace.decode.protobuf.schema_files import in_file, in_texts
from headrace.decode.protobuf.unknown_fields import kept_bytes
from headrace.decode.registry.client import Registered, Registry, UnknownSchema, registry_of
from headrace.decode.registry.framing import framed
from headrace.decode.typed.fit import fit_values, sample
from headrace.decode.typed.text import path_steps, scalars_as_text
from headrace.errors import UsageError
from headrace.reasons import Reason
from headrace.spec.decode import UNKNOWN_FIELDS, ProtobufFormat
from headrace.spec.registry import RegistrySpec

_KNOWN = 10_000  # message types, or errors, that are cached


@dataclass(frozen=True, slots=True)
class ProtobufGroup:
    """Values of one message type."""

    message: Message
    values: pa.BinaryArray
    heads: Numbers | int  # bytes in front of the message
    at: Numbers


class ProtobufSchemas(Protocol):
    """Source of message types."""

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> list[ProtobufGroup]:
        """Group the values by message type; values without one are rejected."""
        ...


class ProtobufDecoder:
    """Decodes messages to the rows of one payload schema."""

    def __init__(
        self,
        source: ProtobufSchemas,
        payload: pa.Schema,
        new_field: NewField,
        limits: DecodeLimits,
        options: ProtobufFormat,
    ) -> None:
        self._source = source
        self._layout = payload_schema_of(payload)
        self._new_field = new_field
        self._limits = limits
        self._options = options

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        groups, rejects = self._groups(values)
        if not groups:
            none = self._layout.with_message(self._layout.schema.empty_table(), lambda: pa.array([], pa.string()))
            return Decoded(none, pa.array([], pa.int64()), rejects.in_order())
        parts = [self._decode(group, Rejects() if nth else rejects) for nth, group in enumerate(groups)]
        return parts[0] if len(parts) == 1 else join_rejects(parts, self._layout.schema)

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The full name of the message type of each value; values without one are NULL and rejected."""
        groups, rejects = self._groups(values)
        names = np.full(len(values), None, object)
        for group in groups:
            names[group.at] = group.message.name
        return pa.array(names, pa.string()), rejects.in_order()

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """The scalar at a JSON pointer or dotted path as text, NULL if absent; unreadable values are rejected."""
        steps = path_steps(path)
        groups, rejects = self._groups(values)
        texts = np.full(len(values), None, object)
        for group in groups:
            if (reduced := _reduced_to(group.message, steps)) is None:
                continue
            reader = ProtobufColumns(group.values, group.heads, self._limits, all_defaults=True)
            if (scalars := scalars_as_text(reader.read(reduced, PayloadNode("skip")), steps)) is not None:
                texts[group.at] = scalars.to_pylist()
            for row, (reason, detail) in reader.rejects.items():
                texts[group.at[row]] = None
                rejects.add(int(group.at[row]), reason, detail)
        return pa.array(texts, pa.string()), rejects.in_order()

    def predict(self, schema: Registered) -> tuple[str, Decoded]:
        """The name of the schema's first message, and the result of decoding a record with a value in every field."""
        if schema.kind != "PROTOBUF":
            raise UnknownSchema(f"schema {schema.id} has the type {schema.kind}, expected PROTOBUF")
        try:
            message = in_texts(schema.text, schema.references, self._limits.depth).at([0])
        except BadProtobufSchema as bad:
            raise UnknownSchema(f"schema {schema.id} cannot be used: {bad}") from None
        if repeated := self._repeated_name(message):
            raise UnknownSchema(f"schema {schema.id} cannot be used: {repeated}")
        empty = ProtobufColumns(pa.array([b""], pa.binary()), 0, self._limits, all_defaults=True)
        natural = self._read(empty, message).schema
        kinds = pa.schema([(item.name, _stored(item.type)) for item in natural])
        record = pa.Table.from_pylist([{item.name: sample(item.type) for item in kinds}], kinds)
        return message.name, fit_values(record, np.zeros(1, np.int64), self._layout, self._new_field, Rejects())

    def _read(self, reader: ProtobufColumns, message: Message) -> pa.Table:
        """The fields of messages in their natural types, nested ones beside the others with `flatten`."""
        if not self._options.flatten:
            return reader.read(message, self._layout.root)
        return flattened(reader.read(message, PayloadNode("skip")))

    def _repeated_name(self, message: Message) -> str:
        """Why a message cannot be flattened; empty if it can, or is not to be."""
        if not self._options.flatten:
            return ""
        names = Counter(name.lower() for name in flattened_names(message))
        name = next((name for name, count in names.items() if count > 1), None)
        return f"two fields of {message.name} have the name '{name}' with flatten" if name else ""

    def _groups(self, values: pa.BinaryArray) -> tuple[list[ProtobufGroup], Rejects]:
        kept, at, rejects = sized(values, self._limits, empty=self._options.allow_empty)
        return self._source.groups(kept, at, rejects), rejects

    def _decode(self, group: ProtobufGroup, rejects: Rejects) -> Decoded:
        if repeated := self._repeated_name(group.message):
            rejects.add_all(group.at, Reason.UNKNOWN_SCHEMA, repeated)
            none = self._layout.with_message(self._layout.schema.empty_table(), lambda: pa.array([], pa.string()))
            return Decoded(none, pa.array([], pa.int64()), rejects.in_order())
        # New columns and the column with the whole message have defaults, too.
        whole = self._new_field == "evolve" or self._layout.message is not None
        reader = ProtobufColumns(group.values, group.heads, self._limits, all_defaults=whole)
        natural = self._read(reader, group.message)
        ignored: Counter[str] = Counter()
        if reader.unknown_fields and self._stores_unknown:
            natural = natural.append_column(UNKNOWN_FIELDS, kept_bytes(reader))
        elif reader.unknown_fields:
            ignored = self._apply_contract(reader)
        at = group.at
        if reader.rejects:
            good = np.ones(reader.count, bool)
            for row, (reason, detail) in reader.rejects.items():
                good[row] = False
                rejects.add(int(at[row]), reason, detail)
            natural, at = natural.filter(pa.array(good)), at[good]
        decoded = fit_values(natural, at, self._layout, self._new_field, rejects, self._limits)
        return replace(decoded, ignored={**decoded.ignored, **ignored}) if ignored else decoded

    @cached_property
    def _stores_unknown(self) -> bool:
        """Whether the bytes of unknown fields have a column, will have one, or are rescued."""
        if self._new_field == "rescue" and not self._layout.root.open:
            return True  # an exploded list has no column for bytes of its elements: their records are rejected
        has_column = any(column.path == (UNKNOWN_FIELDS,) for column in self._layout.columns)
        return self._options.keep_unknown_fields and (has_column or self._new_field == "evolve")

    def _apply_contract(self, reader: ProtobufColumns) -> Counter[str]:
        """Apply the contract for new fields to unknown fields, which cannot become columns (they have no name)."""
        ignored: Counter[str] = Counter()
        for unknown in reader.unknown_fields:
            rows = [
                row for row in np.unique(unknown.scope.rows[unknown.occurrences.owners]) if row not in reader.rejects
            ]
            name = f"{unknown.scope.prefix}#{unknown.tag >> 3}"
            beside = self._layout.is_beside((*unknown.scope.prefix.split(".")[:-1], ""))
            if rows and self._new_field == "stop" and not beside:
                raise new_field_stop(name)
            if rows and self._new_field in ("reject", "rescue") and not beside:
                detail = f"{name}: the schema does not have this field"
                reader.reject(np.array(rows), Reason.NEW_FIELD, detail)
            elif rows:
                ignored[name] += len(rows)
        return ignored


def flattened(natural: pa.Table) -> pa.Table:
    """The fields of structs as columns of their own: `a.b` as `a_b`."""
    columns: dict[str, pa.Array] = {}

    def add(name: str, values: pa.Array) -> None:
        if not pa.types.is_struct(values.type):
            columns[name] = values
            return
        for field in values.type:
            add(f"{name}_{field.name}", struct_field(values, field.name))

    whole = as_struct(natural)
    for field in whole.type:
        add(field.name, struct_field(whole, field.name))
    return pa.table(columns)


def flattened_names(message: Message, prefix: str = "") -> Iterator[str]:
    """The names of a message's fields, with nested messages flattened."""
    for field in message.fields:
        inner = field.message
        if inner is None or field.repeated or field.map or inner.meaning != "plain":
            yield prefix + field.name
        else:
            yield from flattened_names(inner, f"{prefix}{field.name}_")


def _reduced_to(message: Message, steps: Sequence[str]) -> Message | None:
    """The message type reduced to the path of one scalar field; None if there is no such field."""
    step, *rest = steps
    field = next((each for each in message.fields if each.name == step), None)
    if field is None or field.repeated or message.meaning != "plain":
        return None
    inner = field.message
    if inner is not None and (rest or inner.meaning == "plain"):
        if not rest or (inner := _reduced_to(inner, rest)) is None:
            return None
        field = replace(field, message=inner)
    elif rest:
        return None
    others = [each for each in message.fields if each.choice and each.choice == field.choice and each.name != step]
    return replace(message, fields=(field, *others))


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type with JSON as plain text, so that Arrow can convert Python values to it."""
    if is_json(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(item.name, _stored(item.type)) for item in kind])
    if pa.types.is_list(kind):
        return pa.list_(_stored(kind.value_type))
    return pa.map_(kind.key_type, _stored(kind.item_type)) if pa.types.is_map(kind) else kind


class FromFile:
    """One message type of a schema file; values are messages without a header."""

    def __init__(self, path: str, name: str, depth: int) -> None:
        self._path, self._name, self._depth = path, name, depth

    @cached_property
    def _message(self) -> Message:
        try:
            return in_file(self._path, self._depth).message(self._name)
        except (BadProtobufSchema, OSError) as error:
            raise UsageError(
                f"The schema {self._path} cannot be used: {error}.", hint="Correct decode.protobuf.descriptor."
            ) from None

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> list[ProtobufGroup]:
        """All values as one group."""
        return [ProtobufGroup(self._message, values, 0, at)]


class ProtobufFromRegistry:
    """Message types by schema id and message index."""

    def __init__(self, spec: RegistrySpec, depth: int) -> None:
        self._spec, self._depth = spec, depth
        self._known: dict[tuple[int, tuple[int, ...]], Message | tuple[Reason, str]] = {}

    @cached_property
    def _registry(self) -> Registry:
        return registry_of(self._spec)

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> list[ProtobufGroup]:
        """Group the values by schema id and message index."""
        kept = framed(values, at, rejects)
        indexes = indexed(kept.payloads)
        for row in np.flatnonzero(indexes.codes < 0).tolist():
            rejects.add(int(kept.at[row]), Reason.FRAMING, "no valid message index after the schema id")
        keys = np.where(
            indexes.codes < 0, -1, kept.ids.astype(np.uint32).astype(np.int64) * indexes.span + indexes.codes
        )
        groups = []
        for key in [int(keys[0])] if len(keys) and (keys == keys[0]).all() else np.unique(keys).tolist():
            if key < 0:
                continue
            rows = np.flatnonzero(keys == key)
            message = self._message(int(kept.ids[rows[0]]), indexes.paths[key % indexes.span])
            if isinstance(message, Message):
                alone = len(rows) == len(keys)
                part = kept.payloads if alone else kept.payloads.take(pa.array(rows))
                groups.append(ProtobufGroup(message, part, indexes.heads[rows], kept.at[rows]))
            else:
                rejects.add_all(kept.at[rows], *message)
        return groups

    def _message(self, id: int, path: tuple[int, ...]) -> Message | tuple[Reason, str]:
        """The message type, or the reason for rejecting its values; unknown ids are not cached."""
        if (id, path) in self._known:
            return self._known[id, path]
        try:
            schema = self._registry.schema(id)
            if schema.kind != "PROTOBUF":
                return Reason.UNKNOWN_SCHEMA, f"schema {id} has the type {schema.kind}, expected PROTOBUF"
        except UnknownSchema as unknown:
            return Reason.UNKNOWN_SCHEMA, str(unknown)
        try:
            message: Message | tuple[Reason, str] = in_texts(schema.text, schema.references, self._depth).at(path)
        except NoMessage as none:
            message = Reason.FRAMING, f"schema {id}: {none}"
        except BadProtobufSchema as bad:
            message = Reason.UNKNOWN_SCHEMA, f"schema {id} cannot be used: {bad}"
        if len(self._known) < _KNOWN:
            self._known[id, path] = message
        return message


def protobuf_decoder(
    payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: ProtobufFormat
) -> ProtobufDecoder:
    """The factory of the format table."""
    if options.registry is not None:
        return ProtobufDecoder(
            ProtobufFromRegistry(options.registry, limits.depth), payload, new_field, limits, options
        )
    source = FromFile(options.descriptor or "", options.message or "", limits.depth)
    return ProtobufDecoder(source, payload, new_field, limits, options)
