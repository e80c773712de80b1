"""Automatic compaction of the ledger: rows of many batches in few files, and a short log.

One row, one file and one commit a batch are a million of each in twelve days, at a batch a second. So every hundredth
batch joins the files of single rows, every ten thousandth those of a hundred, and so on. A crash leaves a file that
no version references, which a later sweep deletes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headrace.delta.actions import File
from headrace.delta.log import EPOCH, LOG, expired
from headrace.delta.log_writer import LogWriter
from headrace.delta.snapshot import active_files
from headrace.ledger import row
from headrace.stage.parquet import read_parquet
from headrace.storage.store import Store

STEP = 100  # files of one size that become one of the next; a power of it is what a size has in rows
_CLEAN_EVERY = 1_000
_LOG_KEPT = timedelta(days=2)
_SWEPT_AFTER = timedelta(hours=1)  # whoever reads the ledger opened it less long ago
_PAST_LOG = f"{LOG}0"  # in the order of a listing, where the data files begin
_NAME = re.compile(r"batch-(\d{12})-[0-9a-f-]{36}\.parquet$")


def compact(tail: LogWriter, batch: int, proved_time: Callable[[datetime, timedelta], datetime]) -> None:
    """Merge files, delete unused ones and clean the log after a batch; `proved_time` is the ledger's own clock."""
    rows = STEP
    while batch % (rows * STEP) == 0:
        rows *= STEP
    if batch % rows == 0:
        _join(tail, rows)
        _sweep(tail, batch - 2 * STEP, proved_time(datetime.now(UTC), _SWEPT_AFTER).timestamp())
    if batch % _CLEAN_EVERY == 0:
        until = max(proved_time(datetime.now(UTC), timedelta.max), EPOCH + _LOG_KEPT) - _LOG_KEPT
        tail.store.delete([item.path for item in expired(tail.store, until)])


def _join(tail: LogWriter, rows: int) -> None:
    """Merge all files with fewer than `rows` rows into one."""
    state, began = tail.current_state(), time.monotonic()
    old = [file for file in active_files(tail.store, state.version).values() if (file.rows or 0) < rows]
    if len(old) < STEP // 2:
        return  # another instance has merged them
    joined = row.stage_rows(tail.store, _rows(tail.store, old))
    tail.rewrite(old, [joined], state.version, {}, {"operation": "optimize"}, began=began)


def _rows(store: Store, files: Iterable[File]) -> pa.Table:
    tables = [read_parquet(store.get(file.path)) for file in files]
    return pa.concat_tables(tables).cast(row.SCHEMA).sort_by("batch")


def _sweep(tail: LogWriter, until: int, proved: float) -> None:
    """Delete files of batches up to `until` that the ledger no longer references, by a time that its log proves."""
    stands = {file.path for file in active_files(tail.store, tail.current_state().version).values()}
    old = proved - _SWEPT_AFTER.total_seconds()
    obsolete_files = [
        item.path
        for item in tail.store.list("", _PAST_LOG)
        if (match := _NAME.match(item.path))
        and int(match[1]) <= until
        and item.path not in stands
        and item.modified < old
    ]
    tail.store.delete(obsolete_files)
