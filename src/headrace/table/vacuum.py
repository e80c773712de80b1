"""Files that no version within the retention needs, and what failed writers left, are deleted for good.

Our own, because delta-rs knows nothing of batches that are begun: no commit names their files yet, and a pipeline
that comes back after weeks commits just these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from headrace.delta.commit_builder import CHANGE_DATA
from headrace.delta.log import LOG, LogWalk, last_checkpoint, proved_time
from headrace.delta.properties import interval_of
from headrace.delta.snapshot import TableState, active_files, removed_paths
from headrace.errors import ClockBehind, UsageError
from headrace.ledger.ledger import Ledger
from headrace.storage.base import Meta
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners

RETAIN = timedelta(hours=168)
_KEPT = "delta.deletedFileRetentionDuration"
_SKEW = timedelta(minutes=5)
_IN_WORK = 3600.0  # seconds
_STAGED = re.compile(r"part-(replay-)?\d{8}-")  # by a batch or a replay plan
_FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Files that no version within the retention needs; deleted, unless it was a dry run."""

    files: tuple[str, ...]
    bytes: int
    retain: timedelta
    dry_run: bool


def vacuum(
    store: Store, writers: TableOwners, retain: timedelta = RETAIN, *, dry_run: bool = False, force: bool = False
) -> Vacuumed:
    """Delete what is not needed; below the table's own retention only with `force`, and while no pipeline runs.

    Ages are counted up to the time that the log proves to have passed; with `force`, up to this machine's clock.
    It commits nothing, so it is the same for tables that Spark writes.
    """
    least = retention(writers.state)
    if retain < least and not force:
        raise UsageError(
            f"{store.uri} keeps what it no longer needs for {_hours(least)} h; a vacuum after {_hours(retain)} h takes "
            "files from readers of older versions, and from writers that have not committed yet.",
            hint="Give a longer `retain`, or `force` when nobody reads or writes it.",
        )
    now = datetime.now(UTC) if force else _proved(store, writers, retain)
    if dry_run:
        return unneeded(store, writers, retain, now)
    if retain >= least:
        return _deleted(store, writers, retain, now)
    with writers.resting("a vacuum below the retention"):
        return _deleted(store, writers, retain, now)


def _proved(store: Store, writers: TableOwners, retain: timedelta) -> datetime:
    """The time that the table's log proves to have passed, or a ledger of those who write it; ClockBehind."""
    clock, version = datetime.now(UTC), writers.state.version
    last = proved_time(store, _FOREVER, timedelta(0), version)
    if last > clock + _SKEW:
        raise ClockBehind(
            f"The clock of this machine says {_moment(clock)}, but version {version} of {store.uri} was committed at "
            f"{_moment(last)}: how old files are cannot be told.",
            hint="Set the clock. Where it is the commit that has the wrong time, use `force`: then this clock counts.",
        )
    ledgers = [each.state.child(Ledger.folder) for each in writers.pipelines if each.state]
    return max(proved_time(log, clock, retain) for log in (store, *ledgers))


def retention(state: TableState) -> timedelta:
    """How long a table keeps files that it no longer needs; TableError where it says so in words nobody reads."""
    kept = interval_of(state, _KEPT)
    return RETAIN if kept is None else kept


def _hours(age: timedelta) -> str:
    return f"{age.total_seconds() / 3600:g}"


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def _deleted(store: Store, writers: TableOwners, retain: timedelta, now: datetime) -> Vacuumed:
    plan = unneeded(store, writers, retain, now)
    store.delete(plan.files)
    return replace(plan, dry_run=False)


def unneeded(store: Store, writers: TableOwners, retain: timedelta, now: datetime) -> Vacuumed:
    """What a vacuum would delete at a time."""
    state, until = writers.state, now.timestamp() - retain.total_seconds()
    there = list(store.list())
    needed = _needed(store, state, int(until * 1000)) | writers.begun().keys()
    gone = [item for item in _data(there, state) if item.modified < until and item.path not in needed]
    return Vacuumed(tuple(item.path for item in gone), sum(item.size for item in gone), retain, dry_run=True)


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files that were staged for a table and that no version of it names: their writer died."""

    files: tuple[str, ...]
    bytes: int


def orphans(store: Store, writers: TableOwners, now: float) -> Orphans:
    """What failed writers left in a table's folder; a vacuum deletes it once it is older than the retention.

    Somebody may be writing files of the last hour; those of a batch only while a pipeline that writes the table runs.
    It costs a listing, a log checkpoint and the commits since.
    """
    state = writers.state
    needed = _needed(store, state, 0, checkpoint_only=True) | writers.begun().keys()
    running = any(each.holder() for each in writers.pipelines)
    return left_over([item for item in _data(list(store.list()), state) if item.path not in needed], running, now)


def left_over(named_by_none: Iterable[Meta], running: bool, now: float) -> Orphans:
    """Of files that nothing names, those that nobody can be writing."""
    gone = [
        item
        for item in named_by_none
        if item.modified < now - _IN_WORK or (not running and _STAGED.match(item.path.rpartition("/")[2]))
    ]
    return Orphans(tuple(item.path for item in gone), sum(item.size for item in gone))


def _data(there: Sequence[Meta], state: TableState) -> list[Meta]:
    """The data files of a listing: none of the log, of other tables inside the folder, or hidden."""
    others = {path.partition(f"/{LOG}/")[0] for path in (item.path for item in there) if f"/{LOG}/" in path}
    return [item for item in there if not _is_hidden(item.path, state.partition_by) and not _is_in(item.path, others)]


def _needed(store: Store, state: TableState, since: int, checkpoint_only: bool = False) -> set[str]:
    """The files of the newest version, and of every one that was the newest since then (in milliseconds).

    With `checkpoint_only`, as far as the newest log checkpoint and the commits after it tell.
    """
    stands = active_files(store, state.version).values()
    needed = {path for file in stands for path in file.paths} | removed_paths(store, state.version, since)
    stop = last_checkpoint(store) if checkpoint_only else -1
    for commit in LogWalk(store, state.version, stop):
        if commit.timestamp < since:
            break
        needed |= {path for file in (*commit.removed, *commit.change_data) for path in file.paths}
    return {_below(store, path) for path in needed}


def _below(store: Store, path: str) -> str:
    """A path below the table, also where the log has it as a whole address."""
    if store.local:
        return path.removeprefix("file:").removeprefix("//").removeprefix(f"{store.root}/")
    scheme, _, rest = path.partition("://")
    return rest.removeprefix(f"{store.bucket}/{store.root}/") if scheme in ("s3", "s3a") else path


def _is_hidden(path: str, partition_by: tuple[str, ...]) -> bool:
    """What is no data: the log, and all that begins with `_` or `.` and is neither a partition nor change data."""
    folders = tuple(f"{name}=" for name in partition_by)
    parts = path.removeprefix(f"{CHANGE_DATA}/").split("/")
    return any(part.startswith(("_", ".")) and not part.startswith(folders) for part in parts)


def _is_in(path: str, folders: set[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)
