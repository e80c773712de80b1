"""The HTTP server: authenticates, splits and appends; responds when the records are durable."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.delta.schema import HEADERS
from headrace.errors import HeadraceError, QueueFull, SequenceReused, SpoolFull, UsageError
from headrace.source.http.analytics import analytics_event
from headrace.source.http.body import BadRequest, BodyLimits, media_type, plain_body, split_body, too_large
from headrace.source.server_thread import ServerThread
from headrace.source.server_tls import server_context
from headrace.source.spool.block import BLOCK_SCHEMA
from headrace.source.spool.receiver import Acknowledgement, Destination, ReceiverReport
from headrace.source.spool.writer import Incoming
from headrace.spec.http_source import ANALYTICS_TOPIC, HttpSpec

KEY, PRODUCER, SEQUENCE, HEADER = "headrace-key", "headrace-producer", "idempotency-key", "headrace-header-"
_BODY_SECONDS = 30.0  # for a client to send a body
_JSON_TYPE = "application/json"
_RETRY_SECONDS = 5  # after which a client may send again what could not be stored


@dataclass(frozen=True, slots=True)
class _Accepted:
    """Records of a request that are appended, and those that are too large."""

    values: Sequence[bytes]
    rejected: Mapping[int, int] = field(default_factory=dict)  # bytes by position


class HttpReceiver:
    """A server in a thread of its own."""

    def __init__(self, http: HttpSpec, record_bytes: int) -> None:
        self._http = http
        self._limits = BodyLimits(http.max_body, http.max_records, record_bytes)
        self._tokens = [token.reveal().encode() for token in http.tokens]
        self._pattern = re.compile(http.pattern) if http.pattern is not None else None
        self._destination: Destination
        self._server = ServerThread(
            self.application(),
            http.listen,
            name="headrace-http",
            key="`source.http.listen`",
            max_connections=http.max_connections,
            max_headers=http.max_headers,
        )

    # ---- life ----

    def start(self, spool: Destination, report: ReceiverReport) -> None:
        """Listen; UsageError if the address cannot be used."""
        self._destination = spool
        tls = None if self._http.tls is None else server_context(self._http.tls, "source.http.tls")
        report({"event": "listening", "address": self._server.start(tls)})

    def stop(self) -> None:
        """Close the socket, answer the requests that are in progress, and end the thread."""
        self._server.stop()

    def failure(self) -> HeadraceError | None:
        """The error that has ended the server."""
        return self._server.failure()

    # ---- requests ----

    def application(self) -> Starlette:
        """The routes of the server."""
        routes = [Route("/v1/{topic}", self._post, methods=["POST"]), Route("/health", self._health, methods=["GET"])]
        if self._http.preset == "analytics":
            routes.append(Route("/analytics", self._analytics, methods=["POST"]))
        middleware = []
        if self._http.cors:
            allowed = ["Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key", KEY, PRODUCER]
            cors = Middleware(
                _Cors, allow_origins=self._http.cors, allow_methods=["POST", "GET"], allow_headers=allowed
            )
            middleware.append(cors)
        return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _http_error})

    async def _post(self, request: Request) -> Response:
        """`POST /v1/{topic}`."""
        try:
            self._authenticate(request)
            topic = self._topic(request.path_params["topic"])
            body = await self._body(request)
            accepted = self._accepted(split_body(body, request.headers.get("content-type", ""), self._limits))
            incoming = self._incoming(topic, accepted.values, request, _fingerprint(body, request))
            acknowledgement = await self._append(incoming)
        except (BadRequest, HeadraceError) as error:
            return _error_response(error)
        return _stored_response(topic, accepted, acknowledgement)

    async def _analytics(self, request: Request) -> Response:
        """`POST /analytics`."""
        try:
            self._authenticate(request)
            body = await self._body(request)
            value, session = analytics_event(body, datetime.now(UTC))
            accepted = self._accepted([value])
            incoming = self._incoming(ANALYTICS_TOPIC, accepted.values, request, _fingerprint(body, request))
            incoming = replace(incoming, records=_records([value], session.encode(), None))
            await self._append(incoming)
        except (BadRequest, HeadraceError) as error:
            return _error_response(error)
        return JSONResponse({"success": True, "message": "Event received", "eventId": session})

    async def _health(self, request: Request) -> Response:
        """`GET /health`: whether records are accepted now."""
        reason = None
        try:
            self._destination.check_room()
        except HeadraceError as error:
            reason = error.name
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        state: dict[str, Any] = {"status": "unavailable" if reason else "ok", "timestamp": now}
        state |= {"reason": reason} if reason else {}
        state |= {"kafkaReady": reason is None} if self._http.preset else {}
        return JSONResponse(state, 503 if reason else 200)

    async def _append(self, incoming: Incoming) -> Acknowledgement:
        """Append the records, and wait until they are durable; BadRequest if the topic takes none of them."""
        acknowledgement: Acknowledgement = await asyncio.wrap_future(self._destination.append(incoming))
        if not acknowledgement.stored:
            message = f"All records are larger than the topic '{incoming.topic}' allows (its max.message.bytes)."
            raise BadRequest(413, "record_too_large", message)
        return acknowledgement

    def _authenticate(self, request: Request) -> None:
        if sum(len(name) + len(value) for name, value in request.headers.raw) > self._http.max_headers:
            message = f"The request headers have more than {self._http.max_headers:,} bytes (max_headers)."
            raise BadRequest(431, "headers_too_large", message)
        if not self._tokens:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        matches = [hmac.compare_digest(given, each) for each in self._tokens]  # all: the time says nothing
        if not any(matches):
            raise BadRequest(401, "unauthorized", "Send a valid token as 'Authorization: Bearer TOKEN'.")

    def _topic(self, name: str) -> str:
        if name in self._http.all_topics:
            return name
        if self._pattern is not None and _TOPIC.fullmatch(name) and self._pattern.fullmatch(name):
            return name
        raise BadRequest(404, "unknown_topic", f"No topic '{name[:200]}'; the spec lists the topics that are accepted.")

    async def _body(self, request: Request) -> bytes:
        """The body, read and decompressed within the limits."""
        most = self._limits.body_bytes
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise too_large(self._limits)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > most:
                        raise too_large(self._limits)
                    chunks.append(chunk)
        except TimeoutError:
            raise BadRequest(408, "timeout", f"The body did not arrive within {_BODY_SECONDS:.0f} s.") from None
        except ClientDisconnect:
            raise BadRequest(400, "disconnected", "The body is incomplete.") from None
        return plain_body(b"".join(chunks), request.headers.get("content-encoding", ""), self._limits)

    def _accepted(self, records: Sequence[bytes]) -> _Accepted:
        """The records without those that are too large; BadRequest if none remains."""
        most = self._limits.record_bytes
        if max(map(len, records)) <= most:
            return _Accepted(records)
        rejected = {at: len(each) for at, each in enumerate(records) if len(each) > most}
        values = [each for each in records if len(each) <= most]
        if not values:
            message = (
                f"Records of {max(rejected.values()):,} bytes; at most {most:,} are allowed (limits.record_bytes)."
            )
            raise BadRequest(413, "record_too_large", message)
        return _Accepted(values, rejected)

    def _incoming(self, topic: str, values: Sequence[bytes], request: Request, fingerprint: int) -> Incoming:
        key = request.headers.get(KEY)
        headers = [
            {"key": name[len(HEADER) :], "value": value.encode("latin-1")}
            for name, value in request.headers.items()
            if name.startswith(HEADER)
        ]
        records = _records(values, key.encode("latin-1") if key is not None else None, headers or None)
        producer, sequence = request.headers.get(PRODUCER, ""), request.headers.get(SEQUENCE, "")
        return Incoming(topic, records, producer, sequence, fingerprint)


_RECORD_HEADER = re.compile(rf"{HEADER}[a-z0-9!#$%&'*+.^_`|~-]+")
_ASKED = "Access-Control-Request-Headers"


class _Cors(CORSMiddleware):
    """Also allows the headers of records, of which only the beginning of the name is known."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The response to a browser that asks what a page may send."""
        names = [name.strip() for name in request_headers.get(_ASKED, "").lower().split(",")]
        of_records = [name for name in names if _RECORD_HEADER.fullmatch(name)]
        rest = MutableHeaders(request_headers)
        if of_records:
            rest[_ASKED] = ", ".join(name for name in names if name not in of_records) or "content-type"
        response = super().preflight_response(rest)
        if of_records:
            allowed = "Access-Control-Allow-Headers"
            response.headers[allowed] = ", ".join([response.headers[allowed], *of_records])
        return response


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")


def _records(values: Sequence[bytes], key: bytes | None, headers: list[dict[str, Any]] | None) -> pa.RecordBatch:
    """Records that have arrived now, all with the same key and headers."""
    count = len(values)
    columns = {
        "key": pa.repeat(pa.scalar(key, pa.binary()), count),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(count, HEADERS) if headers is None else pa.array([headers] * count, HEADERS),
        "timestamp": pa.repeat(pa.scalar(time.time_ns() // 1000, BLOCK_SCHEMA.field("timestamp").type), count),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in BLOCK_SCHEMA.names], schema=BLOCK_SCHEMA)


def _fingerprint(body: bytes, request: Request) -> int:
    """Checksum of what a repeated request must have in common: everything that makes its records."""
    kind = media_type(request.headers.get("content-type", ""))
    named = [(name, value) for name, value in request.headers.items() if name == KEY or name.startswith(HEADER)]
    return zlib.crc32(body, zlib.crc32(repr((kind, sorted(named))).encode())) or 1


def _stored_response(topic: str, accepted: _Accepted, acknowledgement: Acknowledgement) -> Response:
    """202 with a result for each record of the request, in its order."""
    results = acknowledgement.results()
    if accepted.rejected:
        sizes, rest = accepted.rejected, iter(results)
        results = [
            f'{{"error":"record_too_large","bytes":{sizes[position]}}}' if position in sizes else next(rest)
            for position in range(len(sizes) + len(results))
        ]
    duplicate = "true" if acknowledgement.duplicate else "false"
    stored = acknowledgement.stored
    text = (
        f'{{"topic":"{topic}","stored":{stored},"rejected":{len(results) - stored},'
        f'"duplicate":{duplicate},"records":[{",".join(results)}]}}'
    )
    return Response(text, 202, media_type=_JSON_TYPE)


def _error_response(error: BadRequest | HeadraceError) -> Response:
    if isinstance(error, BadRequest):
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
        return JSONResponse({"error": error.error, "message": error.message}, error.status, headers)
    seconds: float | None = _RETRY_SECONDS
    status = 503
    if isinstance(error, SpoolFull | QueueFull):
        seconds, status = error.retry_after if isinstance(error, SpoolFull) else 1, 429
    elif isinstance(error, SequenceReused | UsageError):
        seconds, status = None, 422 if isinstance(error, SequenceReused) else 400
    headers = None if seconds is None else {"Retry-After": str(math.ceil(seconds))}
    return JSONResponse({"error": error.name, "message": error.message}, status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in the form of all errors."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"{request.method} {request.url.path[:200]} is not available; records are sent to POST /v1/TOPIC."
    return JSONResponse({"error": "not_found" if status == 404 else "method", "message": message}, status)
