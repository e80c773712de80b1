"""JSON without loss: most values are proven valid column by column; the exact path decodes or explains the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Decoded, DecodeLimits, Decoder, NewField, Rejects, limit_names, too_many
from headrace.decode.byte_scan import Mask, Numbers, bools, matches
from headrace.decode.coercion import Coercion, is_coerced
from headrace.decode.elements import ElementsDecoder, as_text
from headrace.decode.envelope.base import Enveloped
from headrace.decode.envelope.formats import ENVELOPES
from headrace.decode.inference import Structure, added, by_key, distinct, holds_json, infer, merge_all, struct
from headrace.decode.input import spread, triage
from headrace.decode.json.discovery import Discovery
from headrace.decode.json.exact import ExactReader, Row
from headrace.decode.json.explanation import FaultTemplates
from headrace.decode.json.extraction import json_path_of, pointer
from headrace.decode.json.learned_keys import LearnedKeys
from headrace.decode.json.member_reader import MemberReader
from headrace.decode.json.new_keys import NewKeyFinder
from headrace.decode.json.proof import LONG_NUMBER, Proof, Prover, harmless
from headrace.decode.json.registered import RegisteredJson
from headrace.decode.json.strict import Cutter, Parser, Real
from headrace.decode.json.template import KeptText
from headrace.decode.json.template_match import TemplateMatchers
from headrace.decode.payload import PayloadNode, PayloadSchema, payload_schema_of, walk_nodes
from headrace.decode.rescue import RescuingDecoder
from headrace.decode.scalars import UnfitValue, describe
from headrace.decode.unpack import UnpackingDecoder, json_elements, lines, unpacking
from headrace.engine import duck
from headrace.reasons import Reason
from headrace.spec.decode import JsonFormat


class JsonDecoder:
    """Decodes JSON values to the rows of one payload schema."""

    def __init__(self, payload: pa.Schema | PayloadSchema, new_field: NewField, limits: DecodeLimits) -> None:
        layout = payload if isinstance(payload, PayloadSchema) else payload_schema_of(payload)
        self._coercion = Coercion(layout) if is_coerced(layout.root) else None
        self._layout = layout if self._coercion is None else self._coercion.texts
        self._new_field = new_field
        self._limits = limits
        self._exact = ExactReader(self._layout, new_field, limits)
        self._prover = Prover(self._layout, limits) if _provable(self._layout) else None
        self._surveyor = NewKeyFinder(self._layout, self._exact.is_new_field)
        self._learned_keys = LearnedKeys(self._layout, new_field == "ignore", limits)
        self._templates = TemplateMatchers(self._layout, limits, new_field == "ignore")
        members = MemberReader(self._layout, limits, self._exact.is_new_field, new_field == "ignore")
        self._members = members if members.is_usable else None
        self._faults = FaultTemplates(self._layout, self._exact, limits)
        blank = new_field == "evolve" and not self._layout.root.children and self._layout.message is None
        self._discovery = Discovery(self._decode, self._discovering) if blank else None
        self._whole = False  # the structure of values with new fields starts at the root
        self._known = by_key(self._layout.own)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        if self._coercion is not None:
            return self._coercion.apply(self._decode(values))
        return self._decode(values) if self._discovery is None else self._discovery.decode(values)

    def _discovering(self, payload: pa.Schema) -> JsonDecoder:
        decoder = JsonDecoder(payload, "evolve", self._limits)
        decoder._whole, decoder._known = True, {}
        return decoder

    def _decode(self, values: pa.BinaryArray) -> Decoded:
        texts, at, rejects = triage(values, self._limits)
        decoded = self._decoded(texts, at, rejects)
        if self._layout.message is None:
            return decoded
        there = pa.array(np.searchsorted(at, decoded.index.to_numpy()))
        return replace(decoded, rows=self._layout.with_message(decoded.rows, lambda: self.messages(texts.take(there))))

    def _decoded(self, texts: pa.StringArray, at: Numbers, rejects: Rejects) -> Decoded:
        fitting = self._templates.fit(texts) if self._prover else []
        unread = np.ones(len(texts), bool)
        names: Counter[str] = Counter()
        parts: list[tuple[pa.Table, Numbers]] = []
        for each in fitting:
            unread[each.index] = False
            parts.append((pa.Table.from_arrays(each.columns, schema=self._layout.schema), at[each.index]))
            names.update(dict.fromkeys(each.new_fields, len(each.index)))
        if self._prover and self._members and unread.any():
            places = np.flatnonzero(unread)
            reading = self._members.read(texts.filter(pa.array(unread)) if parts else texts)
            read = places[reading.index]
            if len(read):
                unread[read] = False
                parts.append((pa.Table.from_arrays(reading.columns, schema=self._layout.schema), at[read]))
                names.update(reading.new_fields)
        if not parts:
            return self._by_proof(texts, at, rejects)
        rest = Decoded(self._layout.schema.empty_table(), pa.array([], pa.int64()), rejects.in_order())
        if unread.any():
            rest = self._by_proof(texts.filter(pa.array(unread)), at[unread], rejects)
            parts.append((rest.rows, rest.index.to_numpy()))
        rows, index = _in_order(parts)
        return replace(rest, rows=rows, index=pa.array(index), ignored=limit_names(names + Counter(rest.ignored)))

    def _by_proof(self, texts: pa.StringArray, at: Numbers, rejects: Rejects) -> Decoded:
        """Decode texts that match no template: rejected by a known fault, proven column by column, or one by one."""
        texts, at = self._recognize(texts, at, rejects)
        proof = self._proof(texts)
        good = np.zeros(len(texts), bool)
        with_new = np.zeros(len(texts), bool)
        names: Counter[str] = Counter()
        if proof is not None:
            good[proof.index[proof.proven]] = True
            names = self._learned_keys.count(proof)
            if proof.surplus.any():
                names += self._survey(texts, proof, good, with_new)
        rest = np.flatnonzero(~good)
        rows, kept = self._explain(texts, at, rest, rejects)
        for row, position in zip(rows, kept, strict=True):
            names.update(row.new_fields)
            with_new[position] = bool(row.new_fields)
        unknown = None
        if self._new_field == "evolve" and with_new.any():
            places = np.flatnonzero(with_new)
            unknown, wide = self.unknown(texts.take(pa.array(places)))
            for position, detail in wide.items():
                rejects.add(int(at[places[position]]), Reason.TOO_WIDE, detail)
            too_wide = set(places[list(wide)].tolist())
            good[list(too_wide)] = False
            rows = [row for row, position in zip(rows, kept, strict=True) if position not in too_wide]
            kept = [position for position in kept if position not in too_wide]
        fast = self._fast_rows(proof, good)
        table, index = _joined(self._layout.schema, fast, np.flatnonzero(good), rows, np.array(kept, np.int64))
        ignored = limit_names(names) if self._new_field == "ignore" else {}
        return Decoded(table, pa.array(at[index]), rejects.in_order(), unknown, ignored)

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """The scalar at a JSON pointer or dotted path as text, NULL if absent; unreadable values are rejected."""
        parts = _parts(path)
        texts, at, rejects = triage(values, self._limits)
        scalars, sure = _peek_quickly(texts, pointer(parts))
        if not sure.all():
            exact: list[str | None] = []
            for position in np.flatnonzero(~sure).tolist():
                try:
                    exact.append(_peek_exactly(self._exact.parser, texts[position].as_py(), parts))
                except UnfitValue as unfit:
                    exact.append(None)
                    rejects.add(int(at[position]), unfit.reason, unfit.detail)
            scalars = pc.replace_with_mask(scalars, pa.array(~sure), pa.array(exact, pa.string()))
        return spread(scalars, at, len(values)), rejects.in_order()

    def _proof(self, texts: pa.StringArray) -> Proof | None:
        if self._prover is None or not len(texts):
            return None
        try:
            return self._prover.prove(texts)
        except duckdb.Error:
            return None  # the exact path does not need DuckDB

    def _survey(self, texts: pa.StringArray, proof: Proof, good: Mask, with_new: Mask) -> Counter[str]:
        """Accept rows whose only other content is new fields that the contract allows."""
        at = np.flatnonzero(proof.surplus)
        positions = proof.index[at]
        within = texts if len(at) == len(texts) else texts.take(pa.array(positions))
        calm = harmless(within, self._limits)
        survey = self._surveyor.survey(within, proof.entries[at], proof.colons[at], calm)
        accepted = survey.clean if self._new_field in ("ignore", "evolve") else survey.clean & ~survey.has_new
        good[positions[accepted]] = True
        with_new[positions[accepted]] = survey.has_new[accepted]
        if self._learned_keys.learn(within.filter(pa.array(accepted)), len(texts)):
            self._prover = self._learned_keys.prover()
        return survey.names

    def _fast_rows(self, proof: Proof | None, good: Mask) -> list[pa.Array]:
        if proof is None:
            return [pa.nulls(0, item.type) for item in self._layout.schema]
        keep = good[proof.index]
        return proof.columns if keep.all() else [column.filter(pa.array(keep)) for column in proof.columns]

    def _explain(
        self, texts: pa.StringArray, at: Numbers, rest: Numbers, rejects: Rejects
    ) -> tuple[list[Row], list[int]]:
        rows, kept = [], []
        if self._prover is not None and len(rest):
            explained = self._faults.explain(texts.take(pa.array(rest)), len(texts))
            rejects.join(explained, at[rest])
            rest = np.delete(rest, explained.columns.index)
        for position in rest.tolist():
            try:
                rows.append(self._exact.read(texts[position].as_py()))
                kept.append(position)
            except UnfitValue as unfit:
                rejects.add(int(at[position]), unfit.reason, unfit.detail)
        return rows, kept

    def _recognize(self, texts: pa.StringArray, at: Numbers, rejects: Rejects) -> tuple[pa.StringArray, Numbers]:
        """The texts without those that have a known fault, which are rejected."""
        if self._prover is None or not len(known := self._faults.recognize(texts)):
            return texts, at
        rejects.join(known, at)
        others = np.delete(np.arange(len(texts)), known.columns.index)
        return texts.take(pa.array(others)), at[others]

    def messages(self, texts: pa.StringArray) -> pa.Array:
        """The JSON text of the row inside each value."""
        return _rows_in(texts, self._layout)

    def unknown(self, texts: pa.StringArray) -> tuple[Structure | None, dict[int, str]]:
        """New fields that the schema can gain, and details for values that have too many."""
        lacking = self._lacking(infer(texts)) if len(texts) else None
        # Without a conflict, all values together ask for at least the columns that each asks for. With one they may
        # ask for less: {"a": {"b": 1, "c": 2}} asks for 3 columns, merged with {"a": 1} for one with JSON text.
        if lacking is None or (added(self._known, lacking) <= self._limits.new_columns and not holds_json(lacking)):
            return lacking, {}
        structures, which = distinct(texts)
        brought = [self._beyond(each) or {} for each in structures]
        columns = np.array([added(self._known, each) for each in brought])
        wide = columns[which] > self._limits.new_columns
        refused = {
            row: too_many(brought[which[row]], int(columns[which[row]]), self._limits)
            for row in np.flatnonzero(wide).tolist()
        }
        return self._lacking(infer(texts.filter(pa.array(~wide)))), refused

    def new_fields(self, values: pa.BinaryArray, owner: Numbers) -> dict[int, Structure]:
        """By owner, what `evolve` would add for its values, which are all good; `owner` has the one of each value."""
        texts, at, _ = triage(values, self._limits)
        structures, which = distinct(texts)
        by_owner: dict[int, list[Structure]] = {}
        # Values without a new field have no part in the inference, as in `decode`.
        with_new = np.array([self._beyond(each) is not None for each in structures], bool)
        for one, number in np.unique(np.column_stack([owner[at], which])[with_new[which]], axis=0).tolist():
            by_owner.setdefault(one, []).append(structures[number])
        beyond = ((one, self._lacking(merge_all(parts))) for one, parts in by_owner.items())
        return {one: lacking for one, lacking in beyond if lacking is not None}

    def _lacking(self, structure: Structure) -> Structure | None:
        """The part of a structure that the schema can gain."""
        structure_beyond = self._beyond(structure)
        return structure_beyond if structure_beyond and (self._whole or added(self._known, structure_beyond)) else None

    def _beyond(self, structure: Structure) -> Structure | None:
        """The part of a structure that the schema does not have."""
        if self._whole:
            return structure
        beyond = _beyond(self._layout.root, structure)
        for step in self._layout.row_path:
            beyond = beyond and beyond.get("fields", {}).get(step)
        return beyond


def _rows_in(texts: pa.StringArray, layout: PayloadSchema) -> pa.Array:
    """The JSON text of the row inside each value."""
    if not layout.row_path:
        return texts
    where = duck.literal(json_path_of(layout.root, layout.row_path))
    sql = f"SELECT CAST(json_extract(v, {where}) AS VARCHAR) AS t FROM seen"  # noqa: S608 - the path is quoted
    rows = duck.plan_of_query(sql, seen=pa.table({"v": texts}))["t"].combine_chunks().cast(pa.string())
    # DuckDB reformats numbers; if that would change a text, the original is cut out.
    rewritten = pa.array(matches(texts, LONG_NUMBER))
    return pc.replace_with_mask(rows, rewritten, _cut(texts.filter(rewritten), layout.row_path))


def _cut(texts: pa.StringArray, parents: tuple[str, ...]) -> pa.StringArray:
    """The original text at a path of each value, NULL if absent."""
    root = reduce(lambda node, key: PayloadNode("object", children={key: node}), reversed(parents), PayloadNode("json"))
    cutter = Cutter(Parser(DecodeLimits()), root)
    cuts = (
        reduce(lambda value, key: value and value.get(key), parents, cutter.cut(text)) for text in texts.to_pylist()
    )
    return pa.array(cuts, pa.string())


def _provable(layout: PayloadSchema) -> bool:
    """Whether every key can be part of a DuckDB path without another meaning."""
    nodes = [layout.root, *(node for _, node in walk_nodes(layout.root))]
    names = [key for node in nodes if node.kind == "object" for key in node.children]
    return not layout.overlaps and not any(not name or set('"*\\\0') & set(name) for name in names)


def _joined(
    schema: pa.Schema, fast: list[pa.Array], fast_at: Numbers, rows: list[Row], rows_at: Numbers
) -> tuple[pa.Table, Numbers]:
    """Rows of both code paths in the order of the input."""
    table = pa.Table.from_arrays(fast, schema=schema)
    if not rows:
        return table, fast_at
    slow = [pa.array([row.values[at] for row in rows], item.type) for at, item in enumerate(schema)]
    return _in_order([(table, fast_at), (pa.Table.from_arrays(slow, schema=schema), rows_at)])


def _in_order(parts: list[tuple[pa.Table, Numbers]]) -> tuple[pa.Table, Numbers]:
    """Rows of several code paths in the order of the input."""
    if len(parts) == 1:
        return parts[0]
    index = np.concatenate([at for _, at in parts])
    order = np.argsort(index, kind="stable")
    return pa.concat_tables([table for table, _ in parts]).take(pa.array(order)), index[order]


def _beyond(node: PayloadNode, structure: Structure) -> Structure | None:
    """The part of a structure that a node does not have."""
    kind = structure.get("type")
    if node.kind == "list" and kind == "list":
        element = _beyond(node.children["*"], structure["element"])
        return element and {"type": "list", "element": element}
    if kind != "struct" or node.kind not in ("object", "map"):
        return None
    fields: dict[str, Structure] = {}
    for key, item in structure["fields"].items():
        child = node.children.get("*" if node.kind == "map" else key)
        if (more := item if child is None else _beyond(child, item)) is not None:
            fields[key] = more
    return struct(fields) if fields else None


def _parts(path: str) -> tuple[str, ...]:
    if not path.startswith("/"):
        return tuple(path.split("."))
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/"))


def _peek_quickly(texts: pa.StringArray, where: str) -> tuple[pa.StringArray, Mask]:
    """The scalars at a pointer by DuckDB, and which of them are certain."""
    place = duck.literal(where)
    sql = f"""
        SELECT CASE WHEN kind IN ('VARCHAR', 'UBIGINT', 'BIGINT', 'BOOLEAN')
                    THEN json_extract_string(j, {place}) END AS text,
               text IS NOT NULL OR (coalesce(kind, 'NULL') = 'NULL' AND json_type(j) = 'OBJECT') AS sure
        FROM (SELECT j, json_type(j, {place}) AS kind FROM (SELECT TRY_CAST(v AS JSON) AS j FROM seen))
    """  # noqa: S608 - the pointer is quoted
    result = duck.plan_of_query(sql, seen=pa.table({"v": texts}))
    return result["text"].combine_chunks(), bools(result["sure"].combine_chunks())


def _peek_exactly(parser: Parser, text: str, parts: tuple[str, ...]) -> str | None:
    value: Any = parser.parse(text)
    for part in parts:
        value = _step(value, part)
    if isinstance(value, dict | list):
        raise UnfitValue(Reason.TYPE, f"{'.'.join(parts)}: expected one value, saw {describe(value)}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, str):
        return value
    return value.text if isinstance(value, Real) else str(value)


def _step(value: Any, part: str) -> Any:
    if isinstance(value, list) and part.isdecimal():
        return value[int(part)] if int(part) < len(value) else None
    return value.get(part) if isinstance(value, dict) else None


def bound_errors(layout: PayloadSchema, new_field: NewField, limits: DecodeLimits) -> Decoder:
    """Make the JSON decoder of a layout; rescues values if the layout has a column for them."""
    if not layout.rescue:
        return JsonDecoder(layout, new_field, limits)
    if layout.elements is not None:
        clean = JsonDecoder(layout.bare(), "reject" if new_field == "rescue" else new_field, limits)
        records = bound_errors(as_text(layout, layout.elements), new_field, limits)
        each = bound_errors(layout.elements.layout, new_field, limits)
        return ElementsDecoder(clean, records, each, layout, new_field, limits)
    bare = layout.bare()
    inner = JsonDecoder(bare, "reject" if new_field == "rescue" else new_field, limits)
    keep = KeptText(new_field == "rescue", frozenset(column.path for column in bare.columns if column.rescued))
    templates = TemplateMatchers(bare, limits, new_field == "ignore", keep) if _provable(bare) else None
    return RescuingDecoder(inner, layout, new_field, limits, templates)


def json_decoder(payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: JsonFormat) -> Decoder:
    """The factory of the format table."""
    if options.envelope == "none":
        inner: Decoder = bound_errors(payload_schema_of(payload), new_field, limits)
    else:
        inner = Enveloped(ENVELOPES[options.envelope], bound_errors, payload, new_field, limits)
    if options.rows != "object":
        inner = UnpackingDecoder(inner, json_elements if options.rows == "array" else lines, limits)
    if options.compression != "none":
        inner = UnpackingDecoder(inner, unpacking(options.compression), limits)
    if options.registry is not None:
        inner = RegisteredJson(inner, options.registry, payload, new_field, limits)
    return inner
