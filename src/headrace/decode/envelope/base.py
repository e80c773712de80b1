"""Envelopes: records with a row inside and what happened to it, as Debezium's change events.

An envelope finds the form of each value: the path of the row, the columns of the envelope itself, and the known
fields around the row. The format then decodes all values of one form at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Decoded, DecodeLimits, Decoder, NewField, Rejects, join_rejects, too_many
from headrace.decode.byte_scan import Mask, Numbers, bools
from headrace.decode.inference import Structure, merge_inferred, struct
from headrace.decode.input import without_bom
from headrace.decode.payload import PayloadSchema, payload_schema_of
from headrace.decode.payload_field import PayloadField, payload_field, payload_fields
from headrace.decode.typed.fit import structure_of
from headrace.reasons import Reason

Bind = Callable[[PayloadSchema, NewField, DecodeLimits], Decoder]
Path = tuple[str, ...]
Peek = Callable[[str], pa.StringArray]
EnvelopeReject = tuple[Reason, str]


@dataclass(frozen=True)
class EnvelopeForm:
    """One form of an envelope."""

    row_path: Path = ()  # path of the row
    paths: Mapping[str, Path] = field(default_factory=dict)  # paths of the envelope's columns
    constants: Mapping[str, str] = field(default_factory=dict)  # columns with a constant value
    units: Mapping[str, str] = field(default_factory=dict)  # of columns with a time as a number
    known: tuple[Path, ...] = ()
    alone: bool = False  # the row has only the envelope's columns
    whole: str = ""  # column with the whole value as text
    both: str = ""  # column with the row before and after the change as one text
    merged: bool = False  # valid only for a table that merges
    bare: Reason = Reason.UNKNOWN_OPERATION  # reason for a reject if the row is empty

    def __hash__(self) -> int:
        return hash((self.row_path, tuple(self.paths.items()), tuple(self.constants.items()), self.known))


@dataclass
class EnvelopeScan:
    """The form of each value of a batch, and columns that the envelope fills value by value."""

    forms: Sequence[EnvelopeForm]
    which: Numbers  # the form of each value; -1 for none
    texts: Mapping[str, pa.StringArray] = field(default_factory=dict)
    types: pa.StringArray | None = None


class Envelope(Protocol):
    """A kind of envelope."""

    columns: pa.Schema
    fills: Mapping[str, str]  # columns that are filled from the Kafka record if the value has none
    silent: Mapping[str, str]  # text of a column that has no value

    def scan(self, peek: Peek, rejects: Rejects) -> EnvelopeScan:
        """The form of each value, -1 for rejected values; `peek` returns a scalar of each value."""
        ...


def classify(
    seen: Sequence[pa.StringArray],
    judge: Callable[[Sequence[str | None]], EnvelopeForm | EnvelopeReject],
    rejects: Rejects,
) -> tuple[list[EnvelopeForm], Numbers]:
    """The form of each value by some of its scalars; each distinct combination is examined once."""
    kinds, kind_of = _distinct(seen)
    numbers: dict[EnvelopeForm, int] = {}
    refusals: dict[int, EnvelopeReject] = {}
    chosen = np.full(len(kinds), -1, np.int64)
    for nth, kind in enumerate(kinds):
        result = judge(kind)
        if isinstance(result, EnvelopeForm):
            chosen[nth] = numbers.setdefault(result, len(numbers))
        else:
            refusals[nth] = result
    which = chosen[kind_of]
    for position in np.flatnonzero(which < 0).tolist():
        rejects.add(position, *refusals[int(kind_of[position])])
    return list(numbers), which


def _distinct(seen: Sequence[pa.StringArray]) -> tuple[list[tuple[str | None, ...]], Numbers]:
    """Distinct rows of some columns, and for each row its number among them."""
    codes = np.zeros(len(seen[0]), np.int64)
    for column in seen:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
    _, first, kind_of = np.unique(codes, return_index=True, return_inverse=True)
    kinds = zip(*(column.take(pa.array(first)).to_pylist() for column in seen), strict=True)
    return list(kinds), kind_of


class Enveloped:
    """A format inside an envelope, for one payload schema."""

    def __init__(
        self, envelope: Envelope, bind: Bind, payload: pa.Schema, new_field: NewField, limits: DecodeLimits
    ) -> None:
        self._envelope = envelope
        self._bind = bind
        self._payload = payload
        self._new_field = new_field
        self._limits = limits
        self._bound: dict[EnvelopeForm, Decoder] = {}
        self._plain = bind(payload_schema_of(pa.schema([])), "ignore", limits)
        self._merges = any(item.change for item in payload_fields(payload))

    @property
    def fills(self) -> Mapping[str, str]:
        """Columns that are filled from the Kafka record if the value has none."""
        return self._envelope.fills

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        scan, rejects = self._scan(values)
        groups = ((form, np.flatnonzero(scan.which == nth)) for nth, form in enumerate(scan.forms))
        parts = [self._part(form, scan, values, at) for form, at in groups if len(at)]
        refused = Decoded(self._schema.empty_table(), pa.array([], pa.int64()), rejects)
        return join_rejects([*parts, refused], self._schema)

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """A scalar of the whole value, envelope included."""
        return self._plain.peek(values, path)

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The type that the envelope names."""
        scan, rejects = self._scan(values)
        types = scan.types if scan.types is not None else pa.nulls(len(values), pa.string())
        return pc.if_else(pa.array(scan.which >= 0), types, pa.scalar(None, pa.string())), rejects.in_order()

    def _scan(self, values: pa.BinaryArray) -> tuple[EnvelopeScan, Rejects]:
        unreadable = Rejects()

        def peek(path: str) -> pa.StringArray:
            texts, refused = self._plain.peek(values, path)
            unreadable.join(refused)
            return texts

        refused = Rejects()
        scan = self._envelope.scan(peek, refused)
        unreadable.join(refused)
        for nth, form in enumerate(scan.forms if not self._merges else ()):
            if form.merged:
                seen = f"a {form.constants['_op']}, and the table is append-only"
                unreadable.add_all(np.flatnonzero(scan.which == nth), Reason.UNKNOWN_OPERATION, seen)
        kept = unreadable.firsts()
        scan.which[kept.index] = -1
        return scan, kept

    def _part(self, form: EnvelopeForm, scan: EnvelopeScan, values: pa.BinaryArray, at: Numbers) -> Decoded:
        """Decode all values of one form."""
        decoded = self._decoder(form).decode(values.take(pa.array(at)))
        rejects = Rejects()
        rejects.join(decoded.rejects, at)
        index, rows = at[decoded.index.to_numpy()], decoded.rows
        if not form.alone and len(rows) and (bare := _bare(rows, self._envelope.columns)).any():
            for position in index[bare].tolist():
                word = form.constants.get("_op", "event")
                rejects.add(position, form.bare, f"the {word} has no row")
            rows, index = rows.filter(pa.array(~bare)), index[~bare]
        columns = [self._column(item, form, rows, scan, values, index) for item in self._schema]
        table = pa.Table.from_arrays(columns, schema=self._schema) if columns else _rows_only(len(index))
        unknown = self._unknown(decoded.unknown) if self._new_field == "evolve" and len(index) else None
        if unknown and len(missing := self._missing()) > self._limits.new_columns:
            rejects.add_all(index, Reason.TOO_WIDE, too_many(struct(missing), len(missing), self._limits))
            table, index, unknown = table.slice(0, 0), index[:0], None
        return replace(decoded, rows=table, index=pa.array(index), rejects=rejects.in_order(), unknown=unknown)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([item for item in self._payload if not payload_field(item).skipped])

    def _column(
        self,
        item: pa.Field,
        form: EnvelopeForm,
        rows: pa.Table,
        scan: EnvelopeScan,
        values: pa.BinaryArray,
        index: Numbers,
    ) -> pa.Array:
        name = item.name
        if name in form.constants:
            return pa.repeat(pa.scalar(form.constants[name], pa.string()), len(index)).cast(item.type)
        if name == form.whole:
            return without_bom(values.take(pa.array(index))).cast(pa.string())
        if name == form.both:
            before, after = (rows[each].combine_chunks().fill_null("null") for each in ("before", "after"))
            return pc.binary_join_element_wise('{"before":', before, ',"after":', after, "}", "")
        if name in rows.column_names:
            column = rows[name].combine_chunks().cast(item.type)
        else:
            texts = scan.texts.get(name)
            column = pa.nulls(len(index), item.type) if texts is None else texts.take(pa.array(index)).cast(item.type)
        return column.fill_null(self._envelope.silent[name]) if name in self._envelope.silent else column

    def _decoder(self, form: EnvelopeForm) -> Decoder:
        if form not in self._bound:
            fields = [placed for item in self._payload if (placed := self._field(item, form)) is not None]
            new_field: NewField = "ignore" if form.alone else self._new_field
            fields += [_json_at(name, (name,)) for name in ("before", "after") if form.both]
            read = {form.paths[item.name] for item in fields if item.name in form.paths}
            around = {*form.known, *form.paths.values()} - read - {form.row_path}
            layout = payload_schema_of(pa.schema(fields), form.row_path, sorted(around))
            self._bound[form] = self._bind(layout, new_field, self._limits)
        return self._bound[form]

    def _field(self, item: pa.Field, form: EnvelopeForm) -> pa.Field | None:
        """A payload field in this form: the envelope's own at its absolute path, others inside the row."""
        if item.name in form.constants:
            return None
        if item.name not in self._envelope.columns.names:
            return None if form.alone else item
        return self._placed(item, form)

    def _placed(self, item: pa.Field, form: EnvelopeForm) -> pa.Field | None:
        if item.name not in form.paths:
            return None
        return replace(
            payload_field(item),
            nullable=item.nullable or item.name in self._envelope.fills or item.name in self._envelope.silent,
            path="",
            absolute_path=".".join(form.paths[item.name]),
            unit=form.units.get(item.name, ""),
        ).to_arrow()

    def _unknown(self, unknown: Structure | None) -> Structure | None:
        """New fields of the row, and the envelope's own columns that the table does not have yet."""
        missing = self._missing()
        if not missing:
            return unknown
        return merge_inferred(unknown, struct(missing)) if unknown else struct(missing)

    def _missing(self) -> dict[str, Structure]:
        return {
            item.name: {"type": "json"} if item.json_text else structure_of(item.type)
            for item in payload_fields(self._envelope.columns)
            if item.name not in self._payload.names and not item.optional
        }


def _json_at(name: str, place: Path) -> pa.Field:
    return PayloadField(name, pa.string(), absolute_path=".".join(place), json_text=True).to_arrow()


def _bare(rows: pa.Table, besides: pa.Schema) -> Mask:
    """Which rows have only NULLs in the columns of the row itself."""
    own = [
        rows[item.name] for item in payload_fields(rows.schema) if item.name not in besides.names and not item.message
    ]
    if not own:
        return np.zeros(len(rows), bool)
    bare: Mask = np.logical_and.reduce([bools(column.combine_chunks().is_null()) for column in own])
    return bare


def _rows_only(count: int) -> pa.Table:
    return pa.table({"": pa.nulls(count)}).select([])
