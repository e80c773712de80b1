"""Fit values of typed formats (Avro, Protobuf, MessagePack, plain) to the columns of a payload schema.

A format returns one Arrow table in its natural types; each value is fitted to its column, or its record is rejected.
The rules are those of JSON's exact path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import LIMITS, Decoded, DecodeLimits, NewField, Rejects, new_field_stop, too_many
from headrace.decode.byte_scan import Mask, Numbers
from headrace.decode.coercion import coerced_leaf, unquoted
from headrace.decode.inference import (
    JSON,
    Structure,
    added,
    big_longs,
    by_key,
    evolve,
    merge_inferred,
    name_fits,
    struct,
)
from headrace.decode.json.exact import ABSENT, default_of, inner_default
from headrace.decode.json.template import Path
from headrace.decode.nested import (
    ODD,
    as_struct,
    is_json,
    is_there,
    list_elements,
    map_items,
    map_keys,
    offsets_of,
    plain,
    struct_field,
)
from headrace.decode.payload import Elements, PayloadColumn, PayloadNode, PayloadSchema
from headrace.decode.rescue import outermost, rescued
from headrace.decode.typed.convert import as_python, converted, why
from headrace.decode.typed.maps import check_maps
from headrace.decode.typed.text import as_json
from headrace.reasons import MISFITS, Reason
from headrace.spec.types import is_list, type_name


def fit_values(
    natural: pa.Table,
    at: Numbers,
    layout: PayloadSchema,
    new_field: NewField,
    rejects: Rejects,
    limits: DecodeLimits = LIMITS,
    texts: Mapping[int, Mapping[Path, str]] | None = None,
) -> Decoded:
    """Rows of the layout; `at` has the positions of the natural rows in the input, `rejects` earlier rejects.

    The natural types declare the fields: a new field gets a column with the first valid record, even without a value.
    `texts` are JSON texts of fields that no natural type has, by position in the input: they are rescued.
    """
    fit = _Fit(natural, layout)
    if texts:
        fit.rescued_texts = {
            row: dict(texts[position]) for row, position in enumerate(at.tolist()) if position in texts
        }
    check_maps(fit.whole, fit.rows, limits.keys, fit.refuse)
    columns = [fit.of(each, new_field) for each in layout.columns]
    new_fields = fit.apply_contract(new_field)
    unknown = _asked_by(natural, layout) if new_field == "evolve" and not fit.refused.all() else None
    if unknown and (count := added(by_key(layout.own), unknown)) > limits.new_columns:
        fit.refuse_new(too_many(unknown, count, limits))
        unknown = None
    good = np.flatnonzero(~fit.refused)
    for row in np.flatnonzero(fit.refused).tolist():
        rejects.add(int(at[row]), *fit.errors[row])
    if layout.rescue:
        columns.append(fit.rescued())
    if layout.elements:
        columns.append(fit.rescued_elements)
    if len(good) < len(natural):
        columns = [column.take(pa.array(good)) for column in columns]
    rows = pa.Table.from_arrays(columns, schema=layout.schema)
    rows = layout.with_message(rows, lambda: as_json(fit.whole.take(pa.array(good))))
    ignored = new_fields if new_field in ("ignore", "rescue") else {}
    return Decoded(rows, pa.array(at[good]), rejects.in_order(), unknown, ignored)


def structure_of(kind: pa.DataType) -> Structure:
    """The column of a natural type: integers as long and floats as double, so that a producer may widen them."""
    if pa.types.is_struct(kind):
        # The presence of a message without fields is information.
        return struct({item.name: structure_of(item.type) for item in kind}) if kind.num_fields else JSON
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "list", "element": structure_of(kind.value_type)}
    if pa.types.is_map(kind):
        return {"type": "map", "value": structure_of(kind.item_type)}
    return {"type": _kind_of(kind)}


def _asked_by(natural: pa.Table, layout: PayloadSchema) -> Structure | None:
    """New columns of a writer's schema, whether or not values fill them; None if there are none."""
    structure = _within(structure_of(pa.struct(list(natural.schema))), layout)
    if evolve(layout.own, structure) == layout.own:
        return None
    # Another schema of the batch may have a double for this long.
    big = _within(big_longs(zip(natural.column_names, natural.columns, strict=True)), layout)
    structure = merge_inferred(structure, big) if big else structure
    lacking = {name: item for name, item in structure["fields"].items() if _adds(layout.own, name, item)}
    return struct(lacking) if lacking else None


def _within(structure: Structure, layout: PayloadSchema) -> Structure:
    for step in layout.row_path:
        structure = structure.get("fields", {}).get(step, {})
    return structure


def _adds(own: pa.Schema, name: str, item: Structure) -> bool:
    return bool(evolve(own, struct({name: item})) != own)


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return "null"
    if is_json(kind):
        return "json"
    if pa.types.is_uint64(kind):
        return "decimal(20,0)"
    if pa.types.is_integer(kind):
        return "long"
    if pa.types.is_floating(kind):
        return "double"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_dictionary(kind):
        return _kind_of(kind.value_type)
    return type_name(next((plain for is_a, plain in ODD if is_a(kind)), kind))


class _Fit:
    """Fits one natural table to a layout; collects rejected records with the first reason of each."""

    def __init__(self, natural: pa.Table, layout: PayloadSchema) -> None:
        self.layout = layout
        self.whole = as_struct(natural)
        self.rows = np.arange(len(natural))
        self.refused = np.zeros(len(natural), bool)
        self.errors: dict[int, tuple[Reason, str]] = {}
        self.rescued_texts: dict[int, dict[Path, str]] = {}  # what is rescued of each record
        self.rescued_elements = pa.nulls(len(natural), pa.list_(pa.string()))

    def of(self, column: PayloadColumn, new_field: NewField) -> pa.Array:
        """One column of the payload; values that do not fit are rescued if the column says so."""
        if self.layout.elements and column is self.layout.elements.column:
            return self.exploded_column(self.layout.elements, new_field)
        return self.rescued_column(column) if column.rescued else self.column(column)

    def column(self, column: PayloadColumn) -> pa.Array:
        """One column of the payload, read from its path."""
        values: pa.Array | None = self.whole
        live = np.ones(len(self.rows), bool)
        for depth, key in enumerate(column.path):
            if values is not None and not (pa.types.is_struct(values.type) or pa.types.is_null(values.type)):
                self._refuse_all(values, self.rows, live, ".".join(column.path[:depth]), "an object")
                values = None
            values = None if values is None else struct_field(values, key)
        if values is None:
            return self._absent(column.node, default_of(column), self.rows, live, ".".join(column.path))
        return self._value(values, column.node, self.rows, live, ".".join(column.path))

    def rescued_column(self, column: PayloadColumn) -> pa.Array:
        """The same; a value that does not fit is NULL, and its text is rescued."""
        refused, errors = self.refused, self.errors
        self.refused, self.errors = np.zeros(len(self.rows), bool), {}
        values = self.column(column)
        misfits = np.array([row for row, (reason, _) in self.errors.items() if reason in MISFITS], np.int64)
        self.refused[misfits] = False
        self.errors = {row: error for row, error in self.errors.items() if self.refused[row]} | errors
        self.refused |= refused
        if not len(misfits):
            return values
        self._rescue(column.path, misfits)
        rejected = np.zeros(len(self.rows), bool)
        rejected[misfits] = True
        return pc.if_else(pa.array(rejected), pa.scalar(None, values.type), values)

    def exploded_column(self, elements_of: Elements, new_field: NewField) -> pa.Array:
        """A list whose elements are fitted as records of their own; their rescued values are stored beside it."""
        column = elements_of.column
        values = self._at(column.path)
        if values is None or not is_list(values.type):
            return self.column(column)
        inner, owner = list_elements(values)
        fit = _Fit(_alone(inner, column.path), elements_of.layout)
        columns = [fit.of(each, new_field) for each in elements_of.layout.columns]
        if new_field == "rescue":
            fit.apply_contract(new_field)
        self._refuse_elements(fit, owner, ".".join(column.path))
        offsets, kind, none = offsets_of(values, owner), column.node.type, pa.array(~is_there(values))
        if fit.rescued_texts:
            texts, some = fit.rescued(), np.zeros(len(self.rows), bool)
            some[owner[list(fit.rescued_texts)]] = True
            self.rescued_elements = pa.ListArray.from_arrays(offsets, texts, mask=pa.array(~some))
        elements = columns[0]
        if pa.types.is_struct(kind.value_type):
            null = pa.array(~is_there(inner))
            elements = pa.StructArray.from_arrays(columns, fields=list(kind.value_type), mask=null)
        return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=none)

    def _at(self, path: Path) -> pa.Array | None:
        values: pa.Array | None = self.whole
        for key in path:
            values = struct_field(values, key) if values is not None and pa.types.is_struct(values.type) else None
        return values

    def _refuse_elements(self, fit: _Fit, owner: Numbers, where: str) -> None:
        """Reject records with a rejected element; the detail has the element's position."""
        first = np.searchsorted(owner, owner)
        for row, (reason, detail) in sorted(fit.errors.items()):
            nth = f"{where}[{row - first[row]}]"
            self.refuse(owner[row : row + 1], reason, nth + detail.removeprefix(where))

    def rescued(self) -> pa.Array:
        """The rescued values of every record, as one text each."""
        if not self.rescued_texts:
            return pa.nulls(len(self.rows), pa.string())
        paths = ((parts, outermost(list(parts))) for parts in self.rescued_texts.values())
        texts = pa.array([rescued({path: parts[path] for path in outer}) for parts, outer in paths], pa.string())
        place = np.full(len(self.rows), -1, np.int64)
        place[list(self.rescued_texts)] = np.arange(len(self.rescued_texts))
        return texts.take(pa.array(place, mask=place < 0))

    def _rescue(self, path: Path, rows: Numbers) -> None:
        """Rescue the text at a path, or where the path ends."""
        values, depth = self.whole, 0
        while (
            depth < len(path)
            and pa.types.is_struct(values.type)
            and (below := struct_field(values, path[depth])) is not None
        ):
            values, depth = below, depth + 1
        values = values.take(pa.array(rows))
        texts = (plain(values) if is_json(values.type) else as_json(values)).to_pylist()
        for row, text in zip(rows.tolist(), texts, strict=True):
            self.rescued_texts.setdefault(row, {})[path[:depth]] = "null" if text is None else text

    def apply_contract(self, new_field: NewField) -> dict[str, int]:
        """Apply the contract to new fields; returns those of valid records, with their number of records."""
        names: dict[str, int] = {}
        for where, name, node, values, rows, place in self._new(self.whole, self.layout.root, self.rows, "", ()):
            there = np.unique(rows[is_there(values) & ~self.refused[rows]])
            if not len(there):
                continue
            known = {key.lower() for key in node.children}
            full = where + name
            if new_field == "rescue" and self.layout.elements and place == self.layout.elements.column.path:
                continue  # reported element by element
            if name.lower() in known:
                self.refuse(there, Reason.BAD_NAME, f"{full[:300]}: differs from a known field only in case")
            elif node.open and self.layout.exploded:
                names[full] = len(there)
            elif new_field == "rescue" and not node.open:
                self._rescue(place, there)
            elif new_field == "stop":
                raise new_field_stop(full)
            elif new_field == "reject":
                self.refuse(there, Reason.NEW_FIELD, f"{full}: unknown field, and the contract is new_field: reject")
            elif new_field == "evolve" and not name_fits(name):
                self.refuse(there, Reason.BAD_NAME, f"{full[:300]} cannot be a column's name")
            else:
                names[full] = len(there)
        return names

    def refuse_new(self, detail: str) -> None:
        """Reject every record with a new field, as there are too many."""
        for _, _, _, values, rows, _ in self._new(self.whole, self.layout.root, self.rows, "", ()):
            self.refuse(rows[is_there(values)], Reason.TOO_WIDE, detail)

    def _new(
        self, values: pa.Array, node: PayloadNode, rows: Numbers, where: str, place: Path, inside: bool = False
    ) -> Iterator[tuple[str, str, PayloadNode, pa.Array, Numbers, Path]]:
        """New fields; one inside an array or a map has the path of the array or map."""
        if node.kind == "list" and is_list(values.type):
            inner, owner = list_elements(values)
            yield from self._new(inner, node.children["*"], rows[owner], where, place, True)
        elif node.kind == "map" and pa.types.is_map(values.type):
            inner, owner = map_items(values)
            yield from self._new(inner, node.children["*"], rows[owner], where, place, True)
        elif node.kind == "object" and pa.types.is_struct(values.type):
            for item in values.type:
                inner = struct_field(values, item.name)
                deeper = place if inside else (*place, item.name)
                if item.name in node.children:
                    known = node.children[item.name]
                    yield from self._new(inner, known, rows, f"{where}{item.name}.", deeper, inside)
                else:
                    yield where, item.name, node, inner, rows, deeper

    # ---- values ----

    def _value(self, values: pa.Array, node: PayloadNode, rows: Numbers, live: Mask, where: str) -> pa.Array:
        """Values of a node; a value that does not fit is NULL, and its record is rejected."""
        text = is_json(values.type)
        values = plain(values)
        valid = is_there(values)
        if not node.nullable and (missing := live & ~valid).any():
            self.refuse(rows[missing], Reason.MISSING, f"{where}: required, and absent or null")
        live = live & valid
        if node.kind == "json":
            return values if text else as_json(values)
        if pa.types.is_null(values.type):
            return pa.nulls(len(values), node.type)
        if node.coerce:
            return self._coerced(values, node, rows, live, where, text)
        if node.kind == "object":
            return self._object(values, node, rows, live, where)
        if node.kind == "list":
            return self._list(values, node, rows, live, where)
        if node.kind == "map":
            return self._map(values, node, rows, live, where)
        return self._leaf(values, node, rows, live, where)

    def _absent(self, node: PayloadNode, default: Any, rows: Numbers, live: Mask, where: str) -> pa.Array:
        if default is not ABSENT:
            return pa.array([default] * len(rows), node.type)
        if not node.nullable:
            self.refuse(rows[live], Reason.MISSING, f"{where}: required, and absent or null")
        return pa.nulls(len(rows), node.type)

    def _object(self, values: pa.Array, node: PayloadNode, rows: Numbers, live: Mask, where: str) -> pa.Array:
        if not pa.types.is_struct(values.type):
            return self._refuse_all(values, rows, live, where, "an object", node)
        names = {item.name for item in values.type}
        columns = []
        for key, child in node.children.items():
            inner = f"{where}.{key}"
            columns.append(
                self._value(struct_field(values, key), child, rows, live, inner)
                if key in names
                else self._absent(child, inner_default(child, key), rows, live, inner)
            )
        return pa.StructArray.from_arrays(columns, fields=list(node.type), mask=pa.array(~is_there(values)))

    def _list(self, values: pa.Array, node: PayloadNode, rows: Numbers, live: Mask, where: str) -> pa.Array:
        if not is_list(values.type):
            return self._refuse_all(values, rows, live, where, "an array", node)
        inner, owner = list_elements(values)
        elements = self._value(inner, node.children["*"], rows[owner], live[owner], f"{where}[]")
        return pa.ListArray.from_arrays(
            offsets_of(values, owner), elements, type=node.type, mask=pa.array(~is_there(values))
        )

    def _map(self, values: pa.Array, node: PayloadNode, rows: Numbers, live: Mask, where: str) -> pa.Array:
        if not pa.types.is_map(values.type):
            return self._refuse_all(values, rows, live, where, "an object", node)
        items, owner = map_items(values)
        keys = map_keys(values)
        if not pa.types.is_string(keys.type):
            keys = keys.cast(pa.string())
        map_values = self._value(items, node.children["*"], rows[owner], live[owner], f"{where}.*")
        offsets = offsets_of(values, owner).to_pylist()
        spread = [
            None if is_null else begin for is_null, begin in zip((~is_there(values)).tolist(), offsets, strict=False)
        ]
        return pa.MapArray.from_arrays(pa.array([*spread, offsets[-1]], pa.int32()), keys, map_values, type=node.type)

    def _coerced(self, values: pa.Array, node: PayloadNode, rows: Numbers, live: Mask, where: str, text: bool) -> Any:
        """Values of a coerced leaf; `text`: they are JSON text."""
        if pa.types.is_string(node.type):
            is_plain = pa.types.is_string(values.type) and not text
            return values if is_plain else unquoted(values if text else as_json(values), rows, where, self.refuse)
        if text:
            return coerced_leaf(values, node, rows, where, self.refuse)
        unit = node.coerce if pa.types.is_integer(values.type) else ""
        return self._leaf(values, replace(node, coerce="", unit=unit), rows, live, where)

    def _leaf(self, values: pa.Array, node: PayloadNode, rows: Numbers, live: Mask, where: str) -> pa.Array:
        column = converted(values, node)
        if column is None:
            return self._refuse_all(values, rows, live, where, _expected(values.type, node), node)
        for at in np.flatnonzero(live & ~is_there(column)).tolist():
            if not self.refused[rows[at]]:
                self.refuse(rows[at : at + 1], *why(as_python(values[at]), values.type, node, where))
        return column

    # ---- rejects ----

    def refuse(self, rows: Any, reason: Reason, detail: str) -> None:
        """Reject records, unless they have an earlier reason."""
        for row in np.unique(rows).tolist():
            self.refused[row] = True
            self.errors.setdefault(row, (reason, detail))

    def _refuse_all(
        self, values: pa.Array, rows: Numbers, live: Mask, where: str, expected: str, node: PayloadNode | None = None
    ) -> pa.Array:
        expected = expected or type_name(node.type if node else pa.null())
        what = f"{where}: expected {expected}, saw {_type_text(values.type)}"
        self.refuse(rows[live & is_there(values)], Reason.TYPE, what)
        return pa.nulls(len(values), node.type if node else pa.null())


def _alone(values: pa.Array, path: Path) -> pa.Table:
    """Values as records with nothing else."""
    for key in reversed(path[1:]):
        values = pa.StructArray.from_arrays([values], [key])
    return pa.table({path[0]: values})


def _expected(kind: pa.DataType, node: PayloadNode) -> str:
    """The expected value of a column, if more than its type."""
    epoch = pa.types.is_integer(kind) and pa.types.is_timestamp(node.type) and node.type.tz is not None
    return "timestamp (for numbers, declare the column's unit: s, ms, us or ns)" if epoch else ""


def _type_text(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "an object"
    return "an array" if is_list(kind) else "a map" if pa.types.is_map(kind) else str(kind)


def sample(kind: pa.DataType) -> Any:
    """A value of a natural type with every field filled."""
    if pa.types.is_struct(kind):
        return {item.name: sample(item.type) for item in kind}
    if is_list(kind):
        return [sample(kind.value_type)]
    if pa.types.is_map(kind):
        return [("", sample(kind.item_type))]
    if pa.types.is_null(kind):
        return None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return b"" if pa.types.is_binary(kind) else ""
    return Decimal(0) if pa.types.is_decimal(kind) else 0
