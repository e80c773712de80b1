"""Merges of staged changes by key, for upserts and SCD2: one commit with the batch's txn.

`choose_merge` selects the in-process merge (DuckDB) or the Spark merge; both use the same SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from headrace.delta.actions import File
from headrace.delta.features import rewrite_blocker
from headrace.delta.log import read_commit
from headrace.delta.receipt import Receipt
from headrace.delta.snapshot import ActiveFiles, TableState
from headrace.delta.txn import batch_txn
from headrace.engine import duck
from headrace.errors import TxnMismatch
from headrace.storage.store import Store
from headrace.write.duckdb_merge import InProcessMerge
from headrace.write.intent import Intent, MergeRules, TableIntent
from headrace.write.spark_append import SparkAppend
from headrace.write.spark_merge import SparkMerge
from headrace.write.staged_changes import StagedChanges
from headrace.write.tombstones import Tombstones

_COUNTS = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
_IN_MEMORY = 8  # an in-process merge has its changes in memory: at most 1/8 of the bytes that it may touch


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


class TableMerge:
    """Merges into one table; `limit` is the number of bytes that an in-process merge may touch."""

    def __init__(self, spark: SparkAppend, pipeline: str, tombstones: Store, limit: int) -> None:
        self._store, self._pipeline, self._txn = spark.store, pipeline, batch_txn(pipeline)
        self._tombstones = tombstones  # the folder with one table of tombstones for each table
        self._limit = limit
        self._spark_merge = SparkMerge(spark)
        self._active_files = ActiveFiles(spark.store)
        self._last_rows = 0  # rows that the last merge wrote, unchanged rows of rewritten files included
        self.choice: MergeChoice | None = None  # of the last merge

    def run(
        self, table: TableIntent, rules: MergeRules, intent: Intent, state: TableState, account: Mapping[str, Any]
    ) -> None:
        """Merge the changes of a batch. Its tombstones are committed first: see `Tombstones`."""
        now = intent.retention_time
        tombstones = self._open_tombstones(state, now - timedelta(seconds=rules.tombstone_retention))
        changes = StagedChanges(table, rules, tombstones, now)
        changes.tombstones.commit(table, rules, intent, changes.schema)
        account, txn = {**account, "has_tombstones": changes.tombstones.are_there}, (self._txn, intent.batch)
        merge = InProcessMerge(self._store, changes, state, self._active_files)
        try:
            self.choice = choose_merge(state, self._limit, changes.bytes, lambda: merge.files)
            if self.choice.engine is MergeEngine.IN_PROCESS:
                merge.run(account, txn)
        except duck.TooLarge:
            self.choice = MergeChoice(MergeEngine.SPARK, "DuckDB ran out of memory")
        if self.choice.engine is MergeEngine.SPARK:
            self._spark_merge.run(changes, txn, account, self._last_rows)

    def _open_tombstones(self, state: TableState, expired: datetime) -> Tombstones:
        tombstones = Tombstones(self._tombstones.child(state.table_id), self._pipeline)
        if tombstones.lost(self._store, state.version, expired):
            raise TxnMismatch(
                f"{self._store.uri}: the tombstones at {tombstones.store.uri} are missing: a change that arrives late "
                "could bring a deleted row back.",
                hint="Restore the state directory, or run `headrace resume SPEC --accept-lost-ledger` to continue "
                "without them.",
            )
        return tombstones

    def counted(self, receipt: Receipt, batch: int) -> Receipt:
        """Add the numbers of rows from the metrics of the merge's commit, unless another commit is on top of it."""
        commit = read_commit(self._store, receipt.version)
        if commit is None or commit.txns.get(self._txn) != batch:
            return receipt
        metrics = commit.info.get("operationMetrics") or {}
        self._last_rows = int(metrics.get("numOutputRows", 0))
        inserted, updated, deleted = (int(metrics[name]) if name in metrics else None for name in _COUNTS)
        return replace(receipt, inserted=inserted, updated=updated, deleted=deleted)
