"""Direct commits: staged files become files of the table through the log writer. The default writer; needs no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from headrace.delta.actions import File
from headrace.delta.checkpoints import SHARED, CheckpointWriter
from headrace.delta.features import append_blocker
from headrace.delta.log_errors import check_txns_last
from headrace.delta.log_writer import LogWriter
from headrace.delta.partition_keys import PartitionKeys
from headrace.delta.receipt import Receipt
from headrace.delta.schema import from_delta, to_delta
from headrace.delta.snapshot import TableState
from headrace.delta.txn import txn_names
from headrace.stage.partitions import partition_folder
from headrace.storage.store import Store
from headrace.write.intent import ALL, Intent, TableIntent
from headrace.write.table_writer import batch_account


class AppendWriter:
    """Appends to one table by put-if-absent; other writers may commit at the same time."""

    commits_directly = True

    def __init__(self, log_writer: LogWriter, checkpoints: CheckpointWriter = SHARED) -> None:
        self.log_writer = log_writer
        log_writer.checkpoints = checkpoints

    @classmethod
    def open(cls, store: Store, pipeline: str, foreign: Iterable[str] = ()) -> AppendWriter:
        """Open a table at its newest version, with these txns of another writer; its state is None without a table."""

        def blocker(state: TableState) -> str | None:
            check_txns_last(store.uri, state)
            return append_blocker(state)

        return cls(LogWriter.open(store, txn_names(pipeline), blocker, foreign))

    @property
    def state(self) -> TableState | None:
        """The table at the last version that was read; None if there is no table."""
        return self.log_writer.state

    def writable(self) -> pa.Schema:
        """All columns of the table."""
        return self.log_writer.current_state().schema

    def follow(self) -> None:
        """Read new commits of other writers; raises PipelineStopped if the pipeline must not continue."""
        self.log_writer.follow()

    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns that the table does not have, at any depth."""
        self.log_writer.evolve(to_delta(schema), {})

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """Commit a batch to the table; skipped if the table already has the batch's txn."""
        if any(file.table != table.path for file in table.files):
            raise AssertionError(f"{table.path}: a direct commit needs files that are staged in the table's directory")
        txns, info = {**intent.txns(), **table.foreign_txns()}, batch_account(intent, table.attempt)
        foreign = {name: before for name, (before, _) in table.foreign.items()}
        replaces = _replaced_files(table) if table.replaces else None
        self.log_writer.watch(foreign)
        if not table.create:
            return self.log_writer.append(
                table.files, txns, info, schema=table.schema, table_id=table.table_id, instead=replaces, foreign=foreign
            )
        receipt = self.log_writer.create(
            table.schema, table.partition_by, table.properties, table.table_id, table.files, txns, info
        )
        return receipt or self.log_writer.append(
            table.files, txns, info, schema=table.schema, instead=replaces, foreign=foreign
        )


def _replaced_files(table: TableIntent) -> Callable[[File], bool]:
    """A test for the files that a batch with `replaces` removes."""
    folders, key = set(table.replaces), PartitionKeys.of(from_delta(table.schema), table.partition_by)
    return lambda file: ALL in folders or partition_folder(key(file.partition)) in folders
