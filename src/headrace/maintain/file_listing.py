"""The files of one table that upkeep may have to do with, followed along its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from headrace.delta.actions import Commit, File
from headrace.delta.log import commits_between
from headrace.delta.snapshot import active_files
from headrace.storage.store import Store


class FileListing:
    """Only the files that matter are held, so its size is that of the debt, not of the table."""

    def __init__(self, store: Store, matters: Callable[[File], bool]) -> None:
        self._store, self._matters = store, matters
        self._files: dict[tuple[str, str], File] = {}
        self.version = -1

    @property
    def files(self) -> Iterable[File]:
        """Those that matter, as of the version."""
        return self._files.values()

    def follow(self, version: int) -> None:
        """Go along with the log up to a version; from its checkpoint where it does not tell every step."""
        commits = commits_between(self._store, self.version, version) if self.version >= 0 else None
        for commit in commits or ():
            self._apply(commit)
        if commits is None:
            self._files = {}
            self._take(active_files(self._store, version).values())
        self.version = version

    def _apply(self, commit: Commit) -> None:
        for file in commit.removed:
            self._files.pop(file.key, None)
        self._take(commit.added)

    def _take(self, found: Iterable[File]) -> None:
        self._files |= {file.key: replace(file, stats="") for file in found if self._matters(file)}
