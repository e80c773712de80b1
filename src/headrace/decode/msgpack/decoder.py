"""MessagePack with a schema id: four bytes, big-endian, then a map, or an array in the order of the schema's fields.

Most values are read column by column (`columns.py`). Any other value is unpacked by the `msgpack` package, which
reports the reason if it is invalid; other packages are not faster and accept duplicate keys or trailing bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from headrace.decode.base import Decoded, DecodeLimits, NewField, Rejects, join_rejects, limit_names, new_field_stop
from headrace.decode.byte_scan import Mask, Numbers, TextBytes
from headrace.decode.input import sized
from headrace.decode.json.template import Path
from headrace.decode.msgpack import columns as msgpack_wire
from headrace.decode.msgpack.schema import ByAddress, FromFiles, MsgpackSchema, Schemas
from headrace.decode.payload import payload_schema_of
from headrace.decode.registry.client import UnknownSchema
from headrace.decode.registry.framing import BARE
from headrace.decode.typed.fit import fit_values
from headrace.decode.typed.from_python import ColumnBuilder, python_as_json
from headrace.decode.typed.text import path_steps, scalars_as_text
from headrace.reasons import Reason
from headrace.spec.decode import MsgpackFormat

Groups = list[tuple[MsgpackSchema, pa.BinaryArray, Numbers]]


class _Wrong(Exception):
    """A value is rejected."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class _UnknownFields:
    """Fields that the schema does not have: the number of records with each, or the rescued values of each record."""

    counts: Counter[str] = field(default_factory=Counter)  # by dotted name
    texts: dict[int, dict[Path, str]] = field(default_factory=dict)  # by position in the input: JSON texts


class MsgpackDecoder:
    """Decodes MessagePack values to the rows of one payload schema."""

    def __init__(self, schemas: Schemas, payload: pa.Schema, new_field: NewField, limits: DecodeLimits) -> None:
        self._schemas = schemas
        self._layout = payload_schema_of(payload)
        self._new_field = new_field
        self._limits = limits

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        groups, rejects = self._groups(values)
        if not groups:
            none = self._layout.with_message(self._layout.schema.empty_table(), lambda: pa.array([], pa.string()))
            return Decoded(none, pa.array([], pa.int64()), rejects.in_order())
        parts = [self._decode(*group, Rejects() if nth else rejects) for nth, group in enumerate(groups)]
        return parts[0] if len(parts) == 1 else join_rejects(parts, self._layout.schema)

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The name of each value's schema; values without one are NULL and rejected."""
        groups, rejects = self._groups(values)
        names = np.full(len(values), None, object)
        for schema, _, at in groups:
            names[at] = schema.name
        return pa.array(names, pa.string()), rejects.in_order()

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """The scalar at a JSON pointer or dotted path as text, NULL if absent; unreadable values are rejected."""
        steps = path_steps(path)
        groups, rejects = self._groups(values)
        texts = np.full(len(values), None, object)
        for schema, inner, at in groups:
            natural, kept, _ = self._natural(schema, inner, at, rejects)
            if (scalars := scalars_as_text(natural, steps)) is not None:
                texts[kept] = scalars.to_pylist()
        return pa.array(texts, pa.string()), rejects.in_order()

    def _groups(self, values: pa.BinaryArray) -> tuple[Groups, Rejects]:
        """Group the values by schema; values without one are rejected."""
        kept, at, rejects = sized(values, self._limits)
        seen = TextBytes(kept)
        long = np.diff(seen.starts) > BARE
        for row in np.flatnonzero(~long).tolist():
            rejects.add(int(at[row]), Reason.FRAMING, f"shorter than a schema id of {BARE} bytes and a value")
        starts = seen.starts[:-1].astype(np.int64)[long]
        heads = seen.content[starts[:, None] + np.arange(BARE)]
        ids = np.ascontiguousarray(heads).view(">u4").reshape(-1).astype(np.int64)
        at, kept = at[long], kept if long.all() else kept.filter(pa.array(long))
        groups: Groups = []
        for id in np.unique(ids).tolist():
            rows = np.flatnonzero(ids == id)
            try:
                schema = self._schemas.schema(id)
            except UnknownSchema as unknown:
                rejects.add_all(at[rows], Reason.UNKNOWN_SCHEMA, str(unknown))
                continue
            groups.append((schema, kept if len(rows) == len(ids) else kept.take(pa.array(rows)), at[rows]))
        return groups, rejects

    def _decode(self, schema: MsgpackSchema, values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> Decoded:
        natural, kept, unknown = self._natural(schema, values, at, rejects, strict=True)
        decoded = fit_values(natural, kept, self._layout, self._new_field, rejects, self._limits, unknown.texts)
        return (
            replace(decoded, ignored=limit_names({**decoded.ignored, **unknown.counts})) if unknown.counts else decoded
        )

    def _natural(
        self, schema: MsgpackSchema, values: pa.BinaryArray, at: Numbers, rejects: Rejects, *, strict: bool = False
    ) -> tuple[pa.Table, Numbers, _UnknownFields]:
        """All valid values in the types of the schema, their positions, and their unknown fields."""
        fast, good, counts = self._by_column(schema, values, strict)
        if good.all():
            return fast, at, _UnknownFields(counts)
        rest = np.flatnonzero(~good)
        slow, kept, unknown = self._one_by_one(schema, values.take(pa.array(rest)), at[rest], rejects, strict)
        places = np.concatenate([at[good], kept])
        order = np.argsort(places, kind="stable")
        unknown = replace(unknown, counts=counts + unknown.counts)
        return pa.concat_tables([fast, slow]).take(pa.array(order)), places[order], unknown

    def _by_column(
        self, schema: MsgpackSchema, values: pa.BinaryArray, strict: bool
    ) -> tuple[pa.Table, Mask, Counter[str]]:
        """Read values column by column; the mask has the values that could be read."""
        names = [name for name, _ in schema.fields]
        if len(values) < msgpack_wire.FEW or _levels(pa.struct(list(schema.fields))) > self._limits.depth:
            none = [msgpack_wire.nulls(0, kind) for _, kind in schema.fields]
            return pa.Table.from_arrays(none, names), np.zeros(len(values), bool), Counter()
        wire = msgpack_wire.MsgpackColumns(values, BARE, self._limits.keys)
        table = pa.Table.from_arrays(wire.read(schema), names)
        good = wire.good
        for _, rows in wire.unknown_fields if strict and self._new_field in ("reject", "rescue", "stop") else ():
            good[rows] = False
        ignored: Counter[str] = Counter()
        for name, rows in wire.unknown_fields:
            ignored[name] += int(good[rows].sum())
        return (table if good.all() else table.filter(pa.array(good))), good, +ignored

    def _one_by_one(
        self, schema: MsgpackSchema, values: pa.BinaryArray, at: Numbers, rejects: Rejects, strict: bool
    ) -> tuple[pa.Table, Numbers, _UnknownFields]:
        """Read values one by one, with a reason for each invalid value."""
        errors: dict[int, tuple[Reason, str]] = {}
        unknown = _UnknownFields()
        unpack = _Unpack(schema, self._limits)
        deep = _openers(values) >= self._limits.depth
        unpacked: list[list[Any]] = []
        rows: list[int] = []
        for row, raw in enumerate(values.to_pylist()):
            try:
                cells, extra = unpack.cells(raw, bool(deep[row]))
                names, texts = self._apply_contract(extra) if extra and strict else ([each.name for each in extra], {})
            except _Wrong as wrong:
                errors[row] = wrong.reason, wrong.detail
                continue
            unknown.counts.update(dict.fromkeys(names, 1))
            if texts:
                unknown.texts[int(at[row])] = texts
            unpacked.append(cells)
            rows.append(row)

        def refuse(row: int, reason: Reason, detail: str) -> None:
            errors.setdefault(row, (reason, detail))

        columns = ColumnBuilder(refuse)
        owners = np.array(rows, np.int64)
        cells_of = list(zip(*unpacked, strict=True)) if unpacked else [()] * len(schema.fields)
        arrays = [columns.column(cells_of[nth], kind, owners, name) for nth, (name, kind) in enumerate(schema.fields)]
        natural = pa.Table.from_arrays(arrays, [name for name, _ in schema.fields])
        for row, (reason, detail) in errors.items():
            rejects.add(int(at[row]), reason, detail)
        good = np.array([row not in errors for row in rows], bool)
        return (natural if good.all() else natural.filter(pa.array(good))), at[owners[good]], unknown

    def _apply_contract(self, extra: list[_UnknownField]) -> tuple[list[str], dict[Path, str]]:
        """Names of ignored fields, and texts of rescued fields."""
        names: list[str] = []
        texts: dict[Path, str] = {}
        for each in extra:
            if self._new_field in ("ignore", "evolve") or self._layout.is_beside(each.path):
                names.append(each.name)
            elif self._new_field == "stop":
                raise new_field_stop(each.name)
            elif self._new_field == "reject" or self._is_element(each.path):
                raise _Wrong(Reason.NEW_FIELD, f"{each.name[:300]}: the schema does not have this field")
            else:
                texts[each.path] = _rescued_text(each)
        return names, texts

    def _is_element(self, path: Path) -> bool:
        """Whether a field is inside the exploded list, where rescued values belong to one element."""
        elements = self._layout.elements
        return elements is not None and path[: len(elements.column.path)] == elements.column.path


@dataclass(frozen=True, slots=True)
class _UnknownField:
    """A field that the schema does not have, and the value to rescue."""

    name: str  # dotted
    path: Path
    value: Any


class _Unpack:
    """Unpacks one value at a time to the cells of a schema."""

    def __init__(self, schema: MsgpackSchema, limits: DecodeLimits) -> None:
        self._names = [name for name, _ in schema.fields]
        self._kind = pa.struct(list(schema.fields))
        self._limits = limits

    def cells(self, raw: bytes, deep: bool) -> tuple[list[Any], list[_UnknownField]]:
        """The fields in the order of the schema, and fields that the schema does not have."""
        value = self._unpacked(raw)
        if deep and _depth(value) > self._limits.depth:
            raise _Wrong(Reason.TOO_DEEP, f"values are nested deeper than {self._limits.depth} levels")
        if type(value) is dict:
            return [value.get(name) for name in self._names], list(_unknown_fields(value, self._kind, (), ""))
        if type(value) is not list:
            raise _Wrong(Reason.NOT_AN_OBJECT, "expected a map, or an array in the order of the schema's fields")
        if len(value) > len(self._names):
            raise _Wrong(Reason.TYPE, f"an array of {len(value)} values, the schema has {len(self._names)} fields")
        cells = value + [None] * (len(self._names) - len(value))
        return cells, list(_unknown_fields(dict(zip(self._names, cells, strict=True)), self._kind, (), ""))

    def _unpacked(self, raw: bytes) -> Any:
        try:
            return msgpack.unpackb(memoryview(raw)[BARE:], object_pairs_hook=self._pairs, ext_hook=_refuse_ext)
        except msgpack.ExtraData as more:
            raise _Wrong(Reason.TRAILING_DATA, f"{len(more.extra)} bytes follow the value") from None
        except msgpack.StackError:
            raise _Wrong(Reason.TOO_DEEP, "values are nested too deeply") from None
        except UnicodeDecodeError as error:
            raise _Wrong(Reason.ENCODING, f"a text is not UTF-8 at its byte {error.start}") from None
        except (ValueError, TypeError, OverflowError) as error:
            reason = Reason.TYPE if "map key" in str(error) else Reason.MALFORMED
            raise _Wrong(reason, str(error) or "not a MessagePack value") from None

    def _pairs(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise _Wrong(Reason.DUPLICATE_KEY, "duplicate key in a map")
        if len(members) > self._limits.keys:
            raise _Wrong(Reason.TOO_WIDE, f"a map has {len(members)} keys, the limit is {self._limits.keys}")
        return members


def _refuse_ext(code: int, data: bytes) -> Any:
    raise _Wrong(Reason.TYPE, f"extension type {code} is not supported")


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise _Wrong(Reason.TYPE, "map key is not a string")
    return key


def _unknown_fields(value: Any, kind: pa.DataType, path: Path, where: str) -> Iterator[_UnknownField]:
    """Fields of maps that their struct type does not have, at every depth.

    A field inside an array or a map has the path and the value of the array or map:
    {"items": [{"sku": 1, "x": 2}]} has the unknown field `items.x` with the path `items`.
    """
    if pa.types.is_struct(kind) and type(value) is dict:
        known = {item.name: item.type for item in kind}
        for key, item in value.items():
            if key not in known:
                yield _UnknownField(where + _name(key), (*path, _name(key)), item)
            elif pa.types.is_nested(known[key]) and item is not None:
                yield from _unknown_fields(item, known[key], (*path, key), f"{where}{key}.")
    elif pa.types.is_list(kind) and type(value) is list and pa.types.is_nested(kind.value_type):
        inner = chain.from_iterable(_unknown_fields(item, kind.value_type, path, where) for item in value)
        yield from (replace(each, path=path, value=value) for each in inner)
    elif pa.types.is_map(kind) and type(value) is dict and pa.types.is_nested(kind.item_type):
        inner = chain.from_iterable(_unknown_fields(item, kind.item_type, path, where) for item in value.values())
        yield from (replace(each, path=path, value=value) for each in inner)


def _rescued_text(unknown: _UnknownField) -> str:
    try:
        return python_as_json(unknown.value)
    except (TypeError, ValueError, OverflowError):
        raise _Wrong(Reason.NEW_FIELD, f"{unknown.name[:300]}: the value cannot be written as JSON") from None


def _levels(kind: pa.DataType) -> int:
    """Nesting depth of a type."""
    below = [kind.item_type] if pa.types.is_map(kind) else [kind.field(at).type for at in range(kind.num_fields)]
    return 1 + max(map(_levels, below), default=-1) if pa.types.is_nested(kind) else 0


def _openers(values: pa.BinaryArray) -> Numbers:
    """Per value, the number of bytes that can open a level: at least its depth."""
    seen = TextBytes(values)
    content = seen.content
    opens = ((content >= 0x80) & (content <= 0x9F)) | ((content >= 0xDC) & (content <= 0xDF))
    counts: Numbers = np.diff(np.searchsorted(np.flatnonzero(opens), seen.starts))
    return counts


def _depth(value: Any) -> int:
    """Nesting depth of arrays and maps."""
    level, deepest = [value], 0
    while level := [each for each in level if type(each) in (dict, list)]:
        deepest += 1
        level = [inner for each in level for inner in (each.values() if type(each) is dict else each)]
    return deepest


def msgpack_decoder(
    payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: MsgpackFormat
) -> MsgpackDecoder:
    """The factory of the format table."""
    schemas: Schemas = ByAddress(options.registry) if options.registry else FromFiles(options.schemas or "")
    return MsgpackDecoder(schemas, payload, new_field, limits)
