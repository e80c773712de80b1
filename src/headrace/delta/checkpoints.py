"""Log checkpoints in the background: readers open few JSONs, and no batch waits for one or fails with one."""

from __future__ import annotations

import atexit
import logging
import threading
from collections import OrderedDict

from headrace.delta.log import last_checkpoint
from headrace.delta.snapshot import TableState, open_at
from headrace.storage.store import Store

INTERVAL = 100  # where the table names none
_log = logging.getLogger(__name__)


class CheckpointWriter:
    """One background thread that writes the checkpoints of all tables, one after the other."""

    def __init__(self) -> None:
        self._reached: dict[str, int] = {}  # version at which each table was last looked after
        self._waiting: OrderedDict[str, tuple[Store, int, int]] = OrderedDict()
        self._changed = threading.Condition()
        self._busy = False

    def note(self, store: Store, state: TableState) -> None:
        """A commit was made: ask for a checkpoint when the interval is full. Never blocks, never raises."""
        every = checkpoint_interval(state)
        with self._changed:
            last = self._reached.setdefault(store.uri, 0)  # a process that commits once may be the one that is due
            if state.version // every == last // every:
                return
            self._reached[store.uri] = state.version
            self._waiting[store.uri] = (store, state.version, every)
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, name="log-checkpoints", daemon=True).start()

    def wait(self, timeout: float) -> bool:
        """Whether all that was asked for is done within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout)

    def _work(self) -> None:
        while (asked := self._take()) is not None:
            store, version, every = asked
            try:
                if version - last_checkpoint(store) < every:
                    continue
                # Opened anew each time: a table kept open for days holds all its files in memory.
                open_at(store, version).create_checkpoint()
            except Exception as error:
                _log.warning("no log checkpoint of %s this time: %s", store.uri, str(error).partition("\n")[0][:300])

    def _take(self) -> tuple[Store, int, int] | None:
        with self._changed:
            if self._waiting:
                return self._waiting.popitem(last=False)[1]
            self._busy = False
            self._changed.notify_all()
            return None


SHARED = CheckpointWriter()
atexit.register(SHARED.wait, 10)  # one that has begun is finished rather than torn


def checkpoint_interval(state: TableState) -> int:
    """Commits between two log checkpoints."""
    text = state.properties.get("delta.checkpointInterval", "")
    return int(text) if text.isdecimal() and int(text) > 0 else INTERVAL
