"""Log checkpoints, written in the background: readers open few JSON files, and no batch waits or fails for one."""

from __future__ import annotations

import atexit
import logging
import threading
from collections import OrderedDict

from headrace.delta.log import last_checkpoint
from headrace.delta.snapshot import TableState, open_at
from headrace.storage.store import Store

INTERVAL = 100  # commits; if the table has no property
_log = logging.getLogger(__name__)


class CheckpointWriter:
    """A background thread that writes the checkpoints of all tables, one at a time."""

    def __init__(self) -> None:
        self._requested: dict[str, int] = {}  # version of the last request for each table
        self._waiting: OrderedDict[str, tuple[Store, int, int]] = OrderedDict()
        self._changed = threading.Condition()
        self._busy = False

    def note(self, store: Store, state: TableState) -> None:
        """Request a checkpoint if one is due after a commit. Never blocks, never raises."""
        every = checkpoint_interval(state)
        with self._changed:
            last = self._requested.setdefault(
                store.uri, 0
            )  # 0, so that a process that commits only once may request one
            if state.version // every == last // every:
                return
            self._requested[store.uri] = state.version
            self._waiting[store.uri] = (store, state.version, every)
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, name="log-checkpoints", daemon=True).start()

    def wait(self, timeout: float) -> bool:
        """Wait for all requested checkpoints; False if they take longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout)

    def _work(self) -> None:
        while (request := self._take()) is not None:
            store, version, every = request
            try:
                if version - last_checkpoint(store) < every:
                    continue
                # Opened each time: a table that stays open for days has all its files in memory.
                open_at(store, version).create_checkpoint()
            except Exception as error:
                _log.warning("cannot write a log checkpoint of %s: %s", store.uri, str(error).partition("\n")[0][:300])

    def _take(self) -> tuple[Store, int, int] | None:
        with self._changed:
            if self._waiting:
                return self._waiting.popitem(last=False)[1]
            self._busy = False
            self._changed.notify_all()
            return None


SHARED = CheckpointWriter()
atexit.register(SHARED.wait, 10)  # finish a checkpoint in progress


def checkpoint_interval(state: TableState) -> int:
    """The number of commits between two log checkpoints."""
    text = state.properties.get("delta.checkpointInterval", "")
    return int(text) if text.isdecimal() and int(text) > 0 else INTERVAL
