"""The log writer: commits to a Delta table by putting the next version's JSON if absent, and reads only new commits.

A blind append needs no list of files, only the version, the metadata, the protocol and our txns; so the cost of a
commit does not grow with the table.

Put-if-absent is the compare-and-swap of a Delta log. Two writers, both at version 7:

    A: put 8.json if absent     created: A is at version 8
    B: put 8.json if absent     already exists: read 8.json, check that the commit still applies to that state
    B: put 9.json if absent     created: B is at version 9

An error of a put does not tell whether the file was created, as only the response may be lost. So the writer reads the
log and looks for its own commit id, which is the same in every attempt.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from headrace.delta import commit_builder, snapshot
from headrace.delta.actions import Commit, File, MetadataAction
from headrace.delta.checkpoints import INTERVAL, SHARED
from headrace.delta.evolution import check_fits, merge_schemas
from headrace.delta.features import (
    WriterKind,
    append_blocker,
    declared_writer,
    protocol_for,
    rewrite_blocker,
    with_feature,
)
from headrace.delta.foreign_commits import ForeignCommit, change_of
from headrace.delta.log import LogWalk, read_commit, version_path
from headrace.delta.log_errors import restored, set_back, table_stop
from headrace.delta.receipt import Receipt
from headrace.delta.restores import RESTORE, check_not_restored
from headrace.delta.snapshot import TableState, active_files, next_state
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_number_of
from headrace.errors import (
    CommitConflict,
    DirectCommitBlocked,
    Fenced,
    HeadraceError,
    StorageUnreachable,
    TableChanged,
    TableGone,
    TableReplaced,
    TxnMismatch,
)
from headrace.storage.base import AlreadyExists
from headrace.storage.store import Store

Blocker = Callable[[TableState], str | None]  # why a table of this state must not be written; None if it may be
_DEFAULTS = {"delta.checkpointInterval": str(INTERVAL)}


@dataclass(frozen=True, slots=True)
class _PendingCommit:
    """A commit to make, and the table state that it requires; None: any."""

    commit_id: str  # the same in every attempt
    number: tuple[str, int] | None = None  # the txn that numbers it
    schema: str | None = None  # of its files
    partition_by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _NextVersion:
    """The content of the next version, and the state after it."""

    text: bytes
    state: TableState


class LogWriter:
    """Follows the log of one table and commits to it. Not thread-safe."""

    def __init__(
        self, store: Store, names: Sequence[str], blocker: Blocker = append_blocker, foreign: Sequence[str] = ()
    ) -> None:
        self.store = store
        self._names = names
        self._foreign = foreign
        self._blocker = blocker
        self._state: TableState | None = None
        self._tag: str | None = None  # of the state's JSON: changes if the log is deleted and created again
        self._driver = uuid.uuid4()
        self.checkpoints = SHARED
        self.conflicts = 0  # attempts that lost the race for a version
        self.is_uncertain = False  # after an error: whether the commit may be in the log, or still appear there

    @classmethod
    def open(
        cls,
        store: Store,
        txns: Iterable[str] = (),
        blocker: Blocker = append_blocker,
        foreign: Iterable[str] = (),
    ) -> LogWriter:
        """Open a table at its newest version; its state is None if there is no table.

        The state has the txns of this writer (`txns`) and these of another one (`foreign`).

        If `blocker` allows a table that Spark writes, the caller must make sure that nobody else writes it meanwhile.
        """
        log_writer = cls(store, tuple(txns), blocker, tuple(foreign))
        log_writer._reload()
        return log_writer

    @classmethod
    def at(cls, store: Store, state: TableState | None, tag: str | None) -> LogWriter:
        """Continue from a state that was read before, without txns; `tag` is that of its version's JSON."""
        log_writer = cls(store, ())
        log_writer._state, log_writer._tag = state, tag
        return log_writer

    def watch(self, foreign: Iterable[str]) -> None:
        """Read these txns of another writer, too."""
        names = tuple(name for name in foreign if name not in self._foreign)
        if names and self._state is not None:
            loaded = snapshot.load_state(self.store, names, self._state.version)
            txns = loaded.txns if loaded is not None else {}
            self._state = replace(self._state, txns={**txns, **self._state.txns})
        self._foreign = (*self._foreign, *names)

    @property
    def state(self) -> TableState | None:
        """The table at the last version that was read; None if there is no table."""
        return self._state

    def current_state(self) -> TableState:
        """The state of a table that must exist; TableGone if it does not."""
        if self._state is None:
            raise table_stop(TableGone, f"{self.store.uri}: no table found.")
        return self._state

    def follow(self) -> list[ForeignCommit]:
        """Read new commits of other writers; raises PipelineStopped if the pipeline must not continue."""
        if self._state is None:
            self._load_created()
            return []
        self._verified_state(None)
        changes: list[ForeignCommit] = []
        while (commit := self._read_next()) is not None:
            changes.append(change_of(commit, self.current_state()))
            self._apply(commit, None)
        self._refresh_tag()
        return changes

    def create(
        self,
        schema: str,
        partition_by: Sequence[str],
        properties: Mapping[str, str],
        table_id: str,
        files: Sequence[StagedFile],
        txns: Mapping[str, int],
        info: Mapping[str, Any],
        *,
        began: float | None = None,
    ) -> Receipt | None:
        """Create the table with its first rows in one commit; None if another writer was first: then append.

        With `began`, the time at which the operation started (`time.monotonic`), the commit has its duration.
        """
        if self._state is not None:
            return None
        state = first_state(schema, partition_by, properties, table_id)
        metadata = state.metadata
        pending = self._pending(txns, schema, files, state)
        self._check(state, pending)
        lines = [
            commit_builder.create_info(metadata, files, pending.commit_id, info, began),
            state.protocol.action(),
            metadata.action(),
            *commit_builder.add_actions(files),
        ]
        with self._outcome_unknown():
            tag = self._put(0, commit_builder.commit(lines, txns))
            landed = tag is not None or _commit_id(self.store, 0) == pending.commit_id
        if not landed:
            self._load_created()
            return None
        self._state, self._tag = replace(state, txns=dict(txns)), tag or self.store.tag(version_path(0))
        self._note()
        return commit_builder.receipt(self.store.uri, 0, files)

    def append(
        self,
        files: Sequence[StagedFile],
        txns: Mapping[str, int],
        info: Mapping[str, Any],
        *,
        schema: str | None = None,
        table_id: str | None = None,
        instead: Callable[[File], bool] | None = None,
        foreign: Mapping[str, int] | None = None,
        began: float | None = None,
    ) -> Receipt:
        """Add the files and their txns as one version; skipped if the table already has the batch's txn.

        TxnMismatch if a txn of `foreign` is at another version than that (-1: if it is there).

        The files were written for `schema` (the default is the table's) and for the table `table_id`. Active files for
        which `instead` is true are removed.
        """
        current = self.current_state()
        if table_id is not None and current.table_id != table_id:
            raise table_stop(
                TableReplaced, f"{self.store.uri} has the id {current.table_id}; the batch is for {table_id}."
            )
        pending = self._pending(txns, schema or current.schema_json, files, current)

        def step(state: TableState) -> _NextVersion | None:
            if _has_batch(state, pending, self.store.uri):
                return None
            _check_foreign(state, foreign or {}, self.store.uri)
            self._check(state, pending)
            old = None
            if instead is not None:
                old = [file for file in active_files(self.store, state.version).values() if instead(file)]
            text = commit_builder.commit(
                [
                    commit_builder.append_info(files, pending.number, pending.commit_id, info, old, began),
                    *commit_builder.removes(old or ()),
                    *commit_builder.add_actions(files),
                ],
                txns,
            )
            return _NextVersion(text, replace(state, version=state.version + 1, txns={**state.txns, **txns}))

        conflicts = self.conflicts
        version, wrote = self._commit(pending, step)
        conflicts = self.conflicts - conflicts
        return commit_builder.receipt(self.store.uri, version, files, skipped=not wrote, conflicts=conflicts)

    def evolve(self, schema: str, info: Mapping[str, Any]) -> TableState:
        """Add the columns of a schema that the table does not have, at any depth; returns the new state.

        TableChanged if another writer dropped a column meanwhile: an evolution must not add it again.
        """
        before = self.current_state().schema_json

        def merged(metadata: MetadataAction) -> MetadataAction:
            return replace(metadata, schema_json=merge_schemas(metadata.schema_json, schema))

        return self.alter(
            merged, lambda metadata: ("CHANGE COLUMNS", {"schema": metadata.schema_json}), info, schema=before
        )

    def alter(
        self,
        change: Callable[[MetadataAction], MetadataAction],
        operation: Callable[[MetadataAction], tuple[str, Mapping[str, str]]],
        info: Mapping[str, Any],
        *,
        schema: str | None = None,
        feature: str | None = None,
    ) -> TableState:
        """Change the metadata of the newest version; `operation` returns the name of the operation and its parameters.

        Files of `schema` must still fit the table afterwards. A change without effect is not committed. The protocol
        lists `feature` afterwards.
        """
        pending = _PendingCommit(str(uuid.uuid4()), schema=schema)

        def step(state: TableState) -> _NextVersion | None:
            with self._named():
                metadata = change(state.metadata)
            if metadata == state.metadata:
                return None
            protocol = protocol_for(metadata.schema_json, metadata.properties, state.protocol)
            protocol = with_feature(protocol, feature) if feature else protocol
            after = replace(state, version=state.version + 1, metadata=metadata, protocol=protocol)
            self._check(after, pending)
            upgrade = [protocol.action()] if protocol != state.protocol else []
            commit_info = commit_builder.alter_info(*operation(metadata), pending.commit_id, info)
            return _NextVersion(commit_builder.commit([commit_info, *upgrade, metadata.action()]), after)

        self._commit(pending, step)
        return self.current_state()

    def remove_missing(self, files: Sequence[File], info: Mapping[str, Any]) -> int:
        """Remove missing files from the table and return the new version. Removing a file twice does no harm."""
        pending = _PendingCommit(str(uuid.uuid4()))
        text = commit_builder.commit(
            [commit_builder.repair_info(files, pending.commit_id, info), *commit_builder.removes(files)]
        )

        def step(state: TableState) -> _NextVersion:
            self._check(state, pending)
            return _NextVersion(text, replace(state, version=state.version + 1))

        return self._commit(pending, step)[0]

    def note(self, operation: str, metrics: Mapping[str, str], info: Mapping[str, Any]) -> int:
        """Record an operation outside of the log in a version that changes nothing; returns the version."""
        pending = _PendingCommit(str(uuid.uuid4()))
        text = commit_builder.commit([commit_builder.note_info(operation, metrics, pending.commit_id, info)])
        return self._commit(pending, lambda state: _NextVersion(text, replace(state, version=state.version + 1)))[0]

    def rewrite(
        self,
        old: Sequence[File],
        new: Sequence[StagedFile],
        since: int,
        parameters: Mapping[str, str],
        info: Mapping[str, Any],
        change: commit_builder.RowChange | None = None,
        *,
        txns: Mapping[str, int] | None = None,
        began: float | None = None,
    ) -> int:
        """Replace old files, which were active in the version `since`, by new ones, and return the new version.

        Appends of other writers do not conflict. CommitConflict if another writer removed one of the old files since;
        or, if rows change, changed any rows or columns. With txns, the commit is that of a batch.
        """
        state, txns = self.current_state(), txns or {}
        pending = self._pending(txns, state.schema_json, new, state)
        changes_rows = change is not None
        text = commit_builder.commit(
            [
                commit_builder.rewrite_info(old, new, parameters, pending.commit_id, info, change, began),
                *commit_builder.removes(old, data_change=changes_rows),
                *commit_builder.add_actions(new, data_change=changes_rows),
                *commit_builder.change_data_actions(change),
            ],
            txns,
        )
        old_keys, checked = {file.key for file in old}, since

        def step(state: TableState) -> _NextVersion | None:
            nonlocal checked
            if _has_batch(state, pending, self.store.uri):
                return None
            while checked < state.version:
                checked += 1
                commit = read_commit(self.store, checked)
                if commit is None or any(file.key in old_keys for file in commit.removed):
                    raise self._conflict(checked, "removed files that were being rewritten")
                if changes_rows and commit.changes:
                    raise self._conflict(checked, "changed rows or columns meanwhile")
            self._check(state, pending)
            return _NextVersion(text, replace(state, version=state.version + 1, txns={**state.txns, **txns}))

        return self._commit(pending, step)[0]

    def _conflict(self, version: int, change: str) -> CommitConflict:
        return CommitConflict(
            f"Version {version} of {self.store.uri} {change}.", hint="Run again when the other writer has finished."
        )

    def _commit(self, pending: _PendingCommit, step: Callable[[TableState], _NextVersion | None]) -> tuple[int, bool]:
        """Put version after version until the commit is in the log: (its version, whether it is new)."""
        while True:
            next_version = step(self._verified_state(pending))
            if next_version is None:
                return self.current_state().version, False
            with self._outcome_unknown():
                tag = self._put(next_version.state.version, next_version.text)
                if tag is not None:
                    self._state, self._tag = next_version.state, tag
                    landed: int | None = next_version.state.version
                else:
                    landed = self._catch_up(pending)
                    self.conflicts += landed is None
            if landed is not None:
                self._note()
                return landed, True

    @contextmanager
    def _outcome_unknown(self) -> Iterator[None]:
        """Set `is_uncertain` if the block fails: a request that failed may have been executed, or be executed later.

        S3, for example: the client gives up after 60 seconds, and the server creates the version after 61.
        """
        self.is_uncertain = True
        yield
        self.is_uncertain = False

    def _note(self) -> None:
        """Request a checkpoint if one is due, unless the table has features that delta-rs does not support."""
        if rewrite_blocker(self.current_state()) is None:
            self.checkpoints.note(self.store, self.current_state())

    def _put(self, version: int, text: bytes) -> str | None:
        """The tag of the new version; None if the version exists: whose commit it is must be read from the log."""
        path = version_path(version)
        try:
            return self.store.put_new(path, text)
        except AlreadyExists:
            return None
        except HeadraceError:
            if not self.store.exists(path):
                raise
            return None

    def _catch_up(self, pending: _PendingCommit) -> int | None:
        """Read all new commits; returns the version of the pending commit if it is among them."""
        began, landed = self.current_state().version, None
        while (commit := self._read_next()) is not None:
            if commit.commit_id == pending.commit_id:
                landed = commit.version
            self._apply(commit, pending)
        self._refresh_tag()
        if self.current_state().version == began:
            raise StorageUnreachable(f"{self.store.uri}: version {began + 1} exists and cannot be read.")
        return landed

    def _read_next(self) -> Commit | None:
        return read_commit(self.store, self.current_state().version + 1)

    def _apply(self, commit: Commit, pending: _PendingCommit | None) -> None:
        """Apply a commit of another writer to the state; raises PipelineStopped if the pipeline must not continue."""
        before, where = self.current_state(), f"Version {commit.version} of {self.store.uri}"
        if commit.operation == RESTORE:
            raise restored(self.store.uri, commit.version)
        after = next_state(before, commit)
        if after.table_id != before.table_id:
            raise table_stop(
                TableReplaced, f"{where} changed the id of the table from {before.table_id} to {after.table_id}."
            )
        if pending is not None and pending.number is not None:
            name, _ = pending.number
            if after.txns.get(name, -1) < before.txns.get(name, -1):
                raise table_stop(TxnMismatch, f"{where} set the txn {name} back to {after.txns[name]}.")
        if commit.metadata is not None or commit.protocol is not None:
            self._check(after, pending)
        self._state = after

    def _check(self, state: TableState, pending: _PendingCommit | None) -> None:
        """Raise an error if this state does not allow the commit, unless the commit is in the log already."""
        if pending is not None and _is_in(state, pending):
            return
        if pending is not None and pending.partition_by not in (None, state.partition_by):
            raise table_stop(
                TableChanged,
                f"{self.store.uri} is partitioned by {list(state.partition_by)}, the staged files are not.",
            )
        if pending is not None and pending.schema not in (None, state.schema_json):
            with self._named():
                check_fits(pending.schema or "", state)
        if reason := self._blocker(state):
            raise DirectCommitBlocked(
                f"{self.store.uri} does not allow direct commits: {reason}.",
                hint="Run again: Spark writes the table from now on."
                if declared_writer(state) == WriterKind.SPARK
                else "Remove the feature and run again, or run `headrace resume SPEC --accept-new-table` to let Spark "
                "write the table from now on.",
            )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the table and the hint to a TableChanged that was raised for a schema."""
        try:
            yield
        except TableChanged as error:
            raise table_stop(TableChanged, f"{self.store.uri}: {error.message}") from None

    def _verified_state(self, pending: _PendingCommit | None) -> TableState:
        """The current state, after a check that the log still is the one that was read."""
        before = self.current_state()
        if self._tag is not None and self.store.tag(version_path(before.version)) == self._tag:
            return before
        after = self._load(before.txns)
        if after is None:
            raise table_stop(
                TableGone, f"{self.store.uri}: the table no longer exists; it was at version {before.version}."
            )
        self._check_continues(before, after)
        self._check(after, pending)
        self._state = after
        self._refresh_tag()
        return after

    def _check_continues(self, before: TableState, after: TableState) -> None:
        """Raise an error unless a log continues the one that was read before. Old versions may be cleaned up."""
        if after.table_id != before.table_id:
            raise table_stop(
                TableReplaced, f"The id of {self.store.uri} changed from {before.table_id} to {after.table_id}."
            )
        if after.version < before.version:
            raise set_back(self.store.uri, after.version, before.version)
        for name in self._names:
            old, new = before.txns.get(name, -1), after.txns.get(name, -1)
            if new < old:
                raise table_stop(TxnMismatch, f"{self.store.uri}: the txn {name} was {old} and is {new}.")
            if new > old:
                return  # another instance of the pipeline has followed the log meanwhile
        check_not_restored(self.store, before.version, after.version)

    def _load(self, names: Iterable[str] = ()) -> TableState | None:
        return snapshot.load_state(self.store, sorted({*self._names, *self._foreign, *names}))

    def _reload(self) -> None:
        self._state = self._load()
        self._refresh_tag()

    def _load_created(self) -> None:
        """Load a table that another writer has created since the last look.

        All its commits are newer than that look, so their txns count, even if a checkpoint has dropped them as expired:
        another instance of the pipeline may have committed the batch that this one is about to commit.
        """
        self._reload()
        if self._state is None:
            return
        txns = dict(self._state.txns)
        for commit in LogWalk(self.store, self._state.version):
            for name in self._names:
                txns[name] = max(txns.get(name, -1), commit.txns.get(name, -1))
        self._state = replace(self._state, txns={name: number for name, number in txns.items() if number >= 0})

    def _refresh_tag(self) -> None:
        self._tag = self.store.tag(version_path(self._state.version)) if self._state else None

    def _pending(
        self, txns: Mapping[str, int], schema: str, files: Sequence[StagedFile], state: TableState
    ) -> _PendingCommit:
        number = batch_number_of(txns)
        commit_id = uuid.uuid5(self._driver, f"{number[0]}={number[1]}") if number else uuid.uuid4()
        layouts = {tuple(name for name, _ in file.partition) for file in files} or {state.partition_by}
        if len(layouts) > 1:
            raise table_stop(
                TableChanged, f"{self.store.uri}: the files of a batch have {len(layouts)} different partitionings."
            )
        return _PendingCommit(str(commit_id), number, schema, layouts.pop())


def first_state(schema: str, partition_by: Sequence[str], properties: Mapping[str, str], table_id: str) -> TableState:
    """The state of a new table."""
    configuration = {**_DEFAULTS, **properties}
    metadata = MetadataAction(table_id, schema, tuple(partition_by), configuration, commit_builder.now())
    return TableState(0, metadata, protocol_for(schema, configuration))


def _is_in(state: TableState, pending: _PendingCommit) -> bool:
    return pending.number is not None and state.txns.get(pending.number[0], -1) >= pending.number[1]


def _has_batch(state: TableState, pending: _PendingCommit, uri: str) -> bool:
    """Whether the table already has this batch; Fenced if it has a later one."""
    if pending.number is None:
        return False
    name, number = pending.number
    version = state.txns.get(name)
    if version is not None and version > number:
        raise table_stop(Fenced, f"{uri} has the txn {name} = {version}; this instance is at {number}.")
    return version == number


def _check_foreign(state: TableState, foreign: Mapping[str, int], uri: str) -> None:
    """TxnMismatch if another writer has changed one of its txns."""
    for name, version in foreign.items():
        if (current := state.txns.get(name, -1)) != version:
            raise TxnMismatch(
                f"{uri}: the txn {name} of kafka-delta-ingest is {current}, and was {version} when the batch was read.",
                hint="Stop kafka-delta-ingest, then run again: the pipeline continues after its last offset.",
            )


def _commit_id(store: Store, version: int) -> str | None:
    commit = read_commit(store, version)
    return commit.commit_id if commit else None
