"""Which version is meant: a number, a moment, or the newest."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headrace.delta.log import newest_version, read_commit, readable_versions
from headrace.delta.snapshot import open_at
from headrace.errors import TableFeature, TableNotFound, UsageError, VersionNotFound
from headrace.spec.units import moment
from headrace.storage.store import Store

Moment = datetime | str


def resolve_version(store: Store, version: int | None = None, timestamp: Moment | None = None) -> int:
    """The version that is meant; VersionNotFound when the table has it not, or no longer."""
    if version is not None and timestamp is not None:
        raise UsageError("A version and a timestamp are both given.", hint="Give one of them.")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
        raise UsageError(f"{version!r} is no version.", hint="Give its number; a moment is a `timestamp`.")
    last = newest_version(store)
    if last is None:
        raise TableNotFound(f"There is no Delta table at {store.uri}.", hint="`headrace table list FOLDER` names some.")
    if version is None and timestamp is None:
        return last
    first, last = readable_versions(store) or (last, last)
    wanted = _at(store, as_moment(timestamp), first, last) if timestamp is not None else version
    if wanted is None or not first <= wanted <= last:
        said = f"version {version}" if timestamp is None else f"a version of {as_moment(timestamp).isoformat()}"
        raise VersionNotFound(
            f"{store.uri} does not have {said}: its log tells those from {first} to {last}.",
            hint="`headrace table history PATH` lists them.",
            first=first,
            last=last,
        )
    return wanted


def as_moment(given: Moment | None) -> datetime:
    """A moment as a datetime with a zone; UsageError for anything else."""
    try:
        if isinstance(given, datetime) and given.tzinfo is None:
            raise ValueError("a time with its zone")
        return moment(given).astimezone(UTC)
    except ValueError as wanted:
        raise UsageError(f"'{given}' is no moment.", hint=f"Give {wanted}.") from None


def _at(store: Store, wanted: datetime, first: int, last: int) -> int | None:
    """The newest version committed by then, found by halving: writers' clocks go forward, give or take a moment."""
    millis = int(wanted.timestamp() * 1000)
    if _time(store, last) <= millis:
        return last
    low, high = first - 1, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _time(store, middle) <= millis else (low, middle)
    return low if low >= first else None


def _time(store: Store, version: int) -> int:
    commit = read_commit(store, version)
    return commit.timestamp if commit else 0


def open_version(store: Store, version: int) -> Any:
    """delta-rs's table at a version; VersionNotFound where its log no longer tells it."""
    try:
        return open_at(store, version)
    except TableFeature as error:
        reach = readable_versions(store)
        if reach and not reach[0] <= version <= reach[1]:
            raise VersionNotFound(f"{store.uri}: version {version} is no longer told by its log.") from error
        raise
