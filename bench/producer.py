"""`python -m bench.producer ORDER`: send the lines of a file to a topic at a constant rate, until SIGTERM."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

STEP = 0.005  # seconds


def main(order: dict[str, Any]) -> None:
    """Send records to four partitions in turn; prints how many were sent."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    producer = Producer({"bootstrap.servers": order["bootstrap"], "linger.ms": 5, "log_level": 0})
    values = Path(order["file"]).read_bytes().splitlines()
    start, sent = time.monotonic(), 0
    while not ended.wait(STEP):
        due = int((time.monotonic() - start) * order["per_second"])
        for number in range(sent, due):
            _send(producer, order["topic"], values[number % len(values)], number % 4)
        sent = max(sent, due)
        producer.poll(0)
    unsent = producer.flush(30)
    print(json.dumps({"sent": sent - unsent, "seconds": time.monotonic() - start}), flush=True)


def _send(producer: Producer, topic: str, value: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=partition)
        except BufferError:
            producer.poll(0.05)
        else:
            return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
