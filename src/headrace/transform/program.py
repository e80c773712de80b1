"""Programs: steps compiled for one payload schema, as nested projections for DuckDB.

Every expression is a check with a number. It becomes `TRY({'v': expression})`, which is NULL only if the expression
fails, and it may set the record's `event`: 0 if all is well, n if check n failed, -n if the `where` of check n filtered
the record. The first event of a record wins. Expressions that do not read each other's results share a level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from headrace.spec.secrets import Secret
from headrace.transform.headers import header_map
from headrace.transform.jmespath.queries import Queries
from headrace.transform.mask import pads
from headrace.transform.sql.expression import ROW

INPUT = "headrace_input"
CLOCK = "clock"
EVENT = pa.field("event", pa.int32())


@dataclass(frozen=True, slots=True)
class Check:
    """One expression of the program."""

    label: str
    sql: str
    before: int  # number of levels below it


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """Source of an output column: a payload column, a computed or copied one, or (both None) NULL."""

    field: pa.Field
    origin: str | None = None
    column: str | None = None
    computed: bool = False
    loose: bool = False  # reads a field that no record has yet
    copied: bool = False  # a column of the input, unchanged
    queried: bool = False  # a JMESPath result

    @property
    def ready(self) -> bool:
        """Whether a computed column exists before the statement runs."""
        return self.copied or self.queried


@dataclass(frozen=True)
class Program:
    """Compiled steps for rows of one schema."""

    schema: pa.Schema
    output: tuple[ColumnSource, ...]
    levels: tuple[str, ...]
    checks: tuple[Check, ...]
    payload: tuple[tuple[str, str], ...]  # payload columns that expressions read: name and SQL name
    record_columns: tuple[str, ...]  # columns of the Kafka record that expressions read
    queries: Queries
    numbers: tuple[int, ...]  # number of each query's check
    queried: frozenset[str]  # query results that expressions read
    keys: tuple[Secret, ...] = ()  # keys of masks

    @cached_property
    def pads(self) -> dict[str, bytes]:
        """The pads of every key by SQL name; read once, so that all rows are masked with the same key."""
        both = (zip(pad_names(nth), pads(key), strict=True) for nth, key in enumerate(self.keys))
        return {name: pad for each in both for name, pad in each}

    @property
    def timeless(self) -> bool:
        """Whether no expression reads the batch's clock, so that the statement is the same for every batch."""
        return not any(CLOCK in check.sql for check in self.checks)

    @property
    def computed_columns(self) -> tuple[pa.Field, ...]:
        """The computed columns of the output, by SQL name."""
        computed = (source for source in self.output if source.origin is None and source.column and not source.ready)
        return tuple(source.field.with_name(source.column) for source in computed)

    def input(self, rows: pa.Table, records: pa.Table, results: Mapping[str, pa.Array]) -> pa.Table:
        """The columns that the expressions read, by SQL name."""
        columns = {sql: rows.column(name) for name, sql in self.payload}
        columns |= {name: results[name] for name in sorted(self.queried)}
        columns |= {name: records.column(name) for name in self.record_columns if name != "headers"}
        if "headers" in self.record_columns:
            columns["headers"] = header_map(records.column("headers"))
        columns |= {name: _repeated(pad, len(rows)) for name, pad in self.pads.items()}
        return pa.table({**columns, EVENT.name: pa.repeat(pa.scalar(0, EVENT.type), len(rows))})

    def statement(self, micros: int) -> str:
        """The whole program as one statement, with a batch's clock."""
        columns = ", ".join((EVENT.name, *(item.name for item in self.computed_columns)))
        return select_sql(columns, f"({_stacked(self.levels, micros)})")

    def explanation(self, check: Check, micros: int) -> str:
        """One expression without TRY: it raises the error, or returns the value that cannot be stored."""
        shown = f"left(CAST({check.sql} AS VARCHAR), 80) AS value"
        return select_sql(shown, f"({_stacked(self.levels[: check.before], micros)})")

    def failed(self) -> pa.Table:
        """The result for one record for which the whole statement fails."""
        nulls = {item.name: pa.nulls(1, item.type) for item in self.computed_columns}
        return pa.table({EVENT.name: pa.array([len(self.checks)], EVENT.type), **nulls})


def pad_names(nth: int) -> tuple[str, str]:
    """SQL names of a key's pads."""
    return f"k{nth}_inner", f"k{nth}_outer"


def _repeated(pad: bytes, count: int) -> pa.DictionaryArray:
    """One value for every row, stored once."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), count), pa.array([pad], pa.binary()))


def _stacked(levels: Sequence[str], micros: int) -> str:
    """The nested projections over the input and the batch's clock."""
    sql = select_sql(f"*, make_timestamptz({micros}::BIGINT) AS {CLOCK}", INPUT)
    for level in levels:
        sql = select_sql(level, f"({sql})")
    return sql


def select_sql(what: str, of: str) -> str:
    """Select from a table or statement, whose columns expressions read as the row's."""
    return f"SELECT {what} FROM {of} AS {ROW}"  # noqa: S608 made of checked trees and our own names only


@dataclass
class Level:
    """Expressions that do not read each other's results: two projections in all."""

    tries: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)

    def add(self, nth: int, cast: str, sound: str | None, filters: bool) -> str:
        """Add an expression; returns the column of its value."""
        good = f"(x{nth} IS NOT NULL AND {sound})" if sound else f"(x{nth} IS NOT NULL)"
        self.tries.append(f"TRY({{'v': {cast}}}) AS x{nth}")
        self.events.append(f"WHEN NOT {good} THEN {nth}")
        if filters:
            self.events.append(f"WHEN x{nth}.v IS NOT TRUE THEN -{nth}")
        else:
            # A value that cannot be stored is not passed on, so that it cannot grow from step to step.
            self.values.append(f"CASE WHEN {good} THEN x{nth}.v END AS s{nth}" if sound else f"x{nth}.v AS s{nth}")
        self.columns.append(f"s{nth}")
        return f"s{nth}"

    def projections(self) -> tuple[str, ...]:
        """The level as SQL; empty if it has no expressions."""
        if not self.tries:
            return ()
        tried = ", ".join(text.rsplit(" ", 1)[-1] for text in self.tries)
        event = f"CAST(CASE WHEN event <> 0 THEN event {' '.join(self.events)} ELSE 0 END AS INTEGER) AS event"
        kept = f"* EXCLUDE (event, {tried})"
        return f"*, {', '.join(self.tries)}", ", ".join((kept, event, *self.values))
