"""Explode arrays: payload schemas for tables of elements, and the explode step.

The payload follows from the columns: a kept column is a field of the record, a column with the name of the array is
the element itself, and all others are fields of the element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Decoded, DecodeLimits, Rejects
from headrace.decode.inference import Structure, arrow_type, evolve, name_fits, struct
from headrace.decode.payload_field import PayloadField, json_field, payload_field, payload_fields
from headrace.decode.sizes import check_capacity, row_bytes
from headrace.delta.schema import RESCUED
from headrace.errors import UsageError
from headrace.reasons import Reason
from headrace.spec.explode import Explode

FieldPath = tuple[str, ...]

_NOTHING = r"^\s*(null|\[\s*\])\s*$"


# ---- columns ----


def record_fields(explode: Explode, columns: Iterable[pa.Field]) -> list[pa.Field]:
    """Payload fields of the columns of a table: the kept fields and the array."""
    columns = [item for item in columns if item.name != explode.position]
    kept_fields = [_at(item, explode.keep[item.name]) for item in columns if item.name in explode.keep]
    element_fields = [item for item in columns if item.name not in explode.keep]
    if not element_fields:
        return kept_fields
    whole_element = next((item for item in element_fields if item.name == explode.column), None)
    if whole_element is None:
        return [*kept_fields, pa.field(explode.column, pa.list_(pa.field("element", pa.struct(element_fields))))]
    if len(element_fields) > 1:
        raise _twice(explode, explode.column)
    spec, element = payload_field(whole_element), whole_element.with_name("element").remove_metadata()
    return [
        *kept_fields,
        PayloadField(explode.column, pa.list_(element), unit=spec.unit, rescued=spec.rescued).to_arrow(),
    ]


def exploded_columns(explode: Explode, payload: Iterable[pa.Field], *, record: bool = False) -> pa.Schema:
    """Columns of exploded rows: kept fields, position, fields of the element, and optionally the record."""
    payload = list(payload)
    kept_fields = [item for item in payload if _is_kept(explode, item)]
    lists = [item for item in payload if item.name == explode.column and pa.types.is_list(item.type)]
    position = [pa.field(explode.position, pa.int64())] if explode.position else []
    columns = [*kept_fields, *position, *(field for item in lists for field in _of_element(item))]
    _refuse_twins(explode, columns)
    return pa.schema([*columns, _record(explode, payload)] if record else columns)


def _is_kept(explode: Explode, item: pa.Field) -> bool:
    spec = payload_field(item)
    return item.name != explode.column and not (spec.message or spec.elements_of)


def with_rescued(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """Payload with a column for the rescued fields of each element, as JSON text or NULL."""
    if not knows_elements(explode, payload):
        return payload
    texts = pa.list_(pa.string())
    column = PayloadField("rescued elements", texts, rescue="elements", elements_of=explode.column)
    return payload.append(column.to_arrow())


def _record(explode: Explode, payload: Iterable[pa.Field]) -> pa.Field:
    """Record of each row for JMESPath; dictionary-encoded, because rows share their record."""
    fields = [item for item in payload if item.name != explode.column or pa.types.is_list(item.type)]
    # Arrow structs without a field have no length.
    kind = pa.struct(fields or [pa.field("a record", pa.null())])
    return PayloadField("the record", pa.dictionary(pa.int64(), kind), record=True).to_arrow()


def _of_element(item: pa.Field) -> list[pa.Field]:
    element = item.type.value_field
    if pa.types.is_struct(element.type):
        return [field.with_nullable(True) for field in element.type]
    return [pa.field(item.name, element.type)]


def _refuse_twins(explode: Explode, columns: Iterable[pa.Field]) -> None:
    names: set[str] = set()
    for item in columns:
        if item.name.lower() in names:
            raise _twice(explode, item.name)
        names.add(item.name.lower())


def _twice(explode: Explode, name: str) -> UsageError:
    return UsageError(
        f"exploding '{explode.column}' creates two columns named '{name}'.",
        hint=f"Rename the record's field: explode.keep: {{of_{name}: {name}}}.",
    )


def column_names(explode: Explode | None, item: pa.Field) -> list[str]:
    """Columns of a payload field."""
    if explode is None or item.name != explode.column or not pa.types.is_list(item.type):
        return [item.name]
    return [field.name for field in _of_element(item)]


def knows_elements(explode: Explode, payload: pa.Schema) -> bool:
    """Whether the payload has the element type."""
    return explode.column in payload.names and pa.types.is_list(payload.field(explode.column).type)


def grow_elements(explode: Explode, payload: pa.Schema, learned: Structure) -> pa.Schema:
    """Payload with the inferred fields, by column, added."""
    more = evolve(by_column(explode, payload), learned)
    if knows_elements(explode, more):
        element = more.field(explode.column).type.value_type
        if pa.types.is_struct(element) and element.get_field_index(explode.column) >= 0:
            raise _twice(explode, explode.column)  # the column would be taken for the element itself
    return pa.schema([_at(item, explode.keep[item.name]) if item.name in explode.keep else item for item in more])


def by_column(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """Payload with each field at the name of its column instead of its path."""
    return pa.schema([_at(item, item.name) if item.name in explode.keep else item for item in payload])


def countable_payload(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """Payload for counting new columns: fields of elements are columns, the array is not."""
    columns = by_column(explode, payload)
    if explode.column in columns.names:
        return columns
    return columns.append(pa.field(explode.column, pa.list_(pa.struct([]))))


def added_columns(explode: Explode, payload: pa.Schema, learned: Structure) -> bool:
    """Whether an inferred schema adds columns to the payload."""
    read = pa.schema([item for item in payload if not payload_field(item).skipped])
    try:
        return not grow_elements(explode, read, learned).equals(read)
    except UsageError:
        return True  # adding the columns will raise the same error


def _at(item: pa.Field, path: str) -> pa.Field:
    """Field that is read from a path."""
    return replace(payload_field(item), path="" if path == item.name else path).to_arrow()


# ---- inferred schemas ----


def show_elements(explode: Explode, structure: Structure | None) -> Structure | None:
    """Inferred schema of the columns; None if it has none."""
    if not structure:
        return None
    columns = {name: part for name, path in explode.keep.items() if (part := _dug(structure, path.split(".")))}
    items = structure.get("fields", {}).get(explode.column, {})
    if items.get("type") == "list" and arrow_type(items) is not None:
        columns[explode.column] = items
    return struct(columns) if columns else None


def without_conflict(explode: Explode, learned: Structure) -> Structure:
    """Inferred schema without elements of conflicting types: later records may have one type."""
    fields = learned.get("fields", {})
    if explode.column not in fields or arrow_type(fields[explode.column]) is not None:
        return learned
    return struct({name: item for name, item in fields.items() if name != explode.column})


def _dug(structure: Structure, path: Iterable[str]) -> Structure | None:
    here: Structure | None = structure
    for key in path:
        here = here.get("fields", {}).get(key) if here else None
    return here if here and here.get("type", "null") != "null" else None


def other_fields(explode: Explode, structure: Structure | None) -> set[FieldPath]:
    """Paths of record fields that are neither kept nor exploded."""
    kept_paths = {tuple(path.split(".")) for path in explode.keep.values()}
    return set(_strange(structure or {}, (), {(explode.column,), *kept_paths}))


def _strange(structure: Structure, here: FieldPath, own: set[FieldPath]) -> Iterator[FieldPath]:
    for key, item in structure.get("fields", {}).items():
        path = (*here, key)
        if path in own:
            continue
        if any(kept_path[: len(path)] == path for kept_path in own):
            yield from _strange(item, path, own)
        elif name_fits(key) and "." not in key:
            yield path


def ignored_paths(explode: Explode, names: Iterable[str]) -> set[FieldPath]:
    """Paths of ignored fields that are neither kept nor exploded, from their dotted names."""
    kept_paths = {(explode.column,), *(tuple(path.split(".")) for path in explode.keep.values())}
    above = {path[:depth] for path in kept_paths for depth in range(len(path))}
    paths = {tuple(name.split(".")) for name in names}
    return {path for path in paths - kept_paths - above if path[:-1] in above and name_fits(path[-1])}


def own_names(explode: Explode, names: Mapping[str, int]) -> dict[str, int]:
    """Dotted names inside kept fields or the exploded array."""
    roots = tuple(f"{path}." for path in (explode.column, *explode.keep.values()))
    return {name: count for name, count in names.items() if name.startswith(roots)}


def with_skipped_fields(payload: pa.Schema, paths: Iterable[FieldPath]) -> pa.Schema:
    """Payload with additional skipped fields; names that differ only in case are omitted."""
    names = {".".join(item.keys).lower() for item in payload_fields(payload)}
    more = []
    for path in sorted(".".join(parts) for parts in paths):
        if path.lower() not in names:
            names.add(path.lower())
            # Column names have no blank.
            more.append(PayloadField(f"beside {path}", pa.string(), path=path, skipped=True).to_arrow())
    return pa.schema([*payload, *more])


def only_elements(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """Payload for contracts that reject new fields: only fields of elements count as new."""
    if explode.column not in payload.names:
        return payload
    at = payload.get_field_index(explode.column)
    return payload.set(at, replace(payload_field(payload.field(at)), exploded=True).to_arrow())


def with_array_text(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """Payload that reads the array as JSON text if the element type is unknown."""
    if explode.column in payload.names:
        return payload
    return payload.append(json_field(explode.column))


# ---- explode step ----


def explode_records(
    explode: Explode, decoded: Decoded, limits: DecodeLimits, lent: np.ndarray, *, record: bool = False
) -> tuple[Decoded, np.ndarray]:
    """Explode decoded records into rows; returns the rows and the positions of records without rows.

    `lent`: bytes per row that are copied from the key and headers, by position of the record.
    `record`: add the record column.
    """
    decoded = _light(
        explode, _narrow(explode, _with_known_elements(explode, decoded), limits.rows), limits.repeated_bytes, lent
    )
    index, lists = decoded.index.to_numpy(), _lists(explode, decoded.rows)
    counts, row_counts = _shown(explode, decoded)
    parents = np.repeat(np.arange(len(index)), row_counts)
    nth = np.arange(len(parents)) - np.repeat(np.cumsum(row_counts) - row_counts, row_counts)
    blank = counts[parents] == 0
    kept_names = _kept(explode, decoded.rows)
    columns = [decoded.rows[name].take(pa.array(parents)) for name in kept_names]
    if (texts := _rescued_of_elements(decoded.rows, parents, nth, blank)) is not None:
        columns[kept_names.index(RESCUED.name)] = _joined(columns[kept_names.index(RESCUED.name)], texts)
    columns += [pa.array(nth, pa.int64(), mask=blank)] if explode.position else []
    columns += _elements(lists, parents, nth, blank) if lists is not None else []
    schema = exploded_columns(explode, decoded.rows.schema, record=record)
    columns += [_records(decoded.rows, schema.field(-1).type, parents)] if record else []
    rows = pa.Table.from_arrays(columns, schema=schema)
    empty = np.unique(index[np.bincount(index, row_counts)[index] == 0])  # smaller than `index[parents]`
    return replace(decoded, rows=rows, index=pa.array(index[parents])), empty


def _kept(explode: Explode, rows: pa.Table) -> list[str]:
    return [item.name for item in rows.schema if _is_kept(explode, item)]


def _shown(explode: Explode, decoded: Decoded) -> tuple[np.ndarray, np.ndarray]:
    """Number of elements and number of rows of each array."""
    lists = _lists(explode, decoded.rows)
    counts = _lengths(lists) if lists is not None else np.zeros(len(decoded.index), np.int64)
    return counts, np.maximum(counts, 1) if explode.empty == "row" else counts


def _records(rows: pa.Table, kind: pa.DictionaryType, parents: np.ndarray) -> pa.DictionaryArray:
    """Record of each row, without copying values."""
    fields = list(kind.value_type)
    columns = [rows[item.name] if item.name in rows.column_names else pa.nulls(len(rows)) for item in fields]
    records = pa.StructArray.from_arrays([_whole(column) for column in columns], fields=fields)
    return pa.DictionaryArray.from_arrays(pa.array(parents, pa.int64()), records)


def _lists(explode: Explode, rows: pa.Table) -> pa.ListArray | None:
    if explode.column not in rows.column_names or not pa.types.is_list(rows[explode.column].type):
        return None
    return _whole(rows[explode.column])


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def _lengths(lists: pa.ListArray) -> np.ndarray:
    counts: np.ndarray = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return counts


def _elements(lists: pa.ListArray, parents: np.ndarray, nth: np.ndarray, blank: np.ndarray) -> list[pa.Array]:
    if blank.any():
        at = lists.offsets.to_numpy()[parents] + nth
        elements = lists.values.take(pa.array(at, pa.int64(), mask=blank))
    else:
        elements = lists.flatten()
    return elements.flatten() if pa.types.is_struct(elements.type) else [elements]


def _rescued_of_elements(
    rows: pa.Table, parents: np.ndarray, nth: np.ndarray, blank: np.ndarray
) -> pa.StringArray | None:
    """Rescued fields of the element of each row; None if there are none."""
    name = next((item.name for item in payload_fields(rows.schema) if item.elements_of), None)
    if name is None or rows[name].null_count == len(rows):
        return None
    lists = _whole(rows[name])
    at = lists.offsets.to_numpy()[parents] + nth
    nothing = blank | lists.is_null().to_numpy(zero_copy_only=False)[parents]
    return lists.values.take(pa.array(at, pa.int64(), mask=nothing))


def _joined(records: pa.ChunkedArray, elements: pa.StringArray) -> pa.Array:
    """Merge two columns of JSON objects: `{"a":1}` and `{"b":2}` give `{"a":1,"b":2}`."""
    first, second = pc.utf8_slice_codeunits(_whole(records), 0, -1), pc.utf8_slice_codeunits(elements, 1)
    return pc.coalesce(pc.binary_join_element_wise(first, second, ","), _whole(records), elements)


def _with_known_elements(explode: Explode, decoded: Decoded) -> Decoded:
    """Reject records with elements while the element type is unknown."""
    if explode.column not in decoded.rows.column_names or not pa.types.is_string(decoded.rows[explode.column].type):
        return decoded
    texts = decoded.rows[explode.column]
    has_elements = pc.fill_null(pc.invert(pc.match_substring_regex(texts, _NOTHING)), False).to_numpy()
    message = f"{explode.column}: expected an array with elements of one type, saw"
    return _refused(decoded, has_elements, Reason.TYPE, lambda row: f"{message} {texts[row].as_py():.80}")


def _narrow(explode: Explode, decoded: Decoded, limit: int) -> Decoded:
    """Reject records with too many rows."""
    lists, index = _lists(explode, decoded.rows), decoded.index.to_numpy()
    if lists is None or not len(lists):
        return decoded
    totals = np.bincount(index, _lengths(lists))[index].astype(np.int64)
    return _refused(decoded, totals > limit, Reason.TOO_WIDE, lambda row: f"{totals[row]} rows; the limit is {limit}")


def _light(explode: Explode, decoded: Decoded, limit: int, lent: np.ndarray) -> Decoded:
    """Reject records whose rows repeat too many bytes."""
    index, (_, row_counts) = decoded.index.to_numpy(), _shown(explode, decoded)
    kept_bytes = sum(
        (row_bytes(decoded.rows[name]) for name in _kept(explode, decoded.rows)), np.zeros(len(index), np.int64)
    )
    return reject_repeating(decoded, row_counts, kept_bytes + lent[index], limit)


def reject_repeating(decoded: Decoded, rows: np.ndarray, repeated: np.ndarray, limit: int) -> Decoded:
    """Reject records that repeat too many bytes: each decoded row becomes `rows` rows with `repeated` bytes each.

    Raises Oversized if the remaining records together exceed the capacity.
    """
    index = decoded.index.to_numpy()
    if not len(index):
        return decoded
    counts, totals = (np.bincount(index, weights).astype(np.int64) for weights in (rows, rows * repeated))

    def detail(row: int) -> str:
        at = index[row]
        return (
            f"{counts[at]} rows that repeat {totals[at]} bytes of the record; the limit is {limit} "
            "(limits.repeated_bytes)"
        )

    check_capacity(totals[(totals > 0) & (totals <= limit)])
    return _refused(decoded, (totals > limit)[index], Reason.TOO_BIG, detail)


def _refused(decoded: Decoded, bad: np.ndarray, reason: Reason, detail: Callable[[int], str]) -> Decoded:
    """Reject records with a bad row."""
    if not bad.any():
        return decoded
    index, rows = decoded.index.to_numpy(), np.flatnonzero(bad)
    rejected, first = np.unique(index[rows], return_index=True)
    rejects = Rejects.of(decoded.rejects.columns)
    for position, row in zip(rejected.tolist(), rows[first].tolist(), strict=True):
        rejects.add(position, reason, detail(row))
    keep = pa.array(~np.isin(index, rejected))
    return replace(
        decoded, rows=decoded.rows.filter(keep), index=decoded.index.filter(keep), rejects=rejects.in_order()
    )
