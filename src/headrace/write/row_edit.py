"""The rewrite engine: files in, files out, one commit. Compaction, row changes and in-process merges use it.

No JVM is started, and new files get the same statistics as those of a batch. Files are read in pieces and several at
a time, so memory does not grow with their size or number.
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

from headrace.delta.actions import File
from headrace.delta.commit_builder import CHANGE_DATA, RowChange
from headrace.delta.features import append_blocker
from headrace.delta.log_errors import table_stop
from headrace.delta.log_writer import Blocker, LogWriter
from headrace.delta.rows import row_chunks
from headrace.delta.snapshot import TableState, active_files
from headrace.delta.staged_file import StagedFile
from headrace.errors import TableReplaced, UsageError
from headrace.stage.layout import FileLayout, file_layout_of
from headrace.stage.stager import Stager
from headrace.storage.store import Store

_KIND = pa.field("_change_type", pa.string())
_FEED = "delta.enableChangeDataFeed"
_COUNTS = ("inserted", "updated", "deleted", "copied")
_THREADS = min(4, os.cpu_count() or 1)  # files that are rewritten in parallel


@dataclass(frozen=True, slots=True)
class EditResult:
    """Row counts of an edit. An edit that changes no row commits nothing and reports the current version."""

    version: int
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    copied: int = 0  # unchanged rows of rewritten files


@dataclass(frozen=True, slots=True)
class EditedRows:
    """The result of an edit for some rows of a file."""

    kept: pa.Table
    deleted: pa.Table | None = None
    before: pa.Table | None = None  # updated rows with their old values
    after: pa.Table | None = None  # the same rows with their new values


class RowEdit(ABC):
    """A change of rows, planned for one version of a table. `edited` is called by several threads."""

    operation: str  # as Spark names it in the table history
    parameters: Mapping[str, str]  # operationParameters of the commit

    @abstractmethod
    def candidates(self, files: Sequence[File]) -> Iterable[File]:
        """The files that contain rows to change."""

    @abstractmethod
    def edited(self, file: File, start: int, rows: pa.Table) -> EditedRows | None:
        """Edit the rows of a file from row number `start` on; None if all of them stay."""

    def inserts(self) -> pa.Table | None:
        """New rows; called after the last file."""
        return None

    @abstractmethod
    def counts(self, result: EditResult) -> dict[str, int]:
        """operationMetrics of the commit, named as Spark names them."""


@dataclass(slots=True)
class _Output:
    """The files that one thread has read and staged: a stager is not thread-safe."""

    stager: Stager
    files: list[File] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, kind: str, rows: pa.Table) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + len(rows)


class FileRewrite:
    """Replaces files of a table: rows of old files are staged in new ones, and one commit exchanges them."""

    def __init__(self, store: Store, layout: FileLayout, name: str, *, change_feed: bool = False) -> None:
        self._store, self._layout, self._name = store, layout, f"{name}-{uuid.uuid4().hex[:8]}"
        self._feed = replace(
            layout, path=f"{store.uri}/{CHANGE_DATA}", schema=layout.schema.append(_KIND), stats_columns=0
        )
        self._has_feed = change_feed
        self._started = time.monotonic()
        self._local, self._outputs, self._lock = threading.local(), list[_Output](), threading.Lock()

    @property
    def files(self) -> list[File]:
        """The old files, which the commit removes."""
        return [file for output in self._outputs for file in output.files]

    def add(self, files: Iterable[File], pieces: Iterable[EditedRows]) -> None:
        """Replace some files by these rows; any thread may call it."""
        output = self._output()
        output.files += files
        for piece in pieces:
            self._stage(output, piece)

    def insert(self, rows: pa.Table | None) -> None:
        """Add new rows, to a file that is open already if there is one."""
        if rows is not None and len(rows):
            output = self._outputs[0] if self._outputs else self._output()
            output.count("inserted", rows)
            output.stager.add(self._layout, rows)
            self._stage_changes(output, "insert", rows)

    def finish(self) -> list[StagedFile]:
        """Close the new files; those of the change data feed are among them."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-edit") as pool:
            return [file for files in pool.map(lambda output: output.stager.finish(), self._outputs) for file in files]

    def result(self, version: int) -> EditResult:
        """The rows counted so far."""
        counts = [output.counts for output in self._outputs]
        return EditResult(version, *(sum(each.get(name, 0) for each in counts) for name in _COUNTS))

    def commit(
        self,
        log_writer: LogWriter,
        staged: Sequence[StagedFile],
        since: int,
        parameters: Mapping[str, str],
        info: Mapping[str, Any],
        *,
        row_change: tuple[str, Mapping[str, int]] | None = None,
        txns: Mapping[str, int] | None = None,
    ) -> int:
        """Exchange the files and return the new version; the old files were part of version `since`.

        `row_change` is the operation and its metrics if rows change, None for a compaction. If an error proves that
        nothing was committed, the staged files are deleted. If the commit may exist, or appear later, they must stay:
        without them the table would be damaged. VACUUM deletes them if nothing refers to them.
        """
        files = [file for file in staged if file.table == self._store.uri]
        change = None
        if row_change is not None:
            elapsed = {"executionTimeMs": max(1, round(1000 * (time.monotonic() - self._started)))}
            feed = [file for file in staged if file.table != self._store.uri]
            change = RowChange(row_change[0], {**row_change[1], **elapsed}, feed)
        began = self._started if change is None else None
        try:
            return log_writer.rewrite(self.files, files, since, parameters, info, change, txns=txns, began=began)
        except BaseException:
            if not log_writer.is_uncertain:
                self.abandon()
            raise

    @contextmanager
    def staging(self) -> Iterator[None]:
        """Delete the staged files if the block fails: nothing refers to them yet."""
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Delete the staged files."""
        for output in self._outputs:
            output.stager.abandon()

    def _output(self) -> _Output:
        output: _Output | None = getattr(self._local, "output", None)
        if output is None:
            with self._lock:
                stager = Stager(self._folder, f"{self._name}-{len(self._outputs)}")
                output = self._local.output = _Output(stager)
                self._outputs.append(output)
        return output

    def _folder(self, uri: str) -> Store:
        return self._store if uri == self._store.uri else self._store.child(CHANGE_DATA)

    def _stage(self, output: _Output, piece: EditedRows) -> None:
        output.count("copied", piece.kept)
        output.stager.add(self._layout, piece.kept)
        if piece.deleted is not None:
            output.count("deleted", piece.deleted)
            self._stage_changes(output, "delete", piece.deleted)
        if piece.before is not None and piece.after is not None:
            output.count("updated", piece.after)
            output.stager.add(self._layout, piece.after)
            self._stage_changes(output, "update_preimage", piece.before)
            self._stage_changes(output, "update_postimage", piece.after)

    def _stage_changes(self, output: _Output, kind: str, rows: pa.Table) -> None:
        """Changed rows for the change data feed, if the table has one."""
        if self._has_feed and len(rows):
            kinds = pa.repeat(pa.scalar(kind), len(rows))
            output.stager.add(self._feed, pa.table([*rows.columns, kinds], schema=self._feed.schema))


class EditAttempt:
    """One attempt at an edit, on the files of one version."""

    def __init__(
        self,
        store: Store,
        state: TableState,
        edit: RowEdit,
        blocker: Blocker = append_blocker,
        files: Sequence[File] | None = None,
    ) -> None:
        self._store, self._state, self._edit, self._blocker = store, state, edit, blocker
        self._files = list(active_files(store, state.version).values()) if files is None else files
        has_feed = state.properties.get(_FEED, "").lower() == "true"
        layout = file_layout_of(state, store.uri)
        self._rewrite = FileRewrite(store, layout, edit.operation.lower(), change_feed=has_feed)

    def run(self, info: Mapping[str, Any], *, txns: Mapping[str, int] | None = None) -> EditResult:
        """Rewrite the candidate files, add the new rows and commit. With `txns` even an empty edit is committed."""
        with self._rewrite.staging():
            staged = self._stage()
            result = self._rewrite.result(self._state.version)
            if not self._rewrite.files and not staged and not txns:
                return result
            log_writer = LogWriter.open(self._store, txns or (), self._blocker)
            if log_writer.current_state().table_id != self._state.table_id:
                raise table_stop(TableReplaced, f"{self._store.uri} was replaced by another table during the edit.")
        version = self._rewrite.commit(
            log_writer,
            staged,
            self._state.version,
            self._edit.parameters,
            info,
            row_change=(self._edit.operation, self._edit.counts(result)),
            txns=txns,
        )
        return replace(result, version=version)

    def _stage(self) -> list[StagedFile]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-edit") as pool:
            futures = [pool.submit(self._rewrite_file, file) for file in self._edit.candidates(self._files)]
            for future in futures:
                future.result()
        self._rewrite.insert(self._edit.inserts())
        return self._rewrite.finish()

    def _rewrite_file(self, file: File) -> None:
        if file.elsewhere:
            raise UsageError(
                f"{self._store.uri}: the file {file.path} belongs to another table (a shallow clone).",
                hint="Make a deep copy of the table and change the copy.",
            )
        self._rewrite.add([file], self._edited(file))

    def _edited(self, file: File) -> Iterator[EditedRows]:
        start = 0
        for rows in row_chunks(self._store, file, self._state.schema, self._state.partition_by):
            yield self._edit.edited(file, start, rows) or EditedRows(rows)
            start += len(rows)
