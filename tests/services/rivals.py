"""Two drivers in processes of their own that do the same thing at the same moment."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from headrace.batch import Receipt, StagedFile
from headrace.commit import Tail
from headrace.commit.marks import mark_names
from headrace.errors import HeadraceError
from headrace.storage import Store
from headrace.tables.schema import to_delta
from services.staging import SCHEMA, marks

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
    tail = Tail.open(store, mark_names(pipeline))
    _gate.wait(30)
    try:
        return tail.append(files, marks(batch, pipeline), {})
    except HeadraceError as stop:
        return stop.name


def create_at_once(store: Store, pipeline: str, table_id: str, files: Sequence[StagedFile]) -> bool:
    """Open the tail, wait for the rival, create, append where the rival was first: whether we made the table."""
    tail = Tail.open(store, mark_names(pipeline))
    _gate.wait(30)
    made = tail.create(to_delta(SCHEMA), (), {}, table_id, files, marks(1, pipeline), {})
    if made is None:
        tail.append(files, marks(1, pipeline), {}, schema=to_delta(SCHEMA))
    return made is not None


def write_many(store: Store, ours: bool, files: Sequence[StagedFile]) -> int:
    """Twenty appends in a row: ours through the tail, the others by delta-rs."""
    tail = Tail.open(store, mark_names("shop"))
    _gate.wait(30)
    for number, file in enumerate(files):
        if ours:
            tail.append([file], marks(number + 2), {})
        else:
            row = pa.table({"id": [1000 + number], "day": ["theirs"]})
            write_deltalake(store.delta_uri, row, mode="append", storage_options=store.delta_options)
    return len(files)
