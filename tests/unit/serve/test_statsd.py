"""statsd, received by a UDP socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headrace.errors import UsageError
from headrace.serve.monitor import Monitor
from headrace.serve.statsd import Statsd
from services.monitored import batch, many_tables, partitions, progress, shop_spec

LAST = "kafka_delta_ingest.delta.write.duration.shop"


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(10)
        yield receiver


def _address(receiver: socket.socket) -> str:
    return f"127.0.0.1:{receiver.getsockname()[1]}"


def _lines(receiver: socket.socket, until: str) -> list[str]:
    """Lines up to the packet with the one that begins with `until`."""
    lines: list[str] = []
    while not any(line.startswith(until) for line in lines):
        packet = receiver.recv(65_536)
        assert len(packet) <= 1_432
        lines += packet.decode().split("\n")
    return lines


def test_counters_are_increases_and_lags_are_gauges(receiver: socket.socket) -> None:
    monitor = Monitor([shop_spec()])
    sender = Statsd(monitor, _address(receiver))
    monitor(progress(lag=7))
    monitor(partitions(3, 4))
    monitor(batch(1, read=10, dead=2, phases={"stage": 0.25, "commit": 0.015}))
    sender.send()
    first = _lines(receiver, LAST)
    assert "kafka_delta_ingest.messages.deserialization.completed.shop:8|c" in first
    assert "kafka_delta_ingest.messages.deserialization.failed.shop:2|c" in first
    assert "kafka_delta_ingest.delta.write.completed.shop:1|c" in first
    assert "kafka_delta_ingest.delta.write.lag.total.shop:7|g" in first
    assert "kafka_delta_ingest.delta.write.lag.max.shop:4|g" in first
    assert "kafka_delta_ingest.recordbatch.write_duration.shop:250|ms" in first
    assert f"{LAST}:15|ms" in first
    monitor(batch(2, read=5, phases={"stage": 0.1, "commit": 0.02}))
    sender.send()
    second = _lines(receiver, LAST)
    assert "kafka_delta_ingest.messages.deserialization.completed.shop:5|c" in second
    assert not [line for line in second if ".failed." in line]
    assert len([line for line in second if line.endswith("|ms")]) == 2
    sender.stop()


def test_an_unknown_lag_is_not_sent(receiver: socket.socket) -> None:
    monitor = Monitor([shop_spec()])
    monitor(progress(lag=None))
    sender = Statsd(monitor, _address(receiver))
    sender.send()
    assert not [line for line in _lines(receiver, "kafka_delta_ingest.buffered") if "lag" in line]
    sender.stop()


def test_the_thread_sends_and_the_end_sends_the_rest(receiver: socket.socket) -> None:
    monitor = Monitor([shop_spec()])
    sender = Statsd(monitor, _address(receiver), prefix="acme", interval=0.01)
    sender.start()
    monitor(batch(1))
    assert "acme.recordbatch.completed.shop:1|c" in _lines(receiver, "acme.recordbatch.completed")
    sender.stop()


def test_names_may_have_no_pipeline(receiver: socket.socket) -> None:
    monitor = Monitor([shop_spec()])
    sender = Statsd(monitor, _address(receiver), name_pipelines=False)
    monitor(batch(1, phases={"stage": 0.25, "commit": 0.015}))
    sender.stop()
    lines = _lines(receiver, "kafka_delta_ingest.delta.write.duration")
    assert "kafka_delta_ingest.delta.write.duration:15|ms" in lines
    assert not [line for line in lines if "shop" in line]


def test_nobody_needs_to_listen() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        address = _address(unused)
    sender = Statsd(Monitor(many_tables(1)), address)
    for _ in range(100):
        sender.send()
    sender.stop()


@pytest.mark.parametrize("address", ["localhost", "localhost:x", "no-such-host.invalid:8125"])
def test_an_invalid_address(address: str) -> None:
    with pytest.raises(UsageError, match="--statsd"):
        Statsd(Monitor(), address)
