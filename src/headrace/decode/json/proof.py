"""The fast path: prove column by column which JSON values are valid, and return their typed rows.

DuckDB is less strict than the exact path: it rounds, converts and overlooks. A row is proven only if independent facts
agree: the JSON type at every known path is the column's; no value was lost in the conversion; the number of known keys
equals the number of all keys in the text, so that no key is new or duplicate; and none of the invalid texts that DuckDB
accepts occurs. Rows that are not proven are left to the exact path.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import DecodeLimits
from headrace.decode.byte_scan import Mask, Numbers, TextBytes, bools, lengths, matches, owners
from headrace.decode.json.exact import default_of
from headrace.decode.json.extraction import ListColumn, Path, expected_types, extraction_query
from headrace.decode.json.nesting import too_deep, widest
from headrace.decode.payload import PayloadColumn, PayloadNode, PayloadSchema, walk_nodes
from headrace.decode.scalars import proven
from headrace.engine import duck

_TRAILING_COMMA = r",\s*[}\]]"
_NOT_A_NUMBER = r"(?i)[:\[,\s-](nan|inf)"
# With 16 digits or more, or an exponent below -99, what DuckDB prints for a number need not be the number that
# was written: 1e-400 is 0.0 to it. What stands before such an exponent tells it from the hexadecimal digits of a text.
_LONG = "|".join(rf"\d{{{whole}}}\.\d{{{16 - whole}}}" for whole in range(1, 16))
LONG_NUMBER = _LONG + r"|\d{16}[eE]|[:\[,\s]-?\d+(?:\.\d+)?[eE]-\d{3}"


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of the fast path; texts that it does not list are unproven."""

    index: Numbers  # positions of the texts
    columns: list[pa.Array]  # typed, parallel to `index`
    proven: Mask
    surplus: Mask  # valid at every known path, but new keys are possible
    keys: Numbers  # known keys present
    entries: Numbers  # of these, keys of maps
    colons: Numbers  # keys in the text, or more
    new_fields: list[Mask]  # for each new field of the query, where it is present


class Prover:
    """A layout compiled to one query, and the checks of its result."""

    def __init__(self, layout: PayloadSchema, limits: DecodeLimits, new_fields: tuple[Path, ...] = ()) -> None:
        self._layout = layout
        self._limits = limits
        self._new_fields = len(new_fields)
        self._question = extraction_query(layout, new_fields)
        nodes = [node for _, node in walk_nodes(layout.root)]
        deepest = max((len(path) for path, _ in walk_nodes(layout.root)), default=0) + 1
        self._deep = deepest >= limits.depth
        self._decimals = any(pa.types.is_decimal(node.type) for node in nodes)
        self._defaults = {at: default_of(column) for at, column in enumerate(layout.columns) if column.node.default}
        self._wary = False  # the last batch had malformed values: validate before the query

    def prove(self, texts: pa.StringArray) -> Proof:
        """The typed columns of texts in valid UTF-8, and which of their rows are proven."""
        index = np.arange(len(texts))
        try:
            result = None if self._wary else self._ask(texts)
        except duckdb.InvalidInputException:
            result = None
        if result is None:
            valid = self._valid(texts)
            self._wary = not valid.all()
            index, texts = index[valid], texts.filter(pa.array(valid))
            result = self._ask(texts)
        return self._check(index, texts, result)

    def _ask(self, texts: pa.StringArray) -> pa.Table:
        return duck.plan_of_query(self._question.sql, seen=pa.table({"v": texts}))

    def _valid(self, texts: pa.StringArray) -> Mask:
        result = duck.plan_of_query("SELECT json_valid(v) AS valid FROM seen", seen=pa.table({"v": texts}))
        return bools(result["valid"].combine_chunks())

    def _check(self, index: Numbers, texts: pa.StringArray, result: pa.Table) -> Proof:
        content = TextBytes(texts)
        colons, keys = content.colons(), result["n"].to_numpy().astype(np.int64)
        entries = np.zeros(len(texts), np.int64)
        sure = bools(result["ok"].combine_chunks()) & content.first()
        for row in np.flatnonzero(sure & (colons > self._limits.keys)).tolist():
            sure[row] = widest(content.text(row)) <= self._limits.keys
        sure &= ~matches(texts, _TRAILING_COMMA)
        if self._decimals:
            sure &= ~matches(texts, LONG_NUMBER)
        unread = bools(result["open"].combine_chunks()) | self._deep
        doubt = Doubt(len(texts))
        columns = [self._column(at, column, result, doubt) for at, column in enumerate(self._layout.columns)]
        for at, place in enumerate(self._question.wild):
            types = result[f"w{at}"].combine_chunks()
            doubt.compare(place, types)
            unread |= (lengths(types) > 0) & (expected_types(place.node) is None)
            keys += lengths(types) * place.keyed
            entries += lengths(types) * place.entry
        sure &= ~doubt.rows
        if (ask := np.flatnonzero(sure & unread & (colons == keys))).size:
            sure[ask] = harmless(texts if ask.size == len(texts) else texts.take(pa.array(ask)), self._limits)
        with_new = [bools(result[f"s{at}"].combine_chunks()) for at in range(self._new_fields)]
        return Proof(index, columns, sure & (colons == keys), sure & (colons != keys), keys, entries, colons, with_new)

    def _column(self, at: int, column: PayloadColumn, result: pa.Table, doubt: Doubt) -> pa.Array:
        column_values = doubt.build(column.node, result[f"c{at}"].combine_chunks(), None, column.path)
        if at in self._defaults:
            default = pa.array([self._defaults[at]], column_values.type)[0]
            column_values = pc.if_else(result[f"d{at}"].combine_chunks(), default, column_values)
        if column_values.null_count and not column.node.nullable:
            doubt.add(None, column_values.is_null())
        return column_values


def harmless(texts: pa.StringArray, limits: DecodeLimits) -> Mask:
    """Which texts have no NaN and cannot be too deep, in the parts that no column reads."""
    content = TextBytes(texts)
    calm: Mask = ~matches(texts, _NOT_A_NUMBER)
    for row in np.flatnonzero(calm & (content.openers() >= limits.depth)).tolist():
        calm[row] = too_deep(content.text(row), limits.depth) is None
    return calm


@dataclass(slots=True)
class _Read:
    """Values read at a wildcard path, flat, and the row of each."""

    values: pa.Array
    rows: Numbers


@dataclass(slots=True)
class Doubt:
    """Rebuilds columns in their own types and collects the rows that are not proven."""

    length: int
    rows: Mask = field(init=False)
    _wild: dict[Path, _Read] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = np.zeros(self.length, bool)

    def add(self, rows: Numbers | None, mask: pa.BooleanArray) -> None:
        """Doubt the rows (None: one per position) where the mask is true."""
        if rows is None:
            self.rows |= bools(mask)
        else:
            self.rows[rows[bools(mask)]] = True

    def build(self, node: PayloadNode, column: pa.Array, rows: Numbers | None, path: Path) -> pa.Array:
        """The column in its node's type; a value that is not proven is NULL, and its row is doubted."""
        if rows is not None:
            self._wild[path] = _Read(column, rows)
        if node.kind == "object":
            return self._object(node, column, rows, path)
        if node.kind == "list":
            return self._list(node, column, rows, path)
        if node.kind == "map":
            return self._map(node, column, rows, path)
        values = column.cast(pa.string()) if node.kind == "json" else proven(node, column)
        if values.null_count != column.null_count:
            self.add(rows, pc.and_(values.is_null(), column.is_valid()))
        return values

    def compare(self, place: ListColumn, types: pa.ListArray) -> None:
        """Compare the values at a wildcard path with the JSON types there: none unexpected, none lost."""
        if (read := self._wild.get(place.path)) is None:
            return
        seen = types.flatten()
        if (allowed := expected_types(place.node)) is not None:
            unexpected = pc.invert(pc.is_in(seen, value_set=pa.array([*allowed, "NULL"])))
            if unexpected.true_count:
                self.add(owners(types), unexpected)
        there = pc.not_equal(seen, "NULL")
        if there.true_count != len(read.values) - read.values.null_count:
            expected_counts = np.bincount(owners(types)[bools(there)], minlength=self.length)
            counts = np.bincount(read.rows[bools(read.values.is_valid())], minlength=self.length)
            self.rows |= expected_counts != counts

    def _object(self, node: PayloadNode, column: pa.Array, rows: Numbers | None, path: Path) -> pa.Array:
        missing = column.is_null()
        children = []
        for at, (key, child) in enumerate(node.children.items()):
            values = self.build(child, pc.struct_field(column, at), rows, (*path, key))
            if values.null_count > column.null_count and (child.default is not None or not child.nullable):
                self.add(rows, pc.and_not(values.is_null(), missing))
            children.append(values)
        return pa.StructArray.from_arrays(children, fields=list(node.type), mask=missing)

    def _list(self, node: PayloadNode, column: pa.Array, rows: Numbers | None, path: Path) -> pa.Array:
        elements = self._elements(node, column, column.flatten(), rows, path)
        return pa.ListArray.from_arrays(_offsets(column), elements, type=node.type, mask=column.is_null())

    def _map(self, node: PayloadNode, column: pa.Array, rows: Numbers | None, path: Path) -> pa.Array:
        items = self._elements(node, column, column.items, rows, path)
        return pa.MapArray.from_arrays(_offsets(column), column.keys, items, type=node.type, mask=column.is_null())

    def _elements(
        self, node: PayloadNode, column: pa.Array, flat: pa.Array, rows: Numbers | None, path: Path
    ) -> pa.Array:
        below = owners(column) if rows is None else rows[owners(column)]
        element = node.children["*"]
        elements = self.build(element, flat, below, (*path, "*"))
        if elements.null_count and not element.nullable:
            self.add(below, elements.is_null())
        return elements


def _offsets(column: pa.Array) -> pa.Int32Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths(column))]).astype(np.int32))
