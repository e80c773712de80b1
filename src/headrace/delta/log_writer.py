"""The log writer: commits to a Delta table by putting the next version's JSON if absent, and reads only new commits.

A blind append needs no list of files, only the version, the metadata, the protocol and our txns; so the cost of a
commit does not grow with the table.

Put-if-absent is the compare-and-swap of a Delta log: of two writers at version 7, one creates 8.json and the other gets
"already exists", reads 8.json, checks that its commit still applies and puts 9.json. An error of a put does not tell
whether the file was created (the response may be lost); so the writer looks for its own commit id in the log.
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
from headrace.delta.features import append_blocker, protocol_for, rewrite_blocker
from headrace.delta.foreign_commits import ForeignCommit, change_of
from headrace.delta.log import read_commit, version_path
from headrace.delta.log_errors import set_back, table_stop, unreached
from headrace.delta.receipt import Receipt
from headrace.delta.restores import restored_between
from headrace.delta.snapshot import TableState, active_files, next_state
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_number_of
from headrace.errors import (
    Conflict,
    DirectCommitBlocked,
    Fenced,
    HeadraceError,
    StorageUnreachable,
    TableChanged,
    TableGone,
    TableReplaced,
    TableRestored,
    TxnMismatch,
)
from headrace.storage.base import AlreadyThere
from headrace.storage.store import Store

Objection = Callable[[TableState], str | None]
_DEFAULTS = {"delta.checkpointInterval": str(INTERVAL)}


@dataclass(frozen=True, slots=True)
class _Wish:
    """A commit to be made; its id is the same in every retry."""

    commit_id: str
    number: tuple[str, int] | None = None  # the txn that numbers it
    schema: str | None = None  # its files were written for this one
    partition_by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """The next version: its content, and the state it leads to."""

    text: bytes
    after: TableState


class LogWriter:
    """Follows one table's log and appends to it; for one thread at a time."""

    def __init__(self, store: Store, names: Sequence[str], objection: Objection = append_blocker) -> None:
        self.store = store
        self._names = names
        self._objection = objection
        self._state: TableState | None = None
        self._tag: str | None = None  # of the state's JSON: tells the log we know from one made or written over anew
        self._driver = uuid.uuid4()
        self.checkpoints = SHARED

    @classmethod
    def open(cls, store: Store, txns: Iterable[str] = (), objection: Objection = append_blocker) -> LogWriter:
        """Begin at the newest version, or before the first one where there is no table.

        `objection` says why a table of some state may not be written; where it lets tables pass that Spark writes,
        nobody else may write them meanwhile.
        """
        tail = cls(store, tuple(txns), objection)
        tail._reload()
        return tail

    @property
    def state(self) -> TableState | None:
        """The table as far as it was followed; None while there is none."""
        return self._state

    def known(self) -> TableState:
        """The state of a table that must exist; TableGone when it does not."""
        if self._state is None:
            raise table_stop(TableGone, f"{self.store.uri}: there is no table.")
        return self._state

    def follow(self) -> list[ForeignCommit]:
        """Read what is new and go along with it; what no batch may go along with is raised."""
        if self._state is None:
            self._reload()
            return []
        self._still_there(None)
        changes: list[ForeignCommit] = []
        while (commit := self._read_next()) is not None:
            changes.append(change_of(commit, self.known()))
            self._go_along(commit, None)
        self._remember()
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
        """Make the table with its first rows in one commit; None when somebody else was first: then append.

        Here and below, `began` is when an operation began that tells how long it took (`time.monotonic`).
        """
        if self._state is not None:
            return None
        state = first_state(schema, partition_by, properties, table_id)
        metadata = state.metadata
        wish = self._wish(txns, schema, files, state)
        self._check(state, wish)
        said = commit_builder.created(metadata, files, wish.commit_id, info, began)
        lines = [
            said,
            state.protocol.action(),
            metadata.action(),
            *commit_builder.add_actions(files),
            *commit_builder.txns(txns),
        ]
        tag = self._put(0, commit_builder.commit(lines))
        if tag is None and _commit_id(self.store, 0) != wish.commit_id:
            self._reload()
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
        began: float | None = None,
    ) -> Receipt:
        """Add the files and their txns as one version; skipped when the table already has the batch's txn.

        `schema` is what the files were written for (the table's own unless given), `table_id` the table they are for,
        `instead` which of the files that are there they replace.
        """
        known = self.known()
        if table_id is not None and known.table_id != table_id:
            raise table_stop(
                TableReplaced, f"{self.store.uri} has the id {known.table_id}; the batch is for {table_id}."
            )
        wish = self._wish(txns, schema or known.schema_json, files, known)

        def step(state: TableState) -> _Step | None:
            if _is_marked(state, wish, self.store.uri):
                return None
            self._check(state, wish)
            old = (
                []
                if instead is None
                else [file for file in active_files(self.store, state.version).values() if instead(file)]
            )
            replaced = None if instead is None else old
            said = commit_builder.appended(files, wish.number, wish.commit_id, info, replaced, began)
            text = commit_builder.commit(
                [said, *commit_builder.removes(old), *commit_builder.add_actions(files), *commit_builder.txns(txns)]
            )
            return _Step(text, replace(state, version=state.version + 1, txns={**state.txns, **txns}))

        version, wrote = self._commit(wish, step)
        return commit_builder.receipt(self.store.uri, version, files, skipped=not wrote)

    def evolve(self, schema: str, info: Mapping[str, Any]) -> TableState:
        """Add the columns that this schema has and the table lacks, at any depth; answers the state that has them.

        Only what we have not seen in it: a column that others took away meanwhile must not come back by the way.
        """
        seen = self.known().schema_json

        def merged(metadata: MetadataAction) -> MetadataAction:
            return replace(metadata, schema_json=merge_schemas(metadata.schema_json, schema))

        return self.alter(
            merged, lambda metadata: ("CHANGE COLUMNS", {"schema": metadata.schema_json}), info, schema=seen
        )

    def alter(
        self,
        change: Callable[[MetadataAction], MetadataAction],
        said: Callable[[MetadataAction], tuple[str, Mapping[str, str]]],
        info: Mapping[str, Any],
        *,
        schema: str | None = None,
    ) -> TableState:
        """Change the metadata, on whatever version is the newest; `said` names the operation and its parameters.

        `schema` is what must still fit the table afterwards. What changes nothing is not committed.
        """
        wish = _Wish(str(uuid.uuid4()), schema=schema)

        def step(state: TableState) -> _Step | None:
            with self._named():
                metadata = change(state.metadata)
            if metadata == state.metadata:
                return None
            protocol = protocol_for(metadata.schema_json, metadata.properties, state.protocol)
            after = replace(state, version=state.version + 1, metadata=metadata, protocol=protocol)
            self._check(after, wish)
            upgrade = [protocol.action()] if protocol != state.protocol else []
            told = commit_builder.altered(*said(metadata), wish.commit_id, info)
            return _Step(commit_builder.commit([told, *upgrade, metadata.action()]), after)

        self._commit(wish, step)
        return self.known()

    def forget(self, files: Sequence[File], info: Mapping[str, Any]) -> int:
        """Take files that are gone out of the table; the version that does. To take one out twice does no harm."""
        wish = _Wish(str(uuid.uuid4()))
        text = commit_builder.commit(
            [commit_builder.forgotten(files, wish.commit_id, info), *commit_builder.removes(files)]
        )

        def step(state: TableState) -> _Step:
            self._check(state, wish)
            return _Step(text, replace(state, version=state.version + 1))

        return self._commit(wish, step)[0]

    def note(self, operation: str, metrics: Mapping[str, str], info: Mapping[str, Any]) -> int:
        """Say in the log what was done beside it, in a version that changes nothing; which one that is."""
        wish = _Wish(str(uuid.uuid4()))
        text = commit_builder.commit([commit_builder.noted(operation, metrics, wish.commit_id, info)])
        return self._commit(wish, lambda state: _Step(text, replace(state, version=state.version + 1)))[0]

    def rewrite(
        self,
        old: Sequence[File],
        new: Sequence[StagedFile],
        since: int,
        said: Mapping[str, str],
        info: Mapping[str, Any],
        change: commit_builder.RowChange | None = None,
        *,
        txns: Mapping[str, int] | None = None,
        began: float | None = None,
    ) -> int:
        """Let new files hold the rows of old ones, which were there in the version `since`; the version that does.

        Appends of others do not matter. Conflict where others have taken one of the old files away meanwhile; and,
        where rows change, if others have changed any. With txns it is a batch's part.
        """
        state, txns = self.known(), txns or {}
        wish = self._wish(txns, state.schema_json, new, state)
        told, changes = (
            commit_builder.rewritten(old, new, said, wish.commit_id, info, change, began),
            change is not None,
        )
        moved = (
            *commit_builder.removes(old, lost=changes),
            *commit_builder.add_actions(new, new=changes),
            *commit_builder.fed(change),
        )
        text = commit_builder.commit([told, *moved, *commit_builder.txns(txns)])
        mine, looked = {file.key for file in old}, since

        def step(state: TableState) -> _Step | None:
            nonlocal looked
            if _is_marked(state, wish, self.store.uri):
                return None
            while looked < state.version:
                looked += 1
                commit = read_commit(self.store, looked)
                if commit is None or any(file.key in mine for file in commit.removed):
                    raise Conflict(f"Version {looked} of {self.store.uri} took away files that were to be rewritten.")
                if changes and commit.changes:
                    raise Conflict(f"Version {looked} of {self.store.uri} changed rows or columns meanwhile.")
            self._check(state, wish)
            return _Step(text, replace(state, version=state.version + 1, txns={**state.txns, **txns}))

        return self._commit(wish, step)[0]

    def _commit(self, wish: _Wish, step: Callable[[TableState], _Step | None]) -> tuple[int, bool]:
        """Put version after version until the wish is in the log: (its version, whether we wrote it)."""
        while True:
            planned = step(self._still_there(wish))
            if planned is None:
                return self.known().version, False
            tag = self._put(planned.after.version, planned.text)
            if tag is not None:
                self._state, self._tag = planned.after, tag
                self._note()
                return planned.after.version, True
            landed = self._catch_up(wish)
            if landed is not None:
                self._note()
                return landed, True

    def _note(self) -> None:
        """Ask for a log checkpoint when one is due, unless the table has features that delta-rs does not know."""
        if rewrite_blocker(self.known()) is None:
            self.checkpoints.note(self.store, self.known())

    def _put(self, version: int, text: bytes) -> str | None:
        """The tag of the version we put, or None when the log has that version: ours or another's, the log tells."""
        path = version_path(version)
        try:
            return self.store.put_new(path, text)
        except AlreadyThere:
            return None
        except HeadraceError:
            if not self.store.exists(path):
                raise
            return None

    def _catch_up(self, wish: _Wish) -> int | None:
        """Read all that is new; the version in which our wish landed, if it did."""
        began, landed = self.known().version, None
        while (commit := self._read_next()) is not None:
            if commit.commit_id == wish.commit_id:
                landed = commit.version
            self._go_along(commit, wish)
        self._remember()
        if self.known().version == began:
            raise StorageUnreachable(f"{self.store.uri}: version {began + 1} is said to be there and cannot be read.")
        return landed

    def _read_next(self) -> Commit | None:
        return read_commit(self.store, self.known().version + 1)

    def _go_along(self, commit: Commit, wish: _Wish | None) -> None:
        """Take one version of others into the state, or raise what it means for us."""
        known, where = self.known(), f"Version {commit.version} of {self.store.uri}"
        if commit.operation == "RESTORE":
            raise table_stop(TableRestored, f"{where} restored the table to an older one.")
        after = next_state(known, commit)
        if after.table_id != known.table_id:
            raise table_stop(
                TableReplaced, f"{where} gave the table the id {after.table_id} in place of {known.table_id}."
            )
        if wish is not None and wish.number is not None:
            name, _ = wish.number
            if after.txns.get(name, -1) < known.txns.get(name, -1):
                raise table_stop(TxnMismatch, f"{where} set the txn {name} back to {after.txns[name]}.")
        if commit.metadata is not None or commit.protocol is not None:
            self._check(after, wish)
        self._state = after

    def _check(self, state: TableState, wish: _Wish | None) -> None:
        """Whether the wish may go into a table of this state; one that is in it already may stay."""
        if wish is not None and _is_in(state, wish):
            return
        if wish is not None and wish.partition_by not in (None, state.partition_by):
            raise table_stop(
                TableChanged, f"{self.store.uri} is partitioned by {list(state.partition_by)}; the files are not."
            )
        if wish is not None and wish.schema not in (None, state.schema_json):
            with self._named():
                check_fits(wish.schema or "", state)
        if reason := self._objection(state):
            raise DirectCommitBlocked(
                f"{self.store.uri} cannot be written by its log: {reason}.",
                hint="Take the feature away and run again; or `headrace resume SPEC --accept-new-table` leaves the "
                "table to Spark from now on.",
            )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Schemas do not know whose they are; whoever is stopped must."""
        try:
            yield
        except TableChanged as problem:
            raise table_stop(TableChanged, f"{self.store.uri}: {problem.message}") from None

    def _still_there(self, wish: _Wish | None) -> TableState:
        """The state, once it is sure that the log still is the one we know up to our version."""
        known = self.known()
        if self._tag is not None and self.store.tag(version_path(known.version)) == self._tag:
            return known
        found = self._load(known.txns)
        if found is None:
            raise table_stop(TableGone, f"{self.store.uri}: the table is gone; it was at version {known.version}.")
        self._compare(known, found)
        self._check(found, wish)
        self._state = found
        self._remember()
        return found

    def _compare(self, known: TableState, found: TableState) -> None:
        """Whether a log read anew continues the one we knew (old versions may be cleaned away)."""
        if found.table_id != known.table_id:
            raise table_stop(
                TableReplaced, f"{self.store.uri} has the id {found.table_id} in place of {known.table_id}."
            )
        if found.version < known.version:
            raise set_back(self.store.uri, found.version, known.version)
        for name in self._names:
            was, seen = known.txns.get(name, -1), found.txns.get(name, -1)
            if seen < was:
                raise table_stop(TxnMismatch, f"{self.store.uri}: {name} was {was} and is {seen}: a version was lost.")
            if seen > was:
                return  # another driver of the pipeline has followed the log meanwhile
        self._not_restored(known.version, found.version)

    def _not_restored(self, known: int, found: int) -> None:
        """TableRestored where a version after the one we knew is a RESTORE, or may have been one."""
        restores = restored_between(self.store, known, found + 1)
        if restores.newest is not None:
            where = f"Version {restores.newest} of {self.store.uri}"
            raise table_stop(TableRestored, f"{where} restored the table to an older one.")
        if not restores.reached:
            raise unreached(self.store.uri, known)

    def _load(self, names: Iterable[str] = ()) -> TableState | None:
        return snapshot.load_state(self.store, sorted({*self._names, *names}))

    def _reload(self) -> None:
        self._state = self._load()
        self._remember()

    def _remember(self) -> None:
        self._tag = self.store.tag(version_path(self._state.version)) if self._state else None

    def _wish(self, txns: Mapping[str, int], schema: str, files: Sequence[StagedFile], state: TableState) -> _Wish:
        number = batch_number_of(txns)
        commit_id = uuid.uuid5(self._driver, f"{number[0]}={number[1]}") if number else uuid.uuid4()
        layouts = {tuple(name for name, _ in file.partition) for file in files} or {state.partition_by}
        if len(layouts) > 1:
            raise table_stop(
                TableChanged, f"{self.store.uri}: files of one batch are partitioned in {len(layouts)} ways."
            )
        return _Wish(str(commit_id), number, schema, layouts.pop())


def first_state(schema: str, partition_by: Sequence[str], properties: Mapping[str, str], table_id: str) -> TableState:
    """What a table begins with."""
    wanted = {**_DEFAULTS, **properties}
    metadata = MetadataAction(table_id, schema, tuple(partition_by), wanted, commit_builder.now())
    return TableState(0, metadata, protocol_for(schema, wanted))


def _is_in(state: TableState, wish: _Wish) -> bool:
    return wish.number is not None and state.txns.get(wish.number[0], -1) >= wish.number[1]


def _is_marked(state: TableState, wish: _Wish, uri: str) -> bool:
    """Whether the table already has this batch; Fenced when it has a later one."""
    if wish.number is None:
        return False
    name, number = wish.number
    mark = state.txns.get(name)
    if mark is not None and mark > number:
        raise table_stop(
            Fenced, f"{uri} is at {name} = {mark}; this driver is still at {number}: another one has gone on."
        )
    return mark == number


def _commit_id(store: Store, version: int) -> str | None:
    commit = read_commit(store, version)
    return commit.commit_id if commit else None
