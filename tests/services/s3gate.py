"""A gate before the S3 server: lets requests through, and does to some of them what networks do.

    with s3gate(s3.endpoint) as gate:
        lost = gate.on("PUT", r"_delta_log/.*1\\.json", "lose")      # forwarded, then the connection is closed
        gate.on("GET", r"part-", "refuse", status=503, times=3)      # answered by the gate
        held = gate.on("PUT", r"part-", "hold")                      # waits for held.released.set()
    gate.on("PUT", r"part-", "late")                             # hung up on at once, forwarded when released

The Host header goes through as it came, so the signature still holds.
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

Answer = tuple[int, list[tuple[str, str]], bytes]  # status, headers, content
Deed = Literal["refuse", "close", "lose", "late", "delay", "hold"]
_NOT_FORWARDED = {"connection", "transfer-encoding", "upgrade", "http2-settings", "accept-encoding"}
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass
class Rule:
    """What happens to the nth request (and `times` from there on) of a method whose key matches."""

    method: str
    key: re.Pattern[str]
    deed: Deed
    nth: int = 1
    times: int = 1
    status: int = 503
    seconds: float = 0.0
    every: int = 0  # in place of nth and times
    seen: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def meets(self, method: str, key: str) -> bool:
        """Count a request that matches; whether it is this rule's turn."""
        if self.method not in ("*", method) or not self.key.search(key):
            return False
        self.seen += 1
        if self.every:
            return self.seen % self.every == 0
        return self.nth <= self.seen < self.nth + self.times


class Gate:
    """Where clients knock, and the rules of the house."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "", parts.port or 80)
        self.endpoint = ""
        self.requests: list[tuple[str, str]] = []  # (method, key) of all that came
        self.answers: list[tuple[str, str, int]] = []  # (method, key, status) of all that were forwarded
        self._rules: list[Rule] = []
        self._guard = threading.Lock()

    def on(self, method: str, key: str, deed: Deed, **more: Any) -> Rule:
        """Add a rule; of several that match, the oldest acts."""
        rule = Rule(method, re.compile(key), deed, **more)
        with self._guard:
            self._rules.append(rule)
        return rule

    def open(self) -> None:
        """Drop all rules and let go of whatever is held."""
        with self._guard:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.released.set()

    def meet(self, method: str, key: str) -> Rule | None:
        """The rule that acts on this request."""
        with self._guard:
            self.requests.append((method, key))
            return next((rule for rule in self._rules if rule.meets(method, key)), None)


@contextmanager
def s3gate(upstream: str, passage: type[Passage] | None = None) -> Iterator[Gate]:
    """Run a gate before this endpoint for the length of the block."""
    gate = Gate(upstream)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Passage", (passage or Passage,), {"gate": gate}))
    server.daemon_threads = True
    gate.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield gate
    finally:
        gate.open()
        server.shutdown()
        server.server_close()
        thread.join()


class Passage(BaseHTTPRequestHandler):
    """One connection of a client; `forward` answers a request."""

    gate: Gate
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        body = self._body()
        key = unquote(urlsplit(self.path).path)
        rule = self.gate.meet(self.command, key)
        if rule is not None:
            rule.reached.set()
            if rule.deed in ("refuse", "close"):
                return self._answer(rule.status, [], b"") if rule.deed == "refuse" else self._hang_up()
            if rule.deed == "late":
                self._hang_up()
            if rule.deed in ("hold", "delay", "late"):
                rule.released.wait(rule.seconds or 60)
        status, headers, content = self.forward(body)
        self.gate.answers.append((self.command, key, status))
        if rule is None or rule.deed not in ("lose", "late"):
            self._answer(status, headers, content)
        elif rule.deed == "lose":
            self._hang_up()
        return None

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do_PATCH = _pass

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        self.headers["Content-Length"] = str(sum(map(len, chunks)))
        return b"".join(chunks)

    def forward(self, body: bytes) -> Answer:
        """Status, headers and content of the server's answer."""
        headers = [pair for pair in self.headers.items() if pair[0].lower() not in _NOT_FORWARDED]
        return self.ask(self.command, self.path, headers, body)

    def ask(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Ask the server."""
        upstream = http.client.HTTPConnection(*self.gate.upstream, timeout=60)
        try:
            upstream.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                upstream.putheader(name, value)
            upstream.endheaders(body)
            response = upstream.getresponse()
            content = response.read()
            length = response.getheader("Content-Length") if method == "HEAD" else str(len(content))
            headers = [pair for pair in response.getheaders() if pair[0].lower() not in _HOP]
            return response.status, [*headers, ("Content-Length", length or "0")], content
        finally:
            upstream.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers or [("Content-Length", "0")]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def handle(self) -> None:
        """A client that goes away is no news here."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""
