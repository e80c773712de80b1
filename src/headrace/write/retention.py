"""How long dead letters are kept: whole days of them leave the table, and the store."""

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
from headrace.errors import Conflict, StorageUnreachable
from headrace.storage.store import Store

DAY = "date"  # the partition column of dead letters


@dataclass(frozen=True, slots=True)
class Purge:
    """What is to go: every letter of the days before a day."""

    before: date
    files: tuple[str, ...] = ()
    letters: int = 0
    bytes: int = 0
    first: date | None = None
    last: date | None = None

    def __str__(self) -> str:
        if not self.files:
            return f"no dead letters before {self.before}"
        return f"{self.letters:,} dead letters of {self.first} to {self.last} ({self.bytes:,} bytes)"


def first_day_kept(age: timedelta, now: datetime) -> date:
    """Dead letters of the days before it are all older than `age`."""
    return (max(now, EPOCH + age) - age).date()


def due(store: Store, before: date, day: str = DAY) -> Purge:
    """What a purge would take away."""
    version = newest_version(store)
    return Purge(before) if version is None else _due(open_at(store, version), before, day)


def carry_out(store: Store, before: date, day: str = DAY) -> Purge:
    """Take the days out of the table, then delete their files: letters may be private, so no vacuum is waited for."""
    version = newest_version(store)
    if version is None:
        return Purge(before)
    table = open_at(store, version)
    purge = _due(table, before, day)
    if purge.files:
        with _named(store):
            hooks = PostCommitHookProperties(cleanup_expired_logs=False)  # it would go by this machine's clock
            table.delete(f"{day} < '{before.isoformat()}'", post_commithook_properties=hooks)
        store.delete(purge.files)
    return purge


def _due(table: DeltaTable, before: date, day: str) -> Purge:
    files, at = pa.table(table.get_add_actions(flatten=True)), f"partition.{day}"
    gone = [
        file
        for file in files.select(["path", "size_bytes", "num_records", at]).to_pylist()
        if file[at] is not None and _day(file[at]) < before
    ]
    if not gone:
        return Purge(before)
    days = [_day(file[at]) for file in gone]
    return Purge(
        before,
        tuple(unquote(file["path"]) for file in gone),
        sum(file["num_records"] or 0 for file in gone),
        sum(file["size_bytes"] for file in gone),
        min(days),
        max(days),
    )


def _day(value: date | str) -> date:
    return date.fromisoformat(value) if isinstance(value, str) else value


@contextmanager
def _named(store: Store) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        said = str(error).strip().splitlines()[0][:300]
        raise Conflict(f"{store.uri}: the dead letters could not be purged: {said}", hint="Run it again.") from error
    except OSError as error:
        raise StorageUnreachable(f"{store.uri}: {str(error).strip().splitlines()[0][:300]}") from error
