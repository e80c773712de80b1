"""Rows are changed by our own hands: files that hold them are written anew, and one commit puts new ones for old.

For tables that the log tail may write. Nothing starts a JVM, the files' statistics are as faithful as a batch's, and
who comes first is told by put-if-absent: then all of it is done again, on what is there by now.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.commit.actions import CHANGE_DATA, RowChange
from headrace.commit.tail import Tail
from headrace.errors import Conflict, TableChanged, TableReplaced, TableRestored, UsageError
from headrace.stage import Stager
from headrace.storage import Store
from headrace.table.insert import layout_of
from headrace.table.writers import amid_others, found
from headrace.tables import files
from headrace.tables.files import File
from headrace.tables.log import TableState
from headrace.tables.partitions import Partition
from headrace.tables.rows import rows_of

_KIND = pa.field("_change_type", pa.string())
_FEED = "delta.enableChangeDataFeed"


@dataclass(frozen=True, slots=True)
class Done:
    """What was done to rows; a change of none is no new version."""

    version: int
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class Edited:
    """What becomes of the rows of one file."""

    kept: pa.Table
    before: pa.Table  # those that change, as they were
    after: pa.Table | None  # and as they are now; None where they are gone


class Edit(ABC):
    """A change of rows, on one state of a table."""

    operation: str  # in Spark's words
    said: dict[str, str]  # its parameters

    @abstractmethod
    def candidates(self, stands: Sequence[File]) -> Iterable[File]:
        """The files that may hold rows to change."""

    @abstractmethod
    def edited(self, rows: pa.Table) -> Edited | None:
        """What becomes of one file's rows; None when they stay."""

    def inserts(self) -> pa.Table | None:
        """Rows that are new, once every file was seen."""
        return None

    @abstractmethod
    def counts(self, done: Done, copied: int) -> dict[str, int]:
        """The same as a commit tells it, by the names of Spark's metrics."""


def rewrite(store: Store, plan: Callable[[TableState], Edit]) -> Done:
    """Carry out a change; it is planned anew each time that others came first."""

    def attempt() -> Done:
        state = found(store)
        work = _Work(store, state, plan(state))
        try:
            return work.carry_out()
        except (TableChanged, TableReplaced, TableRestored) as between:
            work.stager.abandon()
            raise Conflict(between.seen) from between
        except Conflict:
            work.stager.abandon()
            raise

    return amid_others(store, attempt)


class _Work:
    """One attempt, on the files of one version."""

    def __init__(self, store: Store, state: TableState, edit: Edit) -> None:
        self._store, self._state, self._edit = store, state, edit
        self._layout = layout_of(state, store.uri)
        self._feed = replace(
            self._layout, path=f"{store.uri}/{CHANGE_DATA}", schema=state.schema.append(_KIND), stats_columns=0
        )
        self._feeds = state.properties.get(_FEED, "").lower() == "true"
        self.stager = Stager(self._place, f"{edit.operation.lower()}-{uuid.uuid4().hex[:8]}")
        self._old: list[File] = []
        self._done, self._copied = Done(state.version), 0

    def _place(self, uri: str) -> Store:
        return self._store if uri == self._store.uri else self._store.child(CHANGE_DATA)

    def carry_out(self) -> Done:
        """Every file that holds such rows, then what is new, then the commit."""
        try:
            stands = list(files.active(self._store, self._state.version).values())
            for file in self._edit.candidates(stands):
                self._file(file)
            self._insert(self._edit.inserts())
            staged = self.stager.finish()
        except BaseException:
            self.stager.abandon()
            raise
        new = [file for file in staged if file.table == self._store.uri]
        if not self._old and not new:
            return self._done
        feed = [file for file in staged if file.table != self._store.uri]
        change = RowChange(self._edit.operation, self._edit.counts(self._done, self._copied), feed)
        told = {"operation": self._edit.operation.lower()}
        version = Tail.open(self._store).rewrite(self._old, new, self._state.version, self._edit.said, told, change)
        return replace(self._done, version=version)

    def _file(self, file: File) -> None:
        if file.elsewhere:
            raise UsageError(
                f"{self._store.uri}: the file {file.path} is another table's (a shallow clone).",
                next="Copy the table whole, and change the copy.",
            )
        edited = self._edit.edited(rows_of(self._store, file, self._state.schema, self._state.partition_by))
        if edited is None:
            return
        self._old.append(file)
        self._copied += len(edited.kept)
        self.stager.add(self._layout, edited.kept)
        if edited.after is None:
            self._done = replace(self._done, deleted=self._done.deleted + len(edited.before))
            self._tell("delete", edited.before)
            return
        self._done = replace(self._done, updated=self._done.updated + len(edited.before))
        self.stager.add(self._layout, edited.after)
        self._tell("update_preimage", edited.before)
        self._tell("update_postimage", edited.after)

    def _insert(self, rows: pa.Table | None) -> None:
        if rows is not None and len(rows):
            self._done = replace(self._done, inserted=len(rows))
            self.stager.add(self._layout, rows)
            self._tell("insert", rows)

    def _tell(self, kind: str, rows: pa.Table) -> None:
        """Changed rows for those who read the table's change data."""
        if self._feeds and len(rows):
            kinds = pa.repeat(pa.scalar(kind), len(rows))
            self.stager.add(self._feed, pa.table([*rows.columns, kinds], schema=self._feed.schema))


def within(stands: Iterable[File], partition: Partition, state: TableState) -> list[File]:
    """The files of a partition that is given by some of its columns; all without one."""
    wanted = {name: _typed(value, state, name) for name, value in partition}
    return [
        file
        for file in stands
        if all(_typed(file.partition.get(name), state, name) == value for name, value in wanted.items())
    ]


def _typed(value: str | None, state: TableState, name: str) -> pa.Scalar:
    """Writers spell one value in several ways."""
    return pa.scalar(value, pa.string()).cast(state.schema.field(name).type)


def parameters(**said: object) -> dict[str, str]:
    """What a commit says of how it was asked for, each as JSON in a text."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in said.items() if value}
