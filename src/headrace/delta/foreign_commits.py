"""Commits of other writers: in which ways a version matters to the log writer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.delta.actions import Commit
from headrace.delta.restores import RESTORE
from headrace.delta.snapshot import TableState


class CommitKind(StrEnum):
    """The ways in which a version matters; it may be of several kinds."""

    TXN = "txn"  # carries a txn of ours: another driver of the pipeline
    APPEND = "append"
    REMOVE = "remove"  # removes files: compaction, delete, overwrite
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


def change_of(commit: Commit, before: TableState) -> ForeignCommit:
    """Classify one version by the state before it."""
    facts = {
        CommitKind.TXN: not commit.txns.keys().isdisjoint(before.txns),
        CommitKind.APPEND: bool(commit.add_lines and not commit.remove_lines),
        CommitKind.REMOVE: bool(commit.remove_lines),
        CommitKind.METADATA: commit.metadata is not None,
        CommitKind.PROTOCOL: commit.protocol is not None,
        CommitKind.RESTORE: commit.operation == RESTORE,
    }
    kinds = frozenset(kind for kind, applies in facts.items() if applies)
    return ForeignCommit(commit.version, kinds, commit.operation, commit.commit_id)
