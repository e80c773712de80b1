"""Metrics over statsd: UDP packets with the names of kafka-delta-ingest, from a thread of their own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

from headrace.errors import UsageError
from headrace.serve.metric_profiles import DEFAULT_PREFIX, TIMERS, MetricsProfile, ingest_figures
from headrace.serve.monitor import Monitor
from headrace.serve.pipeline_view import PipelineView
from headrace.spec.listener import listen_address, split_address

_INTERVAL = 10.0  # seconds
_PACKET = 1_432  # bytes that fit an Ethernet frame


class Statsd:
    """Sends what has changed every ten seconds. Packets may be lost; nothing waits for them."""

    def __init__(
        self,
        monitor: Monitor,
        address: str,
        prefix: str | None = None,
        interval: float = _INTERVAL,
        *,
        name_pipelines: bool = True,
    ) -> None:
        """With `name_pipelines`, names end with that of the pipeline. UsageError if the address is invalid."""
        self._monitor, self._interval, self._name_pipelines = monitor, interval, name_pipelines
        self._prefix = prefix or DEFAULT_PREFIX[MetricsProfile.KAFKA_DELTA_INGEST]
        self._counters: dict[tuple[str, str], float] = {}  # values that were sent, by pipeline and name
        self._batches: dict[str, int] = {}  # number of the last batch that was sent, by pipeline
        self._socket, self._target = _open(address)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-statsd", daemon=True)

    def start(self) -> None:
        """Send from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Send the last changes, and end."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self.send()
        self._socket.close()

    def send(self) -> None:
        """Send what has changed since the last call."""
        lines = [line for view in self._monitor.pipelines() for line in self._lines(view)]
        for packet in _packets(lines):
            with suppress(OSError):  # a full buffer, or nobody listens
                self._socket.sendto(packet, self._target)

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            self.send()

    def _lines(self, view: PipelineView) -> Iterator[str]:
        suffix = f".{view.name}" if self._name_pipelines else ""
        for figure in ingest_figures(view):
            name = f"{self._prefix}.{figure.name}{suffix}"
            if figure.kind == "gauge":
                yield f"{name}:{figure.value:.0f}|g"
            elif increase := figure.value - self._counters.get((view.name, figure.name), 0):
                self._counters[view.name, figure.name] = figure.value
                yield f"{name}:{increase:.0f}|c"
        last = self._batches.get(view.name, 0)
        for batch in view.last_batches:
            if batch.batch > last:
                self._batches[view.name] = batch.batch
                for timer, phase in TIMERS.items():
                    yield f"{self._prefix}.{timer}{suffix}:{batch.phases.get(phase, 0.0) * 1000:.0f}|ms"


def _open(address: str) -> tuple[socket.socket, tuple[str, int]]:
    try:
        host, port = split_address(listen_address(address))
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except (ValueError, OSError) as error:
        raise UsageError(
            f"--statsd: '{address}' cannot be used: {error}.", hint="Use host:port, such as localhost:8125."
        ) from None
    sender = socket.socket(family, socket.SOCK_DGRAM)
    sender.setblocking(False)
    return sender, (str(target[0]), int(target[1]))


def _packets(lines: list[str]) -> Iterator[bytes]:
    """Lines in as few packets as possible."""
    packet = b""
    for line in lines:
        encoded = line.encode()
        if packet and len(packet) + 1 + len(encoded) > _PACKET:
            yield packet
            packet = b""
        packet = packet + b"\n" + encoded if packet else encoded
    if packet:
        yield packet
