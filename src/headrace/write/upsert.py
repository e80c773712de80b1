"""Table writer for upserts and SCD2: staged changes are merged by key in one commit with the batch's txn.

`choose_merge` selects an in-process merge (DuckDB) or a MERGE of Spark; both use the same SQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.delta.actions import File, as_file
from headrace.delta.features import WRITER, WriterKind, rewrite_blocker
from headrace.delta.log import read_commit
from headrace.delta.log_writer import LogWriter, first_state
from headrace.delta.receipt import Receipt
from headrace.delta.rows import ColumnReader, read_rows
from headrace.delta.scan import among
from headrace.delta.schema import from_delta, to_delta
from headrace.delta.snapshot import ActiveFiles, TableState
from headrace.delta.staged_file import StagedFile
from headrace.engine import duck
from headrace.errors import TxnMismatch
from headrace.stage.change_schema import CHANGE, DELETE, TRUNCATE, staged
from headrace.stage.parquet import read_parquet
from headrace.storage.store import Store
from headrace.write.duckdb_merge import Scd2Merge, Staged, UpsertMerge
from headrace.write.intent import Intent, MergeRules, TableIntent
from headrace.write.key_bounds import key_bounds, partition_literals
from headrace.write.merge_sql import DUCKDB, SPARK, MergeDialect, MergeSql, Truncates
from headrace.write.row_edit import EditAttempt
from headrace.write.scd2_sql import Scd2Sql
from headrace.write.spark_append import SparkAppendWriter, ddl, quote_identifier, told, value_as_text, widen_schema
from headrace.write.tombstones import Tombstones, holds_tombstones, last_truncates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNTS = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
_APP, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_ACCOUNT = "spark.databricks.delta.commitInfo.userMetadata"

# A batch is small beside its table: hash it, rather than sort the table by its keys.
_JOIN = {"spark.sql.join.preferSortMergeJoin": "false", "spark.sql.autoBroadcastJoinThreshold": "32m"}
# Every batch has its own bounds, so its queries are compiled anew: for few rows that costs more than it brings.
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_FEW = 100_000  # rows
_IN_MEMORY = 8  # an in-process merge holds its changes in memory: at most 1/8 of the bytes that it may touch
_MANY = 1_000_000
# Staged files never change, so they can be read twice; a history also reads its table, which can.
_SOURCE = "spark.databricks.delta.merge.materializeSource"


class MergeEngine(StrEnum):
    """What executes a merge."""

    IN_PROCESS = "in-process"  # DuckDB and the rewrite engine
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class MergeChoice:
    """The engine for one merge, and why it was chosen."""

    engine: MergeEngine
    reason: str


def choose_merge(
    state: TableState, limit: int, change_bytes: int, touched: Callable[[], Sequence[File]]
) -> MergeChoice:
    """Choose the engine of a merge: in-process, unless the table or the size of the merge requires Spark.

    `limit` is in bytes. The files that the merge touches are listed last, because that reads the changes.
    """
    if change_bytes > limit // _IN_MEMORY:
        reason = f"{change_bytes:,} bytes of changes do not fit into memory ({limit // _IN_MEMORY:,} are allowed)"
        return MergeChoice(MergeEngine.SPARK, reason)
    if blocker := rewrite_blocker(state):
        return MergeChoice(MergeEngine.SPARK, blocker)
    files = touched()
    if (size := sum(file.size for file in files)) > limit:
        return MergeChoice(MergeEngine.SPARK, f"it touches {size:,} bytes of files ({limit:,} are allowed)")
    if any(file.elsewhere for file in files):
        return MergeChoice(MergeEngine.SPARK, "it touches files of another table (a shallow clone)")
    return MergeChoice(MergeEngine.IN_PROCESS, f"it touches {size:,} bytes of files")


class _InProcessMerge:
    """A merge by DuckDB on one version of a table; the changes are read when the touched files are listed."""

    def __init__(
        self,
        store: Store,
        state: TableState,
        change_bytes: int,
        edit: Callable[[TableState], UpsertMerge],
        active_files: ActiveFiles,
    ) -> None:
        self.state, self.change_bytes = state, change_bytes
        self._store, self._read_edit, self._active_files = store, edit, active_files

    @cached_property
    def _edit(self) -> UpsertMerge:
        return self._read_edit(self.state)

    @cached_property
    def files(self) -> list[File]:
        """The files that may contain a row of the batch's keys."""
        return self._edit.near(self._active_files.at(self.state.version))

    def run(self, info: Mapping[str, Any], txns: Mapping[str, int]) -> None:
        """Rewrite the files and commit."""
        EditAttempt(self._store, self.state, self._edit, rewrite_blocker, self.files).run(info, txns=txns)


class UpsertWriter(SparkAppendWriter):
    """A table that nobody else writes meanwhile: changes are merged by key, rows without one are appended."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        store: Store,
        pipeline: str,
        tombstones: Store,
        by_hand: int = 1_000_000_000,
    ) -> None:
        super().__init__(spark, store, pipeline)
        self._by_hand = by_hand  # bytes that a merge may touch, and still be done without Spark
        self._standing = ActiveFiles(store)
        self._pipeline = pipeline
        self._tombstones = tombstones  # the folder with one table of them for each table
        self._own: SparkSession | None = None
        self.merge_choice: MergeChoice | None = None  # of the last merge
        self._wrote = 0  # rows of the last merge, those among them that only share a file with what changed

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """One table's part of a batch; the same part twice changes nothing."""
        receipt = super().commit(table, intent)
        if table.merging is None or receipt.skipped:
            return receipt
        inserted, updated, deleted = self._counts(intent)
        return replace(receipt, inserted=inserted, updated=updated, deleted=deleted)

    def _write(self, table: TableIntent, intent: Intent) -> None:
        if table.merging is None:
            super()._write(table, intent)
        else:
            self._merge(table, table.merging, intent)

    def _create(self, table: TableIntent) -> None:
        """The table without rows, which says of itself who writes it; made twice, it is made once."""
        kind = WriterKind.SPARK if table.merging is None else WriterKind.MERGE
        table = replace(table, properties={**table.properties, WRITER: kind.value})
        if not self._created(table):
            super()._create(table)

    # ---- without Spark ----

    def _created(self, table: TableIntent) -> bool:
        """Whether the table could be made without Spark; or somebody else has made it meanwhile."""
        wanted = first_state(table.schema, table.partition_by, table.properties, table.table_id)
        if not self._by_hand or table.merging is None or table.cluster_by or rewrite_blocker(wanted):
            return False
        tail = LogWriter.open(self._store, objection=rewrite_blocker)
        tail.create(table.schema, table.partition_by, table.properties, table.table_id, (), {}, {})
        self._reload()
        return True

    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns the table lacks; types are widened by Spark."""
        self.follow()
        if not self._by_hand or rewrite_blocker(self._known()) or widen_schema(self._known().schema, schema):
            super().evolve(schema)
            return
        LogWriter.open(self._store, objection=rewrite_blocker).evolve(to_delta(schema), {})
        self._reload()

    def _merge(self, table: TableIntent, merging: MergeRules, intent: Intent) -> None:
        tombstones = self._remembered(table, merging, intent, from_delta(table.schema))
        said = told(intent, table, read_version=self._known().version, has_tombstones=tombstones.are_there)
        merge = self._in_process_merge(table, merging, tombstones, intent.retention_time)
        try:
            self.merge_choice = choose_merge(merge.state, self._by_hand, merge.change_bytes, lambda: merge.files)
            if self.merge_choice.engine is MergeEngine.IN_PROCESS:
                merge.run(said, {self._mark: intent.batch})
        except duck.TooLarge:
            self.merge_choice = MergeChoice(MergeEngine.SPARK, "DuckDB ran out of memory")
        if self.merge_choice.engine is MergeEngine.SPARK:
            self._merge_by_spark(table, merging, tombstones, intent, said)

    def _in_process_merge(
        self, table: TableIntent, merging: MergeRules, tombstones: Tombstones, now: datetime
    ) -> _InProcessMerge:
        deletes = tombstones.files(now)

        def edit(state: TableState) -> UpsertMerge:
            schema = from_delta(table.schema)
            columns, profile = staged(schema, merging.keys), self._store.profile
            rows = pa.concat_tables(
                read_rows(Store(item.table, profile), as_file(item), columns, ()) for item in table.files
            )
            near = among(deletes, rows.select(merging.keys), tombstones.columns, ())
            changes = Staged(rows, tombstones.rows(near) if near else None, now)
            sql = self._sql(table, merging, schema.names, tombstones.truncates(deletes, now), DUCKDB)
            kind = Scd2Merge if merging.scd2 else UpsertMerge
            return kind(self._store, state, sql, changes, {"key": json.dumps(list(merging.keys))})

        change_bytes = sum(item.size for item in table.files) + sum(file.size for file in deletes)
        return _InProcessMerge(self._store, self._known(), change_bytes, edit, self._standing)

    # ---- by Spark ----

    def _merge_by_spark(
        self, table: TableIntent, merging: MergeRules, tombstones: Tombstones, intent: Intent, said: Mapping[str, Any]
    ) -> None:
        schema, session = from_delta(table.schema), self._session()
        files = tombstones.files(intent.retention_time)
        self._staged(session, table, staged(schema, merging.keys)).createOrReplaceTempView("changes")
        if files:
            paths = [f"{tombstones.store.spark_uri}/{file.path}" for file in files]
            session.read.schema(ddl(tombstones.columns)).parquet(*paths).createOrReplaceTempView("tombstones")
        past = tombstones.truncates(files, intent.retention_time)
        sql = replace(self._sql(table, merging, schema.names, past), placed=self._placed(table, merging, schema))
        text = sql.statement(
            f"delta.{quote_identifier(self._store.spark_uri)}",
            "changes",
            "tombstones" if files else None,
            intent.retention_time,
            key_bounds(table.files, schema, merging.keys),
        )
        few = max(self._wrote, sum(item.rows for item in table.files)) < _FEW
        source = {_SOURCE: "auto" if merging.scd2 else "none"}
        marked = {_APP: self._mark, _VERSION: str(intent.batch), _ACCOUNT: value_as_text(said)}
        for name, value in {**marked, **source, **(_INTERPRETED if few else _COMPILED)}.items():
            session.conf.set(name, value)
        with self._named():
            session.sql(text)

    def _remembered(self, table: TableIntent, merging: MergeRules, intent: Intent, schema: pa.Schema) -> Tombstones:
        """The table's tombstones, those of this batch among them."""
        known = self._known()
        tombstones = Tombstones(self._tombstones.child(known.table_id), self._pipeline)
        if tombstones.lost(self._store, known.version):
            raise TxnMismatch(
                f"{self._store.uri}: the deletes that were remembered at {tombstones.store.uri} are gone: an older "
                "change that comes late could bring a row back.",
                hint="Bring the state folder back, or run `headrace resume SPEC --accept-lost-ledger` to go on without "
                "them.",
            )
        tombstones.commit(table, merging, intent, schema)
        return tombstones

    def _sql(
        self,
        table: TableIntent,
        merging: MergeRules,
        columns: Sequence[str],
        past: Truncates,
        dialect: MergeDialect = SPARK,
    ) -> MergeSql:
        if merging.scd2 is not None:
            return Scd2Sql(merging, columns, dialect)
        truncates, deletes = self._truncates(table.files), any(holds_tombstones(item, DELETE) for item in table.files)
        # Only Spark takes long to put changes in order.
        distinct = dialect is SPARK and not merging.partial and self._distinct(table.files, merging.keys)
        return MergeSql(merging, columns, dialect, truncates, deletes, distinct, past)

    def _session(self) -> SparkSession:
        """A session of the table's own: what makes a MERGE count once is a setting of the whole session."""
        if self._own is None:
            self._own = self._spark.newSession()
            for name, value in _JOIN.items():
                self._own.conf.set(name, value)
        return self._own

    def _distinct(self, files: Sequence[StagedFile], keys: Sequence[str]) -> bool:
        """Whether no key has two changes; in a large batch nobody looks."""
        if sum(item.rows for item in files) > _MANY:
            return False
        whole = self._staged_keys(files, keys).drop_null()  # a truncate has no key
        return bool(whole.group_by(list(keys)).aggregate([]).num_rows == len(whole))

    def _placed(self, table: TableIntent, merging: MergeRules, schema: pa.Schema) -> dict[str, list[str]]:
        """The partitions of a batch, where its keys name them: Spark reads no other. A truncate is of all of them."""
        by = [name for name in table.partition_by if name in merging.keys]
        rows = sum(item.rows for item in table.files)
        if not by or rows > _MANY or any(holds_tombstones(item, TRUNCATE) for item in table.files):
            return {}
        columns = pa.schema([schema.field(name) for name in by])
        return partition_literals(self._staged_keys(table.files, by).cast(columns))

    def _staged_keys(self, files: Sequence[StagedFile], names: Sequence[str]) -> pa.Table:
        read = {uri: ColumnReader(Store(uri, self._store.profile), names) for uri in {item.table for item in files}}
        return pa.concat_tables(read[item.table].of(as_file(item))[0].select(names) for item in files)

    def _truncates(self, files: Sequence[StagedFile]) -> Truncates:
        """Where each partition was last truncated in these files."""
        stores = ((Store(item.table, self._store.profile), item) for item in files if holds_tombstones(item, TRUNCATE))
        data = (store.get(item.path) for store, item in stores)
        return last_truncates(read_parquet(each, [CHANGE.name])[CHANGE.name] for each in data)

    def _counts(self, intent: Intent) -> list[int | None]:
        """Rows inserted, updated and deleted, where the commit's metrics tell."""
        commit = read_commit(self._store, self._known().version)
        if commit is None or commit.txns.get(self._mark) != intent.batch:
            return [None] * len(_COUNTS)  # somebody has committed since
        metrics = commit.info.get("operationMetrics") or {}
        self._wrote = int(metrics.get("numOutputRows", 0))
        return [int(metrics[key]) if key in metrics else None for key in _COUNTS]
