"""A Rivven server as a child process, and a gateway before it for TLS and authentication."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.dev.kafka import free_ports
from headrace.runtime import cache
from headrace.runtime.child_process import Child, spawn
from headrace.source.rivven.client import RivvenClient, RivvenConnection
from headrace.source.rivven.protocol import RequestKind, ResponseKind, ResponseReader, frame_length, unsigned
from services.certs import Certificates
from services.programs import cargo_program
from services.wait import eventually

RIVVEND = "rivvend@0.0.22"
_SHARED = Path(__file__).parents[3] / "shared" / "bin" / "rivvend"


def is_built() -> bool:
    """Whether the server is on this machine; otherwise the tests that need it are slow, because they build it."""
    return _SHARED.exists() or (cache.cache_folder("cargo-rivvend") / "0.0.22").exists()


def rivven_program() -> Path:
    """The server beside the checkout, else in the cache, else built into it."""
    return _SHARED if _SHARED.exists() else cargo_program(RIVVEND)


@dataclass
class RivvenServer:
    """A server and its data."""

    folder: Path
    ports: tuple[int, int, int]
    options: tuple[str, ...] = ()
    child: Child | None = field(default=None, repr=False)
    _client: RivvenClient | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.ports[0]}"

    def start(self) -> None:
        """Start the server, with the data that it has."""
        client, api, metrics = (f"127.0.0.1:{port}" for port in self.ports)
        command = [str(rivven_program()), "--bind", client, "--api-bind", api, "--metrics-bind", metrics]
        command += ["--data-dir", str(self.folder / "data"), "--persistence", "--rate-limit-per-ip", "0", *self.options]
        log = self.folder / "rivvend.log"
        self.child = spawn(command, log=log, env={**os.environ, "RUST_LOG": "warn"})
        eventually(self._answers, within=60, say=lambda: log.read_text()[-500:])

    def _answers(self) -> bool:
        assert self.child is not None
        assert self.child.poll() is None, "the server has ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[0]), 5):
            return True
        return False

    def stop(self) -> None:
        """Stop the server; all that was published is in its log afterwards."""
        self.client().close()
        if self.child is not None:
            self.child.stop(within=30)

    def kill(self) -> None:
        """Kill -9."""
        self.client().close()
        if self.child is not None:
            self.child.crash()

    def client(self) -> RivvenClient:
        """A client without authentication, closed with the server."""
        self._client = self._client or RivvenClient(RivvenConnection(self.address, timeout=60))
        return self._client

    def topic(self, values: Iterable[bytes], partitions: int = 1) -> str:
        """A new topic with these values in turn over its partitions, all with a key."""
        name, client = f"t-{secrets.token_hex(6)}", self.client()
        client.close()  # the server closes idle connections, and a request that changes something is not repeated
        client.create_topic(name, partitions)
        records: list[list[tuple[bytes | None, bytes]]] = [[] for _ in range(partitions)]
        for index, value in enumerate(values):
            records[index % partitions].append((f"k{index}".encode(), value))
        for partition, each in enumerate(records):
            client.publish(name, each, partition)
        return name


@contextmanager
def rivven_server(folder: Path, authentication: bool = False) -> Iterator[RivvenServer]:
    """Run a server for the length of the block."""
    ports = free_ports()
    one, two, three = (next(iter(ports)) for _ in range(3))
    server = RivvenServer(folder, (one, two, three), () if authentication else ("--no-require-auth",))
    server.start()
    try:
        yield server
    finally:
        server.stop()


# ---- files of a server: to publish a record takes it more than a millisecond ----

_INDEX_BYTES = 4096  # between two entries of the index
_PLAIN = bytes(5)  # no headers, no producer, no epoch, no marker, not transactional


def write_topics(folder: Path, topics: Mapping[str, Sequence[Sequence[bytes]]]) -> None:
    """Write the files that a server has for topics, with the values of each partition; before it is started."""
    for name, partitions in topics.items():
        for number, values in enumerate(partitions):
            _write_log(folder / "data" / name / f"partition-{number}", values)
    metadata = [{"name": name, "num_partitions": len(each), "created_at": 0} for name, each in topics.items()]
    (folder / "data" / "topic_metadata.json").write_text(json.dumps(metadata))


def _write_log(folder: Path, values: Sequence[bytes]) -> None:
    """One segment of a partition: frames of checksum, length and record, and a sparse index."""
    folder.mkdir(parents=True)
    position, indexed = 0, -_INDEX_BYTES
    with (folder / f"{0:020}.log").open("wb") as log, (folder / f"{0:020}.index").open("wb") as index:
        for offset, record in enumerate(_records(values)):
            if position - indexed >= _INDEX_BYTES:
                index.write(struct.pack(">IQ", offset, position))
                indexed = position
            log.write(struct.pack(">II", zlib.crc32(record), len(record)) + record)
            position += 8 + len(record)


def _records(values: Sequence[bytes]) -> Iterator[bytes]:
    for offset, value in enumerate(values):
        stamp = (datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()
        no_key = b"\0"
        yield b"".join((unsigned(offset), no_key, unsigned(len(value)), value, unsigned(len(stamp)), stamp, _PLAIN))


# ---- a gateway: the published server has neither TLS for clients nor a way to add users ----


@dataclass(frozen=True)
class Gateway:
    """What stands before the server: TLS if there are certificates, authentication if there are users."""

    target: tuple[str, int]
    certificates: Certificates | None = None
    users: dict[str, str] = field(default_factory=dict)
    client_certificates: bool = False

    def serve(self, incoming: socket.socket) -> None:
        """Serve one connection, in a thread."""
        with suppress(OSError, ssl.SSLError, _Refused):
            if self.certificates is not None:
                incoming = self._context(self.certificates).wrap_socket(incoming, server_side=True)
            if self.users:
                _Login(incoming, self.users).run()
            with socket.create_connection(self.target, 10) as outgoing:
                threading.Thread(target=_copy, args=(outgoing, incoming), daemon=True).start()
                _copy(incoming, outgoing)
        incoming.close()

    def _context(self, certificates: Certificates) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server)
        if self.client_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(certificates.authority)
        return context


@contextmanager
def gateway(server: RivvenServer, **settings: Any) -> Iterator[str]:
    """A gateway before a server for the length of the block; its address."""
    door = Gateway(("127.0.0.1", server.ports[0]), **settings)
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=door.serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"localhost:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _copy(origin: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := origin.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


class _Refused(Exception):
    """The client is not let in."""


class _Login:
    """The server's side of PLAIN and SCRAM-SHA-256 as in its published sources."""

    iterations = 4096

    def __init__(self, connection: socket.socket, users: dict[str, str]) -> None:
        self.connection, self.users = connection, users
        self.correlation = b""

    def run(self) -> None:
        reader = self._request()
        if reader.integer() == RequestKind.SASL_AUTHENTICATE:
            assert reader.blob() == b"PLAIN"
            _, name, password = reader.blob().decode().split("\0")
            self._decide(self.users.get(name) == password, "AUTHENTICATION_FAILED: Authentication failed")
            self._send(unsigned(ResponseKind.AUTHENTICATED) + _blob(b"session") + unsigned(3600))
            return
        bare = reader.text().removeprefix("n,,")
        fields = dict(part.split("=", 1) for part in bare.split(","))
        salt, nonce = os.urandom(16), fields["r"] + secrets.token_hex(8)
        challenge = f"r={nonce},s={base64.b64encode(salt).decode()},i={self.iterations}"
        self._send(unsigned(ResponseKind.SCRAM_SERVER_FIRST) + _blob(challenge.encode()))
        self._finish(f"{bare},{challenge}", salt, self.users.get(fields["n"], secrets.token_hex(8)))

    def _finish(self, begun: str, salt: bytes, password: str) -> None:
        reader = self._request()
        assert reader.integer() == RequestKind.SCRAM_CLIENT_FINAL
        without, _, proof = reader.text().rpartition(",p=")
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, self.iterations)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        message = f"{begun},{without}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
        expected = bytes(one ^ two for one, two in zip(client_key, signature, strict=True))
        if base64.b64decode(proof) != expected:
            self._send(unsigned(ResponseKind.SCRAM_SERVER_FINAL) + _blob(b"e=Authentication failed") + b"\0\0")
            raise _Refused
        server = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
        final = b"v=" + base64.b64encode(server)
        session = b"\1" + _blob(b"session") + b"\1" + unsigned(3600)
        self._send(unsigned(ResponseKind.SCRAM_SERVER_FINAL) + _blob(final) + session)

    def _decide(self, right: bool, text: str) -> None:
        if not right:
            self._send(unsigned(ResponseKind.ERROR) + _blob(text.encode()))
            raise _Refused

    def _request(self) -> ResponseReader:
        content = self._bytes(frame_length(self._bytes(4)))
        self.correlation = content[1:5]
        return ResponseReader(content, 5)

    def _bytes(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            part = self.connection.recv(count - len(content))
            if not part:
                raise _Refused
            content += part
        return content

    def _send(self, body: bytes) -> None:
        self.connection.sendall((len(body) + 5).to_bytes(4, "big") + b"\0" + self.correlation + body)


def _blob(content: bytes) -> bytes:
    return unsigned(len(content)) + content
