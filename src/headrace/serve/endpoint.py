"""The HTTP endpoint of a process: metrics, health, and further routes such as those of the console."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence

from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.serve.access import OPEN_PATHS, Access, Guard, ListenOptions, Role
from headrace.serve.exposition import Exposition
from headrace.serve.health import health_of
from headrace.serve.monitor import Monitor
from headrace.source.server_thread import ServerThread
from headrace.source.server_tls import server_context
from headrace.spec.listener import ServerTlsSpec
from headrace.spec.secrets import Secret

_MAX_CONNECTIONS, _MAX_HEADERS = 200, 16_384


class Endpoint:
    """Serves the monitor over HTTP in a thread of its own."""

    def __init__(
        self,
        monitor: Monitor,
        options: ListenOptions,
        *,
        access: Access | None = None,
        collectors: Sequence[Collector] = (),
        routes: Sequence[BaseRoute] = (),
        open_paths: frozenset[str] = frozenset(),
        identify: Callable[[Request], Role | None] = lambda request: None,
        challenges: Sequence[Callable[[Request], Response | None]] = (),
        unauthorized: Callable[[Request], Response | None] = lambda request: None,
    ) -> None:
        """`collectors`: further metrics. The other parameters are those of the console; see `Guard`."""
        self.access = access or Access(options)
        self._monitor, self._options = monitor, options
        self._exposition = Exposition(monitor, collectors)
        guard = Middleware(
            Guard,
            access=self.access,
            open_paths=OPEN_PATHS | open_paths,
            identify=identify,
            challenges=challenges,
            unauthorized=unauthorized,
        )
        self.application = Starlette(routes=[*self._routes(), *routes], middleware=[guard])
        self._server = ServerThread(
            self.application,
            options.address,
            name="headrace-endpoint",
            key="--listen",
            max_connections=_MAX_CONNECTIONS,
            max_headers=_MAX_HEADERS,
        )

    def start(self) -> str:
        """Listen; returns the URL. UsageError if the address or the certificate cannot be used."""
        return self._server.start(self._tls())

    def stop(self) -> None:
        """Answer the requests that are in progress, and end."""
        self._server.stop()

    def _tls(self) -> ssl.SSLContext | None:
        certificate, key = self._options.certificate, self._options.key
        if certificate is None or key is None:
            return None
        secret = Secret(f"${{file:{key.absolute()}}}", key.parent)
        return server_context(ServerTlsSpec(certificate=certificate.read_text(), key=secret), "--listen-certificate")

    def _routes(self) -> list[BaseRoute]:
        return [
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/live", _live, methods=["GET"]),
            Route("/ready", self._ready, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
        ]

    async def _metrics(self, request: Request) -> Response:
        """`GET /metrics`: in the format of Prometheus, or OpenMetrics if the client accepts it."""
        body, media_type = self._exposition.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    async def _ready(self, request: Request) -> Response:
        """`GET /ready`: whether there are pipelines, every one has started and none has failed."""
        pipelines = health_of(self._monitor)["pipelines"]  # empty until a directory of specs has been read
        waiting = [each["pipeline"] for each in pipelines if not each["ready"]]
        ready = bool(pipelines) and not waiting
        return JSONResponse({"ready": ready, "waiting": waiting}, 200 if ready else 503)

    async def _health(self, request: Request) -> Response:
        """`GET /health`: pipelines, tables, lag, and what is wrong."""
        health = health_of(self._monitor)
        return JSONResponse(health, 200 if health["healthy"] else 503)


async def _live(request: Request) -> Response:
    """`GET /live`: whether the process answers."""
    return JSONResponse({"live": True})
