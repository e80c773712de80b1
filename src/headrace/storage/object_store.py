"""Object stores through obstore: conditional puts, bounded time-outs, errors of Headrace."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, BinaryIO, cast

import obstore
from obstore import exceptions

from headrace.errors import (
    AuthenticationFailed,
    EndpointInvalid,
    HeadraceError,
    PermissionDenied,
    StorageFull,
    StorageUnreachable,
    StorageUnsupported,
    UsageError,
)
from headrace.storage.access import ObjectStoreAccess
from headrace.storage.base import HINTS, AlreadyExists, NotFound, ObjectMeta
from headrace.storage.bucket import Bucket

_CLIENT = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=60)}
# Few retries: the caller retries without limit, with back-off and events.
_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_READ_SIZE = 1 << 20  # minimum bytes of a request for a part of an object
_DELETE_INTERVALS = (0.1, 0.5, 2.0)  # seconds between attempts
_METADATA = re.compile(r"https?://(?:169\.254\.169\.254|metadata\.google\.internal|169\.254\.170\.2)[:/]")
_BAD_KEYS = (
    r"<Code>(?:InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|TokenRefreshRequired"
    r"|RequestTimeTooSkewed|AuthorizationHeaderMalformed|AuthenticationFailed<"
    r"|InvalidAuthenticationInfo|NoAuthenticationInformation)"
    r"|CredentialsNotLoaded|\binvalid_(?:grant|client)\b"
)
_NO_BUCKET = re.compile(r"<Code>(?:NoSuchBucket|ContainerNotFound)<")
# Before the answer, messages name the object twice. Example: Object at location lake/507 not found: Error performing
# GET http://host/lake/507 in 1.7ms - Server returned non-2xx status code: 404 Not Found: <Error><Code>…
_REQUEST = re.compile(r"Error performing [A-Z]+ \S+ in .*?- ", re.DOTALL)
_STATUS = "^Server returned non-2xx status code:"
# Error codes of the server take precedence over the client's exception classes, which are less specific.
_CODES: tuple[tuple[re.Pattern[str], type[HeadraceError]], ...] = (
    (re.compile(_BAD_KEYS), AuthenticationFailed),
    (
        re.compile(
            rf"{_STATUS} 507|<Code>(?:[A-Za-z]*QuotaExceeded|InsufficientStorage|EntityTooLarge|XMinioStorageFull)"
        ),
        StorageFull,
    ),
    (_NO_BUCKET, PermissionDenied),  # a wrong name is not transient
    (re.compile(rf"{_STATUS} 501|<Code>NotImplemented<"), StorageUnsupported),
    (re.compile(rf"{_STATUS} 301|<Code>PermanentRedirect<|^Received redirect without LOCATION"), EndpointInvalid),
    (re.compile(r"<Code>(?:NoSuchKey|BlobNotFound)<"), NotFound),
    (re.compile(r"\bbuilder error\b|InvalidUri"), UsageError),  # the request cannot be built
)
_KINDS: tuple[tuple[type[Exception], type[HeadraceError]], ...] = (
    (exceptions.UnknownConfigurationKeyError, UsageError),
    (exceptions.AlreadyExistsError, AlreadyExists),
    (exceptions.PreconditionError, AlreadyExists),
    (exceptions.NotFoundError, NotFound),
    (FileNotFoundError, NotFound),
    (exceptions.UnauthenticatedError, AuthenticationFailed),
    (exceptions.PermissionDeniedError, PermissionDenied),
)
# Causes of a failed connection that another attempt does not remove. They are only in the client's debug dump.
_PERMANENT = re.compile(
    r"(invalid peer certificate: \w+|certificate (?:not valid|verify failed|expired)[^\",]{0,60}"
    r"|UnknownIssuer|CertExpired|NotValidForName|InvalidContentType"
    r"|Name or service not known|No address associated with hostname|nodename nor servname provided)"
)

_CREATE = "Create it, or correct the path. In a local stack, `storage.create_bucket: true` creates it."
_NO_TLS = "InvalidContentType"  # in the client's words

_clients: dict[tuple[Any, ...], Any] = {}
_guard = threading.Lock()


def _client(bucket: Bucket, access: ObjectStoreAccess) -> Any:
    """One client per bucket and process; all tables share its connections."""
    key = (os.getpid(), bucket, *access.cache_key(bucket))
    with _guard:
        if key not in _clients:
            _clients[key] = access.client(bucket, _CLIENT, _RETRY)
        return _clients[key]


class ObjectStore:
    """A storage backend over one prefix of a bucket."""

    def __init__(self, bucket: Bucket, prefix: str, access: ObjectStoreAccess) -> None:
        self._bucket, self._access = bucket, access
        self._prefix = f"{prefix}/" if prefix else ""
        with self._named(""):
            self._client = _client(bucket, access)

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        """Raise errors of the client as errors of Headrace."""
        try:
            yield
        except exceptions.InvalidPathError as error:
            raise UsageError(
                f"{self._bucket.uri}/{self._prefix}{path} cannot be listed: {' '.join(_message(error).split())[:300]}",
                hint="Rename or delete the object, or use another prefix.",
            ) from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            kind, endpoint = _kind(error), self._access.endpoint_of(self._bucket)
            at = f" (at {endpoint})" if endpoint and kind in (StorageUnreachable, EndpointInvalid) else ""
            hint = _CREATE if _NO_BUCKET.search(_answer(error)) else HINTS.get(kind, "")
            hint = hint.format(section=self._access.section, variables=self._access.variables)
            raise kind(f"{self._bucket.uri}/{self._prefix}{path}{at}: {_cause(error)}", hint=hint) from None

    def put_new(self, path: str, data: bytes) -> str:
        with self._named(path):
            return _tag(obstore.put(self._client, self._prefix + path, data, mode="create", use_multipart=False))

    def put(self, path: str, data: bytes) -> str:
        with self._named(path):
            return _tag(obstore.put(self._client, self._prefix + path, data))

    def get(self, path: str) -> bytes:
        with self._named(path):
            return bytes(obstore.get(self._client, self._prefix + path).bytes())

    def tag(self, path: str) -> str | None:
        try:
            with self._named(path):
                return _tag(obstore.head(self._client, self._prefix + path))
        except NotFound:
            return None

    def list(self, prefix: str, after: str | None) -> Iterator[ObjectMeta]:
        folder = (self._prefix + prefix).rstrip("/") or None
        offset = self._prefix + after if after else None
        with self._named(prefix):
            for chunk in obstore.list(self._client, folder, offset=offset):
                for item in chunk:
                    path = item["path"].removeprefix(self._prefix)
                    if after is not None and path <= after:  # Azurite ignores the offset
                        continue
                    yield ObjectMeta(path, item["size"], item["last_modified"].timestamp(), _tag(item))

    def folders(self, prefix: str) -> Sequence[str]:
        folder = (self._prefix + prefix).rstrip("/") or None
        with self._named(prefix):
            prefixes = obstore.list_with_delimiter(self._client, folder)["common_prefixes"]
        return sorted(path.rstrip("/").removeprefix(self._prefix) for path in prefixes)

    def delete(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        for seconds in _DELETE_INTERVALS:
            try:
                return self._delete(paths)
            except StorageUnreachable:  # a vacuum deletes thousands of objects: try more often than the client does
                time.sleep(seconds)
        return self._delete(paths)

    def open(self, path: str) -> BinaryIO:
        with self._named(path):
            size = obstore.head(self._client, self._prefix + path)["size"]
        return cast(BinaryIO, io.BufferedReader(_ObjectFile(self, path, size), _READ_SIZE))

    def read(self, path: str, start: int, until: int) -> bytes:
        """A part of an object."""
        with self._named(path):
            return bytes(obstore.get_range(self._client, self._prefix + path, start=start, end=until))

    def move(self, path: str, target: str) -> None:
        source = self._prefix + path
        with self._named(path):
            obstore.copy(self._client, source, target)
            sizes = {obstore.head(self._client, each)["size"] for each in (source, target)}
        if len(sizes) > 1:  # a server without copies takes the request for a put without content
            raise StorageUnsupported(f"{self._bucket.uri}/{source} was copied to {target} with another size.")
        self.delete([path])

    def _delete(self, paths: Sequence[str]) -> None:
        try:
            with self._named(paths[0]):
                obstore.delete(self._client, [self._prefix + path for path in paths])
        except NotFound:  # Azure and GCS end at the first missing object
            for path in paths:
                with suppress(NotFound), self._named(path):
                    obstore.delete(self._client, self._prefix + path)


class _ObjectFile(io.RawIOBase):
    """An object that is read by ranges."""

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        until = min(self._at + len(buffer), self._size)
        if until <= self._at:
            return 0
        data = self._store.read(self._path, self._at, until)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _tag(meta: Any) -> str:
    return str(meta["e_tag"] or "").strip('"')  # Azure quotes it in some responses


def _message(error: Exception) -> str:
    """The client's message without its debug dump, whose field names look like causes."""
    return str(error).partition("Debug source:")[0]


def _answer(error: Exception) -> str:
    """The message without the names of objects before it, which may look like status codes."""
    return _REQUEST.split(_message(error), maxsplit=1)[-1]


def _kind(error: Exception) -> type[HeadraceError]:
    if _METADATA.search(_message(error)):
        return AuthenticationFailed
    answer = _answer(error)
    for pattern, kind in _CODES:
        if pattern.search(answer):
            return kind
    for theirs, kind in _KINDS:
        if isinstance(error, theirs):
            return kind
    return EndpointInvalid if _PERMANENT.search(str(error)) else StorageUnreachable


def _cause(error: Exception) -> str:
    """The server's code and message; never the request, whose headers and URL may contain credentials."""
    if _METADATA.search(_message(error)):
        return "No credentials found in the spec, the environment or the instance metadata."
    text = _answer(error)
    code = re.search(r"<Code>([^<]{1,80})</Code>", text)
    message = re.search(r"<Message>([^<]{1,200})</Message>", text)
    status = re.search(r"\b([1-5]\d\d [A-Z][A-Za-z ]{2,40})", text)
    cause = re.search(
        r"(timed out|[Cc]onnection (?:refused|reset|closed)|dns error|tcp connect error|error sending request)", text
    )
    # The error of the operating system is only in the dump; fixed phrases contain no credentials.
    system = _PERMANENT.search(str(error)) or re.search(
        r"\b(Connection refused|Connection reset|No route to host)", str(error)
    )
    parts = [item[1].strip() for item in (code, message, status, system or cause) if item]
    parts = ["the server does not use TLS" if part == _NO_TLS else part for part in parts]
    return ": ".join(dict.fromkeys(parts)) + "." if parts else f"{type(error).__name__}."
