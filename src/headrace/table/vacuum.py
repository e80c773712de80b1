"""Delete files that no version within the retention uses, and files that failed writers left behind.

The vacuum of delta-rs does not know the intents of pipelines: files of an open batch are in no commit yet, and a
pipeline that is started again after weeks commits them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from headrace.delta.commit_builder import CHANGE_DATA
from headrace.delta.log import LOG, LogWalk, last_checkpoint, proved_time
from headrace.delta.properties import interval_of
from headrace.delta.snapshot import TableState, active_files, removed_paths
from headrace.errors import ClockSkew, UsageError
from headrace.ledger.ledger import Ledger
from headrace.storage.base import ObjectMeta
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners

RETAIN = timedelta(hours=168)
_RETENTION = "delta.deletedFileRetentionDuration"
_CLOCK_SKEW = timedelta(minutes=5)
_STAGING_SECONDS = 3600.0  # a younger file may still be written
_STAGED = re.compile(r"part-(replay-)?\d{8}-")  # by a batch or a replay
_FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Files that no version within the retention uses; deleted unless it was a dry run."""

    files: tuple[str, ...]
    bytes: int
    retain: timedelta
    dry_run: bool


def vacuum(
    store: Store, owners: TableOwners, retain: timedelta = RETAIN, *, dry_run: bool = False, force: bool = False
) -> Vacuumed:
    """Delete unused files. Below the table's retention it requires `force` and stopped pipelines.

    The age of a file counts up to a time that the log proves to have passed; with `force`, up to this machine's clock.
    A vacuum commits nothing, so it is safe for every kind of writer.
    """
    minimum = retention(owners.state)
    if retain < minimum and not force:
        raise UsageError(
            f"The retention of {store.uri} is {_hours(minimum)} h. A vacuum with {_hours(retain)} h deletes files that "
            "readers of older versions and uncommitted writers use.",
            hint="Specify a longer `retain`; or `force` if nobody reads or writes the table.",
        )
    now = datetime.now(UTC) if force else _proved_time(store, owners, retain)
    if dry_run:
        return unused_files(store, owners, retain, now)
    with owners.exclusive("a vacuum below the retention") if retain < minimum else nullcontext():
        plan = unused_files(store, owners, retain, now)
        store.delete(plan.files)
    return replace(plan, dry_run=False)


def _proved_time(store: Store, owners: TableOwners, retain: timedelta) -> datetime:
    """A time that has passed by the log of the table or the ledger of a pipeline, whatever this clock says.

    ClockSkew if this machine's clock is before the newest commit.
    """
    clock, version = datetime.now(UTC), owners.state.version
    last = proved_time(store, _FOREVER, timedelta(0), version)
    if last > clock + _CLOCK_SKEW:
        now, committed = (at.isoformat(timespec="seconds") for at in (clock, last))
        raise ClockSkew(
            f"Cannot determine the age of files: the clock of this machine says {now}, but version {version} of "
            f"{store.uri} was committed at {committed}.",
            hint="Set the clock. If the time of the commit is wrong, use `force`: then the local clock is used.",
        )
    ledgers = [pipeline.state.child(Ledger.folder) for pipeline in owners.pipelines if pipeline.state]
    return max(proved_time(log, clock, retain) for log in (store, *ledgers))


def retention(state: TableState) -> timedelta:
    """How long a table keeps unused files; TableError if its property is not a valid interval."""
    interval = interval_of(state, _RETENTION)
    return RETAIN if interval is None else interval


def _hours(age: timedelta) -> str:
    return f"{age.total_seconds() / 3600:g}"


def unused_files(store: Store, owners: TableOwners, retain: timedelta, now: datetime) -> Vacuumed:
    """The files that a vacuum would delete at this time."""
    state, until = owners.state, now.timestamp() - retain.total_seconds()
    listing = list(store.list())
    used = _used(store, state, int(until * 1000)) | owners.staged_files().keys()
    unused = [item for item in _data_files(listing, state) if item.modified < until and item.path not in used]
    return Vacuumed(tuple(item.path for item in unused), sum(item.size for item in unused), retain, dry_run=True)


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files that a failed writer staged: no version of the table uses them."""

    files: tuple[str, ...]
    bytes: int


def orphans(store: Store, owners: TableOwners, now: float) -> Orphans:
    """Find files of failed writers; a vacuum deletes them when they are older than the retention.

    Files of the last hour may still be written, except those of a batch while no pipeline of the table is running. It
    costs a listing, a log checkpoint and the commits since.
    """
    state = owners.state
    used = _used(store, state, 0, checkpoint_only=True) | owners.staged_files().keys()
    running = any(pipeline.holder() for pipeline in owners.pipelines)
    unused = [item for item in _data_files(list(store.list()), state) if item.path not in used]
    return orphans_among(unused, running, now)


def orphans_among(unused: Iterable[ObjectMeta], running: bool, now: float) -> Orphans:
    """Of unused files, those that no writer can be writing now."""
    files = [
        item
        for item in unused
        if item.modified < now - _STAGING_SECONDS or (not running and _STAGED.match(item.path.rpartition("/")[2]))
    ]
    return Orphans(tuple(item.path for item in files), sum(item.size for item in files))


def _data_files(listing: Sequence[ObjectMeta], state: TableState) -> list[ObjectMeta]:
    """The data files of a listing: not the log, hidden files, or other tables inside the folder."""
    nested = tuple({f"{item.path.partition(f'/{LOG}/')[0]}/" for item in listing if f"/{LOG}/" in item.path})
    return [
        item for item in listing if not _is_hidden(item.path, state.partition_by) and not item.path.startswith(nested)
    ]


def _used(store: Store, state: TableState, since: int, checkpoint_only: bool = False) -> set[str]:
    """The files of all versions that were current at or after `since` (milliseconds).

    With `checkpoint_only`, only the newest log checkpoint and the commits after it are read.
    """
    files = active_files(store, state.version).values()
    used = {path for file in files for path in file.paths} | removed_paths(store, state.version, since)
    stop = last_checkpoint(store) if checkpoint_only else -1
    for commit in LogWalk(store, state.version, stop):
        if commit.timestamp < since:
            break
        used |= {path for file in (*commit.removed, *commit.change_data) for path in file.paths}
    return {_relative(store, path) for path in used}


def _relative(store: Store, path: str) -> str:
    """A path relative to the table; the log may contain absolute URIs."""
    if store.bucket is None:
        return path.removeprefix("file:").removeprefix("//").removeprefix(f"{store.root}/")
    roots = (store.bucket.uri, store.access.spark_root(store.bucket), store.bucket.uri.replace("s3://", "s3a://", 1))
    return next((path.removeprefix(root) for root in _slashed(roots, store.root) if path.startswith(root)), path)


def _slashed(roots: Iterable[str], root: str) -> list[str]:
    return [f"{each}/{root}/" if root else f"{each}/" for each in roots]


def _is_hidden(path: str, partition_by: tuple[str, ...]) -> bool:
    """Whether a path has a part that begins with `_` or `.`, other than a partition and the folder of change data."""
    folders = tuple(f"{name}=" for name in partition_by)
    parts = path.removeprefix(f"{CHANGE_DATA}/").split("/")
    return any(part.startswith(("_", ".")) and not part.startswith(folders) for part in parts)
