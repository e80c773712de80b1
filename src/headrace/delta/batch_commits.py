"""A table's parts of batches, as its own log tells them: for when the ledger cannot, or a RESTORE undid some."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.delta.files import commits
from headrace.delta.log import Commit
from headrace.errors import TableRestored
from headrace.storage.store import Store


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """What one batch did to one table."""

    version: int
    batch: int
    rows: int
    marks: Mapping[str, int]
    account: Mapping[str, Any]  # of the whole batch
    at: int  # milliseconds


def part_of(commit: Commit, mark: str) -> BatchCommit | None:
    """The part that a commit is; None when it is not one of this pipeline."""
    if mark not in commit.marks:
        return None
    info = commit.info
    account = info.get("headrace") or json.loads(info.get("userMetadata") or "{}").get("headrace") or {}
    rows = int(account.get("rows") or (info.get("operationMetrics") or {}).get("numOutputRows", 0))
    marks = {**account.get("txns", {}), **commit.marks}
    return BatchCommit(commit.version, commit.marks[mark], rows, marks, account, int(info.get("timestamp", 0)))


def newest_part(store: Store, version: int, mark: str) -> BatchCommit | None:
    """The last part at or below a version; None when the log does not tell it (any more)."""
    return next((part for commit in commits(store, version) if (part := part_of(commit, mark))), None)


def undone(store: Store, newest: int, oldest: int, mark: str, refills: Collection[int] = ()) -> list[BatchCommit]:
    """The parts that RESTOREs took away, newest first: those between `newest` and the `oldest` that is not answered.

    Two walks go back through the log: one through every version, one through those the table now stands on, which a
    RESTORE lets jump. What only the first meets is undone. An undone refill owes again what it had brought back.
    """
    found: list[BatchCommit] = []
    stands, seen, reopened = newest, newest + 1, 0
    for commit in commits(store, newest):
        part, restore, seen = part_of(commit, mark), commit.operation == "RESTORE", commit.version
        if commit.version == stands:
            if part is not None and commit.version < oldest and not reopened:
                return found
            stands = _target(store, commit) if restore else commit.version - 1
        elif part is not None:
            found.append(part)
            reopened += part.batch in refills
        if restore and reopened:
            reopened -= 1
    if stands != seen - 1 or reopened or seen > oldest:
        raise _untold(f"{store.uri} was restored to version {stands}, and its log no longer reaches back to it.")
    return found


def _target(store: Store, restore: Commit) -> int:
    version = (restore.info.get("operationParameters") or {}).get("version")
    if version in (None, "", "null"):
        raise _untold(f"Version {restore.version} of {store.uri} restored it to a time, which names no version.")
    return int(version)


def _untold(seen: str) -> TableRestored:
    return TableRestored(
        seen,
        hint="RESTORE it to the version you mean and try again, or `headrace resume SPEC --table-restored=keep` goes "
        "on without the rows that were undone.",
    )
