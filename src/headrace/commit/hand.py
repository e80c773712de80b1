"""A merge by our own hands: the same SQL as Spark's decides, on DuckDB, and the files it touches are written anew here.

Spark takes seconds to begin with, and sends every row it copies through a join. Here keys and their order alone are
joined; rows that stay are copied as columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import duck
from headrace.commit.edit import Done, Edit, Edited
from headrace.commit.merging import FRESH, GO, GONE, NTH, PART, WHOLE, MergeSql
from headrace.errors import TableChanged
from headrace.storage import Store
from headrace.tables.changes import CHANGE, DELETE
from headrace.tables.files import File
from headrace.tables.log import TableState
from headrace.tables.rows import pieces_of
from headrace.tables.scan import among
from headrace.tables.schema import SOURCE

_AT = "_headrace_at"  # of a change: its place in the batch


@dataclass(frozen=True, slots=True)
class Staged:
    """The changes of a batch as they were staged, and the deletes that are remembered."""

    rows: pa.Table
    tombstones: pa.Table | None
    now: datetime


class Merge(Edit):
    """Changes go to the rows of their keys; `sql`, in the words of DuckDB, decides which, and over which rows."""

    operation = "MERGE"

    def __init__(
        self, store: Store, state: TableState, sql: MergeSql, changes: Staged, said: Mapping[str, str]
    ) -> None:
        self._store, self._state, self._sql, self.said = store, state, sql, said
        self._keys = list(sql.merging.keys)
        self._names = list(dict.fromkeys([*self._keys, *filter(None, [sql.merging.sequence])]))
        winners, rows = self._chosen(changes)
        self._deletes = pc.equal(pc.struct_field(winners[CHANGE.name], "op"), DELETE).to_numpy()
        brings = [name for name in state.schema.names if name in sql.columns]
        self._brought = {name: rows[name].cast(state.schema.field(name).type).combine_chunks() for name in brings}
        told = {*self._names, CHANGE.name, *GONE, FRESH}
        self._winners = _numbered(winners.select([name for name in winners.column_names if name in told]))
        self._met = np.zeros(len(winners), dtype=bool)
        self._fates: dict[tuple[str, str], pa.Table] = {}  # of a file's rows, in their order

    def _chosen(self, changes: Staged) -> tuple[pa.Table, pa.Table]:
        """One change per key, and the row that each brings."""
        given = changes.rows
        if not self._sql.merging.partial:
            given = given.select([*self._names, CHANGE.name])
            given = given.append_column(_AT, pa.array(range(len(given)), pa.int64()))
        named = {"changes": given} | ({} if changes.tombstones is None else {"tombstones": changes.tombstones})
        text = self._sql.winners("changes", "tombstones" if "tombstones" in named else None, changes.now)
        winners = duck.query(text, **named)
        rows = winners if self._sql.merging.partial else changes.rows.take(winners[_AT])
        return winners.drop_columns([name for name in (NTH, _AT) if name in winners.column_names]), rows

    # ---- which rows ----

    def near(self, stands: Sequence[File]) -> list[File]:
        """Files that may have a row which a change is for, as their bounds tell."""
        if self._sql.truncates:
            return list(stands)
        return among(stands, self._winners.select(self._keys), self._state.schema, self._state.partition_by)

    def candidates(self, stands: Sequence[File]) -> Iterator[File]:
        """Those that do have one: their keys tell."""
        by = self._state.partition_by
        narrow = pa.schema([item for item in self._state.schema if item.name in {*self._names, SOURCE.name}])
        for file in self.near(stands):
            pieces = pieces_of(self._store, file, narrow, by)
            found = self._found(_numbered(pa.concat_tables([narrow.empty_table(), *pieces])))
            if len(found):
                self._fates[file.key] = found
                yield file

    def _found(self, rows: pa.Table) -> pa.Table:
        """What becomes of which rows of a file, and by which change."""
        met = duck.query(self._sql.met("found", "winners"), found=rows, winners=self._winners)
        self._met[met["s"].to_numpy()] = True
        fates = met.filter(pc.is_valid(met["fate"]))
        if self._sql.truncates:
            ended = duck.query(self._sql.truncated("found"), found=rows)["t"]
            ended = ended.filter(pc.invert(pc.is_in(ended, value_set=met["t"].combine_chunks())))
            gone = pa.table([ended, pa.nulls(len(ended), pa.int64()), pa.repeat(GO, len(ended))], schema=fates.schema)
            fates = pa.concat_tables([fates, gone])
        return fates.sort_by("t")

    # ---- what becomes of them ----

    def edited(self, file: File, start: int, rows: pa.Table) -> Edited | None:
        """Rows that a change comes after go, or become what it makes of them."""
        fates = self._fates[file.key]
        here = np.searchsorted(fates["t"].to_numpy(), [start, start + len(rows)])
        mine = fates.slice(here[0], here[1] - here[0])
        if not len(mine):
            return None
        stays = np.ones(len(rows), dtype=bool)
        stays[mine["t"].to_numpy() - start] = False
        of = {fate: mine.filter(pc.equal(mine["fate"], fate)) for fate in (GO, WHOLE, PART)}
        taken = {fate: rows.take(pc.subtract(each["t"], start)) for fate, each in of.items()}
        after = [self._after(fate, taken[fate], of[fate]["s"]) for fate in (WHOLE, PART)]
        before = pa.concat_tables([taken[WHOLE], taken[PART]])
        return Edited(rows.filter(pa.array(stays)), taken[GO], before, pa.concat_tables(after))

    def _after(self, fate: str, rows: pa.Table, winners: pa.ChunkedArray) -> pa.Table:
        columns, taken = [], self._sql.taken(fate)
        for item in rows.schema:
            column = rows[item.name]
            if item.name in taken and item.name in self._brought:
                new = self._brought[item.name].take(winners.combine_chunks())
                column = _or_else(new, column.combine_chunks()) if taken[item.name] else new
            columns.append(column)
        return self._whole(columns)

    def inserts(self) -> pa.Table:
        """Changes whose key no row has."""
        new = pa.array(np.flatnonzero(~self._met & ~self._deletes))
        columns = [
            self._brought[item.name].take(new) if item.name in self._brought else pa.nulls(len(new), item.type)
            for item in self._state.schema
        ]
        return self._whole(columns)

    def _whole(self, columns: list[pa.Array]) -> pa.Table:
        """Rows for the table, as far as it takes them."""
        schema = self._state.schema
        for item, column in zip(schema, columns, strict=True):
            if not item.nullable and column.null_count:
                raise TableChanged(
                    f"{self._store.uri} refuses rows of this batch: its column {item.name} takes no NULL.",
                    next="Loosen the column and run again; transform.where keeps such rows out of later batches.",
                )
        return pa.table(columns, schema=schema)

    def counts(self, done: Done) -> dict[str, int]:
        """As Spark's MERGE counts."""
        return {
            "numSourceRows": len(self._winners),
            "numTargetRowsInserted": done.inserted,
            "numTargetRowsUpdated": done.updated,
            "numTargetRowsDeleted": done.deleted,
            "numTargetRowsCopied": done.copied,
            "numOutputRows": done.inserted + done.updated + done.copied,
        }


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column(NTH, pa.array(np.arange(len(rows))))


def _or_else(values: pa.Array, others: pa.Array) -> pa.Array:
    """The values, and where one is NULL the other; of any type."""
    count = len(values)
    at = np.arange(count) + np.where(values.is_null().to_numpy(zero_copy_only=False), count, 0)
    return pa.concat_arrays([values, others]).take(pa.array(at))
