"""A command in a terminal of its own: what it has written so far, and what a person would see on the screen."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from services.pipelines import HEADRACE, environment
from services.wait import eventually

_CODE = re.compile(r"\x1b\[(\d*)(?:;\d+)*([A-Za-z])|\x1b\[\?\d+[hl]|[\r\n]|[^\x1b\r\n]+")


class Terminal:
    """A `headrace` at work in a pseudo-terminal."""

    def __init__(self, child: subprocess.Popen[bytes], screen: int) -> None:
        self.child, self._screen = child, screen
        self.written = ""
        self._reader = threading.Thread(target=self._read, args=(screen,), daemon=True)
        self._reader.start()

    def _read(self, screen: int) -> None:
        with suppress(OSError):  # Linux's word for the end of a terminal
            while data := os.read(screen, 4096):
                self.written += data.decode(errors="replace")

    def until(self, text: str, within: float = 90) -> None:
        """Wait until it has written something."""
        eventually(lambda: text in self.written, within, lambda: f"{text!r} in {self.written!r}")

    def java(self) -> psutil.Process:
        """Its JVM, once there is one."""
        tree = psutil.Process(self.child.pid)
        return eventually(
            lambda: next((each for each in tree.children(recursive=True) if each.name() == "java"), None), 60, "a JVM"
        )

    def press(self, keys: str) -> None:
        """Type some keys."""
        os.write(self._screen, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.child.send_signal(signal.SIGINT)

    def wait(self, within: float = 30) -> int:
        """Its exit code, once all it wrote is read."""
        code = self.child.wait(within)
        self._reader.join(5)
        return code

    def lines(self) -> list[str]:
        """What is on the screen at the end."""
        return [line for line in self.screen() if line]

    def screen(self) -> list[str]:
        """What is on the screen now, with empty lines."""
        shown, row, column = [""], 0, 0
        for code in _CODE.finditer(self.written):
            number, kind, text = int(code[1] or 1) if code[2] else 1, code[2], code[0]
            if text == "\n":
                row += 1
                shown += [""] * (row + 1 - len(shown))
            elif text == "\r":
                column = 0
            elif kind == "A":
                row = max(0, row - number)
            elif kind == "H":  # the first position
                row = column = 0
            elif kind == "K":
                shown[row] = ""
            elif not kind and not text.startswith("\x1b"):
                shown[row] = shown[row][:column].ljust(column) + text + shown[row][column + len(text) :]
                column += len(text)
        return [line.rstrip() for line in shown]


@contextmanager
def terminal(arguments: Iterable[str | Path], env: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """`headrace …` in a terminal; whatever is left of it dies with the block."""
    screen, end = pty.openpty()
    settings = environment(**{"TERM": "xterm", "COLUMNS": "160", **(env or {})})
    command = [HEADRACE, *map(str, arguments)]
    child = subprocess.Popen(command, env=settings, stdin=end, stdout=end, stderr=end, start_new_session=True)
    os.close(end)
    try:
        yield Terminal(child, screen)
    finally:
        if child.poll() is None:
            for process in [*psutil.Process(child.pid).children(recursive=True), child]:
                process.kill()
        child.wait(10)
        os.close(screen)
