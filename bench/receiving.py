"""Receiving without Spark: the spool in this process, and the HTTP server as a process of its own, on one core each.

Alone: `python -m bench.receiving`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from headrace.source.sample_events import bench_event
from headrace.source.spool.block import BLOCK_SCHEMA
from headrace.source.spool.writer import Incoming, Spool, SpoolFull

PER_REQUEST = 100
CLIENTS = 8
_SERVER = "import os, sys; os.sched_setaffinity(0, {0}); from headrace.cli import main; main()"
_SPEC = "pipeline: bench\nsource: {http: {listen: '127.0.0.1:0', topics: [events]}}\ntable: {path: ./lake/events}\n"


def receiving(folder: Path, records: int) -> Iterator[dict[str, Any]]:
    """Records per second and CPU-seconds per million: spool appends of 1 and 100 records, and requests of 100."""
    for size, count in ((PER_REQUEST, records), (1, max(records // 20, 1000))):
        yield _appends(folder / f"spool-{size}", size, count)
    yield _requests(folder, records)


def _appends(folder: Path, size: int, count: int) -> dict[str, Any]:
    """Durable appends of records of about 300 bytes, from one thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    spool, batch, futures = Spool.open(folder, "bench"), _batch(size), []
    started, cpu = time.perf_counter(), time.process_time()
    for number in range(count // size):
        incoming = Incoming("events", batch, "bench", str(number))
        while True:
            try:
                futures.append(spool.append(incoming))
                break
            except SpoolFull:
                futures[-1].result()
    stored = sum(future.result().until - future.result().first_offset for future in futures)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    spool.close()
    os.sched_setaffinity(0, before)
    assert stored == count
    label = f"spool, appends of {size}" if size > 1 else "spool, single records"
    return _figures(label, count, seconds, cpu)


def _requests(folder: Path, count: int) -> dict[str, Any]:
    """Requests of 100 events in lines over a few connections, each acknowledged when durable."""
    (folder / "bench.yaml").write_text(_SPEC)
    lines = b"\n".join(bench_event(1, offset) for offset in range(PER_REQUEST))
    requests = count // PER_REQUEST // CLIENTS
    with _server(folder / "bench.yaml") as (process, port):
        threads = [threading.Thread(target=_send, args=(port, lines, requests, name)) for name in range(CLIENTS)]
        started, cpu = time.perf_counter(), sum(process.cpu_times()[:2])
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds, cpu = time.perf_counter() - started, sum(process.cpu_times()[:2]) - cpu
    return _figures(f"HTTP, requests of {PER_REQUEST}", requests * CLIENTS * PER_REQUEST, seconds, cpu)


@contextmanager
def _server(spec: Path) -> Iterator[tuple[psutil.Process, int]]:
    command = [sys.executable, "-c", _SERVER, "receive", str(spec), "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        yield psutil.Process(server.pid), int(address.rpartition(":")[2])
    finally:
        server.terminate()
        server.communicate(timeout=30)


def _send(port: int, body: bytes, requests: int, name: int) -> None:
    head = "POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for number in range(requests):
            key = f"Idempotency-Key: {name}-{number}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(f"{head}{key}".encode() + body)
            assert _response(connection).startswith(b"HTTP/1.1 202")


def _response(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, rest = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length is not None
    missing = int(length[1]) - len(rest)
    while missing > 0:
        missing -= len(connection.recv(65536))
    return head


def _batch(count: int) -> pa.RecordBatch:
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([bench_event(1, offset)[:300] for offset in range(count)], pa.binary()),
        "headers": pa.nulls(count, BLOCK_SCHEMA.field("headers").type),
        "timestamp": pa.array([time.time_ns() // 1000] * count, BLOCK_SCHEMA.field("timestamp").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in BLOCK_SCHEMA.names], schema=BLOCK_SCHEMA)


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
        for row in receiving(Path(place), int(sys.argv[1]) if len(sys.argv) > 1 else 200_000):
            print(f"{row['label']}: {row['per_second']:,}/s, {row['cpu_per_million']} CPU-seconds per million")
