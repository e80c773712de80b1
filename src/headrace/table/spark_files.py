"""Compact, order, fill and restore tables that only Spark may write."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.delta.actions import Commit
from headrace.delta.commit_builder import ENGINE
from headrace.delta.features import WRITER, declared_writer
from headrace.delta.log import LogWalk, newest_version
from headrace.delta.partition_keys import PartitionKeys
from headrace.delta.partition_values import value_in
from headrace.delta.snapshot import TableState, active_files
from headrace.errors import CommitConflict, TableError
from headrace.stage.layout import file_layout_of
from headrace.table.insert import Inserted
from headrace.table.optimize import (
    CompactionSizes,
    Optimized,
    check_z_order,
    files_where,
    no_files_optimized,
    sum_results,
)
from headrace.table.ownership import existing_table
from headrace.table.records import Records, fit_records, partition_of
from headrace.table.restore import cannot_restore
from headrace.table.spark_rows import SparkRows, equals_condition
from headrace.table.spark_schema_changes import properties
from headrace.write.merge_sql import quote_identifier
from headrace.write.spark_append import ddl, fillable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Partition = Mapping[str, str | None]
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_OPTIMIZE = "spark.databricks.delta.optimize."
_PARTITIONS = 200  # per OPTIMIZE statement
_MISSING = re.compile(r"not all files|missing|FileNotFound|does not exist|cannot restore", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SparkCompaction:
    """Settings of an OPTIMIZE."""

    target: int  # file size in bytes
    below: int  # smaller files are compacted, in bytes
    z_order: tuple[str, ...] = ()
    spent: float = 0.05  # files with a larger share of deleted rows are rewritten
    account: Mapping[str, Any] = field(default_factory=dict)  # further fields of the commit info

    def conf(self) -> dict[str, str]:
        """Session settings."""
        sizes = {"maxFileSize": self.target, "minFileSize": self.below, "maxDeletedRowsRatio": self.spent}
        return {f"{_OPTIMIZE}{name}": str(value) for name, value in sizes.items()}


class SparkFileOperations(SparkRows):
    """Changes files and versions of a table with Spark."""

    def optimize(
        self, where: str | None, target_size: int | None, z_order: Iterable[str], min_file_size: int | None = None
    ) -> Optimized:
        """OPTIMIZE all partitions, or those that match a condition. A clustered table is clustered."""
        state, columns = existing_table(self._store), tuple(z_order)
        check_z_order(state, columns)
        sizes = CompactionSizes.of(target_size or file_layout_of(state).target_file_bytes, min_file_size, None)
        compaction = SparkCompaction(sizes.target, sizes.smallest, columns)
        partitions = self._partitions_where(state, where)
        return self._retry(lambda spark, current: self._optimize(spark, current, compaction, partitions))

    def optimize_once(self, compaction: SparkCompaction, partitions: Sequence[Partition]) -> Optimized:
        """OPTIMIZE these partitions, or all if none are specified, in one attempt; may raise CommitConflict."""
        with self._session() as spark:
            return self._attempt(lambda: self._optimize(spark, existing_table(self._store), compaction, partitions))

    def restore(self, to: int) -> Mapping[str, Any]:
        """RESTORE a version, without the writer that it names; the metrics have the names of delta-rs."""
        writer = declared_writer(existing_table(self._store))

        def run(spark: SparkSession, state: TableState) -> Mapping[str, Any]:
            self._set_commit_info(spark, "restore")
            row = spark.sql(f"RESTORE TABLE {self._target} TO VERSION AS OF {to}").collect()[0]
            return {"numRemovedFile": row["num_removed_files"], "numRestoredFile": row["num_restored_files"]}

        try:
            metrics = self._retry(run)
        except TableError as error:
            if _MISSING.search(error.message):
                raise cannot_restore(self._store, to) from error
            raise
        if writer is not None and declared_writer(existing_table(self._store)) != writer:
            self.alter(*properties({WRITER: writer.value}))
        return metrics

    def insert(self, records: Records, partition: str | None) -> Inserted:
        """Append records in one commit."""

        def run(spark: SparkSession, state: TableState) -> Inserted:
            key = partition_of(partition, state.schema, state.partition_by)
            rows = fit_records(records, fillable(state.schema), state.partition_by, key)
            if not len(rows):
                return Inserted(state.version, 0, 0, 0)
            commit_id = self._set_commit_info(spark, "bulk_insert")
            frame = spark.createDataFrame(rows, ddl(rows.schema))  # else timestamps without zone would get one
            frame.write.format("delta").mode("append").save(self._store.spark_uri)
            commit = self._find_commit(state.version, commit_id)
            return Inserted(commit.version, len(rows), len(commit.added), sum(file.size for file in commit.added))

        return self._retry(run)

    def _optimize(
        self, spark: SparkSession, state: TableState, compaction: SparkCompaction, partitions: Sequence[Partition]
    ) -> Optimized:
        for name, value in compaction.conf().items():
            spark.conf.set(name, value)
        self._set_commit_info(spark, "optimize", compaction.account)
        columns = ", ".join(map(quote_identifier, compaction.z_order))
        z_order = f" ZORDER BY ({columns})" if columns else ""
        result = no_files_optimized(state.version, compaction.z_order)
        for condition in _conditions(partitions, state):
            metrics = spark.sql(f"OPTIMIZE {self._target}{condition}{z_order}").collect()[0]["metrics"]
            version = newest_version(self._store) or 0
            result = sum_results(result, _optimized(metrics, version, compaction.z_order))
        return result

    def _partitions_where(self, state: TableState, where: str | None) -> Sequence[Partition]:
        """The partitions that match a condition, evaluated by DuckDB; empty for all partitions."""
        if where is None:
            return ()
        files = list(active_files(self._store, state.version).values())
        key = PartitionKeys.of(state.schema, state.partition_by)
        matches = files_where(self._store, state, files, where)
        return list({key(file.partition): file.partition for file in matches}.values())

    def _set_commit_info(self, spark: SparkSession, operation: str, more: Mapping[str, Any] | None = None) -> str:
        """Set the user metadata of the next commits of the session; returns the id in it."""
        commit_id = uuid.uuid4().hex
        info = {"operation": operation, "by": ENGINE, **(more or {}), "id": commit_id}
        spark.conf.set(_USER_METADATA, json.dumps({"headrace": info}))
        return commit_id

    def _find_commit(self, since: int, commit_id: str) -> Commit:
        for commit in LogWalk(self._store, newest_version(self._store) or 0, since):
            if commit.account.get("id") == commit_id:
                return commit
        raise CommitConflict(f"{self._store.uri}: Spark's commit after version {since} is not in the log.")


def _conditions(partitions: Sequence[Partition], state: TableState) -> Iterator[str]:
    """WHERE clauses that select the partitions, some per clause; one empty clause selects all."""
    if not partitions or not state.partition_by:
        yield ""
        return
    for start in range(0, len(partitions), _PARTITIONS):
        yield " WHERE " + " OR ".join(_is(partition, state) for partition in partitions[start : start + _PARTITIONS])


def _is(partition: Partition, state: TableState) -> str:
    items = [state.schema.field(name) for name in state.partition_by]
    return f"({' AND '.join(equals_condition(item, value_in(partition, item).as_py()) for item in items)})"


def _optimized(metrics: Any, version: int, z_order: tuple[str, ...]) -> Optimized:
    sizes = [(metrics[side] or {"totalSize": 0})["totalSize"] or 0 for side in ("filesRemoved", "filesAdded")]
    return Optimized(
        version,
        metrics["partitionsOptimized"],
        metrics["numFilesRemoved"],
        metrics["numFilesAdded"],
        sizes[0],
        sizes[1],
        z_order,
    )
