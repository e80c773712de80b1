"""The SQL of a merge: the winning change of each key in a batch, and its effect on the stored row.

One text serves both engines, so it can be tested without Spark; the dialects differ in quoting and little else.
Changes are ordered by sequence, then by the position of their record (partition, offset). A delete whose record has
only a key has no sequence: it deletes whatever came before its position.

An upsert into a table (id, name, seq) by `seq`, shortened (t: table, s: winning change, c: change, d: tombstone):

    MERGE INTO target AS t
    USING (SELECT n.* FROM (
        SELECT c.*, row_number() OVER (PARTITION BY c.id ORDER BY c.seq DESC, <partition, offset> DESC) AS nth
        FROM (SELECT c.* FROM changes AS c                               -- `_live`: without changes that are
              WHERE NOT EXISTS (SELECT 1 FROM tombstones AS d            -- older than a delete of their key
                                WHERE d.id = c.id AND d.until > now AND c.seq < d.seq)) AS c
    ) AS n WHERE nth = 1) AS s                                           -- `winners`: the last change of each key
    ON t.id = s.id AND t.id >= 7 AND t.id <= 42                          -- bounds: literals let Spark skip files
    WHEN MATCHED AND s.op = 'delete' AND s.seq > t.seq THEN DELETE
    WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET name = s.name, seq = s.seq
    WHEN NOT MATCHED AND s.op <> 'delete' THEN INSERT (id, name, seq) VALUES (s.id, s.name, s.seq)
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

Partition = tuple[str, int]  # a topic and the number of its partition
Truncates = Mapping[Partition, tuple[int, datetime]]  # by partition: offset and time of its last truncate
KeyBounds = Sequence[tuple[str, str, str]]  # a key column, and literals of the lowest and highest value in the batch

# Outcomes of a stored row that a change matches: deleted, replaced as a whole, or updated in some columns.
DELETE_ROW, REPLACE_ROW, UPDATE_ROW = "delete", "replace", "update"

# Columns that a merge adds.
UNTIL = "_headrace_until"  # of a tombstone: when it expires
NTH, CUT, COUNT, FRESH = "_headrace_nth", "_headrace_cut", "_headrace_count", "_headrace_fresh"
DELETED_AT = ("_headrace_deleted_partition", "_headrace_deleted_offset")  # partition and offset


def later(*sources: Truncates) -> Truncates:
    """The last truncate of each partition in any of the sources."""
    last: dict[Partition, tuple[int, datetime]] = {}
    for partition, (offset, time) in (item for truncates in sources for item in truncates.items()):
        previous = last.get(partition, (offset, time))
        last[partition] = max(previous[0], offset), max(previous[1], time)
    return last


def quote_identifier(name: str) -> str:
    """Quote an identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class MergeDialect:
    """The SQL of an engine where engines differ."""

    quote: Callable[[str], str] = quote_identifier
    newest: str = "max_by"
    oldest: str = "min_by"
    instant: str = "TIMESTAMP_LTZ"


SPARK = MergeDialect()
DUCKDB = MergeDialect(duck.quote, "arg_max_null", "arg_min_null", "TIMESTAMPTZ")


@dataclass(frozen=True, slots=True)
class MergeSql:
    """The SQL for one table; `columns` are those that changes fill.

    A batch without `deletes` gets a simpler statement, which runs faster. A batch with `distinct` keys is not sorted.
    """

    merging: MergeRules
    columns: Sequence[str]
    dialect: MergeDialect = SPARK
    truncates: Truncates | None = None  # in this batch
    deletes: bool = True
    distinct: bool = False
    past: Truncates | None = None  # in earlier batches: their rows are deleted, but older changes may arrive late
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # keys that are partition columns: literals

    # ---- statements ----

    def statement(
        self, target: str, changes: str, tombstones: str | None, now: datetime, bounds: KeyBounds = ()
    ) -> str:
        """The MERGE statement."""
        clauses = ((f"WHEN MATCHED AND {when} THEN", outcome) for outcome, when in self._outcomes())
        lines = [
            f"MERGE INTO {target} AS t",
            f"USING ({self.source(target, changes, tombstones, now, bounds)}) AS s",
            f"ON {self._and((*self._matches(), *self._within('t', bounds)))}",
            *(f"{when} {'DELETE' if outcome == DELETE_ROW else self._update(outcome)}" for when, outcome in clauses),
            f"WHEN NOT MATCHED AND {self._inserts()} THEN INSERT ({self._list()}) VALUES ({self._list('s')})",
        ]
        if self.truncates:
            lines.append(f"WHEN NOT MATCHED BY SOURCE AND ({self._truncated_row()}) THEN DELETE")
        return "\n".join(lines)

    def source(self, target: str, changes: str, tombstones: str | None, now: datetime, bounds: KeyBounds = ()) -> str:
        """The rows to join with the rows of `target`."""
        return self.winners(changes, tombstones, now, bounds)

    def winners(self, changes: str, tombstones: str | None, now: datetime, bounds: KeyBounds = ()) -> str:
        """One row per key: its last change, or its partial updates combined."""
        live = self._live(changes, tombstones, now, bounds)
        if self.merging.partial:
            return self._combined(live)
        return live if self.distinct else self._newest(live)

    def matches(self, rows: str, winners: str) -> str:
        """The numbers of matching rows and winners, and the outcome for the row; NULL if it stays as it is."""
        numbers = ", ".join(f"{self._name(row, NTH)} AS {row}" for row in "ts")
        outcome = " ".join(f"WHEN {when} THEN '{outcome}'" for outcome, when in self._outcomes())
        on = self._and(self._matches())
        return f"SELECT {numbers}, CASE {outcome} END AS outcome FROM {rows} AS t JOIN {winners} AS s ON {on}"

    def insertable(self, winners: str) -> str:
        """The numbers of winners that are inserted if they match no row."""
        return f"SELECT {self._name('s', NTH)} AS s FROM {winners} AS s WHERE {self._inserts()}"

    def truncated(self, rows: str) -> str:
        """The numbers of rows that a truncate of the batch deletes."""
        return f"SELECT {self._name('t', NTH)} AS t FROM {rows} AS t WHERE {self._truncated_row()}"

    def assigned(self, outcome: str) -> dict[str, bool]:
        """The columns that a change assigns, and whether its NULLs are ignored there."""
        columns = self._unkeyed()
        if outcome == REPLACE_ROW:
            return dict.fromkeys(columns, False)
        return {name: self._ignores(name) for name in columns if self._assigns(name) or name == SOURCE.name}

    # ---- the winning changes ----

    def _live(self, changes: str, tombstones: str | None, now: datetime, bounds: KeyBounds) -> str:
        """The changes that no later delete or truncate, of this batch or an earlier one, makes obsolete."""
        conditions = [f"{self._op('c')} <> '{TRUNCATE}'"]
        if last := later(self.truncates or {}, self.past or {}):
            conditions.append(f"NOT ({self._truncated(last, 'c', CHANGE.name)})")
        if tombstones is not None:
            until = f"{self._name('d', UNTIL)} > {self._instant(now)}"
            deletes = f"{self._op('d')} = '{DELETE}'"  # the table of tombstones has truncates as well
            obsolete = (*self._same("d", "c"), *self._within("d", bounds), until, deletes, f"({self._deletes_later()})")
            conditions.append(f"NOT EXISTS (SELECT 1 FROM {tombstones} AS d WHERE {self._and(obsolete)})")
        return f"SELECT c.* FROM {changes} AS c WHERE {self._and(conditions)}"

    def _deletes_later(self) -> str:
        """Whether the delete `d` comes after the change `c`."""
        later = self._before(self._position("c"), self._position("d"))
        if self.merging.sequence is None:
            return later
        c, d = (self._name(row, self.merging.sequence) for row in "cd")
        return f"{c} < {d} OR ({c} = {d} AND ({later})) OR ({d} IS NULL AND ({later}))"

    def _newest(self, live: str) -> str:
        """The last change of each key."""
        order = [f"{part} DESC" for part in (*self._position("c"), *self._rank("c"))]
        if self.merging.sequence is not None:
            order.insert(0, f"{self._name('c', self.merging.sequence)} DESC NULLS LAST")
        if self._unsequenced_deletes:
            live = self._with_deletes(live)
            deleted = self._before(self._position("c"), self._deleted_at("c"))
            order.insert(0, f"CASE WHEN {deleted} THEN 1 ELSE 0 END")
        nth = f"row_number() OVER ({self._by_key('c')} ORDER BY {', '.join(order)})"
        return f"SELECT n.* FROM ({self._with_columns(live, {NTH: nth})}) AS n WHERE {self._name('n', NTH)} = 1"

    def _with_deletes(self, live: str) -> str:
        """The changes with the position of the last delete of their key that has no sequence.

        Such a delete wins over all changes before its position, whatever their sequence:

            offset  op      seq
            1       put     9       loses: it is before the delete
            2       delete  NULL
            3       put     1       wins
        """
        partition, offset = self._position("c")
        is_delete = f"{self._op('c')} = '{DELETE}' AND {self._name('c', self.merging.sequence or '')} IS NULL"
        last = f"max(CASE WHEN {is_delete} THEN {partition} END) OVER ({self._by_key('c')})"
        live = self._with_columns(live, {DELETED_AT[0]: last})
        in_partition = f"{is_delete} AND {partition} = {self._name('c', DELETED_AT[0])}"
        last = f"max(CASE WHEN {in_partition} THEN {offset} END) OVER ({self._by_key('c')})"
        return self._with_columns(live, {DELETED_AT[1]: last})

    def _combined(self, live: str) -> str:
        """One row per key that combines its partial updates since its last delete, ordered by position alone.

        CUT is the number of the last delete: the changes after it count, or the delete itself if it is the last one.

            nth  op      name   city
            1    put     Ann    Bonn
            2    delete                  CUT = 2
            3    put     Eve    NULL
            4    put     NULL   Kiel     with ignore_nulls: (Eve, Kiel), FRESH: it replaces the stored row
        """
        order = ", ".join((*self._position("c"), *self._rank("c")))
        live = self._with_columns(live, {NTH: f"row_number() OVER ({self._by_key('c')} ORDER BY {order})"})
        nth, cut, count = (self._name("c", name) for name in (NTH, CUT, COUNT))
        last = f"max(CASE WHEN {self._op('c')} = '{DELETE}' THEN {nth} END) OVER ({self._by_key('c')})"
        live = self._with_columns(live, {CUT: f"coalesce({last}, 0)", COUNT: f"count(*) OVER ({self._by_key('c')})"})
        live = f"SELECT c.* FROM ({live}) AS c WHERE {nth} > {cut} OR ({cut} = {count} AND {nth} = {cut})"
        values = [f"{self._combine(name)} AS {self._q(name)}" for name in self._unkeyed()]
        change = f"{self.dialect.newest}({self._name('c', CHANGE.name)}, {nth}) AS {self._q(CHANGE.name)}"
        fresh = f"max({cut}) > 0 AS {self._q(FRESH)}"
        keys = ", ".join(self._name("c", key) for key in self.merging.keys)
        return f"SELECT {', '.join((keys, *values, change, fresh))} FROM ({live}) AS c GROUP BY {keys}"

    def _with_columns(self, rows: str, columns: Mapping[str, str]) -> str:
        new = ", ".join(f"{text} AS {self._q(name)}" for name, text in columns.items())
        return f"SELECT c.*, {new} FROM ({rows}) AS c"

    def _combine(self, name: str) -> str:
        column, nth = self._name("c", name), self._name("c", NTH)
        if name != SOURCE.name and not self._assigns(name):
            return f"{self.dialect.oldest}({column}, {nth})"
        newest = f"{self.dialect.newest}({column}, {nth})"
        return f"{newest} FILTER (WHERE {column} IS NOT NULL)" if self._ignores(name) else newest

    # ---- their effect on stored rows ----

    def _outcomes(self) -> Iterator[tuple[str, str]]:
        """The outcomes of a row that a change matches, and their conditions; the first true one applies."""
        wins = f"({self._wins()})"
        if self.deletes:
            yield DELETE_ROW, f"{self._op('s')} = '{DELETE}' AND {wins}"
        if self.merging.partial:
            fresh = self._or((self._name("s", FRESH), *([f"({self._truncated_row()})"] if self.truncates else ())))
            yield REPLACE_ROW, f"{wins} AND ({fresh})"
            yield UPDATE_ROW, wins
        else:
            yield REPLACE_ROW, wins

    def _matches(self) -> list[str]:
        return self._same("t", "s")

    def _inserts(self) -> str:
        return f"{self._op('s')} <> '{DELETE}'"

    def _update(self, outcome: str) -> str:
        # A table of key columns only: assign a key to itself.
        assigned = self.assigned(outcome) or dict.fromkeys(self.merging.keys, False)
        values = {name: self._name("s", name) for name in assigned}
        values |= {name: f"coalesce({values[name]}, {self._name('t', name)})" for name in assigned if assigned[name]}
        return f"UPDATE SET {', '.join(f'{self._q(name)} = {value}' for name, value in values.items())}"

    def _wins(self) -> str:
        """Whether the change `s` comes after the row `t`."""
        sequence, has_position = self.merging.sequence, SOURCE.name in self.columns
        later = self._before(self._position("t"), self._position("s")) if has_position else "true"
        conditions = [later]
        if sequence is not None:
            s, t = self._name("s", sequence), self._name("t", sequence)
            conditions = [f"{t} IS NULL", f"{s} > {t}", f"({s} = {t} AND ({later}))", f"({s} IS NULL AND ({later}))"]
        if self._unsequenced_deletes:
            deleted = self._deleted_at("s")
            is_later = self._before(self._position("t"), deleted) if has_position else f"{deleted[0]} IS NOT NULL"
            conditions.append(f"({is_later})")
        return self._or([*conditions, f"({self._truncated_row()})"] if self.truncates else conditions)

    def _truncated_row(self) -> str:
        """Whether a truncate of the batch deletes the row `t`; also if the origin of the row is unknown."""
        if SOURCE.name not in self.columns:
            return "true"
        return f"coalesce({self._truncated(self.truncates or {}, 't', SOURCE.name)}, true)"

    def _truncated(self, truncates: Truncates, row: str, column: str) -> str:
        """Whether a row is before a truncate: by offset in its own partition, by record time in all others."""
        fields = ("topic", "partition", "offset", "timestamp")
        topic, partition, offset, timestamp = (self._field(row, column, name) for name in fields)
        conditions = []
        for (name, number), (last, time) in sorted(truncates.items()):
            own = f"({topic} = '{name}' AND {partition} = {number})"  # the name of a topic has no quotes
            before = f"({own} AND {offset} < {last}) OR (NOT {own} AND {timestamp} <= {self._instant(time)})"
            conditions.append(before)
        return self._or(conditions)

    # ---- parts of SQL ----

    @property
    def _unsequenced_deletes(self) -> bool:
        """Whether the changes may include deletes without a sequence."""
        return self.deletes and not self.distinct and self.merging.sequence is not None

    def _unkeyed(self) -> list[str]:
        return [name for name in self.columns if name not in self.merging.keys]

    def _assigns(self, name: str) -> bool:
        """Whether a partial update changes this column."""
        return not self.merging.columns or name in self.merging.columns

    def _ignores(self, name: str) -> bool:
        return self.merging.ignore_nulls and name != SOURCE.name

    def _same(self, left: str, right: str) -> list[str]:
        return [f"{self._name(left, key)} = {self._name(right, key)}" for key in self.merging.keys]

    def _within(self, row: str, bounds: KeyBounds) -> list[str]:
        lists = [f"{self._name(row, key)} IN ({', '.join(values)})" for key, values in self.partitions.items()]
        ranges = [f"{self._name(row, key)} >= {low} AND {self._name(row, key)} <= {high}" for key, low, high in bounds]
        return [*lists, *ranges]

    def _by_key(self, row: str) -> str:
        return f"PARTITION BY {', '.join(self._name(row, key) for key in self.merging.keys)}"

    def _position(self, row: str) -> tuple[str, str]:
        """Partition and offset of a change's record, or of the record that last changed a stored row."""
        if row != "t":
            return self._field(row, CHANGE.name, "partition"), self._field(row, CHANGE.name, "offset")
        partition, offset = (self._field("t", SOURCE.name, name) for name in ("partition", "offset"))
        return f"coalesce({partition}, -1)", f"coalesce({offset}, -1)"

    def _rank(self, row: str) -> tuple[str, str]:
        """The order of changes at the same position: a record may have several."""
        return self._field(row, CHANGE.name, "topic"), self._field(row, CHANGE.name, "row")

    def _deleted_at(self, row: str) -> tuple[str, str]:
        return self._name(row, DELETED_AT[0]), self._name(row, DELETED_AT[1])

    def _before(self, first: tuple[str, str], second: tuple[str, str]) -> str:
        return f"{first[0]} < {second[0]} OR ({first[0]} = {second[0]} AND {first[1]} < {second[1]})"

    def _op(self, row: str) -> str:
        return self._field(row, CHANGE.name, "op")

    def _list(self, row: str = "") -> str:
        return ", ".join(self._name(row, name) if row else self._q(name) for name in self.columns)

    def _field(self, row: str, column: str, name: str) -> str:
        return f"{self._name(row, column)}.{self._q(name)}"

    def _name(self, row: str, column: str) -> str:
        return f"{row}.{self._q(column)}"

    def _q(self, name: str) -> str:
        return self.dialect.quote(name)

    def _instant(self, time: datetime) -> str:
        return f"{self.dialect.instant} '{time.isoformat(' ', 'microseconds')}'"

    @staticmethod
    def _and(conditions: Iterable[str]) -> str:
        return " AND ".join(conditions)

    @staticmethod
    def _or(conditions: Iterable[str]) -> str:
        return " OR ".join(conditions)
