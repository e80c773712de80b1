"""Restore an older version, and write log checkpoints, with delta-rs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deltalake import CommitProperties, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from headrace.delta.commit_builder import ENGINE
from headrace.delta.log import newest_version
from headrace.delta.log_errors import advice
from headrace.delta.snapshot import TableState, open_at
from headrace.errors import (
    CommitConflict,
    StorageUnreachable,
    TableDamaged,
    TableError,
    TableRestored,
    UsageError,
    VersionNotFound,
    first_line,
)
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners, retry_conflicts
from headrace.table.versions import Moment, open_version, resolve_version

_COMMIT_RETRIES = 50  # by delta-rs, after commits of other writers
_MISSING = re.compile(r"not found|no such file|nosuchkey|missing|invaliddatafiles", re.IGNORECASE)
_CONFLICT = re.compile(r"conflict|concurrent|commit|changed since|already exists", re.IGNORECASE)
_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore."""

    version: int  # the new version
    to: int  # the old version whose rows it has
    files_restored: int
    files_removed: int
    pipelines: tuple[str, ...]  # that write the table
    next: str  # how to continue them; empty if there are none


@contextmanager
def _delta_errors(store: Store) -> Iterator[None]:
    """Raise errors of delta-rs as errors of Headrace."""
    try:
        yield
    except CommitFailedError as error:
        raise CommitConflict(first_line(error)) from error
    except DeltaError as error:
        if _MISSING.search(str(error)):
            raise TableDamaged(
                f"{store.uri}: a file in the log cannot be read: {first_line(error)}",
                hint="Run `headrace table repair PATH --dry-run` to list the damaged files.",
            ) from error
        if _CONFLICT.search(str(error)):
            raise CommitConflict(first_line(error)) from error
        raise TableError(f"{store.uri}: delta-rs failed: {first_line(error)}") from error
    except OSError as error:
        raise StorageUnreachable(f"{store.uri}: {first_line(error)}") from error


def write_checkpoint(store: Store, owners: TableOwners) -> int:
    """Write a log checkpoint of the newest version, and return the version. It is safe for every kind of writer."""
    version = owners.state.version
    with _delta_errors(store):
        open_version(store, version).create_checkpoint()
    return version


def restore_table(
    store: Store,
    owners: TableOwners,
    version: int | None = None,
    timestamp: Moment | None = None,
    by_spark: Callable[[int], Mapping[str, Any]] | None = None,
) -> Restored:
    """Restore the rows of an older version as a new version. The pipelines that write the table must be stopped."""
    if version is None and timestamp is None:
        raise UsageError("Specify a version or a timestamp.")
    with owners.exclusive("restore"):
        table_id = owners.state.table_id
        to = resolve_version(store, version, timestamp)
        if to == newest_version(store):
            raise UsageError(f"{store.uri} is already at version {to}.", hint="Specify an older version.")
        metrics = (
            by_spark(to) if by_spark else retry_conflicts(store, table_id, lambda state: _restore(store, state, to))
        )
        now = newest_version(store) or 0
    names = tuple(pipeline.name for pipeline in owners.pipelines)
    stopped = ", ".join(f"'{name}'" for name in names)
    advice_text = f"The pipeline {stopped} stops with TableRestored at its next start. {advice(TableRestored)}"
    removed, restored = int(metrics.get("numRemovedFile", 0)), int(metrics.get("numRestoredFile", 0))
    return Restored(now, to, restored, removed, names, advice_text if names else "")


def _restore(store: Store, state: TableState, to: int) -> Any:
    properties = CommitProperties(
        custom_metadata={"headrace": {"operation": "restore", "by": ENGINE}}, max_commit_retries=_COMMIT_RETRIES
    )
    with _delta_errors(store):
        try:
            table = open_at(store, state.version)
            return table.restore(to, commit_properties=properties, post_commithook_properties=_HOOKS)
        except DeltaError as error:
            if _MISSING.search(str(error)):
                raise cannot_restore(store, to) from error
            raise


def cannot_restore(store: Store, version: int) -> VersionNotFound:
    """The error for a version whose files were deleted."""
    return VersionNotFound(
        f"{store.uri}: version {version} cannot be restored: some of its data files are missing, most likely deleted "
        "by a vacuum.",
        hint="Restore a newer version.",
    )
