"""Object store settings: S3, Azure Blob Storage, Google Cloud Storage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from headrace.spec.base import InvalidValue, SpecModel
from headrace.spec.secrets import Secret
from headrace.spec.units import Flag, PlainText
from headrace.spec.uris import LocalPath, server

_OWN_KEYS = re.compile(
    r"(aws_|s3_|azure_|google_|fs\.)?(.*secret.*|.*token.*|.*password.*|.*(access|account|private)[._]key.*|.*sas_key|"
    r".*credential.*|.*service[._]account.*|.*endpoint.*|.*base_url|.*region|allow_http|bucket.*)"
)


def _option(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) or _OWN_KEYS.fullmatch(name.lower()):
        expected = "options other than endpoints, regions and credentials, which have their own keys"
        raise InvalidValue(expected, message=f"option '{name[:80]}' is not supported")
    return name


Options = Mapping[Annotated[str, AfterValidator(_option)], PlainText]
_OPTIONS = "Additional object store options, passed through unchanged."


class S3(SpecModel):
    """S3 settings. Default: the environment, as for other AWS clients (`AWS_…`, profiles, roles)."""

    endpoint: Annotated[str, AfterValidator(server)] | None = Field(
        default=None, description="Endpoint URL, `https://host:port`. Default: Amazon S3."
    )
    region: str | None = Field(default=None, min_length=1, description="Region.")
    path_style: Flag | None = Field(
        default=None,
        description="Use path-style requests (bucket in the path, not in the host name). Default: true if "
        "`endpoint` is set.",
    )
    allow_http: Flag = Field(default=False, description="Allow an unencrypted `endpoint`.")
    profile: str | None = Field(
        default=None, min_length=1, description="Profile of the AWS configuration files. Default: `AWS_PROFILE`."
    )
    access_key_id: str | None = Field(default=None, min_length=1, repr=False, description="Access key id.")
    secret_access_key: Secret | None = Field(default=None, description="Secret access key, as a reference.")
    session_token: Secret | None = Field(
        default=None, description="Session token of temporary credentials, as a reference."
    )
    options: Options = Field(default_factory=dict, description=_OPTIONS)


class Azure(SpecModel):
    """Azure Blob Storage and ADLS Gen2 settings. Default: the environment (`AZURE_…` variables, managed identity)."""

    account_name: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]{3,24}$",
        description="Storage account. Required for `az://` paths unless `AZURE_STORAGE_ACCOUNT_NAME` or the connection "
        "string has it.",
    )
    endpoint: Annotated[str, AfterValidator(server)] | None = Field(
        default=None, description="URL of the blob service. Default: `https://<account>.blob.core.windows.net`."
    )
    allow_http: Flag = Field(default=False, description="Allow an unencrypted `endpoint`.")
    account_key: Secret | None = Field(default=None, description="Account key, as a reference.")
    sas_token: Secret | None = Field(default=None, description="Shared access signature, as a reference.")
    connection_string: Secret | None = Field(default=None, description="Connection string, as a reference.")
    tenant_id: str | None = Field(default=None, min_length=1, description="Tenant of a service principal.")
    client_id: str | None = Field(
        default=None, min_length=1, description="Client id of a service principal, or of a managed identity."
    )
    client_secret: Secret | None = Field(
        default=None, description="Client secret of a service principal, as a reference."
    )
    managed_identity: Flag = Field(
        default=False, description="Use the managed identity of the machine, and no credentials of the environment."
    )
    options: Options = Field(default_factory=dict, description=_OPTIONS)


class Gcs(SpecModel):
    """Google Cloud Storage settings. Default: application default credentials."""

    service_account: LocalPath | None = Field(
        default=None,
        description="Key file of a service account. Default: `GOOGLE_APPLICATION_CREDENTIALS`, then the credentials "
        "of `gcloud auth application-default login`, then the metadata server.",
    )
    service_account_key: Secret | None = Field(
        default=None, description="Content of such a key file (JSON), as a reference."
    )
    endpoint: Annotated[str, AfterValidator(server)] | None = Field(
        default=None, description="URL of an emulator, which is used without credentials."
    )
    allow_http: Flag = Field(default=False, description="Allow an unencrypted `endpoint`.")
    options: Options = Field(default_factory=dict, description=_OPTIONS)


class Storage(SpecModel):
    """Object store settings."""

    s3: S3 = Field(default=S3(), description="Settings for `s3://` and `s3a://` paths.")
    azure: Azure = Field(default=Azure(), description="Settings for `az://`, `abfs://` and `abfss://` paths.")
    gcs: Gcs = Field(default=Gcs(), description="Settings for `gs://` paths.")
    create_bucket: Flag = Field(
        default=False,
        description="Create missing buckets and containers, private, at the start of the pipeline; for local stacks.",
    )

    def revealed(self) -> dict[str, dict[str, Any]]:
        """Settings that are set, with secrets resolved; never stored or printed."""
        return {name: _revealed(getattr(self, name)) for name in ("s3", "azure", "gcs")}


def _revealed(settings: SpecModel) -> dict[str, Any]:
    values = {name: getattr(settings, name) for name in sorted(settings.model_fields_set)}
    return {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in values.items()
        if value is not None
    }
