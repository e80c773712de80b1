"""The interface of storage backends, the errors they share, and an entry of a listing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from headrace.errors import (
    AuthenticationFailed,
    EndpointInvalid,
    HeadraceError,
    PermissionDenied,
    StorageFull,
    StorageUnsupported,
    UsageError,
)


class AlreadyExists(HeadraceError):
    """A put-if-absent failed because the object exists."""


class NotFound(HeadraceError):
    """The object does not exist."""


# What to do, by error; {section} is the part of the spec, {variables} those of the environment.
HINTS: dict[type[HeadraceError], str] = {
    StorageUnsupported: "Use an object store that supports conditional writes (If-None-Match).",
    StorageFull: "Free space there, then run again; the pipeline continues where it stopped.",
    PermissionDenied: "Grant read and write access there, then run again.",
    UsageError: "Check {section} and the environment ({variables}): the client cannot send a request with these "
    "values.",
    AuthenticationFailed: "Check {section} and the environment ({variables}), then run again.",
    EndpointInvalid: "Check endpoint and region in {section} and the environment ({variables}), and the certificate of "
    "the server (for a private CA, set SSL_CERT_FILE), then run again.",
}


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object in a listing."""

    path: str  # below the store's root
    size: int
    modified: float  # seconds since the epoch
    tag: str  # changes with the content


class Backend(Protocol):
    """A kind of storage; paths are relative to its root."""

    def put_new(self, path: str, data: bytes) -> str: ...
    def put(self, path: str, data: bytes) -> str: ...
    def get(self, path: str) -> bytes: ...
    def read(self, path: str, start: int, until: int) -> bytes: ...
    def tag(self, path: str) -> str | None: ...
    def list(self, prefix: str, after: str | None) -> Iterator[ObjectMeta]: ...
    def folders(self, prefix: str) -> Sequence[str]: ...
    def delete(self, paths: Sequence[str]) -> None: ...
    def open(self, path: str) -> BinaryIO: ...
    def move(self, path: str, target: str) -> None: ...
