"""Values that bring their own types (Avro, Protobuf, MessagePack, plain ones) into the rows of a payload schema.

A format hands over one Arrow table in its natural types; here every value is fitted to the column that wants it, or
its record is a reject. What JSON may do, a typed value may: the rules are those of the exact way of JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import duck
from headrace.decode.contract import Decoded, NewField, Rejects
from headrace.decode.exact import ABSENT, default_of, inner_default
from headrace.decode.layout import Column, Layout, Node
from headrace.decode.leaves import Unfit, leaf_reader, proven, seen
from headrace.decode.rescue import Path, outermost, rescued
from headrace.decode.scan import Mask, Numbers, bools
from headrace.decode.structure import Structure, arrow_type, evolve, merge, name_fits, struct
from headrace.errors import ContractBroken
from headrace.reasons import MISFITS, Reason
from headrace.tables.schema import type_name

_EPOCH = ("s", "ms", "us", "ns")
_ODD = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
)


def fitted(natural: pa.Table, at: Numbers, layout: Layout, new_field: NewField, rejects: Rejects) -> Decoded:
    """Rows of the layout; `at` are the natural rows' positions in the input, `rejects` what was refused before."""
    fit = _Fit(natural, layout)
    read = fit.rescued_column if layout.rescue == "type" else fit.column
    columns = [read(column) for column in layout.columns]
    strangers = fit.strangers(new_field)
    good = np.flatnonzero(~fit.refused)
    for row in np.flatnonzero(fit.refused).tolist():
        rejects.add(int(at[row]), *fit.verdicts[row])
    if layout.rescue:
        columns.append(fit.rescued())
    if len(good) < len(natural):
        columns = [column.take(pa.array(good)) for column in columns]
    rows = pa.Table.from_arrays(columns, schema=layout.schema)
    rows = layout.with_message(rows, lambda: as_json(fit.whole.take(pa.array(good))))
    unknown = _unknown(layout, strangers) if new_field == "evolve" else None
    ignored = {name: count for name, (count, _) in strangers.items()} if new_field == "ignore" else {}
    return Decoded(rows, pa.array(at[good]), rejects.in_order(), unknown, ignored)


def joined(parts: list[Decoded], schema: pa.Schema) -> Decoded:
    """Parts of one input, decoded apart, as one answer in the order of the input."""
    rejects, ignored, unknown = Rejects(), Counter[str](), None
    for part in parts:
        for refusal in zip(part.rejects.index, part.rejects.reason, part.rejects.detail, strict=True):
            rejects.add(*refusal)
        ignored.update(part.ignored)
        if part.unknown:
            unknown = merge(unknown, part.unknown) if unknown else part.unknown
    filled = [part.rows for part in parts if len(part.index)] or [part.rows for part in parts]
    rows = pa.concat_tables(filled) if filled else schema.empty_table()
    index = np.concatenate([part.index.to_numpy() for part in parts]) if parts else np.zeros(0, np.int64)
    if len(parts) > 1:
        order = np.argsort(index, kind="stable")
        index = index[order]
        rows = rows.take(pa.array(order)) if rows.column_names else rows
    return Decoded(rows.combine_chunks(), pa.array(index), rejects.in_order(), unknown, dict(ignored))


def structure_of(kind: pa.DataType) -> Structure:
    """The column a natural type asks for: integers as long and floats as double, so that a producer may widen them."""
    if pa.types.is_struct(kind):
        return struct({item.name: structure_of(item.type) for item in kind})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "list", "element": structure_of(kind.value_type)}
    return {"type": _kind_of(kind)}


def asked_by(natural: pa.Schema, layout: Layout) -> Structure | None:
    """The columns that a writer's schema asks for, whether or not values fill them; None when all are there."""
    said = structure_of(pa.struct(list(natural)))
    return None if evolve(layout.own, said) == layout.own else said


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
    if pa.types.is_map(kind):
        value = arrow_type(structure_of(kind.item_type))
        return "json" if value is None else f"map<string,{type_name(value)}>"
    if pa.types.is_dictionary(kind):
        return _kind_of(kind.value_type)
    return type_name(next((plain for is_a, plain in _ODD if is_a(kind)), kind))


class _Fit:
    """One natural table on its way into a layout, and the records refused so far with the first reason of each."""

    def __init__(self, natural: pa.Table, layout: Layout) -> None:
        self.layout = layout
        self.whole = _as_struct(natural)
        self.rows = np.arange(len(natural))
        self.refused = np.zeros(len(natural), bool)
        self.verdicts: dict[int, tuple[Reason, str]] = {}
        self.kept: dict[int, dict[Path, str]] = {}  # what is rescued of each record

    def column(self, column: Column) -> pa.Array:
        """One column of the payload, out of the place its path names."""
        values: pa.Array | None = self.whole
        live = np.ones(len(self.rows), bool)
        for depth, key in enumerate(column.path):
            if values is not None and not (pa.types.is_struct(values.type) or pa.types.is_null(values.type)):
                self._refuse_all(values, self.rows, live, ".".join(column.path[:depth]), "an object")
                values = None
            values = None if values is None else _child(values, key)
        if values is None:
            return self._absent(column.node, default_of(column), self.rows, live, ".".join(column.path))
        return self._value(values, column.node, self.rows, live, ".".join(column.path))

    def rescued_column(self, column: Column) -> pa.Array:
        """The same; where a value does not fit and may be NULL, it is, and its text is kept."""
        if not column.node.nullable:
            return self.column(column)
        refused, verdicts = self.refused, self.verdicts
        self.refused, self.verdicts = np.zeros(len(self.rows), bool), {}
        made = self.column(column)
        misfits = np.array([row for row, (reason, _) in self.verdicts.items() if reason in MISFITS], np.int64)
        self.refused[misfits] = False
        self.verdicts = {row: said for row, said in self.verdicts.items() if self.refused[row]} | verdicts
        self.refused |= refused
        if not len(misfits):
            return made
        self._keep(column.path, misfits)
        gone = np.zeros(len(self.rows), bool)
        gone[misfits] = True
        return pc.if_else(pa.array(gone), pa.scalar(None, made.type), made)

    def rescued(self) -> pa.Array:
        """What is kept of every record, as one text."""
        if not self.kept:
            return pa.nulls(len(self.rows), pa.string())
        texts = []
        for row in range(len(self.rows)):
            parts = self.kept.get(row, {})
            texts.append(rescued({path: parts[path] for path in outermost(list(parts))}))
        return pa.array(texts, pa.string())

    def _keep(self, path: Path, rows: Numbers) -> None:
        """The text at a path, or where the way there ends."""
        values, depth = self.whole, 0
        while (
            depth < len(path) and pa.types.is_struct(values.type) and (below := _child(values, path[depth])) is not None
        ):
            values, depth = below, depth + 1
        texts = as_json(_plain(values.take(pa.array(rows)))).to_pylist()
        for row, text in zip(rows.tolist(), texts, strict=True):
            self.kept.setdefault(row, {})[path[:depth]] = "null" if text is None else text

    def strangers(self, new_field: NewField) -> dict[str, tuple[int, Structure]]:
        """New fields that good records hold, how many and of what structure; the contract's answer given."""
        found: dict[str, tuple[int, Structure]] = {}
        for where, name, node, values, rows, place in self._new(self.whole, self.layout.root, self.rows, "", ()):
            there = np.unique(rows[_valid(values) & ~self.refused[rows]])
            if not len(there):
                continue
            known = {key.lower() for key in node.children}
            full = where + name
            if name.lower() in known:
                self._refuse(there, Reason.BAD_NAME, f"{full[:300]}: differs from a known field only in case")
            elif new_field == "rescue":
                self._keep(place, there)
            elif new_field == "stop":
                raise ContractBroken(f"A record brings the new field '{full}', and the contract says: stop.")
            elif new_field == "reject":
                self._refuse(there, Reason.NEW_FIELD, f"{full}: the contract knows no such field")
            elif new_field == "evolve" and not name_fits(name):
                self._refuse(there, Reason.BAD_NAME, f"{full[:300]} cannot be a column's name")
            else:
                found[full] = (len(there), structure_of(values.type))
        return found

    def _new(
        self, values: pa.Array, node: Node, rows: Numbers, where: str, place: Path, inside: bool = False
    ) -> Iterator[tuple[str, str, Node, pa.Array, Numbers, Path]]:
        """New fields; the place of one inside an array or a map is that of the array or map."""
        if node.kind == "list" and _is_list(values.type):
            inner, owner = _elements(values)
            yield from self._new(inner, node.children["*"], rows[owner], where, place, True)
        elif node.kind == "map" and pa.types.is_map(values.type):
            inner, owner = _map_items(values)
            yield from self._new(inner, node.children["*"], rows[owner], where, place, True)
        elif node.kind == "object" and pa.types.is_struct(values.type):
            for item in values.type:
                inner = _child(values, item.name)
                deeper = place if inside else (*place, item.name)
                if item.name in node.children:
                    known = node.children[item.name]
                    yield from self._new(inner, known, rows, f"{where}{item.name}.", deeper, inside)
                else:
                    yield where, item.name, node, inner, rows, deeper

    # ---- values ----

    def _value(self, values: pa.Array, node: Node, rows: Numbers, live: Mask, where: str) -> pa.Array:
        """Values of a place as its node wants them; what does not fit is NULL here and refused."""
        text = is_json(values.type)
        values = _plain(values)
        valid = _valid(values)
        if not node.nullable and (gone := live & ~valid).any():
            self._refuse(rows[gone], Reason.MISSING, f"{where}: required, and absent or null")
        live = live & valid
        if node.kind == "json":
            return values if text else as_json(values)
        if pa.types.is_null(values.type):
            return pa.nulls(len(values), node.type)
        if node.kind == "object":
            return self._object(values, node, rows, live, where)
        if node.kind == "list":
            return self._list(values, node, rows, live, where)
        if node.kind == "map":
            return self._map(values, node, rows, live, where)
        return self._leaf(values, node, rows, live, where)

    def _absent(self, node: Node, default: Any, rows: Numbers, live: Mask, where: str) -> pa.Array:
        if default is not ABSENT:
            return pa.array([default] * len(rows), node.type)
        if not node.nullable:
            self._refuse(rows[live], Reason.MISSING, f"{where}: required, and absent or null")
        return pa.nulls(len(rows), node.type)

    def _object(self, values: pa.Array, node: Node, rows: Numbers, live: Mask, where: str) -> pa.Array:
        if not pa.types.is_struct(values.type):
            return self._refuse_all(values, rows, live, where, "an object", node)
        names = {item.name for item in values.type}
        made = []
        for key, child in node.children.items():
            inner = f"{where}.{key}"
            made.append(
                self._value(_child(values, key), child, rows, live, inner)
                if key in names
                else self._absent(child, inner_default(child, key), rows, live, inner)
            )
        return pa.StructArray.from_arrays(made, fields=list(node.type), mask=pa.array(~_valid(values)))

    def _list(self, values: pa.Array, node: Node, rows: Numbers, live: Mask, where: str) -> pa.Array:
        if not _is_list(values.type):
            return self._refuse_all(values, rows, live, where, "an array", node)
        inner, owner = _elements(values)
        made = self._value(inner, node.children["*"], rows[owner], live[owner], f"{where}[]")
        return pa.ListArray.from_arrays(_offsets(values, owner), made, type=node.type, mask=pa.array(~_valid(values)))

    def _map(self, values: pa.Array, node: Node, rows: Numbers, live: Mask, where: str) -> pa.Array:
        if not pa.types.is_map(values.type):
            return self._refuse_all(values, rows, live, where, "an object", node)
        items, owner = _map_items(values)
        keys = _map_keys(values)
        if not pa.types.is_string(keys.type):
            keys = keys.cast(pa.string())
        self._refuse_twins(keys, rows[owner], owner, where)
        made = self._value(items, node.children["*"], rows[owner], live[owner], f"{where}.*")
        offsets = _offsets(values, owner).to_pylist()
        spread = [None if gone else begin for gone, begin in zip((~_valid(values)).tolist(), offsets, strict=False)]
        return pa.MapArray.from_arrays(pa.array([*spread, offsets[-1]], pa.int32()), keys, made, type=node.type)

    def _refuse_twins(self, keys: pa.Array, rows: Numbers, owner: Numbers, where: str) -> None:
        pairs = pa.table({"owner": pa.array(owner), "key": keys, "row": pa.array(rows)})
        twice = pairs.group_by(["owner", "key"]).aggregate([("row", "count"), ("row", "min")])
        found = twice.filter(pc.greater(twice["row_count"], 1))["row_min"].to_numpy()
        if len(found):
            self._refuse(found, Reason.DUPLICATE_KEY, f"{where} has a key twice")

    def _leaf(self, values: pa.Array, node: Node, rows: Numbers, live: Mask, where: str) -> pa.Array:
        made = converted(values, node)
        if made is None:
            return self._refuse_all(values, rows, live, where, "", node)
        for at in np.flatnonzero(live & ~_valid(made)).tolist():
            if not self.refused[rows[at]]:
                self._refuse(rows[at : at + 1], *_why(_as_python(values[at]), values.type, node, where))
        return made

    # ---- refusals ----

    def _refuse(self, rows: Any, reason: Reason, detail: str) -> None:
        for row in np.unique(rows).tolist():
            self.refused[row] = True
            self.verdicts.setdefault(row, (reason, detail))

    def _refuse_all(
        self, values: pa.Array, rows: Numbers, live: Mask, where: str, wanted: str, node: Node | None = None
    ) -> pa.Array:
        wanted = wanted or type_name(node.type if node else pa.null())
        what = f"{where}: expected {wanted}, saw {_said(values.type)}"
        self._refuse(rows[live & _valid(values)], Reason.TYPE, what)
        return pa.nulls(len(values), node.type if node else pa.null())


def converted(values: pa.Array, node: Node) -> pa.Array | None:
    """A leaf's values in its own type, NULL where one does not fit; None where no value of such a type could."""
    have, want = values.type, node.type
    if pa.types.is_timestamp(want):
        return _moments(values, node)
    if have == want:
        return values
    if pa.types.is_integer(have):
        return _from_integers(values, node)
    if pa.types.is_floating(have):
        return _from_floats(values, node)
    if pa.types.is_decimal(have):
        return _from_decimals(values, node)
    if pa.types.is_string(have) and (pa.types.is_date(want) or pa.types.is_binary(want)):
        return proven(node, values)
    return None


def _moments(values: pa.Array, node: Node) -> pa.Array | None:
    have, want = values.type, node.type
    if pa.types.is_string(have) and node.unit not in _EPOCH:
        return proven(node, values)
    if pa.types.is_integer(have) and not pa.types.is_uint64(have) and node.unit in _EPOCH:
        return proven(node, values.cast(pa.int64()))
    if pa.types.is_date(have) and node.unit == "date":
        return values.cast(want)
    if not pa.types.is_timestamp(have):
        return None
    if (have.tz is None) != (want.tz is None) and not (have.tz is None and node.unit == "local-utc"):
        return None
    counts = pc.fill_null(values.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
    micros = proven(Node("leaf", pa.timestamp("us", "UTC"), unit=have.unit), pa.array(counts))
    return pc.if_else(pa.array(_valid(values)), micros.cast(want), pa.scalar(None, want))


def _from_integers(values: pa.Array, node: Node) -> pa.Array | None:
    want = node.type
    if pa.types.is_integer(want):
        limit = 1 << (want.bit_width - 1)
        high = pc.less_equal(values, pa.scalar(min(limit - 1, _largest(values.type)), values.type))
        low = high if pa.types.is_uint64(values.type) else pc.greater_equal(values, _smallest(values.type, limit))
        return pc.if_else(pc.and_(high, low), values, pa.scalar(None, values.type)).cast(want)
    if pa.types.is_floating(want):
        return values.cast(want, safe=False)
    return proven(node, values.cast(pa.string())) if pa.types.is_decimal(want) else None


def _largest(kind: pa.DataType) -> int:
    return int((1 << kind.bit_width) - 1 if pa.types.is_unsigned_integer(kind) else (1 << (kind.bit_width - 1)) - 1)


def _smallest(kind: pa.DataType, limit: int) -> pa.Scalar:
    return pa.scalar(max(-limit, -(1 << (kind.bit_width - 1))), kind)


def _from_floats(values: pa.Array, node: Node) -> pa.Array | None:
    want = node.type
    if not pa.types.is_floating(want):
        return None
    made = values.cast(want, safe=False)
    grown = pc.and_(pc.is_inf(made), pc.invert(pc.is_inf(values)))
    return pc.if_else(grown, pa.scalar(None, want), made)


def _from_decimals(values: pa.Array, node: Node) -> pa.Array | None:
    want = node.type
    if pa.types.is_decimal(want):
        return proven(node, values.cast(pa.string()))
    if pa.types.is_floating(want):
        return values.cast(want, safe=False)
    if pa.types.is_integer(want) and values.type.scale <= 0:
        limit = 1 << (want.bit_width - 1)
        exact = [None if value is None or not -limit <= value < limit else int(value) for value in values.to_pylist()]
        return pa.array(exact, want)
    return None


def _as_python(value: pa.Scalar) -> Any:
    """A value as Python holds it; times as their number, because Python knows fewer of them."""
    return value.value if pa.types.is_timestamp(value.type) else value.as_py()


def _why(value: Any, kind: pa.DataType, node: Node, where: str) -> tuple[Reason, str]:
    """The words for one value that could not be converted."""
    if isinstance(value, str):
        try:
            leaf_reader(node)(value)
        except Unfit as unfit:
            return unfit.reason, f"{where}: {unfit.what}"
    if pa.types.is_timestamp(node.type):
        return Reason.TIMESTAMP, f"{where}: {seen(value)} is no time of the years 1 to 9999"
    return Reason.OVERFLOW, f"{where}: {seen(value)} does not fit {type_name(node.type)}"


def _said(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "an object"
    return "an array" if _is_list(kind) else "a map" if pa.types.is_map(kind) else str(kind)


def as_json(values: pa.Array) -> pa.Array:
    """Typed values as JSON text: bytes in base64, decimals and times as text, so that nothing is rounded."""
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.string())
    answer = duck.query(
        "SELECT CASE WHEN v IS NOT NULL THEN CAST(to_json(v) AS VARCHAR) END AS t FROM seen",
        seen=pa.table({"v": _speakable(values)}),
    )
    texts = answer["t"].combine_chunks().cast(pa.string())
    odd = bools(pc.fill_null(pc.match_substring_regex(texts, "NaN|Infinity"), False))
    return pc.replace_with_mask(texts, pa.array(odd), _finite(texts.filter(pa.array(odd)))) if odd.any() else texts


def _finite(texts: pa.StringArray) -> pa.StringArray:
    """JSON has no word for numbers that are not finite: they are written as text."""
    read = (json.loads(text, parse_constant=str) for text in texts.to_pylist())
    return pa.array([json.dumps(value, separators=(",", ":"), ensure_ascii=False) for value in read], pa.string())


def _speakable(values: pa.Array) -> pa.Array:
    if is_json(values.type):
        return values  # DuckDB knows it, too
    values = _plain(values)
    kind = values.type
    if pa.types.is_binary(kind):
        answer = duck.query("SELECT to_base64(v) AS t FROM seen", seen=pa.table({"v": values}))
        return answer["t"].combine_chunks().cast(pa.string())
    if pa.types.is_timestamp(kind):
        texts = pc.strftime(values, "%Y-%m-%dT%H:%M:%S" + ("Z" if kind.tz else ""))
        return texts
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return values.cast(pa.string())
    if pa.types.is_struct(kind):
        inner = [_speakable(_child(values, item.name)) for item in kind]
        return pa.StructArray.from_arrays(inner, [item.name for item in kind], mask=pa.array(~_valid(values)))
    if _is_list(kind):
        inner, owner = _elements(values)
        return pa.ListArray.from_arrays(_offsets(values, owner), _speakable(inner), mask=pa.array(~_valid(values)))
    if pa.types.is_map(kind):
        items, owner = _map_items(values)
        offsets = pa.array(_offsets(values, owner).to_numpy(), mask=np.append(~_valid(values), False))
        return pa.MapArray.from_arrays(offsets, _map_keys(values), _speakable(items))
    return values


# ---- Arrow's shapes ----


def _as_struct(table: pa.Table) -> pa.StructArray:
    if not table.column_names:
        return pa.array([{}] * len(table), pa.struct([]))
    whole = table.combine_chunks()
    arrays = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in whole.columns]
    return pa.StructArray.from_arrays(arrays, fields=[item.with_nullable(True) for item in table.schema])


def is_json(kind: pa.DataType) -> bool:
    """Whether the texts of a type are JSON already."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def _plain(values: pa.Array) -> pa.Array:
    """Without the spellings of a type that only save space, or say what a text holds."""
    if is_json(values.type):
        return values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    for is_a, plain in _ODD:
        if is_a(values.type):
            return values.cast(plain)
    return values


def _child(values: pa.Array, name: str) -> pa.Array | None:
    """A field of structs, NULL where the struct is."""
    if pa.types.is_null(values.type):
        return pa.nulls(len(values))
    at = values.type.get_field_index(name)
    return None if at < 0 else values.flatten()[at]


def _valid(values: pa.Array) -> Mask:
    return bools(values.is_valid())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _elements(values: pa.Array) -> tuple[pa.Array, Numbers]:
    """All elements of lists, and which list each is in."""
    return values.flatten(), pc.list_parent_indices(values).to_numpy(zero_copy_only=False).astype(np.int64)


def _entries(values: pa.MapArray) -> pa.ListArray:
    entries = pa.struct([values.type.key_field, values.type.item_field])
    return values.cast(pa.list_(entries))


def _map_items(values: pa.MapArray) -> tuple[pa.Array, Numbers]:
    inner, owner = _elements(_entries(values))
    return inner.field(1), owner


def _map_keys(values: pa.MapArray) -> pa.Array:
    return _elements(_entries(values))[0].field(0)


def _offsets(values: pa.Array, owner: Numbers) -> pa.Int32Array:
    """Where each list's elements begin and end among the flattened."""
    counts = np.bincount(owner, minlength=len(values))
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def _unknown(layout: Layout, strangers: dict[str, tuple[int, Structure]]) -> Structure | None:
    """What the schema lacks, if there is anything it could gain."""
    whole: Structure = struct({})
    for name, (_, structure) in strangers.items():
        _graft(whole, name.split("."), structure, layout.root)
    for step in layout.way:
        whole = whole.get("fields", {}).get(step, {})
    if not whole.get("fields") or evolve(layout.own, whole) == layout.own:
        return None
    return whole


def _graft(whole: Structure, path: list[str], structure: Structure, node: Node) -> None:
    """Put a structure at its path, through the lists on the way."""
    key, *rest = path
    if not rest:
        whole["fields"][key] = structure
        return
    child = node.children[key]
    here = whole["fields"].setdefault(key, _way(child))
    while child.kind in ("list", "map"):
        here = here["element"] if child.kind == "list" else here["fields"].setdefault("*", struct({}))
        child = child.children["*"]
    _graft(here, rest, structure, child)


def _way(node: Node) -> Structure:
    if node.kind == "list":
        return {"type": "list", "element": _way(node.children["*"])}
    return struct({})


# ---- one value as text ----


def steps_of(path: str) -> tuple[str, ...]:
    """The keys of a JSON pointer or a dotted path."""
    if not path.startswith("/"):
        return tuple(path.split("."))
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/"))


def as_text(table: pa.Table, steps: tuple[str, ...]) -> pa.Array | None:
    """The scalars at a place as text, NULL where it is absent; None where it holds more than scalars."""
    values: pa.Array | None = _as_struct(table)
    for step in steps:
        if values is None or not pa.types.is_struct(values.type):
            return pa.nulls(len(table), pa.string())
        values = _child(values, step)
    if values is None or pa.types.is_null(values.type):
        return pa.nulls(len(table), pa.string())
    if pa.types.is_nested(values.type):
        return None
    said = _speakable(_plain(values))
    return said if pa.types.is_string(said.type) else as_json(said)


def sample(kind: pa.DataType) -> Any:
    """A value of a natural type with nothing left out, to see what would become of such."""
    if pa.types.is_struct(kind):
        return {item.name: sample(item.type) for item in kind}
    if _is_list(kind):
        return [sample(kind.value_type)]
    if pa.types.is_map(kind):
        return [("", sample(kind.item_type))]
    if pa.types.is_null(kind):
        return None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return b"" if pa.types.is_binary(kind) else ""
    return Decimal(0) if pa.types.is_decimal(kind) else 0
