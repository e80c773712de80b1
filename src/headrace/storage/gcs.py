"""Access to Google Cloud Storage: settings of the spec, then application default credentials."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.errors import UsageError
from headrace.storage.access import check_endpoint, environment, is_set
from headrace.storage.bucket import Bucket

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
_RETRY = timedelta(seconds=30)  # pyarrow retries for 15 minutes by default; Headrace retries too, and reports it
# Hadoop's defaults for its own connector have units (64m), which Google's connector does not read.
_SIZES = {
    "fs.gs.block.size": 64 << 20,
    "fs.gs.inputstream.inplace.seek.limit": 8 << 20,
    "fs.gs.inputstream.min.range.request.size": 2 << 20,
    "fs.gs.outputstream.buffer.size": 8 << 20,
    "fs.gs.rewrite.max.chunk.size": 512 << 20,
}
_guard = threading.Lock()


@dataclass(frozen=True, slots=True)
class GcsAccess:
    """Settings of Google Cloud Storage; empty ones are taken from the environment (GOOGLE_…)."""

    service_account: str = ""  # path of a key file
    service_account_key: str = field(default="", repr=False)  # content of a key file
    endpoint: str = ""  # of an emulator
    allow_http: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # google_… or fs.gs.…; override the others

    section: ClassVar[str] = "storage.gcs"
    variables: ClassVar[str] = "GOOGLE_…"
    jars: ClassVar[str] = "gcs"

    def __post_init__(self) -> None:
        file, key = self.service_account, self.service_account_key
        if not file and not key:
            file = environment("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
            key = "" if file else environment("GOOGLE_SERVICE_ACCOUNT_KEY")
        if not file and not key:
            file = environment(_CREDENTIALS)
        endpoint = self.endpoint or environment("STORAGE_EMULATOR_HOST")
        if endpoint and "://" not in endpoint:
            endpoint = f"http://{endpoint}"
        # STORAGE_EMULATOR_HOST is meant for unencrypted emulators; Google's clients ask for no other permission.
        allow_http = self.allow_http or is_set("GOOGLE_ALLOW_HTTP") or (bool(endpoint) and not self.endpoint)
        resolved = {"service_account": file, "service_account_key": key, "endpoint": endpoint, "allow_http": allow_http}
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    def endpoint_of(self, bucket: Bucket) -> str:
        return self.endpoint

    def object_options(self) -> dict[str, str]:
        """Options of obstore and delta-rs."""
        overrides = {key: value for key, value in self.options.items() if not key.startswith("fs.")}
        if self.endpoint:
            # In this form, all versions of object_store accept it.
            key = {
                "gcs_base_url": self.endpoint,
                "disable_oauth": True,
                "client_email": "",
                "private_key": "",
                "private_key_id": "",
            }
            return {"google_service_account_key": json.dumps(key)} | overrides
        if self.service_account_key:
            return {"google_service_account_key": self.service_account_key} | overrides
        # A file may be a key of a service account or of another kind of credentials.
        return ({"google_application_credentials": self.service_account} if self.service_account else {}) | overrides

    def cache_key(self, bucket: Bucket) -> tuple[Any, ...]:
        return (*sorted(self.object_options().items()), self.allow_http)

    def client(self, bucket: Bucket, client_options: Mapping[str, Any], retry_config: Mapping[str, Any]) -> Any:
        from obstore.store import GCSStore

        names = ("STORAGE_EMULATOR_HOST", "GOOGLE_ALLOW_HTTP")
        check_endpoint(self.endpoint, self.allow_http, "GCS", self.section, names)
        self._check_key()
        return GCSStore(
            bucket.name,
            config=self.object_options(),
            client_options={**client_options, "allow_http": self.allow_http},
            retry_config=retry_config,
        )

    def _check_key(self) -> None:
        """UsageError for a key that no client can use."""
        if self.endpoint:
            return
        if self.service_account and not Path(self.service_account).is_file():
            raise UsageError(
                f"The credentials file {self.service_account} does not exist.",
                hint=f"Set storage.gcs.service_account or {_CREDENTIALS} to the key file of a service account.",
            )
        if self.service_account_key:
            try:
                valid = "private_key" in json.loads(self.service_account_key)
            except (ValueError, TypeError):
                valid = False
            if not valid:
                raise UsageError(
                    "The service account key is not the JSON of a key file.",
                    hint="Set storage.gcs.service_account_key to the content of the file that Google Cloud created.",
                )

    def deltalake_options(self, bucket: Bucket) -> dict[str, str]:
        options = self.object_options()
        return {**options, "allow_http": "true"} if self.allow_http else options

    def excluded_variables(self) -> Sequence[str]:
        return ()

    def arrow_filesystem(self, bucket: Bucket, *, create_bucket: bool = False) -> FileSystem:
        from pyarrow.fs import GcsFileSystem

        project = environment("GOOGLE_CLOUD_PROJECT") or ("local" if self.endpoint else None)
        if self.endpoint:
            scheme, _, host = self.endpoint.partition("://")
            return GcsFileSystem(
                anonymous=True, scheme=scheme, endpoint_override=host, project_id=project, retry_time_limit=_RETRY
            )
        with _default_credentials(self._key_file()):
            return GcsFileSystem(project_id=project, retry_time_limit=_RETRY)

    def _key_file(self) -> str:
        return _written(self.service_account_key) if self.service_account_key else self.service_account

    def spark_root(self, bucket: Bucket) -> str:
        return f"gs://{bucket.name}"

    def hadoop_conf(self, bucket: Bucket) -> dict[str, str]:
        """Settings of all buckets: the connector has none for single ones."""
        conf = {
            "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
            **{name: str(size) for name, size in _SIZES.items()},
        }
        if self.endpoint:
            conf |= {"fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.storage.root.url": self.endpoint}
        elif file := self._key_file():
            conf |= {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "fs.gs.auth.service.account.json.keyfile": file}
        else:
            conf |= {"fs.gs.auth.type": "APPLICATION_DEFAULT"}
        return conf | {key: value for key, value in self.options.items() if key.startswith("fs.")}


@contextmanager
def _default_credentials(file: str) -> Iterator[None]:
    """Set the file of the default credentials, the only way to pass a key to pyarrow, which reads it at creation."""
    with _guard:
        before = os.environ.get(_CREDENTIALS)
        if file:
            os.environ[_CREDENTIALS] = file
        try:
            yield
        finally:
            if before is not None:
                os.environ[_CREDENTIALS] = before
            elif file:
                del os.environ[_CREDENTIALS]


@cache
def _written(key: str) -> str:
    """A private file with the key, which is deleted when the process exits."""
    folder = Path(tempfile.mkdtemp(prefix=f"headrace-{os.getpid()}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "service_account.json"
    file.touch(mode=0o600)
    file.write_text(key)
    return str(file)
