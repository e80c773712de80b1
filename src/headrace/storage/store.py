"""Stores: folders of a local disk or of a bucket. Puts are atomic; on local disk they are durable when they return."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import PermissionDenied, StorageUnsupported
from headrace.storage.access import ObjectStoreAccess, without_variables
from headrace.storage.base import HINTS, AlreadyExists, Backend, NotFound, ObjectMeta
from headrace.storage.bucket import Bucket, clean, parse_uri
from headrace.storage.profile import Profile

__all__ = ["AlreadyExists", "Bucket", "NotFound", "ObjectMeta", "Profile", "Store", "clean", "parse_uri"]


class Store:
    """A folder of a local disk or of a bucket. Cheap to create, thread-safe, and can be pickled."""

    def __init__(self, uri: str, profile: Profile | None = None) -> None:
        self.profile = profile or Profile()
        self.bucket, self.root = parse_uri(uri)
        self._backend: Backend | None = None

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_backend": None}  # connections stay in their process

    @property
    def local(self) -> bool:
        """Whether the store is a local folder."""
        return self.bucket is None

    @property
    def access(self) -> ObjectStoreAccess:
        """Access to the object store of this folder."""
        return self.profile.access(self._required_bucket().kind)

    def _required_bucket(self) -> Bucket:
        if self.bucket is None:
            raise ValueError(f"{self.root} is a local directory")
        return self.bucket

    @property
    def uri(self) -> str:
        """The location for messages: an absolute path, or the URI of an object store."""
        return self.root if self.bucket is None else f"{self.bucket.uri}/{self.root}".rstrip("/")

    @property
    def delta_uri(self) -> str:
        """The location for delta-rs: a URI also for local paths, because it URL-decodes plain paths."""
        return Path(self.root).as_uri() if self.local else self.uri

    @property
    def spark_uri(self) -> str:
        """The location for Spark."""
        return self.root if self.bucket is None else f"{self.access.spark_root(self.bucket)}/{self.root}".rstrip("/")

    @property
    def delta_options(self) -> dict[str, str]:
        """Storage options for delta-rs at this location."""
        return {} if self.bucket is None else self.access.deltalake_options(self.bucket)

    def delta_environment(self) -> AbstractContextManager[None]:
        """The environment in which delta-rs uses the options, and no credentials beside them."""
        return nullcontext() if self.bucket is None else without_variables(self.access.excluded_variables())

    @property
    def hadoop_conf(self) -> dict[str, str]:
        """Hadoop settings for this location."""
        return {} if self.bucket is None else self.access.hadoop_conf(self.bucket)

    def configure_spark(self, spark: Any) -> None:
        """Give the settings of this location to a Spark session."""
        from headrace.runtime.session import configure_storage  # commands without Spark import this module

        if self.bucket is not None:
            configure_storage(spark, self.hadoop_conf, self.access.jars)

    def verify_conditional_puts(self) -> None:
        """Write, read and delete an object; StorageUnsupported if put-if-absent replaces it."""
        probe, content = f".check-{uuid.uuid4().hex}", b"headrace check"  # others may verify the same directory now
        self.put(probe, content)
        try:
            with suppress(AlreadyExists):
                self.put_new(probe, b"again")
                raise StorageUnsupported(
                    f"{self.uri}: the object store does not support put-if-absent.", hint=HINTS[StorageUnsupported]
                )
            if self.get(probe) != content:
                raise StorageUnsupported(f"{self.uri}: the object store returned other bytes than were written.")
        finally:
            self.delete([probe])

    def bucket_exists(self) -> bool:
        """Whether the bucket or container exists."""
        from pyarrow.fs import FileType

        bucket = self._required_bucket()
        return self.access.arrow_filesystem(bucket).get_file_info(bucket.name).type is not FileType.NotFound

    def create_bucket(self) -> None:
        """Create the bucket or container, private, if it does not exist; local folders are created by puts."""
        if self.bucket is None:
            return
        try:
            if not self.bucket_exists():
                self.access.arrow_filesystem(self.bucket, create_bucket=True).create_dir(self.bucket.name)
        except OSError as error:  # its message may contain the URL of the request, and with it a signature
            raise PermissionDenied(
                f"{self.bucket.uri} cannot be created: {type(error).__name__}.",
                hint=f"Check {self.access.section}, or create the bucket and remove storage.create_bucket.",
            ) from None

    def child(self, path: str) -> Store:
        """The store of a subfolder."""
        inner = Store.__new__(Store)
        inner.profile, inner.bucket, inner._backend = self.profile, self.bucket, None
        inner.root = f"{self.root}/{clean(path)}" if self.root else clean(path)
        return inner

    def put_new(self, path: str, data: bytes) -> str:
        """Put the object if absent; returns its tag, AlreadyExists if it exists."""
        return self._open().put_new(clean(path), data)

    def put(self, path: str, data: bytes) -> str:
        """Put or replace the object; returns its tag."""
        return self._open().put(clean(path), data)

    def get(self, path: str) -> bytes:
        """The content of the object; NotFound if it does not exist."""
        return self._open().get(clean(path))

    def read(self, path: str, start: int, until: int) -> bytes:
        """A part of the object, which may end before `until`; NotFound if it does not exist."""
        return self._open().read(clean(path), start, until)

    def tag(self, path: str) -> str | None:
        """The tag of the object, which changes with its content; None if it does not exist."""
        return self._open().tag(clean(path))

    def exists(self, path: str) -> bool:
        """Whether the object exists."""
        return self.tag(path) is not None

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[ObjectMeta]:
        """All objects below a folder in the order of their paths, starting after `after`."""
        return self._open().list(clean(prefix) if prefix else "", clean(after) if after else None)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """The direct subfolders of a folder, sorted, as paths below the root; empty if the folder does not exist."""
        return self._open().folders(clean(prefix) if prefix else "")

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        self._open().delete([clean(path) for path in paths])

    def open(self, path: str) -> BinaryIO:
        """The object as a file that is read in parts; NotFound if it does not exist."""
        return self._open().open(clean(path))

    def move(self, path: str, target: Store) -> None:
        """Move the object to the same path below another folder of the same disk or bucket, replacing what is there.

        An interrupted move of an object store leaves both objects, and can be repeated.
        """
        self._open().move(clean(path), f"{target.root}/{path}" if target.root else path)

    def _open(self) -> Backend:
        if self._backend is None:
            self._backend = _backend(self)
        return self._backend


def _backend(store: Store) -> Backend:
    if store.bucket is None:
        from headrace.storage.local import LocalFolder

        return LocalFolder(store.root)
    from headrace.storage.object_store import ObjectStore

    return ObjectStore(store.bucket, store.root, store.access)
