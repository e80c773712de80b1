"""Merge keys from record keys, and from the before image of change events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.avro.decoder import VALUE
from headrace.decode.base import Decoder, Rejects
from headrace.decode.decoders import decoder
from headrace.decode.payload_field import payload_field
from headrace.plan.route_schema import RouteSchema
from headrace.reasons import Reason
from headrace.spec.decode import Format, KeyFormat
from headrace.spec.merge import MergeSpec

_Keys = tuple[pa.Table, pa.Int64Array, Rejects]


def keys_before(texts: pa.StringArray, schema: RouteSchema, merge: MergeSpec) -> tuple[pa.Table, pa.Int64Array]:
    """Key columns from rows as JSON text, with their positions; incomplete keys are omitted."""
    decoded = decoder("json", _payload(schema, merge)).decode(texts.cast(pa.binary()))
    table = decoded.rows.rename_columns(list(merge.keys))
    complete = _whole(table)
    return table.filter(pa.array(complete)), decoded.index.filter(pa.array(complete))


def _payload(schema: RouteSchema, merge: MergeSpec) -> pa.Schema:
    """Payload fields of the key columns, in order, all nullable."""
    fields = {item.name: item for item in schema.payload}
    return pa.schema(
        [
            fields[name].with_nullable(True) if name in fields else schema.table.field(column).with_nullable(True)
            for column, name in ((column, schema.origins.get(column, column)) for column in merge.keys)
        ]
    )


def keys_of_rows(keys: pa.ChunkedArray, schema: RouteSchema, merge: MergeSpec, how: Format) -> _Keys:
    """Key columns from record keys, with their positions, and rejects."""
    values = keys.combine_chunks()
    present = values.is_valid().to_numpy(zero_copy_only=False)
    rejects, at = Rejects(), np.flatnonzero(present)
    rejects.add_all(np.flatnonzero(~present), Reason.NO_KEY, "tombstone without a key")
    rows, index, key_rejects = _READ[how.keyed_by](values.take(pa.array(at)), _payload(schema, merge), how)
    for position, reason, detail in key_rejects:
        rejects.add(int(at[position]), reason, f"the key: {detail}")
    table, at = rows.rename_columns(list(merge.keys)), at[index.to_numpy()]
    complete = _whole(table)
    rejects.add_all(at[~complete], Reason.NO_KEY, f"the key does not contain {' and '.join(merge.keys)}")
    return table.filter(pa.array(complete)), pa.array(at[complete], pa.int64()), rejects.in_order()


def _whole(keys: pa.Table) -> np.ndarray:
    """Rows with complete keys."""
    mask: np.ndarray = np.logical_and.reduce([pc.is_valid(column).to_numpy() for column in keys.columns])
    return mask


def _json_keys(values: pa.BinaryArray, payload: pa.Schema, how: Format) -> _Keys:
    """JSON objects, with or without the schema part of Debezium; for a single key also the bare value."""
    if len(payload) == 1:
        values = _as_objects(values, payload.field(0).name)
    kinds, _ = decoder("json", pa.schema([])).peek(values, "schema.type")
    wrapped = kinds.is_valid().to_numpy(zero_copy_only=False)
    bare = _decoded(decoder("json", payload), values, np.flatnonzero(~wrapped))
    if not wrapped.any():
        return bare
    inside = decoder("json", pa.schema([_below(item) for item in payload]))
    return _together(bare, _decoded(inside, values, np.flatnonzero(wrapped)))


def _as_objects(values: pa.BinaryArray, name: str) -> pa.BinaryArray:
    """Wrap bare values into objects: `5` becomes `{"id": 5}`."""
    start = json.dumps({name: 0}).encode()[:-2]
    around = pc.binary_join_element_wise(start, values, b"}", b"")
    return pc.if_else(pc.match_substring_regex(values, r"^\s*\{"), values, around)


def _below(item: pa.Field) -> pa.Field:
    """Field below `payload`, next to a schema part."""
    spec = payload_field(item)
    return replace(spec, path=".".join(["payload", *spec.keys])).to_arrow()


def _decoded(read: Decoder, values: pa.BinaryArray, at: np.ndarray) -> _Keys:
    """Decode the values at positions."""
    decoded = read.decode(values.take(pa.array(at, pa.int64())))
    rejects = Rejects()
    rejects.join(decoded.rejects, at)
    return decoded.rows, pa.array(at[decoded.index.to_numpy()], pa.int64()), rejects


def _together(first: _Keys, second: _Keys) -> _Keys:
    """Merge two results in the order of the values."""
    rows = first[0].replace_schema_metadata()
    rows = pa.concat_tables([rows, second[0].rename_columns(rows.column_names).cast(rows.schema)])
    index = np.concatenate([first[1].to_numpy(), second[1].to_numpy()])
    order = np.argsort(index)
    return rows.take(pa.array(order)), pa.array(index[order]), first[2].and_then(second[2])


def _text_keys(values: pa.BinaryArray, payload: pa.Schema, how: Format) -> _Keys:
    """Text, or a number as text."""
    if not pa.types.is_string(payload.field(0).type):
        return _json_keys(values, payload, how)
    decoded = decoder("string", pa.schema([pa.field("data", pa.string())])).decode(values)
    return decoded.rows, decoded.index, decoded.rejects


def _int64_keys(values: pa.BinaryArray, payload: pa.Schema, how: Format) -> _Keys:
    decoded = decoder("int64", pa.schema([pa.field("value", payload.field(0).type)])).decode(values)
    return decoded.rows, decoded.index, decoded.rejects


def _avro_keys(values: pa.BinaryArray, payload: pa.Schema, how: Format) -> _Keys:
    """Avro records in the wire format of the registry; for a single key also the bare value."""
    bare = how.model_copy(update={"envelope": "none"})
    decoded = _decoded(decoder("avro", payload, options=bare), values, np.arange(len(values)))
    complete = _whole(decoded[0])
    if len(payload) > 1 or complete.all():
        return decoded
    bare_decoder = decoder("avro", pa.schema([pa.field(VALUE, payload.field(0).type)]), options=bare)
    complete_keys = decoded[0].filter(pa.array(complete)), decoded[1].filter(pa.array(complete)), decoded[2]
    return _together(complete_keys, _decoded(bare_decoder, values, decoded[1].to_numpy()[~complete]))


_READ: Mapping[KeyFormat, Callable[[pa.BinaryArray, pa.Schema, Format], _Keys]] = {
    "json": _json_keys,
    "text": _text_keys,
    "int64": _int64_keys,
    "avro": _avro_keys,
}
