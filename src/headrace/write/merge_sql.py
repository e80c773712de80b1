"""The SQL of a merge: which change of a batch wins at each key, and what it does to the row that is there.

One text decides everything, so that it can be tested without Spark; engines differ in how they quote, and in little
else. The order of changes is the sequence, then the place of their record (partition, offset). A delete whose record
says nothing but its key has no sequence: it ends what came before its place.
"""

# ruff: noqa: S608 - every name is quoted, and no value of a record is in the text
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headrace.delta.schema import SOURCE
from headrace.engine import duck
from headrace.stage.change_schema import CHANGE, DELETE, TRUNCATE
from headrace.write.intent import MergeRules

Partition = tuple[str, int]  # of a topic
Truncates = Mapping[Partition, tuple[int, datetime]]  # by partition: the offset and the time of its last truncate


def later(*said: Truncates) -> Truncates:
    """The last truncate of each partition in any of these."""
    last: dict[Partition, tuple[int, datetime]] = {}
    for partition, (offset, at) in (each for truncates in said for each in truncates.items()):
        known = last.get(partition, (offset, at))
        last[partition] = max(known[0], offset), max(known[1], at)
    return last


def _backticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class MergeDialect:
    """How an engine spells what the others spell differently."""

    quote: Callable[[str], str] = _backticked
    newest: str = "max_by"
    oldest: str = "min_by"
    instant: str = "TIMESTAMP_LTZ"


SPARK = MergeDialect()
DUCKDB = MergeDialect(duck.quote, "arg_max_null", "arg_min_null", "TIMESTAMPTZ")
GO, WHOLE, PART = "go", "whole", "part"  # what becomes of a row: deleted, replaced, or changed in some columns


@dataclass(frozen=True, slots=True)
class MergeSql:
    """The statement for one table; `columns` are those that rows fill.

    A batch without `deletes` gets a statement without them: to order and to write its rows takes less time. One whose
    keys are `distinct` is not put in order at all.
    """

    merging: MergeRules
    columns: Sequence[str]
    dialect: MergeDialect = SPARK
    truncates: Truncates | None = None  # of the batch
    deletes: bool = True
    distinct: bool = False
    past: Truncates | None = None  # of batches before it: rows they ended are gone, but older changes may come late
    placed: Mapping[str, Sequence[str]] = field(default_factory=dict)  # keys that are partition columns: all literals

    # ---- the whole ----

    def statement(self, target: str, changes: str, tombstones: str | None, now: datetime, bounds: Bounds = ()) -> str:
        """Merge the changes of one batch, of which no key may be left with two."""
        fates = ((f"WHEN MATCHED AND {when} THEN", fate) for fate, when in self._fates())
        lines = [
            f"MERGE INTO {target} AS t",
            f"USING ({self.source(target, changes, tombstones, now, bounds)}) AS s",
            f"ON {self._and((*self._meets(), *self._within('t', bounds)))}",
            *(f"{when} {'DELETE' if fate == GO else f'UPDATE SET {self._set(fate)}'}" for when, fate in fates),
            f"WHEN NOT MATCHED AND {self._arrives()} THEN INSERT ({self._list()}) VALUES ({self._list('s')})",
        ]
        if self.truncates:
            lines.append(f"WHEN NOT MATCHED BY SOURCE AND ({self._truncated_row()}) THEN DELETE")
        return "\n".join(lines)

    def source(self, target: str, changes: str, tombstones: str | None, now: datetime, bounds: Bounds = ()) -> str:
        """What the rows of `target` are held against."""
        return self.winners(changes, tombstones, now, bounds)

    def winners(self, changes: str, tombstones: str | None, now: datetime, bounds: Bounds = ()) -> str:
        """One row per key: the change that counts, or all that partial updates leave together."""
        live = self._live(changes, tombstones, now, bounds)
        if self.merging.partial:
            return self._folded(live)
        return live if self.distinct else self._newest(live)

    def met(self, rows: str, winners: str) -> str:
        """Which rows are met by which winner, by their numbers, and what becomes of them; NULL: they stay."""
        numbers = ", ".join(f"{self._name(row, NTH)} AS {row}" for row in "ts")
        fate = " ".join(f"WHEN {when} THEN '{fate}'" for fate, when in self._fates())
        on = self._and(self._meets())
        return f"SELECT {numbers}, CASE {fate} END AS fate FROM {rows} AS t JOIN {winners} AS s ON {on}"

    def arriving(self, winners: str) -> str:
        """The numbers of winners that become a row where they meet none."""
        return f"SELECT {self._name('s', NTH)} AS s FROM {winners} AS s WHERE {self._arrives()}"

    def truncated(self, rows: str) -> str:
        """The numbers of rows that a truncate of the batch ends."""
        return f"SELECT {self._name('t', NTH)} AS t FROM {rows} AS t WHERE {self._truncated_row()}"

    def taken(self, fate: str) -> dict[str, bool]:
        """The columns that a row gets from a change, and whether a NULL there leaves what it has."""
        columns = self._unkeyed()
        if fate == WHOLE:
            return dict.fromkeys(columns, False)
        return {name: self._ignores(name) for name in columns if self._takes(name) or name == SOURCE.name}

    # ---- which changes count ----

    def _live(self, changes: str, tombstones: str | None, now: datetime, bounds: Bounds) -> str:
        """Without what a delete or a truncate, of this batch or of one before it, has ended already."""
        wanted = [f"{self._op('c')} <> '{TRUNCATE}'"]
        if last := later(self.truncates or {}, self.past or {}):
            wanted.append(f"NOT ({self._truncated(last, 'c', CHANGE.name)})")
        if tombstones is not None:
            until = f"{self._name('d', UNTIL)} > {self._instant(now)}"
            deletes = f"{self._op('d')} = '{DELETE}'"  # truncates are beside them
            ended = self._and((*self._same("d", "c"), *self._within("d", bounds), until, deletes, f"({self._ends()})"))
            wanted.append(f"NOT EXISTS (SELECT 1 FROM {tombstones} AS d WHERE {ended})")
        return f"SELECT c.* FROM {changes} AS c WHERE {self._and(wanted)}"

    def _ends(self) -> str:
        """Whether the delete `d` comes after the change `c`."""
        later = self._before(self._place("c"), self._place("d"))
        if self.merging.sequence is None:
            return later
        c, d = (self._name(each, self.merging.sequence) for each in "cd")
        return f"{c} < {d} OR ({c} = {d} AND ({later})) OR ({d} IS NULL AND ({later}))"

    def _newest(self, live: str) -> str:
        """The last change of each key."""
        order = [f"{part} DESC" for part in (*self._place("c"), *self._rank("c"))]
        if self.merging.sequence is not None:
            order.insert(0, f"{self._name('c', self.merging.sequence)} DESC NULLS LAST")
        if self._silences:
            live = self._silenced(live)
            silent = self._before(self._place("c"), self._gone("c"))
            order.insert(0, f"CASE WHEN {silent} THEN 1 ELSE 0 END")
        nth = f"row_number() OVER ({self._by_key('c')} ORDER BY {', '.join(order)})"
        return f"SELECT n.* FROM ({self._beside(live, {NTH: nth})}) AS n WHERE {self._name('n', NTH)} = 1"

    def _silenced(self, live: str) -> str:
        """With the place of the key's last delete that has no sequence: it ends what was before, whatever it said."""
        partition, offset = self._place("c")
        silent = f"{self._op('c')} = '{DELETE}' AND {self._name('c', self.merging.sequence or '')} IS NULL"
        last = f"max(CASE WHEN {silent} THEN {partition} END) OVER ({self._by_key('c')})"
        live = self._beside(live, {GONE[0]: last})
        here = f"{silent} AND {partition} = {self._name('c', GONE[0])}"
        last = f"max(CASE WHEN {here} THEN {offset} END) OVER ({self._by_key('c')})"
        return self._beside(live, {GONE[1]: last})

    def _folded(self, live: str) -> str:
        """What the changes of each key since its last delete leave together; they are ordered by place alone."""
        order = ", ".join((*self._place("c"), *self._rank("c")))
        live = self._beside(live, {NTH: f"row_number() OVER ({self._by_key('c')} ORDER BY {order})"})
        nth, cut, count = (self._name("c", name) for name in (NTH, CUT, COUNT))
        last = f"max(CASE WHEN {self._op('c')} = '{DELETE}' THEN {nth} END) OVER ({self._by_key('c')})"
        live = self._beside(live, {CUT: f"coalesce({last}, 0)", COUNT: f"count(*) OVER ({self._by_key('c')})"})
        live = f"SELECT c.* FROM ({live}) AS c WHERE {nth} > {cut} OR ({cut} = {count} AND {nth} = {cut})"
        made = [f"{self._fold(name)} AS {self._q(name)}" for name in self._unkeyed()]
        change = f"{self.dialect.newest}({self._name('c', CHANGE.name)}, {nth}) AS {self._q(CHANGE.name)}"
        fresh = f"max({cut}) > 0 AS {self._q(FRESH)}"
        keys = ", ".join(self._name("c", key) for key in self.merging.keys)
        return f"SELECT {', '.join((keys, *made, change, fresh))} FROM ({live}) AS c GROUP BY {keys}"

    def _beside(self, rows: str, columns: Mapping[str, str]) -> str:
        """The rows with columns more."""
        more = ", ".join(f"{text} AS {self._q(name)}" for name, text in columns.items())
        return f"SELECT c.*, {more} FROM ({rows}) AS c"

    def _fold(self, name: str) -> str:
        column, nth = self._name("c", name), self._name("c", NTH)
        if name != SOURCE.name and not self._takes(name):
            return f"{self.dialect.oldest}({column}, {nth})"
        made = f"{self.dialect.newest}({column}, {nth})"
        return f"{made} FILTER (WHERE {column} IS NOT NULL)" if self._ignores(name) else made

    # ---- what they do to the row that is there ----

    def _fates(self) -> Iterator[tuple[str, str]]:
        """What becomes of a row that a change meets, and when; the first that is true."""
        beats = f"({self._beats()})"
        if self.deletes:
            yield GO, f"{self._op('s')} = '{DELETE}' AND {beats}"
        if self.merging.partial:
            fresh = self._or((self._name("s", FRESH), *([f"({self._truncated_row()})"] if self.truncates else ())))
            yield WHOLE, f"{beats} AND ({fresh})"
            yield PART, beats
        else:
            yield WHOLE, beats

    def _meets(self) -> list[str]:
        return self._same("t", "s")

    def _arrives(self) -> str:
        return f"{self._op('s')} <> '{DELETE}'"

    def _set(self, fate: str) -> str:
        taken = self.taken(fate) or dict.fromkeys(self.merging.keys, False)  # where all are keys, it is as it was
        return ", ".join(f"{self._q(name)} = {self._taken(name, kept)}" for name, kept in taken.items())

    def _taken(self, name: str, kept: bool) -> str:
        new = self._name("s", name)
        return f"coalesce({new}, {self._name('t', name)})" if kept else new

    def _beats(self) -> str:
        """Whether the change `s` comes after the row `t`."""
        sequence, placed = self.merging.sequence, SOURCE.name in self.columns
        later = self._before(self._place("t"), self._place("s")) if placed else "true"
        ways = [later]
        if sequence is not None:
            s, t = self._name("s", sequence), self._name("t", sequence)
            ways = [f"{t} IS NULL", f"{s} > {t}", f"({s} = {t} AND ({later}))", f"({s} IS NULL AND ({later}))"]
        if self._silences:
            gone = self._before(self._place("t"), self._gone("s")) if placed else f"{self._gone('s')[0]} IS NOT NULL"
            ways.append(f"({gone})")
        return self._or([*ways, f"({self._truncated_row()})"] if self.truncates else ways)

    def _truncated_row(self) -> str:
        """Whether a truncate of the batch ends the row `t`; a row of unknown origin was there before it."""
        if SOURCE.name not in self.columns:
            return "true"
        return f"coalesce({self._truncated(self.truncates or {}, 't', SOURCE.name)}, true)"

    def _truncated(self, truncates: Truncates, row: str, column: str) -> str:
        """Before a truncate: by the offset in its own partition, by the record's time in the others, of any topic."""
        parts = ("topic", "partition", "offset", "timestamp")
        topic, partition, offset, at = (self._at(row, column, part) for part in parts)
        ways = []
        for (name, number), (last, time) in sorted(truncates.items()):
            own = f"({topic} = '{name}' AND {partition} = {number})"  # no topic's name has a quote
            ways.append(f"({own} AND {offset} < {last}) OR (NOT {own} AND {at} <= {self._instant(time)})")
        return self._or(ways)

    # ---- words ----

    @property
    def _silences(self) -> bool:
        """Whether a delete without a sequence may be among the changes, and end others of them."""
        return self.deletes and not self.distinct and self.merging.sequence is not None

    def _unkeyed(self) -> list[str]:
        return [name for name in self.columns if name not in self.merging.keys]

    def _takes(self, name: str) -> bool:
        """Whether a partial update changes this column."""
        return not self.merging.columns or name in self.merging.columns

    def _ignores(self, name: str) -> bool:
        return self.merging.ignore_nulls and name != SOURCE.name

    def _same(self, one: str, two: str) -> list[str]:
        return [f"{self._name(one, key)} = {self._name(two, key)}" for key in self.merging.keys]

    def _within(self, row: str, bounds: Bounds) -> list[str]:
        listed = [f"{self._name(row, key)} IN ({', '.join(values)})" for key, values in self.placed.items()]
        between = [f"{self._name(row, key)} >= {low} AND {self._name(row, key)} <= {high}" for key, low, high in bounds]
        return [*listed, *between]

    def _by_key(self, row: str) -> str:
        return f"PARTITION BY {', '.join(self._name(row, key) for key in self.merging.keys)}"

    def _place(self, row: str) -> tuple[str, str]:
        """Partition and offset of the record that a change is, or that a stored row was last changed by."""
        if row != "t":
            return self._at(row, CHANGE.name, "partition"), self._at(row, CHANGE.name, "offset")
        partition, offset = (self._at("t", SOURCE.name, part) for part in ("partition", "offset"))
        return f"coalesce({partition}, -1)", f"coalesce({offset}, -1)"

    def _rank(self, row: str) -> tuple[str, str]:
        """What orders changes of one place: a record may have many."""
        return self._at(row, CHANGE.name, "topic"), self._at(row, CHANGE.name, "row")

    def _gone(self, row: str) -> tuple[str, str]:
        return self._name(row, GONE[0]), self._name(row, GONE[1])

    def _before(self, one: tuple[str, str], two: tuple[str, str]) -> str:
        return f"{one[0]} < {two[0]} OR ({one[0]} = {two[0]} AND {one[1]} < {two[1]})"

    def _op(self, row: str) -> str:
        return self._at(row, CHANGE.name, "op")

    def _list(self, row: str = "") -> str:
        return ", ".join(self._name(row, name) if row else self._q(name) for name in self.columns)

    def _at(self, row: str, column: str, part: str) -> str:
        return f"{self._name(row, column)}.{self._q(part)}"

    def _name(self, row: str, column: str) -> str:
        return f"{row}.{self._q(column)}"

    def _q(self, name: str) -> str:
        return self.dialect.quote(name)

    def _instant(self, at: datetime) -> str:
        return f"{self.dialect.instant} '{at.isoformat(' ', 'microseconds')}'"

    @staticmethod
    def _and(parts: Iterable[str]) -> str:
        return " AND ".join(parts)

    @staticmethod
    def _or(parts: Iterable[str]) -> str:
        return " OR ".join(parts)


Bounds = Sequence[tuple[str, str, str]]  # a key, and the literals between which all of a batch's values are
UNTIL = "_headrace_until"  # of a tombstone: it counts up to then
NTH, CUT, COUNT, FRESH = "_headrace_nth", "_headrace_cut", "_headrace_count", "_headrace_fresh"
GONE = ("_headrace_gone_in", "_headrace_gone_at")
