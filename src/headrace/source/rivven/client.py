"""A synchronous client of one Rivven server: requests in order, several at a time, over one connection."""

from __future__ import annotations

import secrets
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    EndpointInvalid,
    HeadraceError,
    PermissionDenied,
    SourceTopicGone,
)
from headrace.source.rivven import protocol
from headrace.source.rivven.messages import Messages, decode_messages
from headrace.source.rivven.protocol import MalformedResponse, Producer, ResponseKind, ResponseReader
from headrace.source.rivven.scram import ScramExchange, ScramFailed

T = TypeVar("T")
_Parser = Callable[[ResponseReader], T]

_WINDOW = 64  # requests that are sent before the first response is read
_MAX_THROTTLE = 30.0  # seconds
_BATCH_RECORDS = 500  # that are published at once; the server takes more than a millisecond for each
_BATCH_BYTES = 4 * 1024 * 1024
_UNAUTHENTICATED = ("AUTHENTICATION_", "SCRAM_FAILED", "PLAINTEXT_AUTH_REQUIRES_TLS", "SASL/PLAIN requires")
_SESSION_ENDED = ("SESSION_EXPIRED", "INVALID_SESSION")
_NO_TOPIC = ("Topic not found", "UNKNOWN_TOPIC", "INVALID_TOPIC_NAME")
_NO_PARTITION = ("INVALID_PARTITION", "Partition ")
_TOO_LARGE = "INTERNAL_ERROR: response send failed"  # the response exceeds the server's limit for frames


@dataclass(frozen=True)
class TlsFiles:
    """TLS settings as PEM texts."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class RivvenConnection:
    """How to connect; plain values, so that it can be sent to a task."""

    address: str  # host:port
    tls: TlsFiles | None = None
    mechanism: str | None = None  # of SASL; None: no authentication
    username: str = ""
    password: str = field(default="", repr=False)
    timeout: float = 15.0  # seconds to connect, and without a byte of an expected response


class ResponseTooLarge(Exception):
    """The requested records exceed the server's limit for a response; fewer can be requested."""


def is_connection_lost(error: HeadraceError) -> bool:
    """Whether a connection ended that had been opened: the request may succeed on a new one at once."""
    return error.facts.get("connection") == "lost"


class RivvenClient:
    """A connection that is opened by the first request, and again after it was lost.

    A request that finds its connection closed is sent once more if that cannot change its effect. Threads take turns.
    """

    def __init__(self, connection: RivvenConnection) -> None:
        self.connection = connection
        self._socket: socket.socket | None = None
        self._correlation = 0
        self._waiting = 0  # requests without a response
        self._lock = threading.RLock()

    def __enter__(self) -> RivvenClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- topics and offsets ----

    def topics(self) -> list[str]:
        """Names of all topics except internal ones, sorted."""
        names = self._exchange(protocol.list_topics(), ResponseKind.TOPICS, protocol.topic_names)
        return sorted(name for name in names if not name.startswith("__") and name != "_schemas")

    def partitions(self, topics: Sequence[str]) -> list[int]:
        """Number of partitions of each topic."""
        requests = [(topic, protocol.get_metadata(topic)) for topic in topics]
        return self._exchange_all(requests, ResponseKind.METADATA, protocol.partition_count)

    def bounds(self, partitions: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
        """Earliest and latest offset of each partition."""
        requests = [(topic, protocol.get_offset_bounds(topic, partition)) for topic, partition in partitions]
        return self._exchange_all(requests, ResponseKind.OFFSET_BOUNDS, protocol.offset_bounds)

    def offsets_at(self, partitions: Sequence[tuple[str, int]], milliseconds: int) -> list[int | None]:
        """First offset of each partition at or after a timestamp."""
        requests = [
            (topic, protocol.get_offset_for_timestamp(topic, partition, milliseconds))
            for topic, partition in partitions
        ]
        return self._exchange_all(requests, ResponseKind.OFFSET_FOR_TIMESTAMP, protocol.optional_offset)

    def is_compacted(self, topic: str) -> bool:
        """Whether the server may remove records of the topic that have a newer record with the same key."""
        request = protocol.describe_topic_configs(topic)
        kind = ResponseKind.TOPIC_CONFIGS_DESCRIBED
        return "compact" in self._exchange(request, kind, protocol.cleanup_policy, topic)

    # ---- records ----

    def fetch(self, topic: str, partition: int, offset: int, count: int, committed: bool = True) -> Messages:
        """Records from an offset; fewer than `count` where the response or the log ends."""
        with self._lock:
            self.ask(topic, partition, offset, count, committed)
            return self.answer(topic, partition)

    def fetch_all(self, requests: Sequence[tuple[str, int, int, int]], committed: bool = True) -> list[Messages]:
        """Records for several requests: topic, partition, offset and count."""
        answers = []
        with self._lock:
            for start in range(0, len(requests), _WINDOW):
                window = requests[start : start + _WINDOW]
                for topic, partition, offset, count in window:
                    self.ask(topic, partition, offset, count, committed)
                answers += [self.answer(topic, partition) for topic, partition, _, _ in window]
        return answers

    def ask(self, topic: str, partition: int, offset: int, count: int, committed: bool) -> None:
        """Send a request for records; `answer` returns the responses in the order of the requests."""
        self._send(protocol.consume(topic, partition, offset, count, committed))

    def answer(self, topic: str, partition: int) -> Messages:
        """The response to the oldest request of `ask`; ResponseTooLarge if fewer records must be requested."""
        return self._receive(ResponseKind.MESSAGES, lambda reader: decode_messages(reader, partition), topic)

    # ---- producers: for examples, tests and benchmarks ----

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic."""
        self._exchange(protocol.create_topic(name, partitions), ResponseKind.TOPIC_CREATED, _nothing, repeat=False)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. The server keeps its records, and a new topic of that name has them."""
        self._exchange(protocol.delete_topic(name), ResponseKind.TOPIC_DELETED, _nothing, name, repeat=False)

    def configure_topic(self, topic: str, key: str, value: str) -> None:
        """Set a configuration key of a topic."""
        request = protocol.alter_topic_config(topic, key, value)
        self._exchange(request, ResponseKind.TOPIC_CONFIG_ALTERED, _nothing, topic)

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records of a partition before an offset."""
        request = protocol.delete_records(topic, partition, offset)
        self._exchange(request, ResponseKind.RECORDS_DELETED, _nothing, topic)

    def publish(self, topic: str, records: Sequence[tuple[bytes | None, bytes]], partition: int = 0) -> None:
        """Append records, as key and value, to a partition; returns when the server has all of them."""
        with self._lock:
            batches = list(_batches(records))
            for start in range(0, len(batches), _WINDOW):
                window = batches[start : start + _WINDOW]
                for batch in window:
                    self._send(protocol.publish_batch(topic, partition, batch))
                for _ in window:
                    self._receive(ResponseKind.PUBLISHED_BATCH, _nothing, topic)

    def publish_transaction(self, topic: str, values: Sequence[bytes], commit: bool, partition: int = 0) -> None:
        """Append records in a transaction, which is then committed or aborted."""
        with self._lock:
            request = protocol.init_producer_id()
            kind = ResponseKind.PRODUCER_ID_INITIALIZED
            number, epoch = self._exchange(request, kind, lambda reader: (reader.integer(), reader.integer()))
            producer = Producer(number, epoch, f"headrace-{secrets.token_hex(8)}")
            started = protocol.begin_transaction(producer)
            self._exchange(started, ResponseKind.TRANSACTION_STARTED, _nothing, repeat=False)
            added = protocol.add_partition_to_txn(producer, topic, partition)
            self._exchange(added, ResponseKind.PARTITIONS_ADDED_TO_TXN, _nothing, repeat=False)
            for sequence, value in enumerate(values):
                record = protocol.transactional_publish(producer, topic, partition, value, sequence)
                self._exchange(record, ResponseKind.TRANSACTIONAL_PUBLISHED, _nothing, repeat=False)
            ended = ResponseKind.TRANSACTION_COMMITTED if commit else ResponseKind.TRANSACTION_ABORTED
            self._exchange(protocol.end_transaction(producer, commit), ended, _nothing, repeat=False)

    # ---- requests and responses ----

    def _exchange(
        self, request: bytes, kind: ResponseKind, parse: _Parser[T], topic: str = "", repeat: bool = True
    ) -> T:
        with self._lock:
            try:
                self._send(request)
                return self._receive(kind, parse, topic)
            except BrokerUnreachable as error:
                if not repeat or not is_connection_lost(error):
                    raise
            self._send(request)  # the server closes idle connections
            return self._receive(kind, parse, topic)

    def _exchange_all(self, requests: Sequence[tuple[str, bytes]], kind: ResponseKind, parse: _Parser[T]) -> list[T]:
        """Responses to requests that only read; a window of them is sent at once."""
        try:
            return self._windows(requests, kind, parse)
        except BrokerUnreachable as error:
            if not is_connection_lost(error):
                raise
        return self._windows(requests, kind, parse)

    def _windows(self, requests: Sequence[tuple[str, bytes]], kind: ResponseKind, parse: _Parser[T]) -> list[T]:
        responses: list[T] = []
        with self._lock:
            for start in range(0, len(requests), _WINDOW):
                window = requests[start : start + _WINDOW]
                for _, request in window:
                    self._send(request)
                responses += [self._receive(kind, parse, topic) for topic, _ in window]
        return responses

    def _send(self, request: bytes) -> None:
        connected = self._socket or self._connect()
        self._correlation = (self._correlation + 1) % 2**32
        with self._failures():
            connected.sendall(protocol.frame(request, self._correlation))
        self._waiting += 1

    def _receive(self, kind: ResponseKind, parse: _Parser[T], topic: str = "") -> T:
        """The next response; after an error, those that were requested with it are not read any more."""
        try:
            return self._parse(self._response(), kind, parse, topic)
        except ResponseTooLarge:
            raise
        except BaseException:
            if self._waiting:
                self.close()
            raise

    def _response(self) -> ResponseReader:
        connected = self._socket
        if connected is None:
            raise _connection_lost(self.connection.address, "closed by the server")
        with self._failures():
            content = _read(connected, protocol.frame_length(_read(connected, 4)))
            expected = (self._correlation - self._waiting + 1) % 2**32
            number = protocol.correlation_of(content)
            reader = ResponseReader(content, protocol.BODY)
            # The server answers a request that it cannot read, and one that is too large, with correlation id 0.
            if number not in (expected, 0):
                raise MalformedResponse(f"the response to request {number}; expected that to {expected}")
        self._waiting -= 1
        return reader

    def _parse(self, reader: ResponseReader, kind: ResponseKind, parse: _Parser[T], topic: str) -> T:
        with self._failures():
            number = protocol.response_kind(reader)
            if number == kind:
                return parse(reader)
            if number == ResponseKind.ERROR:
                raise self._error(protocol.error_text(reader), topic)
            if number == ResponseKind.THROTTLED:
                wait = protocol.throttle(reader).milliseconds / 1000
                time.sleep(min(wait, _MAX_THROTTLE))
                raise BrokerUnreachable(f"The server at {self.connection.address} throttles requests ({wait:g} s).")
            raise MalformedResponse(f"response {number}; expected {int(kind)} ({kind.name})")

    def _error(self, text: str, topic: str) -> Exception:
        where = self.connection.address
        if text.startswith(_TOO_LARGE):
            return ResponseTooLarge(f"The records exceed the limit of {protocol.MAX_FRAME:,} bytes for a response.")
        if text.startswith(_UNAUTHENTICATED):
            return self._refused(text)
        if text.startswith(_SESSION_ENDED):
            self.close()
            return _connection_lost(where, text)
        if text.startswith("AUTHORIZATION_FAILED"):
            return PermissionDenied(
                f"The server at {where} denies access to {topic or 'the cluster'}: {text}.",
                hint="Grant READ and DESCRIBE on the topics, and DESCRIBE on the cluster.",
            )
        if text.startswith(_NO_TOPIC):
            return SourceTopicGone(
                f"The topic '{topic}' does not exist at {where}.",
                hint="Create the topic, or remove it from the spec; no offset was reset.",
                topic=topic,
            )
        if text.startswith(_NO_PARTITION):
            return SourceTopicGone(f"A partition of the topic '{topic}' does not exist: {text}.", topic=topic)
        return BrokerUnreachable(f"The server at {where} rejected a request: {text}.")

    def _refused(self, text: str) -> AuthenticationFailed:
        hint = "Check source.rivven.sasl." if self.connection.mechanism else "Set source.rivven.sasl."
        return AuthenticationFailed(
            f"The server at {self.connection.address} rejects the credentials: {text.rstrip('.')}.", hint=hint
        )

    def _failures(self) -> _Failures:
        return _Failures(self)

    # ---- connection ----

    def _connect(self) -> socket.socket:
        host, _, port = self.connection.address.rpartition(":")
        self._correlation = self._waiting = 0
        with self._failures():
            connected = socket.create_connection((host.strip("[]"), int(port)), self.connection.timeout)
            self._socket = connected
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.connection.tls is not None:
                connected = _context(self.connection.tls).wrap_socket(connected, server_hostname=host.strip("[]"))
                self._socket = connected
        try:
            if self.connection.mechanism is not None:
                self._authenticate()
            else:
                self._check_version()
        except BaseException:
            self.close()
            raise
        return connected

    def _check_version(self) -> None:
        """Only without authentication: a server that requires it answers no handshake."""
        self._send(protocol.handshake("headrace"))
        version, compatible, message = self._receive(
            ResponseKind.HANDSHAKE_RESULT, lambda reader: (reader.integer(), reader.present(), reader.text())
        )
        if not compatible:
            raise EndpointInvalid(
                f"The server at {self.connection.address} has protocol version {version}; Headrace supports version "
                f"{protocol.VERSION}: {message}.",
                hint="Use a server of version 0.0.22.",
            )

    def _authenticate(self) -> None:
        username, password = self.connection.username, self.connection.password
        if self.connection.mechanism == "PLAIN":
            self._send(protocol.sasl_plain(username, password))
            self._receive(ResponseKind.AUTHENTICATED, _nothing)
            return
        exchange = ScramExchange(username, password)
        try:
            self._send(protocol.scram_first(exchange.first()))
            challenge = self._receive(ResponseKind.SCRAM_SERVER_FIRST, _message)
            self._send(protocol.scram_final(exchange.final(challenge)))
            exchange.verify(self._receive(ResponseKind.SCRAM_SERVER_FINAL, _message))
        except ScramFailed as error:
            raise self._refused(str(error)) from None

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        with self._lock:
            closing, self._socket, self._waiting = self._socket, None, 0
            if closing is not None:
                with suppress(OSError):
                    closing.close()


def _connection_lost(where: str, cause: str) -> BrokerUnreachable:
    return BrokerUnreachable(f"The connection to the server at {where} was lost: {cause}.", connection="lost")


class _Failures:
    """Context that maps failures of a connection to errors, and closes it."""

    def __init__(self, client: RivvenClient) -> None:
        self.client = client

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        where = self.client.connection.address
        if not isinstance(error, OSError | MalformedResponse):
            return
        connected = self.client._socket is not None
        self.client.close()
        if isinstance(error, MalformedResponse):
            raise EndpointInvalid(
                f"{where} sent no valid response: {error}.",
                hint="Check source.rivven.broker: it must be the client port of a Rivven server, with its TLS setting.",
            ) from None
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            raise _tls_failure(error, where) from None
        cause = error.strerror or str(error) or type(error).__name__
        if connected:
            raise _connection_lost(where, cause) from None
        raise BrokerUnreachable(f"The server at {where} does not respond: {cause}.") from None


def _tls_failure(error: ssl.SSLError, where: str) -> HeadraceError:
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not trusted ({error.verify_message})"
    return AuthenticationFailed(
        f"The TLS connection to the server at {where} failed: {reason}.", hint="Check source.rivven.tls."
    )


def _context(tls: TlsFiles) -> ssl.SSLContext:
    """Certificates and host names are always verified."""
    context = ssl.create_default_context(cadata=tls.ca)
    if tls.certificate is not None and tls.key is not None:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # the module reads certificates from files only
            file.write(f"{tls.key}\n{tls.certificate}")
            file.flush()
            context.load_cert_chain(file.name, password=tls.key_password)
    return context


def _read(connected: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view, received = memoryview(content), 0
    while received < length:
        count = connected.recv_into(view[received:])
        if not count:
            raise ConnectionResetError("closed by the server")
        received += count
    return content


def _message(reader: ResponseReader) -> str:
    return reader.text()


def _nothing(_: ResponseReader) -> None:
    """For responses whose fields are not needed."""


def _batches(records: Sequence[tuple[bytes | None, bytes]]) -> Iterator[Sequence[tuple[bytes | None, bytes]]]:
    """Batches that fit into a frame."""
    start = size = 0
    for index, (key, value) in enumerate(records):
        length = len(key or b"") + len(value) + 20
        if index > start and (size + length > _BATCH_BYTES or index - start == _BATCH_RECORDS):
            yield records[start:index]
            start, size = index, 0
        size += length
    if len(records) > start:
        yield records[start:]
