"""Storage paths: local directories and S3, in a form that all clients interpret alike."""

from __future__ import annotations

import os.path
import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, ValidationInfo, WithJsonSchema

from headrace.spec.secrets import base_of

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ROUTE = "[A-Za-z0-9][A-Za-z0-9._-]*"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
# Characters with a meaning to one of the clients: globs in Spark, escapes and queries in URLs.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\%?#*\[\]]")


def storage_path(text: str, info: ValidationInfo) -> str:
    """Normalise to an absolute path or an `s3://` URI; a ValueError states the expected form."""
    if match := _UNSAFE.search(text):
        raise ValueError(f"a path without {match[0]!r}")
    if _SCHEME.match(text):
        return _s3(text)
    if not text.strip() or text.startswith("~"):
        raise ValueError("an absolute or relative path ('~' is not expanded), s3://bucket/key or s3a://bucket/key")
    return os.path.normpath(base_of(info) / text)


def _s3(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in ("s3", "s3a") or not rest:
        raise ValueError("a directory, s3://bucket/key or s3a://bucket/key")
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(
            "s3://bucket/key with a bucket name of letters, digits, '.', '_' and '-', without user or port"
        )
    parts = key.rstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError("s3://bucket/key with a key without empty segments, '.' or '..'")
    return f"s3://{bucket}/{'/'.join(parts)}"


def local_file(text: str, info: ValidationInfo) -> str:
    """Absolute path of a local file."""
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
