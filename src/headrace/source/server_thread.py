"""An HTTP server in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import Any

import uvicorn

from headrace.errors import HeadraceError, UsageError
from headrace.spec.listener import split_address

_STOP_SECONDS = 3


class ServerThread:
    """Serves an ASGI application at an address until it is stopped."""

    def __init__(
        self, application: Any, address: str, *, name: str, key: str, max_connections: int, max_headers: int
    ) -> None:
        """`key`: the setting with the address, for messages."""
        self._application, self._address, self._name, self._key = application, address, name, key
        self._max_connections, self._max_headers = max_connections, max_headers
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._error: HeadraceError | None = None
        self._stopping = False

    def start(self, tls: ssl.SSLContext | None = None) -> str:
        """Listen; returns the URL with the port that was free. UsageError if the address cannot be used."""
        listening = self._socket()
        config = uvicorn.Config(
            self._application,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http="h11",
            loop="asyncio",
            limit_concurrency=self._max_connections,
            h11_max_incomplete_event_size=self._max_headers,
            timeout_graceful_shutdown=_STOP_SECONDS,
            proxy_headers=False,
            backlog=512,
        )
        config.load()
        config.ssl = tls
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(listening,), name=self._name, daemon=True)
        self._thread.start()
        host, port = listening.getsockname()[:2]
        named = f"[{host}]" if ":" in host else host
        return f"{'https' if tls else 'http'}://{named}:{port}"

    def stop(self) -> None:
        """Close the socket, answer the requests that are in progress, and end the thread."""
        self._stopping = True
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(2 * _STOP_SECONDS)

    def failure(self) -> HeadraceError | None:
        """The error that has ended the server."""
        return self._error

    def _socket(self) -> socket.socket:
        host, port = split_address(self._address)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise UsageError(
                f"Cannot listen on {self._address}: {error.strerror or error}.",
                hint=f"Set another address in {self._key}, or stop the process that uses it.",
            ) from None

    def _serve(self, listening: socket.socket) -> None:
        try:
            with listening:
                asyncio.run(self._server.serve(sockets=[listening]))  # type: ignore[union-attr]
        except BaseException as error:  # SystemExit too: it would end only this thread
            self._error = HeadraceError(f"The HTTP server has ended: {type(error).__name__}: {error}.")
        if not self._stopping and self._error is None:
            self._error = HeadraceError("The HTTP server has ended.")
