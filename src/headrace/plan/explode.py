"""Explode: the elements of a record's list become rows. What that asks of columns, and the step itself.

A table of elements can be read backwards: a column that is kept is a field of the record, one with the list's name is
the element itself, and all others are fields of the element. So what such a table has tells what its records hold.
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

Way = tuple[str, ...]

_NOTHING = r"^\s*(null|\[\s*\])\s*$"


# ---- columns ----


def rolled(explode: Explode, columns: Iterable[pa.Field]) -> list[pa.Field]:
    """A table's columns as fields of its records: those kept, and the list."""
    columns = [item for item in columns if item.name != explode.position]
    kept = [_at(item, explode.keep[item.name]) for item in columns if item.name in explode.keep]
    own = [item for item in columns if item.name not in explode.keep]
    if not own:
        return kept
    alone = next((item for item in own if item.name == explode.column), None)
    if alone is None:
        return [*kept, pa.field(explode.column, pa.list_(pa.field("element", pa.struct(own))))]
    if len(own) > 1:
        raise _twice(explode, explode.column)
    spec, element = payload_field(alone), alone.with_name("element").remove_metadata()
    return [
        *kept,
        PayloadField(explode.column, pa.list_(element), unit=spec.unit, rescued=spec.rescued).to_arrow(),
    ]


def flat(explode: Explode, payload: Iterable[pa.Field], *, record: bool = False) -> pa.Schema:
    """The columns of rows: what is kept of the record, the position, what an element has, and maybe the record."""
    payload = list(payload)
    kept = [item for item in payload if _is_kept(explode, item)]
    lists = [item for item in payload if item.name == explode.column and pa.types.is_list(item.type)]
    place = [pa.field(explode.position, pa.int64())] if explode.position else []
    columns = [*kept, *place, *(each for item in lists for each in _of_element(item))]
    _refuse_twins(explode, columns)
    return pa.schema([*columns, _record(explode, payload)] if record else columns)


def _is_kept(explode: Explode, item: pa.Field) -> bool:
    spec = payload_field(item)
    return item.name != explode.column and not (spec.message or spec.elements_of)


def with_rescued(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """The payload with a column for what is rescued of each element: a text for each, NULL where there is none."""
    if not knows_elements(explode, payload):
        return payload
    texts = pa.list_(pa.string())
    column = PayloadField("rescued elements", texts, rescue="elements", elements_of=explode.column)
    return payload.append(column.to_arrow())


def _record(explode: Explode, payload: Iterable[pa.Field]) -> pa.Field:
    """The record of a row, for expressions over the message: an index of records, so that each is there but once."""
    fields = [item for item in payload if item.name != explode.column or pa.types.is_list(item.type)]
    # Arrow counts no structs without a field.
    kind = pa.struct(fields or [pa.field("a record", pa.null())])
    return PayloadField("the record", pa.dictionary(pa.int64(), kind), record=True).to_arrow()


def _of_element(item: pa.Field) -> list[pa.Field]:
    element = item.type.value_field
    if pa.types.is_struct(element.type):
        return [each.with_nullable(True) for each in element.type]
    return [pa.field(item.name, element.type)]


def _refuse_twins(explode: Explode, columns: Iterable[pa.Field]) -> None:
    met: set[str] = set()
    for item in columns:
        if item.name.lower() in met:
            raise _twice(explode, item.name)
        met.add(item.name.lower())


def _twice(explode: Explode, name: str) -> UsageError:
    return UsageError(
        f"exploding '{explode.column}' creates two columns named '{name}'.",
        hint=f"Rename the record's field: explode.keep: {{of_{name}: {name}}}.",
    )


def column_names(explode: Explode | None, item: pa.Field) -> list[str]:
    """The columns that a field of the payload becomes."""
    if explode is None or item.name != explode.column or not pa.types.is_list(item.type):
        return [item.name]
    return [each.name for each in _of_element(item)]


def knows_elements(explode: Explode, payload: pa.Schema) -> bool:
    """Whether the payload says what an element is."""
    return explode.column in payload.names and pa.types.is_list(payload.field(explode.column).type)


def grow_elements(explode: Explode, payload: pa.Schema, learned: Structure) -> pa.Schema:
    """The payload with the fields that `learned`, a structure by column, adds to it."""
    more = evolve(by_column(explode, payload), learned)
    if knows_elements(explode, more):
        element = more.field(explode.column).type.value_type
        if pa.types.is_struct(element) and element.get_field_index(explode.column) >= 0:
            raise _twice(explode, explode.column)  # read backwards, the column would be the element itself
    return pa.schema([_at(item, explode.keep[item.name]) if item.name in explode.keep else item for item in more])


def by_column(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """The payload with every field under its column's name, wherever it is read from."""
    return pa.schema([_at(item, item.name) if item.name in explode.keep else item for item in payload])


def admitting(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """The payload as new fields are counted: those of an element are columns, the list itself is none."""
    columns = by_column(explode, payload)
    if explode.column in columns.names:
        return columns
    return columns.append(pa.field(explode.column, pa.list_(pa.struct([]))))


def added_columns(explode: Explode, payload: pa.Schema, learned: Structure) -> bool:
    """Whether a structure by column has something that the payload does not read."""
    read = pa.schema([item for item in payload if not payload_field(item).skipped])
    try:
        return not grow_elements(explode, read, learned).equals(read)
    except UsageError:
        return True  # it does, and whoever adds it will say why that cannot be


def _at(item: pa.Field, path: str) -> pa.Field:
    """A field that is read from a path."""
    return replace(payload_field(item), path="" if path == item.name else path).to_arrow()


# ---- what records show ----


def show_elements(explode: Explode, structure: Structure | None) -> Structure | None:
    """What a structure tells of the columns, by their names; None when that is nothing."""
    if not structure:
        return None
    found = {name: part for name, path in explode.keep.items() if (part := _dug(structure, path.split(".")))}
    items = structure.get("fields", {}).get(explode.column, {})
    if items.get("type") == "list" and arrow_type(items) is not None:
        found[explode.column] = items
    return struct(found) if found else None


def without_conflict(explode: Explode, learned: Structure) -> Structure:
    """What was learned, but for elements that were seen to be of several types: others may be of one."""
    fields = learned.get("fields", {})
    if explode.column not in fields or arrow_type(fields[explode.column]) is not None:
        return learned
    return struct({name: item for name, item in fields.items() if name != explode.column})


def _dug(structure: Structure, path: Iterable[str]) -> Structure | None:
    here: Structure | None = structure
    for key in path:
        here = here.get("fields", {}).get(key) if here else None
    return here if here and here.get("type", "null") != "null" else None


def strange(explode: Explode, structure: Structure | None) -> set[Way]:
    """The ways to what is in the record and none of the table's business."""
    kept = {tuple(path.split(".")) for path in explode.keep.values()}
    return set(_strange(structure or {}, (), {(explode.column,), *kept}))


def _strange(structure: Structure, here: Way, own: set[Way]) -> Iterator[Way]:
    for key, item in structure.get("fields", {}).items():
        way = (*here, key)
        if way in own:
            continue
        if any(each[: len(way)] == way for each in own):
            yield from _strange(item, way, own)
        elif name_fits(key) and "." not in key:
            yield way


def passed_over(explode: Explode, names: Iterable[str]) -> set[Way]:
    """The ways to fields that are none of the table's business, out of their dotted names."""
    own = {(explode.column,), *(tuple(path.split(".")) for path in explode.keep.values())}
    above = {way[:depth] for way in own for depth in range(len(way))}
    ways = {tuple(name.split(".")) for name in names}
    return {way for way in ways - own - above if way[:-1] in above and name_fits(way[-1])}


def own_names(explode: Explode, names: Mapping[str, int]) -> dict[str, int]:
    """Of dotted names those inside of what the table keeps or explodes."""
    roots = tuple(f"{path}." for path in (explode.column, *explode.keep.values()))
    return {name: count for name, count in names.items() if name.startswith(roots)}


def knowing(payload: pa.Schema, ways: Iterable[Way]) -> pa.Schema:
    """A payload that knows of more fields than it reads; none that differs from another only in case."""
    met = {".".join(item.keys).lower() for item in payload_fields(payload)}
    more = []
    for path in sorted(".".join(way) for way in ways):
        if path.lower() not in met:
            met.add(path.lower())
            # No column has a name with a blank.
            more.append(PayloadField(f"beside {path}", pa.string(), path=path, skipped=True).to_arrow())
    return pa.schema([*payload, *more])


def only_elements(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """The payload for a contract without new fields: those beside the list are not the table's."""
    if explode.column not in payload.names:
        return payload
    at = payload.get_field_index(explode.column)
    return payload.set(at, replace(payload_field(payload.field(at)), exploded=True).to_arrow())


def explain_explode(explode: Explode, payload: pa.Schema) -> pa.Schema:
    """A payload that reads the list as JSON text while nobody knows its elements."""
    if explode.column in payload.names:
        return payload
    return payload.append(json_field(explode.column))


# ---- the step ----


def exploded(
    explode: Explode, found: Decoded, limits: DecodeLimits, lent: np.ndarray, *, record: bool = False
) -> tuple[Decoded, np.ndarray]:
    """Decoded records as decoded elements, and the positions of the records that have none.

    `lent`: bytes that each row takes from beside the value, by the position of its record.
    `record`: the rows have their record with them.
    """
    found = _light(explode, _narrow(explode, _told(explode, found), limits.rows), limits.repeated_bytes, lent)
    index, lists = found.index.to_numpy(), _lists(explode, found.rows)
    counts, shown = _shown(explode, found)
    parents = np.repeat(np.arange(len(index)), shown)
    nth = np.arange(len(parents)) - np.repeat(np.cumsum(shown) - shown, shown)
    blank = counts[parents] == 0
    kept = _kept(explode, found.rows)
    columns = [found.rows[name].take(pa.array(parents)) for name in kept]
    if (texts := _rescued_of_elements(found.rows, parents, nth, blank)) is not None:
        columns[kept.index(RESCUED.name)] = _joined(columns[kept.index(RESCUED.name)], texts)
    columns += [pa.array(nth, pa.int64(), mask=blank)] if explode.position else []
    columns += _elements(lists, parents, nth, blank) if lists is not None else []
    schema = flat(explode, found.rows.schema, record=record)
    columns += [_records(found.rows, schema.field(-1).type, parents)] if record else []
    rows = pa.Table.from_arrays(columns, schema=schema)
    empty = np.unique(index[np.bincount(index, shown)[index] == 0])  # few, unlike all of `index[parents]`
    return replace(found, rows=rows, index=pa.array(index[parents])), empty


def _kept(explode: Explode, rows: pa.Table) -> list[str]:
    return [item.name for item in rows.schema if _is_kept(explode, item)]


def _shown(explode: Explode, found: Decoded) -> tuple[np.ndarray, np.ndarray]:
    """How many elements each list has, and how many rows it makes."""
    lists = _lists(explode, found.rows)
    counts = _lengths(lists) if lists is not None else np.zeros(len(found.index), np.int64)
    return counts, np.maximum(counts, 1) if explode.empty == "row" else counts


def _records(rows: pa.Table, kind: pa.DictionaryType, parents: np.ndarray) -> pa.DictionaryArray:
    """The record of each row; no value is copied."""
    fields = list(kind.value_type)
    there = [rows[item.name] if item.name in rows.column_names else pa.nulls(len(rows)) for item in fields]
    whole = pa.StructArray.from_arrays([_whole(each) for each in there], fields=fields)
    return pa.DictionaryArray.from_arrays(pa.array(parents, pa.int64()), whole)


def _lists(explode: Explode, rows: pa.Table) -> pa.ListArray | None:
    if explode.column not in rows.column_names or not pa.types.is_list(rows[explode.column].type):
        return None
    return _whole(rows[explode.column])


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


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
    """What is rescued of each row's element; None where nothing is rescued of any."""
    name = next((item.name for item in payload_fields(rows.schema) if item.elements_of), None)
    if name is None or rows[name].null_count == len(rows):
        return None
    lists = _whole(rows[name])
    at = lists.offsets.to_numpy()[parents] + nth
    nothing = blank | lists.is_null().to_numpy(zero_copy_only=False)[parents]
    return lists.values.take(pa.array(at, pa.int64(), mask=nothing))


def _joined(records: pa.ChunkedArray, elements: pa.StringArray) -> pa.Array:
    """Two columns of JSON objects as one: `{"a":1}` and `{"b":2}` are `{"a":1,"b":2}`."""
    one, two = pc.utf8_slice_codeunits(_whole(records), 0, -1), pc.utf8_slice_codeunits(elements, 1)
    return pc.coalesce(pc.binary_join_element_wise(one, two, ","), _whole(records), elements)


def _told(explode: Explode, found: Decoded) -> Decoded:
    """While nobody knows the elements, a record that has some cannot be stored."""
    if explode.column not in found.rows.column_names or not pa.types.is_string(found.rows[explode.column].type):
        return found
    texts = found.rows[explode.column]
    some = pc.fill_null(pc.invert(pc.match_substring_regex(texts, _NOTHING)), False).to_numpy()
    wanted = f"{explode.column}: expected an array with elements of one type, got"
    return _refused(found, some, Reason.TYPE, lambda row: f"{wanted} {texts[row].as_py():.80}")


def _narrow(explode: Explode, found: Decoded, limit: int) -> Decoded:
    """Without the records that would have more rows than one may have."""
    lists, index = _lists(explode, found.rows), found.index.to_numpy()
    if lists is None or not len(lists):
        return found
    totals = np.bincount(index, _lengths(lists))[index].astype(np.int64)
    return _refused(found, totals > limit, Reason.TOO_WIDE, lambda row: f"{totals[row]} rows; the limit is {limit}")


def _light(explode: Explode, found: Decoded, limit: int, lent: np.ndarray) -> Decoded:
    """Without the records whose rows would repeat more bytes than those of one may."""
    index, (_, shown) = found.index.to_numpy(), _shown(explode, found)
    kept = sum((row_bytes(found.rows[name]) for name in _kept(explode, found.rows)), np.zeros(len(index), np.int64))
    return repeating(found, shown, kept + lent[index], limit)


def repeating(found: Decoded, rows: np.ndarray, repeated: np.ndarray, limit: int) -> Decoded:
    """Without the records that repeat too many bytes: each decoded row makes so many `rows`, and each has `repeated`.

    Oversized, where all the others together would be too many.
    """
    index = found.index.to_numpy()
    if not len(index):
        return found
    counts, totals = (np.bincount(index, each).astype(np.int64) for each in (rows, rows * repeated))

    def detail(row: int) -> str:
        at = index[row]
        return (
            f"{counts[at]} rows that repeat {totals[at]} bytes of the record; the limit is {limit} "
            "(limits.repeated_bytes)"
        )

    check_capacity(totals[(totals > 0) & (totals <= limit)])
    return _refused(found, (totals > limit)[index], Reason.TOO_BIG, detail)


def _refused(found: Decoded, bad: np.ndarray, reason: Reason, detail: Callable[[int], str]) -> Decoded:
    """Records with a bad row are rejects now."""
    if not bad.any():
        return found
    index, rows = found.index.to_numpy(), np.flatnonzero(bad)
    gone, first = np.unique(index[rows], return_index=True)
    rejects = Rejects([*found.rejects.index], [*found.rejects.reason], [*found.rejects.detail])
    for position, row in zip(gone.tolist(), rows[first].tolist(), strict=True):
        rejects.add(position, reason, detail(row))
    keep = pa.array(~np.isin(index, gone))
    return replace(found, rows=found.rows.filter(keep), index=found.index.filter(keep), rejects=rejects.in_order())
