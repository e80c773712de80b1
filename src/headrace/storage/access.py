"""Access to one kind of object store: its settings, and the options that each engine needs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import urlsplit

from headrace.errors import UsageError
from headrace.storage.bucket import Bucket

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_guard = threading.RLock()  # of the environment
TRUE = ("1", "true", "on", "yes", "y")  # as in object_store


class ObjectStoreAccess(Protocol):
    """What a kind of object store offers to the engines: obstore, delta-rs, pyarrow and Spark."""

    section: ClassVar[str]  # of the spec, for messages
    variables: ClassVar[str]  # of the environment, for messages
    jars: ClassVar[str]  # group of the lock file

    def endpoint_of(self, bucket: Bucket) -> str:
        """Address of the store, if it is not the public one."""

    def cache_key(self, bucket: Bucket) -> tuple[Any, ...]:
        """All settings of a client."""

    def client(self, bucket: Bucket, client_options: Mapping[str, Any], retry_config: Mapping[str, Any]) -> Any:
        """A client of obstore; UsageError for settings that cannot work."""

    def deltalake_options(self, bucket: Bucket) -> dict[str, str]:
        """Storage options of delta-rs."""

    def excluded_variables(self) -> Sequence[str]:
        """Environment variables that delta-rs must not see, as it would use them beside or before its options."""

    def arrow_filesystem(self, bucket: Bucket, *, create_bucket: bool = False) -> FileSystem:
        """File system of pyarrow, whose paths begin with the name of the bucket."""

    def spark_root(self, bucket: Bucket) -> str:
        """URI of the bucket for Spark."""

    def hadoop_conf(self, bucket: Bucket) -> dict[str, str]:
        """Hadoop settings for this bucket."""


def environment(*names: str) -> str:
    """The first of these environment variables that is set."""
    with _guard:
        return next((value for name in names if (value := os.environ.get(name, "").strip())), "")


@contextmanager
def without_variables(names: Iterable[str]) -> Iterator[None]:
    """Unset environment variables within the block, which waits for other such blocks if any of them is set."""
    if not (present := [name for name in names if name in os.environ]):
        yield
        return
    with _guard:
        hidden = {name: os.environ.pop(name) for name in present if name in os.environ}
        try:
            yield
        finally:
            os.environ.update(hidden)


def is_set(*names: str) -> bool:
    """Whether one of these environment variables is true."""
    return environment(*names).lower() in TRUE


def check_endpoint(endpoint: str, allow_http: bool, store: str, section: str, variables: tuple[str, str]) -> None:
    """UsageError for an invalid address; obstore would fail at each request, or panic."""
    if not endpoint:
        return
    address, allowed = variables
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            f"Invalid {store} endpoint: '{endpoint}'.",
            hint=f"Set {section}.endpoint or {address} to https://host:port.",
        )
    if parts.scheme == "http" and not allow_http:
        raise UsageError(
            f"The {store} endpoint {endpoint} is not encrypted.",
            hint=f"Use https://, or set {section}.allow_http: true or {allowed}=true if that is intended.",
        )
