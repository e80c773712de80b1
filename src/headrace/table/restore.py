"""What delta-rs does to a table for us: log checkpoints, and restore where Spark need not."""

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
from headrace.delta.snapshot import open_at
from headrace.errors import (
    Conflict,
    StorageUnreachable,
    TableDamaged,
    TableError,
    TableRestored,
    UsageError,
    VersionNotFound,
)
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners, amid_others
from headrace.table.versions import Moment, open_version, resolve_version

_WITHIN = 50  # times that delta-rs itself goes past commits that came first
_GONE = re.compile(r"not found|no such file|nosuchkey|missing|invaliddatafiles", re.IGNORECASE)
_CONFLICT = re.compile(r"conflict|concurrent|commit|changed since|already exists", re.IGNORECASE)
_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did, and what it means for the pipelines that write the table."""

    version: int  # the new one
    to: int  # the old one that it holds anew
    files_restored: int
    files_removed: int
    pipelines: tuple[str, ...]
    next: str  # what a person must do for them; empty where there are none


@contextmanager
def _named(store: Store) -> Iterator[None]:
    """Errors of delta-rs under our names."""
    try:
        yield
    except CommitFailedError as error:
        raise Conflict(_first_line(error)) from error
    except DeltaError as error:
        if _GONE.search(str(error)):
            raise TableDamaged(
                f"{store.uri}: a file that its log names cannot be read: {_first_line(error)}",
                hint="`headrace table repair PATH --dry-run` tells which.",
            ) from error
        if _CONFLICT.search(str(error)):
            raise Conflict(_first_line(error)) from error
        raise TableError(f"{store.uri}: delta-rs cannot do it: {_first_line(error)}") from error
    except OSError as error:
        raise StorageUnreachable(f"{store.uri}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _said(operation: str) -> CommitProperties:
    return CommitProperties(
        custom_metadata={"headrace": {"operation": operation, "by": ENGINE}}, max_commit_retries=_WITHIN
    )


def checkpoint_table(store: Store, writers: TableOwners) -> int:
    """Write a log checkpoint of the newest version; which one that is. It commits nothing, whoever writes the table."""
    state = writers.state
    with _named(store):
        open_version(store, state.version).create_checkpoint()
    return state.version


def restore_table(
    store: Store,
    writers: TableOwners,
    version: int | None = None,
    timestamp: Moment | None = None,
    by_spark: Callable[[int], Mapping[str, Any]] | None = None,
) -> Restored:
    """Hold the rows of an older version again, as a new version; no pipeline that writes the table may run."""
    if version is None and timestamp is None:
        raise UsageError("Restored to what?", hint="Give a version or a timestamp.")
    with writers.resting("restore"):
        to = resolve_version(store, version, timestamp)
        if to == newest_version(store):
            raise UsageError(f"{store.uri} is at version {to}: there is nothing to go back to.")
        done = by_spark(to) if by_spark else amid_others(store, lambda: _restored(store, to))
        names = tuple(each.name for each in writers.pipelines)
        now = newest_version(store) or 0
    stopped = f"The pipeline {_listed(names)} stops with TableRestored at its next start. {advice(TableRestored)}"
    removed, restored = int(done.get("numRemovedFile", 0)), int(done.get("numRestoredFile", 0))
    return Restored(now, to, restored, removed, names, stopped if names else "")


def _restored(store: Store, to: int) -> Any:
    with _named(store):
        try:
            table = open_at(store, newest_version(store) or 0)
            return table.restore(to, commit_properties=_said("restore"), post_commithook_properties=_HOOKS)
        except DeltaError as error:
            if _GONE.search(str(error)):
                raise VersionNotFound(
                    f"{store.uri}: version {to} cannot be restored: files of it are gone, most likely by a vacuum.",
                    hint="Restore a newer version.",
                ) from error
            raise


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)
