"""Deletes or moves files whose records are all recorded in the ledger, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.errors import HeadraceError
from headrace.source.files.indexed_file import IndexedFile
from headrace.storage.store import Store

_RETRY = 30.0  # seconds after an error
_LAST = 3.0  # seconds for the last release
Released = Callable[[Sequence[IndexedFile]], None]


class Releaser:
    """Releases files until it is stopped; what fails is tried again later."""

    def __init__(
        self,
        source: Store,
        target: Store | None,
        due: Callable[[], Sequence[IndexedFile]],
        released: Released,
        failed: Callable[[HeadraceError], None],
    ) -> None:
        self._source, self._target = source, target
        self._due, self._released, self._failed = due, released, failed
        self._wake = threading.Event()
        self._deadline: float | None = None  # of the last release; None until the end
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Release the files that are due now."""
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-files-release", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Release the files that are due, for a few seconds, and end."""
        self._deadline = time.monotonic() + _LAST
        self._wake.set()
        if self._thread is not None:
            self._thread.join(2 * _LAST)

    def _run(self) -> None:
        wait: float | None = None
        while True:
            self._wake.wait(wait)
            self._wake.clear()
            try:
                self.release(self._due())
                wait = None
            except HeadraceError as error:
                self._failed(error)
                wait = _RETRY
            if self._deadline is not None:
                return

    def release(self, files: Sequence[IndexedFile]) -> None:
        """Delete or move files, and record it; after a crash between the two, it is done again."""
        done: list[IndexedFile] = []
        try:
            for file in files:
                if self._deadline is not None and time.monotonic() > self._deadline:
                    break
                done += self._release(file)
        finally:
            if done:
                self._released(done)

    def _release(self, file: IndexedFile) -> list[IndexedFile]:
        tag = self._source.tag(file.path)
        if tag is not None and tag != file.tag:
            return []  # a changed file is kept
        if self._target is None:
            self._source.delete([file.path])
            return [replace(file, status="deleted")]
        target = self._target_of(file)
        if tag is None and not target.exists(file.path):
            return [replace(file, status="deleted")]  # by someone else
        if tag is not None:
            self._source.move(file.path, target)
        return [replace(file, status="moved", moved_to=target.uri)]

    def _target_of(self, file: IndexedFile) -> Store:
        """The directory below which the file keeps its path; another one where a file of that path was moved before."""
        assert self._target is not None  # noqa: S101
        numbered = self._target.child(f"_{file.number}")
        if numbered.exists(file.path):
            return numbered
        there = self._target.tag(file.path)
        interrupted = there == file.tag  # an object store has copied it, but not deleted it
        return numbered if there is not None and not interrupted and self._source.exists(file.path) else self._target
