"""The newest state of a table, followed from operation to operation: only new commits are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.delta.log import newest_version, read_commit, version_path
from headrace.delta.log_writer import LogWriter
from headrace.delta.snapshot import MAX_COMMITS, TableState, all_txns, load_state, next_state
from headrace.storage.store import Store


@dataclass(frozen=True, slots=True)
class _Seen:
    """A version of the table as it was read."""

    state: TableState
    tag: str | None  # of the version's JSON: another one if the log was deleted and created again
    loaded: int  # the last version that was loaded as a whole
    txns: Mapping[str, int] | None = None  # of all writers; None until they are asked for


class FollowedLog:
    """The log of one table. Several threads may use it: what was read is replaced as a whole, never changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: _Seen | None = None

    def newest(self) -> TableState | None:
        """The newest state; None if there is no table, TableFeature if delta-rs cannot read it."""
        seen = self._read()
        return seen.state if seen else None

    def txns(self, state: TableState) -> Mapping[str, int]:
        """Every txn of a state that `newest` has returned, of any writer."""
        seen = self._seen
        if seen is None or seen.state is not state:  # another thread has read on
            return all_txns(self._store, state.version)
        if seen.txns is None:
            self._seen = seen = replace(seen, txns=all_txns(self._store, state.version))
        return seen.txns or {}

    def writer(self) -> LogWriter:
        """A writer at the newest version, for commits without txns."""
        seen = self._read()
        return LogWriter.at(self._store, seen.state if seen else None, seen.tag if seen else None)

    def _read(self) -> _Seen | None:
        before = self._seen
        self._seen = seen = (self._followed(before) if before else None) or self._loaded()
        return seen

    def _followed(self, seen: _Seen) -> _Seen | None:
        """The newest version, by the commits since the last one; None if the table must be loaded again.

        That is so if the log is not the same, columns or properties changed, or after many commits: a log checkpoint
        may have dropped txns that have expired.
        """
        if seen.tag is None or self._tag(seen.state.version) != seen.tag:
            return None
        while (tag := self._tag(seen.state.version + 1)) is not None:
            commit = read_commit(self._store, seen.state.version + 1)
            if commit is None or commit.metadata or commit.protocol or commit.version > seen.loaded + MAX_COMMITS:
                return None
            txns = None if seen.txns is None else {**seen.txns, **commit.txns}
            seen = _Seen(next_state(seen.state, commit), tag, seen.loaded, txns)
        return seen

    def _loaded(self) -> _Seen | None:
        version = newest_version(self._store)
        if version is None:
            return None
        tag = self._tag(version)  # before the state: a log that is replaced meanwhile has another one
        state = load_state(self._store, version=version)
        return _Seen(state, tag, version) if state else None

    def _tag(self, version: int) -> str | None:
        return self._store.tag(version_path(version))
