"""The supported envelopes: Debezium, Rivven events, Rivven changes, CloudEvents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Rejects
from headrace.decode.envelope.base import Envelope, EnvelopeForm, EnvelopeReject, EnvelopeScan, Path, Peek, classify
from headrace.decode.payload_field import PayloadField
from headrace.reasons import Reason
from headrace.spec.types import TIMESTAMP


def _text(name: str) -> pa.Field:
    return pa.field(name, pa.string())


def _json(name: str, *, optional: bool = False) -> pa.Field:
    return PayloadField(name, pa.string(), json_text=True, optional=optional).to_arrow()


class Debezium:
    """Change events: the row after the change, or before a delete."""

    columns = pa.schema(
        [
            _text("_op"),
            pa.field("_changed_at", TIMESTAMP),
            _json("_before", optional=True),
            _json("_origin", optional=True),
        ]
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

    def scan(self, peek: Peek, rejects: Rejects) -> EnvelopeScan:
        """The form by operation; a value with a schema has the event in `payload`."""
        bare = peek("op")
        wrapped = peek("payload.op") if bare.null_count else pa.nulls(len(bare), pa.string())
        return EnvelopeScan(*classify([bare, wrapped], self._form_of, rejects))

    def _form_of(self, seen: Sequence[str | None]) -> EnvelopeForm | EnvelopeReject:
        op = seen[1] if seen[0] is None else seen[0]
        if word := self._OPERATIONS.get(op or ""):
            return self._form(word, seen[0] is None)
        problem = f"the operation '{op}'" if op else "no operation (a heartbeat or a schema change)"
        return Reason.UNKNOWN_OPERATION, f"{problem}, expected one of c, r, u, d and t"

    def _form(self, word: str, wrapped: bool) -> EnvelopeForm:
        top: Path = ("payload",) if wrapped else ()
        row = "before" if word == "delete" else "after"
        places = {"_changed_at": (*top, "ts_ms"), "_origin": (*top, "source"), "_before": (*top, "before")}
        known = [(*top, name) for name in self._AROUND if name != row]
        if wrapped:
            known.append(("schema",))
        if word == "truncate":
            return EnvelopeForm(
                top, places, {"_op": word}, {"_changed_at": "ms"}, tuple(known), alone=True, merged=True
            )
        return EnvelopeForm((*top, row), places, {"_op": word}, {"_changed_at": "ms"}, tuple(known))


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

    def scan(self, peek: Peek, rejects: Rejects) -> EnvelopeScan:
        """A change by `source_type` and `op`, an event by `event_type`; any other value is a record."""
        forms, which = classify([peek("source_type"), peek("op"), peek("event_type")], self._form_of, rejects)
        # Events have a field `stream`.
        silent = any("stream" not in form.paths for form in forms)
        return EnvelopeScan(forms, which, {"stream": _dotted(peek("schema"), peek("table"))} if silent else {})

    def _form_of(self, seen: Sequence[str | None]) -> EnvelopeForm | EnvelopeReject:
        source, change, event = seen
        is_change = source is not None and change is not None
        form = self._change(change or "") if is_change else self._event(event) if event is not None else _RECORD
        if form is not None:
            return form
        return Reason.UNKNOWN_OPERATION, f"the event '{change if is_change else event}', which is not a Rivven event"

    def _event(self, word: str) -> EnvelopeForm | None:
        if word not in self._EVENTS:
            return None
        places = {"data": ("data",), "timestamp": ("timestamp",), "stream": ("stream",)}
        known = (("event_type",), ("namespace",), ("metadata",))
        return EnvelopeForm((), places, {"event_type": word}, known=known, alone=True)

    def _change(self, op: str) -> EnvelopeForm | None:
        word = self._CHANGES.get(op)
        if word is None:
            return None
        places: dict[str, Path] = {"timestamp": ("timestamp",)}
        if op != "Update":
            places["data"] = ("before" if op == "Delete" else "after",)
        both = "data" if op == "Update" else ""
        return EnvelopeForm((), places, {"event_type": word}, {"timestamp": "s"}, alone=True, both=both)


_TOMBSTONE = "tombstone"


class RivvenChanges:
    """Rivven's changes as rows: the row after the change, or before a delete."""

    columns = pa.schema([_text("_op"), pa.field("_changed_at", TIMESTAMP), _json("_before", optional=True)])
    fills: Mapping[str, str] = {}
    silent: Mapping[str, str] = {}
    _OPERATIONS: Mapping[str, str] = {
        "Insert": "insert",
        "Snapshot": "snapshot",
        "Update": "update",
        "Delete": "delete",
        "Tombstone": _TOMBSTONE,
        "Truncate": "truncate",
    }
    _AROUND = ("source_type", "database", "schema", "table", "op", "before", "after", "timestamp", "transaction")

    def scan(self, peek: Peek, rejects: Rejects) -> EnvelopeScan:
        """The form by operation; a schema change has no row."""
        return EnvelopeScan(*classify([peek("op")], self._form_of, rejects))

    def _form_of(self, seen: Sequence[str | None]) -> EnvelopeForm | EnvelopeReject:
        if word := self._OPERATIONS.get(seen[0] or ""):
            return self._form(word)
        problem = f"the operation '{seen[0]}'" if seen[0] else "no operation"
        return Reason.UNKNOWN_OPERATION, f"{problem}: not a change of a row"

    def _form(self, word: str) -> EnvelopeForm:
        if word == _TOMBSTONE:  # without a row, a delete by the record's key, as a null value
            return replace(self._form("delete"), bare=Reason.TOMBSTONE)
        row = "before" if word == "delete" else "after"
        places: dict[str, Path] = {"_changed_at": ("timestamp",), "_before": ("before",)}
        constants, units, alone = {"_op": word}, {"_changed_at": "s"}, word == "truncate"
        known = tuple((name,) for name in self._AROUND if alone or name != row)
        return EnvelopeForm(() if alone else (row,), places, constants, units, known, alone=alone, merged=alone)


class CloudEvents:
    """Events in structured mode: the fields of `data`, and the context attributes."""

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

    def scan(self, peek: Peek, rejects: Rejects) -> EnvelopeScan:
        """One form; values without specversion 1.x are rejected."""
        return EnvelopeScan(*classify([peek("specversion")], self._form_of, rejects), types=peek("type"))

    def _form_of(self, seen: Sequence[str | None]) -> EnvelopeForm | EnvelopeReject:
        (version,) = seen
        if version is not None and version.startswith("1."):
            return _CLOUD_EVENT
        problem = f"specversion '{version}'" if version else "no specversion"
        return Reason.FRAMING, f"{problem}: not a CloudEvents event of version 1"


def _dotted(one: pa.StringArray, two: pa.StringArray) -> pa.StringArray:
    """Two names joined by a dot; the only one, or NULL."""
    there = [pc.if_else(pc.equal(each, ""), pa.scalar(None, pa.string()), each) for each in (one, two)]
    return pc.coalesce(pc.binary_join_element_wise(*there, "."), *there)


_RECORD = EnvelopeForm((), {}, {"event_type": "record"}, alone=True, whole="data")
_CLOUD_EVENT = EnvelopeForm(
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
