"""What was deleted, remembered for a while: so that an older change that comes late does not bring a row back.

A Delta table of its own for each table that merges, in the pipeline's state, appended to by its log. It is committed
before the merge: a tombstone too many ends only what its delete ends anyway, one too few would bring a row back.
Truncates are remembered beside the deletes: they have no key.

A history that tracks some columns remembers every change: those that make no row of their own can still divide one.
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
from headrace.delta.batch_commits import newest_part
from headrace.delta.rows import ColumnReader, read_rows
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import active_files
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_txn
from headrace.delta.type_widening import widens
from headrace.spec.types import TIMESTAMP
from headrace.stage.change_schema import CHANGE, DELETE, TRUNCATE
from headrace.stage.stager import FileLayout, Stager
from headrace.storage.store import Store
from headrace.write.append import AppendWriter
from headrace.write.intent import Intent, MergeRules, TableIntent
from headrace.write.merge_sql import UNTIL, Truncates, later

TOMBSTONES = "tombstones"  # the folder of the state that holds them, by table id
DAY = "_headrace_day"  # the partition column: what has expired leaves as whole files
_ENDING = (DELETE, TRUNCATE)


class Tombstones:
    """The deletes and truncates of one table that are still remembered, or all of its changes."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self.store = store
        self._committer = AppendWriter.open(store, pipeline)
        self._mark = batch_txn(pipeline)

    def commit(self, table: TableIntent, merging: MergeRules, intent: Intent, schema: pa.Schema) -> None:
        """Add the deletes of a batch, once."""
        committer = self._committer
        holding = [
            item for item in table.files if _keeps_all(merging) or any(holds_tombstones(item, op) for op in _ENDING)
        ]
        if not holding or (committer.state is not None and committer.state.txns.get(self._mark) == intent.batch):
            return
        columns = _columns(schema, merging)
        if committer.state is not None:
            self._grow(columns)
            columns = committer.writable()
        until = max(intent.started, intent.resumed) + timedelta(seconds=merging.tombstone_retention)
        files = self._staged(holding, columns, until, intent, _keeps_all(merging))
        made = committer.state is None
        table_id = str(uuid.uuid4()) if committer.state is None else committer.state.table_id
        committer.commit(TableIntent(self.store.uri, table_id, made, to_delta(columns), (DAY,), {}, files), intent)

    def _grow(self, columns: pa.Schema) -> None:
        """Become as wide as the table has become. Files stay as they are: whoever reads them here casts them."""
        tail, known = self._committer.tail, self._committer.writable()
        if (wide := _widened(known, columns)) != known:
            schema = to_delta(wide)
            said = "CHANGE COLUMNS", {"schema": schema}
            tail.alter(lambda metadata: replace(metadata, schema_json=schema), lambda _: said, {})
        self._committer.evolve(columns)

    @property
    def are_there(self) -> bool:
        """Whether something was ever remembered."""
        return self._committer.state is not None

    def lost(self, table: Store, version: int) -> bool:
        """Whether there are none although the table's last merge says that there were."""
        if self.are_there:
            return False
        part = newest_part(table, version, self._mark)
        return part is not None and bool(part.account.get("has_tombstones"))

    def begin_anew(self, schema: pa.Schema, merging: MergeRules) -> None:
        """Remember from here on; somebody has said that what was remembered is given up."""
        columns = to_delta(_columns(schema, merging))
        self._committer.tail.create(columns, (DAY,), {}, str(uuid.uuid4()), (), {}, {})

    @property
    def columns(self) -> pa.Schema:
        """What files hold, or an empty schema where nothing was ever remembered."""
        state = self._committer.state
        return pa.schema([item for item in state.schema if item.name != DAY] if state else [])

    def files(self, now: datetime) -> list[File]:
        """What is still remembered: read as plain files, because Spark would run queries to find them in their log."""
        state, today = self._committer.state, now.astimezone(UTC).date().isoformat()
        stands = active_files(self.store, state.version).values() if state else ()
        return [file for file in stands if (file.partition.get(DAY) or today) >= today]

    def rows(self, files: Iterable[File]) -> pa.Table:
        """What these files remember."""
        empty = self.columns.empty_table()
        return pa.concat_tables([empty, *(read_rows(self.store, file, self.columns, ()) for file in files)])

    def truncates(self, files: Iterable[File], now: datetime) -> Truncates:
        """The last truncate of each partition in these files, whichever batch it was of."""
        columns = ColumnReader(self.store, [CHANGE.name, UNTIL])
        held = [columns.of(file)[0] for file in files if holds_tombstones(file, TRUNCATE)]
        counts = [rows.filter(pc.greater(rows[UNTIL], pa.scalar(now, TIMESTAMP))) for rows in held]
        return last_truncates(rows[CHANGE.name] for rows in counts)

    def _staged(
        self, files: Sequence[StagedFile], columns: pa.Schema, until: datetime, intent: Intent, every: bool
    ) -> tuple[StagedFile, ...]:
        stager = Stager(lambda uri: Store(uri, self.store.profile), f"{intent.batch:08d}-deletes")
        layout = FileLayout(self.store.uri, columns, (DAY,))
        try:
            for item in files:
                for rows in _changes(Store(item.table, self.store.profile), item, columns.names, every):
                    stager.add(layout, _as_tombstones(rows, columns, until))
            return stager.finish()
        except BaseException:
            stager.abandon()
            raise


def last_truncates(changes: Iterable[pa.ChunkedArray]) -> Truncates:
    """Where each partition was last truncated by these changes."""
    said = (each.filter(pc.equal(pc.struct_field(each, "op"), TRUNCATE)).to_pylist() for each in changes)
    found = (row for rows in said for row in rows)
    return later(*({(row["topic"], row["partition"]): (row["offset"], row["timestamp"])} for row in found))


def holds_tombstones(file: StagedFile | File, op: str) -> bool:
    """Whether a file may hold a change of this kind, by its statistics."""
    stats = json.loads(file.stats or "{}")
    low, high = (stats.get(side, {}).get(CHANGE.name, {}).get("op") for side in ("minValues", "maxValues"))
    return low is None or high is None or low <= op <= high


def _keeps_all(merging: MergeRules) -> bool:
    return merging.scd2 is not None and bool(merging.scd2.track)


def _columns(schema: pa.Schema, merging: MergeRules) -> pa.Schema:
    """Keys and order first; all that records bring where every change is kept."""
    named = [*merging.keys, *([merging.sequence] if merging.sequence else [])]
    if _keeps_all(merging) and merging.scd2:
        named += [name for name in schema.names if name not in (*named, *merging.scd2.columns)]
    own = [pa.field(name, schema.field(name).type) for name in named]
    return pa.schema([*own, CHANGE, pa.field(UNTIL, TIMESTAMP), pa.field(DAY, pa.date32())])


def _widened(have: pa.Schema, want: pa.Schema) -> pa.Schema:
    """The columns that are there, in the types that they are asked to have where those are wider."""
    asked = {item.name: item for item in want}
    return pa.schema(
        [asked[item.name] if item.name in asked and widens(item.type, asked[item.name].type) else item for item in have]
    )


def _changes(store: Store, item: StagedFile, columns: Sequence[str], every: bool) -> Iterator[pa.Table]:
    file = pq.ParquetFile(pa.BufferReader(store.get(item.path)))
    wanted = [name for name in file.schema_arrow.names if name in columns]
    for group in range(file.num_row_groups):
        rows = file.read_row_group(group, wanted, use_threads=False)
        op = pc.struct_field(rows[CHANGE.name], "op")
        yield rows if every else rows.filter(pc.is_in(op, value_set=pa.array(_ENDING)))


def _as_tombstones(rows: pa.Table, columns: pa.Schema, until: datetime) -> pa.Table:
    said = {UNTIL: until.astimezone(UTC), DAY: until.astimezone(UTC).date()}
    made = [
        pa.repeat(pa.scalar(said[item.name], item.type), len(rows))
        if item.name in said
        else rows[item.name].cast(item.type)
        if item.name in rows.column_names
        else pa.nulls(len(rows), item.type)
        for item in columns
    ]
    return pa.Table.from_arrays(made, schema=columns)
