"""One storage layer: local folders and S3 behind the same few verbs, errors named once.

A `Profile` says how to reach a store; from it come the options of every engine (obstore, delta-rs, pyarrow, Spark).
A `Store` is a root in it. Puts are whole or not at all, and on local disk they have reached the disk when they return.
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
from headrace.storage.base import AlreadyThere, Backend, Meta, NotThere

__all__ = ["AlreadyThere", "Meta", "NotThere", "Profile", "Store", "clean", "parse_uri"]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_TRUE = ("1", "true", "on", "yes", "y")  # as object_store takes them
_HADOOP = {"access_key_id": "access.key", "secret_access_key": "secret.key", "session_token": "session.token"}


@dataclass(frozen=True, slots=True)
class Profile:
    """How to reach an object store; what is empty comes from the environment (AWS_…) when the profile is made.

    They are resolved here, because the engines read different variables, and Spark's workers may have been started
    before they were set. Profiles, roles and instances are left to each engine.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None  # None: where there is an endpoint
    allow_http: bool = False
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # aws_… or fs.s3a.…; they override

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
        """The options as obstore and delta-rs both spell them."""
        named = {
            "aws_endpoint": self.endpoint,
            "aws_region": self.region,
            "aws_virtual_hosted_style_request": "false" if self.path_style else "true",
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
        }
        given = {key: value for key, value in self.options.items() if not key.startswith("fs.")}
        return {key: value for key, value in named.items() if value} | given

    def deltalake_options(self) -> dict[str, str]:
        """Storage options of delta-rs; commits stay conditional puts."""
        options = self.object_options() | {"conditional_put": "etag"}
        return {**options, "aws_allow_http": "true"} if self.allow_http else options

    def arrow_options(self) -> dict[str, Any]:
        """What pyarrow's S3FileSystem is made with."""
        given = self.object_options()
        scheme, _, host = given.get("aws_endpoint", "").rpartition("://")
        named = {
            "access_key": given.get("aws_access_key_id"),
            "secret_key": given.get("aws_secret_access_key"),
            "session_token": given.get("aws_session_token"),
            "region": given.get("aws_region"),
            "endpoint_override": host,
            "scheme": scheme,
            "force_virtual_addressing": bool(host) and not self.path_style,
        }
        return {key: value for key, value in named.items() if value}

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
        given = {key: value for key, value in self.options.items() if key.startswith("fs.")}
        named = {f"fs.s3a.{name}": value for name, value in conf.items() if value}
        return {f"spark.hadoop.{name}": value for name, value in {**named, **given}.items()}


def _environment(*names: str) -> str:
    """The first of these variables that is set."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), "")


def _path_style(endpoint: str) -> bool:
    return bool(endpoint) and _environment("AWS_VIRTUAL_HOSTED_STYLE_REQUEST").lower() not in _TRUE


def clean(path: str) -> str:
    """A path below a root, as given; UsageError when it could leave the root or mean two things."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"{path!r} is not a path below a table or state folder.")
    return path


def parse_uri(uri: str) -> tuple[str, str]:
    """(bucket, prefix) of an S3 URI, ("", absolute path) of a local one; UsageError for anything else."""
    scheme, colon, _ = uri.partition("://")
    if "\0" in uri or "\\" in uri:
        raise UsageError(f"{uri!r} holds a character that no location has.")
    if not colon:
        return "", _absolute(uri)
    if scheme == "file":
        return "", _absolute(_file_path(uri))
    if scheme in ("s3", "s3a"):
        return _bucket_and_prefix(uri)
    raise UsageError(f"'{uri}': the scheme '{scheme}' is not known.", hint="Use a local path, file:// or s3://.")


def _absolute(path: str) -> str:
    if not path:
        raise UsageError("An empty text is not a location.")
    _refuse_ambiguous(path)
    return str(Path(path).expanduser().absolute()) if ".." not in Path(path).parts else str(Path(path).resolve())


def _refuse_ambiguous(path: str) -> None:
    """delta-rs decodes `%` and loses a table's history behind `?` and `#`; Spark and we take them as they are."""
    if re.search(r"[?#%]", path):
        raise UsageError(f"'{path}' holds one of ? # %, which readers take in different ways.")


def _file_path(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc or parts.query or parts.fragment or "?" in uri or "#" in uri:
        raise UsageError(f"'{uri}' is not file:///path: it names a host, a query or a fragment.")
    path = unquote(parts.path)
    clean(path.strip("/") or "x")
    return path


def _bucket_and_prefix(uri: str) -> tuple[str, str]:
    _, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"'{uri}' does not begin with the name of a bucket.", hint="Write s3://bucket/path.")
    _refuse_ambiguous(prefix)
    prefix = prefix.rstrip("/")
    return bucket, clean(prefix) if prefix else ""


class Store:
    """A folder of a local disk or of a bucket; cheap to make, safe to share between threads and to pickle."""

    def __init__(self, uri: str, profile: Profile | None = None) -> None:
        self.profile = profile or Profile()
        self.bucket, self.root = parse_uri(uri)
        self._backend: Backend | None = None

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_backend": None}  # connections stay in the process that made them

    @property
    def local(self) -> bool:
        """Whether the store is a folder of this machine."""
        return not self.bucket

    @property
    def uri(self) -> str:
        """The location as people read it: an absolute path, or s3://bucket/prefix."""
        return self.root if self.local else f"s3://{self.bucket}/{self.root}".rstrip("/")

    @property
    def delta_uri(self) -> str:
        """The location as delta-rs takes it; it decodes a plain path, so a local one is spelled as a URI."""
        return Path(self.root).as_uri() if self.local else self.uri

    @property
    def spark_uri(self) -> str:
        """The location as Spark takes it."""
        return self.root if self.local else f"s3a{self.uri.removeprefix('s3')}"

    @property
    def delta_options(self) -> dict[str, str]:
        """Storage options for delta-rs at this location."""
        return {} if self.local else self.profile.deltalake_options()

    def child(self, path: str) -> Store:
        """The store of a folder below."""
        inner = Store.__new__(Store)
        inner.profile, inner.bucket, inner._backend = self.profile, self.bucket, None
        inner.root = f"{self.root}/{clean(path)}" if self.root else clean(path)
        return inner

    def put_new(self, path: str, data: bytes) -> str:
        """Put-if-absent: the object's tag, or AlreadyThere."""
        return self._open().put_new(clean(path), data)

    def put(self, path: str, data: bytes) -> str:
        """Put, whatever was there: the object's tag."""
        return self._open().put(clean(path), data)

    def get(self, path: str) -> bytes:
        """The content; NotThere when there is none."""
        return self._open().get(clean(path))

    def tag(self, path: str) -> str | None:
        """The tag of an object without its content; None when there is no such object."""
        return self._open().tag(clean(path))

    def exists(self, path: str) -> bool:
        """Whether there is an object of that name."""
        return self.tag(path) is not None

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[Meta]:
        """All objects below a folder in the order of their paths, beginning past `after`."""
        return self._open().list(clean(prefix) if prefix else "", clean(after) if after else None)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """The folders right in a folder, in order, as paths below the root; none where there is no such folder."""
        return self._open().folders(clean(prefix) if prefix else "")

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; those that are not there do not matter."""
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
