"""Memory of this process and of the processes that it has started, for metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from headrace.runtime.memory import process_tree, program_of, proportional_bytes

_INTERVAL = 10.0  # seconds for which a reading is used: it takes several milliseconds


class ProcessMemory:
    """PSS in bytes by kind of process: `python` (this one), `jvm`, and `workers` (all others)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at: float | None = None
        self._bytes: dict[str, int] = {}

    def by_kind(self) -> dict[str, int]:
        """The memory at most ten seconds ago; empty where there is no /proc."""
        if self._read_at is None or self._clock() - self._read_at >= _INTERVAL:
            self._read_at, self._bytes = self._clock(), _memory_by_kind(os.getpid())
        return self._bytes


def _memory_by_kind(root: int) -> dict[str, int]:
    total: dict[str, int] = {}
    for process in process_tree(root):
        kind = "python" if process == root else "jvm" if program_of(process) == "java" else "workers"
        total[kind] = total.get(kind, 0) + proportional_bytes(process)
    return total
