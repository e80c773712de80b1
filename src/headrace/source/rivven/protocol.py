"""The wire protocol of Rivven: frames, requests and responses in the serialization format postcard.

A frame is a 4-byte length, a 1-byte format (0: postcard), a 4-byte correlation id and the body, big-endian. In
postcard, integers are varints with the low seven bits first, signed ones are zigzag-encoded, texts and lists start with
their length, an option is 0, or 1 and the value, and an enum is the number of its variant and the fields. Variant
numbers are those of protocol version 2; a server keeps them, because another number is another message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

VERSION = 2
MAX_FRAME = 10 * 1024 * 1024  # bytes; the limit of the server, for requests and responses
MAX_RECORDS = 10_000  # in a response; the server returns no more, whatever is requested
_HEADER = 5  # bytes between the length and the body: format and correlation id
_POSTCARD = 0
_MAX_NAME = 64 * 1024  # bytes of a name, a message or an authentication text
_MAX_LIST = 100_000  # topics, and other items of a list
_MAX_OFFSET = 2**63 - 1
_MAX_VARINT = 10  # bytes of a 64-bit integer


class MalformedResponse(ValueError):
    """Bytes that are no response of the protocol."""


class RequestKind(IntEnum):
    """Variant number of a request."""

    SASL_AUTHENTICATE = 1
    SCRAM_CLIENT_FIRST = 2
    SCRAM_CLIENT_FINAL = 3
    CONSUME = 5
    CREATE_TOPIC = 6
    LIST_TOPICS = 7
    DELETE_TOPIC = 8
    GET_METADATA = 11
    GET_OFFSET_BOUNDS = 14
    GET_OFFSET_FOR_TIMESTAMP = 18
    INIT_PRODUCER_ID = 19
    BEGIN_TRANSACTION = 21
    ADD_PARTITIONS_TO_TXN = 22
    TRANSACTIONAL_PUBLISH = 23
    COMMIT_TRANSACTION = 25
    ABORT_TRANSACTION = 26
    ALTER_TOPIC_CONFIG = 29
    DELETE_RECORDS = 31
    DESCRIBE_TOPIC_CONFIGS = 32
    HANDSHAKE = 33
    PUBLISH_BATCH = 38


class ResponseKind(IntEnum):
    """Variant number of a response."""

    AUTHENTICATED = 0
    SCRAM_SERVER_FIRST = 1
    SCRAM_SERVER_FINAL = 2
    MESSAGES = 4
    TOPIC_CREATED = 5
    TOPICS = 6
    TOPIC_DELETED = 7
    METADATA = 10
    OFFSET_BOUNDS = 13
    OFFSET_FOR_TIMESTAMP = 17
    ERROR = 18
    PRODUCER_ID_INITIALIZED = 20
    TRANSACTION_STARTED = 22
    PARTITIONS_ADDED_TO_TXN = 23
    TRANSACTIONAL_PUBLISHED = 24
    TRANSACTION_COMMITTED = 26
    TRANSACTION_ABORTED = 27
    THROTTLED = 30
    TOPIC_CONFIG_ALTERED = 31
    RECORDS_DELETED = 33
    TOPIC_CONFIGS_DESCRIBED = 34
    HANDSHAKE_RESULT = 35
    PUBLISHED_BATCH = 40


# ---- frames ----


def frame(body: bytes, correlation: int) -> bytes:
    """Frame of a request; ValueError if the server would refuse its size."""
    if len(body) + _HEADER > MAX_FRAME:
        raise ValueError(f"a request of {len(body):,} bytes; the limit is {MAX_FRAME - _HEADER:,}")
    return (len(body) + _HEADER).to_bytes(4, "big") + bytes([_POSTCARD]) + correlation.to_bytes(4, "big") + body


def frame_length(prefix: bytes | bytearray) -> int:
    """Length of a frame from its first four bytes; nothing is allocated for an impossible length."""
    length = int.from_bytes(prefix, "big")
    if not _HEADER < length <= MAX_FRAME:
        raise MalformedResponse(f"a frame of {length:,} bytes; expected {_HEADER + 1} to {MAX_FRAME:,}")
    return length


def correlation_of(content: bytes | bytearray) -> int:
    """Correlation id of a frame without its length; its body starts at `BODY`."""
    if content[0] != _POSTCARD:
        raise MalformedResponse(f"a response in format {content[0]}; expected {_POSTCARD} (postcard)")
    return int.from_bytes(content[1:_HEADER], "big")


BODY = _HEADER


# ---- requests ----


def unsigned(number: int) -> bytes:
    """Unsigned integer."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def zigzag(number: int) -> int:
    """Signed integer as an unsigned one: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return number << 1 if number >= 0 else (-number << 1) - 1


def _blob(content: bytes) -> bytes:
    return unsigned(len(content)) + content


def _text(content: str) -> bytes:
    return _blob(content.encode())


def _option(content: bytes | None) -> bytes:
    return b"\0" if content is None else b"\1" + content


def _request(kind: RequestKind, *fields: bytes) -> bytes:
    return unsigned(kind) + b"".join(fields)


def sasl_plain(username: str, password: str) -> bytes:
    """Authentication with SASL PLAIN, which the server accepts over TLS only."""
    return _request(RequestKind.SASL_AUTHENTICATE, _blob(b"PLAIN"), _blob(f"\0{username}\0{password}".encode()))


def scram_first(message: str) -> bytes:
    """The client's first message of SCRAM-SHA-256."""
    return _request(RequestKind.SCRAM_CLIENT_FIRST, _text(message))


def scram_final(message: str) -> bytes:
    """The client's final message of SCRAM-SHA-256."""
    return _request(RequestKind.SCRAM_CLIENT_FINAL, _text(message))


def handshake(client: str) -> bytes:
    """Check of the protocol version."""
    return _request(RequestKind.HANDSHAKE, unsigned(VERSION), _text(client))


def consume(topic: str, partition: int, offset: int, count: int, committed: bool) -> bytes:
    """Records from an offset, at most `count`; `committed`: without those of aborted transactions."""
    isolation, no_wait = _option(bytes([committed])), _option(None)
    return _request(
        RequestKind.CONSUME, _text(topic), unsigned(partition), unsigned(offset), unsigned(count), isolation, no_wait
    )


def list_topics() -> bytes:
    """Names of all topics."""
    return _request(RequestKind.LIST_TOPICS)


def get_metadata(topic: str) -> bytes:
    """Number of partitions of a topic."""
    return _request(RequestKind.GET_METADATA, _text(topic))


def get_offset_bounds(topic: str, partition: int) -> bytes:
    """Earliest and latest offset of a partition."""
    return _request(RequestKind.GET_OFFSET_BOUNDS, _text(topic), unsigned(partition))


def get_offset_for_timestamp(topic: str, partition: int, milliseconds: int) -> bytes:
    """First offset at or after a timestamp."""
    return _request(
        RequestKind.GET_OFFSET_FOR_TIMESTAMP, _text(topic), unsigned(partition), unsigned(zigzag(milliseconds))
    )


def describe_topic_configs(topic: str) -> bytes:
    """Configuration of a topic."""
    return _request(RequestKind.DESCRIBE_TOPIC_CONFIGS, unsigned(1), _text(topic))


def create_topic(name: str, partitions: int) -> bytes:
    """Creation of a topic."""
    return _request(RequestKind.CREATE_TOPIC, _text(name), _option(unsigned(partitions)))


def delete_topic(name: str) -> bytes:
    """Deletion of a topic."""
    return _request(RequestKind.DELETE_TOPIC, _text(name))


def alter_topic_config(topic: str, key: str, value: str) -> bytes:
    """Change of one configuration key of a topic."""
    return _request(RequestKind.ALTER_TOPIC_CONFIG, _text(topic), unsigned(1), _text(key), _option(_text(value)))


def delete_records(topic: str, partition: int, offset: int) -> bytes:
    """Deletion of the records before an offset."""
    return _request(RequestKind.DELETE_RECORDS, _text(topic), unsigned(1), unsigned(partition), unsigned(offset))


def publish_batch(topic: str, partition: int | None, records: Sequence[tuple[bytes | None, bytes]]) -> bytes:
    """Records, as key and value, for one partition; without a partition, the server selects one for all of them."""
    fields = [_text(topic), _option(None if partition is None else unsigned(partition)), unsigned(len(records))]
    for key, value in records:
        fields += (_option(None if key is None else _blob(key)), _blob(value))
    return _request(RequestKind.PUBLISH_BATCH, *fields, _option(None))


def init_producer_id() -> bytes:
    """Id of a new producer, for transactions."""
    return _request(RequestKind.INIT_PRODUCER_ID, _option(None))


@dataclass(frozen=True)
class Producer:
    """Id and epoch of a producer with the name of its transaction."""

    producer_id: int
    epoch: int
    transaction: str = ""

    def fields(self) -> bytes:
        """The fields with which most requests of a transaction start."""
        return _text(self.transaction) + self.identity()

    def identity(self) -> bytes:
        """Id and epoch."""
        return unsigned(self.producer_id) + unsigned(self.epoch)


def begin_transaction(producer: Producer) -> bytes:
    """Start of a transaction with the server's default timeout."""
    return _request(RequestKind.BEGIN_TRANSACTION, producer.fields(), _option(None))


def add_partition_to_txn(producer: Producer, topic: str, partition: int) -> bytes:
    """Addition of a partition to a transaction."""
    return _request(
        RequestKind.ADD_PARTITIONS_TO_TXN, producer.fields(), unsigned(1), _text(topic), unsigned(partition)
    )


def transactional_publish(producer: Producer, topic: str, partition: int, value: bytes, sequence: int) -> bytes:
    """One record of a transaction."""
    return _request(
        RequestKind.TRANSACTIONAL_PUBLISH,
        _text(producer.transaction),
        _text(topic),
        _option(unsigned(partition)),
        _option(None),
        _blob(value),
        producer.identity(),
        unsigned(zigzag(sequence)),
        _option(None),
    )


def end_transaction(producer: Producer, commit: bool) -> bytes:
    """Commit or abort of a transaction."""
    kind = RequestKind.COMMIT_TRANSACTION if commit else RequestKind.ABORT_TRANSACTION
    return _request(kind, producer.fields())


# ---- responses ----


@dataclass(frozen=True)
class Throttle:
    """A response that asks to send the request again later."""

    milliseconds: int


class ResponseReader:
    """Fields of a response, one after the other; MalformedResponse where the bytes do not have them."""

    def __init__(self, content: bytes | bytearray, position: int = 0) -> None:
        self.content = content
        self.position = position

    def integer(self, limit: int = 2**64 - 1) -> int:
        """Unsigned integer up to a limit."""
        number = shift = 0
        for position in range(self.position, min(self.position + _MAX_VARINT, len(self.content))):
            byte = self.content[position]
            number |= (byte & 127) << shift
            if byte < 128:
                self.position = position + 1
                if number > limit:
                    raise MalformedResponse(f"the number {number:,}; the limit is {limit:,}")
                return number
            shift += 7
        raise MalformedResponse(f"no integer at byte {self.position:,}")

    def offset(self) -> int:
        """Offset, which fits into 63 bits."""
        return self.integer(_MAX_OFFSET)

    def signed(self) -> int:
        """Signed 64-bit integer."""
        number = self.integer()
        return -(number >> 1) - 1 if number & 1 else number >> 1

    def blob(self, limit: int = MAX_FRAME) -> bytes:
        """Bytes with their length."""
        start, end = self.span(limit)
        return bytes(self.content[start:end])

    def span(self, limit: int = MAX_FRAME) -> tuple[int, int]:
        """Position of bytes with their length."""
        length = self.integer(limit)
        start, end = self.position, self.position + length
        if end > len(self.content):
            raise MalformedResponse(f"{length:,} bytes at byte {start:,} of {len(self.content):,}")
        self.position = end
        return start, end

    def text(self) -> str:
        """UTF-8 text."""
        try:
            return self.blob(_MAX_NAME).decode()
        except UnicodeDecodeError:
            raise MalformedResponse("a text that is not UTF-8") from None

    def present(self) -> bool:
        """Whether an option has a value."""
        return self.integer(1) == 1

    def count(self, item_bytes: int = 1, limit: int = _MAX_LIST) -> int:
        """Length of a list whose items have at least this many bytes, so that no larger list can be announced."""
        return self.integer(min(limit, (len(self.content) - self.position) // item_bytes))

    def end(self) -> None:
        """Require the end of the response."""
        if self.position != len(self.content):
            raise MalformedResponse(f"{len(self.content) - self.position:,} bytes after the response")


def response_kind(reader: ResponseReader) -> int:
    """Variant number of a response."""
    return reader.integer(2**32 - 1)


def error_text(reader: ResponseReader) -> str:
    """Message of an error."""
    return reader.text()


def throttle(reader: ResponseReader) -> Throttle:
    """How long to wait; the quota that was exceeded is not needed."""
    return Throttle(reader.integer())


def topic_names(reader: ResponseReader) -> list[str]:
    """Names of topics."""
    return [reader.text() for _ in range(reader.count())]


def partition_count(reader: ResponseReader) -> int:
    """Number of partitions in the metadata of a topic."""
    reader.text()
    return reader.integer(_MAX_LIST)


def offset_bounds(reader: ResponseReader) -> tuple[int, int]:
    """Earliest and latest offset."""
    return reader.offset(), reader.offset()


def optional_offset(reader: ResponseReader) -> int | None:
    """Offset for a timestamp; None if all records are older."""
    return reader.offset() if reader.present() else None


def cleanup_policy(reader: ResponseReader) -> str:
    """The value of `cleanup.policy` in the only topic described; empty if it is not there."""
    policy = ""
    for _ in range(reader.count()):
        reader.text()
        for _ in range(reader.count()):
            key, value = reader.text(), reader.text()
            _default, _read_only, _sensitive = reader.present(), reader.present(), reader.present()
            if key == "cleanup.policy":
                policy = value
    return policy
