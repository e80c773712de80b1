"""Access to S3 and compatible stores: settings of the spec, then those that AWS clients read from the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.storage.access import check_endpoint, environment, is_set, without_variables
from headrace.storage.aws_profile import ProfileSettings, process_credentials, profile_settings
from headrace.storage.bucket import Bucket

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_HADOOP = {"access_key_id": "access.key", "secret_access_key": "secret.key", "session_token": "session.token"}
_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"


@dataclass(frozen=True, slots=True)
class S3Access:
    """Settings of S3; empty ones are taken from the environment (AWS_…) and the AWS configuration files.

    They are read here, because the engines read different variables and files, and Spark's workers may have been
    started before variables were set. Web identity, container and instance roles are left to each engine.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None  # None: if there is an endpoint
    allow_http: bool = False
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # aws_… or fs.s3a.…; override the others
    profile: str = ""
    credential_process: str = field(default="", repr=False)

    section: ClassVar[str] = "storage.s3"
    variables: ClassVar[str] = "AWS_…"
    jars: ClassVar[str] = "s3"

    def __post_init__(self) -> None:
        keys = self._environment_keys()
        has_keys = bool(self.access_key_id or self.secret_access_key or (not self.profile and any(keys.values())))
        configured = profile_settings(self.profile)
        endpoint = (
            self.endpoint
            or environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
            or configured.endpoint
        )
        region = self.region or environment("AWS_REGION", "AWS_DEFAULT_REGION") or configured.region
        resolved: dict[str, str | bool] = {
            "endpoint": endpoint,
            "region": region or ("us-east-1" if endpoint else ""),
            "path_style": _path_style(endpoint) if self.path_style is None else self.path_style,
            "allow_http": self.allow_http or is_set("AWS_ALLOW_HTTP"),
        }
        if not has_keys:
            resolved |= _profile_keys(configured)
        elif not self.access_key_id and not self.secret_access_key:
            resolved |= keys
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    def _environment_keys(self) -> dict[str, str | bool]:
        return {name: environment(f"AWS_{name.upper()}") for name in _HADOOP}

    def object_options(self, bucket: Bucket) -> dict[str, str]:
        """Options of obstore and delta-rs."""
        options = {
            "aws_endpoint": self.endpoint if self.path_style else _bucket_endpoint(self.endpoint, bucket),
            "aws_region": self.region,
            "aws_virtual_hosted_style_request": "false" if self.path_style else "true",
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
            "aws_metadata_endpoint": environment("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        }
        overrides = {key: value for key, value in self.options.items() if not key.startswith("fs.")}
        return {key: value for key, value in options.items() if value} | overrides

    def endpoint_of(self, bucket: Bucket) -> str:
        return self.object_options(bucket).get("aws_endpoint", "")

    def cache_key(self, bucket: Bucket) -> tuple[Any, ...]:
        return (*sorted(self.object_options(bucket).items()), self.allow_http, self.credential_process)

    def client(self, bucket: Bucket, client_options: Mapping[str, Any], retry_config: Mapping[str, Any]) -> Any:
        from obstore.store import S3Store

        check_endpoint(
            self.endpoint_of(bucket), self.allow_http, "S3", self.section, ("AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP")
        )
        process = self.credential_process
        if process:
            process_credentials(process)  # for its error: obstore does not say why a process failed
        with without_variables(self.excluded_variables()):
            return S3Store(
                bucket.name,
                config=self.object_options(bucket),
                client_options={**client_options, "allow_http": self.allow_http},
                retry_config=retry_config,
                credential_provider=(lambda: process_credentials(process)) if process else None,
            )

    def deltalake_options(self, bucket: Bucket) -> dict[str, str]:
        options = self.object_options(bucket) | {"conditional_put": "etag"}
        if self.credential_process:
            credentials = process_credentials(self.credential_process)
            names = {
                "access_key_id": "access_key_id",
                "secret_access_key": "secret_access_key",
                "token": "session_token",
            }
            options |= {f"aws_{name}": credentials[key] for key, name in names.items() if credentials.get(key)}
        return {**options, "aws_allow_http": "true"} if self.allow_http else options

    def excluded_variables(self) -> Sequence[str]:
        return ("AWS_SESSION_TOKEN",) if self.access_key_id and not self.session_token else ()

    def arrow_filesystem(self, bucket: Bucket, *, create_bucket: bool = False) -> FileSystem:
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(**self.arrow_options(bucket), allow_bucket_creation=create_bucket)

    def arrow_options(self, bucket: Bucket) -> dict[str, Any]:
        """Arguments of pyarrow's S3FileSystem."""
        options = self.object_options(bucket)
        scheme, _, host = _service_endpoint(options.get("aws_endpoint", ""), bucket).rpartition("://")
        keys = process_credentials(self.credential_process) if self.credential_process else {}
        arguments = {
            "access_key": options.get("aws_access_key_id") or keys.get("access_key_id"),
            "secret_key": options.get("aws_secret_access_key") or keys.get("secret_access_key"),
            "session_token": options.get("aws_session_token") or keys.get("token"),
            "region": options.get("aws_region"),
            "endpoint_override": host,
            "scheme": scheme,
            "force_virtual_addressing": bool(host) and not self.path_style,
        }
        return {key: value for key, value in arguments.items() if value}

    def spark_root(self, bucket: Bucket) -> str:
        return f"s3a://{bucket.name}"

    def hadoop_conf(self, bucket: Bucket) -> dict[str, str]:
        conf = {
            "endpoint": self.endpoint if self.path_style else _service_endpoint(self.endpoint, bucket),
            "endpoint.region": self.region,
            "path.style.access": "true" if self.path_style else "",
            "connection.ssl.enabled": "false" if self.endpoint.startswith("http://") else "",
            **{name: getattr(self, key) for key, name in _HADOOP.items()},
        }
        if self.session_token:
            conf["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        elif self.access_key_id:
            conf["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
        else:
            conf["aws.credentials.provider"] = _CHAIN  # S3A's own list has no profiles and no web identity
        conf |= {key.removeprefix("fs.s3a."): value for key, value in self.options.items() if key.startswith("fs.s3a.")}
        return {f"fs.s3a.bucket.{bucket.name}.{name}": value for name, value in conf.items() if value}


def _bucket_endpoint(endpoint: str, bucket: Bucket) -> str:
    """Endpoint with the bucket in the host name, as obstore and delta-rs want it: https://lake.s3.example.com."""
    scheme, separator, host = _service_endpoint(endpoint, bucket).partition("://")
    return f"{scheme}://{bucket.name}.{host}" if separator else endpoint


def _service_endpoint(endpoint: str, bucket: Bucket) -> str:
    """Endpoint without the bucket, as pyarrow and Spark want it: https://s3.example.com."""
    return endpoint.replace(f"://{bucket.name}.", "://", 1)


def _path_style(endpoint: str) -> bool:
    return bool(endpoint) and not is_set("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")


def _profile_keys(configured: ProfileSettings) -> dict[str, str | bool]:
    return {
        "access_key_id": configured.access_key_id,
        "secret_access_key": configured.secret_access_key,
        "session_token": configured.session_token,
        "credential_process": configured.credential_process,
    }
