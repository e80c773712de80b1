"""A real S3 server (s3proxy) as a child, with conditional writes."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from obstore.store import S3Store

from headrace.dev.kafka import free_ports
from headrace.runtime import jars
from headrace.runtime.child_process import Child, spawn
from headrace.runtime.java import find_java
from services.wait import eventually

_CONF = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.identity={key}
s3proxy.credential={secret}
s3proxy.ignore-unknown-headers=true
s3proxy.v4-max-non-chunked-request-size=134217728
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={data}
"""


@dataclass(slots=True)
class S3:
    """Where the server is and how to be let in; buckets are folders below `data`."""

    endpoint: str
    key: str
    secret: str
    folder: Path
    child: Child
    region: str = "us-east-1"

    def bucket(self, name: str = "") -> str:
        """Make a bucket of a new name."""
        name = name or f"b-{uuid.uuid4().hex[:12]}"
        (self.folder / "data" / name).mkdir()
        return name

    @property
    def settings(self) -> dict[str, object]:
        """The keys of `storage.s3` in a spec."""
        return {
            "endpoint": self.endpoint,
            "allow_http": True,
            "access_key_id": self.key,
            "secret_access_key": self.secret,
        }

    @property
    def options(self) -> dict[str, str]:
        """Storage options as delta-rs and object_store name them."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": self.key,
            "aws_secret_access_key": self.secret,
            "aws_region": self.region,
            "aws_allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
            "aws_conditional_put": "etag",
        }

    def store(self, bucket: str, prefix: str = "") -> S3Store:
        """A client of one bucket that is not ours."""
        return S3Store(bucket, prefix=prefix or None, config=self.options)


@contextmanager
def s3_server(
    folder: Path, key: str = "test", authorization: str = "aws-v2-or-v4", virtual_host: str = ""
) -> Iterator[S3]:
    """Run the server for the length of the block; `virtual_host`: below which each bucket has a host name."""
    (folder / "data").mkdir(parents=True)
    port = next(iter(free_ports()))
    conf = f"s3proxy.authorization={authorization}\n"
    conf += f"s3proxy.virtual-host={virtual_host}\n" if virtual_host else ""
    server = S3(f"http://127.0.0.1:{port}", key, f"{key}-secret", folder, _start(folder, port, key, conf))
    try:
        eventually(lambda: _answers(server), within=60, say=lambda: f"s3proxy answers; {_said(folder)}")
        yield server
    finally:
        server.child.stop()


def _start(folder: Path, port: int, key: str, more: str) -> Child:
    conf = folder / "s3proxy.conf"
    values = {"port": port, "key": key, "secret": f"{key}-secret", "data": folder / "data"}
    conf.write_text(_CONF.format(**values) + more)
    (jar,) = jars.ensure("s3proxy")
    command = [*find_java().command, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-DLOG_LEVEL=warn", "-jar", str(jar), "--properties", str(conf)]
    return spawn(command, log=folder / "s3proxy.log", env={**os.environ, "TZ": "UTC"})


def _answers(server: S3) -> bool:
    """Whether it answers without a signature: refused is an answer too."""
    if server.child.poll() is not None:
        raise RuntimeError(f"s3proxy ended: {_said(server.folder)}")
    try:
        urllib.request.urlopen(server.endpoint, timeout=2).close()  # noqa: S310
    except urllib.error.HTTPError as refused:
        refused.close()
        return True
    except OSError:
        return False
    return True


def _said(folder: Path) -> str:
    return (folder / "s3proxy.log").read_text(errors="replace")[-500:]
