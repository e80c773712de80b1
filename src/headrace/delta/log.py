"""The log of a Delta table: which versions it has, one commit of it, and the walk from a version back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from headrace.delta.actions import Commit, parse_commit
from headrace.storage.base import NotFound, ObjectMeta
from headrace.storage.store import Store

EPOCH = datetime.fromtimestamp(0, UTC)

LOG = "_delta_log"
_NUMBERED = re.compile(rf"{LOG}/(\d{{20}})\.")
_CHECKPOINT = re.compile(rf"{LOG}/\d{{20}}\.checkpoint\.parquet$")  # whole, in one file
_COMMIT_OR_CHECKPOINT = re.compile(rf"{LOG}/(\d{{20}})\.(json|checkpoint(?:\.\d+\.\d+)?\.parquet)$")
_VERSION = re.compile(rf"{LOG}/(\d{{20}})\.(?:json|checkpoint\b.*\.parquet)$")
_CLOCK_LAG = timedelta(days=1)
_THREADS = 16  # commits fetched at the same time
_BLOCK = 256


def version_path(version: int) -> str:
    """The path of a version's JSON below the table's root."""
    return f"{LOG}/{version:020}.json"


def version_of(item: ObjectMeta) -> int:
    """The version of a file in the log; -1 for files without one."""
    match = _NUMBERED.match(item.path)
    return int(match[1]) if match else -1


# ---- commits ----


def read_commit(store: Store, version: int) -> Commit | None:
    """One commit; None if the log does not have the version."""
    data = _content(store, version)
    return parse_commit(version, data) if data is not None else None


class LogWalk:
    """The commits of a log from the version `newest` back to the one after `stop`, newest first.

    The walk ends early where the log was cleaned up, so a loop that has not found its commit must look at `complete`:

        walk = LogWalk(store, newest)
        for commit in walk:
            if name in commit.txns:
                return commit
        if not walk.complete:  # the commit may have been in a version before `walk.oldest`, which is gone
            ...
    """

    def __init__(self, store: Store, newest: int, stop: int = -1, block: int = 1) -> None:
        self._store, self._stop = store, stop
        self._block = block  # versions to fetch first; doubled each time, as most walks end within the newest commits
        self.oldest = newest + 1  # the oldest version that was read

    @property
    def complete(self) -> bool:
        """Whether every version after `stop` was read; False where the log was cleaned up before."""
        return self.oldest <= self._stop + 1

    def __iter__(self) -> Iterator[Commit]:
        size = self._block
        while not self.complete:
            block = range(self.oldest - 1, max(self._stop, self.oldest - 1 - size), -1)
            for version, data in zip(block, _contents(self._store, block), strict=False):
                self.oldest = version
                yield parse_commit(version, data)
            if self.oldest > block[-1]:
                return
            # In a bucket, as many commits as there are threads take the time of one.
            size = min(max(2 * size, 1 if self._store.local else _THREADS), _BLOCK)


def commits_between(store: Store, after: int, until: int) -> list[Commit] | None:
    """The commits after one version up to another, oldest first; None if the log no longer has all of them."""
    walk = LogWalk(store, until, after, _BLOCK)
    commits = list(walk)[::-1]
    return commits if walk.complete else None


def _contents(store: Store, versions: range) -> list[bytes]:
    """The JSON of these versions up to the first missing one; in threads from a bucket, where each is a round trip."""
    if store.local:
        return _up_to_missing(_content(store, at) for at in versions)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-log") as pool:
        return _up_to_missing(pool.map(lambda at: _content(store, at), versions))


def _up_to_missing(contents: Iterable[bytes | None]) -> list[bytes]:
    return [data for data in takewhile(lambda data: data is not None, contents) if data is not None]


def _content(store: Store, version: int) -> bytes | None:
    try:
        return store.get(version_path(version))
    except NotFound:
        return None


# ---- versions ----


def newest_version(store: Store) -> int | None:
    """The newest version in a listing of the log; None if there is no log."""
    checkpoint = last_checkpoint(store)  # saves most of the listing
    newest = _newest_after(store, None if checkpoint < 0 else f"{LOG}/{checkpoint:020}")
    # The hint may be ahead of a log that was set back.
    return newest if newest is not None or checkpoint < 0 else _newest_after(store, None)


def _newest_after(store: Store, path: str | None) -> int | None:
    matches = (_VERSION.match(item.path) for item in store.list(LOG, path))
    return max((int(match[1]) for match in matches if match), default=None)


def last_checkpoint(store: Store) -> int:
    """The version of the newest checkpoint according to `_last_checkpoint`; -1 without one."""
    try:
        return int(json.loads(store.get(f"{LOG}/_last_checkpoint"))["version"])
    except (NotFound, ValueError, KeyError, TypeError):
        return -1


def listed_versions(store: Store) -> tuple[set[int], dict[int, list[str]]]:
    """The versions whose commit is in a listing of the log, and the files of each checkpoint in it."""
    versions: set[int] = set()
    checkpoints: dict[int, list[str]] = {}
    for item in store.list(LOG):
        if match := _COMMIT_OR_CHECKPOINT.match(item.path):
            if match[2] == "json":
                versions.add(int(match[1]))
            else:
                checkpoints.setdefault(int(match[1]), []).append(item.path)
    return versions, checkpoints


def readable_versions(store: Store) -> tuple[int, int] | None:
    """The first and the last version that can be read; None if there is no log.

    Commits 3, 4, 5 with a checkpoint of version 4: the first is 4, as nothing tells the files of version 3.
    """
    versions, checkpoints = listed_versions(store)
    if not versions and not checkpoints:
        return None
    newest = max([*versions, *checkpoints])
    missing = newest
    while missing in versions:
        missing -= 1
    usable = [at for at in checkpoints if missing <= at]  # every later version has its commit
    return (0 if missing < 0 else min(usable, default=newest)), newest


def expired(store: Store, until: datetime) -> list[ObjectMeta]:
    """The files of versions that ended before a time, without the newest checkpoint of that time."""
    old: list[ObjectMeta] = []
    for item in store.list(LOG):
        if version_of(item) < 0:
            continue
        if item.modified >= until.timestamp():
            break
        old.append(item)
    checkpoint = max((version_of(item) for item in old if _CHECKPOINT.match(item.path)), default=-1)
    return [item for item in old if version_of(item) < checkpoint]


# ---- times ----


def time_until(store: Store, version: int, until: int) -> int | None:
    """The time of the newest commit that is not after a moment, both in milliseconds; None if the log has none.

    Searches back from a version in steps that double, then by bisection: a day of commits takes about thirty reads.
    """

    def is_after(at: int) -> bool:
        time = _time(store, at)
        return time is not None and time > until

    low, high, step = version, version + 1, 1
    while low >= 0 and is_after(low):
        low, high, step = low - step, low, step * 2
    low = max(low, -1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_after(middle) else (middle, high)
    return _time(store, low) if low >= 0 else None


def proved_time(log: Store, clock: datetime, retain: timedelta, version: int | None = None) -> datetime:
    """The time that has passed according to the log: of its newest commit that is a day old by the local clock.

    Permanent deletion must not depend on the clock of one machine: a pipeline started once with a clock one year
    ahead would delete everything with a shorter retention. A commit of that run is no proof either until the clock
    has agreed with it for a day, or for a seventh of `retain` if that is shorter.
    """
    newest = newest_version(log) if version is None else version
    until = clock - min(_CLOCK_LAG, retain / 7)
    time = None if newest is None else time_until(log, newest, int(until.timestamp() * 1000))
    return EPOCH if time is None else datetime.fromtimestamp(time / 1000, UTC)


def _time(store: Store, version: int) -> int | None:
    """The time of a commit in milliseconds; None if the log no longer has it."""
    commit = read_commit(store, version)
    return commit.timestamp if commit else None
