"""OTLP over HTTP: `POST /v1/traces`, `/v1/metrics` and `/v1/logs`, in Protobuf or JSON."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import uvicorn
from google.protobuf import json_format

from headrace.source.http.body import BadRequest, BodyLimits, plain_body
from headrace.source.otlp.grpc_server import PROFILES
from headrace.source.otlp.intake import Intake
from headrace.source.otlp.json_request import protobuf_of_json
from headrace.source.otlp.refusal import Refusal, RefusalKind, refusal_of
from headrace.spec.decode import Signal
from headrace.spec.listener import split_address

PATHS: Mapping[str, Signal] = {"/v1/traces": "traces", "/v1/metrics": "metrics", "/v1/logs": "logs"}
_PROFILES = ("/v1/profiles", "/v1development/profiles")
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_STOP_SECONDS = 5
_BODY_SECONDS = 30.0  # for a client to send a body


class OtlpApplication:
    """The ASGI application."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            message = await self._exported(scope, headers, kind, receive)
            status, extra = 200, {}
        except Exception as error:
            refusal = refusal_of(error)
            message, status, extra = refusal.status(), refusal.kind.http_status, _refusal_headers(refusal)
        body = _encoded(message, kind)
        extra |= {"content-type": _JSON if kind == _JSON else _PROTOBUF, "content-length": str(len(body))}
        pairs = [(name.encode(), value.encode()) for name, value in extra.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    async def _exported(self, scope: Any, headers: Mapping[str, str], kind: str, receive: Any) -> Any:
        signal = _signal_of(scope)
        self._intake.authenticate(headers.get("authorization"))
        if kind not in (_PROTOBUF, _JSON):
            message = f"Content type '{kind[:100]}': expected {_PROTOBUF} or {_JSON}."
            raise Refusal(RefusalKind.WRONG_CONTENT_TYPE, message)
        if (length := headers.get("content-length", "")).isdigit():
            self._intake.check_size(int(length))
        async with asyncio.timeout(_BODY_SECONDS):
            raw = await self._body(receive)
        body = _decompressed(raw, headers.get("content-encoding", ""), self._intake.max_body)
        return await self._intake.store(signal, protobuf_of_json(signal, body) if kind == _JSON else body)

    async def _body(self, receive: Any) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(RefusalKind.MALFORMED, "The request ended early.")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._intake.check_size(size)
            if not message.get("more_body"):
                return b"".join(parts)


def _signal_of(scope: Any) -> Signal:
    path = scope["path"]
    if path in _PROFILES:
        raise Refusal(RefusalKind.NO_SUCH_PATH, PROFILES)
    if (signal := PATHS.get(path)) is None:
        raise Refusal(RefusalKind.NO_SUCH_PATH, f"No such path: {path[:200]}. Expected {', '.join(PATHS)}.")
    if scope["method"] != "POST":
        raise Refusal(RefusalKind.WRONG_METHOD, "Expected POST.")
    return signal


def _refusal_headers(refusal: Refusal) -> dict[str, str]:
    headers: dict[str, str] = {}
    if refusal.retry_seconds is not None:
        headers["retry-after"] = str(refusal.retry_seconds)
    if refusal.kind is RefusalKind.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    if refusal.kind is RefusalKind.WRONG_METHOD:
        headers["allow"] = "POST"
    return headers


def _encoded(message: Any, kind: str) -> bytes:
    """A message in the format of the request."""
    if kind == _JSON:
        return bytes(json_format.MessageToJson(message, indent=None).encode())
    return bytes(message.SerializeToString())


_KINDS = {kind.http_status: kind for kind in RefusalKind}


def _decompressed(body: bytes, encoding: str, max_body: int) -> bytes:
    try:
        return plain_body(body, encoding, BodyLimits(max_body, records=0, record_bytes=0))
    except BadRequest as bad:
        raise Refusal(_KINDS[bad.status], bad.message) from None


class HttpServer:
    """The HTTP server; all methods are called in its event loop."""

    def __init__(self, intake: Intake, address: str, context: ssl.SSLContext | None) -> None:
        config = uvicorn.Config(
            OtlpApplication(intake),
            lifespan="off",
            ws="none",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
            ssl_context_factory=None if context is None else lambda _config, _default: context,
        )
        self._server = uvicorn.Server(config)
        host, port = split_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self.port = int(self._socket.getsockname()[1])
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept requests."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Answer the current requests, then stop."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
