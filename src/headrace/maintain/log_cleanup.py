"""The log of a table: checkpoints where the commits of many runs have made none, and an end to what nobody can ask."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from headrace.delta.checkpoints import checkpoint_interval
from headrace.delta.log import EPOCH, expired, last_checkpoint, version_of
from headrace.delta.snapshot import TableState, open_at
from headrace.maintain.planner import Action
from headrace.storage.store import Store

RETENTION = "delta.logRetentionDuration"


def checkpoint_due(store: Store, state: TableState) -> Iterator[Action]:
    """A checkpoint, once twice as many commits lie behind the last one as an interval has.

    A pipeline that commits all the time writes its own; one that runs now and then for a batch would never.
    """
    behind = state.version - last_checkpoint(store)
    if behind >= 2 * checkpoint_interval(state):
        yield Action("checkpoint", store.uri, f"{behind:,} commits since the last one", 0, 0)


def write_checkpoint(store: Store, state: TableState) -> None:
    """Write it."""
    open_at(store, state.version).create_checkpoint()


def cleaning_due(store: Store, retain: timedelta, now: datetime) -> Iterator[Action]:
    """Delete what the log says of versions that ended before `retain`; the newest checkpoint of then is kept."""
    gone = expired(store, max(now, EPOCH + retain) - retain)
    if gone:
        why = f"versions up to {max(map(version_of, gone)):,} are older than is retained"
        paths = tuple(item.path for item in gone)
        yield Action("clean_log", store.uri, why, len(gone), sum(item.size for item in gone), paths=paths)
