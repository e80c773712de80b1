"""Coerced columns: text columns that take any value, and timestamp columns that take text and numbers.

Such values are first read as JSON text, then converted here: `"a"` to `a` and `{"b": 1}` to itself in a text column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Decoded, DecodeLimits, Rejects
from headrace.decode.byte_scan import Numbers, bools
from headrace.decode.json.strict import Parser
from headrace.decode.nested import is_there, list_elements, map_items, map_keys, offsets_of, struct_field
from headrace.decode.payload import PayloadColumn, PayloadNode, PayloadSchema
from headrace.decode.scalars import UnfitValue, leaf_reader, proven
from headrace.reasons import Reason

Refuse = Callable[[Numbers, Reason, str], None]  # rows, reason and detail

_PARSER = Parser(DecodeLimits())
_WHOLE_NUMBER = r"^-?\d{1,18}$"


class Coercion:
    """Converts the columns of a layout that are coerced; `texts` is the layout with JSON text in their place."""

    def __init__(self, layout: PayloadSchema) -> None:
        self._columns = layout.columns
        self.texts = _as_texts(layout)

    def apply(self, decoded: Decoded) -> Decoded:
        """Rows of `texts` as rows of the layout; a value that does not fit makes its record a reject."""
        rows = decoded.rows.combine_chunks()
        errors: dict[int, tuple[Reason, str]] = {}

        def refuse(at: Numbers, reason: Reason, detail: str) -> None:
            for row in at.tolist():
                errors.setdefault(row, (reason, detail))

        for nth, column in enumerate(self._columns):
            if is_coerced(column.node):
                values = rows.column(nth).combine_chunks()
                values = values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)
                converted = _value(values, column.node, np.arange(len(rows)), ".".join(column.path), refuse)
                rows = rows.set_column(nth, column.field, converted)
        if not errors:
            return replace(decoded, rows=rows)
        rejects, index = Rejects(), decoded.index.to_numpy()
        rejects.join(decoded.rejects)
        for row, (reason, detail) in sorted(errors.items()):
            rejects.add(int(index[row]), reason, detail)
        refused = np.unique(index[list(errors)])  # all rows of a record with one that does not fit
        good = np.flatnonzero(~np.isin(index, refused))
        return replace(
            decoded, rows=rows.take(pa.array(good)), index=pa.array(index[good]), rejects=rejects.firsts().in_order()
        )


def is_coerced(node: PayloadNode) -> bool:
    """Whether a value, or one inside of it, is coerced."""
    return bool(node.coerce) or any(map(is_coerced, node.children.values()))


def coerced_leaf(texts: pa.StringArray, node: PayloadNode, rows: Numbers, where: str, refuse: Refuse) -> pa.Array:
    """JSON texts in the type of a coerced leaf; one that does not fit is NULL and refused."""
    if pa.types.is_string(node.type):
        return unquoted(texts, rows, where, refuse)
    quoted = pc.fill_null(pc.starts_with(texts, '"'), False)
    strings = unquoted(pc.if_else(quoted, texts, pa.scalar(None, pa.string())), rows, where, refuse)
    whole = pc.fill_null(pc.match_substring_regex(texts, _WHOLE_NUMBER), False)
    numbers = pc.if_else(whole, texts, pa.scalar(None, pa.string())).cast(pa.int64())
    as_text, as_number = replace(node, coerce="", unit=""), replace(node, coerce="", unit=node.coerce)
    moments = pc.coalesce(proven(as_text, strings), proven(as_number, numbers))
    rest = np.flatnonzero(bools(moments.is_null()) & is_there(texts))
    if not len(rest):
        return moments
    exact: list[int | None] = []
    readers = {True: leaf_reader(as_text), False: leaf_reader(as_number)}
    for at in rest.tolist():
        value = _PARSER.value(texts[at].as_py())
        try:
            exact.append(readers[isinstance(value, str)](value))
        except UnfitValue as unfit:
            exact.append(None)
            refuse(rows[at : at + 1], unfit.reason, f"{where}: {unfit.what}")
    mask = np.zeros(len(texts), bool)
    mask[rest] = True
    return pc.replace_with_mask(moments, pa.array(mask), pa.array(exact, pa.int64()).cast(node.type))


def unquoted(texts: pa.StringArray, rows: Numbers, where: str, refuse: Refuse) -> pa.StringArray:
    """JSON strings without quotes and escapes; any other JSON text as it is."""
    quoted = pc.fill_null(pc.starts_with(texts, '"'), False)
    plain = pc.if_else(quoted, pc.utf8_slice_codeunits(texts, 1, -1), texts)
    escaped = np.flatnonzero(bools(quoted) & bools(pc.fill_null(pc.match_substring(texts, "\\"), False)))
    if not len(escaped):
        return plain
    exact: list[str | None] = []
    for at in escaped.tolist():
        text: str = _PARSER.value(texts[at].as_py())
        try:
            text.encode()
            exact.append(text)
        except UnicodeEncodeError:
            exact.append(None)
            refuse(rows[at : at + 1], Reason.ENCODING, f"{where}: an escape is an unpaired surrogate")
    mask = np.zeros(len(texts), bool)
    mask[escaped] = True
    return pc.replace_with_mask(plain, pa.array(mask), pa.array(exact, pa.string()))


def _value(values: pa.Array, node: PayloadNode, rows: Numbers, where: str, refuse: Refuse) -> pa.Array:
    if node.coerce:
        return coerced_leaf(values, node, rows, where, refuse)
    if not is_coerced(node):
        return values
    mask = pa.array(~is_there(values))
    if node.kind == "object":
        inner = [
            _value(struct_field(values, key), child, rows, f"{where}.{key}", refuse)
            for key, child in node.children.items()
        ]
        return pa.StructArray.from_arrays(inner, fields=list(node.type), mask=mask)
    element = node.children["*"]
    items, owner = map_items(values) if node.kind == "map" else list_elements(values)
    converted = _value(items, element, rows[owner], f"{where}[]", refuse)
    offsets = offsets_of(values, owner)
    if node.kind == "list":
        return pa.ListArray.from_arrays(offsets, converted, type=node.type, mask=mask)
    return pa.MapArray.from_arrays(offsets, map_keys(values), converted, type=node.type, mask=mask)


# ---- the layout to read ----


def _as_texts(layout: PayloadSchema) -> PayloadSchema:
    """The layout with JSON text instead of coerced values."""
    root = _text_node(layout.root)
    columns = tuple(_text_column(column) for column in layout.columns)
    fields = {column.name: column.field for column in columns}
    schema = pa.schema([fields.get(item.name, item) for item in layout.schema], layout.schema.metadata)
    return replace(layout, schema=schema, columns=columns, root=root)


def _text_column(column: PayloadColumn) -> PayloadColumn:
    node = _text_node(column.node)
    return replace(column, node=node, field=column.field.with_type(node.type))


def _text_node(node: PayloadNode) -> PayloadNode:
    if node.coerce:
        return replace(node, kind="json", type=pa.string(), coerce="")
    if not is_coerced(node):
        return node
    children = {key: _text_node(child) for key, child in node.children.items()}
    return replace(node, children=children, type=_with_children(node, children))


def _with_children(node: PayloadNode, children: dict[str, PayloadNode]) -> pa.DataType:
    kind = node.type
    if pa.types.is_struct(kind):
        return pa.struct([item.with_type(children[item.name].type) for item in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(children["*"].type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(children["*"].type))
    return kind  # a mere way to columns deeper down
