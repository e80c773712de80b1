"""The OpenTelemetry collector and telemetrygen, built with Go from pinned versions; for slow tests only."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.dev.kafka import free_ports
from headrace.runtime import cache
from headrace.runtime.child_process import Child, spawn
from headrace.spec.decode import SIGNALS, Signal
from services.programs import go_program, run_build
from services.wait import eventually

BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.120.0"
TELEMETRYGEN = "github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen@v0.161.0"

_VERSION = "v0.120.0"
# Providers are named one by one: the one for HTTPS, which the builder adds otherwise, cannot be built at this version.
_MANIFEST = f"""
dist: {{name: collector, output_path: ./dist}}
receivers:
  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver {_VERSION}
processors:
  - gomod: go.opentelemetry.io/collector/processor/batchprocessor {_VERSION}
exporters:
  - gomod: go.opentelemetry.io/collector/exporter/debugexporter {_VERSION}
  - gomod: go.opentelemetry.io/collector/exporter/otlpexporter {_VERSION}
  - gomod: go.opentelemetry.io/collector/exporter/otlphttpexporter {_VERSION}
extensions:
  - gomod: github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage v0.118.0
providers:
  - gomod: go.opentelemetry.io/collector/confmap/provider/envprovider v1.26.0
  - gomod: go.opentelemetry.io/collector/confmap/provider/fileprovider v1.26.0
  - gomod: go.opentelemetry.io/collector/confmap/provider/yamlprovider v1.26.0
"""


def collector_program() -> Path:
    """The collector with the OTLP receiver, the exporters of OTLP, and queues on disk."""
    builder = go_program(BUILDER)
    with cache.cache_lock("otel-collector") as scratch:
        kept = cache.cache_folder("otel-collector") / _VERSION
        if not kept.exists():
            (scratch / "manifest.yaml").write_text(_MANIFEST)
            command = [str(builder), "--config", "manifest.yaml"]
            run_build(command, cwd=scratch, env={**os.environ, "GOFLAGS": "-modcacherw", "CGO_ENABLED": "0"})
            (scratch / "dist" / "collector").rename(kept)
    return kept


@dataclass
class Collector:
    """A running collector, with the configuration that `headrace connect otel-collector` prints."""

    address: str  # of its receiver for gRPC
    log: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    child: Child | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts requests."""
        self.child = spawn(self.command, log=self.log, env={**os.environ, **self.environment})
        eventually(self._accepts, within=60, say=lambda: self.log.read_text()[-2000:])

    def _accepts(self) -> bool:
        assert self.child is not None
        if self.child.poll() is not None:
            raise RuntimeError(f"the collector has ended: {self.log.read_text()[-2000:]}")
        host, _, port = self.address.partition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
            return True
        return False

    def kill(self) -> None:
        """Kill it without cleanup."""
        if self.child is not None:
            self.child.crash()

    def logged(self, text: str) -> bool:
        """Whether its log has a text."""
        return text in self.log.read_text()


@contextmanager
def collector(
    folder: Path, exporter: str, files: Mapping[str, Path] | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Collector]:
    """Run a collector that receives OTLP and sends it on.

    `exporter` is what `headrace connect otel-collector` prints; only its paths are replaced, those of `files` and that
    of the queue.
    """
    folder.mkdir(exist_ok=True)
    address = f"127.0.0.1:{next(iter(free_ports()))}"
    pipelines = {signal: {"receivers": ["otlp"]} for signal in SIGNALS}
    own = {
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": address, "max_recv_msg_size_mib": 64}}}},
        "service": {"pipelines": pipelines, "telemetry": {"metrics": {"level": "none"}}},
    }
    for path, actual in {"/var/lib/otelcol/headrace": folder / "queue", **(files or {})}.items():
        assert path in exporter
        exporter = exporter.replace(path, str(actual))
    configs = (folder / "own.json", folder / "headrace.yaml")  # JSON is YAML
    for config, content in zip(configs, (json.dumps(own), exporter), strict=True):
        config.write_text(content)
    command = (str(collector_program()), *(f"--config={config}" for config in configs))
    running = Collector(address, folder / "collector.log", command, environment or {})
    try:
        running.start()
        yield running
    finally:
        if running.child is not None:
            running.child.stop()


def telemetrygen(signal: Signal, address: str, *options: str) -> None:
    """Send generated telemetry; an AssertionError unless all of it is acknowledged."""
    command = [str(go_program(TELEMETRYGEN)), signal, "--otlp-endpoint", address, "--otlp-insecure", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
