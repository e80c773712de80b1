"""What Spark does to the files and versions of a table that only it may write: compaction, order, inserts, restore."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.delta.actions import Commit
from headrace.delta.commit_builder import ENGINE
from headrace.delta.log import LogWalk, newest_version
from headrace.delta.partition_keys import PartitionKeys
from headrace.delta.partition_values import value_in
from headrace.delta.snapshot import TableState, active_files
from headrace.errors import Conflict, TableError, VersionNotFound
from headrace.stage.stager import file_layout_of
from headrace.table.insert import Inserted
from headrace.table.optimize import ENOUGH, Optimized, check_order_columns, chosen, nothing, sum_results
from headrace.table.ownership import existing_table
from headrace.table.records import Records, fit_records, partition_of
from headrace.table.spark_rows import SparkRows, is_equal
from headrace.write.spark_append import fillable, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Partition = Mapping[str, str | None]
_ACCOUNT = "spark.databricks.delta.commitInfo.userMetadata"
_PACK = "spark.databricks.delta.optimize."
_AT_ONCE = 200  # partitions that one statement names
_GONE = re.compile(r"not all files|missing|FileNotFound|does not exist|cannot restore", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SparkCompaction:
    """Which files are to be joined or ordered, and how large they become."""

    target: int  # bytes
    below: int  # files smaller than this are joined; those that deletion vectors have emptied are written anew
    z_order: tuple[str, ...] = ()
    spent: float = 0.05  # the share of deleted rows from which a file is so
    account: Mapping[str, Any] = field(default_factory=dict)  # what the commit says beside

    def conf(self) -> dict[str, str]:
        """The same as settings of a session."""
        sizes = {"maxFileSize": self.target, "minFileSize": self.below, "maxDeletedRowsRatio": self.spent}
        return {f"{_PACK}{name}": str(value) for name, value in sizes.items()}


class SparkFileOperations(SparkRows):
    """The files and versions of a table that Spark writes."""

    def optimize(self, where: str | None, target_size: int | None, z_order: Iterable[str]) -> Optimized:
        """OPTIMIZE of all partitions, or of those that fulfil a condition; a clustered table is clustered by it."""
        state, columns = existing_table(self._store), tuple(z_order)
        check_order_columns(state, columns)
        target = target_size or file_layout_of(state).target_file_bytes
        parts = self._chosen(state, where)
        return self._do(
            lambda spark: self._packed(spark, SparkCompaction(target, int(ENOUGH * target), columns), parts)
        )

    def pack(self, wanted: SparkCompaction, partitions: Sequence[Partition]) -> Optimized:
        """OPTIMIZE of these partitions (none: of a table without any), once: Conflict where others came first."""
        return self._once(lambda spark: self._packed(spark, wanted, partitions))

    def restore(self, to: int) -> Mapping[str, Any]:
        """RESTORE to a version: what it counted, by the names of delta-rs."""

        def run(spark: SparkSession) -> Mapping[str, Any]:
            self._say(spark, "restore")
            row = spark.sql(f"RESTORE TABLE {self._target} TO VERSION AS OF {to}").collect()[0]
            return {"numRemovedFile": row["num_removed_files"], "numRestoredFile": row["num_restored_files"]}

        try:
            return self._do(run)
        except TableError as error:
            if _GONE.search(error.message):
                raise VersionNotFound(
                    f"{self._store.uri}: version {to} cannot be restored: files of it are gone, most likely by a "
                    "vacuum.",
                    hint="Restore a newer version.",
                ) from error
            raise

    def insert(self, records: Records, partition: str | None) -> Inserted:
        """One append."""

        def run(spark: SparkSession) -> Inserted:
            state = existing_table(self._store)
            columns = fillable(state.schema)
            placed = partition_of(partition, state.schema, state.partition_by)
            rows = fit_records(records, columns, state.partition_by, placed)
            if not len(rows):
                return Inserted(state.version, 0, 0, 0)
            told = self._say(spark, "bulk_insert")
            spark.createDataFrame(rows).write.format("delta").mode("append").save(self._store.spark_uri)
            commit = self._committed(state.version, told)
            return Inserted(commit.version, len(rows), len(commit.added), sum(file.size for file in commit.added))

        return self._do(run)

    # ---- how Spark is told ----

    def _packed(self, spark: SparkSession, wanted: SparkCompaction, partitions: Sequence[Partition]) -> Optimized:
        state = existing_table(self._store)
        for name, value in wanted.conf().items():
            spark.conf.set(name, value)
        self._say(spark, "optimize", wanted.account)
        order = f" ZORDER BY ({', '.join(map(quote_identifier, wanted.z_order))})" if wanted.z_order else ""
        done = nothing(state.version, wanted.z_order)
        for condition in _conditions(partitions, state):
            row = spark.sql(f"OPTIMIZE {self._target}{condition}{order}").collect()[0]["metrics"]
            done = sum_results(done, _optimized(row, newest_version(self._store) or 0, wanted.z_order))
        return done

    def _chosen(self, state: TableState, where: str | None) -> Sequence[Partition]:
        """The partitions that fulfil a condition, found by our own reading of it; none of them named: all."""
        if where is None:
            return ()
        stands = list(active_files(self._store, state.version).values())
        key = PartitionKeys.of(state.schema, state.partition_by)
        return list(
            {key(file.partition): file.partition for file in chosen(self._store, state, stands, where)}.values()
        )

    def _say(self, spark: SparkSession, operation: str, more: Mapping[str, Any] | None = None) -> str:
        """Let the next commits of the session tell who makes them; by which text they are known."""
        told = uuid.uuid4().hex
        spark.conf.set(
            _ACCOUNT, json.dumps({"headrace": {"operation": operation, "by": ENGINE, **(more or {}), "id": told}})
        )
        return told

    def _committed(self, since: int, told: str) -> Commit:
        """Our own commit among those after a version."""
        now = newest_version(self._store) or 0
        for commit in LogWalk(self._store, now, since):
            if commit.account.get("id") == told:
                return commit
        raise Conflict(f"{self._store.uri}: what Spark committed after version {since} is not in the log.")


def _conditions(partitions: Sequence[Partition], state: TableState) -> Iterator[str]:
    """The partitions as Spark chooses them, some at once; one empty condition where all are meant."""
    if not partitions or not state.partition_by:
        yield ""
        return
    for at in range(0, len(partitions), _AT_ONCE):
        yield " WHERE " + " OR ".join(_is(each, state) for each in partitions[at : at + _AT_ONCE])


def _is(partition: Partition, state: TableState) -> str:
    items = [state.schema.field(name) for name in state.partition_by]
    return f"({' AND '.join(is_equal(item, value_in(partition, item).as_py()) for item in items)})"


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
