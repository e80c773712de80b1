"""A merge by our own hands: the same SQL as Spark's decides, on DuckDB, and the files it touches are written anew here.

Spark takes seconds to begin with, and sends every row it copies through a join. Here keys and their order alone are
joined; rows that stay are copied as columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.actions import File
from headrace.delta.rows import pieces_of
from headrace.delta.scan import among
from headrace.delta.schema import SOURCE
from headrace.delta.snapshot import TableState
from headrace.engine import duck
from headrace.errors import TableChanged
from headrace.stage.change_schema import CHANGE
from headrace.storage.store import Store
from headrace.write.merge_sql import GO, NTH, PART, WHOLE, MergeSql
from headrace.write.row_edit import EditedRows, EditResult, RowEdit

_AT = "_headrace_at"  # of a change: its place in the batch


@dataclass(frozen=True, slots=True)
class Staged:
    """The changes of a batch as they were staged, and the deletes that are remembered."""

    rows: pa.Table
    tombstones: pa.Table | None
    now: datetime

    def query(self, sql: Callable[[str, str | None, datetime], str], changes: pa.Table, **more: pa.Table) -> pa.Table:
        """The answer to a text over changes, and over what is remembered."""
        remembered = {} if self.tombstones is None else {"tombstones": self.tombstones}
        text = sql("changes", "tombstones" if remembered else None, self.now)
        return duck.query(text, changes=changes, **remembered, **more)


class UpsertMerge(RowEdit):
    """Changes go to the rows of their keys; `sql`, in the words of DuckDB, decides which, and over which rows."""

    operation = "MERGE"

    def __init__(
        self, store: Store, state: TableState, sql: MergeSql, changes: Staged, parameters: Mapping[str, str]
    ) -> None:
        self._store, self._state, self._sql, self._changes, self.parameters = store, state, sql, changes, parameters
        self._keys = list(sql.merging.keys)
        kept = sql.merging.scd2.columns[:2] if sql.merging.scd2 else ()
        self._names = list(dict.fromkeys([*self._keys, *filter(None, [sql.merging.sequence]), *kept]))
        self._fates: dict[tuple[str, str], pa.Table] = {}  # of a file's rows, in their order

    def _choose(self) -> None:
        """One change per key, and the row that each brings."""
        rows, folded = self._changes.rows, self._sql.merging.partial
        narrow = rows.select([*self._names, CHANGE.name])
        given = rows if folded else narrow.append_column(_AT, pa.array(np.arange(len(rows))))
        winners = self._changes.query(self._sql.winners, given)
        self._hold(winners, winners if folded else rows.take(winners[_AT]))

    def _hold(self, winners: pa.Table, rows: pa.Table) -> None:
        """What the table's rows are held against, and what each brings."""
        schema, brings = self._state.schema, self._sql.columns
        self._brought = {
            item.name: rows[item.name].cast(item.type).combine_chunks() for item in schema if item.name in brings
        }
        own = [name for name in winners.column_names if name in self._names or name not in brings]
        self._winners = _numbered(winners.select([name for name in own if name not in (NTH, _AT)]))
        self._met = np.zeros(len(winners), dtype=bool)

    # ---- which rows ----

    def near(self, stands: Sequence[File]) -> list[File]:
        """Files that may have a row which a change is for, as their bounds tell."""
        if self._sql.truncates:
            return list(stands)
        return among(stands, self._changes.rows.select(self._keys), self._state.schema, self._state.partition_by)

    def candidates(self, stands: Sequence[File]) -> Iterator[File]:
        """Those that do have one: their keys tell."""
        self._choose()
        for file in self.near(stands):
            found = self._found(self._narrow(file))
            if len(found):
                self._fates[file.key] = found
                yield file

    def _narrow(self, file: File) -> pa.Table:
        """What of a file's rows decides, and their numbers."""
        narrow = pa.schema([item for item in self._state.schema if item.name in {*self._names, SOURCE.name}])
        pieces = pieces_of(self._store, file, narrow, self._state.partition_by)
        return _numbered(pa.concat_tables([narrow.empty_table(), *pieces]))

    def _found(self, rows: pa.Table) -> pa.Table:
        """What becomes of which rows, and by which change; in their order."""
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

    def edited(self, file: File, start: int, rows: pa.Table) -> EditedRows | None:
        """Rows that a change comes after go, or become what it makes of them."""
        mine = _between(self._fates[file.key], start, start + len(rows))
        if not len(mine):
            return None
        stays = np.ones(len(rows), dtype=bool)
        stays[mine["t"].to_numpy() - start] = False
        of = {fate: mine.filter(pc.equal(mine["fate"], fate)) for fate in (GO, WHOLE, PART)}
        taken = {fate: rows.take(pc.subtract(each["t"], start)) for fate, each in of.items()}
        after = [self._after(fate, taken[fate], of[fate]["s"]) for fate in (WHOLE, PART)]
        before = pa.concat_tables([taken[WHOLE], taken[PART]])
        return EditedRows(rows.filter(pa.array(stays)), taken[GO], before, pa.concat_tables(after))

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
        """Changes that met no row and are no delete."""
        told = duck.query(self._sql.arriving("winners"), winners=self._winners)["s"]
        new = told.filter(pa.array(~self._met).take(told)).combine_chunks()
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
                    hint="Loosen the column and run again; transform.where keeps such rows out of later batches.",
                )
        return pa.table(columns, schema=schema)

    def counts(self, done: EditResult) -> dict[str, int]:
        """As Spark's MERGE counts."""
        return {
            "numSourceRows": len(self._winners),
            "numTargetRowsInserted": done.inserted,
            "numTargetRowsUpdated": done.updated,
            "numTargetRowsDeleted": done.deleted,
            "numTargetRowsCopied": done.copied,
            "numOutputRows": done.inserted + done.updated + done.copied,
        }


class Scd2Merge(UpsertMerge):
    """Every state of a key is a row: those that are there of the batch's keys are read first, and decide as well."""

    def candidates(self, stands: Sequence[File]) -> Iterator[File]:
        """The rows of the batch's keys, wherever they are, are held against those that the keys are to have."""
        near = self.near(stands)
        parts = [self._of_batch(file) for file in near]
        rows = pa.concat_tables([self._state.schema.empty_table(), *(part.drop_columns([NTH]) for part in parts)])
        states = self._changes.query(partial(self._sql.source, "held"), self._changes.rows, held=rows)
        self._hold(states, states)
        fates, start = self._found(_numbered(rows)), 0
        for file, part in zip(near, parts, strict=True):
            mine = _between(fates, start, start + len(part))
            if len(mine):
                places = part[NTH].take(pc.subtract(mine["t"], start))
                self._fates[file.key] = mine.set_column(0, "t", places)
                yield file
            start += len(part)

    def _of_batch(self, file: File) -> pa.Table:
        """A file's rows with a key of the batch, and their numbers."""
        keys = self._changes.rows.select(self._keys)
        same = " AND ".join(f"t.{duck.quote(name)} = c.{duck.quote(name)}" for name in self._keys)
        sql = f"SELECT t.{NTH} AS t FROM found AS t SEMI JOIN keys AS c ON {same} ORDER BY 1"  # noqa: S608 quoted
        found = duck.query(sql, found=self._narrow(file), keys=keys).column("t")
        wanted, start = [], 0
        schema, numbers = self._state.schema, found.to_numpy()
        for piece in pieces_of(self._store, file, schema, self._state.partition_by) if len(found) else ():
            low, high = np.searchsorted(numbers, [start, start + len(piece)])
            wanted.append(piece.take(pa.array(numbers[low:high] - start)))
            start += len(piece)
        return pa.concat_tables([schema.empty_table(), *wanted]).append_column(NTH, found)


def _between(fates: pa.Table, start: int, until: int) -> pa.Table:
    """Those of the rows from one up to another."""
    low, high = np.searchsorted(fates["t"].to_numpy(), [start, until])
    return fates.slice(low, high - low)


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column(NTH, pa.array(np.arange(len(rows))))


def _or_else(values: pa.Array, others: pa.Array) -> pa.Array:
    """The values, and where one is NULL the other; of any type."""
    count = len(values)
    at = np.arange(count) + np.where(values.is_null().to_numpy(zero_copy_only=False), count, 0)
    return pa.concat_arrays([values, others]).take(pa.array(at))
