"""A real Azure blob server (Azurite) as a child."""

from __future__ import annotations

import shutil
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.dev.kafka import free_ports
from headrace.runtime.child_process import Child, spawn
from headrace.storage.store import Profile, Store
from services.programs import AZURITE, node_package
from services.wait import eventually

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # in its manual
_ANY_CERTIFICATE = ssl._create_unverified_context()  # noqa: S323  # of servers that a test has started


@dataclass(slots=True)
class AzureServer:
    """Where the server is and how to be let in."""

    endpoint: str
    child: Child

    @property
    def settings(self) -> dict[str, object]:
        """The keys of `storage.azure` in a spec."""
        return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": self.endpoint, "allow_http": True}

    def bucket(self) -> str:
        """Make a container of a new name."""
        store = Store(f"az://b-{uuid.uuid4().hex[:12]}", Profile(azure=self.settings))
        assert store.bucket is not None
        store.access.arrow_filesystem(store.bucket).create_dir(store.bucket.name)
        return store.bucket.name


@contextmanager
def azure_server(folder: Path) -> Iterator[AzureServer]:
    """Run the server for the length of the block."""
    port = next(iter(free_ports()))
    program = node_package(AZURITE) / "node_modules" / ".bin" / "azurite-blob"
    command = [
        str(shutil.which("node")),
        str(program),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--location",
        str(folder),
    ]
    log = folder / "azurite.log"
    child = spawn([*command, "--skipApiVersionCheck", "--silent", "--disableTelemetry"], log=log)
    server = AzureServer(f"http://127.0.0.1:{port}/{ACCOUNT}", child)
    try:
        eventually(lambda: answers(server.endpoint, child), within=60, say=lambda: log.read_text()[-500:])
        yield server
    finally:
        child.stop()


def answers(endpoint: str, child: Child) -> bool:
    """Whether a server answers without credentials: refused is an answer too."""
    assert child.poll() is None, "the server has ended"
    try:
        urllib.request.urlopen(endpoint, timeout=2, context=_ANY_CERTIFICATE).close()  # noqa: S310
    except urllib.error.HTTPError as refused:
        refused.close()
    except OSError:
        return False
    return True
