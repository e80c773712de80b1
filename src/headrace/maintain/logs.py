"""The log of a table: checkpoints where the commits of many runs have made none, and an end to what nobody can ask."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from headrace.commit.checkpoints import interval
from headrace.maintain.plan import Action
from headrace.storage import NotThere, Store
from headrace.storage.base import Meta
from headrace.tables.log import LOG, TableState, open_at

RETENTION = "delta.logRetentionDuration"
_NAME = re.compile(rf"{LOG}/(\d{{20}})\.")
_CHECKPOINT = re.compile(rf"{LOG}/\d{{20}}\.checkpoint\.parquet$")  # whole, in one file


def last_checkpoint(store: Store) -> int:
    """The version of the newest log checkpoint, as the log's own hint tells; -1 without one."""
    try:
        return int(json.loads(store.get(f"{LOG}/_last_checkpoint"))["version"])
    except (NotThere, ValueError, KeyError, TypeError):
        return -1


def checkpoint_due(store: Store, state: TableState) -> Iterator[Action]:
    """A checkpoint, once twice as many commits lie behind the last one as an interval has.

    A pipeline that commits all the time writes its own; one that runs now and then for a batch would never.
    """
    behind = state.version - last_checkpoint(store)
    if behind >= 2 * interval(state):
        yield Action("checkpoint", store.uri, f"{behind:,} commits since the last one", 0, 0)


def checkpoint(store: Store, state: TableState) -> None:
    """Write it."""
    open_at(store, state.version).create_checkpoint()


def cleaning_due(store: Store, retain: timedelta, now: datetime) -> Iterator[Action]:
    """Delete what the log says of versions that ended before `retain`; the newest checkpoint of then is kept."""
    until = now.timestamp() - retain.total_seconds()
    old: list[Meta] = []
    for item in store.list(LOG):
        if _NAME.match(item.path) is None:
            continue
        if item.modified >= until:
            break
        old.append(item)
    kept = max((number(item) for item in old if _CHECKPOINT.match(item.path)), default=-1)
    gone = [item for item in old if number(item) < kept]
    if gone:
        why = f"versions before {kept:,} are older than is retained"
        paths = tuple(item.path for item in gone)
        yield Action("clean_log", store.uri, why, len(gone), sum(item.size for item in gone), paths=paths)


def number(item: Meta) -> int:
    """The version that a file of the log is of."""
    found = _NAME.match(item.path)
    return int(found[1]) if found else -1
