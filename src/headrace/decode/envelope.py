"""Envelopes: records that carry a row inside, with a word on what happened to it.

An envelope looks at a value and says in which form it is: where the row lies, which columns the envelope itself
brings, and which places around it are known and left. The format then reads all values of one form at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.contract import Decoded, Decoder, Limits, NewField, Rejects, joined
from headrace.decode.layout import MERGES, MESSAGE, PATH, PLACE, SKIP, UNIT, Layout, layout_of
from headrace.decode.scan import Mask, Numbers, bools
from headrace.decode.structure import Structure, merge, struct
from headrace.decode.triage import without_bom
from headrace.decode.typed import structure_of
from headrace.reasons import Reason
from headrace.tables.schema import JSON_TEXT, TIMESTAMP

Bind = Callable[[Layout, NewField, Limits], Decoder]
Path = tuple[str, ...]
Peek = Callable[[str], pa.StringArray]
Refusal = tuple[Reason, str]


@dataclass(frozen=True)
class Form:
    """One way in which an envelope holds a row."""

    way: Path = ()  # to the row
    places: Mapping[str, Path] = field(default_factory=dict)  # the envelope's columns, and where they lie
    said: Mapping[str, str] = field(default_factory=dict)  # columns whose value the form itself is
    units: Mapping[str, str] = field(default_factory=dict)  # of columns that hold a time as a number
    known: tuple[Path, ...] = ()
    alone: bool = False  # nothing but the envelope's columns is a row
    whole: str = ""  # a column that keeps the whole value as text
    both: str = ""  # a column that keeps what was before and what is after as one text
    merged: bool = False  # it says something only to a table that merges

    def __hash__(self) -> int:
        return hash((self.way, tuple(self.places.items()), tuple(self.said.items()), self.known))


@dataclass
class Look:
    """What an envelope sees of a batch of values: the form of each, and columns that it tells value by value."""

    forms: Sequence[Form]
    which: Numbers  # of the forms each value has; -1 where none
    texts: Mapping[str, pa.StringArray] = field(default_factory=dict)
    types: pa.StringArray | None = None


class Envelope(Protocol):
    """What a kind of envelope must tell."""

    columns: pa.Schema
    fills: Mapping[str, str]  # columns that are taken from the record where the value is silent
    silent: Mapping[str, str]  # what stands in a column for nothing

    def look(self, peek: Peek, rejects: Rejects) -> Look:
        """The form of each value, none for those it rejects; `peek` shows a scalar of each value."""
        ...


def told_apart(
    seen: Sequence[pa.StringArray], judge: Callable[[Sequence[str | None]], Form | Refusal], rejects: Rejects
) -> tuple[list[Form], Numbers]:
    """The form of each value by some of its scalars, judged once for values that are alike in them."""
    kinds, kind_of = _distinct(seen)
    numbers: dict[Form, int] = {}
    refusals: dict[int, Refusal] = {}
    chosen = np.full(len(kinds), -1, np.int64)
    for nth, kind in enumerate(kinds):
        verdict = judge(kind)
        if isinstance(verdict, Form):
            chosen[nth] = numbers.setdefault(verdict, len(numbers))
        else:
            refusals[nth] = verdict
    which = chosen[kind_of]
    for position in np.flatnonzero(which < 0).tolist():
        rejects.add(position, *refusals[int(kind_of[position])])
    return list(numbers), which


def _distinct(seen: Sequence[pa.StringArray]) -> tuple[list[tuple[str | None, ...]], Numbers]:
    """The rows of some columns that differ, and which of them each row is."""
    codes = np.zeros(len(seen[0]), np.int64)
    for column in seen:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
    _, first, kind_of = np.unique(codes, return_index=True, return_inverse=True)
    kinds = zip(*(column.take(pa.array(first)).to_pylist() for column in seen), strict=True)
    return list(kinds), kind_of


class Enveloped:
    """A format inside an envelope, bound to one payload schema."""

    def __init__(self, envelope: Envelope, bind: Bind, payload: pa.Schema, new_field: NewField, limits: Limits) -> None:
        self._envelope = envelope
        self._bind = bind
        self._payload = payload
        self._new_field = new_field
        self._limits = limits
        self._bound: dict[Form, Decoder] = {}
        self._plain = bind(layout_of(pa.schema([])), "ignore", limits)
        self._merges = any(MERGES in (item.metadata or {}) for item in payload)

    @property
    def fills(self) -> Mapping[str, str]:
        """Columns that are taken from the record's own envelope where the value is silent."""
        return self._envelope.fills

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Typed rows and rejects of a column of values."""
        look, rejects = self._look(values)
        groups = ((form, np.flatnonzero(look.which == nth)) for nth, form in enumerate(look.forms))
        parts = [self._part(form, look, values, at) for form, at in groups if len(at)]
        refused = Decoded(self._schema.empty_table(), pa.array([], pa.int64()), rejects)
        return joined([*parts, refused], self._schema)

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """A scalar of the whole value, the envelope included."""
        return self._plain.peek(values, path)

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The type that the envelope names."""
        look, rejects = self._look(values)
        types = look.types if look.types is not None else pa.nulls(len(values), pa.string())
        return pc.if_else(pa.array(look.which >= 0), types, pa.scalar(None, pa.string())), rejects.in_order()

    def _look(self, values: pa.BinaryArray) -> tuple[Look, Rejects]:
        unreadable = Rejects()

        def peek(path: str) -> pa.StringArray:
            texts, refused = self._plain.peek(values, path)
            unreadable.join(refused)
            return texts

        refused = Rejects()
        look = self._envelope.look(peek, refused)
        unreadable.join(refused)
        for nth, form in enumerate(look.forms if not self._merges else ()):
            if form.merged:
                seen = f"a {form.said['_op']}, and rows are only added here"
                unreadable.add_all(np.flatnonzero(look.which == nth), Reason.UNKNOWN_OPERATION, seen)
        kept = unreadable.firsts()
        look.which[kept.index] = -1
        return look, kept

    def _part(self, form: Form, look: Look, values: pa.BinaryArray, at: Numbers) -> Decoded:
        """All values of one form."""
        found = self._decoder(form).decode(values.take(pa.array(at)))
        rejects = Rejects()
        rejects.join(found.rejects, at)
        index, rows = at[found.index.to_numpy()], found.rows
        if not form.alone and len(rows) and (bare := _bare(rows, self._envelope.columns)).any():
            for position in index[bare].tolist():
                word = form.said.get("_op", "event")
                rejects.add(position, Reason.UNKNOWN_OPERATION, f"the {word} says nothing of its row")
            rows, index = rows.filter(pa.array(~bare)), index[~bare]
        columns = [self._column(item, form, rows, look, values, index) for item in self._schema]
        made = pa.Table.from_arrays(columns, schema=self._schema) if columns else _rows_only(len(index))
        unknown = self._unknown(found.unknown) if self._new_field == "evolve" and len(index) else None
        return replace(found, rows=made, index=pa.array(index), rejects=rejects.in_order(), unknown=unknown)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([item for item in self._payload if SKIP not in (item.metadata or {})])

    def _column(
        self, item: pa.Field, form: Form, rows: pa.Table, look: Look, values: pa.BinaryArray, index: Numbers
    ) -> pa.Array:
        name = item.name
        if name in form.said:
            return pa.repeat(pa.scalar(form.said[name], pa.string()), len(index)).cast(item.type)
        if name == form.whole:
            return without_bom(values.take(pa.array(index))).cast(pa.string())
        if name == form.both:
            before, after = (rows[each].combine_chunks().fill_null("null") for each in ("before", "after"))
            return pc.binary_join_element_wise('{"before":', before, ',"after":', after, "}", "")
        if name in rows.column_names:
            made = rows[name].combine_chunks().cast(item.type)
        else:
            told = look.texts.get(name)
            made = pa.nulls(len(index), item.type) if told is None else told.take(pa.array(index)).cast(item.type)
        return made.fill_null(self._envelope.silent[name]) if name in self._envelope.silent else made

    def _decoder(self, form: Form) -> Decoder:
        if form not in self._bound:
            fields = [made for item in self._payload if (made := self._field(item, form)) is not None]
            new_field: NewField = "ignore" if form.alone else self._new_field
            fields += [_json_at(name, (name,)) for name in ("before", "after") if form.both]
            read = {form.places[item.name] for item in fields if item.name in form.places}
            around = {*form.known, *form.places.values()} - read - {form.way}
            layout = layout_of(pa.schema(fields), form.way, sorted(around))
            self._bound[form] = self._bind(layout, new_field, self._limits)
        return self._bound[form]

    def _field(self, item: pa.Field, form: Form) -> pa.Field | None:
        """A payload field as the form has it: the envelope's own at its place, others inside the row."""
        if item.name in form.said:
            return None
        if item.name not in self._envelope.columns.names:
            return None if form.alone else item
        return self._placed(item, form)

    def _placed(self, item: pa.Field, form: Form) -> pa.Field | None:
        if item.name not in form.places:
            return None
        metadata = {key: value for key, value in (item.metadata or {}).items() if key not in (PATH, UNIT)}
        metadata[PLACE] = ".".join(form.places[item.name]).encode()
        if item.name in form.units:
            metadata[UNIT] = form.units[item.name].encode()
        nullable = item.nullable or item.name in self._envelope.fills or item.name in self._envelope.silent
        return pa.field(item.name, item.type, nullable, metadata)

    def _unknown(self, unknown: Structure | None) -> Structure | None:
        """New fields of the row, and the envelope's own columns when the table has none of them yet."""
        missing = {
            item.name: {"type": "json"} if JSON_TEXT in (item.metadata or {}) else structure_of(item.type)
            for item in self._envelope.columns
            if item.name not in self._payload.names and not (item.metadata or {}).get(_ASKED)
        }
        if not missing:
            return unknown
        return merge(unknown, struct(missing)) if unknown else struct(missing)


_ASKED = b"headrace.asked"  # a column only for those who declare it


def _text(name: str) -> pa.Field:
    return pa.field(name, pa.string())


def _json(name: str, *, asked: bool = False) -> pa.Field:
    return pa.field(name, pa.string(), True, {JSON_TEXT: b"true"} | ({_ASKED: b"true"} if asked else {}))


def _json_at(name: str, place: Path) -> pa.Field:
    return pa.field(name, pa.string(), True, {JSON_TEXT: b"true", PLACE: ".".join(place).encode()})


def _bare(rows: pa.Table, besides: pa.Schema) -> Mask:
    """Which rows have nothing in any column of their own."""
    own = [
        rows[item.name]
        for item in rows.schema
        if item.name not in besides.names and MESSAGE not in (item.metadata or {})
    ]
    if not own:
        return np.zeros(len(rows), bool)
    bare: Mask = np.logical_and.reduce([bools(column.combine_chunks().is_null()) for column in own])
    return bare


def _rows_only(count: int) -> pa.Table:
    return pa.table({"": pa.nulls(count)}).select([])


class Debezium:
    """Change events: the row as it is after the change, or was before a delete."""

    columns = pa.schema(
        [_text("_op"), pa.field("_changed_at", TIMESTAMP), _json("_before", asked=True), _json("_origin", asked=True)]
    )
    fills: Mapping[str, str] = {}
    silent: Mapping[str, str] = {}
    _OPERATIONS: Mapping[str, str] = {
        "c": "insert",
        "r": "snapshot",
        "u": "update",
        "d": "delete",
        "t": "truncate",
    }
    _AROUND = ("before", "after", "op", "source", "transaction", "ts_ms", "ts_us", "ts_ns")

    def look(self, peek: Peek, rejects: Rejects) -> Look:
        """By the operation; a value with a schema part has it one level deeper."""
        bare = peek("op")
        wrapped = peek("payload.op") if bare.null_count else pa.nulls(len(bare), pa.string())
        return Look(*told_apart([bare, wrapped], self._judge, rejects))

    def _judge(self, seen: Sequence[str | None]) -> Form | Refusal:
        op = seen[1] if seen[0] is None else seen[0]
        if word := self._OPERATIONS.get(op or ""):
            return self._form(word, seen[0] is None)
        said = f"the operation '{op}'" if op else "no operation: a heartbeat or a note"
        return Reason.UNKNOWN_OPERATION, f"{said}, expected one of c, r, u, d and t"

    def _form(self, word: str, wrapped: bool) -> Form:
        top: Path = ("payload",) if wrapped else ()
        row = "before" if word == "delete" else "after"
        places = {"_changed_at": (*top, "ts_ms"), "_origin": (*top, "source"), "_before": (*top, "before")}
        known = [(*top, name) for name in self._AROUND if name != row]
        if wrapped:
            known.append(("schema",))
        if word == "truncate":
            return Form(top, places, {"_op": word}, {"_changed_at": "ms"}, tuple(known), alone=True, merged=True)
        return Form((*top, row), places, {"_op": word}, {"_changed_at": "ms"}, tuple(known))


class Rivven:
    """Rivven's events and changes, in the four columns of its sink."""

    columns = pa.schema([_json("data"), _text("event_type"), pa.field("timestamp", TIMESTAMP), _text("stream")])
    fills: Mapping[str, str] = {"timestamp": "timestamp", "stream": "topic"}
    silent: Mapping[str, str] = {"data": "null"}
    _EVENTS = frozenset({"insert", "update", "delete", "state", "log", "schema", "record"})
    _CHANGES: Mapping[str, str] = {
        "Insert": "insert",
        "Snapshot": "insert",
        "Update": "update",
        "Delete": "delete",
        "Tombstone": "delete",
        "Truncate": "truncate",
        "Schema": "schema",
    }

    def look(self, peek: Peek, rejects: Rejects) -> Look:
        """A change by its `source_type` and `op`, an event by its `event_type`, anything else as a record."""
        forms, which = told_apart([peek("source_type"), peek("op"), peek("event_type")], self._judge, rejects)
        # Events say their stream themselves.
        silent = any("stream" not in form.places for form in forms)
        return Look(forms, which, {"stream": _dotted(peek("schema"), peek("table"))} if silent else {})

    def _judge(self, seen: Sequence[str | None]) -> Form | Refusal:
        source, change, event = seen
        is_change = source is not None and change is not None
        form = self._change(change or "") if is_change else self._event(event) if event is not None else _RECORD
        if form is not None:
            return form
        return Reason.UNKNOWN_OPERATION, f"the event '{change if is_change else event}', which Rivven does not have"

    def _event(self, word: str) -> Form | None:
        if word not in self._EVENTS:
            return None
        places = {"data": ("data",), "timestamp": ("timestamp",), "stream": ("stream",)}
        known = (("event_type",), ("namespace",), ("metadata",))
        return Form((), places, {"event_type": word}, known=known, alone=True)

    def _change(self, op: str) -> Form | None:
        word = self._CHANGES.get(op)
        if word is None:
            return None
        places: dict[str, Path] = {"timestamp": ("timestamp",)}
        if op != "Update":
            places["data"] = ("before" if op == "Delete" else "after",)
        both = "data" if op == "Update" else ""
        return Form((), places, {"event_type": word}, {"timestamp": "s"}, alone=True, both=both)


class RivvenChanges:
    """Rivven's changes as the rows they are of: as they are after the change, or were before a delete."""

    columns = pa.schema([_text("_op"), pa.field("_changed_at", TIMESTAMP), _json("_before", asked=True)])
    fills: Mapping[str, str] = {}
    silent: Mapping[str, str] = {}
    _OPERATIONS: Mapping[str, str] = {
        "Insert": "insert",
        "Snapshot": "snapshot",
        "Update": "update",
        "Delete": "delete",
        "Tombstone": "delete",
        "Truncate": "truncate",
    }
    _AROUND = ("source_type", "database", "schema", "table", "op", "before", "after", "timestamp", "transaction")

    def look(self, peek: Peek, rejects: Rejects) -> Look:
        """By the operation; a note on the schema says nothing of a row."""
        return Look(*told_apart([peek("op")], self._judge, rejects))

    def _judge(self, seen: Sequence[str | None]) -> Form | Refusal:
        if word := self._OPERATIONS.get(seen[0] or ""):
            return self._form(word)
        said = f"the operation '{seen[0]}'" if seen[0] else "no operation"
        return Reason.UNKNOWN_OPERATION, f"{said}: not a change of a row"

    def _form(self, word: str) -> Form:
        row = "before" if word == "delete" else "after"
        places: dict[str, Path] = {"_changed_at": ("timestamp",), "_before": ("before",)}
        said, units, alone = {"_op": word}, {"_changed_at": "s"}, word == "truncate"
        known = tuple((name,) for name in self._AROUND if alone or name != row)
        return Form(() if alone else (row,), places, said, units, known, alone=alone, merged=alone)


class CloudEvents:
    """Events in the structured form: the data's fields, and the attributes."""

    columns = pa.schema(
        [
            _text("_ce_id"),
            _text("_ce_source"),
            _text("_ce_type"),
            _text("_ce_subject"),
            pa.field("_ce_time", TIMESTAMP),
        ]
    )
    fills: Mapping[str, str] = {}
    silent: Mapping[str, str] = {}

    def look(self, peek: Peek, rejects: Rejects) -> Look:
        """One form; what does not say version 1 of the specification is no event."""
        return Look(*told_apart([peek("specversion")], self._judge, rejects), types=peek("type"))

    def _judge(self, seen: Sequence[str | None]) -> Form | Refusal:
        (version,) = seen
        if version is not None and version.startswith("1."):
            return _CLOUD_EVENT
        said = f"specversion '{version}'" if version else "no specversion"
        return Reason.FRAMING, f"{said}: not a CloudEvents event of version 1"


def _dotted(one: pa.StringArray, two: pa.StringArray) -> pa.StringArray:
    """Two names with a dot between; the one that is there, or NULL."""
    there = [pc.if_else(pc.equal(each, ""), pa.scalar(None, pa.string()), each) for each in (one, two)]
    return pc.coalesce(pc.binary_join_element_wise(*there, "."), *there)


_RECORD = Form((), {}, {"event_type": "record"}, alone=True, whole="data")
_CLOUD_EVENT = Form(
    ("data",),
    {name: (name.removeprefix("_ce_"),) for name in CloudEvents.columns.names},
    known=(("specversion",), ("datacontenttype",), ("dataschema",)),
)
ENVELOPES: Mapping[str, Envelope] = {
    "debezium": Debezium(),
    "rivven": Rivven(),
    "rivven_changes": RivvenChanges(),
    "cloudevents": CloudEvents(),
}
