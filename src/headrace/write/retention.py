"""Retention of dead letters and tombstones: expired days are removed from the table and from the storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError

from headrace.delta.log import EPOCH, newest_version
from headrace.delta.snapshot import open_at
from headrace.errors import CommitConflict, StorageUnreachable
from headrace.storage.store import Store

DAY = "date"  # the partition column of dead letters


@dataclass(frozen=True, slots=True)
class Purge:
    """The rows of all days before a day, to be deleted."""

    before: date
    files: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    first: date | None = None
    last: date | None = None

    def __str__(self) -> str:
        if not self.files:
            return f"no dead letters before {self.before}"
        return f"{self.rows:,} dead letters of {self.first} to {self.last} ({self.bytes:,} bytes)"


def retention_day(age: timedelta, now: datetime) -> date:
    """The first day that must be kept: all rows of earlier days are older than `age`."""
    return (max(now, EPOCH + age) - age).date()


def purge_preview(store: Store, before: date, day: str = DAY) -> Purge:
    """The rows that a purge would delete."""
    version = newest_version(store)
    return Purge(before) if version is None else _expired(open_at(store, version), before, day)


def purge_days(store: Store, before: date, day: str = DAY) -> Purge:
    """Delete the days, then their files at once, without a vacuum: dead letters may contain private data."""
    version = newest_version(store)
    if version is None:
        return Purge(before)
    table = open_at(store, version)
    purge = _expired(table, before, day)
    if purge.files:
        with _named_errors(store):
            hooks = PostCommitHookProperties(cleanup_expired_logs=False)  # it would use the local clock
            table.delete(f"{day} < '{before.isoformat()}'", post_commithook_properties=hooks)
        store.delete(purge.files)
    return purge


def _expired(table: DeltaTable, before: date, day: str) -> Purge:
    files, column = pa.table(table.get_add_actions(flatten=True)), f"partition.{day}"
    expired = [
        file
        for file in files.select(["path", "size_bytes", "num_records", column]).to_pylist()
        if file[column] is not None and _day(file[column]) < before
    ]
    if not expired:
        return Purge(before)
    days = [_day(file[column]) for file in expired]
    return Purge(
        before,
        tuple(unquote(file["path"]) for file in expired),
        sum(file["num_records"] or 0 for file in expired),
        sum(file["size_bytes"] for file in expired),
        min(days),
        max(days),
    )


def _day(value: date | str) -> date:
    return date.fromisoformat(value) if isinstance(value, str) else value


@contextmanager
def _named_errors(store: Store) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        cause = str(error).strip().splitlines()[0][:300]
        raise CommitConflict(f"{store.uri}: expired rows cannot be deleted: {cause}", hint="Run again.") from error
    except OSError as error:
        raise StorageUnreachable(f"{store.uri}: {str(error).strip().splitlines()[0][:300]}") from error
