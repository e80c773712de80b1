"""Append records with a direct commit: stage files, then commit them. Needs no Spark, allows concurrent appends."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from headrace.delta.followed_log import FollowedLog
from headrace.delta.snapshot import TableState
from headrace.errors import SchemaMismatch, TableChanged, TableReplaced
from headrace.stage.layout import file_layout_of
from headrace.stage.stager import Stager
from headrace.storage.store import Store
from headrace.table.ownership import table_replaced
from headrace.table.records import Records, rows_for


@dataclass(frozen=True, slots=True)
class Inserted:
    """Result of an insert."""

    version: int
    rows: int
    files: int
    bytes: int


def bulk_insert(
    store: Store, log: FollowedLog, state: TableState, records: Records, partition: str | None = None
) -> Inserted:
    """Insert all records in one commit, or none. Without records nothing is committed."""
    started = time.monotonic()
    rows = rows_for(state, records, partition)
    if not len(rows):
        return Inserted(state.version, 0, 0, 0)
    stager = Stager(lambda _: store, f"insert-{uuid.uuid4().hex[:8]}")
    try:
        stager.add(file_layout_of(state, store.uri), rows)
        files = stager.finish()
        log_writer = log.writer()
    except BaseException:
        stager.abandon()
        raise
    receipt = None
    try:
        receipt = log_writer.append(files, {}, {}, schema=state.schema_json, table_id=state.table_id, began=started)
    except TableReplaced as error:
        raise table_replaced(store) from error
    except TableChanged as changed:
        raise SchemaMismatch(
            changed.message,
            expected="the columns at the start of the insert",
            actual="other columns",
            hint="Compare the records with the new columns, then insert them again.",
        ) from None
    finally:
        if receipt is None and not log_writer.is_uncertain:  # else the commit may exist, and need the files
            stager.abandon()
    return Inserted(receipt.version, receipt.rows, receipt.files, receipt.bytes)
