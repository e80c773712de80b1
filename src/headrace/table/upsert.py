"""Records into a table by their key: one that is there is replaced, one that is not is added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import duck
from headrace.batch import Merging
from headrace.commit.merging import NTH, Dialect, MergeSql
from headrace.errors import SchemaMismatch, UsageError
from headrace.storage import Store
from headrace.table.records import Records, fitted, partition_of
from headrace.table.rewrite import Done, Edit, Edited, parameters, within
from headrace.table.scan import rows_in
from headrace.tables.changes import CHANGE, PUT, check_keys
from headrace.tables.files import File
from headrace.tables.log import TableState
from headrace.tables.partitions import Partition
from headrace.tables.schema import SOURCE

_DUCKDB = Dialect(duck.quote, "arg_max_null", "arg_min_null", "TIMESTAMPTZ")
_LAST = 2**31 - 1  # as the partition of a change: it comes after every record of a topic


@dataclass(frozen=True, slots=True)
class Upserted:
    """What an upsert did."""

    version: int
    inserted: int
    updated: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """An upsert as it was asked for."""

    records: Records
    key: tuple[str, ...]
    sequence_by: str | None = None
    partition: str | None = None
    deduplicate: bool = True

    @property
    def merging(self) -> Merging:
        """The same in the words of a merge."""
        return Merging(self.key, self.sequence_by)


@dataclass(frozen=True, slots=True)
class Changes:
    """The records as changes of one table: rows in its columns, and beside each what a merge must know."""

    rows: pa.Table
    notes: pa.Array
    partition: Partition

    @classmethod
    def of(cls, wanted: Wanted, state: TableState) -> Changes:
        """Whatever cannot be merged is refused: keys that are no columns, NULL, or there twice."""
        _check(wanted, state)
        partition = partition_of(wanted.partition, state.schema, state.partition_by)
        rows = fitted(wanted.records, state.schema, state.partition_by, partition)
        for name in (*wanted.key, *filter(None, [wanted.sequence_by])):
            _refuse_null(rows[name], name)
        if not wanted.deduplicate:
            _refuse_doubles(rows, wanted.key)
        return cls(rows, _notes(len(rows)), partition)

    def of_columns(self, names: Sequence[str]) -> pa.Table:
        """Some columns, and the note."""
        return self.rows.select(list(dict.fromkeys(names))).append_column(CHANGE, self.notes)


def _check(wanted: Wanted, state: TableState) -> None:
    if not wanted.key:
        raise UsageError("An upsert needs a key.", next="Name the columns that tell rows apart.")
    check_keys(state.schema, "key", wanted.key, "sequence_by", wanted.sequence_by)


def _refuse_null(column: pa.ChunkedArray, name: str) -> None:
    if column.null_count:
        at = pc.index(pc.is_null(column), True).as_py()
        raise SchemaMismatch(
            f"Record {at} has no {name}: what has no key cannot be found again.",
            expected=f"{name} in every record",
            actual="NULL",
        )


def _refuse_doubles(rows: pa.Table, key: tuple[str, ...]) -> None:
    counted = rows.select(list(key)).group_by(list(key)).aggregate([([], "count_all")])
    if len(counted) < len(rows):
        double = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).to_pylist()[0]
        said = ", ".join(f"{name} = {double[name]}" for name in key)
        raise UsageError(
            f"{double['count_all']} records have the key {said}.",
            next="Leave all but one out; or let the last one count (deduplicate).",
        )


def _notes(count: int) -> pa.Array:
    """Puts that come after whatever a pipeline has put; among themselves, in their order."""
    said = {"op": pa.scalar(PUT), "partition": pa.scalar(_LAST, pa.int32())}
    columns = [
        pa.array(range(count), item.type)
        if item.name == "offset"
        else pa.repeat(said[item.name].cast(item.type), count)
        if item.name in said
        else pa.nulls(count, item.type)
        for item in CHANGE.type
    ]
    return pa.StructArray.from_arrays(columns, fields=list(CHANGE.type))


class Upsert(Edit):
    """An upsert by our own hands; which record counts, and over which rows, says the same SQL as a pipeline's merge."""

    operation = "MERGE"

    def __init__(self, store: Store, wanted: Wanted, state: TableState) -> None:
        self._store, self._state, self._key = store, state, wanted.key
        self.said = parameters(matched="update", notMatched="insert", key=list(wanted.key), sequence=wanted.sequence_by)
        changes = Changes.of(wanted, state)
        self._partition = changes.partition
        self._sql = MergeSql(wanted.merging, state.schema.names, _DUCKDB, deletes=False)
        self._ordered = [*wanted.key, *filter(None, [wanted.sequence_by])]
        winners = duck.query(
            self._sql.winners("changes", None, datetime.now(UTC)), changes=changes.of_columns(self._ordered)
        )
        self._rows = changes.rows.take(pc.struct_field(winners[CHANGE.name], "offset"))
        self._winners = _numbered(winners.drop_columns([NTH]))
        self._met = np.zeros(len(winners), dtype=bool)

    def candidates(self, stands: Sequence[File]) -> Iterator[File]:
        """Files with a key among the records': looked up by their bounds, then by the keys themselves."""
        if not len(self._rows):
            return
        schema, by = self._state.schema, self._state.partition_by
        there = {file.path: file for file in within(stands, self._partition, self._state)}
        told = rows_in(self._store, there.values(), schema, by, self._key).rows
        same = " AND ".join(f"t.{duck.quote(name)} = s.{duck.quote(name)}" for name in self._key)
        sql = f"SELECT count(*) AS rows FROM keys AS t SEMI JOIN winners AS s ON {same}"  # noqa: S608 names are quoted
        for fragment in told.get_fragments(filter=_between(self._rows, self._key)):
            one = rows_in(self._store, [there[fragment.path]], schema, by)
            if duck.query(sql, keys=one.rows, winners=self._winners)["rows"][0].as_py():
                yield there[fragment.path]

    def edited(self, rows: pa.Table) -> Edited | None:
        """Rows that a record comes after become that record."""
        ordered = rows.select([*self._ordered, *(name for name in [SOURCE.name] if name in rows.column_names)])
        found = duck.query(self._sql.met("found", "winners"), found=_numbered(ordered), winners=self._winners)
        self._met[found["s"].to_numpy()] = True
        beaten = found.filter(found["beaten"])
        if not len(beaten):
            return None
        stays = np.ones(len(rows), dtype=bool)
        stays[beaten["t"].to_numpy()] = False
        return Edited(rows.filter(pa.array(stays)), rows.take(beaten["t"]), self._rows.take(beaten["s"]))

    def inserts(self) -> pa.Table:
        """Records whose key no row has."""
        return self._rows.filter(pa.array(~self._met))

    def counts(self, done: Done, copied: int) -> dict[str, int]:
        """As Spark's MERGE counts."""
        return {
            "numSourceRows": len(self._rows),
            "numTargetRowsInserted": done.inserted,
            "numTargetRowsUpdated": done.updated,
            "numTargetRowsDeleted": 0,
            "numTargetRowsCopied": copied,
            "numOutputRows": done.inserted + done.updated + copied,
        }


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column(NTH, pa.array(range(len(rows)), pa.int64()))


def _between(rows: pa.Table, key: tuple[str, ...]) -> pc.Expression:
    """What is true of every row that has the key of a record."""
    hulls = {name: pc.min_max(rows[name]) for name in key}
    return reduce(
        and_, [(pc.field(name) >= hull["min"]) & (pc.field(name) <= hull["max"]) for name, hull in hulls.items()]
    )
