"""Storage profile: access to each kind of object store, from which the options of every engine are derived."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from headrace.errors import UsageError
from headrace.storage.access import ObjectStoreAccess
from headrace.storage.azure import AzureAccess
from headrace.storage.bucket import StoreKind
from headrace.storage.gcs import GcsAccess
from headrace.storage.s3 import S3Access

_ACCESS: dict[StoreKind, Callable[..., ObjectStoreAccess]] = {"s3": S3Access, "azure": AzureAccess, "gcs": GcsAccess}


class Profile:
    """Settings of the object stores, with the keys of `storage` in a spec; the rest is taken from the environment.

    The environment of a kind of store is read when it is first used, and when the profile is sent to another process.
    """

    def __init__(
        self,
        s3: Mapping[str, Any] | None = None,
        azure: Mapping[str, Any] | None = None,
        gcs: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings: dict[StoreKind, Mapping[str, Any]] = {"s3": s3 or {}, "azure": azure or {}, "gcs": gcs or {}}
        self._access: dict[StoreKind, ObjectStoreAccess] = {}
        for kind, settings in self._settings.items():
            _check_keys(kind, settings)

    def access(self, kind: StoreKind) -> ObjectStoreAccess:
        """Access to a kind of store; UsageError for settings that cannot work."""
        if kind not in self._access:
            self._access[kind] = _ACCESS[kind](**self._settings[kind])
        return self._access[kind]

    def __repr__(self) -> str:
        return "Profile()"  # the settings may contain secrets

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Profile) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(tuple(tuple(sorted(settings)) for settings in self._settings.values()))

    def __getstate__(self) -> dict[str, Any]:
        for kind in _ACCESS:
            with suppress(UsageError):  # raised where this kind of store is used
                self.access(kind)
        return self.__dict__


def _check_keys(kind: StoreKind, settings: Mapping[str, Any]) -> None:
    keys = [name for name in _ACCESS[kind].__dataclass_fields__ if name != "credential_process"]  # type: ignore[attr-defined]
    if unknown := [name for name in settings if name not in keys]:
        raise UsageError(f"storage.{kind}: unknown key: {', '.join(unknown)}.", hint=f"Valid keys: {', '.join(keys)}.")
