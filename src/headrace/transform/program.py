"""A program: steps compiled for one payload schema, as a stack of projections for DuckDB.

Every expression is one check with a number. It becomes `TRY({'v': expression})`, which is NULL only where the
expression fails, and it may set the record's `event`: 0 while all is well, the check's number when it failed, minus
that number when a `where` let the record go. The first event of a record stands. Expressions that do not read each
other's results share a level of the stack.
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
    before: int  # levels below it


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """Where an output column comes from: a payload column, a made or copied one, or (both None) NULL."""

    field: pa.Field
    origin: str | None = None
    column: str | None = None
    made: bool = False
    loose: bool = False  # reads a field that nobody has sent yet
    copied: bool = False  # made, but nothing else than a column of the input
    queried: bool = False  # a JMESPath result

    @property
    def ready(self) -> bool:
        """Whether a made column is there before the statement runs."""
        return self.copied or self.queried


@dataclass(frozen=True)
class Program:
    """Steps ready to run over rows of one schema."""

    schema: pa.Schema
    output: tuple[ColumnSource, ...]
    levels: tuple[str, ...]
    checks: tuple[Check, ...]
    payload: tuple[tuple[str, str], ...]  # payload columns the expressions read: their name, and theirs in SQL
    envelope: tuple[str, ...]  # envelope columns the expressions read
    queries: Queries
    numbers: tuple[int, ...]  # of each query: the check it is
    queried: frozenset[str]  # results of queries that the expressions read
    keys: tuple[Secret, ...] = ()  # of masks

    @cached_property
    def pads(self) -> dict[str, bytes]:
        """The pads of every key, under their names in SQL; read once, so that all rows are masked alike."""
        both = (zip(pad_names(nth), pads(key), strict=True) for nth, key in enumerate(self.keys))
        return {name: pad for each in both for name, pad in each}

    @property
    def timeless(self) -> bool:
        """Whether no expression reads the batch's clock, so that one statement serves every batch."""
        return not any(CLOCK in check.sql for check in self.checks)

    @property
    def made(self) -> tuple[pa.Field, ...]:
        """The computed columns that are part of the output, under their names in SQL."""
        computed = (source for source in self.output if source.origin is None and source.column and not source.ready)
        return tuple(source.field.with_name(source.column) for source in computed)

    def input(self, rows: pa.Table, envelopes: pa.Table, results: Mapping[str, pa.Array]) -> pa.Table:
        """Just the columns that the expressions read, under the names they have in SQL."""
        columns = {sql: rows.column(name) for name, sql in self.payload}
        columns |= {name: results[name] for name in sorted(self.queried)}
        columns |= {name: envelopes.column(name) for name in self.envelope if name != "headers"}
        if "headers" in self.envelope:
            columns["headers"] = header_map(envelopes.column("headers"))
        columns |= {name: _repeated(pad, len(rows)) for name, pad in self.pads.items()}
        return pa.table({**columns, EVENT.name: pa.repeat(pa.scalar(0, EVENT.type), len(rows))})

    def statement(self, micros: int) -> str:
        """The whole program as one statement, for a batch's clock."""
        columns = ", ".join((EVENT.name, *(item.name for item in self.made)))
        return select_sql(columns, f"({_stacked(self.levels, micros)})")

    def explanation(self, check: Check, micros: int) -> str:
        """One expression alone, without TRY: it fails aloud, or shows the value that cannot be stored."""
        shown = f"left(CAST({check.sql} AS VARCHAR), 80) AS value"
        return select_sql(shown, f"({_stacked(self.levels[: check.before], micros)})")

    def failed(self) -> pa.Table:
        """The answer for one record that the whole pass fails for."""
        nulls = {item.name: pa.nulls(1, item.type) for item in self.made}
        return pa.table({EVENT.name: pa.array([len(self.checks)], EVENT.type), **nulls})


def pad_names(nth: int) -> tuple[str, str]:
    """The names of a key's pads in SQL."""
    return f"k{nth}_inner", f"k{nth}_outer"


def _repeated(pad: bytes, count: int) -> pa.DictionaryArray:
    """One value for every row, kept once."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), count), pa.array([pad], pa.binary()))


def _stacked(levels: Sequence[str], micros: int) -> str:
    """The projections, one in another, over the input and the batch's clock."""
    sql = select_sql(f"*, make_timestamptz({micros}::BIGINT) AS {CLOCK}", INPUT)
    for level in levels:
        sql = select_sql(level, f"({sql})")
    return sql


def select_sql(what: str, of: str) -> str:
    """Something of a table or a statement, whose columns expressions know as the row's."""
    return f"SELECT {what} FROM {of} AS {ROW}"  # noqa: S608 made of checked trees and our own names only


@dataclass
class Level:
    """Expressions that do not read each other's results: two projections in all."""

    tries: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)

    def add(self, nth: int, cast: str, sound: str | None, filters: bool) -> str:
        """One more expression; answers the column that will hold its value."""
        good = f"(x{nth} IS NOT NULL AND {sound})" if sound else f"(x{nth} IS NOT NULL)"
        self.tries.append(f"TRY({{'v': {cast}}}) AS x{nth}")
        self.events.append(f"WHEN NOT {good} THEN {nth}")
        if filters:
            self.events.append(f"WHEN x{nth}.v IS NOT TRUE THEN -{nth}")
        else:
            # A value that cannot be stored goes no further, so that it cannot grow from step to step.
            self.values.append(f"CASE WHEN {good} THEN x{nth}.v END AS s{nth}" if sound else f"x{nth}.v AS s{nth}")
        self.columns.append(f"s{nth}")
        return f"s{nth}"

    def projections(self) -> tuple[str, ...]:
        """The level as SQL; nothing when it is empty."""
        if not self.tries:
            return ()
        tried = ", ".join(text.rsplit(" ", 1)[-1] for text in self.tries)
        event = f"CAST(CASE WHEN event <> 0 THEN event {' '.join(self.events)} ELSE 0 END AS INTEGER) AS event"
        kept = f"* EXCLUDE (event, {tried})"
        return f"*, {', '.join(self.tries)}", ", ".join((kept, event, *self.values))
