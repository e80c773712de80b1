"""Rescue of a JSON list that is exploded, element by element.

Records that fit are decoded as usual. For the others, the list is read as JSON text and split into its elements, and
each element is decoded as a record of its own: `{"id":1,"items":[{"n":2},{"n":"x"}]}` is a record with the list
`[{"n":2},{"n":"x"}]` as text, and the records `{"items":{"n":2}}` and `{"items":{"n":"x"}}`. The rescued values of
each element are stored beside the list, one text per element.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Decoded, DecodeLimits, Decoder, NewField, Rejects, join_rejects, limit_names
from headrace.decode.byte_scan import Mask, Numbers, bools
from headrace.decode.inference import Structure, merge_inferred, struct
from headrace.decode.json.exact import ExactReader
from headrace.decode.json.strict import Parser
from headrace.decode.json.template import Path
from headrace.decode.payload import Elements, PayloadColumn, PayloadNode, PayloadSchema
from headrace.decode.payload_field import json_field
from headrace.decode.rescue import RescuableDecoder, texts_at
from headrace.decode.scalars import describe
from headrace.decode.unpack import UnpackedValues
from headrace.decode.unpack import json_elements as split
from headrace.reasons import MISFITS, Reason

_OFTEN = 2  # if one record in so many is decoded in two parts, all records of the next batch are


def as_text(layout: PayloadSchema, elements: Elements) -> PayloadSchema:
    """The layout with the list as JSON text, without rescued values of its elements."""
    column = elements.column
    node = PayloadNode("json", pa.string(), column.node.nullable)
    item = json_field(column.name, column.node.nullable)
    text = PayloadColumn(column.name, column.path, node, item)
    columns = tuple(text if each is column else each for each in layout.columns)
    own = pa.schema([item if each.name == column.name else each for each in layout.own if each != layout.schema[-1]])
    schema = pa.schema([*(each.field for each in columns), layout.schema.field(-2)])
    root = _replaced(layout.root, column.path, node)
    return replace(layout, schema=schema, columns=columns, root=root, own=own, message=None, elements=None)


def _replaced(root: PayloadNode, path: Path, node: PayloadNode) -> PayloadNode:
    key, *rest = path
    child = _replaced(root.children[key], tuple(rest), node) if rest else node
    return replace(root, children={**root.children, key: child})


@dataclass
class _ElementLists:
    """Records that were decoded in two parts: their lists, and the rescued values of the elements."""

    good: Mask
    lists: pa.ListArray
    texts: pa.ListArray
    rejects: Rejects  # by row of the records
    unknown: Structure | None
    ignored: bool  # some element has ignored new fields


class ElementsDecoder:
    """A JSON decoder that decodes rejected records again, with their list element by element."""

    def __init__(
        self,
        clean: RescuableDecoder,
        records: Decoder,
        each: Decoder,
        layout: PayloadSchema,
        new_field: NewField,
        limits: DecodeLimits,
    ) -> None:
        assert layout.elements is not None  # noqa: S101
        self._clean, self._records, self._each = clean, records, each
        self._layout, self._elements = layout, layout.elements
        self._new_field, self._limits = new_field, limits
        self._exact = ExactReader(layout.bare(), new_field, limits)
        rescued = any(column.rescued for column in (*layout.columns, *layout.elements.layout.columns))
        wrong = MISFITS if rescued else frozenset()
        self._rescuable = wrong | {Reason.NEW_FIELD} if new_field == "rescue" else wrong
        self._often = False
        self._before, self._after = _around(layout.elements.column.path)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        decoded = self._decode_in_parts(values) if self._often else self._decode(values)
        kept = [bools(column.combine_chunks().is_valid()) for column in decoded.rows.columns[-2:]]
        self._often = _OFTEN * int((kept[0] | kept[1]).sum()) > len(values)
        texts = self._layout.with_message(decoded.rows, lambda: self._clean.messages(texts_at(values, decoded.index)))
        return replace(decoded, rows=texts)

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """As the inner decoder."""
        return self._clean.peek(values, path)

    def _decode(self, values: pa.BinaryArray) -> Decoded:
        decoded = self._clean.decode(values)
        rejects, at = Rejects(), list[int]()
        for position, reason, detail in decoded.rejects:
            if reason in self._rescuable:
                at.append(position)
            else:
                rejects.add(position, reason, detail)
        nothing = [pa.nulls(len(decoded.rows), item.type) for item in list(self._layout.schema)[-2:]]
        rows = pa.Table.from_arrays([*decoded.rows.columns, *nothing], schema=self._layout.schema)
        decoded = replace(decoded, rows=rows, rejects=rejects)
        if not at:
            return decoded
        there = np.array(at, np.int64)
        repaired = self._decode_in_parts(values.take(pa.array(there)))
        refused = Rejects()
        refused.join(repaired.rejects, there)
        repaired = replace(repaired, index=pa.array(there[repaired.index.to_numpy()]), rejects=refused)
        return join_rejects([decoded, repaired], self._layout.schema)

    def _decode_in_parts(self, values: pa.BinaryArray) -> Decoded:
        """Decode every value in two parts: the record without its list, and the elements of the list."""
        decoded = self._records.decode(values)
        name = self._elements.column.name
        lists = self._of_elements(decoded.rows[name].combine_chunks())
        index = decoded.index.to_numpy()
        rejects = Rejects()
        rejects.join(decoded.rejects)
        rejects.join(lists.rejects, index)
        rows = decoded.rows.filter(pa.array(lists.good))
        columns = [lists.lists if item.name == name else rows[item.name] for item in rows.schema]
        rows = pa.Table.from_arrays([*columns, lists.texts], schema=self._layout.schema)
        unknown = decoded.unknown
        if lists.unknown:
            unknown = merge_inferred(unknown, lists.unknown) if unknown else lists.unknown
        index = index[lists.good]
        ignored = Counter(decoded.ignored) + (self._ignored(values, index) if lists.ignored else Counter())
        return Decoded(rows, pa.array(index), rejects.in_order(), unknown, limit_names(ignored))

    def _of_elements(self, texts: pa.StringArray) -> _ElementLists:
        """Lists of elements from the JSON texts of lists; a list with a bad element is bad."""
        there = np.flatnonzero(bools(texts.is_valid()))
        pieces = split(texts.take(pa.array(there)).cast(pa.binary()), self._limits)
        owner = there[pieces.owner]
        wrapped = pc.binary_join_element_wise(self._before, pieces.values, self._after, b"")
        decoded = self._each.decode(wrapped)
        rejects = self._refused(texts, there, pieces, decoded.rejects)
        good = np.ones(len(texts), bool)
        good[rejects.columns.index] = False
        kept, rows = good[owner], decoded.rows.filter(pa.array(good[owner[decoded.index.to_numpy()]]))
        unknown = decoded.unknown
        if unknown and not kept.all():
            unknown = self._each.decode(wrapped.filter(pa.array(kept))).unknown
        counts = np.bincount(owner[kept], minlength=len(texts))[good]
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        null = pc.match_substring_regex(pieces.values.filter(pa.array(kept)), r"^[ \t\r\n]*null[ \t\r\n]*$")
        kind, absent = self._elements.column.node.type, pa.array(~bools(texts.is_valid())[good])
        lists = pa.ListArray.from_arrays(offsets, _as_elements(rows, kind, null), type=kind, mask=absent)
        rescued = rows[rows.column_names[-1]].combine_chunks()
        some = np.bincount(owner[kept], bools(rescued.is_valid()), minlength=len(texts))[good] > 0
        return _ElementLists(
            good,
            lists,
            pa.ListArray.from_arrays(offsets, rescued, type=self._layout.schema.field(-1).type, mask=pa.array(~some)),
            rejects,
            self._in_list(unknown) if unknown else None,
            bool(decoded.ignored),
        )

    def _refused(
        self, texts: pa.StringArray, there: Numbers, pieces: UnpackedValues, element_rejects: Rejects
    ) -> Rejects:
        """Rejects of lists: values that are not lists, and lists with a bad element, of which the first is named."""
        where, rejects = ".".join(self._elements.column.path), Rejects()
        for position, reason, detail in pieces.rejects:
            row = int(there[position])
            if reason is Reason.TYPE:
                detail = f"{where}: expected an array, saw {describe(Parser(self._limits).value(texts[row].as_py()))}"
            rejects.add(row, reason, detail)
        first = np.searchsorted(pieces.owner, pieces.owner)
        for position, reason, detail in element_rejects:
            nth = f"{where}[{position - first[position]}]"
            rejects.add(int(there[pieces.owner[position]]), reason, nth + detail.removeprefix(where))
        return rejects.firsts()

    def _in_list(self, unknown: Structure) -> Structure:
        """New fields of elements, as new fields of the record."""
        name = self._elements.column.name
        element = unknown if self._elements.layout.row_path == self._elements.column.path else unknown["fields"][name]
        return struct({name: {"type": "list", "element": element}})

    def _ignored(self, values: pa.BinaryArray, index: Numbers) -> Counter[str]:
        """New fields inside lists, and the number of records that have them."""
        inside, names = ".".join(self._elements.column.path) + ".", Counter[str]()
        for raw in values.take(pa.array(index)).to_pylist():
            names.update(name for name in self._exact.parse_record(raw)[2] if name.startswith(inside))
        return names


def _around(path: Path) -> tuple[bytes, bytes]:
    """JSON text before and after an element that is the only value of a record."""
    before = "".join(f"{{{json.dumps(key, ensure_ascii=False)}:" for key in path)
    return before.encode(), b"}" * len(path)


def _as_elements(rows: pa.Table, kind: pa.DataType, null: pa.BooleanArray) -> pa.Array:
    columns: Iterable[pa.Array] = (column.combine_chunks() for column in rows.columns[:-1])
    if not pa.types.is_struct(kind.value_type):
        return next(iter(columns))
    return pa.StructArray.from_arrays(list(columns), fields=list(kind.value_type), mask=null)
