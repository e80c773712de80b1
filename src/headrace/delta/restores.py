"""RESTOREs of a table: whether there was one since a version, and which batches it undid."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headrace.delta.actions import Commit
from headrace.delta.batch_commits import BatchCommit, batch_commit
from headrace.delta.log import LogWalk
from headrace.delta.log_errors import restored, unreached
from headrace.delta.snapshot import TableState
from headrace.errors import TableRestored
from headrace.storage.store import Store

RESTORE = "RESTORE"


@dataclass(frozen=True, slots=True)
class Restores:
    """The RESTOREs since a version."""

    newest: int | None = None  # the version of the newest one
    reached: bool = True  # False if the log was cleaned up: there may have been one


def restored_since(store: Store, state: TableState, *txns: str, checked: int = -1) -> Restores:
    """The newest RESTORE since the state that the last commit with one of these txns was based on.

    Versions up to `checked` were checked before.
    """
    walk = LogWalk(store, state.version, checked)
    for commit in walk:
        if commit.operation == RESTORE:
            return Restores(commit.version)
        # An account that cannot be read does not tell what its writer knew: an older commit must.
        part = next((part for txn in txns if (part := batch_commit(commit, txn))), None)
        if part is not None and part.account:
            read_version = part.account.get("read_version", walk.oldest - 1)
            return restored_between(store, max(checked, read_version), commit.version)
    return Restores(reached=walk.complete)


def restored_between(store: Store, checked: int, version: int) -> Restores:
    """The newest RESTORE after one version and before another."""
    walk = LogWalk(store, version - 1, checked)
    for commit in walk:
        if commit.operation == RESTORE:
            return Restores(commit.version)
    return Restores(reached=walk.complete)


def check_not_restored(store: Store, checked: int, newest: int) -> None:
    """TableRestored if a version after `checked` is a RESTORE, or may have been one that the log no longer has."""
    restores = restored_between(store, checked, newest + 1)
    if restores.newest is not None:
        raise restored(store.uri, restores.newest)
    if not restores.reached:
        raise unreached(store.uri, checked)


def undone(store: Store, newest: int, oldest: int, txn: str, refills: Collection[int] = ()) -> list[BatchCommit]:
    """The batches that RESTOREs undid, newest first: those between `newest` and the `oldest` that is not answered.

    One walk visits every version; `current` is the version that the table consists of at that point, which a RESTORE
    moves down. Batches at versions above it are undone. An example, with a RESTORE to version 1 at version 4:

        version  0  1  2  3  4 (RESTORE to 1)  5
        current  0  1  1  1  4                 5      versions 2 and 3 are undone

    An undone refill owes again the rows that it had restored.
    """
    parts: list[BatchCommit] = []
    current, reopened, walk = newest, 0, LogWalk(store, newest)
    for commit in walk:
        part, is_restore = batch_commit(commit, txn), commit.operation == RESTORE
        if commit.version == current:
            if part is not None and commit.version < oldest and not reopened:
                return parts
            current = _target(store, commit) if is_restore else commit.version - 1
        elif part is not None:
            parts.append(part)
            reopened += part.batch in refills
        if is_restore and reopened:
            reopened -= 1
    if current != walk.oldest - 1 or reopened or walk.oldest > oldest:
        raise _unknown(f"{store.uri} was restored to version {current}, and its log no longer reaches back to it.")
    return parts


def _target(store: Store, restore: Commit) -> int:
    version = (restore.info.get("operationParameters") or {}).get("version")
    if version in (None, "", "null"):
        raise _unknown(f"Version {restore.version} of {store.uri} restored it to a timestamp, not to a version.")
    return int(version)


def _unknown(message: str) -> TableRestored:
    return TableRestored(
        message,
        hint="RESTORE the table to a version and try again, or run `headrace resume SPEC "
        "--table-restored=keep` to continue without the rows that were undone.",
    )
