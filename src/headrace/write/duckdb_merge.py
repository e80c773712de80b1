"""The in-process merge: DuckDB runs the same SQL as Spark, and the rewrite engine replaces the files that it touches.

Spark takes seconds to start and sends every copied row through a join. Here only keys and their order are joined;
unchanged rows are copied as columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.actions import File
from headrace.delta.features import rewrite_blocker
from headrace.delta.rows import row_chunks
from headrace.delta.scan import files_with_keys
from headrace.delta.schema import SOURCE
from headrace.delta.snapshot import ActiveFiles, TableState
from headrace.engine import duck
from headrace.errors import TableChanged
from headrace.stage.change_schema import CHANGE
from headrace.storage.store import Store
from headrace.write.merge_sql import DELETE_ROW, DUCKDB, NTH, REPLACE_ROW, UPDATE_ROW, MergeSql
from headrace.write.row_edit import EditAttempt, EditedRows, EditResult, RowEdit
from headrace.write.staged_changes import StagedChanges

_INDEX = "_headrace_at"  # the index of a change in the batch


class InProcessMerge:
    """A merge into one version of a table; the changes are read when the touched files are listed."""

    def __init__(self, store: Store, changes: StagedChanges, state: TableState, active_files: ActiveFiles) -> None:
        self._store, self._changes, self._state, self._active_files = store, changes, state, active_files

    @cached_property
    def _edit(self) -> UpsertMerge:
        changes, rows = self._changes, self._changes.rows()
        # Tombstone files without a key of the batch are not read.
        files = files_with_keys(
            changes.tombstone_files, rows.select(changes.rules.keys), changes.tombstones.columns, ()
        )
        change_rows = ChangeRows(rows, changes.tombstones.rows(files) if files else None, changes.now)
        edit = Scd2Merge if changes.rules.scd2 else UpsertMerge
        parameters = {"key": json.dumps(list(changes.rules.keys))}
        return edit(self._store, self._state, changes.sql(DUCKDB), change_rows, parameters)

    @cached_property
    def files(self) -> list[File]:
        """The files that may contain a row of the batch's keys."""
        return self._edit.overlapping(self._active_files.at(self._state.version))

    def run(self, account: Mapping[str, Any], txn: tuple[str, int]) -> None:
        """Rewrite the files and commit with the batch's txn."""
        EditAttempt(self._store, self._state, self._edit, rewrite_blocker, self.files).run(account, txns=dict([txn]))


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """The changes of a batch and the tombstones of earlier batches, in memory."""

    rows: pa.Table
    tombstones: pa.Table | None
    now: datetime

    def query(self, sql: Callable[[str, str | None, datetime], str], changes: pa.Table, **tables: pa.Table) -> pa.Table:
        """Run a query over changes, tombstones and other tables."""
        if self.tombstones is not None:
            tables["tombstones"] = self.tombstones
        text = sql("changes", None if self.tombstones is None else "tombstones", self.now)
        return duck.query(text, changes=changes, **tables)


class UpsertMerge(RowEdit):
    """The edit of an upsert: `sql`, in DuckDB's dialect, selects one change per key and its effect on the row.

    Rows and changes are joined by their numbers. Changes of the keys 5, 7, 9 and a file with the keys 7, 8, 9:

        outcomes of the file:  t (row)  s (change)  outcome
                               0        1           replace     key 7
                               2        2           delete      key 9
        inserts: change 0, as it matched no row of any file.
    """

    operation = "MERGE"

    def __init__(
        self, store: Store, state: TableState, sql: MergeSql, changes: ChangeRows, parameters: Mapping[str, str]
    ) -> None:
        self._store, self._state, self._sql, self._changes, self.parameters = store, state, sql, changes, parameters
        self._keys = list(sql.merging.keys)
        validity = sql.merging.scd2.columns[:2] if sql.merging.scd2 else ()
        self._join_columns = list(dict.fromkeys([*self._keys, *filter(None, [sql.merging.sequence]), *validity]))
        self._outcomes: dict[tuple[str, str], pa.Table] = {}  # by file: of its changed rows, in row order

    def _set_winners(self, winners: pa.Table, rows: pa.Table) -> None:
        """Set the changes to join with the table's rows, and the column values of each."""
        names = self._sql.columns
        self._values = {
            item.name: rows[item.name].cast(item.type).combine_chunks()
            for item in self._state.schema
            if item.name in names
        }
        columns = [name for name in winners.column_names if name in self._join_columns or name not in names]
        self._winners = _numbered(winners.select([name for name in columns if name not in (NTH, _INDEX)]))
        self._matched = np.zeros(len(winners), dtype=bool)

    # ---- which rows change ----

    def overlapping(self, files: Sequence[File]) -> list[File]:
        """The files that may contain a row of the batch's keys, by their statistics."""
        if self._sql.truncates:
            return list(files)
        return files_with_keys(
            files, self._changes.rows.select(self._keys), self._state.schema, self._state.partition_by
        )

    def candidates(self, files: Sequence[File]) -> Iterator[File]:
        """The files that contain a row to change, by their keys."""
        rows, partial_updates = self._changes.rows, self._sql.merging.partial
        narrow = rows.select([*self._join_columns, CHANGE.name])
        changes = rows if partial_updates else narrow.append_column(_INDEX, pa.array(np.arange(len(rows))))
        winners = self._changes.query(self._sql.winners, changes)
        self._set_winners(winners, winners if partial_updates else rows.take(winners[_INDEX]))
        for file in self.overlapping(files):
            outcomes = self._outcomes_of(self._join_rows(file))
            if len(outcomes):
                self._outcomes[file.key] = outcomes
                yield file

    def _join_rows(self, file: File) -> pa.Table:
        """The columns of a file that the join needs, with row numbers."""
        schema = pa.schema([item for item in self._state.schema if item.name in {*self._join_columns, SOURCE.name}])
        pieces = row_chunks(self._store, file, schema, self._state.partition_by)
        return _numbered(pa.concat_tables([schema.empty_table(), *pieces]))

    def _outcomes_of(self, rows: pa.Table) -> pa.Table:
        """The rows that change, each with its change and its outcome, in row order."""
        matches = duck.query(self._sql.matches("target", "winners"), target=rows, winners=self._winners)
        self._matched[matches["s"].to_numpy()] = True
        outcomes = matches.filter(pc.is_valid(matches["outcome"]))
        if self._sql.truncates:
            truncated = duck.query(self._sql.truncated("target"), target=rows)["t"]
            truncated = truncated.filter(pc.invert(pc.is_in(truncated, value_set=matches["t"].combine_chunks())))
            count = len(truncated)
            columns = [truncated, pa.nulls(count, pa.int64()), pa.repeat(DELETE_ROW, count)]
            outcomes = pa.concat_tables([outcomes, pa.table(columns, schema=outcomes.schema)])
        return outcomes.sort_by("t")

    # ---- how they change ----

    def edited(self, file: File, start: int, rows: pa.Table) -> EditedRows | None:
        """Apply the outcomes to the rows of a file from row number `start` on."""
        outcomes = _between(self._outcomes[file.key], start, start + len(rows))
        if not len(outcomes):
            return None
        kept = np.ones(len(rows), dtype=bool)
        kept[outcomes["t"].to_numpy() - start] = False
        kinds = (DELETE_ROW, REPLACE_ROW, UPDATE_ROW)
        by_kind = {kind: outcomes.filter(pc.equal(outcomes["outcome"], kind)) for kind in kinds}
        before = {kind: rows.take(pc.subtract(part["t"], start)) for kind, part in by_kind.items()}
        after = [self._after(kind, before[kind], by_kind[kind]["s"]) for kind in (REPLACE_ROW, UPDATE_ROW)]
        changed = pa.concat_tables([before[REPLACE_ROW], before[UPDATE_ROW]])
        return EditedRows(rows.filter(pa.array(kept)), before[DELETE_ROW], changed, pa.concat_tables(after))

    def _after(self, outcome: str, rows: pa.Table, winners: pa.ChunkedArray) -> pa.Table:
        columns, assigned = [], self._sql.assigned(outcome)
        for item in rows.schema:
            column = rows[item.name]
            if item.name in assigned and item.name in self._values:
                new = self._values[item.name].take(winners.combine_chunks())
                column = _coalesce(new, column.combine_chunks()) if assigned[item.name] else new
            columns.append(column)
        return self._checked(columns)

    def inserts(self) -> pa.Table:
        """The changes that matched no row and are not deletes."""
        inserted = duck.query(self._sql.insertable("winners"), winners=self._winners)["s"]
        new = inserted.filter(pa.array(~self._matched).take(inserted)).combine_chunks()
        columns = [
            self._values[item.name].take(new) if item.name in self._values else pa.nulls(len(new), item.type)
            for item in self._state.schema
        ]
        return self._checked(columns)

    def _checked(self, columns: list[pa.Array]) -> pa.Table:
        """Rows of the table; TableChanged if a NOT NULL column has a NULL."""
        schema = self._state.schema
        for item, column in zip(schema, columns, strict=True):
            if not item.nullable and column.null_count:
                raise TableChanged(
                    f"{self._store.uri} rejects rows of this batch: its column {item.name} is NOT NULL.",
                    hint="Make the column nullable and run again; transform.where filters such rows from later "
                    "batches.",
                )
        return pa.table(columns, schema=schema)

    def counts(self, result: EditResult) -> dict[str, int]:
        """operationMetrics as Spark's MERGE has them."""
        return {
            "numSourceRows": len(self._winners),
            "numTargetRowsInserted": result.inserted,
            "numTargetRowsUpdated": result.updated,
            "numTargetRowsDeleted": result.deleted,
            "numTargetRowsCopied": result.copied,
            "numOutputRows": result.inserted + result.updated + result.copied,
        }


class Scd2Merge(UpsertMerge):
    """The edit of an SCD2 merge: the states of a key follow from its stored rows and its changes together."""

    def candidates(self, files: Sequence[File]) -> Iterator[File]:
        """Compare the stored rows of the batch's keys, in all files, with the states that they must have."""
        overlapping = self.overlapping(files)
        parts = [self._rows_of_batch(file) for file in overlapping]
        rows = pa.concat_tables([self._state.schema.empty_table(), *(part.drop_columns([NTH]) for part in parts)])
        states = self._changes.query(partial(self._sql.source, "target"), self._changes.rows, target=rows)
        self._set_winners(states, states)
        outcomes, start = self._outcomes_of(_numbered(rows)), 0
        for file, part in zip(overlapping, parts, strict=True):
            file_outcomes = _between(outcomes, start, start + len(part))
            if len(file_outcomes):
                numbers = part[NTH].take(pc.subtract(file_outcomes["t"], start))
                self._outcomes[file.key] = file_outcomes.set_column(0, "t", numbers)
                yield file
            start += len(part)

    def _rows_of_batch(self, file: File) -> pa.Table:
        """The rows of a file with a key of the batch, with row numbers."""
        keys = self._changes.rows.select(self._keys)
        same = " AND ".join(f"t.{duck.quote(name)} = c.{duck.quote(name)}" for name in self._keys)
        sql = f"SELECT t.{NTH} AS t FROM target AS t SEMI JOIN keys AS c ON {same} ORDER BY 1"  # noqa: S608 quoted
        column = duck.query(sql, target=self._join_rows(file), keys=keys).column("t")
        parts, start = [], 0
        schema, numbers = self._state.schema, column.to_numpy()
        for piece in row_chunks(self._store, file, schema, self._state.partition_by) if len(numbers) else ():
            low, high = np.searchsorted(numbers, [start, start + len(piece)])
            parts.append(piece.take(pa.array(numbers[low:high] - start)))
            start += len(piece)
        return pa.concat_tables([schema.empty_table(), *parts]).append_column(NTH, column)


def _between(outcomes: pa.Table, start: int, until: int) -> pa.Table:
    """The outcomes of the rows from number `start` up to `until`."""
    low, high = np.searchsorted(outcomes["t"].to_numpy(), [start, until])
    return outcomes.slice(low, high - low)


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column(NTH, pa.array(np.arange(len(rows))))


def _coalesce(values: pa.Array, others: pa.Array) -> pa.Array:
    """The values, or the others where one is NULL; for any type, which `pc.coalesce` is not.

    [1, NULL] and [8, 9]: take the numbers 0 and 3 of [1, NULL, 8, 9].
    """
    count = len(values)
    indices = np.arange(count) + np.where(values.is_null().to_numpy(zero_copy_only=False), count, 0)
    return pa.concat_arrays([values, others]).take(pa.array(indices))
