"""An HTTP server that receives posts, as of a webhook."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = "/hooks/s3cr3t-path?channel=lake"


@dataclass
class Receiver:
    """A server that answers with `statuses`, then with 204; it answers once `open` is set."""

    port: int = 0
    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def posted(self) -> list[Any]:
        return [body for _, _, body in self.requests]


@contextmanager
def served(receiver: Receiver, context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.open.wait(60)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_json = self.headers["Content-Type"] == "application/json"
            receiver.requests.append((self.path, dict(self.headers), json.loads(body) if is_json else body))
            self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", receiver.port), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.open.set()
        server.shutdown()
        server.server_close()
        thread.join()
