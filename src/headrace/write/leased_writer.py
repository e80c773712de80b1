"""Writer for tables that only one pipeline writes, under its lease: merges of changes, and appends by Spark.

It follows the table's state, checks each batch against it and delegates the work: `TableMerge` merges, `SparkAppend`
creates, alters and appends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace import faults
from headrace.delta.commit_builder import receipt
from headrace.delta.evolution import check_fits, merge_schemas
from headrace.delta.features import WRITER, WriterKind, lacks_ntz, rewrite_blocker
from headrace.delta.log_errors import check_txns_last, set_back, table_stop
from headrace.delta.log_writer import LogWriter, first_state
from headrace.delta.receipt import Receipt
from headrace.delta.restores import check_not_restored
from headrace.delta.schema import from_delta, to_delta
from headrace.delta.snapshot import TableState, load_state
from headrace.delta.txn import batch_txn
from headrace.delta.type_widening import widens
from headrace.errors import Fenced, TableChanged, TableFeature, TableGone, TableReplaced
from headrace.spec.table import FEATURES
from headrace.spec.types import type_name
from headrace.storage.store import Store
from headrace.write.intent import Intent, TableIntent
from headrace.write.spark_append import SparkAppend, fillable, widen_schema
from headrace.write.table_writer import batch_account
from headrace.write.upsert import TableMerge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LeasedWriter:
    """Writes one table that no other writer changes while the pipeline has its lease.

    `in_process_bytes` limits the files that a merge may touch without Spark; with 0 Spark does all work.
    """

    commits_directly = False

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        store: Store,
        pipeline: str,
        tombstones: Store,
        in_process_bytes: int = 1_000_000_000,
    ) -> None:
        self._store, self._in_process_bytes = store, in_process_bytes
        self._txn = batch_txn(pipeline)
        self._spark = SparkAppend(spark, store)
        self.merge = TableMerge(self._spark, pipeline, tombstones, in_process_bytes)
        self.state: TableState | None = load_state(store, [self._txn])

    def writable(self) -> pa.Schema:
        """The columns that rows may fill: all except those that Spark computes."""
        return fillable(self._known().schema)

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """Commit a batch to the table; skipped if the table already has the batch's txn."""
        self._reload()
        if self.state is None and table.create:
            self._create(table)
            faults.reach(faults.Point.AFTER_TABLE_CREATION, batch=intent.batch)
        check_txns_last(self._store.uri, self._known())
        self._check(table, intent)
        if self._known().txns.get(self._txn) == intent.batch:
            return receipt(table.path, self._known().version, table.files, skipped=True)
        self._enable_deletion_vectors(table)
        self._write(table, intent)
        self._reload()
        result = receipt(table.path, self._known().version, table.files)
        return result if table.merging is None else self.merge.counted(result, intent.batch)

    def _write(self, table: TableIntent, intent: Intent) -> None:
        # The txns of the partitions are in the account, as a write of Spark has room for one txn only.
        account = {**batch_account(intent, table.attempt), "txns": intent.txns()}
        account |= {"rows": sum(file.rows for file in table.files), "read_version": self._known().version}
        if table.merging is None:
            text = json.dumps({"headrace": account})
            self._spark.append(table, from_delta(table.schema), (self._txn, intent.batch), text)
        else:
            self.merge.run(table, table.merging, intent, self._known(), account)

    # ---- the table itself ----

    def _create(self, table: TableIntent) -> None:
        """Create the table without rows, in-process if possible; the property names the kind of its writer."""
        kind = WriterKind.SPARK if table.merging is None else WriterKind.MERGE
        table = replace(table, properties={**table.properties, WRITER: kind.value})
        state = first_state(table.schema, table.partition_by, table.properties, table.table_id)
        in_process = self._in_process_bytes and table.merging is not None and not table.cluster_by
        if in_process and rewrite_blocker(state) is None:
            log_writer = LogWriter.open(self._store, blocker=rewrite_blocker)
            log_writer.create(table.schema, table.partition_by, table.properties, table.table_id, (), {}, {})
        else:
            self._spark.create(table)
        self._reload()

    def evolve(self, schema: pa.Schema) -> None:
        """Widen types and add columns, at any depth, until the table can store rows of `schema`.

        Each change of Spark is a commit of its own; after a crash between two of them, the next call does the rest.
        """
        self.follow()
        widenings = widen_schema(self._known().schema, schema)
        if self._in_process_bytes and not widenings and rewrite_blocker(self._known()) is None:
            LogWriter.open(self._store, blocker=rewrite_blocker).evolve(to_delta(schema), {})
            self._reload()
            return
        self._enable_features(schema, bool(widenings))
        for path, kind in widenings:
            self._alter(f"ALTER COLUMN {path} TYPE {type_name(kind)}")
        if merge_schemas(self._known().schema_json, to_delta(schema)) != self._known().schema_json:
            self._spark.add_columns(schema)
            self._reload()

    def _enable_features(self, schema: pa.Schema, widens: bool) -> None:
        """Enable type widening and timestamps without zone where the new schema needs them."""
        state, widening = self._known(), FEATURES["typeWidening"]
        properties = []
        if widens and state.properties.get(widening, "").lower() != "true":
            properties.append(f"'{widening}' = 'true'")
        if lacks_ntz(to_delta(schema), state.protocol):
            properties.append("'delta.feature.timestampNtz' = 'supported'")
        if properties:
            self._alter(f"SET TBLPROPERTIES ({', '.join(properties)})")

    def _enable_deletion_vectors(self, table: TableIntent) -> None:
        """Enable deletion vectors where the spec asks for them and the table was created without."""
        name = FEATURES["deletionVectors"]
        in_spec, enabled = (
            properties.get(name, "").lower() == "true" for properties in (table.properties, self._known().properties)
        )
        if in_spec and not enabled:
            self._alter(f"SET TBLPROPERTIES ('{name}' = 'true')")

    def _alter(self, change: str) -> None:
        self._spark.alter(change)
        self._reload()

    # ---- its state ----

    def follow(self) -> None:
        """Read new commits of other writers; raises PipelineStopped if the pipeline must not continue."""
        before = self.state
        self._reload()
        after, self.state = self.state, before  # if the check fails, the next call fails as well
        if before is not None and after is not None:
            self._check_fits(before.schema_json, after)
        self.state = after

    def _known(self) -> TableState:
        if self.state is None:
            raise table_stop(TableGone, f"The table {self._store.uri} no longer exists.")
        return self.state

    def _reload(self) -> None:
        state = load_state(self._store, [self._txn])
        if self.state is not None and state is not None:
            self._check_continues(self.state, state)
        self.state = state

    def _check_continues(self, before: TableState, after: TableState) -> None:
        """Raise PipelineStopped if the table was replaced or restored: txns survive a RESTORE, undone rows do not."""
        uri = self._store.uri
        if after.table_id != before.table_id:
            raise table_stop(TableReplaced, f"The table {uri} was replaced: its id changed.")
        if after.version < before.version:
            raise set_back(uri, after.version, before.version)
        check_not_restored(self._store, before.version, after.version)

    def _check(self, table: TableIntent, intent: Intent) -> None:
        state, number = self._known(), self._known().txns.get(self._txn, 0)
        if table.create and number < intent.batch:
            self._check_fits(table.schema, state)  # another writer may have created it first
        elif not table.create and state.table_id != table.table_id:
            raise table_stop(TableReplaced, f"The table {table.path} was replaced: its id changed.")
        if number < intent.batch and any(file.table == table.path for file in table.files):
            # Spark would read such files without their partition values.
            raise TableFeature(
                f"{table.path}: the files of batch {intent.batch} are staged for direct commits, but Spark writes the "
                "table.",
                hint="Run again: the batch is staged again.",
            )
        if number < intent.batch and (losses := list(_losses(state.schema, from_delta(table.schema), ""))):
            raise table_stop(TableChanged, f"The schema of {table.path} was altered: {'; '.join(losses)}.")
        if number > intent.batch:
            raise Fenced(
                f"The table {table.path} already has batch {number}; this instance is at batch {intent.batch}.",
                hint="Another instance of the pipeline has taken over; this one must not write.",
            )

    def _check_fits(self, schema_json: str, state: TableState) -> None:
        try:
            check_fits(schema_json, state)
        except TableChanged as error:
            raise table_stop(TableChanged, f"{self._store.uri}: {error.message}") from None


def _losses(have: Any, want: Any, path: str) -> Iterator[str]:
    """The columns of a batch that a table can no longer store; a wider type still stores them."""
    if isinstance(want, pa.Schema) or (pa.types.is_struct(have) and pa.types.is_struct(want)):
        types = {item.name: item.type for item in have}
        for item in want:
            below = f"{path}.{item.name}" if path else item.name
            if item.name in types:
                yield from _losses(types[item.name], item.type, below)
            else:
                yield f"column {below} was dropped"
    elif pa.types.is_map(have) and pa.types.is_map(want):
        yield from _losses(have.item_type, want.item_type, path)
    elif pa.types.is_list(have) and pa.types.is_list(want):
        yield from _losses(have.value_type, want.value_type, path)
    elif have != want and not widens(want, have):
        yield f"column {path} is {type_name(have)}, and {type_name(want)} in the batch"
