"""The steps of a transform: expressions over all rows in one vectorised pass, with failures per record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import LIMITS, Rejects
from headrace.decode.sizes import is_overflow, plain_array
from headrace.engine import duck
from headrace.errors import UsageError
from headrace.reasons import Reason
from headrace.transform.compiler import compiled, target_type
from headrace.transform.jmespath import dialect
from headrace.transform.jmespath.dialect import always_null, message_keys, never_null
from headrace.transform.jmespath.queries import needs_message
from headrace.transform.mask import Form
from headrace.transform.program import INPUT, Check, ColumnSource, Program
from headrace.transform.sql import expression as expressions
from headrace.transform.sql.expression import RECORD_NAMES

EXPLAINED = 32  # dead letters per run with the error message of the failure, which costs a query each
_LONGEST_DETAIL = 512
_SLICE_BYTES = 64 * 1024 * 1024  # bytes of columns that expressions read at once
NO_COLUMNS = pa.schema([])


@dataclass(frozen=True, slots=True)
class SetStep:
    """Add or replace columns in order; each expression can read the results before it."""

    expressions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WhereStep:
    """Keep rows for which the expression is true; the others are filtered and counted."""

    expression: str


@dataclass(frozen=True, slots=True)
class DropStep:
    """Remove columns."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RenameStep:
    """Rename columns: old to new."""

    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JmespathStep:
    """Add or replace columns or nested fields, by JMESPath over the original message."""

    expressions: Mapping[str, str]  # dotted target -> expression
    on_null: Literal["keep", "drop", "null"] = "keep"


@dataclass(frozen=True, slots=True)
class MaskStep:
    """Mask columns or nested fields, by dotted name."""

    forms: Mapping[str, Form]


TransformStep = SetStep | WhereStep | DropStep | RenameStep | JmespathStep | MaskStep


@dataclass(frozen=True)
class Transformed:
    """The result of the steps: rows, and the outcome of every record without a row."""

    rows: pa.Table
    index: pa.Int64Array
    filtered: pa.Int64Array
    rejects: Rejects


@dataclass
class Transform:
    """Steps, compiled once per payload schema and applied to whole tables."""

    steps: Sequence[TransformStep]
    repeated_bytes: int = LIMITS.repeated_bytes  # bytes of a result in all rows of one record
    _programs: dict[tuple[bytes, bytes], Program] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.steps = tuple(self.steps)
        for label, text, judge in _texts(self.steps):
            if problems := judge(text):
                raise UsageError(f"{label}: {problems[0]}.")

    def inputs(self) -> frozenset[str]:
        """The payload names that SQL reads; JMESPath reads the message."""
        return frozenset(_inputs(self.steps))

    def targets(self) -> frozenset[str]:
        """The names that `set` produces."""
        return frozenset(name for step in self.steps if isinstance(step, SetStep) for name in step.expressions)

    def derived(self) -> frozenset[str]:
        """The columns that do not depend on a payload field of the same name."""
        overwritten = {name for step in self.steps if isinstance(step, JmespathStep) for name in _overwritten(step)}
        return (self.targets() | overwritten) - self.inputs()

    def queries(self) -> tuple[tuple[str, str], ...]:
        """Dotted targets and JMESPath expressions."""
        return tuple(pair for step in self.steps if isinstance(step, JmespathStep) for pair in step.expressions.items())

    def keys_read(self) -> frozenset[str]:
        """The keys of messages that JMESPath reads."""
        return frozenset(key for _, text in self.queries() for key in message_keys(text))

    def asks_message(self, payload: pa.Schema, targets: pa.Schema) -> bool:
        """Whether JMESPath reads more of the messages than the payload's columns have."""
        sources = [(text, target_type(name, targets)) for name, text in self.queries() if not always_null(text)]
        return bool(sources) and needs_message(sources, payload)

    def copied_columns(self) -> tuple[str, ...]:
        """The large record columns that `set` copies to every row of a record."""
        texts = (text for step in self.steps if isinstance(step, SetStep) for text in step.expressions.values())
        names = {name.lower() for text in texts for name in expressions.columns_in(text)}
        return tuple(name for name in ("key", "headers") if f"_{name}" in names)

    def renamed(self, name: str) -> str | None:
        """The table column of a payload field; None if it is dropped."""
        here: str | None = name
        for step in self.steps:
            if here is not None:
                here = _moved(step, here)
        return here

    def output(self, payload: pa.Schema, targets: pa.Schema = NO_COLUMNS) -> pa.Schema:
        """The schema after the steps; a column that is always NULL has Arrow's null type."""
        return self._program(payload, targets).schema if self.steps else payload

    def apply(self, rows: pa.Table, records: pa.Table, now: datetime, targets: pa.Schema = NO_COLUMNS) -> Transformed:
        """The rows after the steps, with their positions; records with a failing expression are rejected."""
        if not self.steps:
            return Transformed(rows, _positions(len(rows)), _positions(0), Rejects())
        program = self._program(rows.schema, targets)
        return _Pass(program, rows, records, now, self.repeated_bytes).run()

    def _program(self, payload: pa.Schema, targets: pa.Schema = NO_COLUMNS) -> Program:
        key = (payload.serialize().to_pybytes(), targets.serialize().to_pybytes())
        if key not in self._programs:
            self._programs[key] = compiled(_instructions(self.steps), payload, targets)
        return self._programs[key]


def evaluate_expression(
    expression: str, rows: pa.Table, records: pa.Table, now: datetime
) -> tuple[pa.StringArray, Rejects]:
    """An expression's value per row as text; NULL if it is NULL or fails, with a reject in the latter case."""
    if problems := expressions.check_sql(expression):
        raise UsageError(f"{problems[0]}.")
    as_text = f"CAST((\n{expression}\n) AS VARCHAR)"
    try:
        result = Transform([SetStep({"route": as_text})]).apply(rows, records, now)
    except UsageError as error:
        raise UsageError(error.message.replace(f"set route: '{as_text}'", f"'{expression}'"), hint=error.hint) from None
    values = np.full(len(rows), None, object)
    values[result.index.to_numpy()] = result.rows["route"].to_numpy(zero_copy_only=False)
    return pa.array(values, pa.string()), result.rejects


class _Pass:
    """One run of a program over one table."""

    def __init__(self, program: Program, rows: pa.Table, records: pa.Table, now: datetime, repeated_bytes: int) -> None:
        self.program = program
        self.rows = rows
        self.micros = 0 if program.timeless else _micros(now)
        answers = program.queries.run(rows, records, now, repeated_bytes) if program.numbers else []
        queried = list(zip(program.numbers, answers, strict=True))
        self.results = {f"j{nth}": values for nth, (values, _) in queried}
        self.failures = [(nth, failures) for nth, (_, failures) in queried if failures]
        self.input = program.input(rows, records, self.results)

    def run(self) -> Transformed:
        if not self.program.checks or not len(self.rows):
            return Transformed(self._assembled(None), _positions(len(self.rows)), _positions(0), Rejects())
        result, broken = None, dict[int, str]()
        events = np.zeros(len(self.rows), np.int32)
        if self.program.levels:
            result, broken = _evaluated(self.program.statement(self.micros), self.input, self.program, 0)
            events = result["event"].to_numpy()
        events, broken = self._with_failures(events, broken)
        rejects = self._rejects(events, broken)
        rows, index = self._assembled(result), _positions(len(self.rows))
        if events.any():
            index = _at(events == 0)
            rows = rows.take(index)
        return Transformed(rows, index, _at(events < 0), rejects)

    def _with_failures(self, events: np.ndarray, broken: dict[int, str]) -> tuple[np.ndarray, dict[int, str]]:
        """The failure of the first step wins, whether SQL or JMESPath."""
        events, broken = events.copy() if self.failures else events, dict(broken)
        for nth, failures in self.failures:
            label = self.program.checks[nth - 1].label
            for position, why in failures.items():
                if not 0 < abs(int(events[position])) < nth:
                    events[position] = nth
                    broken[position] = f"{label}: {why}"
        return events, broken

    def _assembled(self, result: pa.Table | None) -> pa.Table:
        columns = [self._column(source, result) for source in self.program.output]
        return pa.Table.from_arrays(columns, schema=self.program.schema)

    def _column(self, source: ColumnSource, result: pa.Table | None) -> pa.ChunkedArray | pa.Array:
        if source.origin is not None:
            return self.rows.column(source.origin)
        if source.copied:
            return plain_array(self.input.column(source.column))
        if source.queried:
            return self.results[str(source.column)]
        if source.column is None or result is None:
            return pa.nulls(len(self.rows), source.field.type)
        column = result[source.column]
        return column if column.type == source.field.type else column.cast(source.field.type)

    def _rejects(self, events: np.ndarray, broken: Mapping[int, str]) -> Rejects:
        index = [int(position) for position in np.flatnonzero(events > 0)]
        details = []
        for nth, position in enumerate(index):
            check = self.program.checks[int(events[position]) - 1]
            detail = self._explained(check, position) if nth < EXPLAINED and position not in broken else _UNTOLD
            details.append(broken.get(position, f"{check.label}: {detail}")[:_LONGEST_DETAIL])
        return Rejects(index, [Reason.TRANSFORM] * len(index), details)

    def _explained(self, check: Check, position: int) -> str:
        """The error message: the expression again, for this record only and without TRY."""
        sql = self.program.explanation(check, self.micros)
        try:
            shown = duck.query(sql, **{INPUT: self.input.slice(position, 1)})["value"][0].as_py()
        except duckdb.Error as error:
            return _shortened(error)
        return f"its result {shown} cannot be stored"


_UNTOLD = "the expression fails for this record, as for others of its batch"


def _evaluated(sql: str, table: pa.Table, program: Program, first: int) -> tuple[pa.Table, dict[int, str]]:
    """Evaluate the program, large tables in slices: DuckDB holds all intermediate results in memory.

    TRY does not catch every error (memory): halve the table until the record is found.
    """
    ask = duck.plan_of_query if program.timeless else duck.query
    try:
        if len(table) == 1 or _bytes(table) <= _SLICE_BYTES:
            return ask(sql, **{INPUT: table}), {}
    except duckdb.Error as error:
        if not isinstance(error, duckdb.OperationalError) and not is_overflow(error):
            raise
        if len(table) == 1:
            return program.failed(), {first: _shortened(error)}
    half = len(table) // 2
    one, broken = _evaluated(sql, table.slice(0, half), program, first)
    two, others = _evaluated(sql, table.slice(half), program, first + half)
    return pa.concat_tables([one.cast(two.schema), two]), broken | others


def _bytes(table: pa.Table) -> int:
    """The size of a table without values that are stored once for many rows, as fewer rows need them all."""
    return sum(column.nbytes for column in table.columns if not pa.types.is_dictionary(column.type))


def _shortened(error: Exception) -> str:
    """The first line of DuckDB's error without its class, advice and internal column names."""
    message = str(error).splitlines()[0].split("Error: ", 1)[-1]
    for rest in (" Use TRY", " when casting from source column", " Try to"):
        message = message.split(rest, 1)[0]
    return message.strip()[:300]


def _positions(count: int) -> pa.Int64Array:
    return pa.array(np.arange(count, dtype=np.int64))


def _at(mask: np.ndarray) -> pa.Int64Array:
    return pa.array(np.flatnonzero(mask).astype(np.int64))


def _micros(now: datetime) -> int:
    return int(pc.cast(pa.scalar(now.astimezone(UTC), pa.timestamp("us", "UTC")), pa.int64()).as_py())


def _instructions(steps: Sequence[TransformStep]) -> Iterator[tuple[str, str, str | Form]]:
    """The steps as instructions: verb, name, argument."""
    for step in steps:
        if isinstance(step, MaskStep):
            yield from (("mask", name, form) for name, form in step.forms.items())
        else:
            yield from _text_instructions([step])


def _text_instructions(steps: Sequence[TransformStep]) -> Iterator[tuple[str, str, str]]:
    """The instructions whose argument is text."""
    for step in steps:
        match step:
            case SetStep(expressions):
                yield from (("set", name, text) for name, text in expressions.items())
            case WhereStep(text):
                yield ("where", "", text)
            case DropStep(names):
                yield from (("drop", name, "") for name in names)
            case RenameStep(names):
                yield from (("rename", old, new) for old, new in names.items())
            case JmespathStep(expressions, on_null):
                yield from ((f"query {on_null}", name, text) for name, text in expressions.items())


def _texts(steps: Sequence[TransformStep]) -> Iterator[tuple[str, str, Callable[[str], tuple[str, ...]]]]:
    for verb, name, text in _text_instructions(steps):
        if verb in ("set", "where"):
            yield f"{verb} {name}".strip(), text, expressions.check_sql
        elif verb.startswith("query"):
            yield f"jmespath {name}", text, dialect.check_jmespath


def _overwritten(step: JmespathStep) -> Iterator[str]:
    """Columns whose value is always the expression's."""
    for name, text in step.expressions.items():
        if "." not in name and not always_null(text) and (step.on_null != "keep" or never_null(text)):
            yield name


def _inputs(steps: Sequence[TransformStep]) -> Iterator[str]:
    """The names that are read, before renames; results of earlier steps are not inputs."""
    targets: set[str] = set()
    origin: dict[str, str] = {}
    for verb, name, text in _text_instructions(steps):
        if verb in ("set", "where"):
            for read in expressions.columns_in(text):
                if read.lower() not in targets and read.lower() not in RECORD_NAMES:
                    yield origin.get(read.lower(), read)
        if verb == "set" or (verb.startswith("query") and not always_null(text)):
            targets.add(name.split(".")[0].lower() if verb != "set" else name.lower())
        if verb == "rename":
            origin[text.lower()] = origin.get(name.lower(), name)
            if name.lower() in targets:
                targets.add(text.lower())
        if verb in ("rename", "drop"):
            targets.discard(name.lower())


def _moved(step: TransformStep, name: str) -> str | None:
    if isinstance(step, DropStep) and name.lower() in map(str.lower, step.names):
        return None
    if isinstance(step, RenameStep):
        return next((new for old, new in step.names.items() if old.lower() == name.lower()), name)
    return name
