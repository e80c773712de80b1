"""Maintenance of a table's Delta log: checkpoints that no writer has written, and cleanup of expired entries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from headrace.delta.checkpoints import checkpoint_interval
from headrace.delta.log import EPOCH, expired, last_checkpoint, version_of
from headrace.delta.snapshot import TableState
from headrace.maintain.planner import Action
from headrace.storage.store import Store

RETENTION = "delta.logRetentionDuration"


def checkpoint_due(store: Store, state: TableState) -> Iterator[Action]:
    """Plan a checkpoint once twice `delta.checkpointInterval` commits follow the last one.

    A pipeline that runs all the time writes its own. One that runs for a batch now and then would never reach the
    interval.
    """
    commits = state.version - last_checkpoint(store)
    if commits >= 2 * checkpoint_interval(state):
        yield Action("checkpoint", store.uri, f"{commits:,} commits since the last checkpoint", 0, 0)


def cleanup_due(store: Store, retain: timedelta, now: datetime) -> Iterator[Action]:
    """Plan the deletion of log entries older than `retain`; the newest checkpoint before them is kept."""
    entries = expired(store, max(now, EPOCH + retain) - retain)
    if entries:
        reason = f"versions up to {max(map(version_of, entries)):,} are older than the retention"
        paths = tuple(entry.path for entry in entries)
        yield Action("clean_log", store.uri, reason, len(entries), sum(entry.size for entry in entries), paths=paths)
