"""Locations: a local folder, or a folder of a bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from headrace.errors import UsageError
from headrace.spec.uris import PATH_FORMS, split_object_uri

StoreKind = Literal["s3", "azure", "gcs"]
_KINDS: dict[str, StoreKind] = {"s3": "s3", "gs": "gcs", "az": "azure", "abfss": "azure"}


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of S3 or Google Cloud Storage, or a container of Azure Blob Storage."""

    kind: StoreKind
    name: str
    host: str = ""  # of the Azure account, if the URI names it: account.dfs.core.windows.net

    @property
    def uri(self) -> str:
        """The URI of the bucket, in the form that Headrace stores and prints."""
        if self.kind == "azure":
            return f"abfss://{self.name}@{self.host}" if self.host else f"az://{self.name}"
        return f"{'gs' if self.kind == 'gcs' else 's3'}://{self.name}"


def clean(path: str) -> str:
    """Return a path below a root unchanged; UsageError if it could leave the root or is ambiguous."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"Invalid path below a table or state directory: {path!r}.")
    return path


def parse_uri(uri: str) -> tuple[Bucket | None, str]:
    """Bucket and prefix of a URI, (None, absolute path) of a local path; UsageError for anything else."""
    if "\0" in uri or "\\" in uri:
        raise UsageError(f"Invalid character in the location {uri!r}.")
    if uri.startswith("file:"):
        return None, _absolute(_file_path(uri))
    if "://" not in uri:
        return None, _absolute(uri)
    _refuse_ambiguous(uri)
    try:
        root, key = split_object_uri(uri)
    except ValueError as expected:
        raise UsageError(f"Invalid location: '{uri}'.", hint=f"Use {expected}.") from None
    scheme, _, name = root.partition("://")
    container, _, host = name.partition("@")
    return Bucket(_KINDS[scheme], container, host), key


def _absolute(path: str) -> str:
    if not path:
        raise UsageError("The location is empty.", hint=f"Use {PATH_FORMS}.")
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
