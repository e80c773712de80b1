"""Append by the log tail: the staged files become the table's own. The normal way, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


class AppendWriter:
    """One Delta table that is written by put-if-absent only."""

    adopts = True

    def __init__(self, tail: LogWriter, checkpoints: CheckpointWriter = SHARED) -> None:
        self.tail = tail
        tail.checkpoints = checkpoints

    @classmethod
    def open(cls, store: Store, pipeline: str) -> AppendWriter:
        """Follow the table from its newest version; its state is None while there is none."""

        def objection(state: TableState) -> str | None:
            check_txns_last(store.uri, state)
            return append_blocker(state)

        return cls(LogWriter.open(store, txn_names(pipeline), objection))

    @property
    def state(self) -> TableState | None:
        """The table as far as it was followed."""
        return self.tail.state

    def writable(self) -> pa.Schema:
        """The columns rows may fill: all of them."""
        return self.tail.known().schema

    def follow(self) -> None:
        """Go along with what others did; what no batch may go along with is raised."""
        self.tail.follow()

    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns the table lacks, at any depth."""
        self.tail.evolve(to_delta(schema), {})

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """One table's part of a batch; the same part twice changes nothing."""
        if any(file.table != table.path for file in table.files):
            raise AssertionError(f"{table.path}: files that are staged elsewhere cannot become its own")
        marks, info = intent.txns(), account(intent, table.plan)
        instead = _replaced(table) if table.replaces else None
        if not table.create:
            return self.tail.append(
                table.files, marks, info, schema=table.schema, table_id=table.table_id, instead=instead
            )
        made = self.tail.create(
            table.schema, table.partition_by, table.properties, table.table_id, table.files, marks, info
        )
        return made or self.tail.append(table.files, marks, info, schema=table.schema, instead=instead)


def _replaced(table: TableIntent) -> Callable[[File], bool]:
    """Which of the files that are there a batch takes the place of."""
    folders, key = set(table.replaces), PartitionKeys.of(from_delta(table.schema), table.partition_by)
    return lambda file: ALL in folders or partition_folder(key(file.partition)) in folders


def account(intent: Intent, plan: int = 0) -> dict[str, Any]:
    """What every commit of a batch says of the whole batch, and of which of its plans it is a part."""
    return {
        "pipeline": intent.pipeline,
        "batch": intent.batch,
        "spec": intent.digest,
        "ranges": [[item.topic, item.partition, item.start, item.until] for item in intent.ranges],
        **intent.counts.records(),
        **({"plan": plan} if plan else {}),
        **_given_back(intent),
    }


def _given_back(intent: Intent) -> dict[str, Any]:
    """What a commit puts back that the table had lost: told there, so that nobody puts it back a second time."""
    told = {
        "reread": [[item.topic, item.partition, item.start, item.until] for item in intent.reread],
        "reingested": list(intent.reingested),
    }
    return {name: value for name, value in told.items() if value}
