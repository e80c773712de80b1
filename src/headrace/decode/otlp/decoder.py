"""OTLP: the spans, log records or metric data points of export requests as rows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.decode.base import Decoded, DecodeLimits, NewField, Rejects, join_rejects, new_field_stop
from headrace.decode.byte_scan import Numbers
from headrace.decode.input import sized
from headrace.decode.otlp.columns import OtlpColumns
from headrace.decode.otlp.layouts import LayoutBuilder, LayoutOptions
from headrace.decode.otlp.messages import request_message
from headrace.decode.otlp.records import records_of
from headrace.decode.payload import PayloadNode, PayloadSchema, payload_schema_of
from headrace.decode.typed.fit import fit_values
from headrace.reasons import Reason
from headrace.spec.decode import OtlpFormat, Signal

_EVERYTHING = PayloadNode("skip")  # all fields are wanted
_NO_SIGNAL = "no signal is known for the topic '{}' (decode.otlp.signal)"


class OtlpDecoder:
    """Decodes export requests to the rows of one payload schema; a request with a bad record is rejected as a whole."""

    def __init__(self, payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: OtlpFormat) -> None:
        self._layout = payload_schema_of(payload)
        self._new_field, self._limits, self._options = new_field, limits, options
        self._form = LayoutOptions(options.layout, options.attributes, options.columns)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode requests of one signal, which the spec must name."""
        return self.decode_of_topics(values, pa.repeat(pa.scalar("", pa.string()), len(values)))

    def decode_of_topics(self, values: pa.BinaryArray, topics: pa.StringArray) -> Decoded:
        """Decode requests whose topics tell their signals."""
        # A request without bytes is one without records.
        kept, at, rejects = sized(values, self._limits, empty=True)
        parts = list(self._parts(kept, at, topics.take(pa.array(at)), rejects))
        if len(parts) == 1 and not len(rejects):
            return parts[0]
        none = Decoded(self._none(), pa.array([], pa.int64()), rejects)
        return join_rejects([none, *parts], self._layout.schema)

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """NULL for every request: it has many records, so a field does not have one value."""
        _, _, rejects = sized(values, self._limits, empty=True)
        return pa.nulls(len(values), pa.string()), rejects

    def _none(self) -> pa.Table:
        return self._layout.with_message(self._layout.schema.empty_table(), lambda: pa.array([], pa.string()))

    def _parts(
        self, values: pa.BinaryArray, at: Numbers, topics: pa.StringArray, rejects: Rejects
    ) -> Iterator[Decoded]:
        """Decode the requests of each signal; those of an unknown topic are rejected."""
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        signals = [self._options.signal_of(name) for name in names]
        codes = encoded.indices.to_numpy()
        for code in [code for code, signal in enumerate(signals) if signal is None]:
            rejects.add_all(at[codes == code], Reason.UNKNOWN_SCHEMA, _NO_SIGNAL.format(names[code][:100]))
        for signal in sorted({signal for signal in signals if signal is not None}):
            chosen = np.isin(codes, [code for code, each in enumerate(signals) if each == signal])
            part = values if chosen.all() else values.filter(pa.array(chosen))
            yield self._decode(signal, part, at[chosen])

    def _decode(self, signal: Signal, values: pa.BinaryArray, at: Numbers) -> Decoded:
        reader = OtlpColumns(values, self._limits)
        requests = reader.read(request_message(signal), _EVERYTHING)
        records = records_of(signal, requests)
        counts = np.bincount(records.requests, minlength=len(values))
        too_many = np.flatnonzero(counts > self._limits.rows)
        reader.reject(too_many, Reason.TOO_WIDE, f"more than {self._limits.rows} records, which is the limit")
        ids = request_ids(values) if self._options.layout != "flat" else []
        natural = LayoutBuilder(reader, records, self._form, ids).build(signal)
        ignored = self._apply_contract(reader)
        rejects = Rejects()
        for row in sorted(reader.rejects):
            rejects.add(int(at[row]), *reader.rejects[row])
        owners = records.requests
        if reader.rejects:
            good = ~np.isin(owners, np.fromiter(reader.rejects, np.int64))
            natural, owners = natural.filter(pa.array(good)), owners[good]
        decoded = self._fitted(natural, at[owners], rejects)
        return replace(decoded, ignored={**decoded.ignored, **ignored}) if ignored else decoded

    def _fitted(self, natural: pa.Table, at: Numbers, rejects: Rejects) -> Decoded:
        """Rows of the payload; columns of the format that the table does not have are not selected."""
        layout = self._layout
        if self._new_field != "evolve" and layout.message is None:
            natural = natural.select([name for name in natural.column_names if name in layout.root.children])
        if (rows := _unchanged(natural, layout)) is not None:
            return Decoded(rows, pa.array(at), rejects)
        decoded = fit_values(natural, at, layout, self._new_field, rejects, self._limits)
        if not len(decoded.rejects):
            return decoded
        index = decoded.index.to_numpy()
        good = ~np.isin(index, decoded.rejects.columns.index)
        firsts = decoded.rejects.in_order().firsts()
        rows = decoded.rows.filter(pa.array(good)) if decoded.rows.num_columns else decoded.rows
        return replace(decoded, rows=rows, index=pa.array(index[good]), rejects=firsts)

    def _apply_contract(self, reader: OtlpColumns) -> Mapping[str, int]:
        """Apply the contract for new fields to those that the descriptors do not have; they have no name."""
        ignored: Counter[str] = Counter()
        for unknown in reader.unknown_fields:
            rows = np.unique(unknown.scope.rows[unknown.occurrences.owners])
            rows = rows[~np.isin(rows, np.fromiter(reader.rejects, np.int64))]
            name = f"{unknown.scope.prefix}#{unknown.tag >> 3}"
            if len(rows) and self._new_field == "stop":
                raise new_field_stop(name)
            if self._new_field in ("reject", "rescue"):
                reader.reject(rows, Reason.NEW_FIELD, f"{name}: the schema does not have this field")
            elif len(rows):
                ignored[name] += len(rows)
        return ignored


def request_ids(values: pa.BinaryArray) -> list[str]:
    """An id of each request, by its content: the same whenever the request is decoded."""
    return [hashlib.blake2b(value.as_buffer() or b"", digest_size=12).hexdigest() for value in values]


def _unchanged(natural: pa.Table, layout: PayloadSchema) -> pa.Table | None:
    """The natural columns if they are those of the payload: usually they are, as the table was made from them."""
    if layout.message is not None or layout.rescue or layout.overlaps or layout.elements is not None:
        return None
    if len(layout.columns) != natural.num_columns:
        return None
    for column in layout.columns:
        name, *deeper = column.path
        at = natural.schema.get_field_index(name)
        if deeper or at < 0 or natural.schema.types[at] != column.field.type or not column.field.nullable:
            return None
    return pa.Table.from_arrays([natural[column.path[0]] for column in layout.columns], schema=layout.schema)


def otlp_decoder(payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: OtlpFormat) -> OtlpDecoder:
    """The factory of the format table."""
    return OtlpDecoder(payload, new_field, limits, options)
