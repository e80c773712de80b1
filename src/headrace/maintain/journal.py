"""Journal of maintenance actions in the pipeline's state, for `headrace status` and the next run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.storage.base import AlreadyExists
from headrace.storage.numbered_objects import NumberedObjects
from headrace.storage.store import Store

if TYPE_CHECKING:
    from headrace.maintain.planner import Action

FOLDER = "maintenance"
_MAX_ACTIONS = 50
_MAX_PARTITIONS = 1_000  # of a table whose z-order is recorded; a partition that drops out is ordered once more


class Journal:
    """Numbered JSON objects, newest valid; losing one costs an early vacuum, no more."""

    def __init__(self, state: Store) -> None:
        self._objects = NumberedObjects(state, FOLDER)
        self._number, data = self._objects.newest()
        raw = json.loads(data) if data else {}
        self.done: list[dict[str, Any]] = list(raw.get("done", []))
        self.vacuumed: dict[str, float] = dict(raw.get("vacuumed", {}))  # by table; Unix time in seconds
        self.running: dict[str, Any] | None = raw.get("running")
        self._ordered: dict[str, dict[str, int]] = dict(raw.get("ordered", {}))  # by table and partition; milliseconds

    def start(self, action: Action, now: float) -> None:
        """Record an action before it runs."""
        self.running = {**action.to_dict(), "at": _timestamp(now)}
        self._write()

    def finish(self, result: Mapping[str, Any], now: float) -> None:
        """Record the result of the running action."""
        self.done = [*self.done, {**(self.running or {}), **result, "at": _timestamp(now)}][-_MAX_ACTIONS:]
        self.running = None
        self._write()

    def record_vacuum(self, table: str, now: float) -> None:
        """Record that a table was checked for a vacuum, also where no file was deleted."""
        self.vacuumed[table] = now
        self._write()

    def record_order(self, table: str, until: Mapping[str, int]) -> None:
        """Record the modification time up to which the files of partitions are z-ordered."""
        times = {**self._ordered.get(table, {}), **until}
        self._ordered[table] = dict(sorted(times.items(), key=lambda item: item[1])[-_MAX_PARTITIONS:])
        self._write()

    def ordered_until(self, table: str, partition: str) -> int:
        """Modification time up to which the files of a partition are z-ordered; -1 if none was recorded."""
        return self._ordered.get(table, {}).get(partition, -1)

    def _write(self) -> None:
        content = {"done": self.done, "vacuumed": self.vacuumed, "running": self.running, "ordered": self._ordered}
        with suppress(AlreadyExists):  # by an instance that lost the lease; the tables' histories have its actions
            self._objects.add(self._number + 1, json.dumps(content).encode())
        self._number += 1


def _timestamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
