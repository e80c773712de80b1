"""A table is filled, compacted and restored: through its log, or by Spark where only Spark may.

Where it is Spark, the pipelines that write the table rest meanwhile: their leases are held.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.storage.store import Store
from headrace.table import insert
from headrace.table import optimize as compact
from headrace.table import restore as upkeep
from headrace.table.insert import Inserted
from headrace.table.optimize import Optimized
from headrace.table.ownership import TableOwners
from headrace.table.records import Records
from headrace.table.restore import Restored
from headrace.table.spark_files import SparkFileOperations
from headrace.table.versions import Moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FileOperations:
    """The files and versions of one table."""

    def __init__(self, store: Store, writers: TableOwners, spark: SparkSession | None) -> None:
        self._store, self._writers, self._spark = store, writers, spark

    def bulk_insert(self, records: Records, partition: str | None) -> Inserted:
        """Records in one commit."""
        if self._writers.is_direct:
            return insert.bulk_insert(self._store, self._writers.state, records, partition)
        with self._writers.resting("bulk_insert"):
            return self._by_spark().insert(records, partition)

    def optimize(self, where: str | None, target_size: int | None, z_order: Iterable[str]) -> Optimized:
        """Fewer, larger files, or files in an order."""
        if self._writers.is_direct:
            return compact.optimize(self._store, self._writers, where, target_size, z_order)
        with self._writers.resting("optimize"):
            return self._by_spark().optimize(where, target_size, z_order)

    def restore(self, version: int | None, timestamp: Moment | None) -> Restored:
        """The rows of an older version again."""
        self._writers.check_changeable("restore")
        by_spark = self._by_spark().restore if not self._writers.is_direct else None
        return upkeep.restore_table(self._store, self._writers, version, timestamp, by_spark)

    def _by_spark(self) -> SparkFileOperations:
        return SparkFileOperations(self._store, self._spark)
