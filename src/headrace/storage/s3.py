"""S3 buckets through obstore: conditional puts, bounded time-outs, errors of Headrace."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import S3Store

from headrace.errors import (
    AuthenticationFailed,
    HeadraceError,
    PermissionDenied,
    StorageFull,
    StorageUnreachable,
    UsageError,
)
from headrace.storage.base import NEXT, AlreadyExists, NotFound, ObjectMeta

if TYPE_CHECKING:
    from headrace.storage.store import Profile

_CLIENT = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=60)}
# Few retries: the caller retries without limit, with back-off and events.
_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_BAD_KEYS = (
    r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|TokenRefreshRequired"
    r"|RequestTimeTooSkewed|AuthorizationHeaderMalformed|CredentialsNotLoaded|169\.254\.169\.254"
)
# Error codes of the server take precedence over the client's exception classes, which are less specific.
_CODES: tuple[tuple[re.Pattern[str], type[HeadraceError]], ...] = (
    (re.compile(_BAD_KEYS), AuthenticationFailed),
    (re.compile(r"QuotaExceeded|InsufficientStorage|507 |EntityTooLarge|XMinioStorageFull"), StorageFull),
    (re.compile(r"<Code>NoSuchBucket<"), PermissionDenied),  # a wrong name is not transient
    (re.compile(r"<Code>NoSuchKey<"), NotFound),
    (re.compile(r"\bbuilder error\b"), UsageError),  # the request cannot be built
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

_clients: dict[tuple[Any, ...], Any] = {}
_guard = threading.Lock()


def _client(bucket: str, profile: Profile) -> Any:
    """One client per bucket and process; all tables share its connections."""
    options = profile.object_options()
    key = (os.getpid(), bucket, profile.allow_http, tuple(sorted(options.items())))
    with _guard:
        if key not in _clients:
            _check_endpoint(options.get("aws_endpoint", ""), profile.allow_http)
            client = {**_CLIENT, "allow_http": profile.allow_http}
            _clients[key] = S3Store(bucket, config=options, client_options=client, retry_config=_RETRY)
        return _clients[key]


def _check_endpoint(endpoint: str, allow_http: bool) -> None:
    """UsageError for an invalid address; obstore would fail at each request, or panic."""
    if not endpoint:
        return
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            f"Invalid S3 endpoint: '{endpoint}'.",
            hint="Set storage.s3.endpoint or AWS_ENDPOINT_URL to https://host:port.",
        )
    if parts.scheme == "http" and not allow_http:
        raise UsageError(
            f"The S3 endpoint {endpoint} is not encrypted.",
            hint="Use https://, or set storage.s3.allow_http: true or AWS_ALLOW_HTTP=true if that is intended.",
        )


class Bucket:
    """A storage backend over one prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str, profile: Profile) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = profile.object_options().get("aws_endpoint", "")
        with self._named(""):
            self._client = _client(bucket, profile)

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.BaseError, OSError, ValueError) as error:
            kind = _kind(error)
            at = f" (at {self._endpoint})" if self._endpoint and kind is StorageUnreachable else ""
            message = f"s3://{self._bucket}/{self._prefix}{path}{at}: {_cause(error)}"
            raise kind(message, hint=NEXT.get(kind, "")) from None

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
                    yield ObjectMeta(path, item["size"], item["last_modified"].timestamp(), _tag(item))

    def folders(self, prefix: str) -> Sequence[str]:
        folder = (self._prefix + prefix).rstrip("/") or None
        with self._named(prefix):
            prefixes = obstore.list_with_delimiter(self._client, folder)["common_prefixes"]
        return sorted(path.rstrip("/").removeprefix(self._prefix) for path in prefixes)

    def delete(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        with self._named(paths[0]):
            obstore.delete(self._client, [self._prefix + path for path in paths])


def _tag(meta: Any) -> str:
    return str(meta["e_tag"] or "")


def _message(error: Exception) -> str:
    """The client's message without its debug dump, whose field names look like causes."""
    return str(error).partition("Debug source:")[0]


def _kind(error: Exception) -> type[HeadraceError]:
    text = _message(error)
    for pattern, kind in _CODES:
        if pattern.search(text):
            return kind
    return next((kind for theirs, kind in _KINDS if isinstance(error, theirs)), StorageUnreachable)


def _cause(error: Exception) -> str:
    """The server's code and message; never the request, whose headers and URL may contain credentials."""
    text = _message(error)
    if "169.254.169.254" in text:
        return "No credentials found in the spec, the environment or the instance metadata."
    code = re.search(r"<Code>([^<]{1,80})</Code>", text)
    message = re.search(r"<Message>([^<]{1,200})</Message>", text)
    status = re.search(r"\b([1-5]\d\d [A-Z][A-Za-z ]{2,40})", text)
    cause = re.search(
        r"(timed out|[Cc]onnection (?:refused|reset|closed)|dns error|tcp connect error|error sending request)", text
    )
    # The error of the operating system is only in the dump; fixed phrases contain no credentials.
    system = re.search(
        r"\b(Connection refused|Connection reset|No route to host|Name or service not known)", str(error)
    )
    parts = [item[1] for item in (code, message, status, system or cause) if item]
    return ": ".join(dict.fromkeys(parts)) + "." if parts else f"{type(error).__name__}."
