"""What upkeep did last and has under way, in the pipeline's state: for `headrace status`, and for the next run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from headrace.maintain.planner import Action
from headrace.storage.base import AlreadyThere
from headrace.storage.numbered_objects import NumberedObjects
from headrace.storage.store import Store

FOLDER = "maintenance"
_KEPT = 50  # actions
_ORDERED = 1_000  # partitions of a table whose order is noted; one that is forgotten is put in order once more


class Journal:
    """One chain of small notes; a note that is lost costs a vacuum too early, no more."""

    def __init__(self, state: Store) -> None:
        self._chain = NumberedObjects(state, FOLDER)
        self._number, data = self._chain.newest()
        raw = json.loads(data) if data else {}
        self.done: list[dict[str, Any]] = list(raw.get("done", []))
        self.vacuumed: dict[str, float] = dict(raw.get("vacuumed", {}))  # by table, when; seconds
        self.running: dict[str, Any] | None = raw.get("running")
        self._ordered: dict[str, dict[str, int]] = dict(raw.get("ordered", {}))  # by table and partition; milliseconds

    def begin(self, action: Action, now: float) -> None:
        """Note what is about to be done."""
        self.running = {**action.told(), "at": _moment(now)}
        self._write()

    def end(self, result: Mapping[str, Any], now: float) -> None:
        """Note what came of it."""
        began = self.running or {}
        self.done = [*self.done, {**began, **result, "at": _moment(now)}][-_KEPT:]
        self.running = None
        self._write()

    def looked(self, table: str, now: float) -> None:
        """Note a vacuum, also of nothing."""
        self.vacuumed[table] = now
        self._write()

    def order(self, table: str, until: Mapping[str, int]) -> None:
        """Note until when the files of some partitions are in order."""
        known = {**self._ordered.get(table, {}), **until}
        newest = sorted(known.items(), key=lambda item: item[1])[-_ORDERED:]
        self._ordered[table] = dict(newest)
        self._write()

    def ordered_until(self, table: str, partition: str) -> int:
        """Until when the files of a partition are in order; -1 where nothing is noted."""
        return self._ordered.get(table, {}).get(partition, -1)

    def _write(self) -> None:
        said = {"done": self.done, "vacuumed": self.vacuumed, "running": self.running, "ordered": self._ordered}
        text = json.dumps(said)
        with suppress(AlreadyThere):  # by one that lost the lease: what it did is told by the tables' own histories
            self._chain.add(self._number + 1, text.encode())
        self._number += 1


def _moment(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
