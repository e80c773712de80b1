"""Change a table: in this process, or with Spark for tables that only Spark may write.

Operations that need exclusive access, and all operations with Spark, hold the leases of the pipelines that write the
table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.delta.features import append_blocker, is_enabled, rewrite_blocker
from headrace.delta.snapshot import TableState
from headrace.errors import OperationDisabled
from headrace.storage.store import Store
from headrace.table import enable_feature, insert, schema_changes, spark_schema_changes
from headrace.table.delete_update import Condition, ConditionEdit, Deleted, Updated, missing_soft_delete_columns
from headrace.table.enable_feature import EnabledFeature
from headrace.table.insert import Inserted
from headrace.table.optimize import Optimized, optimize
from headrace.table.ownership import TableOwners, existing_table, retry_conflicts
from headrace.table.records import Records
from headrace.table.restore import Restored, restore_table
from headrace.table.schema_changes import SchemaChange
from headrace.table.spark_files import SparkFileOperations
from headrace.table.upsert import Upsert, Upserted, UpsertRequest
from headrace.table.versions import Moment, existing_partition
from headrace.write.row_edit import EditAttempt, EditResult, RowEdit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TableOperations:
    """Operations that change one table. Each selects the code path by the writer of the table."""

    def __init__(self, store: Store, owners: TableOwners, spark: SparkSession | None) -> None:
        self._store, self._owners, self._spark = store, owners, spark

    # ---- rows ----

    def bulk_insert(self, records: Records, partition: str | None) -> Inserted:
        """Append records in one commit."""
        if self._owners.is_direct:
            return insert.bulk_insert(self._store, self._owners.log, self._owners.state, records, partition)
        with self._owners.exclusive("bulk_insert"):
            return self._with_spark().insert(records, partition)

    def upsert(self, request: UpsertRequest) -> Upserted:
        """Replace rows by key and insert the others."""
        self._owners.check_changeable("upsert")
        with self._owners.exclusive("upsert"):
            if self._owners.only_spark_rewrites:
                result = self._with_spark().upsert(request)
            else:
                result = self._edit(lambda state: Upsert(self._store, request, state))
        return Upserted(result.version, result.inserted, result.updated)

    def delete(self, condition: Condition, hard: bool) -> Deleted:
        """Delete rows, or hide them from queries."""
        self._check_condition("delete", condition)
        with self._owners.exclusive("delete"):
            if hard:
                result = self._change(condition)
                return Deleted(result.version, result.deleted)
            self._add_soft_delete_columns()
            result = self._change(condition.soft_delete())
        return Deleted(result.version, result.updated, hard=False)

    def update(self, condition: Condition) -> Updated:
        """Set columns of some rows."""
        self._check_condition("update", condition)
        with self._owners.exclusive("update"):
            result = self._change(condition)
        return Updated(result.version, result.updated)

    def _check_condition(self, operation: str, condition: Condition) -> None:
        self._owners.check_changeable(operation)
        state = self._owners.state
        existing_partition(self._store, state.version, state.schema, state.partition_by, condition.partition)

    def _change(self, condition: Condition) -> EditResult:
        if self._owners.only_spark_rewrites:
            return self._with_spark().change(condition)
        return self._edit(lambda state: ConditionEdit(self._store, condition, state))

    def _edit(self, plan: Callable[[TableState], RowEdit]) -> EditResult:
        """Rewrite files in this process. After a conflict the edit is planned again, on the newest version."""
        blocker = append_blocker if self._owners.is_direct else rewrite_blocker

        def attempt(state: TableState) -> EditResult:
            edit = plan(state)
            return EditAttempt(self._store, state, edit, blocker).run({"operation": edit.operation.lower()})

        return retry_conflicts(self._store, self._owners.state.table_id, attempt)

    def _add_soft_delete_columns(self) -> None:
        state = existing_table(self._store)
        missing = missing_soft_delete_columns(state)
        if not len(missing):
            return
        if self._owners.is_direct:
            schema_changes.update_schema(self._store, state, SchemaChange(missing))
        else:
            self._with_spark().add_columns(missing)

    # ---- files and versions ----

    def optimize(
        self,
        where: str | None,
        target_size: int | None,
        z_order: Iterable[str],
        min_file_size: int | None,
        max_file_size: int | None,
    ) -> Optimized:
        """Compact files, or order their rows."""
        if self._owners.is_direct:
            return optimize(self._store, self._owners, where, target_size, z_order, min_file_size, max_file_size)
        if max_file_size is not None:
            raise OperationDisabled(
                f"{self._store.uri} is optimized by Spark, which does not split files.",
                hint="Omit max_file_size (`file_size_max` in a deltalake.toml).",
            )
        with self._owners.exclusive("optimize"):
            return self._with_spark().optimize(where, target_size, z_order, min_file_size)

    def restore(self, version: int | None, timestamp: Moment | None) -> Restored:
        """Return to the rows of an older version."""
        self._owners.check_changeable("restore")
        by_spark = None if self._owners.is_direct else self._with_spark().restore
        return restore_table(self._store, self._owners, version, timestamp, by_spark)

    # ---- columns and properties ----

    def update_schema(self, target: SchemaChange | pa.Schema) -> None:
        """Apply single changes, or change the columns to those of a schema."""
        if self._owners.is_direct:
            state = self._owners.state
            schema_changes.update_schema(self._store, state, _schema_change(target, state))
            return
        with self._owners.exclusive("update_schema"):
            state = existing_table(self._store)
            self._alter(spark_schema_changes.statements(self._store, state, _schema_change(target, state)))

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set table properties; None unsets one."""
        if self._owners.is_direct:
            schema_changes.set_properties(self._store, self._owners.state, properties)
            return
        with self._owners.exclusive("set_properties"):
            self._alter(list(spark_schema_changes.properties(properties)))

    def enable_feature(self, feature: str) -> EnabledFeature:
        """Enable column mapping or type widening; from then on, Spark writes the table."""
        plan = enable_feature.planned(self._store, self._owners, feature)
        if is_enabled(feature, self._owners.state.properties):
            return plan
        with self._owners.exclusive(enable_feature.OPERATION):
            state = existing_table(self._store)
            enable_feature.check_staged(self._store, self._owners)  # by a run that has ended meanwhile
            if self._owners.is_direct:
                enable_feature.enable_directly(self._store, state, feature)
            else:
                self._alter(list(spark_schema_changes.properties(enable_feature.spark_properties(feature))))
        return replace(plan, version=existing_table(self._store).version, enabled=True)

    def _with_spark(self) -> SparkFileOperations:
        return SparkFileOperations(self._store, self._spark, self._owners.state.table_id)

    def _alter(self, statements: list[str]) -> None:
        if statements:
            self._with_spark().alter(*statements)


def _schema_change(target: SchemaChange | pa.Schema, state: TableState) -> SchemaChange:
    return target if isinstance(target, SchemaChange) else schema_changes.change_to(state, target)
