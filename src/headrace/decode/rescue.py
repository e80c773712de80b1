"""Rescue: values that do not fit their column, or have none, are stored as their original text in `_rescued`.

The text is one JSON object: the path of each value, and the value as it was written. If a value inside a column does
not fit, the whole column is rescued. For a new field inside an array or a map, the array or map is rescued.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.decode.base import Decoded, DecodeLimits, Decoder, NewField, Rejects, join_rejects, limit_names
from headrace.decode.byte_scan import Numbers
from headrace.decode.inference import Structure, merge_inferred
from headrace.decode.input import triage, without_bom
from headrace.decode.json.exact import ExactReader, Row
from headrace.decode.json.strict import Cutter, Parser
from headrace.decode.json.template import Path, template_text
from headrace.decode.json.template_match import TemplateMatch, TemplateMatchers
from headrace.decode.payload import PayloadNode, PayloadSchema
from headrace.decode.scalars import UnfitValue
from headrace.reasons import MISFITS, Reason


def rescued(parts: Mapping[Path, str]) -> str | None:
    """The text of `_rescued`: each path with its text; None if nothing was rescued."""
    return (
        "{" + ",".join(f"{json.dumps(template_text(path))}:{text}" for path, text in parts.items()) + "}"
        if parts
        else None
    )


def outermost(paths: Sequence[Path]) -> list[Path]:
    """Distinct paths without those inside another."""
    every = dict.fromkeys(paths)
    return [path for path in every if not any(path[:depth] in every for depth in range(1, len(path)))]


class Rescuer:
    """The exact path of JSON, with rescue of values that do not fit."""

    def __init__(self, layout: PayloadSchema, new_field: NewField, limits: DecodeLimits) -> None:
        self._layout = layout
        self._exact = ExactReader(layout, new_field, limits)
        self._new_field = new_field

    def read(self, raw: bytes) -> tuple[Row, str | None]:
        """The row of one value and its rescued text; raises UnfitValue if it cannot be rescued."""
        text, value, new_fields = self._exact.parse_record(raw)
        row: list[Any] = []
        kept: list[Path] = []
        for column, (read, member) in zip(self._layout.columns, self._exact.readers(text, value), strict=True):
            try:
                row.append(read(member))
            except UnfitValue as unfit:
                if not (column.rescued and unfit.reason in MISFITS):
                    raise
                row.append(None)
                kept.append(_reached(value, column.path))
        self._exact.answer(new_fields)
        if self._new_field == "rescue" and new_fields:
            kept += new_field_paths(self._layout.root, value, ())
            new_fields = tuple(_other_fields(self._layout.root, value, ""))
        return Row(tuple(row), new_fields), rescued(_cut(self._exact.parser, text, outermost(kept)))


def _reached(value: Any, path: Path) -> Path:
    """The path of a column as far as the value has it."""
    for depth, key in enumerate(path, 1):
        value = value.get(key)
        if not isinstance(value, dict):
            return path[:depth]
    return path


def new_field_paths(node: PayloadNode, value: Any, path: Path) -> Iterator[Path]:
    """The paths of new fields, or of the arrays and maps that contain them."""
    if node.kind != "object" or not isinstance(value, dict):
        return
    for key, item in value.items():
        child = node.children.get(key)
        if child is None and node.open:
            continue
        if child is None or (child.kind in ("list", "map") and _holds_new_fields(child, item)):
            yield (*path, key)
        else:
            yield from new_field_paths(child, item, (*path, key))


def _other_fields(node: PayloadNode, value: Any, where: str) -> Iterator[str]:
    """The dotted names of fields that are not fields of the table."""
    for key, item in value.items() if node.open and isinstance(value, dict) else ():
        if key in node.children:
            yield from _other_fields(node.children[key], item, f"{where}{key}.")
        else:
            yield where + key


def _holds_new_fields(node: PayloadNode, value: Any) -> bool:
    if node.kind == "object":
        return isinstance(value, dict) and any(
            key not in node.children or _holds_new_fields(node.children[key], item) for key, item in value.items()
        )
    items = value if isinstance(value, list) and node.kind == "list" else ()
    items = list(value.values()) if isinstance(value, dict) and node.kind == "map" else items
    return any(_holds_new_fields(node.children["*"], item) for item in items)


def _cut(parser: Parser, text: str, paths: Sequence[Path]) -> dict[Path, str]:
    """The original text at each path."""
    if not paths:
        return {}
    root = PayloadNode("object")
    for *parents, last in paths:
        here = root
        for key in parents:
            here = here.children.setdefault(key, PayloadNode("object"))
        here.children[last] = PayloadNode("json")
    cuts = Cutter(parser, root).cut(text)
    return {path: _at(cuts, path) for path in paths}


def _at(value: Any, path: Path) -> str:
    for key in path:
        value = value[key]
    return "null" if value is None else str(value)


class RescuableDecoder(Decoder, Protocol):
    """What a JSON decoder must provide to be wrapped."""

    def unknown(self, texts: pa.StringArray) -> tuple[Structure | None, dict[int, str]]:
        """New fields that the schema can gain, and details for values that have too many."""
        ...

    def messages(self, texts: pa.StringArray) -> pa.Array:
        """The JSON text of the row inside each value."""
        ...


class RescuingDecoder:
    """A JSON decoder that reads rejected values again to rescue them; valid rows cost nothing.

    If many texts misfit in the same way, a template for it takes them all at once.
    """

    def __init__(
        self,
        inner: RescuableDecoder,
        layout: PayloadSchema,
        new_field: NewField,
        limits: DecodeLimits,
        templates: TemplateMatchers | None = None,
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._templates = templates
        self._rescuer = Rescuer(layout.bare(), new_field, limits)
        self._layout = layout
        self._schema = layout.schema
        self._new_field = new_field
        wrong = MISFITS if any(column.rescued for column in layout.columns) else frozenset()
        self._rescuable = wrong | {Reason.NEW_FIELD} if new_field == "rescue" else wrong

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        decoded = self._decode(values)
        rows = self._layout.with_message(decoded.rows, lambda: self._inner.messages(texts_at(values, decoded.index)))
        return replace(decoded, rows=rows)

    def _decode(self, values: pa.BinaryArray) -> Decoded:
        if self._templates is None:
            return self._one_by_one(values)
        texts, at, _ = triage(values, self._limits)
        fitting = self._templates.fit(texts)
        if not fitting:
            return self._one_by_one(values)
        unread = np.ones(len(values), bool)
        unread[np.concatenate([at[each.index] for each in fitting])] = False
        parts = [self._rows_of(each, at) for each in fitting]
        if unread.any():
            there = np.flatnonzero(unread)
            rest = self._one_by_one(values.take(pa.array(there)))
            rejects = Rejects()
            rejects.join(rest.rejects, there)
            parts.append(replace(rest, index=pa.array(there[rest.index.to_numpy()]), rejects=rejects))
        return join_rejects(parts, self._schema)

    def _rows_of(self, fitting: TemplateMatch, at: Numbers) -> Decoded:
        """The rows of a template match."""
        kept = pa.nulls(len(fitting.index), pa.string()) if fitting.kept is None else fitting.kept
        rows = pa.Table.from_arrays([*fitting.columns, kept], schema=self._schema)
        ignored = dict.fromkeys(fitting.new_fields, len(fitting.index))
        return Decoded(rows, pa.array(at[fitting.index]), Rejects(), None, ignored)

    def _one_by_one(self, values: pa.BinaryArray) -> Decoded:
        decoded = self._inner.decode(values)
        rows, texts, at, rejects = self._rescue(values, decoded.rejects)
        decoded, wide = self._with_new_fields(decoded, values, rows, at)
        if wide:
            for position, detail in wide.items():
                rejects.add(position, Reason.TOO_WIDE, detail)
            stay = [nth for nth, position in enumerate(at) if position not in wide]
            rows, texts, at = [rows[nth] for nth in stay], [texts[nth] for nth in stay], [at[nth] for nth in stay]
            rejects = rejects.in_order()
        clean = decoded.rows.append_column(self._schema.field(-1), pa.nulls(len(decoded.rows), pa.string()))
        if not rows:
            return replace(decoded, rows=clean, rejects=rejects)
        columns = [
            pa.array([row.values[nth] for row in rows], item.type) for nth, item in enumerate(decoded.rows.schema)
        ]
        repaired = pa.Table.from_arrays([*columns, pa.array(texts, pa.string())], schema=self._schema)
        index = np.concatenate([decoded.index.to_numpy(), np.array(at, np.int64)])
        order = np.argsort(index, kind="stable")
        return replace(
            decoded,
            rows=pa.concat_tables([clean, repaired]).take(pa.array(order)),
            index=pa.array(index[order]),
            rejects=rejects,
        )

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """As the inner decoder."""
        return self._inner.peek(values, path)

    def _rescue(
        self, values: pa.BinaryArray, refused: Rejects
    ) -> tuple[list[Row], list[str | None], list[int], Rejects]:
        rows, texts, at, rejects = list[Row](), list[str | None](), list[int](), Rejects()
        for position, reason, detail in refused:
            if reason not in self._rescuable:
                rejects.add(position, reason, detail)
                continue
            try:
                row, text = self._rescuer.read(values[position].as_py())
            except UnfitValue as unfit:
                rejects.add(position, unfit.reason, unfit.detail)
                continue
            rows.append(row)
            texts.append(text)
            at.append(position)
        return rows, texts, at, rejects

    def _with_new_fields(
        self, decoded: Decoded, values: pa.BinaryArray, rows: Sequence[Row], at: Sequence[int]
    ) -> tuple[Decoded, dict[int, str]]:
        """Add the new fields of rescued rows, unless the contract rescues these; and details for rows with too many."""
        with_new = [position for row, position in zip(rows, at, strict=True) if row.new_fields]
        if self._new_field == "evolve" and with_new:
            more, wide = self._inner.unknown(texts_at(values, pa.array(with_new)))
            unknown = merge_inferred(decoded.unknown, more) if decoded.unknown and more else more or decoded.unknown
            return replace(decoded, unknown=unknown), {with_new[nth]: detail for nth, detail in wide.items()}
        if self._new_field in ("ignore", "rescue") and with_new:
            names = Counter(decoded.ignored)
            for row in rows:
                names.update(row.new_fields)
            return replace(decoded, ignored=limit_names(names)), {}
        return decoded, {}


def texts_at(values: pa.BinaryArray, index: pa.Array) -> pa.StringArray:
    """The values at some positions, as text."""
    return without_bom(values.take(index)).cast(pa.string())
