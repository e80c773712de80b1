"""The SQL of a history: every state of a key is a row, and a change slots in wherever its sequence puts it.

What happened at a key is told anew for each batch that changes it: by the rows that are there, by what is remembered of
changes that left no row, and by the batch. The states that follow from all of it are compared with the rows, in one
MERGE. So the order in which changes come, and how often, does not matter.

A row tells its own last change; and, less surely, that something began it and that something ended it. Where a change
itself is known, it counts instead of such a trace.
"""

# ruff: noqa: S608 - every name is quoted, and no value of a record is in the text
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from headrace.delta.schema import SOURCE
from headrace.stage.change_schema import DELETE, PUT
from headrace.write.intent import Scd2Columns
from headrace.write.merge_sql import GO, UNTIL, WHOLE, Bounds, MergeSql


@dataclass(frozen=True, slots=True)
class Scd2Sql(MergeSql):
    """The statement for one table that keeps a history; `columns` are those that rows fill, its own among them."""

    def source(self, target: str, changes: str, tombstones: str | None, now: datetime, bounds: Bounds = ()) -> str:
        """A row for each state of the batch's keys, and one for each row that is there and is none any more."""
        told = self._told(target, changes, tombstones, now, bounds)
        runs = self._runs(self._once(told))
        kept, gone, last = self._kept, f"{self._name('w', KIND)} = 1", self._name("c", LAST)
        ends = f"lead({self._name('c', FIRST)}) OVER ({self._by_key('c')}, {last} ORDER BY {self._name('c', AT)})"
        state = self._and((f"{self._name('c', LAST)} = 1", self._is_put("c"), f"NOT ({gone})"))
        no_state = self._and((f"{self._name('c', WAS)} = 1", f"NOT ({self._begins('c')})", gone))
        made = {
            kept.valid_from: f"CASE WHEN {gone} THEN {self._name('c', AT)} ELSE {self._name('c', FIRST)} END",
            kept.valid_to: self._name("c", ENDS),
            kept.current: f"{self._name('c', ENDS)} IS NULL",
            GONE: gone,
            FRESH: f"{self._name('c', OWN)} = 0",
        }
        columns = [self._name("c", name) for name in self._brought]
        columns += [f"{text} AS {self._q(name)}" for name, text in made.items()]
        rows = f"({self._beside(runs, {ENDS: ends})}) AS c CROSS JOIN (VALUES (0), (1)) AS w({self._q(KIND)})"
        return f"SELECT {', '.join(columns)} FROM {rows} WHERE ({state}) OR ({no_state})"

    def taken(self, fate: str) -> dict[str, bool]:
        """Every column of the state."""
        return dict.fromkeys(self.columns, False)

    def _meets(self) -> list[str]:
        begins = self._kept.valid_from
        return [*self._same("t", "s"), f"{self._name('t', begins)} = {self._name('s', begins)}"]

    def _fates(self) -> Iterator[tuple[str, str]]:
        yield GO, self._name("s", GONE)
        yield WHOLE, f"({self._differs()})"

    def _arrives(self) -> str:
        return f"NOT {self._name('s', GONE)}"

    # ---- what is known ----

    def _told(self, target: str, changes: str, tombstones: str | None, now: datetime, bounds: Bounds) -> str:
        """All that is known to have happened at the batch's keys."""
        known = [self._changes(f"{changes} AS c", "c", self._brought, ())]
        if tombstones is not None:
            counts = [f"{self._name('d', UNTIL)} > {self._instant(now)}", *self._of_batch("d", changes, bounds)]
            if not self._kept.track:
                counts.append(f"{self._op('d')} = '{DELETE}'")  # puts from when some columns were tracked
            known.append(self._changes(f"{tombstones} AS d", "d", self._remembered, counts))
        return " UNION ALL ".join((*known, self._traces(target, changes, bounds)))

    def _changes(self, rows: str, row: str, columns: tuple[str, ...], wanted: list[str] | tuple[()]) -> str:
        named = [self._name(row, name) if name in columns else f"NULL AS {self._q(name)}" for name in self._brought]
        place = dict(zip((TOPIC, ROW), self._rank(row), strict=True)) | dict(zip(PLACE, self._place(row), strict=True))
        meta = {AT: self._name(row, self._sequence), OP: self._op(row), SURE: "0", **place, OWN: "0", WAS: "0"}
        where = f" WHERE {self._and(wanted)}" if wanted else ""
        return f"SELECT {', '.join((*named, *self._as(meta)))} FROM {rows}{where}"

    def _traces(self, target: str, changes: str, bounds: Bounds) -> str:
        """Of each row: its last change, that it began, that it ended."""
        begins, ends = self._name("t", self._kept.valid_from), self._name("t", self._kept.valid_to)
        last, kind = self._name("t", self._sequence), self._name("w", KIND)
        topic = self._at("t", SOURCE.name, "topic") if SOURCE.name in self.columns else "''"
        place = self._place("t") if SOURCE.name in self.columns else ("-1", "-1")
        meta = {
            AT: f"CASE {kind} WHEN 0 THEN {last} WHEN 1 THEN {begins} ELSE {ends} END",
            OP: f"CASE {kind} WHEN 2 THEN '{DELETE}' ELSE '{PUT}' END",
            SURE: kind,
            TOPIC: topic,
            ROW: "0",
            **dict(zip(PLACE, place, strict=True)),
            OWN: "1",
            WAS: f"CASE WHEN {kind} = 1 OR ({kind} = 0 AND {last} = {begins}) THEN 1 ELSE 0 END",
        }
        told = self._or(
            (
                f"({kind} = 0 AND {last} IS NOT NULL)",
                f"({kind} = 1 AND {begins} IS DISTINCT FROM {last})",
                f"({kind} = 2 AND {ends} IS NOT NULL)",
            )
        )
        rows = f"{target} AS t CROSS JOIN (VALUES (0), (1), (2)) AS w({self._q(KIND)})"
        named = [self._name("t", name) for name in self._brought]
        wanted = self._and((f"({told})", *self._of_batch("t", changes, bounds)))
        return f"SELECT {', '.join((*named, *self._as(meta)))} FROM {rows} WHERE {wanted}"

    def _of_batch(self, row: str, changes: str, bounds: Bounds) -> list[str]:
        same = self._and(self._same("k", row))
        return [*self._within(row, bounds), f"EXISTS (SELECT 1 FROM {changes} AS k WHERE {same})"]

    # ---- what follows from it ----

    def _once(self, told: str) -> str:
        """One for each key and sequence: a change before a trace, the later place among equals, then the row's own."""
        by = f"PARTITION BY {', '.join(self._name('c', name) for name in (*self.merging.keys, AT))}"
        order = ", ".join(
            [self._name("c", SURE), *(f"{self._name('c', name)} DESC" for name in (*PLACE, TOPIC, OWN, ROW))]
        )
        was = f"max({self._name('c', WAS)}) OVER ({by})"
        ranked = self._beside(told, {NTH: f"row_number() OVER ({by} ORDER BY {order})", SEEN: was})
        names = (*self._brought, AT, OP, OWN)
        columns = [*(self._name("c", name) for name in names), f"{self._name('c', SEEN)} AS {self._q(WAS)}"]
        return f"SELECT {', '.join(columns)} FROM ({ranked}) AS c WHERE {self._name('c', NTH)} = 1"

    def _runs(self, once: str) -> str:
        """With what belongs to one state: the changes of a key that follow each other and leave what is tracked."""
        in_order = f"{self._by_key('c')} ORDER BY {self._name('c', AT)}"
        cut = f"CASE WHEN {self._goes_on(in_order)} THEN 0 ELSE 1 END"
        numbered = self._beside(self._beside(once, {CUT: cut}), {RUN: f"sum({self._name('c', CUT)}) OVER ({in_order})"})
        of_run = f"{self._by_key('c')}, {self._name('c', RUN)}"
        first = f"min({self._name('c', AT)}) OVER ({of_run})"
        last = f"row_number() OVER ({of_run} ORDER BY {self._name('c', AT)} DESC)"
        return self._beside(numbered, {FIRST: first, LAST: f"CASE WHEN {last} = 1 THEN 1 ELSE 0 END"})

    def _goes_on(self, in_order: str) -> str:
        """Whether a change leaves the state that is there."""
        if not self._kept.track:
            return "false"
        before = f"lag({self._name('c', OP)}) OVER ({in_order}) = '{PUT}'"
        same = (
            f"{self._name('c', name)} IS NOT DISTINCT FROM lag({self._name('c', name)}) OVER ({in_order})"
            for name in self._kept.track
        )
        return self._and((self._is_put("c"), before, *same))

    def _begins(self, row: str) -> str:
        return f"{self._is_put(row)} AND {self._name(row, CUT)} = 1"

    def _is_put(self, row: str) -> str:
        return f"{self._name(row, OP)} = '{PUT}'"

    def _differs(self) -> str:
        """Whether the row `t` is not yet the state `s`; a row that is need not be written again."""
        named = (self._kept.valid_to, self._sequence)
        ways = (f"{self._name('t', name)} IS DISTINCT FROM {self._name('s', name)}" for name in named)
        return self._or((self._name("s", FRESH), *ways))

    # ---- words ----

    @property
    def _kept(self) -> Scd2Columns:
        assert self.merging.scd2 is not None  # noqa: S101
        return self.merging.scd2

    @property
    def _sequence(self) -> str:
        assert self.merging.sequence is not None  # noqa: S101
        return self.merging.sequence

    @property
    def _brought(self) -> tuple[str, ...]:
        """The columns that records bring."""
        return tuple(name for name in self.columns if name not in self._kept.columns)

    @property
    def _remembered(self) -> tuple[str, ...]:
        return self._brought if self._kept.track else (*self.merging.keys, self._sequence)

    def _as(self, columns: dict[str, str]) -> list[str]:
        return [f"{text} AS {self._q(name)}" for name, text in columns.items()]


AT, OP, SURE, OWN, WAS = (f"_headrace_{name}" for name in ("at", "op", "sure", "own", "was"))
PLACE = ("_headrace_partition", "_headrace_offset")
TOPIC, ROW, NTH, SEEN = (f"_headrace_{name}" for name in ("topic", "row", "nth", "seen"))
CUT, RUN, FIRST, LAST, ENDS = (f"_headrace_{name}" for name in ("cut", "run", "first", "last", "ends"))
KIND, GONE, FRESH = (f"_headrace_{name}" for name in ("kind", "gone", "fresh"))
