"""Two drivers in processes of their own that do the same thing at the same moment."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from headrace import Table
from headrace.delta.log_writer import LogWriter
from headrace.delta.receipt import Receipt
from headrace.delta.schema import to_delta
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import txn_names
from headrace.errors import HeadraceError
from headrace.storage.store import Store
from services.staging import SCHEMA, marks, staged

_gate: Any = None


def _meet(barrier: Any) -> None:
    global _gate
    _gate = barrier


@contextmanager
def rivals(count: int = 2) -> Iterator[Callable[..., list[Any]]]:
    """A caller that runs one function in all processes at once, each with its own arguments."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    with ProcessPoolExecutor(count, context, _meet, (barrier,)) as pool:
        yield lambda what, *arguments: list(pool.map(what, *arguments, timeout=120))


def append_at_once(store: Store, pipeline: str, batch: int, files: Sequence[StagedFile]) -> Receipt | str:
    """Open the tail, wait for the rival, append; a stop is answered by its name."""
    tail = LogWriter.open(store, txn_names(pipeline))
    _gate.wait(30)
    try:
        return tail.append(files, marks(batch, pipeline), {})
    except HeadraceError as stop:
        return stop.name


def create_at_once(store: Store, pipeline: str, table_id: str, files: Sequence[StagedFile]) -> bool:
    """Open the tail, wait for the rival, create, append where the rival was first: whether we made the table."""
    tail = LogWriter.open(store, txn_names(pipeline))
    _gate.wait(30)
    made = tail.create(to_delta(SCHEMA), (), {}, table_id, files, marks(1, pipeline), {})
    if made is None:
        tail.append(files, marks(1, pipeline), {}, schema=to_delta(SCHEMA))
    return made is not None


def write_many(store: Store, ours: bool, files: Sequence[StagedFile]) -> int:
    """Twenty appends in a row: ours through the tail, the others by delta-rs."""
    tail = LogWriter.open(store, txn_names("shop"))
    _gate.wait(30)
    for number, file in enumerate(files):
        if ours:
            tail.append([file], marks(number + 2), {})
        else:
            row = pa.table({"id": [1000 + number], "day": ["theirs"]})
            write_deltalake(store.delta_uri, row, mode="append", storage_options=store.delta_options)
    return len(files)


def append_many(store: Store, _: Sequence[str]) -> int:
    """Ninety-nine batches of one row each through the tail; a last object says that they are done."""
    tail = LogWriter.open(store, txn_names("shop"))
    _gate.wait(30)
    for number in range(1, 100):
        tail.append([staged(store, [number])], marks(number + 1), {"batch": number + 1})
    store.put("_done", b"")
    return 99


def compact_many(store: Store, z_order: Sequence[str]) -> int:
    """Compaction after compaction, until the appends are done and once more; how many there were."""
    table, rounds = Table(store.uri, store.profile), 0
    _gate.wait(30)
    while not store.exists("_done"):
        table.optimize(z_order=z_order)
        rounds += 1
    table.optimize(z_order=z_order)
    return rounds + 1
