"""Export requests as they are stored: checked down to their records, and split if they are larger than a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from headrace.source.otlp.refusal import Refusal, RefusalKind
from headrace.spec.decode import Signal

RECORD_NAMES: dict[Signal, str] = {"traces": "spans", "logs": "log_records", "metrics": "data_points"}
_SHELL = 16  # bytes of tags and lengths around a record, its scope and its resource


@dataclass(frozen=True, slots=True)
class RequestParts:
    """The values to store for an export request, and the number of records that are not among them."""

    values: list[bytes] = field(default_factory=list)
    rejected: int = 0
    message: str = ""


def request_parts(signal: Signal, raw: bytes, max_bytes: int) -> RequestParts:
    """Check and split a request: usually it is stored as it was received.

    Only the lists of resources, scopes and records are read, not the records: what is wrong inside of one makes a dead
    letter, which keeps its bytes. A record that is larger than `max_bytes` alone is rejected.
    """
    try:
        request = _outline().FromString(raw)
    except DecodeError:
        raise Refusal(RefusalKind.MALFORMED, f"The body is not a Protobuf export request for {signal}.") from None
    if not any(scope.records for resource in request.resources for scope in resource.scopes):
        return RequestParts()
    if len(raw) <= max_bytes:
        return RequestParts([raw])
    return _split(signal, request, max_bytes)


def _split(signal: Signal, request: Any, max_bytes: int) -> RequestParts:
    values: list[bytes] = []
    rejected, part, size = 0, _outline()(), 0
    for resource, scope, record in _records(request):
        shells = len(resource.SerializeToString()) + len(scope.SerializeToString()) + _SHELL
        needed = shells + len(record) + _SHELL
        if needed > max_bytes:
            rejected += _count(signal, record)
            continue
        if size + needed > max_bytes:
            values.append(part.SerializeToString())
            part, size = _outline()(), 0
        size += _add(part, resource, scope, record)
    if size:
        values.append(part.SerializeToString())
    what = RECORD_NAMES[signal].replace("_", " ")
    message = f"{rejected} {what} exceed {max_bytes:,} bytes (limits.record_bytes) and were rejected."
    return RequestParts(values, rejected, message if rejected else "")


def _records(request: Any) -> Iterator[tuple[Any, Any, bytes]]:
    """The records of a request, each with its resource and its scope without their contents."""
    for resource in request.resources:
        own = _without(resource, "scopes")
        for scope in resource.scopes:
            shell = _without(scope, "records")
            for record in scope.records:
                yield own, shell, record


def _without(message: Any, name: str) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    copy.ClearField(name)
    return copy


def _add(part: Any, resource: Any, scope: Any, record: bytes) -> int:
    """Add a record to a part; returns the bytes that this adds, at most."""
    added = len(record) + _SHELL
    last = part.resources[-1] if part.resources else None
    if last is None or _without(last, "scopes") != resource:
        last = part.resources.add()
        last.CopyFrom(resource)
        added += len(resource.SerializeToString()) + _SHELL
    if not last.scopes or _without(last.scopes[-1], "records") != scope:
        last.scopes.add().CopyFrom(scope)
        added += len(scope.SerializeToString()) + _SHELL
    last.scopes[-1].records.append(record)
    return added


def _count(signal: Signal, record: bytes) -> int:
    """Number of rejected records; a metric counts as its data points."""
    if signal != "metrics":
        return 1
    from opentelemetry.proto.metrics.v1 import metrics_pb2

    try:
        metric = metrics_pb2.Metric.FromString(record)
    except DecodeError:
        return 1
    kind = metric.WhichOneof("data")
    return len(getattr(metric, kind).data_points) if kind else 0


@cache
def _outline() -> Any:
    """The message type of export requests of all signals, with records as bytes; other fields are kept."""
    file = descriptor_pb2.FileDescriptorProto(name="headrace/otlp_outline.proto", syntax="proto3", package="outline")
    repeated, message, raw = (
        descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
        descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    )
    shape = (
        ("Request", "resources", 1, message, ".outline.Resource"),
        ("Resource", "scopes", 2, message, ".outline.Scope"),
        ("Scope", "records", 2, raw, ""),
    )
    for name, field_name, number, kind, type_name in shape:
        outline_field = file.message_type.add(name=name).field.add(
            name=field_name, number=number, label=repeated, type=kind
        )
        if type_name:
            outline_field.type_name = type_name
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("outline.Request"))
