"""The SQL of SCD2: every state of a key is a row, and a change is inserted where its sequence belongs.

For the keys of a batch, all events are collected: changes of the batch, tombstones (changes that left no row), and
events that stored rows imply. The states that follow from them are compared with the stored rows in one MERGE. So the
table does not depend on the order of changes, or on how often they arrive. With the key 1 stored as

    id  name  valid_from  valid_to
    1   Ann   1           5
    1   Eve   5           NULL

a late change (1, Bob) with sequence 3 gives the events 1 Ann, 3 Bob, 5 Eve and the states Ann [1, 3), Bob [3, 5) and
Eve [5, ...): the first row is updated, Bob is inserted, the last row stays as it is.

A stored row is evidence of its last change (its sequence) and, weaker, that a state started at `valid_from` and that
one ended at `valid_to`. An event that is known itself takes precedence over such evidence.
"""

# ruff: noqa: S608 - every name is quoted, and no value of a record is in the text
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from headrace.delta.schema import SOURCE
from headrace.stage.change_schema import DELETE, PUT
from headrace.write.intent import Scd2Columns
from headrace.write.merge_sql import DELETE_ROW, REPLACE_ROW, UNTIL, KeyBounds, MergeSql

# Columns of events.
TIME, OP = "_headrace_at", "_headrace_op"  # the sequence, and put or delete
EVIDENCE = "_headrace_evidence"  # 0: the event itself is known, 1: a stored row starts, 2: a stored row ends
POSITION = ("_headrace_partition", "_headrace_offset")
TOPIC, ROW = "_headrace_topic", "_headrace_row"
STORED = "_headrace_stored"  # 1: from a stored row, 0: from a change or a tombstone
STARTS_ROW, STARTS_ANY = "_headrace_starts_row", "_headrace_starts_any"  # 1: a stored row starts at this time
NTH = "_headrace_nth"
# Columns of states: runs of events that leave the tracked columns as they are.
STARTS_STATE, RUN = "_headrace_starts_state", "_headrace_run"
FIRST, IS_LAST, NEXT = "_headrace_first", "_headrace_is_last", "_headrace_next"
KIND, OBSOLETE, CHANGED = "_headrace_kind", "_headrace_obsolete", "_headrace_changed"


@dataclass(frozen=True, slots=True)
class Scd2Sql(MergeSql):
    """The SQL for one SCD2 table; `columns` include those of its validity."""

    def source(self, target: str, changes: str, tombstones: str | None, now: datetime, bounds: KeyBounds = ()) -> str:
        """A row for each state of the batch's keys, and one for each stored row that is no longer a state.

        The CROSS JOIN gives each event two rows: KIND 0 becomes a state, KIND 1 marks a stored row as obsolete.
        """
        runs = self._runs(self._unique(self._events(target, changes, tombstones, now, bounds)))
        names, obsolete, is_last = self._scd2, f"{self._name('w', KIND)} = 1", self._name("c", IS_LAST)
        following = f"lead({self._name('c', FIRST)}) OVER ({self._by_key('c')}, {is_last} ORDER BY {self._time})"
        starts = f"{self._put_condition('c')} AND {self._name('c', STARTS_STATE)} = 1"
        state = self._and((f"{is_last} = 1", self._put_condition("c"), f"NOT ({obsolete})"))
        no_state = self._and((f"{self._name('c', STARTS_ROW)} = 1", f"NOT ({starts})", obsolete))
        values = {
            names.valid_from: f"CASE WHEN {obsolete} THEN {self._time} ELSE {self._name('c', FIRST)} END",
            names.valid_to: self._name("c", NEXT),
            names.current: f"{self._name('c', NEXT)} IS NULL",
            OBSOLETE: obsolete,
            CHANGED: f"{self._name('c', STORED)} = 0",
        }
        columns = [*(self._name("c", name) for name in self._record_columns), *self._as(values)]
        events = self._with_columns(runs, {NEXT: following})
        rows = f"({events}) AS c CROSS JOIN (VALUES (0), (1)) AS w({self._q(KIND)})"
        return f"SELECT {', '.join(columns)} FROM {rows} WHERE ({state}) OR ({no_state})"

    def assigned(self, outcome: str) -> dict[str, bool]:
        """Every column."""
        return dict.fromkeys(self.columns, False)

    def _matches(self) -> list[str]:
        start = self._scd2.valid_from
        return [*self._same("t", "s"), f"{self._name('t', start)} = {self._name('s', start)}"]

    def _outcomes(self) -> Iterator[tuple[str, str]]:
        yield DELETE_ROW, self._name("s", OBSOLETE)
        # A row that already is the state is not written again.
        compared = (self._scd2.valid_to, self._sequence)
        differs = (f"{self._name('t', name)} IS DISTINCT FROM {self._name('s', name)}" for name in compared)
        yield REPLACE_ROW, f"({self._or((self._name('s', CHANGED), *differs))})"

    def _inserts(self) -> str:
        return f"NOT {self._name('s', OBSOLETE)}"

    # ---- events ----

    def _events(self, target: str, changes: str, tombstones: str | None, now: datetime, bounds: KeyBounds) -> str:
        """All events of the batch's keys."""
        events = [self._change_events(f"{changes} AS c", "c", self._record_columns, ())]
        if tombstones is not None:
            conditions = [f"{self._name('d', UNTIL)} > {self._instant(now)}", *self._of_batch("d", changes, bounds)]
            columns = self._record_columns
            if not self._scd2.track:
                conditions.append(f"{self._op('d')} = '{DELETE}'")  # puts are left from a spec with tracked columns
                columns = (*self.merging.keys, self._sequence)
            events.append(self._change_events(f"{tombstones} AS d", "d", columns, conditions))
        return " UNION ALL ".join((*events, self._row_events(target, changes, bounds)))

    def _change_events(self, rows: str, row: str, columns: tuple[str, ...], conditions: list[str] | tuple[()]) -> str:
        values = [
            self._name(row, name) if name in columns else f"NULL AS {self._q(name)}" for name in self._record_columns
        ]
        event = {
            TIME: self._name(row, self._sequence),
            OP: self._op(row),
            EVIDENCE: "0",
            **dict(zip((TOPIC, ROW), self._rank(row), strict=True)),
            **dict(zip(POSITION, self._position(row), strict=True)),
            STORED: "0",
            STARTS_ROW: "0",
        }
        where = f" WHERE {self._and(conditions)}" if conditions else ""
        return f"SELECT {', '.join((*values, *self._as(event)))} FROM {rows}{where}"

    def _row_events(self, target: str, changes: str, bounds: KeyBounds) -> str:
        """Up to three events of each stored row: KIND 0 its last change, 1 its start, 2 its end."""
        start, end = self._name("t", self._scd2.valid_from), self._name("t", self._scd2.valid_to)
        last, kind = self._name("t", self._sequence), self._name("w", KIND)
        has_source = SOURCE.name in self.columns
        event = {
            TIME: f"CASE {kind} WHEN 0 THEN {last} WHEN 1 THEN {start} ELSE {end} END",
            OP: f"CASE {kind} WHEN 2 THEN '{DELETE}' ELSE '{PUT}' END",
            EVIDENCE: kind,
            TOPIC: self._field("t", SOURCE.name, "topic") if has_source else "''",
            ROW: "0",
            **dict(zip(POSITION, self._position("t") if has_source else ("-1", "-1"), strict=True)),
            STORED: "1",
            STARTS_ROW: f"CASE WHEN {kind} = 1 OR ({kind} = 0 AND {last} = {start}) THEN 1 ELSE 0 END",
        }
        exists = self._or(
            (
                f"({kind} = 0 AND {last} IS NOT NULL)",
                f"({kind} = 1 AND {start} IS DISTINCT FROM {last})",
                f"({kind} = 2 AND {end} IS NOT NULL)",
            )
        )
        rows = f"{target} AS t CROSS JOIN (VALUES (0), (1), (2)) AS w({self._q(KIND)})"
        values = [self._name("t", name) for name in self._record_columns]
        where = self._and((f"({exists})", *self._of_batch("t", changes, bounds)))
        return f"SELECT {', '.join((*values, *self._as(event)))} FROM {rows} WHERE {where}"

    def _of_batch(self, row: str, changes: str, bounds: KeyBounds) -> list[str]:
        same = self._and(self._same("k", row))
        return [*self._within(row, bounds), f"EXISTS (SELECT 1 FROM {changes} AS k WHERE {same})"]

    # ---- states ----

    def _unique(self, events: str) -> str:
        """One event per key and time: the strongest evidence, then the latest position, then the stored row."""
        window = f"PARTITION BY {', '.join(self._name('c', name) for name in (*self.merging.keys, TIME))}"
        order = [self._name("c", EVIDENCE)]
        order += [f"{self._name('c', name)} DESC" for name in (*POSITION, TOPIC, STORED, ROW)]
        rank = f"row_number() OVER ({window} ORDER BY {', '.join(order)})"
        starts_row = f"max({self._name('c', STARTS_ROW)}) OVER ({window})"
        ranked = self._with_columns(events, {NTH: rank, STARTS_ANY: starts_row})
        columns = [self._name("c", name) for name in (*self._record_columns, TIME, OP, STORED)]
        columns.append(f"{self._name('c', STARTS_ANY)} AS {self._q(STARTS_ROW)}")
        return f"SELECT {', '.join(columns)} FROM ({ranked}) AS c WHERE {self._name('c', NTH)} = 1"

    def _runs(self, events: str) -> str:
        """The events with their state: a run of puts that leave the tracked columns as they are is one state.

        With `track: [city]`:   time  op   city   STARTS_STATE  RUN  FIRST  IS_LAST
                                1     put  Bonn   1             1    1      0
                                2     put  Bonn   0             1    1      1
                                4     put  Kiel   1             2    4      1
        """
        in_order = f"{self._by_key('c')} ORDER BY {self._time}"
        starts = f"CASE WHEN {self._continues(in_order)} THEN 0 ELSE 1 END"
        numbered = self._with_columns(
            self._with_columns(events, {STARTS_STATE: starts}),
            {RUN: f"sum({self._name('c', STARTS_STATE)}) OVER ({in_order})"},
        )
        run = f"{self._by_key('c')}, {self._name('c', RUN)}"
        last = f"row_number() OVER ({run} ORDER BY {self._time} DESC)"
        return self._with_columns(
            numbered,
            {FIRST: f"min({self._time}) OVER ({run})", IS_LAST: f"CASE WHEN {last} = 1 THEN 1 ELSE 0 END"},
        )

    def _continues(self, in_order: str) -> str:
        """Whether an event leaves the tracked columns as they are."""
        if not self._scd2.track:
            return "false"
        after_put = f"lag({self._name('c', OP)}) OVER ({in_order}) = '{PUT}'"
        same = (
            f"{self._name('c', name)} IS NOT DISTINCT FROM lag({self._name('c', name)}) OVER ({in_order})"
            for name in self._scd2.track
        )
        return self._and((self._put_condition("c"), after_put, *same))

    # ---- parts of SQL ----

    def _put_condition(self, row: str) -> str:
        return f"{self._name(row, OP)} = '{PUT}'"

    @property
    def _time(self) -> str:
        return self._name("c", TIME)

    @property
    def _scd2(self) -> Scd2Columns:
        assert self.merging.scd2 is not None  # noqa: S101
        return self.merging.scd2

    @property
    def _sequence(self) -> str:
        assert self.merging.sequence is not None  # noqa: S101
        return self.merging.sequence

    @property
    def _record_columns(self) -> tuple[str, ...]:
        """The columns that records fill."""
        return tuple(name for name in self.columns if name not in self._scd2.columns)

    def _as(self, columns: dict[str, str]) -> list[str]:
        return [f"{text} AS {self._q(name)}" for name, text in columns.items()]
