"""Storage paths: local directories and object stores, in a form that all clients interpret alike."""

from __future__ import annotations

import os.path
import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, ValidationInfo, WithJsonSchema

from headrace.spec.secrets import base_of

PATH_FORMS = (
    "a directory, file:///path, s3://bucket/key, gs://bucket/key, az://container/key or "
    "abfss://container@account.dfs.core.windows.net/key"
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ROUTE = "[A-Za-z0-9][A-Za-z0-9._-]*"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_CONTAINER = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}|\$root")
_ACCOUNT_HOST = re.compile(r"[a-z0-9]{3,24}\.dfs\.[a-z0-9-]+(?:\.[a-z0-9-]+)+")
# Characters with a meaning to one of the clients: globs in Spark, escapes and queries in URLs.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\%?#*\[\]]")
_CANONICAL = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "abfss", "abfss": "abfss"}
_ABFSS = "abfss://container@account.dfs.core.windows.net/key"
# Schemes of other systems, and the supported path to use instead.
_UNSUPPORTED = {
    "hdfs": "an object store, or a directory where HDFS is mounted (put-if-absent on HDFS is not tested)",
    "webhdfs": "an object store, or a directory where HDFS is mounted",
    "viewfs": "the path of the object store behind it",
    "dbfs": "the path of the object store behind it",
    "ofs": "s3://bucket/key with the S3 gateway of Ozone as the endpoint",
    "o3fs": "s3://bucket/key with the S3 gateway of Ozone as the endpoint",
    "wasb": _ABFSS,
    "wasbs": _ABFSS,
    "adl": _ABFSS,
    "azure": "az://container/key",
    "gcs": "gs://bucket/key",
    "s3n": "s3://bucket/key",
    "oss": "s3://bucket/key with the S3-compatible endpoint of the store",
    "cosn": "s3://bucket/key with the S3-compatible endpoint of the store",
    "obs": "s3://bucket/key with the S3-compatible endpoint of the store",
}


def storage_path(text: str, info: ValidationInfo) -> str:
    """Normalise to an absolute path or the URI of an object; a ValueError states the expected form."""
    if match := _UNSAFE.search(text):
        raise ValueError(f"a path without {match[0]!r}")
    if text.startswith("file:"):
        return os.path.normpath(_file_path(text))
    if _SCHEME.match(text):
        root, key = split_object_uri(text)
        if not key:
            raise ValueError(f"{root}/key, with a key")
        return f"{root}/{key}"
    if not text.strip() or text.startswith("~"):
        raise ValueError(f"{PATH_FORMS} ('~' is not expanded)")
    return os.path.normpath(base_of(info) / text)


def _file_path(text: str) -> str:
    path = text.removeprefix("file://").removeprefix("file:")
    if not path.startswith("/") or path.startswith("//") or path == "/":
        raise ValueError("file:///path, without a host")
    return path


def split_object_uri(text: str) -> tuple[str, str]:
    """Root (`s3://bucket`, `az://container`, `abfss://container@host`) and key of an object store URI.

    ValueError states the expected form.
    """
    scheme, separator, rest = text.partition("://")
    if scheme.lower() in _UNSUPPORTED:
        raise ValueError(f"{_UNSUPPORTED[scheme.lower()]}; {scheme}:// is not supported")
    if scheme not in _CANONICAL or not separator or not rest:
        raise ValueError(PATH_FORMS)
    scheme = _CANONICAL[scheme]
    bucket, _, key = rest.partition("/")
    container, _, host = bucket.partition("@") if scheme == "abfss" else (bucket, "", "")
    if scheme == "abfss" and not _ACCOUNT_HOST.fullmatch(host):
        raise ValueError(_ABFSS)
    if scheme in ("az", "abfss"):
        if not _CONTAINER.fullmatch(container):
            raise ValueError("a container name of 3 to 63 lower-case letters, digits and single '-'")
    elif not _BUCKET.fullmatch(bucket):
        raise ValueError(
            f"{scheme}://bucket/key with a bucket name of letters, digits, '.', '_' and '-', without user or port"
        )
    key = key.rstrip("/")
    if key and any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError(f"{scheme}://…/key with a key without empty segments, '.' or '..'")
    return f"{scheme}://{bucket}", key


def is_local(path: str) -> bool:
    """Whether a normalised storage path is a local directory."""
    return "://" not in path


def local_file(text: str, info: ValidationInfo) -> str:
    """Absolute path of a local file."""
    text = _file_path(text) if text.startswith("file:") else text
    if _SCHEME.match(text) or _UNSAFE.search(text) or not text.strip() or text.startswith("~"):
        raise ValueError("a local file ('~' is not expanded)")
    return os.path.normpath(base_of(info) / text)


def server(text: str) -> str:
    """Endpoint URL: scheme, host and port, without credentials, query or fragment."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or parts.username is not None or _UNSAFE.search(text):
        raise ValueError("https://host:port (or http:// with allow_http: true), without user, query or fragment")
    if _is_metadata(host):
        raise ValueError("the address of an object store, not of an instance metadata service")
    return text.rstrip("/")


def host_of(address: str) -> str:
    """Host of a URL."""
    return urlsplit(address).hostname or ""


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_metadata(host: str) -> bool:
    address = _address(host)
    return address is not None and (address.is_link_local or address == ip_address("fd00:ec2::254"))


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address."""
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def folder_of(path: str) -> str:
    """Directory of a table path, or of all paths of a path template."""
    head, brace, _ = path.partition("{")
    return head.rpartition("/")[0] if brace else path.rpartition("/")[0]


def contains_uri(outer: str, inner: str) -> bool:
    """Whether one path equals the other or is a parent directory of it."""
    return f"{inner}/".startswith(f"{outer}/")


def may_overlap(first: str, second: str) -> bool:
    """Whether two path templates can produce the same directory or nested directories."""
    return all(_may_equal(*names) for names in zip(first.split("/"), second.split("/"), strict=False))


def _may_equal(first: str, second: str) -> bool:
    """Same for single directory names; two templates overlap if their prefixes and suffixes are compatible."""
    if "{" in first and "{" in second:
        heads = sorted((first.partition("{")[0], second.partition("{")[0]), key=len)
        tails = sorted((first.rpartition("}")[2], second.rpartition("}")[2]), key=len)
        return heads[1].startswith(heads[0]) and tails[1].endswith(tails[0])
    template, name = (first, second) if "{" in first else (second, first)
    return re.fullmatch(re.sub(r"\\\{(?:route|topic)\\\}", _ROUTE, re.escape(template)), name) is not None


StoragePath = Annotated[str, AfterValidator(storage_path), WithJsonSchema({"type": "string", "minLength": 1})]
LocalPath = Annotated[str, AfterValidator(local_file), WithJsonSchema({"type": "string", "minLength": 1})]
