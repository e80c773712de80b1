"""The real OpenTelemetry collector and telemetrygen: either side fails, and what was acknowledged is stored once."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from headrace.dev.kafka import free_ports
from headrace.runtime.child_process import Child, spawn
from headrace.serve.collector_config import collector_config
from headrace.source.base import open_source
from headrace.source.otlp.json_request import request_type
from headrace.source.ranges import Range
from headrace.source.spool.reader import open_reader, record_batches
from headrace.spec import Spec
from headrace.spec.decode import Signal
from headrace.validate.load import load
from services.certs import Certificates
from services.collector import Collector, collector, telemetrygen
from services.otlp_requests import rows_of
from services.pipelines import run_cli
from services.threads import opened
from services.wait import eventually

pytestmark = pytest.mark.slow
HEADRACE = str(Path(sys.executable).with_name("headrace"))
KINDS = ("Gauge", "Sum", "Histogram", "ExponentialHistogram")
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass
class Receiving:
    """A pipeline, and `headrace receive` of it as a process that can be killed and started again."""

    file: Path
    process: Child | None = None

    @property
    def spec(self) -> Spec:
        return load(self.file)[0]

    @property
    def otlp(self) -> Any:
        return self.spec.source.otlp

    @property
    def log(self) -> Path:
        return self.file.with_suffix(".log")

    def start(self) -> None:
        started = self._listening()
        self.process = spawn([HEADRACE, "receive", str(self.file), "--json"], log=self.log)
        eventually(lambda: self._listening() == started + 2, within=60, say=self.log.read_text)

    def _listening(self) -> int:
        return self.log.read_text().count('"listening"') if self.log.exists() else 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.crash()

    def stored(self, signal: Signal, start: int = 0, end: int | None = None) -> list[dict[str, Any]]:
        """Rows of the requests in the spool."""
        folder = f"{self.spec.state_uri}/spool"
        end = open_reader(folder).ends().get(signal, 0) if end is None else end
        batches = record_batches(open_reader(folder), Range(signal, 0, start, end)) if end > start else ()
        values = [value for batch in batches for value in batch["value"].to_pylist()]
        return [row for value in values for row in rows_of(signal, request_type(signal).FromString(value))]

    def spans(self) -> Counter[tuple[str, str]]:
        """How often each span is stored."""
        return Counter((row["trace_id"], row["span_id"]) for row in self.stored("traces"))


@contextmanager
def receiving(folder: Path, *, limits: dict[str, Any] | None = None, **otlp: Any) -> Iterator[Receiving]:
    """A pipeline on free ports, whose receiver runs."""
    ports = free_ports()
    addresses = {name: f"127.0.0.1:{next(ports)}" for name in ("grpc", "http")}
    content = {
        "pipeline": "otel",
        "source": {"otlp": {**addresses, **otlp}},
        "decode": "otlp",
        "route": {"by": "topic"},
        "table": {"path": "./lake/{route}"},
        **({"limits": limits} if limits else {}),
    }
    (folder / "otel.yaml").write_text(yaml.safe_dump(content))
    running = Receiving(folder / "otel.yaml")
    try:
        running.start()
        yield running
    finally:
        if running.process is not None:
            running.process.stop()


@contextmanager
def sending_to(pipeline: Receiving, folder: Path, protocol: str = "grpc", **options: Any) -> Iterator[Collector]:
    """A collector with the configuration that the command prints."""
    with collector(folder / "collector", collector_config(pipeline.spec, protocol), **options) as running:
        yield running


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_telemetrygen_sends_all_signals(protocol: str, tmp_path: Path) -> None:
    with receiving(tmp_path) as pipeline:
        address = pipeline.otlp.addresses[protocol]
        options = ["--otlp-http"] if protocol == "http" else []
        telemetrygen("traces", address, "--traces", "50", "--child-spans", "2", "--rate", "0", *options)
        telemetrygen("logs", address, "--logs", "40", "--rate", "0", *options)
        for kind in KINDS:
            telemetrygen("metrics", address, "--metrics", "5", "--metric-type", kind, "--rate", "0", *options)
        assert len(pipeline.spans()) == 150
        assert len(pipeline.stored("logs")) == 40
        points = pipeline.stored("metrics")
        assert len(points) == 5 * len(KINDS)
        assert {point["type"] for point in points} == {"gauge", "sum", "histogram", "exponential_histogram"}


def test_all_signals_become_rows(tmp_path: Path) -> None:
    with receiving(tmp_path) as pipeline:
        with sending_to(pipeline, tmp_path) as agent:
            telemetrygen("traces", agent.address, "--traces", "100", "--rate", "0")
            telemetrygen("logs", agent.address, "--logs", "70", "--rate", "0")
            telemetrygen("metrics", agent.address, "--metrics", "30", "--rate", "0")
            counts = {"traces": 200, "logs": 70, "metrics": 30}
            eventually(lambda: all(len(pipeline.stored(signal)) == count for signal, count in counts.items()))
        assert pipeline.process is not None
        pipeline.process.stop()
        done = run_cli(["run", pipeline.file, "--until", "latest"])
    assert done.returncode == 0, done.stderr
    assert {signal: opened(tmp_path / "lake" / signal).count() for signal in counts} == counts


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_receiver_that_is_killed_stores_each_span_once(
    protocol: str, tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a token and client certificates, as `headrace connect` configures them."""
    monkeypatch.setenv("HEADRACE_TOKEN", "canary-token")
    pem = certificates.server.read_text()
    tls = {
        "certificate": pem[pem.index("-----BEGIN CERTIFICATE") :],
        "key": f"${{file:{certificates.server}}}",
        "client_ca": certificates.authority.read_text(),
    }
    files = {
        "/etc/otelcol/headrace-ca.pem": certificates.authority,
        "/etc/otelcol/client.pem": certificates.client_chain,
        "/etc/otelcol/client.key": certificates.client_key,
    }
    token = {"OTLP_TOKEN": "canary-token"}
    with receiving(tmp_path, tokens=["${env:HEADRACE_TOKEN}"], tls=tls) as pipeline:
        with sending_to(pipeline, tmp_path, protocol, files=files, environment=token) as agent:
            options = ("--traces", "1500", "--rate", "300")
            sender = threading.Thread(target=telemetrygen, args=("traces", agent.address, *options))
            sender.start()
            for kills in range(1, 4):
                eventually(lambda wanted=400 * kills: len(pipeline.spans()) > wanted, within=60)
                pipeline.kill()
                pipeline.start()
            sender.join(120)
            eventually(lambda: len(pipeline.spans()) == 3000, within=90, say=lambda: str(len(pipeline.spans())))
        assert set(pipeline.spans().values()) == {1}


def test_a_collector_that_is_killed_sends_its_queue(tmp_path: Path) -> None:
    """The receiver is not there when telemetry is acknowledged by the collector."""
    with receiving(tmp_path) as pipeline:
        pipeline.kill()
        with sending_to(pipeline, tmp_path) as agent:
            telemetrygen("traces", agent.address, "--traces", "500", "--rate", "0")
            telemetrygen("logs", agent.address, "--logs", "300", "--rate", "0")
            eventually(lambda: agent.logged("Exporting failed. Will retry"))
            agent.kill()
            pipeline.start()
            agent.start()
            eventually(lambda: len(pipeline.spans()) == 1000 and len(pipeline.stored("logs")) == 300, within=90)
        assert set(pipeline.spans().values()) == {1}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_full_spool_is_waited_for(protocol: str, tmp_path: Path) -> None:
    full = receiving(tmp_path, max_body="8MB", spool={"max_bytes": "16MB"})
    with full as pipeline, sending_to(pipeline, tmp_path, protocol) as agent:
        telemetrygen("traces", agent.address, "--traces", "40", "--size", "1", "--batch-size", "2", "--rate", "0")
        eventually(lambda: agent.logged("spool is full"), within=60, say=lambda: agent.log.read_text()[-2000:])
        source, position, seen = open_source(pipeline.spec), 0, Counter[tuple[str, str]]()

        def all_are_received() -> bool:
            """Take over what is stored, as a batch does."""
            nonlocal position
            end = source.latest([("traces", 0)])["traces", 0]
            seen.update((row["trace_id"], row["span_id"]) for row in pipeline.stored("traces", position, end))
            position = end
            source.committed({("traces", 0): position})
            return len(seen) >= 80

        eventually(all_are_received, within=120, say=lambda: str(len(seen)))
    assert (len(seen), set(seen.values())) == (80, {1})


def export(address: str, sizes: list[int]) -> None:
    """Send one request with a span of each size to a collector."""
    request = trace_service_pb2.ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number, size in enumerate(sizes, 1):
        spans.add(trace_id=bytes([number]) * 16, span_id=bytes([number]) * 8, name="x" * size)
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary(EXPORT)(request.SerializeToString(), timeout=30)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_partial_success_is_logged_and_not_repeated(protocol: str, tmp_path: Path) -> None:
    small = receiving(tmp_path, limits={"record_bytes": "10kB"})
    with small as pipeline, sending_to(pipeline, tmp_path, protocol) as agent:
        export(agent.address, [10, 20_000, 30, 40_000])
        eventually(lambda: agent.logged("Partial success response"), within=60)
        assert agent.logged("2 spans exceed 10,000 bytes")
        export(agent.address, [10, 11, 12])
        eventually(lambda: len(pipeline.spans()) == 3)
        assert pipeline.spans()[("01" * 16, "01" * 8)] == 2
        assert not agent.logged("Will retry")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_wrong_token_is_logged_by_the_collector_which_drops_the_data(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "canary-token")
    with receiving(tmp_path, tokens=["${env:HEADRACE_TOKEN}"]) as pipeline:
        with sending_to(pipeline, tmp_path, protocol, environment={"OTLP_TOKEN": "wrong"}) as agent:
            export(agent.address, [10])
            eventually(lambda: agent.logged("Permanent error"), within=60)
            assert agent.logged("token")
            assert not agent.logged("canary-token")
        assert not pipeline.spans()
    assert "canary" not in pipeline.log.read_text()
