"""SIGTERM and Ctrl-C: a thread acts on them.

A handler interrupts the main thread at any instruction: while it draws the live line, or while it holds the lock of the
event that the handler would set.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

from headrace.cli.console import say_progress

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FINISH_SECONDS = 2.0  # to complete the action of a signal


class SignalThread:
    """Calls `act` for each SIGTERM and Ctrl-C within the block."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._before: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    def __enter__(self) -> Self:
        self._received, self._sent = socket.socketpair()
        self._sent.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._sent.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _ignore) for number in _SIGNALS}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.finish()
        self._received.close()

    def finish(self) -> None:
        """Complete the actions of the signals that were received; ignore further ones."""
        if self._sent.fileno() >= 0:
            signal.set_wakeup_fd(self._wakeup)
            self._sent.close()
        self._thread.join(_FINISH_SECONDS)

    def _run(self) -> None:
        while received := self._received.recv(1):  # the number of a signal; nothing after `finish`
            if received[0] in _SIGNALS:
                self._act()


class Signals(SignalThread):
    """The first SIGTERM or Ctrl-C stops after the current batch, the second aborts the batch."""

    def __init__(self) -> None:
        super().__init__(self._stop_or_abandon)
        self.stop, self.abandon = threading.Event(), threading.Event()
        self.say: Callable[[str], None] = say_progress

    def _stop_or_abandon(self) -> None:
        if self.stop.is_set():
            self.abandon.set()
            return
        self.stop.set()
        self.say("Stopping after the current batch. Press Ctrl-C again to abort it.")


def stops_on_signals(stop: threading.Event) -> SignalThread:
    """Set `stop` on SIGTERM or Ctrl-C."""
    return SignalThread(stop.set)


def _ignore(*_: object) -> None:
    """The thread is notified through the wakeup file descriptor; without a handler, the process would end."""
