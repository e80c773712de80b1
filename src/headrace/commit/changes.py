"""What a version that somebody else wrote means for us, in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.commit.parts import part_of
from headrace.storage import NotThere, Store
from headrace.tables.log import Commit, TableState, read_commit


class Kind(StrEnum):
    """The ways in which a version matters; it may be of several kinds."""

    MARKED = "marked"  # carries a mark we know: another driver of the pipeline
    APPEND = "append"
    REMOVE = "remove"  # compaction, delete, overwrite: it takes files away
    METADATA = "metadata"
    PROTOCOL = "protocol"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Change:
    """One version of the log."""

    version: int
    kinds: frozenset[Kind]
    operation: str
    commit_id: str


def change_of(commit: Commit, known: TableState) -> Change:
    """Classify one version against the state before it."""
    facts = {
        Kind.MARKED: not commit.marks.keys().isdisjoint(known.marks),
        Kind.APPEND: commit.added > 0 and not commit.removed,
        Kind.REMOVE: commit.removed > 0,
        Kind.METADATA: commit.metadata is not None,
        Kind.PROTOCOL: commit.protocol is not None,
        Kind.RESTORE: commit.operation == "RESTORE",
    }
    kinds = frozenset(kind for kind, true in facts.items() if true)
    return Change(commit.version, kinds, commit.operation, commit.commit_id)


def restored_since(store: Store, state: TableState, *marks: str, look_back: int = 200) -> int | None:
    """The newest version that is a RESTORE which our last commit did not know of; None when there is none."""
    for version in range(state.version, max(-1, state.version - look_back), -1):
        try:
            commit = read_commit(store, version)
        except NotThere:  # cleaned away, so older than any log we need
            return None
        if commit.operation == "RESTORE":
            return version
        if ours := next((part for mark in marks if (part := part_of(commit, mark))), None):
            return restored_between(store, ours.account.get("seen", version - 1), version)
    return None


def restored_between(store: Store, seen: int, version: int) -> int | None:
    """The newest version that is a RESTORE, after one that was seen and before another."""
    for each in range(version - 1, seen, -1):
        try:
            if read_commit(store, each).operation == "RESTORE":
                return each
        except NotThere:
            return None
    return None
