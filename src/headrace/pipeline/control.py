"""Requests to a running pipeline, and the states that it reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum

_CHECK_INTERVAL = 0.5  # seconds between checks for the end of a pause that nobody has lifted


class State(StrEnum):
    """State of a pipeline in a process."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"  # waits before it is started again after an error
    FAILED = "failed"  # an error ended it
    STOPPED = "stopped"


class StopRequest(threading.Event):
    """A request to stop one pipeline; it is also made by a request to stop its whole process."""

    def __init__(self, process: threading.Event | None = None) -> None:
        super().__init__()
        self._process = process or threading.Event()

    def is_set(self) -> bool:
        """Whether the pipeline or its process is to stop."""
        return super().is_set() or self._process.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until set, at most `timeout` seconds; true when set."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = _CHECK_INTERVAL if deadline is None else min(_CHECK_INTERVAL, deadline - time.monotonic())
            if left <= 0:
                return False
            super().wait(left)
        return True


class PauseRequest:
    """A request to pause between two batches until it is lifted."""

    def __init__(self) -> None:
        self._lifted = threading.Event()
        self._lifted.set()

    @property
    def is_set(self) -> bool:
        """Whether the pipeline is to pause."""
        return not self._lifted.is_set()

    def set(self) -> None:
        """Request a pause after the current batch."""
        self._lifted.clear()

    def lift(self) -> None:
        """End the pause."""
        self._lifted.set()

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until the request is lifted or `is_over` returns true."""
        while not is_over() and not self._lifted.wait(_CHECK_INTERVAL):
            pass
