"""The columns and properties of a table are changed: through its log, or by Spark where only Spark may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.delta.snapshot import TableState
from headrace.storage.store import Store
from headrace.table import schema_changes, spark_schema_changes
from headrace.table.ownership import TableOwners, existing_table
from headrace.table.schema_changes import SchemaChange
from headrace.table.spark_rows import SparkRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ColumnOperations:
    """The columns of one table, to be changed."""

    def __init__(self, store: Store, writers: TableOwners, spark: SparkSession | None) -> None:
        self._store, self._writers, self._spark = store, writers, spark

    def update(self, wanted: SchemaChange | pa.Schema) -> None:
        """Single changes, or the whole as it shall be."""
        if self._writers.is_direct:
            state = self._writers.state
            schema_changes.update_schema(self._store, state, _change(wanted, state))
            return
        with self._writers.resting("update_schema"):
            state = existing_table(self._store)
            self._alter(spark_schema_changes.statements(self._store, state, _change(wanted, state)))

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set, or taken away where None."""
        if self._writers.is_direct:
            schema_changes.set_properties(self._store, self._writers.state, properties)
            return
        with self._writers.resting("set_properties"):
            self._alter(list(spark_schema_changes.properties(properties)))

    def _alter(self, statements: list[str]) -> None:
        if statements:
            SparkRows(self._store, self._spark).alter(*statements)


def _change(wanted: SchemaChange | pa.Schema, state: TableState) -> SchemaChange:
    return wanted if isinstance(wanted, SchemaChange) else schema_changes.towards(state, wanted)
