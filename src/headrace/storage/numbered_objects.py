"""Numbered objects: a value that is replaced by putting the object with the next number if absent.

A conditional replace is not atomic in every store: with s3proxy 4.1.0, two writers succeeded in 22 of 60 races. The
Delta log requires put-if-absent anyway.
"""

from __future__ import annotations

from contextlib import suppress

from headrace.errors import HeadraceError
from headrace.storage.base import AlreadyExists, NotFound
from headrace.storage.store import Store

_KEPT = 4  # objects before the newest; older ones are deleted


class NumberedObjects:
    """A value in a folder of numbered objects; the newest one is valid."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, folder

    def newest(self) -> tuple[int, bytes | None]:
        """The number and content of the newest object; (0, None) if there is none."""
        while number := self.number():
            with suppress(NotFound):
                data = self._store.get(self._path(number))
                # Checked again: a writer that was suspended may have put an object that was deleted meanwhile.
                if self.number() == number:
                    return number, data
        return 0, None

    def number(self) -> int:
        """The number of the newest object; 0 if there is none."""
        names = (item.path.rpartition("/")[2] for item in self._store.list(self._folder))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def add(self, number: int, data: bytes) -> None:
        """Put the object with this number; AlreadyExists if another writer has used the number."""
        self._store.put_new(self._path(number), data)
        if self.number() != number:  # the number was used and its object deleted while this writer was suspended
            raise AlreadyExists(f"{self._store.uri}/{self._folder}: number {number} was used by another writer.")
        with suppress(HeadraceError):  # without permission to delete, the folder only grows
            self._store.delete([self._path(old) for old in range(max(number - 2 * _KEPT, 1), number - _KEPT)])

    def write(self, number: int, data: bytes) -> None:
        """Replace the object with this number; only for the writer that added it."""
        self._store.put(self._path(number), data)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012}"
