"""The OTLP receiver: a gRPC and an HTTP server in one event loop."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

import grpc

from headrace.errors import HeadraceError, UsageError
from headrace.source.otlp.grpc_server import GrpcServer
from headrace.source.otlp.http_server import HttpServer
from headrace.source.otlp.intake import Intake
from headrace.source.server_tls import server_context
from headrace.source.spool.receiver import Destination, ReceiverReport
from headrace.spec.listener import ServerTlsSpec
from headrace.spec.otlp_source import OtlpSpec

_START_SECONDS = 30


@dataclass
class OtlpReceiver:
    """Receives export requests until it is stopped."""

    spec: OtlpSpec
    record_bytes: int
    grpc_port: int | None = None  # while it runs
    http_port: int | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _servers: list[GrpcServer | HttpServer] = field(default_factory=list)

    def start(self, spool: Destination, report: ReceiverReport) -> None:
        """Accept requests; UsageError if an address or a certificate cannot be used."""
        self._thread = threading.Thread(target=self._run, name="headrace-otlp", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(spool), self._loop).result(_START_SECONDS)
        except BaseException:
            self.stop()
            raise
        for address in self.addresses():
            report({"event": "listening", "address": address})

    def addresses(self) -> list[str]:
        """Addresses as URLs, with the ports that were free."""
        scheme = "http" if self.spec.tls is None else "https"
        bound = ((self.spec.grpc, self.grpc_port), (self.spec.http, self.http_port))
        return [f"{scheme}://{address.rpartition(':')[0]}:{port}" for address, port in bound if address and port]

    def failure(self) -> HeadraceError | None:
        """The error that has ended the event loop, if one has."""
        if self._thread is None or self._thread.is_alive():
            return None
        return HeadraceError("The OTLP receiver has ended.", hint="This is a bug in Headrace; report it.")

    def stop(self) -> None:
        """Answer the current requests, then stop."""
        if self._thread is None:
            return
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._thread = None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self, spool: Destination) -> None:
        spec = self.spec
        tokens = [token.reveal() for token in spec.tokens]
        intake = Intake(spool, tokens, max_body=spec.max_body, record_bytes=self.record_bytes)
        context = (
            None if spec.tls is None else server_context(spec.tls, "source.otlp.tls")
        )  # checks the certificate for both
        if (address := spec.grpc) is not None:
            credentials = None if spec.tls is None else _credentials(spec.tls)
            self.grpc_port = self._add(address, GrpcServer, intake, credentials)
        if (address := spec.http) is not None:
            self.http_port = self._add(address, HttpServer, intake, context)
        for server in self._servers:
            await server.start()

    def _add(self, address: str, kind: type[GrpcServer | HttpServer], intake: Intake, tls: Any) -> int:
        """Bind an address; returns its port."""
        try:
            self._servers.append(kind(intake, address, tls))
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"OTLP cannot listen on {address}: {error}.", hint="Set another address, or stop the other program."
            ) from None
        return self._servers[-1].port

    async def _stop(self) -> None:
        for server in self._servers:
            await server.stop()
        self._servers.clear()


def _credentials(tls: ServerTlsSpec) -> Any:
    return grpc.ssl_server_credentials(
        [(tls.key.reveal().encode(), tls.certificate.encode())],
        root_certificates=None if tls.client_ca is None else tls.client_ca.encode(),
        require_client_auth=tls.client_ca is not None,
    )
