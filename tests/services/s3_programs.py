"""S3 servers that are built with Go, as children: MinIO and versitygw."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyarrow.fs import S3FileSystem

from headrace.dev.kafka import free_ports
from headrace.runtime.child_process import Child, spawn
from services.azure import answers
from services.certs import Certificates
from services.programs import MINIO, VERSITYGW, go_program
from services.wait import eventually

KEY, SECRET, REGION = "test-key", "test-secret-key", "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Program:
    """Where a server is and how to be let in."""

    endpoint: str
    child: Child
    key: str = KEY
    secret: str = SECRET
    token: str = ""
    authority: Path | None = None  # certificate of who vouches for it

    def bucket(self) -> str:
        """Make a bucket of a new name."""
        name = f"b-{uuid.uuid4().hex[:12]}"
        self.arrow().create_dir(name)
        return name

    def arrow(self) -> S3FileSystem:
        """A client that is not ours."""
        scheme, _, host = self.endpoint.partition("://")
        return S3FileSystem(
            access_key=self.key,
            secret_key=self.secret,
            session_token=self.token or None,
            region=REGION,
            scheme=scheme,
            endpoint_override=host,
            allow_bucket_creation=True,
            tls_ca_file_path=self.authority and str(self.authority),
        )

    def for_identity(self, key: str, secret: str, token: str = "") -> S3Program:
        """The same server for somebody else."""
        return replace(self, key=key, secret=secret, token=token)

    @property
    def settings(self) -> dict[str, object]:
        """The keys of `storage.s3` in a spec."""
        values: dict[str, object] = {
            "endpoint": self.endpoint,
            "region": REGION,
            "allow_http": self.endpoint.startswith("http:"),
            "access_key_id": self.key,
            "secret_access_key": self.secret,
        }
        return values | ({"session_token": self.token} if self.token else {})


@contextmanager
def minio_server(
    folder: Path, environment: Mapping[str, str] | None = None, certificates: Certificates | None = None
) -> Iterator[S3Program]:
    """Run MinIO for the length of the block; with TLS if there are certificates."""
    ports = free_ports()
    address, console = (f"127.0.0.1:{next(ports)}" for _ in range(2))
    data, home = folder / "data", folder / "home"
    for each in (data, home):
        each.mkdir(parents=True)
    settings = {
        "MINIO_ROOT_USER": KEY,
        "MINIO_ROOT_PASSWORD": SECRET,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "HOME": str(home),
    }
    command = [str(go_program(MINIO)), "server", "--address", address, "--console-address", console]
    command += ["--certs-dir", str(home), str(data)]
    scheme = "https" if certificates else "http"
    if certificates:
        key, begin, chain = certificates.server.read_text().partition("-----BEGIN CERTIFICATE-----")
        (home / "private.key").write_text(key)
        (home / "public.crt").write_text(begin + chain)
    with _running(command, f"{scheme}://{address}", folder / "minio.log", settings | dict(environment or {})) as server:
        yield replace(server, authority=certificates and certificates.authority)


@contextmanager
def versitygw_server(folder: Path) -> Iterator[S3Program]:
    """Run versitygw on a directory for the length of the block."""
    address = f"127.0.0.1:{next(iter(free_ports()))}"
    data, users = folder / "data", folder / "users"
    for each in (data, users):
        each.mkdir(parents=True)
    command = [str(go_program(VERSITYGW)), "--port", address, "--quiet", "--region", REGION]
    command += ["--iam-dir", str(users), "posix", str(data)]
    settings = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    with _running(command, f"http://{address}", folder / "versitygw.log", settings) as server:
        yield server


@contextmanager
def _running(command: list[str], endpoint: str, log: Path, settings: Mapping[str, str]) -> Iterator[S3Program]:
    child = spawn(command, log=log, env={**os.environ, **settings})
    try:
        eventually(lambda: answers(endpoint, child), within=60, say=lambda: log.read_text()[-500:])
        yield S3Program(endpoint, child)
    finally:
        child.stop()
