"""Events in formats with a schema: the schema for a registry, and the encoder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

Event = dict[str, Any]
Encode = Callable[[Event], bytes]


@dataclass(frozen=True)
class Encoding:
    """A format with a schema registry."""

    format: str  # name in a spec
    kind: str  # name in a registry
    schema: str
    encoder: Callable[[], Encode]
    message_index: bytes = b""  # of Protobuf, between schema id and value

    def framed(self, id: int) -> Encode:
        """Encoder of the Confluent wire format."""
        head, encode = b"\0" + id.to_bytes(4, "big") + self.message_index, self.encoder()
        return lambda event: head + encode(event)


_USER = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "country", "type": "string"},
        {"name": "plan", "type": "string"},
    ],
}
_FIELDS: dict[str, Any] = {
    "id": "long",
    "event_type": "string",
    "timestamp": {"type": "long", "logicalType": "timestamp-millis"},
    "session_id": "string",
    "user": _USER,
    "url": "string",
    "status": "int",
    "duration_ms": "double",
    "amount": "double",
    "tags": {"type": "array", "items": "string"},
    "ok": "boolean",
}
_PROTO = """syntax = "proto3";
package bench;
import "google/protobuf/timestamp.proto";
message Event {
  int64 id = 1;
  string event_type = 2;
  google.protobuf.Timestamp timestamp = 3;
  string session_id = 4;
  User user = 5;
  string url = 6;
  int32 status = 7;
  double duration_ms = 8;
  double amount = 9;
  repeated string tags = 10;
  bool ok = 11;
  message User {
    int64 id = 1;
    string country = 2;
    string plan = 3;
  }
}
"""


def _timed(event: Event) -> Event:
    return {**event, "timestamp": event["timestamp"] and datetime.fromisoformat(event["timestamp"])}


def avro_schema(optional: bool = False) -> Any:
    """Avro schema of the events; `optional`: every field is nullable."""
    fields = [{"name": name, "type": ["null", kind] if optional else kind} for name, kind in _FIELDS.items()]
    return {"type": "record", "name": "Event", "namespace": "bench", "fields": fields}


@cache
def avro(optional: bool = False) -> Encode:
    """Encoder of Avro values without a schema id."""
    import fastavro

    parsed = fastavro.parse_schema(avro_schema(optional))

    def encode(event: Event) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, _timed(event))
        return out.getvalue()

    return encode


@cache
def protobuf() -> Encode:
    """Encoder of Protobuf values without a schema id."""
    from google.protobuf import message_factory

    from headrace.decode.protobuf.schema_files import in_texts

    pool = in_texts(_PROTO, {}, 64).pool
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Event"))
    return lambda event: message(**_timed(event)).SerializeToString()


@cache
def msgpack() -> Encode:
    """Encoder of MessagePack maps without a schema id."""
    import msgpack

    return lambda event: msgpack.packb(_timed(event), datetime=True)


AVRO = Encoding("avro", "AVRO", json.dumps(avro_schema()), avro)
PROTOBUF = Encoding("protobuf", "PROTOBUF", _PROTO, protobuf, b"\0")
