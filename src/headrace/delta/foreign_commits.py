"""What a version that somebody else wrote means for us, in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.delta.batch_commits import part_of
from headrace.delta.files import commits
from headrace.delta.log import Commit, TableState
from headrace.storage.store import Store


class CommitKind(StrEnum):
    """The ways in which a version matters; it may be of several kinds."""

    MARKED = "marked"  # carries a mark we know: another driver of the pipeline
    APPEND = "append"
    REMOVE = "remove"  # compaction, delete, overwrite: it takes files away
    METADATA = "metadata"
    PROTOCOL = "protocol"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """One version of the log."""

    version: int
    kinds: frozenset[CommitKind]
    operation: str
    commit_id: str


def change_of(commit: Commit, known: TableState) -> ForeignCommit:
    """Classify one version against the state before it."""
    facts = {
        CommitKind.MARKED: not commit.marks.keys().isdisjoint(known.marks),
        CommitKind.APPEND: commit.added > 0 and not commit.removed,
        CommitKind.REMOVE: commit.removed > 0,
        CommitKind.METADATA: commit.metadata is not None,
        CommitKind.PROTOCOL: commit.protocol is not None,
        CommitKind.RESTORE: commit.operation == "RESTORE",
    }
    kinds = frozenset(kind for kind, true in facts.items() if true)
    return ForeignCommit(commit.version, kinds, commit.operation, commit.commit_id)


@dataclass(frozen=True, slots=True)
class Restores:
    """What a log tells of RESTOREs since the last commit of ours."""

    newest: int | None = None  # the version of the newest one
    reached: bool = True  # whether the log reaches back far enough to tell


def restored_since(store: Store, state: TableState, *marks: str, seen: int = -1) -> Restores:
    """The newest RESTORE that our last commit did not know of, however far back; `seen`: a version looked at before."""
    reached = state.version
    for commit in commits(store, state.version, seen):
        reached = commit.version - 1
        if commit.operation == "RESTORE":
            return Restores(commit.version)
        if ours := next((part for mark in marks if (part := part_of(commit, mark))), None):
            return restored_between(store, max(seen, ours.account.get("read_version", reached)), commit.version)
    return Restores(reached=reached <= seen)


def restored_between(store: Store, seen: int, version: int) -> Restores:
    """The newest version that is a RESTORE, after one that was seen and before another."""
    reached = version - 1
    for commit in commits(store, version - 1, seen):
        if commit.operation == "RESTORE":
            return Restores(commit.version)
        reached = commit.version - 1
    return Restores(reached=reached <= seen)
