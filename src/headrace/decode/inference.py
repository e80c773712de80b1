"""Inferred schemas: inferred from values, merged between tasks, turned into columns.

A structure is JSON, so that a task can return it: `{"type": "long"}`, `{"type": "struct", "fields": {…}}`,
`{"type": "list", "element": …}`, `{"type": "map", "value": …}` (only from typed formats); a typed format names its own
type: `{"type": "decimal(9,2)"}`. `{}` means that there was no value. `{"type": "wider", "to": "long"}` requests a wider
type for an existing column. A `big long` is a long that a double cannot hold exactly. A value without any typed value
(`[]`, `{}`, `[null]`) counts as null, so that the result does not depend on the task or batch that reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.payload_field import dated_field, is_json_text, json_field, payload_field
from headrace.delta.schema import reserved
from headrace.delta.type_widening import common_type, widens
from headrace.engine import duck
from headrace.errors import UsageError
from headrace.spec.types import parse_type, type_name

Structure = dict[str, Any]
Known = Mapping[str, pa.Field | None]

KEYS = 200  # distinct keys of a nested object above which it counts as a map and is stored as text

NULL: Structure = {"type": "null"}
JSON: Structure = {"type": "json"}
BIG_LONG: Structure = {"type": "big long"}
WIDER = "wider"
_MANY = 32
EXACT = 2**53  # integers up to here, of either sign, are exact as doubles

_CALLED = {
    "struct": "object",
    "list": "array",
    "long": "integer",
    "big long": "integer beyond 2^53",
    "double": "fraction",
}
_MANY_KEYS = f"more than {KEYS} keys"

_REFUSED = re.compile(r"[ ,;{}()\n\t=]")  # characters that Delta does not allow in column names
_SEEN_AS = {
    "NULL": "null",
    "UBIGINT": "long",
    "BIGINT": "long",
    "HUGEINT": "long",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "VARCHAR": "string",
    "JSON": "json",
}
_ARROW = {
    "long": pa.int64(),
    "big long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}
_NUMBERS: dict[frozenset[str], Structure] = {
    frozenset({"long", "double"}): {"type": "double"},
    frozenset({"long", "big long"}): BIG_LONG,
}
# DuckDB does not report integers that a double cannot hold (beyond 64 bits it reports DOUBLE), and reports `{}` as a
# conflict.
_LARGE_INTEGER = r"[:\[,]\s*-?(9\d{15}|\d{17})"
_MISLEADING = _LARGE_INTEGER + r"|\{\s*\}"


def name_fits(name: str) -> bool:
    """Whether a field's name can be the name of a column."""
    return bool(name) and len(name) <= 255 and not reserved(name) and not _REFUSED.search(name)


def struct(fields: Mapping[str, Structure]) -> Structure:
    """The structure of an object."""
    return {"type": "struct", "fields": dict(fields)}


def of(value: Mapping[str, object]) -> Structure:
    """The structure of one JSON object, as Python parses it."""
    return _typed(_of(value))


def _of(value: object) -> Structure:
    if isinstance(value, dict):
        return struct({key: _of(item) for key, item in value.items()})
    if isinstance(value, list):
        return {"type": "list", "element": reduce(_merge_value, map(_of, _representatives(value)), NULL)}
    if value is None:
        return NULL
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, str):
        return {"type": "string"}
    if isinstance(value, int):
        return {"type": "long"} if -EXACT <= value <= EXACT else BIG_LONG
    return {"type": "double"}


def _representatives(values: list[object]) -> Iterable[object]:
    """Reduce many values to those that can have different structures.

    These are one value of each scalar type, the smallest and largest integer, one empty array, one empty object and all
    other arrays and objects.
    """
    if len(values) < _MANY:
        return values
    few: dict[object, object] = {type(value): value for value in values if type(value) not in (dict, list, int)}
    integers = [value for value in values if type(value) is int]
    few |= dict(zip("-+", (min(integers), max(integers)), strict=True)) if integers else {}
    few |= {(type(value), "empty"): value for value in values if isinstance(value, dict | list) and not value}
    return [*few.values(), *(value for value in values if isinstance(value, dict | list) and value)]


def _typed(structure: Structure) -> Structure:
    """An object's structure, with null for every field without a typed value."""
    return struct({name: _typed_value(item) for name, item in structure["fields"].items()})


def _typed_value(structure: Structure) -> Structure:
    kind = _kind(structure)
    if kind == "struct":
        whole = _typed(structure)
        return NULL if all(item == NULL for item in whole["fields"].values()) else whole
    if kind == "list":
        element = _typed_value(structure["element"])
        return NULL if element == NULL else {"type": "list", "element": element}
    return structure


def structure_for(columns: Iterable[pa.Field]) -> Structure:
    """The structure that requests columns of exactly these types."""
    return struct({item.name: _structure_for(item) for item in columns})


def _structure_for(item: pa.Field) -> Structure:
    kind = item.type
    if is_json_text(item):
        return JSON
    if pa.types.is_struct(kind):
        return structure_for(kind)
    if pa.types.is_list(kind):
        return {"type": "list", "element": _structure_for(kind.value_field)}
    return (
        {"type": "map", "value": _structure_for(kind.item_field)}
        if pa.types.is_map(kind)
        else {"type": type_name(kind)}
    )


def big_longs(columns: Iterable[tuple[str, pa.Array | pa.ChunkedArray]]) -> Structure:
    """The paths of integers that a double cannot hold, in columns by name; `{}` if there are none."""
    parts = {name: part for name, values in columns if (part := _big_longs(values))}
    return struct(parts) if parts else {}


def _big_longs(values: pa.Array | pa.ChunkedArray) -> Structure:
    kind = values.type
    if isinstance(values, pa.ChunkedArray) and pa.types.is_nested(kind):
        values = values.combine_chunks()
    if pa.types.is_int64(kind):
        ends = pc.min_max(values)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return BIG_LONG if low is not None and (low < -EXACT or high > EXACT) else {}
    if pa.types.is_struct(kind):
        return big_longs(zip([item.name for item in kind], values.flatten(), strict=True))
    if pa.types.is_list(kind):
        element = _big_longs(values.flatten())
        return {"type": "list", "element": element} if element else {}
    if pa.types.is_map(kind):
        value = _big_longs(values.items)
        return {"type": "map", "value": value} if value else {}
    return {}


def infer(values: pa.StringArray) -> Structure:
    """The merged structure of valid values, from their few distinct shapes."""
    if not len(values):
        return {}
    usual, odd, _ = _by_shape(values, "DISTINCT")
    return merge_all([*map(_of_shape, usual.to_pylist()), *odd])


def distinct(values: pa.StringArray) -> tuple[list[Structure], np.ndarray]:
    """The distinct structures of valid values, and for each value the number of its structure."""
    usual, odd, is_odd = _by_shape(values, "ALL")
    codes = usual.dictionary_encode()
    structures = [*map(_of_shape, codes.dictionary.to_pylist()), *odd]
    which = np.empty(len(values), np.int64)
    which[~is_odd] = codes.indices.to_numpy()
    which[is_odd] = len(codes.dictionary) + np.arange(len(odd))
    return structures, which


def _by_shape(values: pa.StringArray, which: str) -> tuple[pa.StringArray, list[Structure], np.ndarray]:
    """DuckDB's shapes of most values, the structures of the others, and which values these are."""
    rare = pc.match_substring_regex(values, _MISLEADING)
    shapes = duck.plan_of_query(
        f"SELECT {which} CAST(json_structure(v) AS VARCHAR) AS shape FROM texts",  # noqa: S608 - DISTINCT or ALL
        texts=pa.table({"v": values.filter(pc.invert(rare))}),
    )
    odd = [of(json.loads(text, parse_int=_integer)) for text in values.filter(rare).to_pylist()]
    return shapes["shape"].combine_chunks(), odd, rare.to_numpy(zero_copy_only=False)


def _of_shape(shape: str) -> Structure:
    return _typed(_from_duck(json.loads(shape)))


def _integer(text: str) -> int:
    return 2**64 if len(text) > 64 else int(text)  # any integer that a double cannot hold


def _from_duck(shape: Any) -> Structure:
    if isinstance(shape, dict):
        return struct({key: _from_duck(item) for key, item in shape.items()})
    if isinstance(shape, list):
        return {"type": "list", "element": _from_duck(shape[0]) if shape else NULL}
    return {"type": _SEEN_AS.get(shape, "json")}


def may_hold_big_longs(values: pa.BinaryArray) -> np.ndarray:
    """Which JSON texts may have an integer that a double cannot hold, by its digits: never too few."""
    large: np.ndarray = pc.match_substring_regex(values, _LARGE_INTEGER).to_numpy(zero_copy_only=False)
    return large


def holds_double(structure: Structure) -> bool:
    """Whether values, at any depth, are doubles."""
    return _kind(structure) == "double" or any(map(holds_double, _parts(structure)))


def merge_all(structures: Iterable[Structure]) -> Structure:
    """Merge several structures.

    They are merged in pairs: one after the other, n structures with different fields would copy n²/2 fields.
    """
    merged = list(structures)
    while len(merged) > 1:
        rest = merged[len(merged) // 2 * 2 :]
        merged = [*map(merge_inferred, merged[::2], merged[1::2]), *rest]
    return merge_inferred({}, merged[0]) if merged else {}


def merge_inferred(one: Structure, two: Structure) -> Structure:
    """A structure for both: long and double make double, objects are united, other conflicts become JSON text.

    A double and a long that it cannot hold are a conflict, too.
    """
    if _kind(one) == _kind(two) == "struct":
        return struct(_united(one["fields"], two["fields"]))
    return _merge_value(one, two)


def _merge_value(one: Structure, two: Structure) -> Structure:
    kinds = {_kind(one), _kind(two)}
    if "null" in kinds:
        return (two if _kind(one) == "null" else one) or NULL
    if kinds == {"struct"}:
        fields = _united(one["fields"], two["fields"])
        return {**JSON, "why": [_MANY_KEYS]} if len(fields) > KEYS else struct(fields)
    if kinds == {"list"}:
        return {"type": "list", "element": _merge_value(one["element"], two["element"])}
    if "map" in kinds and kinds <= {"map", "struct"}:
        return {"type": "map", "value": _merge_value(_entry(one), _entry(two))}
    if WIDER in kinds:
        return _wider(one, two)
    if len(kinds) == 1 and kinds != {"json"}:
        return one
    whys = sorted({*_conflict_types(one), *_conflict_types(two)})
    return _NUMBERS.get(frozenset(kinds)) or ({**JSON, "why": whys} if whys else JSON)


def _conflict_types(structure: Structure) -> list[str]:
    """Names of the types in conflict, for messages."""
    kind = _kind(structure)
    return structure.get("why", []) if kind == "json" else [_CALLED.get(kind, kind)]


def holds_json(structure: Structure) -> bool:
    """Whether values, at any depth, can only be stored as JSON text."""
    return _kind(structure) == "json" or any(map(holds_json, _parts(structure)))


def _parts(structure: Structure) -> list[Structure]:
    inner = (structure[key] for key in ("element", "value") if key in structure)
    return [*structure.get("fields", {}).values(), *inner]


def text_reasons(structure: Structure) -> dict[str, str]:
    """Why fields can only be stored as JSON text, by column; `a.b` is a field of an object."""
    reasons: dict[str, str] = {}
    for name, item in structure.get("fields", {}).items():
        if _kind(item) == "struct" and arrow_type(item) is not None:
            reasons |= {f"{name}.{inner}": why for inner, why in text_reasons(item).items()}
        elif _kind(item) != "null" and arrow_type(item) is None:
            reasons[name] = _text_reason(item)
    return reasons


def _text_reason(structure: Structure) -> str:
    kind = _kind(structure)
    if kind == "list":
        return f"arrays whose elements are {_text_reason(structure['element'])}"
    if kind == "map":
        return f"maps whose values are {_text_reason(structure['value'])}"
    if kind == "struct":
        return f"objects with {_MANY_KEYS}" if len(structure["fields"]) > KEYS else "objects without a usable field"
    whys = structure.get("why", [])
    if whys == [_MANY_KEYS]:
        return f"objects with {_MANY_KEYS}"
    return f"of several types: {', '.join(whys)}" if len(whys) > 1 else "of several types"


def _entry(structure: Structure) -> Structure:
    """The common structure of a map's values; an object counts as a map if a map is known."""
    return reduce(_merge_value, structure["fields"].values(), NULL) if "fields" in structure else structure["value"]


def _wider(one: Structure, two: Structure) -> Structure:
    """A request for a wider type wins over the inferred type."""
    types = [parse_type(each["to"]) for each in (one, two) if _kind(each) == WIDER]
    return {"type": WIDER, "to": type_name(reduce(common_type, types))}


def inferred_widening(structure: Structure) -> Structure:
    """The part of a structure that requests wider types."""
    kind = _kind(structure)
    if kind == "struct":
        parts = {name: inferred_widening(item) for name, item in structure["fields"].items()}
        wider = {name: part for name, part in parts.items() if part}
        return struct(wider) if wider else {}
    if kind == "list":
        element = inferred_widening(structure["element"])
        return {"type": "list", "element": element} if element else {}
    if kind == "map":
        value = inferred_widening(structure["value"])
        return {"type": "map", "value": value} if value else {}
    return structure if kind == WIDER else {}


def _kind(structure: Structure) -> str:
    return str(structure.get("type", "null"))


def _united(one: Mapping[str, Structure], two: Mapping[str, Structure]) -> dict[str, Structure]:
    united = dict(one)
    for key, item in two.items():
        united[key] = _merge_value(united[key], item) if key in united else item
    return united


def certain(structure: Structure) -> Structure:
    """The part with fixed types: a value that fits it adds nothing to it."""
    kind = _kind(structure)
    if kind == "struct":
        parts = {name: certain(item) for name, item in structure["fields"].items()}
        fixed = {name: part for name, part in parts.items() if part}
        return struct(fixed) if fixed and len(parts) <= KEYS else {}
    if kind == "list":
        element = certain(structure["element"])
        return {"type": "list", "element": element} if element else {}
    return structure if kind in _ARROW else {}


def inferred_fields(structure: Structure) -> list[pa.Field]:
    """The columns of an object's structure; fields that were always null or empty have none."""
    columns: dict[str, pa.Field] = {}
    for name, item in structure.get("fields", {}).items():
        if name_fits(name) and name.lower() not in columns and (column := _field(name, item)) is not None:
            columns[name.lower()] = column
    return list(columns.values())


def _field(name: str, structure: Structure) -> pa.Field | None:
    if _kind(structure) == "null":
        return None
    if (kind := arrow_type(structure)) is None:
        return json_field(name)
    return pa.field(name, kind)


def arrow_type(structure: Structure) -> pa.DataType | None:
    """The Arrow type, or None if only JSON text can hold the values (also for lists of such values)."""
    kind = _kind(structure)
    if kind == "struct":
        inner = inferred_fields(structure) if len(structure["fields"]) <= KEYS else []
        return pa.struct(inner) if inner else None
    if kind == "list":
        element = arrow_type(structure["element"])
        return None if element is None else pa.list_(pa.field("element", element))
    if kind == "map":
        value = arrow_type(structure["value"])
        return None if value is None else pa.map_(pa.string(), value)
    return _ARROW.get(kind) or _named(structure.get("to", kind))


def _named(kind: str) -> pa.DataType | None:
    try:
        return parse_type(kind)
    except UsageError:
        return None


def evolve(schema: pa.Schema, structure: Structure) -> pa.Schema:
    """The schema with new fields at every depth; an existing field changes its type only on request."""
    return pa.schema(_grown(list(schema), structure), schema.metadata)


# ---- column limits ----


@dataclass(slots=True)
class ColumnBudget:
    """Number of columns that may be added; nested fields count as columns."""

    left: int
    enough: bool = True

    def take(self, columns: int) -> bool:
        """Take columns from the budget; False if there are not enough."""
        fits = columns <= self.left
        self.left -= columns if fits else 0
        self.enough = self.enough and fits
        return fits


def width(columns: Iterable[pa.Field]) -> int:
    """Number of columns, nested fields included."""
    return sum(1 + width(_inner(item.type)) for item in columns)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _inner(kind.value_type if pa.types.is_list(kind) else kind.item_type)
    return list(kind) if pa.types.is_struct(kind) else []


def by_key(columns: Iterable[pa.Field]) -> Known:
    """Columns by key, in lower case; None if another column reads what is below the key."""
    by_name: dict[str, pa.Field | None] = {}
    for item in columns:
        key, *deeper = payload_field(item).keys
        by_name.setdefault(item.name.lower(), None)
        by_name[key.lower()] = None if deeper else item
    return by_name


def added(columns: Known, structure: Structure) -> int:
    """Number of columns that a structure adds to the existing ones."""
    room = ColumnBudget(2**62)
    admitted(columns, structure, room)
    return 2**62 - room.left


def admitted(columns: Known, structure: Structure, room: ColumnBudget) -> Structure:
    """The part of an object's structure that fits the budget.

    Fields are taken by name, so that the result does not depend on their order.
    """
    fields: Mapping[str, Structure] = structure.get("fields", {})
    parts: dict[str, Structure] = {}
    for name in sorted(fields):
        column = columns.get(name.lower())
        if column is not None:
            parts[name] = _admitted(column.type, fields[name], room)
        elif name.lower() in columns or not name_fits(name) or room.take(_columns(name, fields[name])):
            parts[name] = fields[name]
    return struct({name: parts[name] for name in fields if name in parts})


def _columns(name: str, structure: Structure) -> int:
    return 0 if (column := _field(name, structure)) is None else width([column])


def _admitted(kind: pa.DataType, structure: Structure, room: ColumnBudget) -> Structure:
    if pa.types.is_struct(kind) and _kind(structure) == "struct":
        return admitted(by_key(kind), structure, room)
    if pa.types.is_list(kind) and _kind(structure) == "list":
        return {"type": "list", "element": _admitted(kind.value_type, structure["element"], room)}
    if pa.types.is_map(kind) and _kind(structure) in ("map", "struct"):
        return {"type": "map", "value": _admitted(kind.item_type, _entry(structure), room)}
    return structure


# ---- evolution ----


def _grown(columns: list[pa.Field], structure: Structure) -> list[pa.Field]:
    fields: Mapping[str, Structure] = structure.get("fields", {})
    grown = [_grown_field(item, _at_path(item, fields)) for item in columns]
    # A column with a path occupies the first key of the path.
    taken = {name.lower() for item in columns for name in (item.name, payload_field(item).keys[0])}
    return grown + [item for item in inferred_fields(structure) if item.name.lower() not in taken]


def _at_path(item: pa.Field, fields: Mapping[str, Structure]) -> Structure | None:
    """The structure of a column; for a column with a path, only requests for wider types."""
    *parents, last = payload_field(item).keys
    if not parents:
        return fields.get(last)
    for key in parents:
        fields = fields.get(key, {}).get("fields", {})
    return inferred_widening(fields[last]) if last in fields else None


def _grown_field(item: pa.Field, structure: Structure | None) -> pa.Field:
    if structure is None:
        return item
    grown = _grown_type(item.type, structure)
    if grown is item.type:
        return item
    return (dated_field(item) if pa.types.is_date(item.type) else item).with_type(grown)


def _grown_type(kind: pa.DataType, structure: Structure) -> pa.DataType:
    if pa.types.is_struct(kind) and _kind(structure) == "struct":
        inner = _grown(list(kind), structure)
        return kind if inner == list(kind) else pa.struct(inner)
    if pa.types.is_list(kind) and _kind(structure) == "list":
        element = _grown_field(kind.value_field, structure["element"])
        return kind if element == kind.value_field else pa.list_(element)
    if pa.types.is_map(kind) and _kind(structure) in ("map", "struct"):
        item = _grown_field(kind.item_field, _entry(structure))
        return kind if item == kind.item_field else pa.map_(kind.key_field, item)
    if _kind(structure) == WIDER:
        wide = common_type(kind, parse_type(structure["to"]))
        return wide if widens(kind, wide) else kind
    return kind
