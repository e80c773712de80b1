"""Compile the steps of a transform to a program: the columns after each step, and the source of each output column."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import duckdb
import pyarrow as pa

from headrace.decode.payload_field import payload_field
from headrace.delta.schema import RECORD_SCHEMA
from headrace.engine import duck
from headrace.errors import UsageError
from headrace.spec.secrets import Secret
from headrace.spec.types import TIMESTAMP
from headrace.transform.headers import HEADER_MAP
from headrace.transform.jmespath import dialect
from headrace.transform.jmespath.placement import NOTHING, PlacedResult, place_results
from headrace.transform.jmespath.queries import Queries
from headrace.transform.mask import Form, NullMask, masked
from headrace.transform.program import CLOCK, INPUT, Check, ColumnSource, Level, Program, pad_names, select_sql
from headrace.transform.sql import result_types
from headrace.transform.sql.expression import RECORD_NAMES, ROW, bind_parameters

ON_NULL = ("keep", "drop", "null")


def compiled(instructions: Iterable[tuple[str, str, str | Form]], payload: pa.Schema, targets: pa.Schema) -> Program:
    """Compile steps for one payload schema; raises UsageError if they do not fit it.

    `targets` are the known columns of the table: results of JMESPath have their types.
    """
    builder = _Builder(payload, targets)
    verbs: dict[str, Callable[[str, str], None]] = {
        "set": builder.set,
        "where": builder.where,
        "drop": builder.drop,
        "rename": builder.rename,
        **{f"query {on_null}": partial(builder.query, on_null=on_null) for on_null in ON_NULL},
    }
    for verb, name, argument in instructions:
        if isinstance(argument, str):
            verbs[verb](name, argument)
        else:
            builder.mask(name, argument)
    return builder.program()


def target_type(target: str, targets: pa.Schema) -> pa.Field | None:
    """The column, or the nested field, of a dotted name; None if it is unknown."""
    root, *path = target.split(".")
    item = next((each for each in targets if each.name.lower() == root.lower()), None)
    for key in path:
        if item is None or pa.types.is_null(item.type):
            return None
        if not pa.types.is_struct(item.type):
            raise UsageError(f"jmespath {target}: '{item.name}' is {item.type}, and has no field '{key}'.")
        at = item.type.get_field_index(key)
        item = item.type.field(at) if at >= 0 else None
    return None if item is None or pa.types.is_null(item.type) else item


@dataclass(frozen=True, slots=True)
class _Expression:
    """An expression bound to the current columns, and the type of its result."""

    label: str
    sql: str
    type: pa.DataType
    loose: bool


class _Builder:
    """The columns after each step, and the levels so far."""

    def __init__(self, payload: pa.Schema, targets: pa.Schema) -> None:
        self.payload = payload
        self.targets = targets
        self.queries = Queries(payload)
        self.numbers: list[int] = []
        self.queried: set[str] = set()
        self.keys: list[Secret] = []
        self.columns: dict[str, ColumnSource] = {}  # by lower-case name, in the order of the output
        self.checks: list[Check] = []
        self.read: dict[str, str] = {}
        self.record_columns: set[str] = set()
        self.levels: list[str] = []
        self.level = Level()
        self.known = [pa.field(CLOCK, TIMESTAMP), *_record_fields()]  # columns that expressions can read
        for nth, item in enumerate(payload):
            self._admit(f"p{nth}", item)

    def _admit(self, column: str, item: pa.Field) -> None:
        spec = payload_field(item)
        if spec.message or spec.record:
            return
        key, absent = item.name.lower(), pa.types.is_null(item.type)
        if not absent:
            self.known.append(pa.field(column, item.type))
        if not absent or key not in self.columns:
            self.columns[key] = ColumnSource(item, item.name, None if absent else column, loose=absent)

    def set(self, name: str, text: str) -> None:
        """Add or replace a column."""
        expression = self._expression(f"set {name}", text)
        before = self.columns.get(name.lower())
        kind, column = expression.type, None
        if copied := self._copied(expression):
            item = pa.field(before.field.name if before else name, kind)
            self.columns[name.lower()] = ColumnSource(item, None, copied, True, expression.loose, copied=True)
            return
        if not pa.types.is_null(kind):
            column = self._check(expression)
            self.known.append(pa.field(column, kind))
        elif before and not expression.loose:
            kind = before.field.type
        item = pa.field(before.field.name if before else name, kind)
        self.columns[name.lower()] = ColumnSource(item, None, column, True, expression.loose)

    def _copied(self, expression: _Expression) -> str | None:
        """The input column that the expression is, if all its values can be stored unchanged."""
        names = {*self.read.values(), *self.record_columns}
        for item in self.known:
            if item.name in names and expression.sql == f"{ROW}.{item.name}" and item.type == expression.type:
                return None if result_types.sound("v", item.type) else item.name
        return None

    def query(self, target: str, text: str, *, on_null: str) -> None:
        """Put the result of a JMESPath expression over the message at a dotted name."""
        root, *path = target.split(".")
        before = self.columns.get(root.lower())
        if dialect.always_null(text):
            self._without(target, before, on_null)
            return
        query = self.queries.add(text, target_type(target, self.targets))
        self.checks.append(Check(f"jmespath {target}", "NULL", len(self.levels)))
        nth = len(self.checks)
        self.numbers.append(nth)
        if query.empty:
            self._without(target, before, on_null)
            return
        source = ColumnSource(pa.field(root, query.field.type), None, f"j{nth}", computed=True, queried=True)
        self.known.append(pa.field(f"j{nth}", query.field.type))
        kept = on_null == "keep" and not dialect.never_null(text)
        if path or (kept and before is not None and not pa.types.is_null(before.field.type)):
            self._put(target, before, source, on_null if kept or on_null != "keep" else "null")
            return
        self.columns[root.lower()] = replace(
            source, field=source.field.with_name(before.field.name if before else root)
        )

    def _without(self, target: str, before: ColumnSource | None, on_null: str) -> None:
        """A result that is null in every record."""
        root, *path = target.split(".")
        if on_null == "keep" or before is None:
            return
        if path:
            nothing = ColumnSource(pa.field(root, pa.null()), None, None, computed=True)
            self._put(target, before, nothing, on_null)
        elif on_null == "drop":
            self.columns.pop(root.lower())
        else:
            self.columns[root.lower()] = ColumnSource(before.field, None, None, True, loose=before.loose)

    def _put(self, target: str, before: ColumnSource | None, source: ColumnSource, on_null: str) -> None:
        """Put a result in an existing column, or in a nested field of one."""
        root, *path = target.split(".")
        name = before.field.name if before else root
        have = PlacedResult(f"{ROW}.{self._reads(before)}", before.field.type) if before and before.column else NOTHING
        result = f"{ROW}.{self._reads(source)}" if source.column else "NULL"
        put = place_results(have, path, PlacedResult(result, source.field.type), on_null, target)
        if pa.types.is_null(put.type):
            return
        column = self._check(_Expression(f"jmespath {target}", put.sql, put.type, False))
        self.known.append(pa.field(column, put.type))
        self.columns[root.lower()] = ColumnSource(pa.field(name, put.type), None, column, True)

    def where(self, _: str, text: str) -> None:
        """Keep rows for which the expression is true."""
        expression = self._expression("where", text)
        if not (pa.types.is_boolean(expression.type) or pa.types.is_null(expression.type)):
            raise UsageError(f"where: '{text}' is {expression.type}, not true or false.")
        self._check(replace(expression, type=pa.bool_()), filters=True)

    def mask(self, target: str, form: Form) -> None:
        """Mask a column or a nested field; a field that no record has needs no mask."""
        root, *path = target.split(".")
        before = self.columns.get(root.lower())
        if before is None or pa.types.is_null(before.field.type):
            return
        have = f"{ROW}.{self._reads(before)}" if before.column else "NULL"
        try:
            sql, item = masked(have, before.field, path, form, self._key)
        except UsageError as error:
            raise UsageError(f"mask {target}: {error.message}", hint=error.hint) from None
        column = None
        if before.column and (path or not isinstance(form, NullMask)):
            column = self._check(_Expression(f"mask {target}", sql, item.type, before.loose))
            self.known.append(pa.field(column, item.type))
        self.columns[root.lower()] = ColumnSource(item, None, column, True, before.loose)

    def _key(self, key: Secret) -> tuple[str, str]:
        """The columns of a key's pads."""
        if key not in self.keys:
            self.keys.append(key)
            self.known += [pa.field(name, pa.binary()) for name in pad_names(len(self.keys) - 1)]
        inner, outer = pad_names(self.keys.index(key))
        return f"{ROW}.{inner}", f"{ROW}.{outer}"

    def drop(self, name: str, _: str) -> None:
        """Remove a column; one that no record has is already gone."""
        self.columns.pop(name.lower(), None)

    def rename(self, old: str, new: str) -> None:
        """Rename a column; its position stays."""
        if old.lower() not in self.columns:
            return
        if new.lower() != old.lower() and new.lower() in self.columns:
            raise UsageError(f"rename: the column '{new}' already exists.", hint="Drop it or rename it first.")
        source = self.columns[old.lower()]
        renamed = {old.lower(): (new.lower(), replace(source, field=source.field.with_name(new)))}
        self.columns = dict(renamed.get(key, (key, each)) for key, each in self.columns.items())

    def program(self) -> Program:
        """The compiled program."""
        self._end_level()
        output = tuple(self.columns.values())
        schema = pa.schema([source.field for source in output], self.payload.metadata)
        read, record_columns = tuple(self.read.items()), tuple(sorted(self.record_columns))
        return Program(
            schema,
            output,
            tuple(self.levels),
            tuple(self.checks),
            read,
            record_columns,
            self.queries,
            tuple(self.numbers),
            frozenset(self.queried),
            tuple(self.keys),
        )

    def _expression(self, label: str, text: str) -> _Expression:
        columns: dict[str, str | None] = {}  # by name

        def bind(name: str) -> str | None:
            columns[name] = self._bind(name)
            return columns[name]

        try:
            sql = bind_parameters(text, bind, CLOCK)
            read = {CLOCK, *columns.values()}
            kind = _type_of(sql, pa.schema([item for item in self.known if item.name in read]))
        except duckdb.Error as error:
            problem = str(error).splitlines()[0].split("Error: ", 1)[-1].rstrip(".")
            raise UsageError(f"{label}: '{text}' does not fit the columns: {problem}.") from error
        loose = any(self._is_loose(name) for name in columns)
        return _Expression(label, sql, result_types.storable(kind, f"{label}: '{text}'", widest=loose), loose)

    def _bind(self, name: str) -> str | None:
        """The SQL column of a name: the result of a step, then the record's columns, then the payload."""
        key = name.lower()
        source = self.columns.get(key)
        if key in RECORD_NAMES and not (source and source.computed):
            self.record_columns.add(key[1:])
            return key[1:]
        if source is None:
            return None
        return self._reads(source)

    def _reads(self, source: ColumnSource) -> str | None:
        """Add a column to the input, or to a level below."""
        if source.origin is not None and source.column:
            self.read[source.origin] = source.column
        elif source.queried and source.column:
            self.queried.add(source.column)
        elif source.column in self.level.columns:
            self._end_level()
        return source.column

    def _is_loose(self, name: str) -> bool:
        source = self.columns.get(name.lower())
        return source.loose if source else name.lower() not in RECORD_NAMES

    def _check(self, expression: _Expression, *, filters: bool = False) -> str:
        """Number the expression and add it to the current level; returns the column of its value."""
        nth = len(self.checks) + 1
        cast = f"CAST({expression.sql} AS {result_types.sql_type(expression.type)})"
        self.checks.append(Check(expression.label, cast, len(self.levels)))
        return self.level.add(nth, cast, result_types.sound(f"x{nth}.v", expression.type), filters)

    def _end_level(self) -> None:
        self.levels += self.level.projections()
        self.level = Level()


def _record_fields() -> list[pa.Field]:
    return [pa.field(item.name, HEADER_MAP if item.name == "headers" else item.type) for item in RECORD_SCHEMA]


@lru_cache(maxsize=1024)
def _type_of(sql: str, columns: pa.Schema) -> pa.DataType:
    """The type of an expression in DuckDB; tables that differ in other columns share it."""
    return duck.query(select_sql(f"{sql} AS v", INPUT), **{INPUT: columns.empty_table()}).schema.field("v").type
