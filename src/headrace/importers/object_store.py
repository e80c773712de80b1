"""Object store options of other systems as keys of `storage`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.importers.kafka_client import variable_or_secret
from headrace.importers.settings import Findings, Setting
from headrace.importers.spec_draft import SpecDraft

# Names of options and environment variables, in lower case, and the keys of `storage`.
_KEYS = {
    "aws_region": "s3.region",
    "aws_default_region": "s3.region",
    "aws_endpoint_url": "s3.endpoint",
    "aws_endpoint": "s3.endpoint",
    "aws_allow_http": "s3.allow_http",
    "aws_storage_allow_http": "s3.allow_http",
    "aws_access_key_id": "s3.access_key_id",
    "aws_secret_access_key": "s3.secret_access_key",
    "aws_session_token": "s3.session_token",
    "aws_force_path_style": "s3.path_style",
    "aws_s3_force_path_style": "s3.path_style",
    "aws_virtual_hosted_style_request": "s3.path_style",
    "azure_storage_account_name": "azure.account_name",
    "azure_storage_account": "azure.account_name",
    "azure_storage_account_key": "azure.account_key",
    "azure_storage_access_key": "azure.account_key",
    "azure_storage_sas_token": "azure.sas_token",
    "azure_storage_sas_key": "azure.sas_token",
    "google_service_account": "gcs.service_account",
    "google_service_account_path": "gcs.service_account",
    "google_application_credentials": "gcs.service_account",
    "google_service_account_key": "gcs.service_account_key",
}
_PREFIXES = {"s3": "aws_", "azure": "azure_storage_", "gcs": "google_"}
_SECRETS = ("access_key_id", "secret_access_key", "session_token", "account_key", "sas_token", "service_account_key")
_FLAGS = ("allow_http", "path_style")
_NO_LOCKS = (
    "Headrace writes each version of the log with put-if-absent, without locks",
    "Stop the writers that use the lock table before the first run",
)
_WITHOUT_EFFECT = {
    "aws_s3_allow_unsafe_rename": ("Headrace never renames", ""),
    "aws_s3_locking_provider": _NO_LOCKS,
    "delta_dynamo_table_name": _NO_LOCKS,
    "dynamo_lock_owner_name": _NO_LOCKS,
    "dynamo_lock_partition_key_value": _NO_LOCKS,
    "dynamo_lock_refresh_period_millis": _NO_LOCKS,
    "dynamo_lock_additional_time_to_wait_millis": _NO_LOCKS,
    "dynamo_lock_lease_duration": _NO_LOCKS,
    "dead_letter_dynamo_lock_partition_key_value": _NO_LOCKS,
}
STORE_VARIABLES = frozenset(name.upper() for name in (*_KEYS, *_WITHOUT_EFFECT))


def store_of(path: str) -> str:
    """Kind of object store of a path: `s3`, `azure` or `gcs`; empty for local paths."""
    scheme = path.partition("://")[0].lower()
    return {"s3": "s3", "s3a": "s3", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}.get(scheme, "")


def option_name(store: str, name: str) -> str:
    """Full name of an option, in lower case: `region` of an S3 table is `aws_region`."""
    name = name.lower()
    full_name = _PREFIXES.get(store, "") + name
    return full_name if name not in _KEYS and full_name in _KEYS else name


def set_storage(
    draft: SpecDraft, store: str, options: Mapping[str, Setting], findings: Findings, prefix: str = ""
) -> None:
    """Set the options of the store that the table is in.

    Secrets in plain text become references to variables whose names start with `prefix`. Credentials in variables of
    the process need no keys, because Headrace reads the same variables.
    """
    for name, option in options.items():
        path = _KEYS.get(name, "")
        key = path.rpartition(".")[2]
        if name in _WITHOUT_EFFECT:
            findings.skip(option, *_WITHOUT_EFFECT[name])
        elif path and not path.startswith(f"{store}."):
            findings.skip(option, f"the table is not in {_STORES[path.partition('.')[0]]}")
        elif not store:
            findings.skip(option, "the table is on local disk")
        elif not path:
            draft.set_in(f"storage.{store}.options", option.name.rpartition(".")[2], option)
        elif key in _SECRETS and prefix:
            draft.set(f"storage.{path}", findings.secret(option, variable_name(prefix, key)))
        elif key in _SECRETS:
            if option.place.spot is not None:
                draft.set(f"storage.{path}", variable_or_secret(option, findings))
        else:
            draft.set(f"storage.{path}", _value(name, key, option))


def variable_name(prefix: str, key: str) -> str:
    """Environment variable for a secret of a pipeline."""
    name = re.sub(r"[^A-Z0-9]+", "_", f"{prefix}_{key}".upper())
    return name if name[0].isalpha() else f"_{name}"


_STORES = {"s3": "S3", "azure": "Azure", "gcs": "Google Cloud Storage", "": "an object store"}


def _value(name: str, key: str, option: Setting) -> Setting:
    if key not in _FLAGS or isinstance(option.value, bool):
        return option
    is_true = str(option.value).lower() in ("1", "true", "yes", "y", "on")
    return option.as_value(not is_true if name.endswith("virtual_hosted_style_request") else is_true)
