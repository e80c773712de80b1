"""OTLP: `headrace receive` on one core with requests over gRPC, and decoding the received requests.

Where Go is installed, a collector with the debug exporter, which stores nothing, receives the same requests on the same
core. Alone: `python -m bench.otlp`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil
import pyarrow as pa
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2

from headrace.decode.decoders import decoder
from headrace.decode.inference import evolve
from headrace.dev.kafka import free_ports
from headrace.spec.decode import OtlpFormat
from services.collector import collector_program

SPANS = 1000  # of a request
CLIENTS = 16
_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_SERVER = "import os, sys; os.sched_setaffinity(0, {0}); from headrace.cli import main; main()"
_SPEC = "{pipeline: bench, source: {otlp: {grpc: 'localhost:0', http: false}}, decode: otlp, table: {path: lake/spans}}"


def otlp(folder: Path, spans: int) -> Iterator[dict[str, Any]]:
    """Spans per second and CPU-seconds per million spans, received durably and decoded."""
    requests = [_request(seed) for seed in range(max(4, spans // SPANS))]
    with _receiver(folder) as (process, address):
        yield _received("OTLP over gRPC, requests of 1,000 spans", process, address, requests)
    if shutil.which("go") is not None:
        with _collector(folder, str(collector_program())) as (process, address):
            yield _received("collector with the debug exporter", process, address, requests)
    yield _decoded(requests[:200])


def _request(seed: int) -> bytes:
    """Spans with ten attributes, of about 300 bytes each."""
    rng, request = random.Random(seed), trace_service_pb2.ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(_attribute("service.name", "shop"))
    scope = resource.scope_spans.add()
    for number in range(SPANS):
        span = scope.spans.add(trace_id=rng.randbytes(16), span_id=rng.randbytes(8), name="GET /cart", kind=2)
        span.start_time_unix_nano = 1_800_000_000_000_000_000 + number
        span.end_time_unix_nano = span.start_time_unix_nano + 1_500_000
        span.attributes.extend(_attribute(f"attribute.{each}", f"value {number % 97}") for each in range(10))
    return request.SerializeToString()


def _attribute(key: str, value: str) -> common_pb2.KeyValue:
    return common_pb2.KeyValue(key=key, value=common_pb2.AnyValue(string_value=value))


@contextmanager
def _receiver(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    spec = folder / "otel.yaml"
    spec.write_text(_SPEC)
    server = subprocess.Popen([sys.executable, "-c", _SERVER, "receive", spec, "--json"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        yield psutil.Process(server.pid), address.removeprefix("http://")
    finally:
        server.terminate()
        server.communicate(timeout=30)


@contextmanager
def _collector(folder: Path, program: str) -> Iterator[tuple[psutil.Process, str]]:
    address = f"127.0.0.1:{next(iter(free_ports()))}"
    config = folder / "collector.json"  # JSON is YAML
    pipeline = {"receivers": ["otlp"], "exporters": ["debug"]}
    content = {
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": address, "max_recv_msg_size_mib": 32}}}},
        "exporters": {"debug": {}},
        "service": {"pipelines": {"traces": pipeline}, "telemetry": {"metrics": {"level": "none"}}},
    }
    config.write_text(json.dumps(content))
    command = ["taskset", "-c", "0", program, f"--config={config}"]
    collector = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(60)
        yield psutil.Process(collector.pid), address
    finally:
        collector.terminate()
        collector.wait(30)


def _received(label: str, process: psutil.Process, address: str, requests: list[bytes]) -> dict[str, Any]:
    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(CLIENTS) as clients:
        export = partial(channel.unary_unary(_EXPORT), timeout=60)
        export(requests[0])
        started, cpu = time.perf_counter(), sum(process.cpu_times()[:2])
        for answer in clients.map(export, requests[1:]):
            assert not trace_service_pb2.ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans
        seconds, cpu = time.perf_counter() - started, sum(process.cpu_times()[:2]) - cpu
    return _figures(label, (len(requests) - 1) * SPANS, seconds, cpu)


def _decoded(requests: list[bytes]) -> dict[str, Any]:
    values, options = pa.array(requests, pa.binary()), OtlpFormat(signal="traces")
    asked = decoder("otlp", pa.schema([]), new_field="evolve", options=options).decode(values).unknown
    rows = decoder("otlp", evolve(pa.schema([]), asked or {}), new_field="evolve", options=options)
    started, cpu = time.perf_counter(), time.process_time()
    count = len(rows.decode(values).rows)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert count == len(requests) * SPANS
    return _figures("OTLP, decoding alone", count, seconds, cpu)


def _figures(label: str, count: int, seconds: float, cpu: float) -> dict[str, Any]:
    return {
        "label": label,
        "records": count,
        "per_second": round(count / seconds),
        "cpu_per_million": round(cpu / count * 1_000_000, 2),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=Path.cwd()) as place:
        print(f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for row in otlp(Path(place), int(sys.argv[1]) if len(sys.argv) > 1 else 300_000):
            print(f"{row['label']}: {row['per_second']:,}/s, {row['cpu_per_million']} CPU-seconds per million")
