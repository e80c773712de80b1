"""A TCP relay in front of a server, which can cut connections or lose what the server answers."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Relay:
    """Forwards connections to a local port; with a certificate, those of PostgreSQL's clients over TLS."""

    def __init__(self, target: int, certificate: Path | None = None) -> None:
        self._target = target
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.loses_answers = threading.Event()  # the next answer is dropped, and its connection is cut
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._tls is not None and (client := self._encrypted(client)) is None:
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _encrypted(self, client: socket.socket) -> socket.socket | None:
        """Answer a client that asks for TLS, as a server with a certificate does; None if it does not trust that."""
        assert self._tls is not None
        try:
            assert client.recv(8) == struct.pack("!ii", 8, 80877103)  # SSLRequest
            client.sendall(b"S")
            return self._tls.wrap_socket(client, server_side=True)
        except (OSError, AssertionError):
            client.close()
            return None

    def _forward(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and self.loses_answers.is_set():
                    self.loses_answers.clear()
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections."""
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def relay_to(port: int, certificate: Path | None = None) -> Iterator[Relay]:
    """Run a relay for the length of the block."""
    relay = Relay(port, certificate)
    try:
        yield relay
    finally:
        relay.close()
