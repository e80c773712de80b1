"""Danube: the broker with its own client, a consumer in Python that only acknowledges, and the receiver.

The receiver stores messages before it acknowledges them. All on the real broker, one after the other, where its
programs are beside the checkout. Another process sends the messages, many at once. Alone: `python -m bench.danube`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
from danube.proto import DanubeApi_pb2 as api
from danube.proto import DanubeApi_pb2_grpc as stubs

from headrace.source.danube.receiver import DanubeReceiver
from headrace.source.sample_events import bench_event
from headrace.source.spool.writer import Spool
from headrace.validate.load import loads
from services.danube import PROGRAM, TestProducer, danube_source, real_broker
from services.wait import eventually

WINDOW = 200  # messages on their way: the broker loses those of a new subscription that lags by more than 256
PARTITIONS = 8
SUBSCRIPTION = "bench"
_CLIENT = PROGRAM.with_name("danube-cli")
_SECONDS = 300
_TICK = 0.001  # seconds between looks at what was received


def danube(folder: Path, messages: int) -> Iterator[dict[str, Any]]:
    """Messages of 300 bytes per second, and CPU-seconds per million of the consumer and of the broker."""
    folder.mkdir()
    with real_broker(folder) as url:
        if _CLIENT.exists():
            yield _by_its_client(url, messages)
        yield _acknowledged(url, messages)
        yield _stored(url, folder, messages, 0)
        yield _stored(url, folder, messages, PARTITIONS)


# ---- consumers ----


def _by_its_client(url: str, messages: int) -> dict[str, Any]:
    """The consumer of the broker's command line, which prints and acknowledges messages."""
    topic, received = "/default/own", 0
    with _sender(url, topic, 0, messages) as sender:
        command = [str(_CLIENT), "consume", "-s", url, "-t", topic, "-m", SUBSCRIPTION, "--sub-type", "exclusive"]
        client = subprocess.Popen(command, stdout=subprocess.PIPE)

        def count() -> None:
            nonlocal received
            for line in client.stdout or ():
                received += b"event_type" in line

        threading.Thread(target=count, daemon=True).start()
        try:
            time.sleep(3)  # it does not tell when it has subscribed
            process = psutil.Process(client.pid)
            return _measured("Danube, its own client", sender, messages, lambda: received, lambda: _cpu(process))
        finally:
            client.kill()
            client.wait(30)


def _acknowledged(url: str, messages: int) -> dict[str, Any]:
    topic, received = "/default/acknowledged", 0

    def consume(stream: Any, consumers: Any) -> None:
        nonlocal received
        pending: deque[grpc.Future] = deque()
        for message in stream:
            request = api.AckRequest(
                request_id=message.request_id, msg_id=message.msg_id, subscription_name=SUBSCRIPTION
            )
            pending.append(consumers.Ack.future(request, timeout=30))
            received += 1
            if received == messages:
                break
            while pending and pending[0].done():
                pending.popleft()
        for each in pending:
            each.result(30)

    with _sender(url, topic, 0, messages) as sender, grpc.insecure_channel(url.partition("://")[2]) as channel:
        stream = TestProducer(url, topic, name="another").consume(SUBSCRIPTION, "bench")
        consumer = threading.Thread(target=consume, args=(stream, stubs.ConsumerServiceStub(channel)))
        consumer.start()
        figures = _measured("Danube, acknowledged only", sender, messages, lambda: received, time.process_time)
        consumer.join(_SECONDS)
    return figures


def _stored(url: str, folder: Path, messages: int, partitions: int) -> dict[str, Any]:
    topic = f"/default/stored-{partitions}"
    content = {"pipeline": "bench", "source": danube_source(url, topic), "table": {"path": "lake/t"}}
    (spec,) = loads(json.dumps(content), folder)
    assert spec.source.danube is not None
    label = f"Danube, stored and acknowledged{f', {partitions} partitions' if partitions else ''}"
    with _sender(url, topic, partitions, messages) as sender:
        spool, receiver = Spool.open(folder / f"spool-{partitions}", "bench"), DanubeReceiver(spec, spec.source.danube)
        receiver.start(spool, lambda _: None)
        eventually(lambda: len(receiver.connected()) == max(1, partitions), 30)
        try:
            return _measured(label, sender, messages, lambda: sum(spool.ends().values()), time.process_time)
        finally:
            receiver.stop()
            spool.close()


def _measured(
    label: str,
    sender: subprocess.Popen[str],
    messages: int,
    received: Callable[[], int],
    cpu: Callable[[], float],
) -> dict[str, Any]:
    """Have messages sent, never far ahead of the consumer, until all are received."""
    assert sender.stdin is not None
    broker = next(each for each in psutil.Process().children() if each.name() == PROGRAM.name)
    started, cpu_before, broker_before, allowed = time.perf_counter(), cpu(), _cpu(broker), 0
    while (count := received()) < messages:
        following = min(messages, count + WINDOW)
        if following > allowed:
            sender.stdin.write(f"{following}\n")
            sender.stdin.flush()
            allowed = following
        if time.perf_counter() - started > _SECONDS:
            raise AssertionError(f"{label}: {count} of {messages} messages received")
        time.sleep(_TICK)
    seconds = time.perf_counter() - started
    return {
        "label": label,
        "records": messages,
        "per_second": round(messages / seconds),
        "cpu_per_million": round((cpu() - cpu_before) / messages * 1_000_000, 2),
        "broker_cpu_per_million": round((_cpu(broker) - broker_before) / messages * 1_000_000, 2),
    }


def _cpu(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


# ---- the producer, in a process of its own ----


@contextmanager
def _sender(url: str, topic: str, partitions: int, messages: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has created the topic, and sends messages up to the numbers that it reads."""
    command = [sys.executable, "-m", "bench.danube", "send", url, topic, str(partitions), str(messages)]
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def _send(url: str, topic: str, partitions: int, messages: int) -> None:
    producer = TestProducer(url, topic, partitions=partitions)
    values = [bench_event(1, offset)[:300] for offset in range(messages)]
    print("ready", flush=True)
    pending: deque[grpc.Future] = deque()
    for line in sys.stdin:
        while producer.sent < int(line):
            pending.append(producer.start_sending(values[producer.sent]))
            while pending and pending[0].done():
                pending.popleft().result()


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        _send(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=Path.cwd()) as place:
            print(f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            for row in danube(Path(place) / "danube", int(sys.argv[1]) if len(sys.argv) > 1 else 10_000):
                figures = f"{row['per_second']:,}/s, {row['cpu_per_million']} CPU-seconds per million"
                print(f"{row['label']}: {figures}, broker {row['broker_cpu_per_million']}")
