"""What every kind of storage shares: its verbs, its two answers besides success, one line of a listing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import AuthenticationFailed, HeadraceError, PermissionDenied, StorageFull, UsageError


class AlreadyThere(HeadraceError):
    """A put-if-absent met an object of that name."""


class NotThere(HeadraceError):
    """There is no object of that name."""


NEXT: dict[type[HeadraceError], str] = {
    StorageFull: "Make room there, then run again: it goes on where it was.",
    PermissionDenied: "Allow reading and writing there, then run again.",
    UsageError: "Look at storage.s3 and the environment (AWS_…): the client cannot make a request with them.",
    AuthenticationFailed: "Look at storage.s3 and the environment (AWS_…), then run again.",
}


@dataclass(frozen=True, slots=True)
class Meta:
    """One object of a listing."""

    path: str  # below the store's root
    size: int
    modified: float  # seconds since the epoch
    tag: str  # changes with the content


class Backend(Protocol):
    """What a kind of storage must do; paths are below its root."""

    def put_new(self, path: str, data: bytes) -> str: ...
    def put(self, path: str, data: bytes) -> str: ...
    def get(self, path: str) -> bytes: ...
    def tag(self, path: str) -> str | None: ...
    def list(self, prefix: str, after: str | None) -> Iterator[Meta]: ...
    def folders(self, prefix: str) -> Sequence[str]: ...
    def delete(self, paths: Sequence[str]) -> None: ...
