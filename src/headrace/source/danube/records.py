"""Messages as records: routing key, payload, attributes and position."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA
from headrace.source.danube.client import BrokerSchema
from headrace.spec.danube_source import OFFSET_HEADER, PARTITION_HEADER

_PRODUCER, _SCHEMA_ID, _SCHEMA_VERSION = "danube.producer", "danube.schema_id", "danube.schema_version"
_SUBJECT, _KIND = "danube.schema_subject", "danube.schema_type"

_FIELDS = [RECORD_SCHEMA.field(name) for name in ("key", "value", "headers", "timestamp")]
_SCHEMA = pa.schema(_FIELDS)
_KEY, _VALUE, _HEADERS, _TIMESTAMP = (field.type for field in _FIELDS)
_MILLISECOND = 1000
_LATEST = (1 << 63) // _MILLISECOND - 1  # milliseconds that fit a timestamp


@dataclass(frozen=True, slots=True)
class MessageIdentity:
    """What a redelivered message has in common with its first delivery, and no other message."""

    producer: str
    sequence: str


def record_of(message: Any, partition: int | None, schema: BrokerSchema | None = None) -> pa.RecordBatch:
    """The record of a message."""
    key = message.routing_key.encode() if message.HasField("routing_key") else None
    time = min(message.publish_time, _LATEST) * _MILLISECOND
    columns = [
        pa.array([key], _KEY),
        pa.array([message.payload], _VALUE),
        pa.array([headers_of(message, partition, schema)], _HEADERS),
        pa.array([time], pa.int64()).view(_TIMESTAMP),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def headers_of(message: Any, partition: int | None, schema: BrokerSchema | None = None) -> list[tuple[str, bytes]]:
    """Attributes by name, then the position and the producer. Of two headers with one name, the last counts."""
    headers = [(name, value.encode()) for name, value in sorted(message.attributes.items())]
    headers.append((OFFSET_HEADER, b"%d" % message.msg_id.topic_offset))
    if partition is not None:
        headers.append((PARTITION_HEADER, b"%d" % partition))
    headers.append((_PRODUCER, message.producer_name.encode()))
    if message.HasField("schema_id"):
        headers.append((_SCHEMA_ID, b"%d" % message.schema_id))
    if message.HasField("schema_version"):
        headers.append((_SCHEMA_VERSION, b"%d" % message.schema_version))
    if schema is not None:
        headers += [(_SUBJECT, schema.subject.encode()), (_KIND, schema.kind.encode())]
    return headers


def identity_of(message: Any) -> MessageIdentity:
    """Identity of a message.

    The offset alone is not enough: a topic that was created again has the same ones, and topics without reliable
    dispatch have none. There the request number of the producer tells messages apart, with the time and the content in
    case that a client does not count its requests.
    """
    position, content = message.msg_id, zlib.crc32(message.payload)
    sequence = f"{position.topic_offset:x}.{message.request_id:x}.{message.publish_time:x}.{content:x}"
    return MessageIdentity(f"{position.topic_name.rpartition('/')[2]}.{position.producer_id:x}", sequence)
