"""Order of the commits of a batch: data tables in parallel, dead letters last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace import faults
from headrace.delta.receipt import Receipt
from headrace.write.intent import Intent, TableIntent

_PARALLEL_COMMITS = 8


def commit_tables(intent: Intent, commit: Callable[[TableIntent], Receipt]) -> list[Receipt]:
    """Commit the tables of a batch; the first one alone, unless it merges, which takes long."""
    data = [table for table in intent.tables if not table.dead_letters]
    dead_letters = [table for table in intent.tables if table.dead_letters]
    first = [table for table in data[:1] if table.merging is None]
    receipts = [commit(table) for table in first]
    if first and data[1:]:
        faults.reach(faults.Point.AFTER_FIRST_TABLE, batch=intent.batch)

    def commit_beside(table: TableIntent) -> Receipt:
        receipt = commit(table)
        if not first and len(data) > 1:
            faults.reach(faults.Point.AFTER_FIRST_TABLE, batch=intent.batch)
        return receipt

    receipts += _commit_parallel(data[len(first) :], commit_beside)
    if dead_letters:
        faults.reach(faults.Point.BEFORE_DEAD_LETTERS, batch=intent.batch)
    return receipts + [commit(table) for table in dead_letters]


def _commit_parallel(tables: Sequence[TableIntent], commit: Callable[[TableIntent], Receipt]) -> list[Receipt]:
    """Commit tables in parallel; after a failure, those that have not started are left to recovery."""
    failed = threading.Event()

    def commit_unless_failed(table: TableIntent) -> list[Receipt]:
        if failed.is_set():
            return []
        try:
            return [commit(table)]
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(_PARALLEL_COMMITS) as pool:
        return [receipt for receipts in pool.map(commit_unless_failed, tables) for receipt in receipts]
