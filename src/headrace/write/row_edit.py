"""Rows are changed by our own hands: files that hold them are written anew, and one commit puts new ones for old.

Nothing starts a JVM, and the files' statistics are as faithful as a batch's. Files are read some rows at a time and
several at once, so neither their size nor their number matters to memory.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.delta.actions import CHANGE_DATA, RowChange
from headrace.delta.features import append_blocker
from headrace.delta.files import File, active
from headrace.delta.log import TableState
from headrace.delta.log_writer import LogWriter, Objection
from headrace.delta.rows import pieces_of
from headrace.delta.staged_file import StagedFile
from headrace.errors import Conflict, UsageError
from headrace.stage.stager import Stager, file_layout_of
from headrace.storage.store import Store

_KIND = pa.field("_change_type", pa.string())
_FEED = "delta.enableChangeDataFeed"
_COUNTED = ("inserted", "updated", "deleted", "copied")
_AT_ONCE = min(4, os.cpu_count() or 1)  # files written anew at the same time


@dataclass(frozen=True, slots=True)
class EditResult:
    """What was done to rows; a change of none is no new version."""

    version: int
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    copied: int = 0  # written anew as they were


@dataclass(frozen=True, slots=True)
class EditedRows:
    """What becomes of some rows of a file."""

    kept: pa.Table
    deleted: pa.Table | None = None
    before: pa.Table | None = None  # those that change, as they were
    after: pa.Table | None = None  # and as they are now


class RowEdit(ABC):
    """A change of rows, on one state of a table; files may be asked about by several threads."""

    operation: str  # in Spark's words
    said: Mapping[str, str]  # its parameters

    @abstractmethod
    def candidates(self, stands: Sequence[File]) -> Iterable[File]:
        """The files that hold rows to change."""

    @abstractmethod
    def edited(self, file: File, start: int, rows: pa.Table) -> EditedRows | None:
        """What becomes of a file's rows from one on; None when they stay."""

    def inserts(self) -> pa.Table | None:
        """Rows that are new, once every file was looked at."""
        return None

    @abstractmethod
    def counts(self, done: EditResult) -> dict[str, int]:
        """The same as a commit tells it, by the names of Spark's metrics."""


@dataclass(slots=True)
class _Tally:
    """What one thread has done."""

    stager: Stager
    old: list[File] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str, rows: pa.Table) -> None:
        self.counts[what] = self.counts.get(what, 0) + len(rows)


class EditAttempt:
    """One attempt at an edit, on the files of one version."""

    def __init__(
        self,
        store: Store,
        state: TableState,
        edit: RowEdit,
        objection: Objection = append_blocker,
        stands: Sequence[File] | None = None,
    ) -> None:
        self._store, self._state, self._edit, self._objection = store, state, edit, objection
        self._stands = list(active(store, state.version).values()) if stands is None else stands
        self._layout = file_layout_of(state, store.uri)
        self._feed = replace(
            self._layout, path=f"{store.uri}/{CHANGE_DATA}", schema=state.schema.append(_KIND), stats_columns=0
        )
        self._feeds = state.properties.get(_FEED, "").lower() == "true"
        self._name = f"{edit.operation.lower()}-{uuid.uuid4().hex[:8]}"
        self._began = time.monotonic()
        self._mine, self._tallies, self._lock = threading.local(), list[_Tally](), threading.Lock()

    def carry_out(self, info: Mapping[str, Any], *, marks: Mapping[str, int] | None = None) -> EditResult:
        """Every file that holds such rows, then what is new, then the commit; with marks there always is one."""
        with self._abandoned_on_failure():
            staged = self._staged()
        counts = [tally.counts for tally in self._tallies]
        done = EditResult(self._state.version, *(sum(each.get(name, 0) for each in counts) for name in _COUNTED))
        old = [file for tally in self._tallies for file in tally.old]
        if not old and not staged and not marks:
            return done
        new = [file for file in staged if file.table == self._store.uri]
        feed = [file for file in staged if file.table != self._store.uri]
        took = {"executionTimeMs": max(1, round(1000 * (time.monotonic() - self._began)))}
        change = RowChange(self._edit.operation, {**self._edit.counts(done), **took}, feed)
        tail = LogWriter.open(self._store, marks or (), self._objection)
        try:
            version = tail.rewrite(old, new, self._state.version, self._edit.said, info, change, marks=marks)
        except Conflict:  # certainly not committed
            self.abandon()
            raise
        return replace(done, version=version)

    def _staged(self) -> list[StagedFile]:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-edit") as pool:
            work = [pool.submit(self._file, file) for file in self._edit.candidates(self._stands)]
            for each in work:
                each.result()
            self._insert(self._edit.inserts())
            return [file for files in pool.map(lambda tally: tally.stager.finish(), self._tallies) for file in files]

    def abandon(self) -> None:
        """Delete what was staged; nothing refers to it."""
        for tally in self._tallies:
            tally.stager.abandon()

    @contextmanager
    def _abandoned_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    def _tally(self) -> _Tally:
        """This thread's own: a stager is no two threads'."""
        found: _Tally | None = getattr(self._mine, "tally", None)
        if found is None:
            with self._lock:
                found = self._mine.tally = _Tally(Stager(self._place, f"{self._name}-{len(self._tallies)}"))
                self._tallies.append(found)
        return found

    def _place(self, uri: str) -> Store:
        return self._store if uri == self._store.uri else self._store.child(CHANGE_DATA)

    def _file(self, file: File) -> None:
        if file.elsewhere:
            raise UsageError(
                f"{self._store.uri}: the file {file.path} is another table's (a shallow clone).",
                hint="Copy the table whole, and change the copy.",
            )
        tally, start = self._tally(), 0
        tally.old.append(file)
        for rows in pieces_of(self._store, file, self._state.schema, self._state.partition_by):
            self._piece(tally, self._edit.edited(file, start, rows) or EditedRows(rows))
            start += len(rows)

    def _piece(self, tally: _Tally, edited: EditedRows) -> None:
        tally.count("copied", edited.kept)
        tally.stager.add(self._layout, edited.kept)
        if edited.deleted is not None:
            tally.count("deleted", edited.deleted)
            self._tell(tally, "delete", edited.deleted)
        if edited.before is not None and edited.after is not None:
            tally.count("updated", edited.after)
            tally.stager.add(self._layout, edited.after)
            self._tell(tally, "update_preimage", edited.before)
            self._tell(tally, "update_postimage", edited.after)

    def _insert(self, rows: pa.Table | None) -> None:
        if rows is not None and len(rows):
            tally = self._tallies[0] if self._tallies else self._tally()  # no file of their own, where one is open
            tally.count("inserted", rows)
            tally.stager.add(self._layout, rows)
            self._tell(tally, "insert", rows)

    def _tell(self, tally: _Tally, kind: str, rows: pa.Table) -> None:
        """Changed rows for those who read the table's change data."""
        if self._feeds and len(rows):
            kinds = pa.repeat(pa.scalar(kind), len(rows))
            tally.stager.add(self._feed, pa.table([*rows.columns, kinds], schema=self._feed.schema))
