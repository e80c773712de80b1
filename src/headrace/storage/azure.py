"""Access to Azure Blob Storage and ADLS Gen2: settings of the spec, then those of the environment (AZURE_…)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from headrace.errors import UsageError
from headrace.storage.access import check_endpoint, environment, is_set
from headrace.storage.bucket import Bucket

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_SUFFIX = "core.windows.net"
_EMULATOR = "http://127.0.0.1:10000/devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public
_CREDENTIALS = ("account_key", "sas_token", "client_id", "client_secret", "tenant_id", "federated_token_file")
_VARIABLES = {
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY"),
    "sas_token": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
    "client_id": ("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"),
    "client_secret": ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
    "tenant_id": ("AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID"),
    "federated_token_file": ("AZURE_FEDERATED_TOKEN_FILE",),
}
# By default the connector repeats a failed request 30 times; Headrace retries too, and reports it.
_RETRIES = {"fs.azure.io.retry.max.retries": "5", "fs.azure.io.retry.max.backoff.interval": "5000"}
_OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"


@dataclass(frozen=True, slots=True)
class AzureAccess:
    """Settings of Azure; empty ones are taken from the environment.

    Credentials are taken from one place: the spec if it has any, otherwise the environment. Without any, the managed
    identity of the machine is used.
    """

    account_name: str = ""
    endpoint: str = ""
    allow_http: bool = False
    account_key: str = field(default="", repr=False)
    sas_token: str = field(default="", repr=False)
    connection_string: str = field(default="", repr=False)
    tenant_id: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    federated_token_file: str = ""
    managed_identity: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # azure_… or fs.azure.…; override the others

    section: ClassVar[str] = "storage.azure"
    variables: ClassVar[str] = "AZURE_…"
    jars: ClassVar[str] = "azure"

    def __post_init__(self) -> None:
        resolved = {name: getattr(self, name) for name in ("account_name", "endpoint", *_CREDENTIALS)}
        text = self.connection_string
        if not text and not self.managed_identity and not any(resolved[name] for name in _CREDENTIALS):
            text = environment("AZURE_STORAGE_CONNECTION_STRING")
            if not text:
                resolved |= {name: environment(*names) for name, names in _VARIABLES.items()}
        if text:
            resolved |= _connection(text)
        resolved["account_name"] = resolved["account_name"] or environment(
            "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"
        )
        resolved["endpoint"] = resolved["endpoint"] or environment("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        resolved["sas_token"] = resolved["sas_token"].removeprefix("?")
        resolved["connection_string"] = ""
        resolved["allow_http"] = self.allow_http or is_set("AZURE_STORAGE_ALLOW_HTTP", "AZURE_ALLOW_HTTP")
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    def _account(self, bucket: Bucket) -> str:
        account = bucket.host.partition(".")[0] or self.account_name
        if not account:
            raise UsageError(
                f"No storage account for {bucket.uri}.",
                hint="Set storage.azure.account_name or AZURE_STORAGE_ACCOUNT_NAME, or use "
                "abfss://container@account.dfs.core.windows.net/path.",
            )
        return account

    def _suffix(self, bucket: Bucket) -> str:
        """Domain of the cloud, such as core.windows.net."""
        host = bucket.host or (urlsplit(self.endpoint).hostname or "" if self._is_account_host(bucket) else "")
        return host.split(".", 2)[2] if host.count(".") > 2 else _SUFFIX

    def _is_account_host(self, bucket: Bucket) -> bool:
        """Whether the host of the endpoint names the account; otherwise its path does, as in emulators."""
        host = urlsplit(self.endpoint).hostname or ""
        return host.startswith(f"{self._account(bucket)}.")

    def _endpoint(self, bucket: Bucket) -> str:
        """URL of the blob service, with the account in the host or at the end."""
        account = self._account(bucket)
        if not self.endpoint:
            return f"https://{account}.blob.{self._suffix(bucket)}"
        endpoint = self.endpoint.rstrip("/")
        if self._is_account_host(bucket) or endpoint.endswith(f"/{account}"):
            return endpoint
        return f"{endpoint}/{account}"

    def endpoint_of(self, bucket: Bucket) -> str:
        return self._endpoint(bucket) if self.endpoint else ""

    def object_options(self, bucket: Bucket) -> dict[str, str]:
        """Options of obstore and delta-rs."""
        options = {
            "azure_storage_account_name": self._account(bucket),
            "azure_storage_endpoint": self._endpoint(bucket),
            **self._credentials(),
        }
        overrides = {key: value for key, value in self.options.items() if not key.startswith("fs.")}
        return {key: value for key, value in options.items() if value} | overrides

    def _credentials(self) -> dict[str, str]:
        """Options of the one kind of credentials that is used."""
        if self.account_key:
            return {"azure_storage_account_key": self.account_key}
        if self.sas_token:
            return {"azure_storage_sas_token": self.sas_token}
        ids = {"azure_storage_client_id": self.client_id, "azure_storage_tenant_id": self.tenant_id}
        if self.client_secret:
            return ids | {"azure_storage_client_secret": self.client_secret}
        return ids | {"azure_federated_token_file": self.federated_token_file}

    def cache_key(self, bucket: Bucket) -> tuple[Any, ...]:
        return (*sorted(self.object_options(bucket).items()), self.allow_http)

    def client(self, bucket: Bucket, client_options: Mapping[str, Any], retry_config: Mapping[str, Any]) -> Any:
        from obstore.store import AzureStore

        names = ("AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_ALLOW_HTTP")
        check_endpoint(self._endpoint(bucket), self.allow_http, "Azure", self.section, names)
        return AzureStore(
            bucket.name,
            config={**self.object_options(bucket), "azure_credential_type": self._credential_type()},
            client_options={**client_options, "allow_http": self.allow_http},
            retry_config=retry_config,
        )

    def _credential_type(self) -> str:
        """The kind of credentials, so that obstore uses no others of the environment."""
        if self.account_key:
            return "access_key"
        if self.sas_token:
            return "sas_token"
        if self.client_secret:
            return "client_secret"
        return "workload_identity" if self.federated_token_file else "managed_identity"

    def deltalake_options(self, bucket: Bucket) -> dict[str, str]:
        options = self.object_options(bucket)
        return {**options, "allow_http": "true"} if self.allow_http else options

    def excluded_variables(self) -> Sequence[str]:
        return [
            name
            for key, names in _VARIABLES.items()
            for name in names
            if environment(name) not in ("", getattr(self, key))
        ]

    def arrow_filesystem(self, bucket: Bucket, *, create_bucket: bool = False) -> FileSystem:
        from pyarrow.fs import AzureFileSystem

        arguments = {
            "account_name": self._account(bucket),
            "account_key": self.account_key,
            "sas_token": f"?{self.sas_token}" if self.sas_token and not self.account_key else "",
            **self._arrow_identity(),
            **self._arrow_authorities(bucket),
        }
        return AzureFileSystem(**{key: value for key, value in arguments.items() if value})

    def _arrow_identity(self) -> dict[str, str]:
        if self.account_key or self.sas_token:
            return {}
        secret = {"client_secret": self.client_secret, "tenant_id": self.tenant_id} if self.client_secret else {}
        return {} if self.federated_token_file else {"client_id": self.client_id, **secret}

    def _arrow_authorities(self, bucket: Bucket) -> dict[str, str]:
        """Hosts of the blob and file services; one that begins with a dot is below the account."""
        url = urlsplit(self._endpoint(bucket))
        below_account = url.netloc.startswith(f"{self._account(bucket)}.")
        blob = f".{url.netloc.partition('.')[2]}" if below_account else url.netloc
        dfs = blob.replace(".blob.", ".dfs.", 1)
        return {
            "blob_storage_authority": blob,
            "blob_storage_scheme": url.scheme,
            "dfs_storage_authority": dfs,
            "dfs_storage_scheme": url.scheme,
        }

    def _host(self, bucket: Bucket) -> str:
        return bucket.host or f"{self._account(bucket)}.dfs.{self._suffix(bucket)}"

    def spark_root(self, bucket: Bucket) -> str:
        scheme = "abfs" if self.endpoint.startswith("http://") else "abfss"
        return f"{scheme}://{bucket.name}@{self._host(bucket)}"

    def hadoop_conf(self, bucket: Bucket) -> dict[str, str]:
        host = self._host(bucket)
        conf, common = self._hadoop_credentials(), dict(_RETRIES)
        url = urlsplit(self._endpoint(bucket))
        if not url.netloc.startswith(f"{self._account(bucket)}."):  # an emulator: blob service only, without TLS
            conf |= {
                "abfs.endpoint": f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}",
                "fns.account.service.type": "BLOB",
                "account.hns.enabled": "false",
                "networking.library": "JDK_HTTP_URL_CONNECTION",  # the other one requires TLS
            }
            if url.scheme == "http":  # for all accounts, but only for abfs://, not for abfss://
                common["fs.azure.always.use.https"] = "false"
        settings = common | {f"fs.azure.{name}.{host}": value for name, value in conf.items() if value}
        return settings | {key: value for key, value in self.options.items() if key.startswith("fs.")}

    def _hadoop_credentials(self) -> dict[str, str]:
        if self.account_key:
            return {"account.key": self.account_key}
        if self.sas_token:
            return {"account.auth.type": "SAS", "sas.fixed.token": self.sas_token}
        conf = {"account.auth.type": "OAuth", "account.oauth2.client.id": self.client_id}
        if self.client_secret:
            authority = environment("AZURE_AUTHORITY_HOST").rstrip("/") or "https://login.microsoftonline.com"
            return conf | {
                "account.oauth.provider.type": f"{_OAUTH}.ClientCredsTokenProvider",
                "account.oauth2.client.secret": self.client_secret,
                "account.oauth2.client.endpoint": f"{authority}/{self.tenant_id}/oauth2/token",
            }
        if self.federated_token_file:
            return conf | {
                "account.oauth.provider.type": f"{_OAUTH}.WorkloadIdentityTokenProvider",
                "account.oauth2.msi.tenant": self.tenant_id,
                "account.oauth2.token.file": self.federated_token_file,
            }
        return conf | {
            "account.oauth.provider.type": f"{_OAUTH}.MsiTokenProvider",
            "account.oauth2.msi.tenant": self.tenant_id,
        }


def _connection(text: str) -> dict[str, Any]:
    """Settings of a connection string, such as `AccountName=lake;AccountKey=…;EndpointSuffix=core.windows.net`."""
    parts = {
        name.strip().lower(): value.strip() for name, _, value in (item.partition("=") for item in text.split(";"))
    }
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        return {"account_name": "devstoreaccount1", "account_key": _EMULATOR_KEY, "endpoint": _EMULATOR}
    name, endpoint = parts.get("accountname", ""), parts.get("blobendpoint", "")
    if not endpoint and name and parts.get("endpointsuffix"):
        endpoint = f"{parts.get('defaultendpointsprotocol', 'https')}://{name}.blob.{parts['endpointsuffix']}"
    host = urlsplit(endpoint).hostname or ""
    if not name and ".blob." in host:
        name = host.partition(".")[0]
    settings = {
        "account_name": name,
        "endpoint": endpoint,
        "account_key": parts.get("accountkey", ""),
        "sas_token": parts.get("sharedaccesssignature", ""),
    }
    if not name or not (settings["account_key"] or settings["sas_token"]):
        raise UsageError(
            "The Azure connection string has no account or no credentials.",
            hint="Copy it from the access keys of the storage account: AccountName=…;AccountKey=…",
        )
    return settings
