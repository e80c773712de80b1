"""Tombstones: deletes that a pipeline stores for a while, so that an older change that arrives late stays deleted.

One Delta table per merged table, in the pipeline's state, written by direct commits. Tombstones are committed before
the merge: after a crash in between, a tombstone too many deletes only what its delete deletes anyway; a tombstone too
few would bring a row back. Truncates are stored as well; they have no key.

An SCD2 table that tracks some columns stores every change: one that adds no row may still split one later.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.delta.actions import File
from headrace.delta.log import EPOCH, LogWalk
from headrace.delta.rows import ColumnReader, read_rows
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import active_files, load_state
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_txn
from headrace.delta.type_widening import widens
from headrace.spec.types import TIMESTAMP
from headrace.stage.change_schema import CHANGE, DELETE, TRUNCATE
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Store
from headrace.write.append import AppendWriter
from headrace.write.intent import Intent, MergeRules, TableIntent
from headrace.write.merge_sql import UNTIL, Truncates, later

TOMBSTONES = "tombstones"  # the folder in the pipeline's state, with one folder per table id
DAY = "_headrace_day"  # the partition column: expired tombstones are removed as whole files
_OPERATIONS = (DELETE, TRUNCATE)


class Tombstones:
    """The tombstones of one table."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self.store = store
        self._writer = AppendWriter.open(store, pipeline)
        self._txn = batch_txn(pipeline)

    def commit(self, table: TableIntent, merging: MergeRules, intent: Intent, schema: pa.Schema) -> None:
        """Add the deletes of a batch; skipped if they are stored already."""
        state = self._writer.state
        files = [
            file
            for file in table.files
            if _stores_all(merging) or any(may_contain(file, operation) for operation in _OPERATIONS)
        ]
        if not files or (state is not None and state.txns.get(self._txn) == intent.batch):
            return
        columns = _columns(schema, merging)
        if state is not None:
            self._evolve(columns)
            columns = self._writer.writable()
        until = max(intent.started, intent.resumed) + timedelta(seconds=merging.tombstone_retention)
        staged = self._stage(files, columns, until, intent, _stores_all(merging))
        table_id = str(uuid.uuid4()) if state is None else state.table_id
        part = TableIntent(self.store.uri, table_id, state is None, to_delta(columns), (DAY,), {}, staged)
        self._writer.commit(part, intent)

    def _evolve(self, columns: pa.Schema) -> None:
        """Follow the types and columns of the table. Old files stay as they are: `rows` casts them."""
        current = self._writer.writable()
        if (wide := _widened(current, columns)) != current:
            schema = to_delta(wide)
            operation = "CHANGE COLUMNS", {"schema": schema}
            self._writer.log_writer.alter(
                lambda metadata: replace(metadata, schema_json=schema), lambda _: operation, {}
            )
        self._writer.evolve(columns)

    @property
    def are_there(self) -> bool:
        """Whether a tombstone was ever stored."""
        return self._writer.state is not None

    def lost(self, table: Store, version: int, expired: datetime = EPOCH) -> bool:
        """Whether the tombstones are missing although the last merge into the table had some.

        If the log no longer has the last merge, they count as missing. There are two exceptions: the table has no txn
        of the pipeline, so there was no merge; or the oldest commit in the log is older than `expired`, so the merge
        is, too, and all tombstones have expired.
        """
        if self.are_there:
            return False
        walk, time = LogWalk(table, version), None
        for commit in walk:
            # Other commits with the txn, which set it again after it was lost, do not know.
            if self._txn in commit.txns and "has_tombstones" in commit.account:
                return bool(commit.account["has_tombstones"])
            time = commit.timestamp
        state = None if walk.complete else load_state(table, [self._txn])
        if state is None or self._txn not in state.txns:
            return False
        return time is None or time > expired.timestamp() * 1000

    def create_empty(self, schema: pa.Schema, merging: MergeRules) -> None:
        """Start again without tombstones, after an operator accepted that they are lost."""
        columns = to_delta(_columns(schema, merging))
        self._writer.log_writer.create(columns, (DAY,), {}, str(uuid.uuid4()), (), {}, {})

    @property
    def columns(self) -> pa.Schema:
        """The columns of the files; an empty schema if no tombstone was ever stored."""
        state = self._writer.state
        return pa.schema([item for item in state.schema if item.name != DAY] if state else [])

    def files(self, now: datetime) -> list[File]:
        """The files that have not expired. Spark reads them as plain Parquet: listing the log would take it queries."""
        state, today = self._writer.state, now.astimezone(UTC).date().isoformat()
        files = active_files(self.store, state.version).values() if state else ()
        return [file for file in files if (file.partition.get(DAY) or today) >= today]

    def rows(self, files: Iterable[File]) -> pa.Table:
        """The tombstones in files, in the current columns."""
        empty = self.columns.empty_table()
        return pa.concat_tables([empty, *(read_rows(self.store, file, self.columns, ()) for file in files)])

    def truncates(self, files: Iterable[File], now: datetime) -> Truncates:
        """The last truncate of each partition in files, of any batch."""
        reader = ColumnReader(self.store, [CHANGE.name, UNTIL])
        tables = [reader.of(file)[0] for file in files if may_contain(file, TRUNCATE)]
        valid = [rows.filter(pc.greater(rows[UNTIL], pa.scalar(now, TIMESTAMP))) for rows in tables]
        return last_truncates(rows[CHANGE.name] for rows in valid)

    def _stage(
        self, files: Sequence[StagedFile], columns: pa.Schema, until: datetime, intent: Intent, all_changes: bool
    ) -> tuple[StagedFile, ...]:
        stager = Stager(lambda uri: Store(uri, self.store.profile), f"{intent.batch:08d}-deletes")
        layout = FileLayout(self.store.uri, columns, (DAY,))
        try:
            for file in files:
                for rows in _changes(Store(file.table, self.store.profile), file, columns.names, all_changes):
                    stager.add(layout, _as_tombstones(rows, columns, until))
            return stager.finish()
        except BaseException:
            stager.abandon()
            raise


def last_truncates(changes: Iterable[pa.ChunkedArray]) -> Truncates:
    """The last truncate of each partition in columns of changes."""
    columns = (column.filter(pc.equal(pc.struct_field(column, "op"), TRUNCATE)).to_pylist() for column in changes)
    rows = (row for column in columns for row in column)
    return later(*({(row["topic"], row["partition"]): (row["offset"], row["timestamp"])} for row in rows))


def may_contain(file: StagedFile | File, operation: str) -> bool:
    """Whether a file may contain changes of this operation, by its statistics."""
    stats = json.loads(file.stats or "{}")
    low, high = (stats.get(side, {}).get(CHANGE.name, {}).get("op") for side in ("minValues", "maxValues"))
    return low is None or high is None or low <= operation <= high


def _stores_all(merging: MergeRules) -> bool:
    return merging.scd2 is not None and bool(merging.scd2.track)


def _columns(schema: pa.Schema, merging: MergeRules) -> pa.Schema:
    """Keys and sequence first; then all columns of records if every change is stored."""
    names = [*merging.keys, *([merging.sequence] if merging.sequence else [])]
    if _stores_all(merging) and merging.scd2:
        names += [name for name in schema.names if name not in (*names, *merging.scd2.columns)]
    fields = [pa.field(name, schema.field(name).type) for name in names]
    return pa.schema([*fields, CHANGE, pa.field(UNTIL, TIMESTAMP), pa.field(DAY, pa.date32())])


def _widened(have: pa.Schema, want: pa.Schema) -> pa.Schema:
    """The columns of `have`, with the types of `want` where those are wider."""
    new = {item.name: item for item in want}
    return pa.schema(
        [new[item.name] if item.name in new and widens(item.type, new[item.name].type) else item for item in have]
    )


def _changes(store: Store, file: StagedFile, columns: Sequence[str], all_changes: bool) -> Iterator[pa.Table]:
    parquet = pq.ParquetFile(pa.BufferReader(store.get(file.path)))
    names = [name for name in parquet.schema_arrow.names if name in columns]
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group, names, use_threads=False)
        operations = pc.struct_field(rows[CHANGE.name], "op")
        yield rows if all_changes else rows.filter(pc.is_in(operations, value_set=pa.array(_OPERATIONS)))


def _as_tombstones(rows: pa.Table, columns: pa.Schema, until: datetime) -> pa.Table:
    constants = {UNTIL: until.astimezone(UTC), DAY: until.astimezone(UTC).date()}
    arrays = [
        pa.repeat(pa.scalar(constants[item.name], item.type), len(rows))
        if item.name in constants
        else rows[item.name].cast(item.type)
        if item.name in rows.column_names
        else pa.nulls(len(rows), item.type)
        for item in columns
    ]
    return pa.Table.from_arrays(arrays, schema=columns)
