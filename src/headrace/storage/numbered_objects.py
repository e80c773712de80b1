"""A chain: numbered objects in a folder, each put if absent; the newest one counts.

It replaces a value without a conditional replace, which not every store keeps atomic: s3proxy 4.1.0 let two writers
through in 22 of 60 races. Put-if-absent is the one condition the Delta log rests on already.
"""

from __future__ import annotations

from contextlib import suppress

from headrace.errors import HeadraceError
from headrace.storage.base import AlreadyThere, NotThere
from headrace.storage.store import Store

_KEPT = 4  # objects behind the newest; older ones are dropped


class NumberedObjects:
    """One value and its history of a few."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, folder

    def newest(self) -> tuple[int, bytes | None]:
        """The number and content of the newest object; (0, None) when there is none."""
        while number := self.number():
            with suppress(NotThere):
                data = self._store.get(self._path(number))
                # Looked at again: an object that was dropped may be put once more by one that slept.
                if self.number() == number:
                    return number, data
        return 0, None

    def number(self) -> int:
        """The number of the newest object, 0 when there is none."""
        names = (item.path.rpartition("/")[2] for item in self._store.list(self._folder))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def add(self, number: int, data: bytes) -> None:
        """Put the object of this number; AlreadyThere when it is, or was, another's."""
        self._store.put_new(self._path(number), data)
        if self.number() != number:  # we slept so long that the number was used and its object dropped
            raise AlreadyThere(f"{self._store.uri}/{self._folder} is past {number}.")
        with suppress(HeadraceError):  # these credentials may not delete: then the chain grows, no more
            self._store.delete([self._path(old) for old in range(max(number - 2 * _KEPT, 1), number - _KEPT)])

    def write(self, number: int, data: bytes) -> None:
        """Write the object of this number again; for whoever added it."""
        self._store.put(self._path(number), data)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012}"
