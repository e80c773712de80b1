"""Run JMESPath over rows: each expression as SQL over all rows, then by the interpreter where SQL is uncertain."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import LIMITS
from headrace.decode.byte_scan import Mask, bools
from headrace.decode.json.exact import reader_of
from headrace.decode.payload import node_of, rescues
from headrace.decode.payload_field import MessageScope, PayloadField, payload_field, payload_fields
from headrace.decode.scalars import UnfitValue
from headrace.decode.sizes import check_capacity, row_bytes
from headrace.decode.typed.convert import converted
from headrace.engine import duck
from headrace.transform.jmespath import dialect
from headrace.transform.jmespath.compiler import Compiler
from headrace.transform.jmespath.result_type import kind_of
from headrace.transform.jmespath.vector import BOOLEAN, DOUBLE, EXACT, LONG, TEXT, MessageColumnRef, NotInSql, SqlVector

Failures = dict[int, str]  # position -> reason of the failure


@dataclass(frozen=True)
class CompiledQuery:
    """One expression, compiled for rows of one schema."""

    source: str
    field: pa.Field  # type of the result, and unit of a declared column
    vector: SqlVector | None  # None: a column of the record, or left to the interpreter
    read: Callable[[Any], Any]  # converts a JSON value to the result's type; raises UnfitValue

    @property
    def column(self) -> pa.Field:
        """The column with the unit that the expression itself gives its numbers."""
        return _with_unit(_bare(self.field), self.source)

    @property
    def copied(self) -> bool:
        """Whether the result is a column, or a nested field, unchanged."""
        return self.vector is not None and re.fullmatch(r"p[0-9_]+_", self.vector.sql) is not None

    @property
    def exact(self) -> bool:
        """Whether the result keeps all digits of the message."""
        return _holds_decimals(self.field.type)

    @property
    def empty(self) -> bool:
        """Whether the result is null in every record."""
        return bool(pa.types.is_null(self.field.type))


class Queries:
    """The expressions of a transform for one payload schema."""

    def __init__(self, payload: pa.Schema) -> None:
        self._record = next((item.name for item in payload_fields(payload) if item.record), None)
        payload = payload if self._record is None else pa.schema(list(payload.field(self._record).type.value_type))
        self._payload = payload
        scope = next((item.message for item in payload_fields(payload) if item.message), MessageScope())
        self._columns = dict(_columns(payload))
        self._compiler = Compiler(tuple(self._columns.values()), scope.open, frozenset(scope.skipped))
        self.asks = False  # whether an expression needs the message itself
        self.compiled: list[CompiledQuery] = []

    def add(self, source: str, target: pa.Field | None) -> CompiledQuery:
        """Add an expression; its result has the target's type, else the inferred one."""
        query = self._record_column(source, target) if source in dialect.KAFKA else self._expression(source, target)
        self.compiled.append(query)
        return query

    def _record_column(self, source: str, target: pa.Field | None) -> CompiledQuery:
        natural = {"kafka.topic": TEXT, "kafka.offset": LONG, "kafka.timestamp": LONG}.get(source, pa.int32())
        item = target or pa.field("", natural)
        return CompiledQuery(source, item, None, _reader(_with_unit(_bare(item), source)))

    def _expression(self, source: str, target: pa.Field | None) -> CompiledQuery:
        tree = dialect.parse_jmespath(source)
        kind = target.type if target is not None else kind_of(tree, self._payload, self._compiler)
        before, vector = len(self._compiler.places), None
        try:
            vector = self._compiler.compile(tree, kind, free=target is None)
            vector = vector if target is None else _stored(vector, kind)
            self.asks |= len(self._compiler.places) > before
        except NotInSql:
            self.asks = True
        item = target if target is not None else pa.field("", vector.kind if vector else kind)
        return CompiledQuery(source, item, vector, _reader(_with_unit(_bare(item), source)))

    def run(
        self, rows: pa.Table, records: pa.Table, now: datetime, repeated_bytes: int = LIMITS.repeated_bytes
    ) -> list[tuple[pa.Array, Failures]]:
        """Values of every expression over all rows, and failures; rows of one record have the same values.

        `repeated_bytes`: limit of one value in all rows of its record together.
        """
        if self._record is None:
            return self._run(rows, records, now)
        whole = _whole(rows.column(self._record))
        numbers, first, owner = np.unique(whole.indices.to_numpy(), return_index=True, return_inverse=True)
        distinct_rows = pa.Table.from_arrays(whole.dictionary.flatten(), schema=self._payload).take(pa.array(numbers))
        answers = self._run(distinct_rows, records.take(pa.array(first)), now)
        return [_of_rows(*result, owner, repeated_bytes) for result in answers]

    def _run(self, rows: pa.Table, records: pa.Table, now: datetime) -> list[tuple[pa.Array, Failures]]:
        columns = self._sql_columns(rows)
        result = self._sql_results(rows, columns, now) if self._computed else None
        parts = [self._part(nth, query, result, records, columns) for nth, query in enumerate(self.compiled)]
        open_ = [part for part in parts if part.unsure.any()]
        if open_:
            records = _Records(rows, self._columns, now)
            for position in np.flatnonzero(np.logical_or.reduce([part.unsure for part in open_])).tolist():
                records.move_to(position)
                for part in open_:
                    if part.unsure[position]:
                        part.interpret(position, records)
        return [part.complete() for part in parts]

    def _part(
        self,
        nth: int,
        query: CompiledQuery,
        result: pa.Table | None,
        records: pa.Table,
        columns: Mapping[str, pa.ChunkedArray],
    ) -> _Part:
        count = len(records)
        if query.vector and query.copied:
            return _Part(query, *_fitted(_whole(columns[query.vector.sql]), query.column))
        if query.source in dialect.KAFKA:
            natural = _record_values(records, query.source)
            return _Part(query, *_fitted(natural, query.column), natural)
        if query.vector is None or result is None:
            return _Part(query, pa.nulls(count, query.field.type), np.ones(count, bool))
        natural = _whole(result[f"v{nth}"])
        natural = natural if natural.type == query.vector.kind else natural.cast(query.vector.kind)
        values, unsure = _fitted(natural, query.column)
        return _Part(query, values, unsure | ~bools(pc.fill_null(_whole(result[f"s{nth}"]), False)))

    def _sql_results(self, rows: pa.Table, columns: Mapping[str, pa.ChunkedArray], now: datetime) -> pa.Table | None:
        """All vectors in one statement; None if DuckDB cannot read a message."""
        read = {name: values for name, values in columns.items() if self._reads(name)}
        if self._compiler.places:
            read["message"] = rows.column(_message_name(rows.schema))
        read["now"] = pa.repeat(pa.scalar(int(now.timestamp()), pa.int64()), len(rows))
        try:
            return duck.plan_of_query(self._statement(), rows=pa.table(read))
        except duckdb.Error:
            return None

    def _sql_columns(self, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
        """The columns and nested fields that expressions read, by their SQL name."""
        columns = {column.sql: rows.column(name) for name, column in self._columns.items()}
        parts = {
            name: pc.struct_field(columns[whole], list(keys)) for name, (whole, keys) in self._compiler.parts.items()
        }
        return columns | parts

    def _reads(self, column: str) -> bool:
        names = (re.findall(r"\bp[0-9_]+_\b", text) for query in self._computed for text in _sql_of(query))
        return any(column in names_in_sql for names_in_sql in names)

    @property
    def _computed(self) -> list[SqlVector]:
        """The vectors that are more than a column."""
        return [query.vector for query in self.compiled if query.vector and not query.copied]

    def _statement(self) -> str:
        items = []
        for nth, query in enumerate(self.compiled):
            if query.vector and not query.copied:
                sure = " AND ".join(dict.fromkeys(query.vector.sure)) or "true"
                items += [f"{query.vector.sql} AS v{nth}", f"{sure} AS s{nth}"]
        places = ", ".join(duck.literal(place) for place in self._compiler.places)
        cuts = f", json_extract(coalesce(message, '{{}}'), [{places}]) AS cuts" if places else ""
        cut = f"SELECT *{cuts} FROM rows"  # noqa: S608
        return f"SELECT {', '.join(items)} FROM ({cut})"  # noqa: S608 - made of our own names and quoted texts


def _of_rows(values: pa.Array, failures: Failures, owner: np.ndarray, limit: int) -> tuple[pa.Array, Failures]:
    """Values and failures of records, repeated for all their rows."""
    counts = np.bincount(owner, minlength=len(values))
    totals = row_bytes(values) * counts
    for record in np.flatnonzero(totals > limit).tolist():
        problem = f"its result in each of {counts[record]} rows has {totals[record]} bytes"
        failures = {record: f"{problem}, the limit is {limit} (limits.repeated_bytes)", **failures}
    light = totals <= limit
    check_capacity(totals[light])
    return values.take(pa.array(owner, mask=~light[owner])), _failed_rows(failures, owner)


def _failed_rows(failures: Failures, owner: np.ndarray) -> Failures:
    if not failures:
        return {}
    at = np.flatnonzero(np.isin(owner, list(failures)))
    return {row: failures[record] for row, record in zip(at.tolist(), owner[at].tolist(), strict=True)}


@dataclass
class _Part:
    """The values of one expression: the certain ones, and results of the interpreter for the others."""

    query: CompiledQuery
    certain: pa.Array
    unsure: Mask
    natural: pa.Array | None = None  # values of the record's columns
    values: list[Any] = field(default_factory=list)
    failures: Failures = field(default_factory=dict)

    def interpret(self, position: int, records: _Records) -> None:
        """Compute the value with the interpreter."""
        value = None
        try:
            result = records.answer(self.query) if self.natural is None else self.natural[position].as_py()
            value = None if result is None else self.query.read(result)
        except dialect.Failed as failed:
            self.failures[position] = str(failed)
        except UnfitValue as unfit:
            self.failures[position] = f"its result does not fit: {unfit.detail}"
        self.values.append(value)

    def complete(self) -> tuple[pa.Array, Failures]:
        """All values, and the reasons of failures."""
        if self.query.empty or not self.values:
            return self.certain, self.failures
        interpreted = pa.array(self.values, self.query.field.type)
        if len(interpreted) == len(self.certain):
            return interpreted, self.failures
        if pa.types.is_nested(interpreted.type):  # Arrow cannot replace nested values by a mask
            order = np.where(self.unsure, len(self.certain) + np.cumsum(self.unsure) - 1, np.arange(len(self.certain)))
            return pa.concat_arrays([self.certain, interpreted]).take(pa.array(order)), self.failures
        return pc.replace_with_mask(self.certain, pa.array(self.unsure), interpreted), self.failures


class _Records:
    """Messages, one by one."""

    def __init__(self, rows: pa.Table, columns: Mapping[str, MessageColumnRef], now: datetime) -> None:
        self._interpreter = dialect.Interpreter(now)
        name = _message_name(rows.schema)
        self._texts = rows.column(name) if name else None
        self._columns = {} if name else {name: column.path for name, column in columns.items()}
        self._rows = rows
        self._at = 0
        self._messages: dict[bool, Any] = {}  # of this record, with exact numbers or doubles

    def move_to(self, at: int) -> None:
        """Move to a record."""
        self._at = at
        self._messages.clear()

    def answer(self, query: CompiledQuery) -> Any:
        """An expression's result for the record; raises Failed."""
        return self._interpreter.answer(dialect.parse_jmespath(query.source), self._message(query.exact))

    def _message(self, exact: bool) -> Any:
        if exact not in self._messages:
            self._messages[exact] = self._assembled(self._at) if self._texts is None else self._loaded(exact)
        return self._messages[exact]

    def _loaded(self, exact: bool) -> Any:
        assert self._texts is not None  # noqa: S101
        text = self._texts[self._at].as_py()
        return {} if text is None else dialect.load_json(text, exact=exact)

    def _assembled(self, at: int) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        for name, path in self._columns.items():
            here = whole
            for key in path[:-1]:
                here = here.setdefault(key, {})
            here[path[-1]] = self._rows.column(name)[at].as_py()
        return whole


def _sql_of(vector: SqlVector) -> tuple[str, ...]:
    return (vector.sql, *vector.sure)


def _columns(payload: pa.Schema) -> list[tuple[str, MessageColumnRef]]:
    """Columns whose values equal the message's; defaults and JSON text do not."""
    columns = []
    rescued = rescues(payload)  # NULL may be a rescued value
    for nth, item in enumerate(payload_fields(payload)):
        if item.message or item.rescue or pa.types.is_null(item.type):
            continue
        odd = item.name in rescued or item.json_text or _has_default(item)
        columns.append((item.name, MessageColumnRef(item.keys, f"p{nth}_", item.type, unchanged=not odd)))
    return columns


def _has_default(item: PayloadField) -> bool:
    return item.default is not None or any(map(_has_default, item.children))


def _holds_decimals(kind: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return bool(pa.types.is_decimal(kind) or any(map(_holds_decimals, inner)))


def _message_name(schema: pa.Schema) -> str:
    return next((item.name for item in payload_fields(schema) if item.message), "")


def _stored(vector: SqlVector, kind: pa.DataType) -> SqlVector:
    """Convert a vector to the type of its column; raises NotInSql if only the interpreter can."""
    if pa.types.is_null(vector.kind) or vector.kind == kind:
        return vector
    if pa.types.is_string(kind):
        return _as_text(vector)
    if pa.types.is_integer(kind) and vector.kind == DOUBLE:
        value, exact = vector.sql, EXACT
        good = f"coalesce(trunc({value}) = {value} AND abs({value}) <= {exact}, true)"
        return SqlVector(f"TRY_CAST({value} AS BIGINT)", LONG, (*vector.sure, good))
    numbers = vector.kind in (LONG, DOUBLE) and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    times = pa.types.is_timestamp(kind) and vector.kind in (LONG, TEXT)
    if numbers or times or (pa.types.is_date(kind) and vector.kind == TEXT):
        return vector
    raise NotInSql(f"{vector.kind} into {kind}")


def _as_text(vector: SqlVector) -> SqlVector:
    if vector.kind == LONG:
        return SqlVector(f"CAST({vector.sql} AS VARCHAR)", TEXT, vector.sure)
    if vector.kind == BOOLEAN:
        text = f"CASE WHEN {vector.sql} THEN 'true' WHEN NOT {vector.sql} THEN 'false' END"
        return SqlVector(text, TEXT, vector.sure)
    raise NotInSql("its text")


def _with_unit(item: pa.Field, source: str) -> pa.Field:
    """A column of times, in microseconds if the expression's numbers are; otherwise with its own unit."""
    micros = pa.types.is_timestamp(item.type) and dialect.in_micros(source)
    return PayloadField(item.name, item.type, item.nullable, unit="us").to_arrow() if micros else item


def _fitted(values: pa.Array, item: pa.Field) -> tuple[pa.Array, Mask]:
    """Values in the result's type, and which of them are still missing."""
    if values.type == item.type:
        return values, np.zeros(len(values), bool)
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), item.type), np.zeros(len(values), bool)
    column = converted(values, node_of(item))
    if column is None:
        return pa.nulls(len(values), item.type), bools(values.is_valid())
    return column, bools(values.is_valid()) & bools(column.is_null())


def _bare(item: pa.Field) -> pa.Field:
    """A declared column with only its type and unit: default and path concern the reading of a message."""
    return PayloadField(item.name, item.type, unit=payload_field(item).unit).to_arrow()


def _reader(item: pa.Field) -> Callable[[Any], Any]:
    """Make the reader of a JSON value to the result's type, as in KDI: in a text column, other values are JSON text."""
    kind = item.type
    if pa.types.is_null(kind):
        return lambda value: None
    if pa.types.is_string(kind):
        return lambda value: value if isinstance(value, str) else dialect.dump_json(value)
    read = reader_of(node_of(item))
    if pa.types.is_integer(kind):
        return lambda value: read(int(value) if isinstance(value, float) and value.is_integer() else value)
    return read


def _record_values(records: pa.Table, source: str) -> pa.Array:
    values = _whole(records.column(dialect.KAFKA[source]))
    if source == "kafka.timestamp":
        return values.cast(pa.int64())
    return pc.fill_null(values, -1) if source == "kafka.timestamp_type" else values


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def needs_message(sources: Sequence[tuple[str, pa.Field | None]], payload: pa.Schema) -> bool:
    """Whether expressions read more of a message than the payload's columns have."""
    queries = Queries(payload)
    for source, target in sources:
        queries.add(source, target)
    return queries.asks
