"""Avro: read each record with the schema it was written with, one schema at a time, and fit it to the columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.decode.avro.columns import AvroColumns
from headrace.decode.avro.schema import LARGEST, UNION, BadAvroSchema, Type, fingerprint, parse_avro_schema
from headrace.decode.base import Decoded, DecodeLimits, Decoder, NewField, Rejects, join_rejects
from headrace.decode.byte_scan import Numbers, TextBytes
from headrace.decode.envelope.base import Enveloped
from headrace.decode.envelope.formats import ENVELOPES
from headrace.decode.input import sized, spread
from headrace.decode.payload import PayloadSchema, payload_schema_of
from headrace.decode.registry.client import Registered, Registry, UnknownSchema, registry_of
from headrace.decode.registry.framing import HEAD, framed
from headrace.decode.typed.fit import fit_values, sample
from headrace.decode.typed.text import path_steps, scalars_as_text
from headrace.errors import UsageError
from headrace.reasons import Reason
from headrace.spec.decode import AvroFormat

MARKER = b"\xc3\x01"  # before a fingerprint
_HEAD = len(MARKER) + 8
_FILES = 10_000  # of a folder of schemas
VALUE = "value"  # the field of a schema that is not a record


@dataclass(frozen=True, slots=True)
class AvroGroup:
    """Values of one schema."""

    kind: Type
    values: pa.BinaryArray
    head: int  # bytes before the payload
    rows: Numbers  # positions among the values, ascending
    at: Numbers  # positions in the input

    def some(self, kind: Type, head: int, which: Any) -> AvroGroup:
        """A part of them, read as another type."""
        return AvroGroup(kind, self.values, head, self.rows[which], self.at[which])

    def taken(self) -> pa.BinaryArray:
        """The values alone."""
        return self.values if len(self.rows) == len(self.values) else self.values.take(pa.array(self.rows))


class AvroSchemas(Protocol):
    """Source of writer schemas."""

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> Iterator[AvroGroup]:
        """Group the values by schema; values without one are rejected."""
        ...


class AvroDecoder:
    """Decodes Avro values to the rows of one payload schema."""

    def __init__(
        self,
        source: AvroSchemas,
        payload: pa.Schema | PayloadSchema,
        new_field: NewField,
        limits: DecodeLimits,
        *,
        short_names: bool = False,
    ) -> None:
        self._source = source
        self._short_names = short_names
        self._layout = payload if isinstance(payload, PayloadSchema) else payload_schema_of(payload)
        self._new_field = new_field
        self._limits = limits
        self._peeked: tuple[pa.BinaryArray, list[tuple[pa.Table, Numbers]], Rejects] | None = None

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        groups, rejects = self._groups(values)
        groups = _alike(groups)
        if len(groups) == 1:
            return self._fitted(groups[0], rejects)
        none = self._layout.with_message(self._layout.schema.empty_table(), lambda: pa.array([], pa.string()))
        parts = [Decoded(none, pa.array([], pa.int64()), rejects)]
        parts += [self._fitted(group, Rejects()) for group in groups]
        return join_rejects(parts, self._layout.schema)

    def _fitted(self, group: AvroGroup, rejects: Rejects) -> Decoded:
        return fit_values(*natural(group, rejects), self._layout, self._new_field, rejects, self._limits)

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """The scalar at a JSON pointer or dotted path as text, NULL if absent; unreadable values are rejected."""
        tables, refused = self._natural(values)
        rejects = Rejects()
        rejects.join(refused)
        texts, places = [pa.array([], pa.string())], [np.zeros(0, np.int64)]
        for table, where in tables:
            if (scalars := scalars_as_text(table, path_steps(path))) is not None:
                texts.append(scalars)
                places.append(where)
            else:
                rejects.add_all(where, Reason.TYPE, f"{path[:300]}: expected one value, saw an object or an array")
        return spread(pa.concat_arrays(texts), np.concatenate(places), len(values)), rejects.in_order()

    def _natural(self, values: pa.BinaryArray) -> tuple[list[tuple[pa.Table, Numbers]], Rejects]:
        """All values in their own types; cached, because an envelope reads several paths of the same values."""
        if self._peeked is None or self._peeked[0] is not values:
            groups, rejects = self._groups(values)
            self._peeked = values, [natural(group, rejects) for group in _alike(groups)], rejects
        return self._peeked[1:]

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The type name of each value's record, NULL if it is not a record."""
        groups, rejects = self._groups(values)
        names = np.full(len(values), None, object)
        for group in groups:
            names[group.at] = self._type_name(group.kind) or None
        return pa.array(names, pa.string()), rejects.in_order()

    def predict(self, schema: Registered) -> tuple[str, Decoded]:
        """The type, and the result of decoding a record with a value in every field; raises UnknownSchema."""
        kind = type_of(schema, self._limits.depth)
        values = pa.array([sample(kind.arrow)], kind.arrow)
        return self._type_name(kind), fit_values(
            _table(kind, values), np.zeros(1, np.int64), self._layout, self._new_field, Rejects()
        )

    def _type_name(self, kind: Type) -> str:
        return kind.name.rpartition(".")[2] if self._short_names else kind.name

    def _groups(self, values: pa.BinaryArray) -> tuple[list[AvroGroup], Rejects]:
        kept, at, rejects = sized(values, self._limits)
        groups = self._source.groups(kept, at, rejects)
        return [part for group in groups for part in _branches(group, rejects)], rejects


def _alike(groups: list[AvroGroup]) -> list[AvroGroup]:
    """Join groups whose schemas differ only in names: reading a few values costs nearly as much as reading many."""
    same: dict[tuple[str, int], list[AvroGroup]] = {}
    for group in groups:
        same.setdefault((group.kind.shape, group.head), []).append(group)
    return [_one(each) if len(each) > 1 else each[0] for each in same.values()]


def _one(groups: list[AvroGroup]) -> AvroGroup:
    rows = np.concatenate([group.rows for group in groups])
    order = np.argsort(rows, kind="stable")
    at = np.concatenate([group.at for group in groups])
    return replace(groups[0], rows=rows[order], at=at[order])


def _branches(group: AvroGroup, rejects: Rejects) -> Iterator[AvroGroup]:
    """Split a group whose schema is a union by the type of each value."""
    kind, head = group.kind, group.head
    if kind.kind != UNION:
        yield group
        return
    seen = TextBytes(group.values)
    starts = seen.starts[:-1].astype(np.int64)[group.rows] + head
    tags = np.append(seen.content, 0xFF)[np.minimum(starts, len(seen.content))]
    good = (starts < seen.starts[1:][group.rows]) & (tags % 2 == 0) & (tags // 2 < min(len(kind.children), 64))
    rejects.add_all(group.at[~good], Reason.MALFORMED, "union index out of range")
    for number, which in grouped(np.where(good, tags // 2, -1).astype(np.int64)):
        if number >= 0 and kind.children[number].kind == "null":
            rejects.add_all(group.at[which], Reason.TOMBSTONE, "the value is null")
        elif number >= 0:
            yield group.some(kind.children[number], head + 1, which)


def natural(group: AvroGroup, rejects: Rejects) -> tuple[pa.Table, Numbers]:
    """Values of one schema in its own types, and the positions of the readable values."""
    kind, at = group.kind, group.at
    wire = AvroColumns(group.taken(), group.head)
    values = wire.read(kind)
    for row, (reason, detail) in wire.verdicts.items():
        rejects.add(int(at[row]), reason, detail)
    if wire.bad.any():
        values, at = values.filter(pa.array(~wire.bad)), at[~wire.bad]
    return _table(kind, values), at


def _table(kind: Type, values: pa.Array) -> pa.Table:
    if kind.kind != "record":
        return pa.table({VALUE: values})
    if not kind.names:
        return pa.table({"": pa.nulls(len(values))})  # Arrow counts no rows without a column
    return pa.Table.from_arrays(values.flatten(), list(kind.names))


class AvroFromRegistry:
    """Schemas by schema id of Confluent's wire format."""

    def __init__(self, registry: Registry, depth: int) -> None:
        self._registry = registry
        self._depth = depth
        self._types: dict[int, Type] = {}

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> Iterator[AvroGroup]:
        """Group the values by schema id."""
        frames = framed(values, at, rejects)
        for number, which in grouped(frames.ids):
            try:
                kind = self._type(number)
            except UnknownSchema as unknown:
                rejects.add_all(frames.at[which], Reason.UNKNOWN_SCHEMA, str(unknown))
                continue
            yield AvroGroup(kind, frames.payloads, HEAD, which, frames.at[which])

    def _type(self, number: int) -> Type:
        if number not in self._types:
            self._types[number] = type_of(self._registry.schema(number), self._depth)
        return self._types[number]


def type_of(schema: Registered, depth: int) -> Type:
    """Parse a registry schema; raises UnknownSchema if no record can be read with it."""
    if schema.kind != "AVRO":
        raise UnknownSchema(f"schema {schema.id} is {schema.kind}, expected AVRO")
    try:
        return parse_avro_schema(schema.text, schema.references, depth=depth)
    except BadAvroSchema as bad:
        raise UnknownSchema(f"schema {schema.id} cannot be used: {bad}") from None


class OneSchema:
    """One schema for all values."""

    def __init__(self, kind: Type) -> None:
        self._kind = kind

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> Iterator[AvroGroup]:
        """All values as one group."""
        yield AvroGroup(self._kind, values, 0, np.arange(len(values)), at)


class ByMarker:
    """Schemas by the eight-byte fingerprint of the single-object encoding."""

    def __init__(self, types: dict[bytes, Type]) -> None:
        self.types = types

    def groups(self, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> Iterator[AvroGroup]:
        """Group the values by fingerprint."""
        values, at = _marked(values, at, rejects)
        seen = TextBytes(values)
        heads = seen.content[seen.starts[:-1].astype(np.int64)[:, None] + np.arange(len(MARKER), _HEAD)]
        for number, which in grouped(np.ascontiguousarray(heads).view("<i8").reshape(-1)):
            name = number.to_bytes(8, "little", signed=True)
            if name in self.types:
                yield AvroGroup(self.types[name], values, _HEAD, which, at[which])
            else:
                detail = f"no schema has the fingerprint {name[::-1].hex()}"
                rejects.add_all(at[which], Reason.UNKNOWN_SCHEMA, detail)


def _marked(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> tuple[pa.BinaryArray, Numbers]:
    seen = TextBytes(values)
    long = np.diff(seen.starts) >= _HEAD
    good = long.copy()
    starts = seen.starts[:-1].astype(np.int64)[long]
    good[long] = (seen.content[starts] == MARKER[0]) & (seen.content[starts + 1] == MARKER[1])
    if good.all():
        return values, at
    rejects.add_all(at[~good], Reason.FRAMING, f"a value begins with C3 01 and a fingerprint, {_HEAD} bytes in all")
    return values.filter(pa.array(good)), at[good]


def grouped(keys: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Positions of each key, ascending."""
    if len(keys) and (keys == keys[0]).all():
        yield int(keys[0]), np.arange(len(keys))
        return
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order[:1]] - 1))
    for part in np.split(order, starts[1:]) if len(order) else ():
        yield int(keys[part[0]]), part


# ---- schema files ----


def schema_file(path: str) -> tuple[str, Type]:
    """Text and parsed type of a schema file; raises UsageError if it is invalid."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(4 * LARGEST + 1).decode("utf-8-sig")
        return text, parse_avro_schema(text)
    except OSError as error:
        raise UsageError(f"The schema file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"The schema file {path} is not UTF-8 text.") from None
    except BadAvroSchema as bad:
        raise UsageError(f"The schema in {path} cannot be used: {bad}.") from None


def schemas_at(path: str) -> dict[bytes, Type]:
    """Schemas by fingerprint, from a file or from all `*.avsc` files of a folder."""
    place = Path(path)
    files = sorted(place.glob("*.avsc"))[:_FILES] if place.is_dir() else [place]
    if not files:
        raise UsageError(f"The directory {path} has no schema file (*.avsc).")
    return {fingerprint(text): kind for text, kind in (schema_file(str(file)) for file in files)}


def avro_decoder(payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: AvroFormat) -> Decoder:
    """The factory of the format table."""
    if options.container:
        from headrace.decode.avro.container import container_decoder

        return container_decoder(payload, new_field, limits)
    source = _source(options, limits)
    if options.envelope == "none":
        return AvroDecoder(source, payload, new_field, limits, short_names=options.type_name == "short")
    return Enveloped(ENVELOPES[options.envelope], partial(AvroDecoder, source), payload, new_field, limits)


def _source(options: AvroFormat, limits: DecodeLimits) -> AvroSchemas:
    if options.registry is not None:
        return AvroFromRegistry(registry_of(options.registry), limits.depth)
    if options.schema_ is not None:
        return OneSchema(schema_file(options.schema_)[1])
    return ByMarker(schemas_at(options.single_object or ""))
