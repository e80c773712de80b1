"""The commits of batches: which batch of a pipeline a commit of a table belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.delta.actions import Commit
from headrace.delta.log import LogWalk
from headrace.storage.store import Store


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """The commit of one batch to one table."""

    version: int
    batch: int
    rows: int
    txns: Mapping[str, int]
    account: Mapping[str, Any]  # of the whole batch
    at: int  # milliseconds


def batch_commit(commit: Commit, txn: str) -> BatchCommit | None:
    """A commit as that of a batch; None if it does not carry the txn of the pipeline."""
    if txn not in commit.txns:
        return None
    account = commit.account
    rows = int(account.get("rows") or (commit.info.get("operationMetrics") or {}).get("numOutputRows", 0))
    txns = {**account.get("txns", {}), **commit.txns}
    return BatchCommit(commit.version, commit.txns[txn], rows, txns, account, commit.timestamp)


def newest_part(store: Store, version: int, txn: str) -> BatchCommit | None:
    """The last commit of a batch up to a version; None if the log has none, or no longer has it.

    None is not an answer about the table: a table whose state carries the txn has had such a commit.
    """
    return next((part for commit in LogWalk(store, version) if (part := batch_commit(commit, txn))), None)
