"""Rows are upserted, deleted and updated: by our own hands or by Spark, as the table's kind of committer asks for.

Pipelines that write the table rest meanwhile: their leases are held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.delta.features import append_blocker, rewrite_blocker
from headrace.delta.log_writer import Objection
from headrace.storage.store import Store
from headrace.table.delete_update import Condition, ConditionEdit, Deleted, Updated, lacking
from headrace.table.ownership import TableOwners, existing_table
from headrace.table.partition_name import inhabited
from headrace.table.rewrite import rewrite
from headrace.table.schema_changes import SchemaChange, update_schema
from headrace.table.spark_rows import SparkRows
from headrace.table.upsert import Upsert, Upserted, UpsertRequest
from headrace.write.row_edit import EditResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RowOperations:
    """The rows of one table, to be changed."""

    def __init__(self, store: Store, writers: TableOwners, spark: SparkSession | None) -> None:
        self._store, self._writers, self._spark = store, writers, spark

    def upsert(self, wanted: UpsertRequest) -> Upserted:
        """Records by their key."""
        self._writers.check_changeable("upsert")
        with self._writers.resting("upsert"):
            if self._writers.only_spark_rewrites:
                done = SparkRows(self._store, self._spark).upsert(wanted)
            else:
                done = rewrite(self._store, lambda state: Upsert(self._store, wanted, state), self._objection)
        return Upserted(done.version, done.inserted, done.updated)

    def delete(self, wanted: Condition, hard: bool) -> Deleted:
        """Rows for good, or only from what queries see."""
        self._writers.check_changeable("delete")
        self._check_partition(wanted)
        with self._writers.resting("delete"):
            if hard:
                done = self._change(wanted)
                return Deleted(done.version, done.deleted)
            self._can_hide()
            done = self._change(wanted.softly())
        return Deleted(done.version, done.updated, hard=False)

    def update(self, wanted: Condition) -> Updated:
        """Other values for some rows."""
        self._writers.check_changeable("update")
        self._check_partition(wanted)
        with self._writers.resting("update"):
            done = self._change(wanted)
        return Updated(done.version, done.updated)

    def _change(self, wanted: Condition) -> EditResult:
        if self._writers.only_spark_rewrites:
            return SparkRows(self._store, self._spark).change(wanted)
        return rewrite(self._store, lambda state: ConditionEdit(self._store, wanted, state), self._objection)

    @property
    def _objection(self) -> Objection:
        return rewrite_blocker if not self._writers.is_direct else append_blocker

    def _can_hide(self) -> None:
        """Give the table the columns that tell what is deleted."""
        state = existing_table(self._store)
        missing = lacking(state)
        if not len(missing):
            return
        if not self._writers.is_direct:
            SparkRows(self._store, self._spark).add_columns(missing)
        else:
            update_schema(self._store, state, SchemaChange(missing))

    def _check_partition(self, wanted: Condition) -> None:
        state = self._writers.state
        inhabited(self._store, state.version, state.schema, state.partition_by, wanted.partition)
