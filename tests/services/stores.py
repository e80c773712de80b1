"""The stores of the contract: a folder of each kind of storage, on a real server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.storage.store import Profile, Store

SCHEMES = {"s3": "s3", "minio": "s3", "versitygw": "s3", "azure": "az", "gcs": "gs"}
SECTIONS = {"s3": "s3", "az": "azure", "gs": "gcs"}  # of `storage` in a spec, by scheme
BUILT = ["minio", "versitygw", "azure", "gcs"]  # servers that are built with Go and Node
STORES = ["local", "s3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in BUILT)]
OBJECT_STORES = STORES[1:]


@dataclass(frozen=True)
class StorageFolder:
    """A folder for tables, and the settings that lead to it."""

    kind: str
    uri: str
    settings: dict[str, Any] = field(repr=False)  # of `storage` in a spec
    endpoint: str = ""

    def at(self, endpoint: str) -> StorageFolder:
        """The same folder behind another endpoint."""
        account = "/devstoreaccount1" if self.kind == "azure" else ""
        ((section, settings),) = self.settings.items()
        return StorageFolder(self.kind, self.uri, {section: {**settings, "endpoint": endpoint + account}}, endpoint)

    def spec_settings(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """The settings as a spec may have them: secrets are references to the environment."""
        written: dict[str, Any] = {kind: dict(values) for kind, values in self.settings.items()}
        for kind, values in written.items():
            for name in {"secret_access_key", "account_key"} & values.keys():
                variable = f"TEST_{kind}_{hashlib.sha256(str(values).encode()).hexdigest()[:8]}".upper()
                monkeypatch.setenv(variable, str(values[name]))
                values[name] = f"${{env:{variable}}}"
        return written

    def store(self, folder: str = "") -> Store:
        """A store of a folder below."""
        return Store(f"{self.uri}/{folder}" if folder else self.uri, Profile(**self.settings))


def new_folder(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> StorageFolder:
    """A new folder on a kind of storage."""
    if kind == "local":
        return StorageFolder(kind, str(tmp_path / "my lake"), {})
    server = request.getfixturevalue(kind)
    endpoint = server.endpoint.removesuffix("/devstoreaccount1")
    scheme = SCHEMES[kind]
    return StorageFolder(kind, f"{scheme}://{server.bucket()}/my lake", {SECTIONS[scheme]: server.settings}, endpoint)
