"""Stores: folders of a local disk or of an S3 bucket.

A `Profile` has the connection settings, and derives the options of every engine from them (obstore, delta-rs, pyarrow,
Spark). A `Store` is a folder. Puts are atomic; on local disk they are durable when they return.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.errors import UsageError
from headrace.storage.base import AlreadyExists, Backend, NotFound, ObjectMeta

__all__ = ["AlreadyExists", "NotFound", "ObjectMeta", "Profile", "Store", "clean", "parse_uri"]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_TRUE = ("1", "true", "on", "yes", "y")  # as in object_store
_HADOOP = {"access_key_id": "access.key", "secret_access_key": "secret.key", "session_token": "session.token"}


@dataclass(frozen=True, slots=True)
class Profile:
    """Connection settings of an object store; empty ones are taken from the environment (AWS_…).

    The environment is read here, because the engines read different variables, and Spark's workers may have been
    started before they were set. AWS profiles, roles and instance metadata are left to each engine.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None  # None: if there is an endpoint
    allow_http: bool = False
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # aws_… or fs.s3a.…; override the others

    def __post_init__(self) -> None:
        endpoint = self.endpoint or _environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        region = self.region or _environment("AWS_REGION", "AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else "")
        resolved: dict[str, str | bool] = {
            "endpoint": endpoint,
            "region": region,
            "path_style": _path_style(endpoint) if self.path_style is None else self.path_style,
            "allow_http": self.allow_http or _environment("AWS_ALLOW_HTTP").lower() in _TRUE,
        }
        if not self.access_key_id and not self.secret_access_key:
            resolved |= {name: _environment(f"AWS_{name.upper()}") for name in _HADOOP}
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    def object_options(self) -> dict[str, str]:
        """Options of obstore and delta-rs."""
        options = {
            "aws_endpoint": self.endpoint,
            "aws_region": self.region,
            "aws_virtual_hosted_style_request": "false" if self.path_style else "true",
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
        }
        overrides = {key: value for key, value in self.options.items() if not key.startswith("fs.")}
        return {key: value for key, value in options.items() if value} | overrides

    def deltalake_options(self) -> dict[str, str]:
        """Storage options of delta-rs, with conditional puts."""
        options = self.object_options() | {"conditional_put": "etag"}
        return {**options, "aws_allow_http": "true"} if self.allow_http else options

    def arrow_options(self) -> dict[str, Any]:
        """Arguments of pyarrow's S3FileSystem."""
        options = self.object_options()
        scheme, _, host = options.get("aws_endpoint", "").rpartition("://")
        arguments = {
            "access_key": options.get("aws_access_key_id"),
            "secret_key": options.get("aws_secret_access_key"),
            "session_token": options.get("aws_session_token"),
            "region": options.get("aws_region"),
            "endpoint_override": host,
            "scheme": scheme,
            "force_virtual_addressing": bool(host) and not self.path_style,
        }
        return {key: value for key, value in arguments.items() if value}

    def hadoop_conf(self) -> dict[str, str]:
        """Spark settings for the s3a file system."""
        conf = {
            "endpoint": self.endpoint,
            "endpoint.region": self.region,
            "path.style.access": "true" if self.path_style else "",
            "connection.ssl.enabled": "false" if self.endpoint.startswith("http://") else "",
            **{name: getattr(self, key) for key, name in _HADOOP.items()},
        }
        if self.session_token:
            conf["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        elif self.access_key_id:
            conf["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
        overrides = {key: value for key, value in self.options.items() if key.startswith("fs.")}
        settings = {f"fs.s3a.{name}": value for name, value in conf.items() if value}
        return {f"spark.hadoop.{name}": value for name, value in {**settings, **overrides}.items()}


def _environment(*names: str) -> str:
    """The first of these environment variables that is set."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), "")


def _path_style(endpoint: str) -> bool:
    return bool(endpoint) and _environment("AWS_VIRTUAL_HOSTED_STYLE_REQUEST").lower() not in _TRUE


def clean(path: str) -> str:
    """Return a path below a root unchanged; UsageError if it could leave the root or is ambiguous."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"Invalid path below a table or state folder: {path!r}.")
    return path


def parse_uri(uri: str) -> tuple[str, str]:
    """(bucket, prefix) of an S3 URI, ("", absolute path) of a local path; UsageError for anything else."""
    scheme, colon, _ = uri.partition("://")
    if "\0" in uri or "\\" in uri:
        raise UsageError(f"Invalid character in the location {uri!r}.")
    if not colon:
        return "", _absolute(uri)
    if scheme == "file":
        return "", _absolute(_file_path(uri))
    if scheme in ("s3", "s3a"):
        return _bucket_and_prefix(uri)
    raise UsageError(f"Unknown scheme '{scheme}' in '{uri}'.", hint="Use a local path, file:// or s3://.")


def _absolute(path: str) -> str:
    if not path:
        raise UsageError("The location is empty.")
    _refuse_ambiguous(path)
    return str(Path(path).expanduser().absolute()) if ".." not in Path(path).parts else str(Path(path).resolve())


def _refuse_ambiguous(path: str) -> None:
    """UsageError for ? # %: delta-rs decodes `%` and drops what follows `?` and `#`; Spark takes them literally."""
    if re.search(r"[?#%]", path):
        raise UsageError(f"'{path}' contains one of ? # %, which readers interpret differently.")


def _file_path(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc or parts.query or parts.fragment or "?" in uri or "#" in uri:
        raise UsageError(f"'{uri}' is not of the form file:///path: it has a host, a query or a fragment.")
    path = unquote(parts.path)
    clean(path.strip("/") or "x")
    return path


def _bucket_and_prefix(uri: str) -> tuple[str, str]:
    _, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"Invalid bucket name in '{uri}'.", hint="Use s3://bucket/path.")
    _refuse_ambiguous(prefix)
    prefix = prefix.rstrip("/")
    return bucket, clean(prefix) if prefix else ""


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
        return not self.bucket

    @property
    def uri(self) -> str:
        """The location for messages: an absolute path, or s3://bucket/prefix."""
        return self.root if self.local else f"s3://{self.bucket}/{self.root}".rstrip("/")

    @property
    def delta_uri(self) -> str:
        """The location for delta-rs: a URI also for local paths, because it URL-decodes plain paths."""
        return Path(self.root).as_uri() if self.local else self.uri

    @property
    def spark_uri(self) -> str:
        """The location for Spark."""
        return self.root if self.local else f"s3a{self.uri.removeprefix('s3')}"

    @property
    def delta_options(self) -> dict[str, str]:
        """Storage options for delta-rs at this location."""
        return {} if self.local else self.profile.deltalake_options()

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

    def _open(self) -> Backend:
        if self._backend is None:
            self._backend = _backend(self)
        return self._backend


def _backend(store: Store) -> Backend:
    if store.local:
        from headrace.storage.local import LocalFolder

        return LocalFolder(store.root)
    from headrace.storage.s3 import Bucket

    return Bucket(store.bucket, store.root, store.profile)
