"""Records into a table by its log: staged as files, then one commit. It needs no Spark and goes along with appends."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from headrace.delta.log_writer import LogWriter
from headrace.delta.snapshot import TableState
from headrace.errors import SchemaMismatch, TableChanged
from headrace.stage.stager import Stager, file_layout_of
from headrace.storage.store import Store
from headrace.table.records import Records, fit_records, partition_of


@dataclass(frozen=True, slots=True)
class Inserted:
    """What an insert did."""

    version: int
    rows: int
    files: int
    bytes: int


def bulk_insert(store: Store, state: TableState, records: Records, partition: str | None = None) -> Inserted:
    """All records in one commit, or none; none at all is no commit."""
    began = time.monotonic()
    rows = fit_records(
        records, state.schema, state.partition_by, partition_of(partition, state.schema, state.partition_by)
    )
    if not len(rows):
        return Inserted(state.version, 0, 0, 0)
    stager = Stager(lambda _: store, f"insert-{uuid.uuid4().hex[:8]}")
    try:
        stager.add(file_layout_of(state, store.uri), rows)
        files = stager.finish()
    except BaseException:
        stager.abandon()
        raise
    try:
        tail = LogWriter.open(store)
        receipt = tail.append(files, {}, {}, schema=state.schema_json, table_id=state.table_id, began=began)
    except TableChanged as changed:  # certainly not committed; after any other error the files may be the table's own
        stager.abandon()
        raise SchemaMismatch(
            changed.message,
            expected="the columns it had a moment ago",
            actual="others",
            hint="Look at it, then try again.",
        ) from None
    return Inserted(receipt.version, receipt.rows, receipt.files, receipt.bytes)
