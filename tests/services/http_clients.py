"""Clients that send records by HTTP until they are acknowledged, and the processes that receive them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from services.wait import eventually

HEADRACE = [str(Path(sys.executable).with_name("headrace"))]


class Client(threading.Thread):
    """Sends numbered records, each request until it is acknowledged."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.sent, self.refused, self.ended = port, 0, 0, threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            records = [{"id": self.sent * 10 + each} for each in range(10)]
            self._until_acknowledged(json.dumps(records).encode(), f"request-{self.sent}")
            self.sent += 1

    def _until_acknowledged(self, body: bytes, key: str) -> None:
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        while True:
            try:
                with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
                    connection.request("POST", "/v1/orders", body, headers)
                    if connection.getresponse().status == 202:
                        return
                    self.refused += 1
                    self.ended.wait(0.05)
            except OSError:
                self.ended.wait(0.05)
            except http.client.HTTPException:
                continue

    def more(self, requests: int) -> None:
        """Wait until so many more requests are acknowledged."""
        wanted = self.sent + requests
        eventually(lambda: self.sent >= wanted, within=60)

    def end(self) -> int:
        """End after the current request; returns the number of records."""
        self.ended.set()
        self.join(60)
        assert not self.is_alive()
        return 10 * self.sent


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*HEADRACE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)


def healthy(port: int) -> bool:
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
    except OSError:
        return False
