"""A real schema registry (Apicurio) as a child, through the API that Confluent's clients speak."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.dev.kafka import free_ports
from headrace.runtime import cache, jars
from headrace.runtime.child_process import Child, spawn
from headrace.runtime.java import find_java
from services.wait import eventually


@dataclass(slots=True)
class RegistryServer:
    """A running registry; what it holds is lost when it stops."""

    folder: Path
    ports: tuple[int, int]
    child: Child = field(repr=False)

    @property
    def url(self) -> str:
        """Where Confluent's API is."""
        return f"http://127.0.0.1:{self.ports[0]}/apis/ccompat/v7"

    def register(self, subject: str, schema: Any, kind: str = "AVRO", references: Any = ()) -> int:
        """Register a schema (text, or JSON) and get its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        given = {"schema": text, "schemaType": kind, "references": list(references)}
        answer = self.ask("POST", f"/subjects/{quote(subject, safe='')}/versions", given)
        return int(answer["id"])

    def ask(self, verb: str, path: str, content: Mapping[str, Any] | None = None) -> Any:
        """One request; what it answers."""
        data = None if content is None else json.dumps(content).encode()
        head = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        with urllib.request.urlopen(  # noqa: S310
            urllib.request.Request(self.url + path, data, head, method=verb),  # noqa: S310
            timeout=30,
        ) as answer:
            return json.load(answer)


@contextmanager
def registry_server(folder: Path) -> Iterator[RegistryServer]:
    """Run the registry for the length of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = iter(free_ports())
    taken = next(ports), next(ports)
    server = RegistryServer(folder, taken, _start(folder, taken))
    try:
        eventually(lambda: _answers(server), within=120, say=lambda: f"the registry answers; {_said(folder)}")
        yield server
    finally:
        server.child.stop()


def _start(folder: Path, ports: tuple[int, int]) -> Child:
    command = [*find_java().command, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    # Without these two lines it listens on all addresses of the machine, twice.
    command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={ports[0]}"]
    command += ["-Dquarkus.management.host=127.0.0.1", f"-Dquarkus.management.port={ports[1]}"]
    command += ["-jar", str(next(_unpacked().glob("*-runner.jar")))]
    return spawn(command, log=folder / "registry.log", env={**os.environ, "TZ": "UTC"})


def _unpacked() -> Path:
    """The registry's folder in the cache, unpacked once."""
    (archive,) = jars.ensure("registry")
    folder = cache.cache_folder("unpacked") / archive.name.removesuffix(".tar.gz")
    if folder.is_dir():
        return folder
    with cache.cache_lock("unpacked") as scratch:
        if not folder.is_dir():
            with tarfile.open(archive) as packed:
                packed.extractall(scratch / "part", filter="data")
            shutil.move(scratch / "part", folder)
    return folder


def _answers(server: RegistryServer) -> bool:
    if server.child.poll() is not None:
        raise RuntimeError(f"the registry ended: {_said(server.folder)}")
    try:
        return isinstance(server.ask("GET", "/subjects"), list)
    except (urllib.error.HTTPError, OSError):
        return False


def _said(folder: Path) -> str:
    return (folder / "registry.log").read_text(errors="replace")[-500:]
