"""A registry within the test's own process: it knows what it was given, under ids that say what is meant for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import crc32

_ANSWERS: dict[str, Any] = {}


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = _ANSWERS.get(self.path)
        body = json.dumps(content or {"error_code": 40403}).encode()
        self.send_response(200 if content else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@cache
def registry_url() -> str:
    """Where it is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def answer(path: str, content: Any) -> None:
    """What it says to a path."""
    _ANSWERS[path] = content


def registered(text: str, kind: str = "PROTOBUF", references: Mapping[str, str] | None = None) -> int:
    """The id of a schema; the same text has the same id in every run, because clients keep what they learn on disk."""
    refers = [
        {"name": name, "subject": str(crc32(inner.encode())), "version": 1}
        for name, inner in (references or {}).items()
    ]
    for reference, inner in zip(refers, (references or {}).values(), strict=True):
        _ANSWERS[f"/subjects/{reference['subject']}/versions/1?deleted=true"] = {"schema": inner, "schemaType": kind}
    id = crc32(f"{kind} {text} {refers}".encode()) >> 1
    _ANSWERS[f"/schemas/ids/{id}"] = {"schema": text, "schemaType": kind, "references": refers}
    return id
